"""Ranks inside one process: each is a thread. For tests of distributed programs; one process alone is a world of one.

`Kill` and `Straggle` inject faults, at the n-th call of a communicator by a rank.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, RLock, Thread
from typing import Any, TypeVar, final

import numpy as np

from ..errors import ArgumentError
from .communicator import (
    CURRENT,
    Array,
    Combine,
    Communicator,
    RankLost,
    combined,
    described,
    disagreement,
    lost,
    reduction,
)
from .costs import PRIOR, Network

T = TypeVar("T")


@dataclass(frozen=True)
class Kill:
    """The rank dies at its n-th call of a communicator, counted from 0."""

    rank: int
    call: int


@dataclass(frozen=True)
class Straggle:
    """The rank misses the deadline of its n-th call of a communicator, counted from 0, however long that is.

    It comes back once the others have ended, or have gone on without it.
    """

    rank: int
    call: int


class _Killed(BaseException):
    """Ends the thread of a rank. No `except Exception` of the rank's program stops it."""


class _World:
    """State that all ranks share: one lock, the ranks that are gone, and the faults to come."""

    def __init__(self, faults: Sequence[Kill | Straggle], network: Network | None = None) -> None:
        self.lock = RLock()
        self.network = network
        self.gone: set[int] = set()
        self.late: set[int] = set()
        """Ranks that straggle."""
        self._ended = Condition(self.lock)
        self.waiting: list[int] = []
        """Ranks that wait to join a group."""
        self.joined = Condition(self.lock)
        self.places: dict[int, _Group] = {}
        """The groups that ranks have joined, until they know."""
        self.groups: list[_Group] = []
        self._faults = {(fault.rank, fault.call): fault for fault in faults}
        self._calls: defaultdict[int, int] = defaultdict(int)

    def leave(self, rank: int) -> None:
        """Take a rank out: it died, or its program ended."""
        with self.lock:
            self.gone.add(rank)
            self.notify()

    def notify(self) -> None:
        """Wake all ranks that wait. The lock is held."""
        self._ended.notify_all()
        for group in self.groups:
            group.changed.notify_all()

    def join(self, rank: int, deadline: float) -> FakeCommunicator:
        """Wait until a group takes this rank in. The group calls `grow`."""
        with self.lock:
            self.waiting.append(rank)
            self.joined.wait_for(lambda: rank in self.places)
            group = self.places.pop(rank)
        communicator = FakeCommunicator(group, group.members.index(rank), deadline)
        communicator.is_new = True
        return communicator

    def count(self, rank: int) -> None:
        """Count a call of a rank, and inject its fault."""
        fault = self._faults.get((rank, self._calls[rank]))
        self._calls[rank] += 1
        if isinstance(fault, Kill):
            raise _Killed
        if isinstance(fault, Straggle):
            with self.lock:
                self.late.add(rank)
                self.notify()
                self._ended.wait_for(lambda: any(group.is_over_for(rank) for group in self.groups))
                self.late.remove(rank)

    def travel(self, name: str, ranks: int, value: Any) -> None:
        """Sleep as long as the network takes for a collective in which each rank gives such a value."""
        arrays = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, np.ndarray)]
        if self.network is not None and arrays:
            time.sleep(self.network.seconds(name, ranks, sum(array.nbytes for array in arrays)))


class _Group:
    """State that the ranks of one communicator share. The world's lock guards it."""

    def __init__(self, world: _World, members: tuple[int, ...]) -> None:
        self.world, self.members = world, members
        self.changed = Condition(world.lock)
        self.meetings: defaultdict[int, dict[int, tuple[str, Any]]] = defaultdict(dict)
        self.mail: defaultdict[tuple[int, int, int], deque[Array]] = defaultdict(deque)
        self.parts: dict[tuple[int, tuple[int, ...]], _Group] = {}
        self.lost: set[int] = set()
        self.arrived: set[int] = set()
        self.survivors: tuple[int, ...] = ()
        self.grown: dict[int, tuple[int, ...]] = {}
        world.groups.append(self)

    def is_over_for(self, rank: int) -> bool:
        """True if the others have lost a rank, and have ended or formed a group without it."""
        return rank in self.lost and (bool(self.survivors) or set(self.members) - {rank} <= self.world.gone)


