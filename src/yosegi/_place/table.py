"""Regions and labels: the candidates of each region, their costs, and the cost of a labelling.

A label is a device. The precision in which a device computes a region does not concern the region's neighbours, whose
inputs and outputs keep their dtypes. So a device computes each region in its cheapest precision, or, where nothing may
depend on measurements, in the first that it has, and the labelling is about devices alone. `place` makes a table for
each graph, and `labels` finds the labelling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from .._graph.graph import Graph
from .._run.device import Device
from .._run.memory import HOST
from .._schedule.fuse import Region
from .._tensor.precision import IN_FULL, Policy, Precision
from .._tune.certificate import is_delicate_sum, is_product
from .candidates import Candidate, Refusals, candidates_for
from .cost_model import Work
from .costs import costs
from .forecast import Forecast, comes_from_host, forecast_of, space_of
from .labels import NEVER, Problem, SharedValue, best
from .partition import Placed, Unit, units_of

_LITTLE: Final = 1e-9  # seconds: negligible, but it orders equal labels
_NOT_WORTH_IT: Final = "too little work to cover the launch cost"


@dataclass(frozen=True, slots=True)
class UnitForecast:
    """A labelling as units, with their predicted times."""

    units: list[Unit]
    forecast: Forecast


class CandidateTable:
    """The regions of a graph, with the candidates of the devices that are asked; the last of them can run all."""

    def __init__(
        self,
        graph: Graph,
        regions: Sequence[Region],
        works: Sequence[Work],
        asked: Sequence[Device],
        policy: Policy = IN_FULL,
        *,
        repeats: bool = False,
        reused: Set[int] = frozenset(),
    ) -> None:
        self.graph = graph
        self.regions = regions
        self.works = works
        self.repeats = repeats
        self.reused = reused
        self.labels = list(asked)
        self.policy = policy
        self.refused: list[Refusals] = []
        self.candidates: list[dict[int, Candidate]] = []
        """For each region, by label, the candidate of that device."""
        for region, work in zip(regions, works, strict=True):
            found, refused = candidates_for(region, asked, policy)
            self.refused.append(refused)
            candidates: dict[int, Candidate] = {}
            for candidate in found:
                label = asked.index(candidate.device)
                is_better = label not in candidates or (
                    not policy.is_fixed and _cost(region, work, candidate) < _cost(region, work, candidates[label])
                )
                if is_better:
                    candidates[label] = candidate
            self.candidates.append(candidates)
        self.pins = self._pins()

    def _pins(self) -> dict[int, int]:
        """The regions that depend on values that the user has put on a device, with the label of that device, if it
        supports them."""
        graph = self.graph
        pinned = {i: space_of(graph, i) for i in graph.inputs if graph.calls[i].attrs.get("pinned")}
        pins: dict[int, int] = {}
        for n, region in enumerate(self.regions) if pinned else ():
            spaces = {pinned[i] for i in region.inputs if i in pinned}
            there = [label for label in self.candidates[n] if self.labels[label].space in spaces]
            if there:
                pins[n] = there[0]
                pinned.update(dict.fromkeys(region.outputs, self.labels[there[0]].space))
        return pins

    # Labellings

    def in_order(self) -> list[int]:
        """Each region with the first label that it can have."""
        return [self.pins.get(n, next(iter(candidates))) for n, candidates in enumerate(self.candidates)]

    def single(self, device: Device) -> list[int]:
        """The regions that a device supports on this device, all others on the host, if it has them."""
        own, host = self.labels.index(device), len(self.labels) - 1
        labels = []
        for n, candidates in enumerate(self.candidates):
            other = host if host in candidates else next(iter(candidates))
            labels.append(self.pins.get(n, own if own in candidates else other))
        return labels

    def cheapest(self, starts: Sequence[Sequence[int]], known: Iterable[UnitForecast]) -> list[int]:
        """The labelling of least cost that moves from `starts` find. `known` forecasts correct the cost models."""
        return best(self._problem(self._corrections(known)), starts)

    def worth_a_call(self, labels: list[int]) -> list[int]:
        """A labelling by the user's device, without units that cost more to launch than to run on their neighbours'
        device. The compute time of the named device does not count: the user chose it. A single unit stays.
        """
        host = len(self.labels) - 1
        users = [u.candidate.device for u in units_of(self.graph, self.placed(labels))]
        if sum(device.coalesces and device is not self.labels[host] for device in users) <= 1:
            return labels
        own = [[NEVER] * len(self.labels) for _ in self.regions]
        for n, candidates in enumerate(self.candidates):
            for label in candidates:
                own[n][label] = self._cost(n, label) if label == host else _LITTLE * label
        calls = [*self._calls()[:-1], 0.0]
        problem = Problem([0] * len(self.labels), calls, own, (), self._feeders(), ())
        return best(problem, (labels, [host] * len(labels)))

    def placed(self, labels: Sequence[int], instead_of: Sequence[int] | None = None) -> list[Placed]:
        """The regions with their labels. `instead_of` holds the labels that were not worth a launch."""
        made = []
        for n, label in enumerate(labels):
            refused = self.refused[n]
            if instead_of is not None and instead_of[n] != label:
                refused = (*refused, (self.labels[instead_of[n]].name, _NOT_WORTH_IT))
            region = self.regions[n]
            is_alone = self.policy.tolerance is not None and (is_product(region) or is_delicate_sum(region))
            made.append(Placed(region, self.candidates[n][label], self.works[n], refused, n in self.pins, is_alone))
        return made

    def layout(self, labels: Sequence[int]) -> UnitForecast:
        """A labelling as units, with their predicted times."""
        units = units_of(self.graph, self.placed(labels), repeats=self.repeats)
        return UnitForecast(units, forecast_of(self.graph, units, self.reused))

    # Costs

    def _cost(self, region: int, label: int, correction: float = 1.0) -> float:
        return _cost(self.regions[region], self.works[region], self.candidates[region][label], correction)

    def _calls(self) -> list[float]:
        return [costs.speed(device).launch if device.coalesces else 0.0 for device in self.labels]

    def _corrections(self, known: Iterable[UnitForecast]) -> list[float]:
        """For each label, the ratio of measured to modelled time of the measured units."""
        timed, modelled = [0.0] * len(self.labels), [0.0] * len(self.labels)
        for layout in known:
            for unit in layout.units:
                seconds = costs.measured(unit.region, unit.candidate)
                if seconds is not None:
                    label = self.labels.index(unit.candidate.device)
                    timed[label] += seconds
                    modelled[label] += costs.modelled(unit.works, unit.candidate).total
        return [t / m if m else 1.0 for t, m in zip(timed, modelled, strict=True)]

    def _problem(self, corrections: Sequence[float]) -> Problem:
        names = list(dict.fromkeys((HOST, *[d.space for d in self.labels], *self._outside().values())))
        spaces = [names.index(d.space) for d in self.labels]
        transfers = [[costs.transfer(a, b) for b in names] for a in names]
        is_wanted = frozenset(self.graph.outputs) if comes_from_host(self.graph) else frozenset()
        own = [[NEVER] * len(self.labels) for _ in self.regions]
        for n, own_candidates in enumerate(self.candidates):
            back = sum(self.graph.calls[o].spec.nbytes for o in self.regions[n].outputs if o in is_wanted)
            for label in [self.pins[n]] if n in self.pins else own_candidates:
                own[n][label] = self._cost(n, label, corrections[label])
                if back and spaces[label]:
                    own[n][label] += transfers[spaces[label]][0].seconds(back)
        return Problem(spaces, self._calls(), own, list(self._values(names)), self._feeders(), transfers)

    def _outside(self) -> dict[int, str]:
        """The inputs that are copied in every run, with their memories."""
        return {i: space_of(self.graph, i) for i in self.graph.inputs if i not in self.reused}

    def _values(self, names: Sequence[str]) -> Iterable[SharedValue]:
        """The values that regions read of each other, and from outside."""
        maker = {entry: n for n, region in enumerate(self.regions) for entry in region.outputs}
        readers: dict[int, list[int]] = {}
        for n, region in enumerate(self.regions):
            for entry in region.inputs:
                readers.setdefault(entry, []).append(n)
        outside = self._outside()
        for entry, who in readers.items():
            nbytes = self.graph.calls[entry].spec.nbytes
            if entry in maker:
                yield SharedValue(maker[entry], 0, tuple(who), nbytes)
            elif entry in outside:
                yield SharedValue(-1, names.index(outside[entry]), tuple(who), nbytes)

    def _feeders(self) -> list[int]:
        maker = {entry: n for n, region in enumerate(self.regions) for entry in region.outputs}
        return [max((maker[i] for i in region.inputs if i in maker), default=-1) for region in self.regions]


def _cost(region: Region, work: Work, candidate: Candidate, correction: float = 1.0) -> float:
    """Seconds of a region on a candidate, with its launch if that is its own: as measured, or by the cost model times a
    correction. Float64 comes after everything else."""
    if candidate.precision is Precision.F64 and is_product(region):
        return NEVER
    measured = None if candidate.device.coalesces else costs.measured(region, candidate)
    if measured is not None:
        return measured
    converting = costs.speed(candidate.device).converting(work, candidate.precision)
    return (costs.region(work, candidate) + converting) * correction
