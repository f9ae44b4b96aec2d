"""Simulated ranks: programs over `Communicator` on arrays without memory, with a clock in place of work.

Each rank is a thread with a clock of its own. A collective begins when its last rank comes, and takes the time of the
cost model. `compute` moves the clock of one rank; a straggler's moves faster.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from yosegi.distributed.communicator import Array, Combine, Communicator
from yosegi.distributed.costs import Network

_STACK = 1 << 18


def hollow(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """An array with a shape, but with the memory of one element."""
    return np.broadcast_to(np.zeros((), dtype), shape)


@dataclass
class _Clock:
    """The time of one rank, and how much longer its work takes than that of others."""

    factor: float
    now: float = 0.0
    mail: dict[Any, deque[tuple[float, Array]]] = field(default_factory=lambda: defaultdict(deque))
    arrived: threading.Condition = field(default_factory=threading.Condition)


class _Group:
    """The clocks of a group, and its meetings: the number of ranks that came, the latest time, and their wishes."""

    def __init__(self, clocks: dict[int, _Clock]) -> None:
        self.clocks = clocks
        self.changed = threading.Condition()
        self.meetings: dict[int, dict[int, Any]] = defaultdict(dict)
        self.results: dict[int, Any] = {}

    def meet(self, number: int, rank: int, given: Any, result: Callable[[dict[int, Any]], Any]) -> Any:
        """Wait for all ranks; the last one computes the result of all."""
        with self.changed:
            values = self.meetings[number]
            values[rank] = given
            if len(values) == len(self.clocks):
                self.results[number] = result(values)
                del self.meetings[number]
                self.results.pop(number - 1, None)
                self.changed.notify_all()
            self.changed.wait_for(lambda: number in self.results)
            return self.results[number]


@final
class SimulatedCommunicator(Communicator):
    """A group of simulated ranks."""

    def __init__(self, group: _Group, rank: int, network: Network) -> None:
        self.members = tuple(group.clocks)
        self.rank, self.size, self.deadline = rank, len(self.members), float("inf")
        self._group, self._network = group, network
        self._clock = group.clocks[self.members[rank]]
        self._met = 0

    @property
    def now(self) -> float:
        """The time of this rank."""
        return self._clock.now

    def compute(self, seconds: float) -> None:
        """Work for some time."""
        self._clock.now += seconds * self._clock.factor

    def _meet(self, name: str, nbytes: int) -> None:
        latest = self._group.meet(self._next(), self.rank, self._clock.now, lambda times: max(times.values()))
        self._clock.now = latest + self._network.seconds(name, self.size, nbytes)

    def _next(self) -> int:
        self._met += 1
        return self._met

    def all_reduce(self, array: Array, combine: Combine, *, fixed_order: bool = False) -> Array:
        self._meet("all_reduce", array.nbytes)
        return array

    def all_gather(self, array: Array) -> list[Array]:
        self._meet("all_gather", array.nbytes)
        return [array] * self.size

    def reduce_scatter(self, parts: Sequence[Array], combine: Combine, *, fixed_order: bool = False) -> Array:
        self._meet("reduce_scatter", sum(part.nbytes for part in parts))
        return parts[self.rank]

    def all_to_all(self, parts: Sequence[Array]) -> list[Array]:
        self._meet("all_to_all", sum(part.nbytes for part in parts))
        return [parts[self.rank]] * self.size

    def broadcast(self, array: Array | None, root: int) -> Array:
        given = (self._clock.now, array)
        latest, sent = self._group.meet(
            self._next(), self.rank, given, lambda all: (max(now for now, _ in all.values()), all[root][1])
        )
        self._clock.now = latest + self._network.seconds("broadcast", self.size, sent.nbytes)
        return sent

    def send(self, array: Array, to: int, tag: int = 0) -> None:
        receiver = self._group.clocks[self.members[to]]
        with receiver.arrived:
            receiver.mail[id(self._group), self.rank, tag].append((self._clock.now, array))
            receiver.arrived.notify()

    def receive(self, source: int, tag: int = 0) -> Array:
        clock = self._clock
        mail = clock.mail[id(self._group), source, tag]
        with clock.arrived:
            clock.arrived.wait_for(lambda: mail)
            sent, array = mail.popleft()
        clock.now = max(clock.now, sent + self._network.seconds("send", 2, array.nbytes))
        return array

    def barrier(self) -> None:
        self._meet("barrier", 0)

    def split(self, color: int, key: int) -> SimulatedCommunicator:
        def groups(wishes: dict[int, tuple[int, int]]) -> dict[int, _Group]:
            order = sorted(wishes, key=lambda rank: (wishes[rank], rank))
            found: dict[int, dict[int, _Clock]] = defaultdict(dict)
            for rank in order:
                found[wishes[rank][0]][self.members[rank]] = self._group.clocks[self.members[rank]]
            return {color: _Group(clocks) for color, clocks in found.items()}

        group = self._group.meet(self._next(), self.rank, (color, key), groups)[color]
        return SimulatedCommunicator(group, list(group.clocks).index(self.members[self.rank]), self._network)

    def shrink(self) -> Communicator:
        raise NotImplementedError("simulated ranks do not die")


def simulate(
    size: int,
    program: Callable[[SimulatedCommunicator], None],
    network: Network,
    stragglers: Mapping[int, float] | None = None,
) -> float:
    """Run a program on simulated ranks. Returns the time at which the last one ends."""
    clocks = {rank: _Clock((stragglers or {}).get(rank, 1.0)) for rank in range(size)}
    group = _Group(clocks)
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            program(SimulatedCommunicator(group, rank, network))
        except BaseException as error:
            errors.append(error)

    before = threading.stack_size(_STACK)
    try:
        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
        for thread in threads:
            thread.start()
    finally:
        threading.stack_size(before)
    for thread in threads:
        thread.join()
        if errors:
            raise errors[0]
    return max(clock.now for clock in clocks.values())