@final
class FakeCommunicator(Communicator):
    """A group of ranks that are threads of this process."""

    def __init__(self, group: _Group, rank: int, deadline: float) -> None:
        self.rank, self.size, self.members = rank, len(group.members), group.members
        self.deadline = deadline
        self._group, self._own = group, group.members[rank]
        self._met = 0

    def all_reduce(self, array: Array, combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the arrays of all ranks."""
        said = reduction("all_reduce", combine, fixed_order, array.dtype, array.shape)
        return combined(self._meet(said, array.copy()), combine)

    def all_gather(self, array: Array) -> list[Array]:
        """The arrays of all ranks."""
        return [each.copy() for each in self._meet(described("all_gather", "", array.dtype), array.copy())]

    def reduce_scatter(self, parts: Sequence[Array], combine: Combine, *, fixed_order: bool = False) -> Array:
        """Combine the part with this rank's index over all ranks."""
        said = reduction("reduce_scatter", combine, fixed_order, parts[0].dtype, *[part.shape for part in parts])
        return combined(self._exchange(said, parts), combine)

    def all_to_all(self, parts: Sequence[Array]) -> list[Array]:
        """Send part i to rank i, and receive one part from each rank."""
        return self._exchange(described("all_to_all", "", parts[0].dtype), parts)

    def broadcast(self, array: Array | None, root: int) -> Array:
        """The array of the root."""
        sent: Array = self._meet(f"broadcast from {root}", array.copy() if array is not None else None)[root]
        return sent.copy()

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        """Send a copy of an array to one rank."""
        self._group.world.count(self._own)
        with self._group.changed:
            self._check_whole("send")
            self._group.mail[self.rank, to, tag].append(array.copy())
            self._group.changed.notify_all()

    def receive(self, source: int, tag: int = 0) -> Array:
        """The next array that a rank sent under this tag."""
        self._group.world.count(self._own)
        with self._group.changed:
            mail = self._group.mail[source, self.rank, tag]
            self._wait("receive", lambda: bool(mail), lambda: [self.members[source]])
            return mail.popleft()

    def barrier(self, name: str = "barrier") -> None:
        """Wait for all ranks."""
        self._meet(name, None)

    def split(self, color: int, key: int) -> Communicator:
        """The group of the ranks with the same color, ordered by key."""
        asked = self._meet("split", (color, key))
        order = sorted((asked[rank][1], rank) for rank in range(self.size) if asked[rank][0] == color)
        return self._part(self._met, tuple(self.members[rank] for _, rank in order))

    def shrink(self) -> Communicator:
        """The group of the ranks that live."""
        group = self._group
        with group.changed:
            group.arrived.add(self._own)
            group.changed.notify_all()
            awaited = set(self.members) - group.lost
            everyone = lambda: group.survivors or awaited <= group.arrived | group.world.gone  # noqa: E731
            group.changed.wait_for(everyone, self.deadline)
            group.survivors = group.survivors or tuple(m for m in self.members if m in group.arrived)
            group.world.notify()
        if self._own not in group.survivors:
            raise lost("shrink", [self._own], "came after the other ranks had gone on without it")
        return self._part(-1, group.survivors)

    def grow(self) -> Communicator:
        """The group with the ranks that wait to join it, or this group."""
        self._meet("grow", None)
        world, group = self._group.world, self._group
        with world.lock:
            members = group.grown.setdefault(self._met, (*self.members, *world.waiting))
            if members == self.members:
                return self
            made = self._part(self._met, members)
            new = [rank for rank in members if rank in world.waiting]
            world.waiting = [rank for rank in world.waiting if rank not in new]
            world.places.update(dict.fromkeys(new, group.parts[self._met, members]))
            world.joined.notify_all()
        return made

    def seconds(self, name: str, nbytes: int) -> float:
        """The time of a collective in the network of the ranks: nothing is measured."""
        return (self._group.world.network or PRIOR).seconds(name, self.size, nbytes)

    def _part(self, moment: int, members: tuple[int, ...]) -> Communicator:
        """A smaller group. All its members ask for it at the same moment, and get the same one."""
        with self._group.changed:
            group = self._group.parts.get((moment, members)) or _Group(self._group.world, members)
            self._group.parts[moment, members] = group
        return FakeCommunicator(group, members.index(self._own), self.deadline)

    def _exchange(self, said: str, parts: Sequence[Array]) -> list[Array]:
        if len(parts) != self.size:
            name = said.partition(" ")[0]
            raise ArgumentError(f"[{name}] expected a part for each of {self.size} ranks, got {len(parts)}")
        return [row[self.rank].copy() for row in self._meet(said, [part.copy() for part in parts])]

    def _meet(self, said: str, value: Any) -> list[Any]:
        """Wait for all ranks in the call that these words describe. Returns their values in the order of ranks."""
        group, name = self._group, said.partition(" ")[0]
        group.world.count(self._own)
        with group.changed:
            self._check_whole(name)
            values = group.meetings[self._met]
            values[self.rank] = (said, value)
            if len(values) == self.size:
                group.meetings.pop(self._met - 1, None)  # all ranks have left it
                group.changed.notify_all()
            self._met += 1
            absent = lambda: [m for rank, m in enumerate(self.members) if rank not in values]  # noqa: E731
            self._wait(name, lambda: len(values) == self.size, absent)
        group.world.travel(name, self.size, value)
        if any(each != said for each, _ in values.values()):
            raise disagreement(name, {self.members[rank]: each for rank, (each, _) in values.items()})
        return [values[rank][1] for rank in range(self.size)]

    def _wait(self, name: str, done: Callable[[], bool], absent: Callable[[], list[int]]) -> None:
        """Wait until `done`. The lock is held."""
        group, end = self._group, time.monotonic() + self.deadline
        while not done():
            self._check_whole(name)
            missing, left = absent(), end - time.monotonic()
            dead = [rank for rank in missing if rank in group.world.gone]
            if dead or left <= 0 or (missing and group.world.late.issuperset(missing)):
                group.lost.update(dead or missing)
                group.changed.notify_all()
                late = f"did not come within {self.deadline:g} s"
                raise lost(name, dead or missing, "died, or ended its program" if dead else late)
            group.changed.wait(left)

    def _check_whole(self, name: str) -> None:
        if self._group.lost:
            raise lost(name, sorted(self._group.lost), "was lost before; go on with the communicator of shrink()")


def first_group(size: int) -> _Group:
    """The shared state of all ranks of a new world."""
    return _Group(_World(()), tuple(range(size)))


def alone(deadline: float) -> Communicator:
    """The communicator of one process."""
    return FakeCommunicator(first_group(1), 0, deadline)


def run_ranks(
    size: int,
    function: Callable[[Communicator], T],
    *,
    deadline: float = 30.0,
    faults: Sequence[Kill | Straggle] = (),
    network: Network | None = None,
) -> list[T | None]:
    """Run a function as each of several ranks, in threads of this process.

    Parameters
    ----------
    size : int
        The number of ranks.
    function : callable
        Called with the communicator of its rank, which is also the current one of its thread.
    deadline : float
        The seconds that a collective waits for a rank.
    faults : sequence of Kill or Straggle
        Faults to inject.
    network : Network, optional
        The network over which arrays travel; by default they take no time.

    Returns
    -------
    list
        The results in the order of ranks; `None` for a rank that was killed. An exception of a rank is raised again:
        one that is no `RankLost` first.

    Examples
    --------
    >>> import numpy as np
    >>> run_ranks(3, lambda ranks: int(ranks.all_reduce(np.asarray(ranks.rank), Combine.SUM)))
    [3, 3, 3]
    """
    group = _Group(_World(faults, network), tuple(range(size)))
    results: list[T | None] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        communicator = FakeCommunicator(group, rank, deadline)
        CURRENT.set(communicator)
        try:
            results[rank] = function(communicator)
        except _Killed:
            pass
        except BaseException as error:
            errors.append(error)
        finally:
            group.world.leave(rank)

    threads = [Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in sorted(errors, key=lambda error: isinstance(error, RankLost)):
        raise error
    return results
