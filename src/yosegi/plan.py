"""Plan: the steps by which a graph is computed, each on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .background import Job
from .candidates import Candidate, Refusals, candidates_for
from .costs import Cost, costs
from .device import Device, Kernel, host_device
from .explain import Explanation
from .forecast import Forecast, forecast_of
from .fuse import Region, fuse
from .graph import Graph
from .partition import Unit
from .table import Table
from .trace import Record
from .work import Work, works_of

if TYPE_CHECKING:
    from .learn import Watch


@dataclass(slots=True)
class Step:
    """One unit of a plan, and what is compiled of it."""

    region: Region
    candidate: Candidate
    """Who is to run it."""
    works: tuple[Work, ...]
    """What its parts come to."""
    frees: tuple[int, ...]
    """The values that no later step needs."""
    chain: tuple[Device, ...]
    """Who may take over when that fails."""
    is_named: bool = False
    """Whether the user has named the devices: then their order is the user's."""
    refused: Refusals = ()
    """The devices that do not get all of it, and why."""
    is_pinned: bool = False
    """Whether the user has put there what it reads: so is what it makes."""
    kernels: dict[Candidate, Kernel] = field(default_factory=dict)
    jobs: dict[Candidate, Job[Kernel]] = field(default_factory=dict)
    """The kernels that are being compiled in the background."""
    last: Record | None = None
    """How it ran the last time."""
    _others: tuple[tuple[Candidate, ...], Refusals] | None = None

    @classmethod
    def of(cls, unit: Unit, chain: tuple[Device, ...], *, is_named: bool) -> Step:
        """A unit as a step."""
        return cls(unit.region, unit.candidate, unit.works, unit.frees, chain, is_named, unit.refused, unit.is_pinned)

    @property
    def device(self) -> Device:
        """The device it is planned on."""
        return self.candidate.device

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Who may run it: who is to, then the others, as the user named them or the cheapest first."""
        return self._looked_for()[0]

    @property
    def refusals(self) -> Refusals:
        """All devices that do not get it, or not all of it, and why."""
        known = dict(self.refused)
        return (*self.refused, *[(d, why) for d, why in self._looked_for()[1] if d not in known])

    def _looked_for(self) -> tuple[tuple[Candidate, ...], Refusals]:
        """Candidates and refusals of the whole unit: what ran its parts one by one need not run them as one. They are
        looked for when they are first needed, which for most steps is never."""
        if self._others is None:
            found, refused = candidates_for(self.region, self.chain)
            others = [c for c in found if c != self.candidate]
            if not self.is_named:
                others.sort(key=lambda c: self.cost_on(c).total)
            self._others = (self.candidate, *others), refused
        return self._others

    def cost_on(self, candidate: Candidate) -> Cost:
        """What it takes on a candidate, by all that is known."""
        return costs.predict(self.region, self.works, candidate)

    def kernel_on(self, candidate: Candidate, *, wait: bool = True) -> Kernel:
        """The region, compiled for a candidate, once. Without `wait`, a slow compiler works in the background:
        `NotReady` is raised until it is done."""
        kernel = self.kernels.get(candidate)
        if kernel is None:
            kernel = self.kernels.setdefault(candidate, self._compiled(candidate, wait))
        return kernel

    def _compiled(self, candidate: Candidate, wait: bool) -> Kernel:
        device = candidate.device
        region = self.region
        if region.precision is not candidate.precision:
            region = replace(region, precision=candidate.precision)
        if not device.limits.compiles_slowly:
            return device.compile(region)
        job = self.jobs.get(candidate)
        if job is None:
            job = self.jobs.setdefault(candidate, Job(partial(device.compile, region)))
        try:
            return job.result() if wait else job.result_if_ready()
        finally:
            if job.is_done:  # the kernel is kept elsewhere; after a failure, the next attempt is a new job
                self.jobs.pop(candidate, None)


@dataclass(frozen=True, slots=True)
class Rival:
    """Another way to compute the same graph."""

    name: str
    forecast: Forecast
    make: Callable[[], tuple[Step, ...]]


class Plan:
    """Steps in order, for the inputs and outputs of a graph.

    `rivals` are other plans, which may be better than their forecasts say. An open plan is watched, and may yet become
    one of them.
    """

    __slots__ = ("graph", "host_kernel", "inputs", "rivals", "steps", "watch")

    def __init__(
        self,
        graph: Graph,
        steps: Sequence[Step],
        *,
        rivals: Sequence[Rival] = (),
        is_open: bool = False,
    ) -> None:
        self.graph = graph
        self.inputs = graph.inputs
        self.steps = tuple(steps)
        self.rivals = tuple(rivals)
        self.watch: Watch | None = None
        """Who times its runs now and then, and may change it."""
        self.host_kernel: Kernel | None = None
        """The whole plan as one kernel on host arrays, for the plans that are no more than that."""
        if not is_open:
            self.settle()

    def settle(self) -> None:
        """Nothing will change any more: a plan that is one step on the host becomes one call."""
        if len(self.steps) != 1 or self.steps[0].device is not host_device():
            return
        region = self.steps[0].region
        on_host = all("space" not in self.graph.calls[i].attrs for i in self.inputs)
        if on_host and region.inputs == self.inputs and region.outputs == self.graph.outputs:
            self.host_kernel = self.steps[0].kernel_on(self.steps[0].candidate)

    def become(self, steps: Sequence[Step]) -> None:
        """Compute the same in other steps from the next run on."""
        self.steps = tuple(steps)

    @property
    def nbytes(self) -> int:
        """The bytes of the constants it holds."""
        return sum(c.spec.nbytes for c in self.graph.calls if "array" in c.attrs)

    def forecast(self) -> Forecast:
        """What a run takes, by all that is known now."""
        return forecast_of(self.graph, self.steps)

    def singles(self) -> dict[str, Forecast]:
        """What the plans take that put all they can on one device, if there are several to choose from."""
        chain = self.steps[0].chain if self.steps else ()
        if len(chain) < 2:
            return {}
        regions = fuse(self.graph)
        table = Table(self.graph, regions, works_of(self.graph, regions), chain)
        return {device.name: table.layout(table.single(device)).forecast for device in chain}

    def explain(self) -> Explanation:
        """What will run where, and why not elsewhere; and how it ran, if it did."""
        return Explanation(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The plan in words and numbers, as plain data."""
        forecast = self.forecast()
        made = {value: n for n, step in enumerate(self.steps) for value in step.region.outputs}
        return {
            "steps": [_told(step, made) for step in self.steps],
            "predicted": forecast.to_json(),
            "measured_ms": None if self.watch is None else self.watch.milliseconds,
            "singles": [{"device": name, **forecast.to_json()} for name, forecast in self.singles().items()],
        }

    def __repr__(self) -> str:
        return f"<plan of {len(self.steps)} steps for {len(self.graph.calls)} values>"


