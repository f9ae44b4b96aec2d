"""Regions against labels: who can run what, at what cost, and what a labelling comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from .candidates import Candidate, candidates_for
from .costs import costs
from .device import Device
from .forecast import Forecast, comes_from_host, forecast_of, space_of
from .fuse import Region
from .graph import Graph
from .labels import NEVER, Problem, Value, best
from .memory import HOST
from .partition import Choice, Unit, units_of
from .work import Work

_LITTLE: Final = 1e-9  # seconds: what is as good as nothing, but tells the first from the second
_NOT_WORTH_IT: Final = "what it would get of this is not worth a call"


@dataclass(frozen=True, slots=True)
class Layout:
    """A labelling as units, with what they take."""

    units: list[Unit]
    forecast: Forecast

    def is_like(self, other: Layout) -> bool:
        """Whether the same units run in the same places."""
        return len(self.units) == len(other.units) and all(
            a.candidate == b.candidate and a.region.nodes == b.region.nodes
            for a, b in zip(self.units, other.units, strict=True)
        )


class Table:
    """The regions of a graph, with the candidates of the devices that are asked; the last of them can run all."""

    def __init__(
        self,
        graph: Graph,
        regions: Sequence[Region],
        works: Sequence[Work],
        asked: Sequence[Device],
        *,
        repeats: bool = False,
        steady: Set[int] = frozenset(),
    ) -> None:
        self.graph = graph
        self.regions = regions
        self.works = works
        self.repeats = repeats
        self.steady = steady
        found = [candidates_for(region, asked) for region in regions]
        self.refused = [refused for _, refused in found]
        self.labels = sorted({c for candidates, _ in found for c in candidates}, key=lambda c: _place(c, asked))
        number = {c: n for n, c in enumerate(self.labels)}
        self.can = [[number[c] for c in candidates] for candidates, _ in found]
        self.pins = self._pins()

    def _pins(self) -> dict[int, int]:
        """The regions that read what the user has put on a device, or what is made of it, with the label of that
        device, if it can run them."""
        graph = self.graph
        pinned = {i: space_of(graph, i) for i in graph.inputs if graph.calls[i].attrs.get("pinned")}
        pins: dict[int, int] = {}
        for n, region in enumerate(self.regions) if pinned else ():
            spaces = {pinned[i] for i in region.inputs if i in pinned}
            there = [label for label in self.can[n] if self.labels[label].device.space in spaces]
            if there:
                pins[n] = there[0]
                pinned.update(dict.fromkeys(region.outputs, self.labels[there[0]].device.space))
        return pins

    # Labellings

    def in_order(self) -> list[int]:
        """Each region with the first label that it can have."""
        return [self.pins.get(n, can[0]) for n, can in enumerate(self.can)]

    def single(self, device: Device) -> list[int]:
        """All that a device can do on it, the rest on the host."""
        whole = Candidate(device)
        return [
            self.pins.get(n, next((label for label in can if self.labels[label] == whole), can[-1]))
            for n, can in enumerate(self.can)
        ]

    def cheapest(self, starts: Sequence[Sequence[int]], known: Iterable[Layout]) -> list[int]:
        """The labelling of least cost that moves from these find; `known` layouts say how right lines are here."""
        return best(self._problem(self._corrections(known)), starts)

    def worth_a_call(self, labels: list[int]) -> list[int]:
        """A labelling by name, but for pieces that would cost more to call for than to run where their neighbours do.

        What a named device takes to compute plays no part: it is meant. A single piece is what was asked for.
        """
        host = len(self.labels) - 1
        pieces = [u.candidate for u in units_of(self.graph, self.choices(labels)) if u.candidate.device.coalesces]
        if sum(candidate != self.labels[host] for candidate in pieces) <= 1:
            return labels
        own = [[NEVER] * len(self.labels) for _ in self.regions]
        for n, can in enumerate(self.can):
            for label in can:
                own[n][label] = self._cost(n, label) if label == host else _LITTLE * label
        calls = [*self._calls()[:-1], 0.0]
        problem = Problem([0] * len(self.labels), calls, own, (), self._feeders(), ())
        return best(problem, (labels, [host] * len(labels)))

    def choices(self, labels: Sequence[int], instead_of: Sequence[int] | None = None) -> list[Choice]:
        """The regions with their labels; `instead_of` others, which were not worth a call."""
        made = []
        for n, label in enumerate(labels):
            refused = self.refused[n]
            if instead_of is not None and instead_of[n] != label:
                refused = (*refused, (self.labels[instead_of[n]].device.name, _NOT_WORTH_IT))
            made.append(Choice(self.regions[n], self.labels[label], self.works[n], refused, n in self.pins))
        return made

    def layout(self, labels: Sequence[int]) -> Layout:
        """A labelling as units, with what they take."""
        units = units_of(self.graph, self.choices(labels), repeats=self.repeats)
        return Layout(units, forecast_of(self.graph, units, self.steady))

    # Costs

    def _cost(self, region: int, label: int) -> float:
        """A region under a label, with its launch if that is its own."""
        candidate, work = self.labels[label], self.works[region]
        measured = None if candidate.device.coalesces else costs.measured(self.regions[region], candidate)
        if measured is not None:
            return measured
        return costs.region(work, candidate) + costs.speed(candidate.device).converting(work, candidate.precision)

    def _calls(self) -> list[float]:
        return [costs.speed(c.device).launch if c.device.coalesces else 0.0 for c in self.labels]

    def _corrections(self, known: Iterable[Layout]) -> list[float]:
        """For each label, how many times their lines the units took that were measured."""
        timed, lines = [0.0] * len(self.labels), [0.0] * len(self.labels)
        for layout in known:
            for unit in layout.units:
                seconds = costs.measured(unit.region, unit.candidate)
                if seconds is not None:
                    label = self.labels.index(unit.candidate)
                    timed[label] += seconds
                    lines[label] += costs.line(unit.works, unit.candidate).total
        return [t / line if line else 1.0 for t, line in zip(timed, lines, strict=True)]

    def _problem(self, corrections: Sequence[float]) -> Problem:
        names = list(dict.fromkeys((HOST, *[c.device.space for c in self.labels], *self._outside().values())))
        spaces = [names.index(c.device.space) for c in self.labels]
        ways = [[costs.way(a, b) for b in names] for a in names]
        is_wanted = frozenset(self.graph.outputs) if comes_from_host(self.graph) else frozenset()
        own = [[NEVER] * len(self.labels) for _ in self.regions]
        for n, can in enumerate(self.can):
            back = sum(self.graph.calls[o].spec.nbytes for o in self.regions[n].outputs if o in is_wanted)
            for label in [self.pins[n]] if n in self.pins else can:
                own[n][label] = self._cost(n, label) * corrections[label]
                if back and spaces[label]:
                    own[n][label] += ways[spaces[label]][0].seconds(back)
        return Problem(spaces, self._calls(), own, list(self._values(names)), self._feeders(), ways)

    def _outside(self) -> dict[int, str]:
        """The inputs that have to be moved in every run, with the memories that they are in."""
        return {i: space_of(self.graph, i) for i in self.graph.inputs if i not in self.steady}

    def _values(self, names: Sequence[str]) -> Iterable[Value]:
        """What regions read of each other, and from outside."""
        maker = {entry: n for n, region in enumerate(self.regions) for entry in region.outputs}
        readers: dict[int, list[int]] = {}
        for n, region in enumerate(self.regions):
            for entry in region.inputs:
                readers.setdefault(entry, []).append(n)
        outside = self._outside()
        for entry, who in readers.items():
            nbytes = self.graph.calls[entry].spec.nbytes
            if entry in maker:
                yield Value(maker[entry], 0, tuple(who), nbytes)
            elif entry in outside:
                yield Value(-1, names.index(outside[entry]), tuple(who), nbytes)

    def _feeders(self) -> list[int]:
        maker = {entry: n for n, region in enumerate(self.regions) for entry in region.outputs}
        return [max((maker[i] for i in region.inputs if i in maker), default=-1) for region in self.regions]


def _place(candidate: Candidate, asked: Sequence[Device]) -> tuple[int, str]:
    """Labels stand in the order of the devices, each with its full precision first."""
    return asked.index(candidate.device), "" if candidate == Candidate(candidate.device) else candidate.precision.value
