"""Plan: the steps that compute a graph, each a unit on a device.

`_run/evaluate.py` makes a `Plan` of the schedule that `place` returns and keeps it by the graph's key. `_run/run.py`
runs its steps: `Step.kernel_on` compiles the unit for a candidate, once. `_tune/learn.py` may give the plan another
schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from .._graph.float64 import widened
from .._graph.graph import Graph
from .._run.background import Job
from .._run.device import Device, Fuses, Kernel, Launched, Projects, device_named, host_device
from .._run.memory import HOST
from .._run.trace import Record
from .._schedule.fuse import Region, RegionKind, fuse
from .._tensor.html import heading
from .._tensor.precision import IN_FULL, Policy, Precision
from .._tensor.role import Exchange
from .._tune.certificate import Certified, fused_vectors, is_product, projector_for, random_matrix
from .._tune.projection import projects
from .._tune.records import adopting, confirm, decisions, noting
from ..errors import ArgumentError, DeviceFailure, PlanRefused
from .candidates import Candidate, Refusals, candidates_for
from .certified import unit_of
from .cost_model import Work, works_of
from .costs import Cost, costs
from .explain import Explanation, counted, shortened
from .forecast import Forecast, forecast_of
from .partition import Unit
from .planfile import Kept, PlanFile
from .table import CandidateTable

if TYPE_CHECKING:
    from .._tune.learn import Watch


@dataclass(slots=True, repr=False)
class Step:
    """A unit of a plan, with its kernels."""

    region: Region
    candidate: Candidate
    """The planned candidate."""
    works: tuple[Work, ...]
    """The amount of work of each of its regions."""
    frees: tuple[int, ...]
    """The values that no later step needs."""
    chain: tuple[Device, ...]
    """The devices that may take over after a failure."""
    policy: Policy = IN_FULL
    """The admitted precisions and the tolerance of results."""
    is_named: bool = False
    """True if the user has named the devices: their order is the user's."""
    refused: Refusals = ()
    """The devices that do not support all of it, with reasons."""
    is_pinned: bool = False
    """True if the user has put its inputs on this device: its outputs stay there too."""
    is_replayed: bool = False
    """True for a step of a plan file: no other candidate may take it over."""
    kernels: dict[Candidate, Kernel] = field(default_factory=dict)
    jobs: dict[Candidate, Job[Kernel]] = field(default_factory=dict)
    """The kernels that are being compiled in the background."""
    last: Record | None = None
    """The record of the last run."""
    missed: dict[Candidate, str] = field(default_factory=dict)
    """The candidates whose error exceeded the tolerance, with the error."""
    _others: tuple[tuple[Candidate, ...], Refusals] | None = None
    _title: str = ""

    @classmethod
    def of(cls, unit: Unit, chain: tuple[Device, ...], policy: Policy, *, is_named: bool) -> Step:
        """A unit as a step."""
        return cls(
            unit.region, unit.candidate, unit.works, unit.frees, chain, policy, is_named, unit.refused, unit.is_pinned
        )

    @property
    def device(self) -> Device:
        """The device it is planned on."""
        return self.candidate.device

    @property
    def title(self) -> str:
        """The ops of the region in words."""
        if not self._title:
            self._title = str(self.region)
        return self._title

    def __repr__(self) -> str:
        return f"<step on {self.candidate}: {self.title}>"

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Candidates, preferred first: the planned one, then the others in the user's order or the cheapest first."""
        return self._looked_for()[0]

    @property
    def refusals(self) -> Refusals:
        """All devices that do not support all of it, with reasons."""
        known = dict(self.refused)
        return (*self.refused, *[(d, why) for d, why in self._looked_for()[1] if d not in known])

    def _looked_for(self) -> tuple[tuple[Candidate, ...], Refusals]:
        """Candidates and refusals of the whole unit, determined when first needed. A device that supports each
        part need not support the unit."""
        if self.is_replayed:
            return (self.candidate,), ()
        if self._others is None:
            found, refused = candidates_for(self.region, self.chain, self.policy)
            others = [c for c in found if c != self.candidate]
            if not self.is_named:
                others.sort(key=lambda c: self.cost_on(c).total)
            others.sort(key=lambda c: c.precision is Precision.F64)  # a last resort if all others miss the tolerance
            self._others = (self.candidate, *others), refused
        return self._others

    @property
    def tolerance(self) -> float | None:
        """The largest relative error of its results; `None` if they carry no certificate."""
        tolerance = self.policy.tolerance
        return tolerance if tolerance is not None and is_product(self.region) else None

    def error_on(self, candidate: Candidate) -> float | None:
        """The relative error of a candidate's last certified result."""
        kernel = self.kernels.get(candidate)
        return kernel.error if isinstance(kernel, Certified) else None

    @property
    def fused(self) -> Sequence[Region]:
        """Its kernels, if the device reports them."""
        return self.device.kernels(self.region_on(self.candidate)) if isinstance(self.device, Fuses) else ()

    @property
    def launched(self) -> str:
        """The description of its launch, if the device reports it."""
        kernel = self.kernels.get(self.candidate)
        return kernel.launched if isinstance(kernel, Launched) else ""

    def region_on(self, candidate: Candidate) -> Region:
        """The region in a candidate's precision."""
        if self.region.precision is candidate.precision:
            return self.region
        return replace(self.region, precision=candidate.precision)

    def choose(self, candidate: Candidate) -> None:
        """Prefer another candidate."""
        self.candidate = candidate
        self._others = None

    def cost_on(self, candidate: Candidate) -> Cost:
        """The predicted cost on a candidate."""
        return costs.predict(self.region, self.works, candidate)

    def kernel_on(self, candidate: Candidate, *, wait: bool = True, is_trial: bool = False) -> Kernel:
        """The region, compiled for a candidate, once. Without `wait`, a slow compiler works in the background, and for
        a trial every compiler but the host's: `NotReady` is raised until it is done."""
        kernel = self.kernels.get(candidate)
        if kernel is None:
            kernel = self._compiled(candidate, wait, is_trial and candidate.device is not host_device())
            if self.tolerance is not None:
                kernel = self._certified(candidate, kernel)
            kernel = self.kernels.setdefault(candidate, kernel)
        return kernel

    def _certified(self, candidate: Candidate, kernel: Kernel) -> Kernel:
        assert self.tolerance is not None
        region, device, is_fixed = self.region_on(candidate), candidate.device, self.policy.is_fixed
        checking = host_device() if device.space == HOST else device
        make = partial(projector_for, region, checking.compile, checking, self.tolerance, is_fixed=is_fixed)
        projector = None
        if projects(region.calls[-1]):
            with suppress(DeviceFailure):
                projector = make()
        fused = []
        if isinstance(device, Projects):
            for vectors in fused_vectors(region.calls[-1], region.precision, self.tolerance, is_fixed=is_fixed):
                made = device.projected(region, vectors, partial(random_matrix, vectors=vectors, is_fixed=is_fixed))
                fused += [] if made is None else [(vectors, made)]
        return Certified(
            kernel, region, device, self.tolerance, fused=fused, projector=projector,
            closer=partial(make, closely=True), is_fixed=is_fixed,
        )  # fmt: skip

    def _compiled(self, candidate: Candidate, wait: bool, is_trial: bool) -> Kernel:
        device = candidate.device
        region = widened(self.region) if candidate.precision is Precision.F64 else self.region_on(candidate)
        is_slow = device.limits.compiles_slowly
        if not is_slow and not is_trial:
            return device.compile(region)
        job = self.jobs.get(candidate)
        if job is None:
            make = device.compile if is_slow else partial(_run_once, device)
            job = self.jobs.setdefault(candidate, Job(partial(make, region)))
        try:
            return job.result() if wait else job.result_if_ready()
        finally:
            if job.is_done:  # the kernel is kept elsewhere; after a failure, the next attempt is a new job
                self.jobs.pop(candidate, None)


