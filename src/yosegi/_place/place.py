"""Graph → schedule: each region gets a candidate so that computing, converting and moving cost least together.

`_run/evaluate.py` calls `place` with a simplified graph and the chain of devices. `fuse` makes regions of the graph.
The devices that could gain time are asked what they support. Minimum cuts find a labelling of least cost, which is
compared with the placements that give one device all it supports; the labelling wins only if its forecast is clearly
lower. `units_of` joins neighbouring regions of a device to the steps of the schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from logging import INFO
from typing import Final

from .._graph.graph import Graph
from .._run.device import Device
from .._run.memory import HOST
from .._run.trace import log
from .._schedule.fuse import fuse
from .._tensor.precision import IN_FULL, Policy
from .._tune.calibration import ensure_measured
from .candidates import Candidate
from .cost_model import works_of
from .costs import costs
from .forecast import space_of
from .partition import Placed, Unit, units_of
from .plan import Schedule, Step
from .table import CandidateTable


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """The times from which other devices than the host are considered, and from which one of them is chosen."""

    measured_seconds: float = 1e-3
    """Devices are measured for graphs that take at least these seconds on the host."""
    asked_seconds: float = 1e-4
    """Devices whose cost model is slower than the host's are asked for graphs of at least these seconds."""
    near_ratio: float = 2.0
    """A device is asked if its cost model predicts less than this multiple of the host's time."""
    short_regions: int = 16
    """Measured times of single regions count in graphs of up to this many regions. Longer ones run as larger units."""
    split_share: float = 0.8
    """A graph is split over devices if the forecast is below this share of the best single device's."""


_POLICY: Final = PlacementPolicy()


def place(
    graph: Graph,
    chain: tuple[Device, ...],
    policy: Policy = IN_FULL,
    *,
    is_named: bool = False,
    repeats: bool = False,
    reused: Collection[int] = (),
) -> Schedule:
    """Return the schedule of least cost over the devices of a chain. The last device is the host and runs everything.

    Devices that the user has named get all regions that they support, except regions that are too small for a call to
    a device that compiles subgraphs. Under a fixed policy there is no exception. `policy` states the admitted
    precisions, `repeats` that the graph will run many times, `reused` the positions of inputs that are the same in
    every run.
    """
    placing = _Placing(graph, chain, policy, repeats, reused)
    if policy.is_fixed:
        return placing.in_order()
    if len(chain) == 1:
        if policy.precisions and placing.host_seconds > _POLICY.measured_seconds:
            ensure_measured(chain)
        return placing.on_host()
    if is_named:
        return placing.as_named()
    asked = placing.worth_asking()
    if (asked or placing.host_seconds > _POLICY.measured_seconds) and ensure_measured(chain):
        asked = placing.worth_asking()
    if not asked:
        return placing.on_host()
    return placing.cheapest((*asked, chain[-1]))


def place_on(
    device: Device, graph: Graph, chain: tuple[Device, ...], policy: Policy = IN_FULL, *, repeats: bool = False
) -> Schedule:
    """The steps of naming a device, except work on values that the user has put on another. If the device fails, the
    whole chain is available."""
    placing = _Placing(graph, chain, policy, repeats)
    return placing.on_host() if device is chain[-1] and not placing.owners else placing.on_one(device)


