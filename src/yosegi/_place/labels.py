"""The labelling of regions that costs least in all.

A label is a candidate: a device and a precision. A region has a cost under each label. A value has a cost if its reader
has another label than its maker: the transfer. On a device that runs neighbours in one call, a region begins a new call
if the region that feeds it has another label.

For two labels a minimum cut finds the best labelling. For more, expansion moves come close: in each move, one label
takes over the regions that it makes cheaper, which is a minimum cut again. A move is made only if the true total falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .cost_model import TransferCost
from .mincut import CutNetwork

NEVER: Final = 1e6
"""The cost of a label that a region cannot have, in seconds."""
_ROUNDS: Final = 3  # rounds over all labels; the first two find almost everything
_GAIN: Final = 1e-9  # of the total: less is rounding


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value that regions read."""

    maker: int
    """The region that makes it, or -1 if it comes from outside."""
    space: int
    """For a value from outside, the memory that it is in."""
    readers: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """The costs of regions, values and calls. Labels and their memories are numbers."""

    spaces: Sequence[int]
    """The memory of each label."""
    calls: Sequence[float]
    """The cost of starting a call under each label, if the cost of a region does not include it."""
    own: Sequence[Sequence[float]]
    """The cost of each region under each label."""
    values: Sequence[SharedValue]
    feeders: Sequence[int]
    """For each region the last region that feeds it, whose call it can join; -1 if there is none."""
    transfers: Sequence[Sequence[TransferCost]]
    """The cost of a transfer from each memory to each other memory."""

    def total(self, labels: Sequence[int]) -> float:
        """The cost of a labelling."""
        cost = 0.0
        for region, label in enumerate(labels):
            cost += self.own[region][label]
        roots = self.feeders.count(-1)
        for region, feeder in enumerate(self.feeders):
            label = labels[region]
            if feeder < 0:
                cost += self.calls[label] / roots
            elif labels[feeder] != label:
                cost += self.calls[label]
        spaces, transfers = self.spaces, self.transfers
        for value in self.values:
            source = spaces[labels[value.maker]] if value.maker >= 0 else value.space
            targets = {spaces[labels[r]] for r in value.readers}
            targets.discard(source)
            for target in targets:
                cost += transfers[source][target].seconds(value.nbytes)
        return cost

    def expanded(self, labels: Sequence[int], label: int) -> list[int]:
        """The labelling after `label` has taken over the regions that it makes cheaper."""
        taken = _ExpansionMove(self, labels, label).taken()
        return [label if t else old for t, old in zip(taken, labels, strict=True)]


def best(problem: Problem, starts: Sequence[Sequence[int]]) -> list[int]:
    """The best labelling that moves find, never worse than any of these.

    They begin where every region has the last label, from where the first move is exact.
    """
    found, least = _moved(problem, [len(problem.spaces) - 1] * len(problem.own))
    for start in starts:
        if problem.total(start) < least * (1 - _GAIN):
            found, least = _moved(problem, list(start))
    return found


def _moved(problem: Problem, labels: list[int]) -> tuple[list[int], float]:
    """A labelling after all moves that make it cheaper, and what it costs then."""
    count = len(problem.spaces)
    least = problem.total(labels)
    failed = 0
    for turn in range(_ROUNDS * count):
        if failed == count - 1:  # a label's own expansion, a second time, changes nothing
            break
        moved = problem.expanded(labels, turn % count)
        total = problem.total(moved) if moved != labels else least
        if total < least * (1 - _GAIN):
            labels, least, failed = moved, total, 0
        else:
            failed += 1
    return labels, least


