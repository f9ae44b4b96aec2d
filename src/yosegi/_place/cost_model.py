"""The cost model: the work of a region, and the speed of a device, which gives the seconds that the work takes.

Seconds are launch + bytes / bandwidth + operations / throughput. `works_of` counts the bytes and operations of regions,
without any device. A measured device has a `Speed` of its own. Before the measurement, priors decide: under 1 MB the
host, above it the first device of the chain. `_place/costs.py` prefers the measured times of a region to its modelled
seconds, and `_place/place.py` compares the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from math import isfinite, prod
from typing import Any, Final

from .._graph import decode
from .._graph.graph import Graph, bodies_of
from .._schedule.fuse import Region, RegionKind, attends, is_composite, is_constant, multiplies
from .._tensor.composite import decomposed
from .._tensor.dtype import ALL, as_dtype
from .._tensor.node import Call
from .._tensor.op import OpKind, leaf
from .._tensor.precision import Precision
from .._tensor.role import Contraction, Control, Exchange, Flow


class Task(Enum):
    """The classes of work that devices do at speeds of their own."""

    LOOPS = "loops"
    REDUCTIONS = "reductions"
    MOVEMENT = "movement"
    PRODUCTS = "products"
    WEIGHTED = "products by constants"
    """An operand is the same in every run, and a compiler can prepare it once."""
    CONVOLUTIONS = "convolutions"
    OTHER = "other"
    """Sorts, decompositions, transforms, random numbers: their operations are elements, more or less."""
    MESSAGES = "messages"
    """Communication of ranks: no device is faster than the network."""

    __hash__ = object.__hash__  # by identity: a member is looked up for every region of every plan


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work of one region of a graph."""

    task: Task
    operations: float
    nbytes: int
    """The bytes that the region reads and writes. Values inside a loop are in registers."""
    dtype: str
    """The name of the dtype in which the region computes, unless a precision is asked for."""
    operands: int = 0
    """The bytes of a product's operands: what has to be converted for another precision."""
    seconds: float = 0.0
    """The predicted time of a message, which is the same on all devices."""


# Speeds

Rates = Mapping[tuple[Task, str], float]
"""Operations a second, by class and by numbers: a dtype's name, or that of a precision below the inputs' own. Infinite
for a class that takes no longer than its bytes."""

_MEASURED_IN: Final = "float32"


