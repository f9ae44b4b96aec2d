"""Fair timing: contenders take turns in one process, and what counts is the ratio of two in the same round.

A turn is a batch of calls. A round is a turn of everyone, in an order in which everyone comes directly behind everyone
else equally often: what one leaves in the caches, and its threads that do not rest yet, touch all others alike. A
sitting is a number of rounds on inputs of their own; a case has several sittings, with the other cases in between, so
that what drifts on a shared machine shows up as spread and not as a difference.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import median
from time import perf_counter, process_time, sleep
from typing import Any, Final

import numpy as np

from ..._tune.timing import seconds_of

_TURN: Final = 0.003  # seconds; a shorter turn is mostly the clock and the caches
_LONG: Final = 0.01  # seconds; a call that takes longer is its own average
_BATCHES: Final = 5
_MOST_CALLS: Final = 2000
_LEAST_ROUNDS: Final = 2
_RESAMPLES: Final = 1000
_LOOK: Final = 0.02  # seconds, after each of which threads are looked at again: their time is counted coarsely
_IDLE: Final = 0.2  # processors at most that a process at rest uses


@dataclass(frozen=True, slots=True)
class Contender:
    """A call that does a case and returns when the work is done."""

    call: Callable[[], object]
    turn: Callable[[], AbstractContextManager[Any]] = nullcontext
    """The context of its turn: options, a library's inference mode."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call took: a figure per round, grouped by sittings."""

    sittings: tuple[tuple[float, ...], ...]

    @property
    def rounds(self) -> tuple[float, ...]:
        """All rounds."""
        return tuple(t for sitting in self.sittings for t in sitting)

    @property
    def median(self) -> float:
        """The middle round."""
        return float(median(self.rounds))

    @property
    def spread(self) -> float:
        """The middle half of the rounds, over the median."""
        low, high = np.quantile(self.rounds, [0.25, 0.75])
        return float(high - low) / self.median

    def ratio_to(self, other: Timing) -> Ratio:
        """How many times the other's time, round by round."""
        pairs = zip(self.sittings, other.sittings, strict=True)
        return Ratio.of([[a / b for a, b in zip(s, o, strict=True)] for s, o in pairs])

    def joined(self, other: Timing) -> Timing:
        """These sittings and those of another timing."""
        return Timing(self.sittings + other.sittings)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of two times: the median, and the 95% interval that resampling gives."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, sittings: Sequence[Sequence[float]]) -> Ratio:
        """The ratio, from the ratios of each round."""
        low, high = np.quantile(resampled_medians(sittings), [0.025, 0.975])
        return cls(middle(sittings), float(low), float(high))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} – {self.high:.2f})"


def middle(sittings: Sequence[Sequence[float]]) -> float:
    """The median over sittings, each with its median round."""
    return float(np.median([np.median(s) for s in sittings]))


def resampled_medians(sittings: Sequence[Sequence[float]]) -> np.ndarray[Any, Any]:
    """Medians of bootstrap samples of the sittings: the rounds of one sitting share its luck, and count once."""
    values = np.array([np.median(s) for s in sittings] if len(sittings) > 1 else sittings[0])
    rng = np.random.default_rng(len(values))
    return np.asarray(np.median(rng.choice(values, (_RESAMPLES, len(values))), axis=1))


def race(
    contenders: Mapping[str, Contender], *, rounds: int = 5, seconds: float = 0.4, settle: float = 0.0,
    turn: float = _TURN, first: int = 0,
) -> dict[str, Timing]:  # fmt: skip
    """Time contenders in turns: `rounds` rounds, or fewer, but at least two, if they would take longer than `seconds`.

    `settle` is how long a turn waits, at most, for the threads of the contender before to come to rest. A turn takes
    `turn` seconds, or a single call. `first` is the number of the first round, by which their order is chosen.
    """
    calls = {name: _calls_per_turn(contender, turn) for name, contender in contenders.items()}
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    collecting = gc.isenabled()
    gc.disable()
    try:
        begin = perf_counter()
        for number in range(rounds):
            if number >= _LEAST_ROUNDS and perf_counter() - begin > seconds:
                break
            for name in order_of_turns(names, first + number):
                _rest(settle)
                taken[name].append(_turn(contenders[name], calls[name]))
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return {name: Timing((tuple(t),)) for name, t in taken.items()}


def order_of_turns(names: Sequence[str], number: int) -> list[str]:
    """The order of a round. In twice as many rounds as there are contenders, everyone comes directly behind each other
    one equally often (Williams' design).

    >>> ["".join(order_of_turns("abcd", n)) for n in range(4)]
    ['abdc', 'bcad', 'cdba', 'dacb']
    """
    count = len(names)
    zigzag = [n // 2 + 1 if n % 2 else -(n // 2) for n in range(count)]
    order = [names[(place + number) % count] for place in zigzag]
    return order[::-1] if count % 2 and number // count % 2 else order


def _rest(most: float) -> None:
    """Sleep until nobody else in this process computes: pools look for their next job for a while, some for 0.1 s."""
    end = perf_counter() + most
    while (left := end - perf_counter()) > 0:
        start, before = perf_counter(), process_time()
        sleep(min(_LOOK, left))
        if process_time() - before < _IDLE * (perf_counter() - start):
            return


def _turn(contender: Contender, calls: int) -> float:
    """Seconds a call took in this turn: the middle one of a few batches, so that a hiccup of the machine drops out.

    One call more goes before, to bring code and data back into the caches.
    """
    call = contender.call
    batches = min(_BATCHES, calls)
    taken = []
    with contender.turn():
        call()
        for number in range(batches):
            batch = calls * (number + 1) // batches - calls * number // batches
            taken.append(seconds_of(call, calls=batch))
    return median(taken)


def _calls_per_turn(contender: Contender, turn: float) -> int:
    """Warm up, and find how many calls make a turn long enough."""
    with contender.turn():
        contender.call()
        once = seconds_of(contender.call)
        if once < turn:
            once = seconds_of(contender.call, calls=5)
    if once > _LONG:
        return 1
    return max(3, min(_MOST_CALLS, round(turn / max(once, 1e-9))))