def _told(step: Step, made: dict[int, int]) -> dict[str, Any]:
    """A step as plain data; `made` says which step makes a value."""
    calls = step.region.graph.calls
    return {
        "device": step.device.name,
        "precision": step.candidate.precision.value,
        "ops": [call.op.name for call in step.region.calls],
        "composites": step.region.origins,
        "inputs": [repr(calls[n].spec) for n in step.region.inputs],
        "outputs": [repr(calls[n].spec) for n in step.region.outputs],
        "reads": sorted({made[n] for n in step.region.inputs if n in made}),
        "candidates": [_told_of(step, candidate) for candidate in step.candidates],
        "refused": [{"device": d, "reason": r} for d, r in step.refusals],
        "actual": None if step.last is None else step.last.to_json(),
    }


def _told_of(step: Step, candidate: Candidate) -> dict[str, Any]:
    """What a step takes on a candidate, and why it does not run there."""
    measured = costs.measured(step.region, candidate)
    return {
        "device": candidate.device.name,
        "precision": candidate.precision.value,
        "predicted_ms": costs.line(step.works, candidate).total * 1e3,
        "measured_ms": None if measured is None else measured * 1e3,
        "is_prior": not costs.speed(candidate.device).is_measured,
        "reason": "" if candidate == step.candidate else _why_not(step, candidate),
    }


def _why_not(step: Step, candidate: Candidate) -> str:
    if step.is_named:
        return f"{step.device.name} was named before it"
    there, here = step.cost_on(candidate).total, step.cost_on(step.candidate).total
    if there <= here:
        return "no more by itself, but more with what would have to move, or to be called, for it"
    return f"{there / here:.1f} times as long"