class _ExpansionMove:
    """An expansion move as a network: regions whose nodes are on the second side of the cut take the label."""

    def __init__(self, problem: Problem, labels: Sequence[int], label: int) -> None:
        self.problem = problem
        self.labels = labels
        self.label = label
        self.network = CutNetwork(len(labels))
        for region, old in enumerate(labels):
            costs = problem.own[region]
            self.network.price(region, first=costs[old], second=costs[label])
        self._add_calls()
        for value in problem.values:
            if value.maker < 0:
                self._add_outside(value)
            else:
                self._add_inside(value)

    def taken(self) -> list[bool]:
        """For each region whether it takes the label."""
        return self.network.second_side()[: len(self.labels)]

    def _add_calls(self) -> None:
        calls, new = self.problem.calls, self.label
        roots = self.problem.feeders.count(-1)
        for region, feeder in enumerate(self.problem.feeders):
            old = self.labels[region]
            if feeder < 0:
                self.network.price(region, first=calls[old] / roots, second=calls[new] / roots)
                continue
            before = self.labels[feeder]
            both, second, first = (
                0.0 if before == old else calls[old],
                0.0 if before == new else calls[new],
                0.0 if new == old else calls[old],
            )
            if both or second or first:
                self._pair(feeder, region, both, second, first)

    def _pair(self, a: int, b: int, neither: float, only_b: float, only_a: float) -> None:
        """Add the cost of a pair of regions unless both take the label."""
        self.network.price(a, second=only_a - neither)
        self.network.price(b, first=only_a)
        across = only_b + only_a - neither
        if across > 0:  # negative only if a detour is cheaper than the direct transfer
            self.network.edge(a, b, across)

    def _add_outside(self, value: SharedValue) -> None:
        """A value from outside: one transfer to each memory in which it is read."""
        problem, transfers = self.problem, self.problem.transfers[value.space]
        target = problem.spaces[self.label]
        groups: dict[int, list[int]] = {}
        for reader in value.readers:
            groups.setdefault(problem.spaces[self.labels[reader]], []).append(reader)
        for space, readers in groups.items():
            if space != target:  # while one of them stays
                self._any_stays(readers, transfers[space].seconds(value.nbytes))
        if target not in groups:
            self._any_takes(value.readers, transfers[target].seconds(value.nbytes))

    def _any_stays(self, readers: Sequence[int], cost: float) -> None:
        if not cost:
            return
        node = readers[0] if len(readers) == 1 else self.network.node()
        self.network.price(node, first=cost)
        for reader in readers if len(readers) > 1 else ():
            self.network.edge(reader, node, NEVER)

    def _any_takes(self, readers: Sequence[int], cost: float) -> None:
        if not cost:
            return
        node = readers[0] if len(readers) == 1 else self.network.node()
        self.network.price(node, second=cost)
        for reader in readers if len(readers) > 1 else ():
            self.network.edge(node, reader, NEVER)

    def _add_inside(self, value: SharedValue) -> None:
        """A value that a region makes."""
        problem = self.problem
        spaces, transfers, nbytes = problem.spaces, problem.transfers, value.nbytes
        source, target = spaces[self.labels[value.maker]], spaces[self.label]
        read = [spaces[self.labels[r]] for r in value.readers]
        if read.count(source) == len(read):
            if source != target:
                there, back = transfers[source][target].seconds(nbytes), transfers[target][source].seconds(nbytes)
                self._together(value.maker, value.readers, there, back)
            return
        for reader, space in zip(value.readers, read, strict=True):
            share = read.count(space)  # one transfer for all its readers there
            self._pair(
                value.maker, reader,
                transfers[source][space].seconds(nbytes) / share if source != space else 0.0,
                transfers[source][target].seconds(nbytes) / share if source != target else 0.0,
                transfers[target][space].seconds(nbytes) / share if target != space else 0.0,
            )  # fmt: skip

    def _together(self, maker: int, readers: Sequence[int], there: float, back: float) -> None:
        """A value whose maker and readers are in one memory: one transfer if they are separated."""
        network = self.network
        if len(readers) == 1:
            network.edge(maker, readers[0], there, back)
            return
        if there:
            going = network.node()
            network.edge(maker, going, there)
            for reader in readers:
                network.edge(going, reader, NEVER)
        if back:
            staying = network.node()
            network.edge(staying, maker, back)
            for reader in readers:
                network.edge(reader, staying, NEVER)