def _run_once(device: Device, region: Region) -> Kernel:
    """The region, compiled and run on zeros: some compilers go on when a kernel is first launched."""
    kernel = device.compile(region)
    zeros = [tuple([np.zeros(s.shape, s.dtype.numpy) for s in region.graph.calls[i].outputs]) for i in region.inputs]
    kernel(*[device.from_host(parts if len(parts) > 1 else parts[0]) for parts in zeros])
    device.synchronize()
    return kernel


@dataclass(frozen=True, slots=True)
class Schedule:
    """A graph and the steps that compute it."""

    graph: Graph
    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    """The entries of the graph that are inputs."""

    @classmethod
    def of(cls, graph: Graph, steps: Sequence[Step]) -> Schedule:
        """Make a schedule of a graph and its steps."""
        return cls(graph, tuple(steps), graph.inputs)

    def forecast(self, reused: Collection[int] = ()) -> Forecast:
        """The predicted time of a run. Inputs at the positions `reused` do not change: they are not moved again."""
        return forecast_of(self.graph, self.steps, frozenset([self.inputs[n] for n in reused]))


class Plan:
    """The steps that compute a graph, in order, each on a device.

    A plan comes from `ys.plan`, or from the `plans` of a jitted function. Under `device="auto"` its steps may be
    replaced after a measurement.

    Examples
    --------
    >>> import yosegi as ys
    >>> plan = ys.plan(ys.tanh(ys.asarray([0.0, 1.0])) * 2)
    >>> [step.device.name for step in plan.steps]
    ['cpu']
    """

    __slots__ = ("host_kernel", "schedule", "sole_step", "unit", "watch")

    def __init__(self, graph: Graph, steps: Sequence[Step]) -> None:
        self.watch: Watch | None = None
        """The observer that times some of its runs, and may change it."""
        self.become(Schedule.of(graph, steps))

    def become(self, schedule: Schedule) -> None:
        """Use this schedule from the next run on. Its graph must have the same inputs and outputs in the same order.

        Runs of other threads finish with the schedule that they began with.
        """
        self.schedule = schedule
        self.sole_step = self._sole_step()
        """The step that is all of the plan, from its inputs to its outputs, for the plans that are no more than one."""
        self.host_kernel = self._host_kernel()
        """The whole plan as one kernel on host arrays, for the plans that are no more than that."""
        self.unit = None if self.sole_step else unit_of(schedule)
        """The whole plan as one unit whose products are certified together, for the plans that can be one."""

    @property
    def graph(self) -> Graph:
        """The graph that the plan computes."""
        return self.schedule.graph

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, in order."""
        return self.schedule.steps

    @property
    def inputs(self) -> tuple[int, ...]:
        """The entries of the graph that are inputs."""
        return self.schedule.inputs

    def _sole_step(self) -> Step | None:
        if len(self.steps) != 1:
            return None
        region = self.steps[0].region
        return self.steps[0] if (region.inputs, region.outputs) == (self.inputs, self.graph.outputs) else None

    def _host_kernel(self) -> Kernel | None:
        step = self.sole_step
        if step is None or step.device is not host_device() or step.tolerance is not None:
            return None
        on_host = all("space" not in self.graph.calls[i].attrs for i in self.inputs)
        return step.kernel_on(step.candidate) if on_host else None

    @property
    def nbytes(self) -> int:
        """The bytes of the constants it holds."""
        return sum(c.spec.nbytes for c in self.graph.calls if "array" in c.attrs)

    def forecast(self) -> Forecast:
        """The predicted time of a run, by all measurements so far."""
        return self.schedule.forecast()

    def singles(self) -> dict[str, Forecast]:
        """The predicted time of the plan of each single device, if there are several devices to choose from."""
        chain = self.steps[0].chain if self.steps else ()
        if len(chain) < 2:
            return {}
        regions = fuse(self.graph)
        table = CandidateTable(self.graph, regions, works_of(self.graph, regions), chain, self.steps[0].policy)
        return {device.name: table.layout(table.single(device)).forecast for device in chain}

    def explain(self) -> Explanation:
        """Explain the plan.

        Returns
        -------
        Explanation
            The device of each step, the reasons against the other devices, and the last run.

        Examples
        --------
        >>> import yosegi as ys
        >>> print(ys.plan(ys.exp(ys.asarray([1.0]))).explain())  # doctest: +ELLIPSIS
        step 0 on cpu: exp...
        """
        return Explanation(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data.

        Returns
        -------
        dict
            `steps`, `predicted` (milliseconds of compute, conversion and transfer), `measured_ms`, `singles`: the
            forecast for each single device, and `launched`: how all steps are launched together, if they are.

        Examples
        --------
        >>> import yosegi as ys
        >>> sorted(ys.plan(ys.exp(ys.asarray([1.0]))).to_json())
        ['launched', 'measured_ms', 'predicted', 'singles', 'steps']
        """
        forecast = self.forecast()
        unit = self.unit.result() if self.unit is not None and self.unit.is_made else None
        errors = {} if unit is None else {id(step): error for step, error in unit.errors}
        made = {value: n for n, step in enumerate(self.steps) for value in step.region.outputs}
        return {
            "steps": [_step_report(step, made, errors.get(id(step))) for step in self.steps],
            "predicted": forecast.to_json(),
            "measured_ms": None if self.watch is None else self.watch.milliseconds,
            "singles": [{"device": name, **forecast.to_json()} for name, forecast in self.singles().items()],
            "launched": "" if unit is None else unit.launched,
        }

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a file of JSON that `load_plan` reads.

        The file records which kernel was chosen for each step. Kernels are chosen when a plan first runs: save a plan
        after its first run. From then on this plan uses the kernels of the file.

        Parameters
        ----------
        path : str or path-like
            The file.

        Examples
        --------
        See `load_plan`.
        """
        for step in self.steps:
            if not step.region.repeats:
                step.region = replace(step.region, repeats=True)
                step.kernels.clear()
            step.kernel_on(step.candidate)  # variants are chosen when kernels are compiled
        self.become(self.schedule)
        users = {step.device.name: step.device.identity for step in self.steps}
        kernels = decisions(is_fixed=any(step.policy.is_fixed for step in self.steps))
        tolerance = next((step.policy.tolerance for step in self.steps), None)
        PlanFile(self.graph, tuple([_kept(s) for s in self.steps]), users, kernels, tolerance).write(path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> tuple[Plan, Mapping[str, str]]:
        """Return the plan of a file and the kernels it must use. Raises `PlanRefused` if it cannot run as it did."""
        file = PlanFile.read(path)
        present = {name: device for name in file.devices if (device := _present(name)) is not None}
        file.check(present)
        steps = [_loaded(file, step, f"steps[{n}]", present) for n, step in enumerate(file.steps)]
        with adopting(file.kernels), noting() as chosen:
            try:
                plan = cls(file.graph, steps)
                for step in plan.steps:
                    step.kernel_on(step.candidate)
            except DeviceFailure as failure:
                raise PlanRefused(f"[load_plan] the plan's kernels cannot be made here: {failure}") from failure
            confirm(file.kernels, chosen)
        return plan, file.kernels

    def __repr__(self) -> str:
        return f"<plan of {counted(len(self.steps), 'step')} on {', '.join(self._devices()) or 'no device'}>"

    def _repr_html_(self) -> str:
        specs = [[repr(self.graph.calls[n].spec) for n in entries] for entries in (self.inputs, self.graph.outputs)]
        flow = f"{counted(len(self.steps), 'step')} on {', '.join(self._devices()) or 'no device'}"
        return heading("Plan", f"{flow}: {shortened(specs[0])} → {shortened(specs[1])}") + self.explain()._repr_html_()

    def _devices(self) -> list[str]:
        return list(dict.fromkeys(step.device.name for step in self.steps))


def _present(name: str) -> Device | None:
    with suppress(ArgumentError):
        return device_named(name)
    return None


def _kept(step: Step) -> Kept:
    region = step.region
    return Kept(
        step.device.name,
        step.candidate.precision.value,
        region.kind.value,
        region.nodes,
        region.inputs,
        region.outputs,
        step.frees,
    )


def _loaded(file: PlanFile, kept: Kept, place: str, present: Mapping[str, Device]) -> Step:
    candidate = Candidate.of(present[kept.device], Precision(kept.precision))
    graph, kind = file.graph, RegionKind(kept.kind)
    admitted = () if candidate.precision is Precision.FULL else (candidate.precision,)
    policy = Policy(admitted, file.tolerance)
    region = Region(graph, kind, kept.nodes, kept.inputs, kept.outputs, True, candidate.precision)
    reason = _refusal(region, candidate, policy)
    if reason is not None:
        raise PlanRefused(
            f"[load_plan] expected a device that runs the step, got {candidate}, which does not ({reason}) at {place}; "
            f"save the plan again"
        )
    works = tuple(works_of(graph, [region]))
    return Step(region, candidate, works, kept.frees, (candidate.device,), policy, is_named=True, is_replayed=True)


def _refusal(region: Region, candidate: Candidate, policy: Policy) -> str | None:
    """Why a candidate would not have got a region, or `None`: its precision is that of the region's products."""
    precision, full = candidate.precision, replace(region, precision=Precision.FULL)
    parts = [c for part in full.parts for c in [candidates_for(part, (candidate.device,), policy)]]
    for found, refused in parts:
        if not found:
            return refused[0][1]
    if precision is not Precision.FULL and not any(candidate in found for found, _ in parts):
        return f"none of its ops in {precision.value}"
    return None


