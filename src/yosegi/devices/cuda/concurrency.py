"""Which launches of a recording may run side by side.

A launch waits for the writers of the data it reads or writes, and for the readers of the data it writes. It goes into
the lane of one that it waits for, if nothing has followed there yet, else into a new one, as long as there are not
too many; all others that it waits for are waited for across lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MOST_LANES: Final = 4
"""More kernels than these rarely fit on a device together."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A launch's lane, and those that it waits for in other lanes, by their numbers."""

    lane: int
    waits: tuple[int, ...]


def turns(launches: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Turn]:
    """The turns of launches, given what each reads and what each writes.

    >>> turns([((0,), (1,)), ((0,), (2,)), ((1, 2), (3,))])
    [Turn(lane=0, waits=()), Turn(lane=1, waits=()), Turn(lane=0, waits=(1,))]
    """
    made: list[Turn] = []
    last: list[int] = []
    """The last launch of each lane."""
    for number, needed in enumerate(_needed(launches)):
        follows = [n for n in needed if n == last[made[n].lane]]
        if follows:
            lane = made[follows[0]].lane
        elif len(last) < MOST_LANES:
            lane = len(last)
            last.append(number)
        else:
            lane = min(range(MOST_LANES), key=last.__getitem__)  # the one that has been waiting longest
        last[lane] = number
        made.append(Turn(lane, tuple(n for n in needed if made[n].lane != lane)))
    return made


def _needed(launches: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[int]]:
    """For each launch those that have to be done before; of a chain of them, the last."""
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    before: list[int] = []
    """For each launch all those before it, as bits: sets of thousands would take seconds."""
    made = []
    for number, (reads, writes) in enumerate(launches):
        direct = {writer[p] for p in (*reads, *writes) if p in writer}
        direct.update(*[readers.get(p, ()) for p in writes])
        implied = done = 0
        for n in direct:
            implied |= before[n]
            done |= 1 << n
        made.append(sorted(n for n in direct if not implied >> n & 1))
        before.append(implied | done)
        for place in reads:
            readers.setdefault(place, set()).add(number)
        for place in writes:
            writer[place] = number
            readers[place] = set()
    return made
