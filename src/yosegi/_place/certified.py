"""A plan on one device as one unit, whose products are certified together after it has run.

Step by step, the host waits for the certificate of each product before the next step runs. In a unit, the projections
of all products are ops of one graph: the device runs all of it without a wait, and the host looks at all certificates
once. If one of them fails, no result of the unit is used. The steps then run one by one, and the product that failed is
computed in higher precision.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .._graph.float64 import widened
from .._run.background import Job
from .._run.device import Device, Launched
from .._run.memory import HOST
from .._schedule.fuse import Region, RegionKind, join
from .._tensor.dtype import as_dtype, float64
from .._tensor.node import spec
from .._tensor.op import leaf_call
from .._tensor.precision import Precision
from .._tune.certificate import DOUBTS, ROUNDED, TOO_CLOSE, error_bounds, operands_of, projection_for, vectors_for
from .._tune.projection import VECTORS, GraphWriter, projects
from ..errors import ToleranceMissed

if TYPE_CHECKING:
    from .plan import Schedule, Step

_SUMS: Final = VECTORS * VECTORS + 1
"""The numbers that certify a product."""
_NEAR: Final = 0.8
"""The share of the tolerance from which an error may exceed it in another run."""


def unit_of(schedule: Schedule) -> Job[CertifiedUnit] | None:
    """The unit of a schedule, to be compiled when it is needed; `None` if its steps run one by one.

    They do on the host, which waits for no device, and if fewer than two products have a tolerance; in deterministic
    runs too, where a plan file must give the same bits step by step. Steps on other devices than the products must read
    nothing that the unit computes.
    """
    steps = schedule.steps
    products = [step for step in steps if step.tolerance is not None]
    if len(products) < 2 or steps[0].policy.is_fixed or any(step.is_replayed for step in steps):
        return None
    device = products[0].device
    if device.space == HOST or not device.coalesces or not all(map(_is_certified, products)):
        return None
    made = {entry for step in steps if step.device is device for entry in step.region.outputs}
    if any(not made.isdisjoint(step.region.inputs) for step in steps if step.device is not device):
        return None
    return Job(partial(CertifiedUnit, schedule, device))


def _is_certified(step: Step) -> bool:
    """True if a projection, or float64, certifies a product."""
    is_precise = step.tolerance is not None and step.tolerance >= ROUNDED and float64 in step.device.limits.dtypes
    return is_precise or projects(step.region.calls[-1])


class CertifiedUnit:
    """All steps of a schedule that run on one device, compiled for it as one region."""

    def __init__(self, schedule: Schedule, device: Device) -> None:
        """Raises `DeviceFailure` if the device cannot compile it."""
        self.device, self.space = device, device.space
        """The memory of its random vectors."""
        self.candidates = [step.candidate for step in schedule.steps]
        self.before = [step for step in schedule.steps if step.device is not device]
        """The steps that run before it, on other devices."""
        self.inputs = (*schedule.inputs, *[entry for step in self.before for entry in step.region.outputs])
        """The entries of the schedule's graph that are its inputs."""
        own = [step for step in schedule.steps if step.device is device]
        self._products = [step for step in own if step.tolerance is not None]
        self._exact = [_is_in_float64(step) for step in self._products]
        self.errors: list[tuple[Step, float]] = []
        """The products, with upper bounds for their errors in the last run; nothing before the first."""
        self._doubts: Counter[tuple[int, ...]] = Counter()
        """The number of failures and near failures of each product."""
        written = _Written()
        calls = [schedule.graph.calls[entry] for entry in self.inputs]
        values = {e: written.writer.input(leaf_call(c.spec)) for e, c in zip(self.inputs, calls, strict=True)}
        sums = []
        for step in own:
            region = widened(step.region) if _is_in_float64(step) else step.region_on(step.candidate)
            made = written.copied(region, [values[e] for e in step.region.inputs])
            values |= zip(step.region.outputs, [made[o] for o in region.outputs], strict=True)
            if step.tolerance is not None:
                sums.append(written.certificate(step, values))
        self._outputs = [values[o] for o in schedule.graph.outputs]
        self.region = written.region(self._outputs, sums)
        self._fixed = [self.device.from_host(array) for array in written.fixed]
        self._kernel = self.device.compile(self.region)

    def __call__(self, data: Sequence[Any]) -> list[Any]:
        """The outputs of the schedule's graph. Raises `ToleranceMissed` if a certificate fails."""
        given = [*data, *self._fixed]
        made = self._kernel(*given)
        values = dict(zip(self.region.inputs, given, strict=True)) | dict(zip(self.region.outputs, made, strict=True))
        sums = self.device.to_host(made[-1]).reshape(-1, _SUMS)
        tolerance = self._products[0].tolerance
        assert tolerance is not None
        # A list of this run's own: another thread may run the unit at the same time.
        errors = self.errors = list(zip(self._products, error_bounds(sums, tolerance, self._exact), strict=True))
        failed = next(((step, error) for step, error in errors if not error <= tolerance), None)
        if failed is not None:
            self._doubt(errors, tolerance)
            step, error = failed
            raise ToleranceMissed(f"{step.title}: an error of up to {error:.1e}, for a tolerance of {tolerance:.1e}")
        return [values[o] for o in self._outputs]

    def _doubt(self, errors: Sequence[tuple[Step, float]], tolerance: float) -> None:
        """Count the products that have failed, and those that may fail next: each failure costs a run step by step."""
        for step, error in errors:
            if not error <= _NEAR * tolerance:
                self._doubts[step.region.nodes] += 1
                if self._doubts[step.region.nodes] > DOUBTS:
                    step.missed[step.candidate] = f"an error of up to {error:.1e}: {TOO_CLOSE}"

    @property
    def launched(self) -> str:
        """The description of its launch, if the device reports it."""
        return self._kernel.launched if isinstance(self._kernel, Launched) else ""