@dataclass(frozen=True, slots=True)
class TransferCost:
    """Moving bytes from one memory to another: seconds before the first, and bytes a second."""

    latency: float = 0.0
    bandwidth: float = float("inf")

    def seconds(self, nbytes: int) -> float:
        """The seconds that a transfer of this many bytes takes."""
        return self.latency + nbytes / self.bandwidth

    def __str__(self) -> str:
        rate = f" + {self.bandwidth / 1e9:.1f} GB/s" if isfinite(self.bandwidth) else ""
        return f"{self.latency * 1e6:.0f} µs{rate}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The cost model of a device, in seconds and per second."""

    launch: float
    """Seconds of a call among many that follow each other, beside its bytes and operations."""
    bandwidth: float
    """Bytes a second that a kernel reads and writes."""
    part: float = 0.0
    """Seconds of each region in a call of several regions, beside its bytes and operations."""
    rates: Rates = field(default_factory=dict)
    upload: TransferCost = TransferCost()
    """The transfer from the host's memory to the device's."""
    download: TransferCost = TransferCost()
    """The transfer from the device's memory to the host's, with the wait until the work is done."""
    conversion: float = float("inf")
    """Bytes of operands a second that the device converts to another precision."""
    wait: float = 0.0
    """The additional time of a call when the caller waits for its end."""
    compiling: float = 0.0
    """Seconds to compile a region."""
    is_measured: bool = False
    _known: dict[tuple[Task, str], float] = field(init=False, default_factory=dict, compare=False, repr=False)
    """The rates found so far: every region of every plan needs one."""

    def region(self, work: Work, precision: Precision = Precision.FULL, *, coalesces: bool) -> float:
        """The seconds of a region: with a launch, or as a part of a longer call if the device `coalesces`."""
        numbers = work.dtype if precision is Precision.FULL else precision.value
        rate = self._known.get((work.task, numbers))
        if rate is None:
            rate = self._known[work.task, numbers] = self._rate(work.task, numbers, work.dtype)
        own = self.part if coalesces else self.launch
        return work.seconds + work.nbytes / self.bandwidth + work.operations / rate + own

    def converting(self, work: Work, precision: Precision) -> float:
        """The seconds that converting a product's operands to a precision takes."""
        return 0.0 if precision is Precision.FULL else work.operands / self.conversion

    def _rate(self, task: Task, numbers: str, dtype: str) -> float:
        """Operations a second: as measured, else of the nearest class, else by the width of the numbers."""
        found = self.rates.get((task, numbers)) or self.rates.get((_NEAREST.get(task, task), numbers))
        if found is not None:
            return found
        known = self.rates.get((task, _MEASURED_IN)) or self.rates.get((Task.LOOPS, _MEASURED_IN), float("inf"))
        return known * _width(_MEASURED_IN) / _width(dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the cost model as plain data."""
        rates: dict[str, dict[str, float | None]] = {}
        for (task, numbers), rate in self.rates.items():
            rates.setdefault(task.value, {})[numbers] = _finite(rate)
        return {
            "launch": self.launch, "part": self.part, "wait": self.wait, "compiling": self.compiling,
            "bandwidth": self.bandwidth, "conversion": _finite(self.conversion),
            "upload": [self.upload.latency, _finite(self.upload.bandwidth)],
            "download": [self.download.latency, _finite(self.download.bandwidth)], "rates": rates,
        }  # fmt: skip

    @classmethod
    def from_json(cls, data: Any, place: str) -> Speed:
        """Make the cost model of plain data. Raises `Malformed` if the data describe none."""
        launch, part, wait, compiling, bandwidth, conversion, upload, download, rates = decode.record(
            data, place, *_FIELDS
        )
        return cls(
            launch=decode.seconds(launch, f"{place}.launch"), part=_seconds(part, f"{place}.part"),
            wait=_seconds(wait, f"{place}.wait"), compiling=_seconds(compiling, f"{place}.compiling"),
            bandwidth=_rate(bandwidth, f"{place}.bandwidth"), conversion=_unbounded(conversion, f"{place}.conversion"),
            upload=_transfer_cost(upload, f"{place}.upload"), download=_transfer_cost(download, f"{place}.download"),
            rates=_rates(rates, f"{place}.rates"), is_measured=True,
        )  # fmt: skip

    def __str__(self) -> str:
        parts = [f"launch {self.launch * 1e6:.1f} µs", f"{self.bandwidth / 1e9:.1f} GB/s"]
        counted = {key: rate for key, rate in self.rates.items() if isfinite(rate)}
        parts += [f"{task.value} {_per_second(rate)} in {numbers}" for (task, numbers), rate in counted.items()]
        moved = dict.fromkeys(task.value for task, numbers in self.rates if (task, numbers) not in counted)
        if moved:
            parts.append(f"{' and '.join(moved)} by their bytes alone")
        if self.upload != TransferCost():
            parts += [f"to it {self.upload}", f"back {self.download}"]
        return ", ".join(parts)


_NEAREST: Final = {Task.WEIGHTED: Task.PRODUCTS, Task.CONVOLUTIONS: Task.PRODUCTS}
"""The class whose rate replaces that of an unmeasured class."""


def _per_second(rate: float) -> str:
    """A rate in the largest unit of which it has at least one."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if rate >= size:
            return f"{rate / size:.1f} {unit}/s"
    return f"{rate:.1f} /s"


def _width(name: str) -> int:
    return as_dtype(name).itemsize


def _finite(value: float) -> float | None:
    """For JSON, which has no infinity."""
    return value if isfinite(value) else None


_FIELDS: Final = (
    "launch", "part", "wait", "compiling", "bandwidth", "conversion", "upload", "download", "rates",
)  # fmt: skip
_TASKS: Final = tuple(task.value for task in Task)
_NUMBERS: Final = (*[dtype.name for dtype in ALL], *[precision.value for precision in Precision])


def _seconds(value: Any, place: str) -> float:
    return decode.number(value, place, 0, decode.LONGEST_TIME)


def _rate(value: Any, place: str) -> float:
    return decode.number(value, place, 1 / decode.HIGHEST_RATE, decode.HIGHEST_RATE)


def _unbounded(value: Any, place: str) -> float:
    return float("inf") if value is None else _rate(value, place)


def _rates(value: Any, place: str) -> Rates:
    found = decode.table(value, place, partial(decode.table, read=_unbounded, keys=_NUMBERS), _TASKS)
    return {(Task(task), numbers): rate for task, table in found.items() for numbers, rate in table.items()}


def _transfer_cost(value: Any, place: str) -> TransferCost:
    latency, bandwidth = decode.items(value, place, 2, least=2)
    return TransferCost(_seconds(latency, f"{place}[0]"), _unbounded(bandwidth, f"{place}[1]"))


# Priors: the cost models of devices that are not measured. A region that reads and writes 1 MB on the host takes as
# long there as a launch and a download. Nothing is known of products: their operations cost the same everywhere.

_PRODUCT: Final = 5e10
_PRIOR_RATES: Final = {(task, _MEASURED_IN): 2.5e7 if task is Task.OTHER else _PRODUCT for task in Task}

HOST_PRIOR: Final = Speed(launch=2e-6, bandwidth=1e10, part=1e-6, rates=_PRIOR_RATES)
DEVICE_PRIOR: Final = Speed(
    launch=4e-5, bandwidth=1e11, rates=_PRIOR_RATES, download=TransferCost(latency=5.5e-5), wait=5e-5, compiling=0.05
)


def compiler_prior(launch: float, weighted: float) -> Speed:
    """The prior of a device that compiles subgraphs in the host's memory: a call costs `launch`, convolutions and
    products by constants are `weighted` times as fast as on the host, other products half as fast, and nothing else
    gains or loses."""
    rates = _PRIOR_RATES | {
        (Task.WEIGHTED, _MEASURED_IN): weighted * _PRODUCT,
        (Task.CONVOLUTIONS, _MEASURED_IN): weighted * _PRODUCT,
        (Task.PRODUCTS, _MEASURED_IN): _PRODUCT / 2,
    }
    return replace(HOST_PRIOR, launch=launch, rates=rates, compiling=0.1)


# The work of regions

_ITERATIONS: Final = 10_000  # of a loop whose number of iterations is not known
_LEAST: Final = 100  # elements that take as long as calling an op
_FUNCTION: Final = 8  # simple operations that take as long as an exponential, a logarithm, a quotient
_ALONE: Final = {
    OpKind.MOVEMENT: Task.MOVEMENT, OpKind.SOURCE: Task.MOVEMENT,
    OpKind.REDUCTION: Task.REDUCTIONS,  # running totals, positions of the largest
}  # fmt: skip
"""The classes of ops that are regions of their own."""


def works_of(graph: Graph, regions: Sequence[Region]) -> list[Work]:
    """The amount of work of each region of a graph."""
    fixed = _fixed(graph) if any(r.kind is RegionKind.CONTRACTION for r in regions) else ()
    return [_work_of(region, fixed) for region in regions]


def _fixed(graph: Graph) -> Sequence[bool]:
    """For each entry, whether it is the same in every run."""
    fixed: list[bool] = []
    for entry, args in enumerate(graph.args):
        fixed.append(is_constant(graph, entry) or (bool(args) and all(fixed[a] for a in args)))
    return fixed


def _work_of(region: Region, fixed: Sequence[bool]) -> Work:
    graph, last = region.graph, region.nodes[-1]
    call = graph.calls[last]
    dtype = call.spec.dtype.name
    if region.kind is RegionKind.CONTRACTION:
        operands = sum(s.nbytes for s in call.inputs)
        if call.op.kind is OpKind.CONVOLUTION:
            return Work(Task.CONVOLUTIONS, _operations_of_product(call), region.nbytes, dtype, operands)
        task = Task.WEIGHTED if any(fixed[a] for a in graph.args[last]) else Task.PRODUCTS
        return Work(task, _operations_of_product(call), region.nbytes, dtype, operands)
    if is_composite(region):
        whole = region.calls[0]
        task, operations = _parts(whole)
        operands = sum(s.nbytes for s in whole.inputs) if attends(whole) else 0
        return Work(task, operations, region.nbytes, dtype, operands)
    if isinstance(call.op.role, Exchange):
        return Work(Task.MESSAGES, 0, 0, dtype, seconds=call.op.role.cost(call)[0])
    if isinstance(call.op.role, Control):
        return Work(Task.OTHER, operations_of_control(call), region.nbytes, dtype)
    if region.kind is RegionKind.OPAQUE:
        return Work(_ALONE.get(call.op.kind, Task.OTHER), _largest(call), region.nbytes, dtype)
    task = Task.REDUCTIONS if region.kind is RegionKind.REDUCTION else Task.LOOPS
    operations = sum(_largest(graph.calls[n]) * (_FUNCTION if graph.calls[n].op.inexact else 1) for n in region.nodes)
    return Work(task, operations, region.nbytes, dtype)


def _parts(call: Call) -> tuple[Task, float]:
    """The amount of work of a native composite: its products, if any, and all other operations."""
    task, operations = Task.LOOPS, 0.0
    for inner, _ in decomposed(call).steps:
        if inner.op.decomposition is not None:
            kind, more = _parts(inner)
        elif multiplies(inner):
            kind = Task.CONVOLUTIONS if inner.op.kind is OpKind.CONVOLUTION else Task.PRODUCTS
            more = _operations_of_product(inner)
        else:
            kind, more = Task.LOOPS, float(_largest(inner) * (_FUNCTION if inner.op.inexact else 1))
        task = kind if kind is not Task.LOOPS else task
        operations += more
    return task, operations


def operations_of_control(call: Call) -> float:
    """Operations of all iterations of a loop, or of a branch. An op on few elements takes as long as on some more."""
    role = call.op.role
    assert isinstance(role, Control)
    count = call.attrs["length"] if role.flow is Flow.REPEAT else 1 if role.flow is Flow.BRANCH else _ITERATIONS
    total = 0.0
    for body in bodies_of(call):
        for inner in body.calls:
            if isinstance(inner.op.role, Control):
                total += operations_of_control(inner)
            elif multiplies(inner):
                total += max(_operations_of_product(inner), _LEAST)
            elif inner.op is not leaf:
                total += max(_largest(inner), _LEAST)
    return count * total


def _largest(call: Call) -> int:
    largest = 0
    for s in (*call.inputs, *call.outputs):
        if s.size > largest:
            largest = s.size
    return largest


def _operations_of_product(call: Call) -> float:
    """Multiplications and additions."""
    if call.op.role is Contraction.MATRICES:
        return 2.0 * call.spec.size * call.inputs[0].shape[-1]
    if call.op.kind is OpKind.CONVOLUTION:
        return 2.0 * call.spec.size * prod(call.inputs[1].shape[1:])
    terms = call.attrs["subscripts"].partition("->")[0].split(",")
    lengths: dict[str, int] = {}
    for term, given in zip(terms, call.inputs, strict=True):
        for label, length in zip(term, given.shape, strict=True):
            lengths[label] = max(length, lengths.get(label, 1))
    return 2.0 * prod(lengths.values())