class _Placing:
    """The placement of one graph: its regions, the devices to choose from, and the schedules that they give."""

    def __init__(
        self, graph: Graph, chain: tuple[Device, ...], policy: Policy, repeats: bool, reused: Collection[int] = ()
    ) -> None:
        self.graph = graph
        self.chain = chain
        self.policy = policy
        self.host = chain[-1]
        self.repeats = repeats
        self.reused = frozenset([graph.inputs[n] for n in reused])
        self.regions = fuse(graph)
        self.works = works_of(graph, self.regions)

    # Which devices to ask

    @property
    def host_seconds(self) -> float:
        """Seconds of the whole graph on the host, by its cost model."""
        return costs.modelled(self.works, Candidate.of(self.host)).total

    def worth_asking(self) -> list[Device]:
        """The devices that could give a faster plan; none if the host is clearly best."""
        near = {space_of(self.graph, i) for i in self.graph.inputs} - {HOST}
        host, total = Candidate.of(self.host), self.host_seconds
        alone = [self._region(n, host, total) for n in range(len(self.works))]
        total = max(total, sum(alone))
        return [d for d in self.chain[:-1] if d.space in near or self._is_worth_asking(d, alone, total)]

    def _is_worth_asking(self, device: Device, alone: Sequence[float], total: float) -> bool:
        """True if a device gains more time, over the regions that it does faster than the host, than its use costs.

        A measured device that is predicted to be nearly as fast is asked too: its cost model may be wrong.
        """
        candidate, speed = Candidate.of(device), costs.speed(device)
        once = (speed.launch if device.coalesces else 0.0) + (0.0 if device.space == HOST else speed.download.latency)
        if total <= max(once, speed.launch):
            return False  # the case of most small programs: a launch alone takes longer
        gain, there = 0.0, once
        for n, here in enumerate(alone):
            cost = self._region(n, candidate, total)
            gain += max(0.0, here - cost)
            there += cost
        return gain > once or (
            speed.is_measured and there < _POLICY.near_ratio * total and total > _POLICY.asked_seconds
        )

    def _region(self, number: int, candidate: Candidate, total: float) -> float:
        """Seconds of a region: as measured, in graphs of few regions that take some time; else by the cost model."""
        if len(self.regions) <= _POLICY.short_regions and total > _POLICY.asked_seconds:
            measured = costs.measured(self.regions[number], candidate)
            if measured is not None:
                return measured
        return costs.region(self.works[number], candidate)

    @property
    def owners(self) -> list[Device]:
        """The devices in whose memories the user has put inputs."""
        pinned = {space_of(self.graph, i) for i in self.graph.inputs if self.graph.calls[i].attrs.get("pinned")}
        return [device for device in self.chain[:-1] if device.space in pinned]

    # Plans

    def on_host(self) -> Schedule:
        """The plan that is all on the host."""
        if self.policy.precisions:
            table = self._table((self.host,))
            placed = table.placed(table.in_order())
        else:
            host = Candidate.of(self.host)
            placed = [Placed(r, host, w) for r, w in zip(self.regions, self.works, strict=True)]
        steps = self._steps(units_of(self.graph, placed, repeats=self.repeats))
        return Schedule.of(self.graph, steps)

    def _table(self, asked: Sequence[Device]) -> CandidateTable:
        return CandidateTable(
            self.graph, self.regions, self.works, asked, self.policy, repeats=self.repeats, reused=self.reused
        )

    def cheapest(self, asked: Sequence[Device]) -> Schedule:
        """The best single-device plan by forecast, unless the plan of least cut is clearly better."""
        table = self._table(asked)
        starts = [table.single(device) for device in asked]
        layouts = [table.layout(start) for start in starts]
        cut = table.cheapest(starts, layouts)
        chosen = min(layouts, key=lambda layout: layout.forecast.total)
        if cut not in starts:
            mixed = table.layout(cut)
            if mixed.forecast.total < _POLICY.split_share * chosen.forecast.total:
                chosen = mixed
        return Schedule.of(self.graph, self._steps(chosen.units))

    def on_one(self, device: Device) -> Schedule:
        """The plan in which a device gets all it supports, and the host the rest."""
        table = self._table(list(dict.fromkeys((device, *self.owners, self.host))))
        meant = labels = table.single(device)
        if device.coalesces and device is not self.host:
            labels = table.worth_a_call(meant)
        return Schedule.of(self.graph, self._steps(units_of(self.graph, table.placed(labels), repeats=self.repeats)))

    def in_order(self) -> Schedule:
        """The plan in which devices get all they support, in the order of the chain, whatever the cost."""
        table = self._table(self.chain)
        units = units_of(self.graph, table.placed(table.in_order()), repeats=self.repeats)
        return Schedule.of(self.graph, self._steps(units, is_named=True))

    def as_named(self) -> Schedule:
        """The plan in which devices get all they support, in the user's order."""
        table = self._table(self.chain)
        meant = labels = table.in_order()
        if any(device.coalesces for device in self.chain[:-1]):
            labels = table.worth_a_call(meant)
        units = units_of(self.graph, table.placed(labels, instead_of=meant), repeats=self.repeats)
        return Schedule.of(self.graph, self._steps(units, is_named=True))

    def _steps(self, units: Sequence[Unit], *, is_named: bool = False) -> tuple[Step, ...]:
        if log.isEnabledFor(INFO):
            for unit in units:
                log.info("%s on %s", str(unit.region), str(unit.candidate))
        return tuple([Step.of(unit, self.chain, self.policy, is_named=is_named) for unit in units])
