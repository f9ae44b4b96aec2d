"""Regions → plan: each region gets a candidate so that computing, converting and moving cost least together.

The devices that could be worth it are asked what they can do; a labelling of least cost is found by minimum cuts; it is
compared with the plans that put all they can on one device; and one of these is the plan unless the cut is clearly
cheaper.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
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

_MATTERS: Final = 1e-3  # seconds: what takes less on the host is not worth measuring devices for
_SHOWS: Final = 1e-4  # seconds: what takes less is not worth asking a device for that does it no better
_FEW: Final = 16  # regions: of longer programs, parts alone are seldom what was measured
_CLEARLY: Final = 0.8  # of a single device's forecast: splitting a program costs more than forecasts say, if anything
_NEAR: Final = 2.0  # times what the host takes: a device that comes so near may be better than its line


def place(
    graph: Graph,
    chain: tuple[Device, ...],
    policy: Policy = IN_FULL,
    *,
    is_named: bool = False,
    repeats: bool = False,
    reused: Collection[int] = (),
) -> Schedule:
    """The steps of least cost over the devices of a chain, of which the last is the host and can do everything.

    Devices that the user has named get all they can, but for pieces that are not worth a call to one that compiles
    subgraphs; under a fixed policy all devices do, without exception. `policy` says which precisions are admitted,
    `repeats` that they will run many times, `reused` at which positions the inputs are the same in every run.
    """
    placing = _Placing(graph, chain, policy, repeats, reused)
    if policy.is_fixed:
        return placing.in_order()
    if len(chain) == 1:
        if policy.precisions and placing.takes > _MATTERS:
            ensure_measured(chain)
        return placing.on_host()
    if is_named:
        return placing.as_named()
    asked = placing.worth_asking()
    if (asked or placing.takes > _MATTERS) and ensure_measured(chain):
        asked = placing.worth_asking()
    if not asked:
        return placing.on_host()
    return placing.cheapest((*asked, chain[-1]))


def place_on(
    device: Device, graph: Graph, chain: tuple[Device, ...], policy: Policy = IN_FULL, *, repeats: bool = False
) -> Schedule:
    """The steps that naming a device gives, but for values that the user has put on another; where the device fails,
    the whole chain may take over."""
    placing = _Placing(graph, chain, policy, repeats)
    return placing.on_host() if device is chain[-1] and not placing.owners else placing.on_one(device)


class _Placing:
    """One graph, on its way to a plan."""

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
    def takes(self) -> float:
        """Seconds that the host takes for all, by its line."""
        return costs.modelled(self.works, Candidate.of(self.host)).total

    def worth_asking(self) -> list[Device]:
        """The devices that could make a plan that is worth it; none if the host is clearly best."""
        near = {space_of(self.graph, i) for i in self.graph.inputs} - {HOST}
        host, total = Candidate.of(self.host), self.takes
        alone = [self._region(n, host, total) for n in range(len(self.works))]
        total = max(total, sum(alone))
        return [d for d in self.chain[:-1] if d.space in near or self._is_worth_asking(d, alone, total)]

    def _is_worth_asking(self, device: Device, alone: Sequence[float], total: float) -> bool:
        """Whether a device gains more, over regions that it does better than the host, than using it costs; or does
        the whole nearly as well, so that its line may be wrong about it."""
        candidate, speed = Candidate.of(device), costs.speed(device)
        once = (speed.launch if device.coalesces else 0.0) + (0.0 if device.space == HOST else speed.download.latency)
        if total <= max(once, speed.launch):
            return False  # as for most small programs: a launch alone takes longer
        gain, there = 0.0, once
        for n, here in enumerate(alone):
            cost = self._region(n, candidate, total)
            gain += max(0.0, here - cost)
            there += cost
        return gain > once or (speed.is_measured and there < _NEAR * total and total > _SHOWS)

    def _region(self, number: int, candidate: Candidate, total: float) -> float:
        """A region by the line, or, in short programs of some length, as it was measured."""
        if len(self.regions) <= _FEW and total > _SHOWS:
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
            if mixed.forecast.total < _CLEARLY * chosen.forecast.total:
                chosen = mixed
        return Schedule.of(self.graph, self._steps(chosen.units))

    def on_one(self, device: Device) -> Schedule:
        """The plan in which a device gets what it can, and the host the rest."""
        table = self._table(list(dict.fromkeys((device, *self.owners, self.host))))
        meant = labels = table.single(device)
        if device.coalesces and device is not self.host:
            labels = table.worth_a_call(meant)
        return Schedule.of(self.graph, self._steps(units_of(self.graph, table.placed(labels), repeats=self.repeats)))

    def in_order(self) -> Schedule:
        """The plan in which devices get what they can, in the order of the chain, whatever it costs."""
        table = self._table(self.chain)
        units = units_of(self.graph, table.placed(table.in_order()), repeats=self.repeats)
        return Schedule.of(self.graph, self._steps(units, is_named=True))

    def as_named(self) -> Schedule:
        """The plan in which devices get what they can, in the user's order."""
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