def _is_in_float64(step: Step) -> bool:
    """True if the unit computes a step in float64: where that is planned, and for a product without a projection."""
    is_uncertain = step.tolerance is not None and not projects(step.region.calls[-1])
    return is_uncertain or step.candidate.precision is Precision.F64


class _Written:
    """The graph of a unit, and the regions that it is made of."""

    def __init__(self) -> None:
        self.writer = GraphWriter()
        self.fixed: list[Any] = []
        """The arrays of the inputs that are the same in every run."""
        self._fixed_inputs: dict[int, int] = {}
        self._parts: list[Region] = []
        """Regions of the graph, which is not finished yet."""

    def copied(self, region: Region, inputs: Sequence[int]) -> dict[int, int]:
        """Add a region's calls, for these inputs; the new entries by the old ones."""
        new = dict(zip(region.inputs, inputs, strict=True))
        self.writer.copy(region.graph, region.nodes, new)
        for part in [region] if region.kind is RegionKind.PROJECTION else region.parts:
            nodes, given, made = (tuple([new[e] for e in own]) for own in (part.nodes, part.inputs, part.outputs))
            self._parts.append(replace(part, nodes=nodes, inputs=given, outputs=made, regions=()))
        return new

    def certificate(self, step: Step, values: Mapping[int, int]) -> int:
        """Add the projection of a product; the entry of its sums."""
        assert step.tolerance is not None
        region = step.region_on(step.candidate)
        (result,) = region.outputs
        if not projects(region.calls[-1]):
            return self._own(_squares(region), [values[result]])
        drawn = vectors_for(region, is_fixed=step.policy.is_fixed)
        operands = [values[region.inputs[o]] if isinstance(o, int) else self._input(o) for o in operands_of(region)]
        return self._own(projection_for(region, step.tolerance), [*operands, values[result], self._input(drawn)])

    def _own(self, region: Region, inputs: Sequence[int]) -> int:
        return self.copied(region, inputs)[region.outputs[0]]

    def _input(self, array: Any) -> int:
        """An input that is the same in every run."""
        if id(array) not in self._fixed_inputs:
            self.fixed.append(array)
            self._fixed_inputs[id(array)] = self.writer.input(leaf_call(spec(array.shape, as_dtype(array.dtype))))
        return self._fixed_inputs[id(array)]

    def region(self, outputs: Sequence[int], sums: Sequence[int]) -> Region:
        """All of it as one region: the outputs that are not inputs, and all sums as one array."""
        writer = self.writer
        joined = writer.add("concatenate", *sums, axis=0)
        shown = [o for o in dict.fromkeys(outputs) if o not in writer.inputs]
        graph = writer.graph(*shown, joined)
        last = Region(graph, RegionKind.OPAQUE, (joined,), tuple(sums), (joined,))
        regions = [replace(part, graph=graph) for part in (*self._parts, last)]
        return replace(join(regions, graph.outputs), inputs=tuple(writer.inputs), outputs=graph.outputs, repeats=True)


def _squares(region: Region) -> Region:
    """The sum of a result's squares, in place of all sums: the certificate of a result in float64."""
    writer = GraphWriter(region.calls[-1].spec)
    total = writer.add("sum", writer.add("square", writer.add("abs", 0)), axis=None)
    graph = writer.graph(writer.add("broadcast_to", total, shape=(_SUMS,)))
    return Region(graph, RegionKind.SEQUENCE, tuple(range(1, len(graph.calls))), (0,), graph.outputs)