def _step_report(step: Step, made: dict[int, int], error: float | None) -> dict[str, Any]:
    """A step as plain data; `made` gives the step that makes a value, `error` the bound by the plan's unit."""
    calls, fused = step.region.graph.calls, step.fused
    works = works_of(step.region.graph, fused) if fused else step.works
    return {
        "device": step.device.name,
        "precision": step.candidate.precision.value,
        "ops": [call.op.name for call in step.region.calls],
        "composites": step.region.origins,
        "messages": [call.op.role.cost(call)[1] for call in step.region.calls if isinstance(call.op.role, Exchange)],
        "kernels": [[call.op.name for call in kernel.calls] for kernel in fused],
        "works": [{"task": w.task.value, "predicted_ms": costs.region(w, step.candidate) * 1e3} for w in works],
        "inputs": [repr(calls[n].spec) for n in step.region.inputs],
        "outputs": [repr(calls[n].spec) for n in step.region.outputs],
        "reads": sorted({made[n] for n in step.region.inputs if n in made}),
        "candidates": [
            _told_of(step, c, error if c == step.candidate else None)
            for c in sorted(step.candidates, key=lambda c: c != step.candidate)
        ],
        "refused": [{"device": d, "reason": r} for d, r in step.refusals],
        "actual": None if step.last is None else step.last.to_json(),
        "launched": step.launched,
    }


def _told_of(step: Step, candidate: Candidate, error: float | None) -> dict[str, Any]:
    """The time of a step on a candidate, its error, and the reason why it does not run there."""
    measured = costs.measured(step.region, candidate)
    return {
        "device": candidate.device.name,
        "precision": candidate.precision.value,
        "predicted_ms": costs.modelled(step.works, candidate).total * 1e3,
        "measured_ms": None if measured is None else measured * 1e3,
        "error": step.error_on(candidate) if error is None else error,
        "is_prior": not costs.speed(candidate.device).is_measured,
        "reason": "" if candidate == step.candidate else _why_not(step, candidate),
    }


def _why_not(step: Step, candidate: Candidate) -> str:
    if candidate in step.missed:
        return step.missed[candidate]
    if candidate.precision is Precision.F64:
        return "for a tolerance that nothing else meets"
    if step.is_named and candidate.device is not step.device:
        return f"{step.device.name} was named before it"
    there, here = step.cost_on(candidate).total, step.cost_on(step.candidate).total
    if there <= here and candidate.device is step.device:
        return "expected to be slower; not measured yet"
    if there <= here:
        return "slower once transfers and launches are included"
    return f"{there / here:.1f} times as long"
