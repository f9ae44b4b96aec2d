"""Products and composites on a kernel device, alone or with the neighbours that the fusion pass gave them.

A region has several variants. It is cut into few kernels (`codegen.c.fused_kernels`), with each implementation of its
product; or each part is a kernel of its own, with products by a library where there is one. The first runs use the
variant that is expected to be fastest. When the region repeats, all variants run on its own data and are checked
against the reference. The winner is the tuning record for regions of that size class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import inf, prod
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np

from ..._graph.expand import in_parts
from ..._graph.graph import Graph
from ..._graph.reference import bind, outputs_of
from ..._run.background import Job, side_by_side
from ..._run.device import Kernel
from ..._run.trace import trace
from ..._schedule.fuse import JOINED, Region, RegionKind, fuse, is_composite, is_constant, multiplies
from ..._schedule.kernels import Fusion
from ..._tensor.dtype import DType, float32
from ..._tensor.node import Call, Shape
from ..._tensor.precision import Precision
from ..._tensor.role import AttentionGradient, Contraction
from ..._tune.autotune import TrialSetup
from ..._tune.records import TuningRecords, size_class
from ...codegen.c.attention import plain_attention, plain_refusal
from ...codegen.c.contractions import FusedContraction, contraction
from ...codegen.c.dialect import Dialect, Target
from ...codegen.c.fused_kernels import (
    NAIVE,
    LibraryProduct,
    PartialSums,
    PlannedKernel,
    Rest,
    in_parts_of_sum,
    library_kernels,
    planned_kernels,
    prior,
    product_variants,
    rendered,
)
from ...codegen.c.kernel_source import Kernel as Generated
from ...codegen.c.rowwise import Rows
from ...codegen.c.sliding import slide_of, slides
from ...codegen.c.stages import KernelProgram, Stage
from ...codegen.c.unit_attention import unit_attention, unit_refusal, unit_shapes
from ...codegen.c.unit_attention_gradient import gradient_refusal, gradient_shapes, unit_attention_gradient
from ...codegen.c.unit_tiles import unit_tiles
from ...errors import CompileFailure, NoSuchVariant, Unsupported
from .half_operands import HALVES, in_halves, reads_halves
from .memory import QueueMemory

PATTERNS: Final = frozenset({
    "linear", "linear_residual_relu", "gelu_linear", "linear_batch_norm_relu", "dropout_linear", "layer_norm_linear",
    "cross_entropy", "attention_scores", "scaled_dot_product_attention", "softmax", "log_softmax", "layer_norm",
    "rms_norm", "attention_gradient",
})  # fmt: skip
"""The composites that come out as few kernels."""

_ONE_KERNEL: Final = "fused"
_SEPARATE: Final = "separate"
LIBRARY: Final = "library"
"""The prefix of the names of a vendor's variants."""
_FLASH: Final = "online softmax"
_ON_UNIT: Final = "matrix unit, "
"""The prefix of the names of variants that use a matrix unit."""


@dataclass(frozen=True, slots=True)
class FusedPolicy:
    """The sizes from which variants are measured or expected to be faster, and the tolerance of their results. Work is
    products of elements; where there are none, elements of results."""

    patience_runs: int = 16
    """Runs after which a region is measured that is not known to repeat."""
    measured_work: int = 1 << 18
    """Work from which a faster variant repays the compile time of all."""
    calls_factor: int = 3
    """The calls in a turn, as a multiple of the host's: devices change their speed with their load."""
    tie_share: float = 0.01
    """The share that a variant has to be faster by."""
    sitting_seconds: float = 0.05
    """The length of a benchmark. The clock of a GPU counts no work of other programs."""
    roundings: int = 64
    """Spacings of the largest number of a result that an element may be off."""
    roundings_of_rounded: int = 8 << 13
    """Spacings where float32 operands are rounded to 10 bits, which is a spacing 2**13 times as wide."""
    host_work: int = 1 << 31
    """Work up to which the host's result is the reference; beyond, that of the simplest kernel is."""
    large_work: int = 256**3
    """Work from which a library, or separate kernels, are expected to be faster than one kernel."""
    threads_of_busy: int = 1024
    """A sum is cut into parts until there are blocks for one in so many of the threads that a device runs at a time."""
    least_stretches: int = 4
    """Stages of a tile that a part of a sum has at least."""
    kept_works: int = 4096
    """Regions whose kernels are remembered."""
    hopeless_work: int = 1 << 28
    """Work beyond which the simplest kernel takes too long even to be measured."""


_POLICY: Final = FusedPolicy()

Launcher = Callable[[Sequence[Any], Sequence[Any]], None]


class KernelMachine(Protocol):
    """The interface of a device for products and composites."""

    name: str
    dialect: Dialect
    target: Target
    arrays: int
    """How many a kernel takes."""
    compilers: int
    """Kernels that are compiled at the same time."""
    algorithms: int
    """Algorithms of a library that are measured for a product."""
    memory: QueueMemory

    def has_library(self, call: Call) -> bool:
        """Whether `compile` has the vendor's own version of a product."""

    def by_library(self, region: Region) -> Mapping[str, Callable[[], Kernel]]:
        """The vendor's own variants of a product as it is; their names begin with `LIBRARY`, which is that of the
        one that is expected to be best. How many there are may be known only when they are made: one that is not there
        raises `NoSuchVariant`."""

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if `multiplier` has a product with this prologue and epilogue in a precision."""

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """The vendor's own version of a product with what is around it: the entries that it reads, and its launch. Of
        several algorithms, that of the rank that is wanted, or the last."""

    def launcher(self, kernel: Generated, inputs: int, outputs: int) -> Launcher:
        """A generated kernel, to be launched on the data of inputs and outputs."""

    def refusal(self, region: Region) -> str | None:
        """Why `compile` cannot have a region, or `None`."""

    def compile(self, region: Region) -> Kernel:
        """A region that is not fused any further."""

    def undecided(self) -> None:
        """The run that is under way in this thread is not what it will be: who records it should not keep it."""

    def seconds(self, kernel: Kernel, data: Sequence[Any], calls: int) -> float:
        """The seconds of a call, of this many that are launched in sequence, as in a program that repeats."""


def is_rounded(region: Region) -> bool:
    """True for products of operands that the hardware rounds, or that are stored in 16 bits. Generated kernels have no
    such products."""
    is_asked = region.precision is Precision.TF32 or region.precision in HALVES
    return is_asked and any(multiplies(call) and call.spec.dtype is float32 for call in region.calls)


def is_sliding(region: Region) -> bool:
    """Whether a region is an op on windows, without a product."""
    return region.kind is RegionKind.OPAQUE and slides(region.calls[-1])


class Fused:
    """The products and composites of one device."""

    def __init__(self, machine: KernelMachine, identity: str) -> None:
        """`identity`: the hardware and software that times depend on."""
        self._machine = machine
        self.compilers = machine.compilers
        self.fusion = Fusion(self._joins, is_rowwise=self._is_rowwise)
        self._records = TuningRecords(identity)
        self._works: dict[Any, _Work | Unsupported] = {}

    def refusal(self, region: Region) -> str | None:
        """Why there is no kernel for a product or a composite, or `None`."""
        if region.precision in HALVES and is_composite(region):
            call = in_halves(region.calls[0], HALVES[region.precision])
            refusal = gradient_refusal if isinstance(call.op.role, AttentionGradient) else unit_refusal
            return refusal(call, self._machine.dialect)
        try:
            work = self._work(region)
        except Unsupported as failure:
            return str(failure)
        return self._refusal_of(work)

    def _work(self, region: Region) -> _Work:
        """The kernels of a region: equal ones, as the layers of a model have, are cut once. Raises `Unsupported`."""
        key = (region.kind, region.precision, *region.key())
        known = self._works.get(key)
        if known is None:
            try:
                known = _Work.of(region)
            except Unsupported as reason:
                known = reason
            if len(self._works) >= _POLICY.kept_works:
                self._works.clear()
            self._works[key] = known
        if isinstance(known, Unsupported):
            raise known
        return known

    def _refusal_of(self, work: _Work) -> str | None:
        reason = self._rest_refusal(work.kernels)
        if reason is not None:
            return reason
        if work.native is not None:
            reason = gradient_refusal(work.native, self._machine.dialect)
            if reason is not None:
                return reason
        lacking = [s.dtype for call in work.graph.calls for s in (*call.inputs, *call.outputs)
                   if s.dtype.name != "bool" and s.dtype not in self._machine.dialect.types]  # fmt: skip
        if lacking:
            return f"no {lacking[0].name} in its language"
        return None

    def _joins(self, region: Region, base: Region, _: Region) -> bool:
        """True if a region, which is `base` with neighbours, takes no more kernels than `base`."""
        if self._attentions(base):  # a kernel for all of it takes no neighbours
            return False
        if len(region.inputs) + len(region.outputs) > self._machine.arrays:
            return False
        try:
            alone, together = self._work(base), self._work(region)
        except Unsupported:
            return False
        if base.precision is not Precision.FULL:  # generated kernels are of full precision
            cut = self._by_library(together, base.precision) if is_rounded(base) else None
            return cut is not None and len(cut) == 1
        reaches_back = not set(base.inputs) <= set(region.inputs)
        if reaches_back and any(not isinstance(p, FusedContraction) or p.row_values for p in alone.kernels):
            return False  # what is before would be computed again in every pass over a row
        return len(together.kernels) <= len(alone.kernels) and self._refusal_of(together) is None

    def _is_rowwise(self, region: Region) -> bool:
        """True if a region is one kernel that goes row by row."""
        if len(region.inputs) + len(region.outputs) > self._machine.arrays:
            return False
        try:
            work = self._work(region)
        except Unsupported:
            return False
        return len(work.kernels) == 1 and isinstance(work.kernels[0], Rows) and self._refusal_of(work) is None

    def _rest_refusal(self, cut: Sequence[PlannedKernel]) -> str | None:
        """Why some region that is no kernel of its own yet cannot be one."""
        regions = [region for planned in cut if isinstance(planned, Rest) for region in planned.regions]
        return next(filter(None, map(self._machine.refusal, regions)), None)

    def compiled(self, region: Region) -> Kernel:
        """A product or a composite by its best known variant."""
        work = self._work(region)
        specs = [work.graph.calls[o].spec for o in work.graph.outputs]
        if not all(s.size for s in specs):
            return lambda *data: tuple([self._machine.memory.new(s.shape, s.dtype) for s in specs])
        variants = self._variants(region, work)
        products = [p for p in work.kernels if isinstance(p, FusedContraction)]
        return _Measured(self._machine, self._records, region, work, variants, self._expected(work, products, variants))

    def variants(self, region: Region) -> dict[str, Callable[[], Kernel]]:
        """The variants of a product or a composite, by name: each makes its kernel when it is called."""
        return self._variants(region, self._work(region))

    def _variants(self, region: Region, work: _Work) -> dict[str, Callable[[], Kernel]]:
        variants: dict[str, Callable[[], Kernel]] = {}
        products, machine = [p for p in work.kernels if isinstance(p, FusedContraction)], self._machine
        if work.native is not None:
            return self._attentions(region) | self._separately(work)
        precision = region.precision if is_rounded(region) else Precision.FULL
        by_library = self._by_library(work, precision) if products else None
        is_generated = precision is Precision.FULL or (by_library is None and _multiplies_halves(work))
        names = product_variants(products, machine.dialect, machine.target) if products else (_ONE_KERNEL,)
        for name in names if is_generated else ():
            if name == NAIVE and work.size > _POLICY.hopeless_work:
                continue
            variants[name] = partial(_steps, work.graph, work.kernels, machine, name)
            for parts, cut in self._parts_of_sum(work, name):
                variants[f"{name}, {parts} parts"] = partial(_steps, work.graph, cut, machine, name)
        if region.kind is RegionKind.CONTRACTION:
            variants |= machine.by_library(region) if not reads_halves(region) else {}
        elif not is_sliding(region):
            variants |= self._separately(work)
        if by_library is not None and self._rest_refusal(by_library) is None:
            for rank in range(machine.algorithms):
                cut = [
                    replace(p, rank=rank, precision=precision) if isinstance(p, LibraryProduct) else p
                    for p in by_library
                ]
                name = LIBRARY if LIBRARY not in variants else f"{LIBRARY}, algorithm {rank + 1}"
                variants[name] = partial(_steps, work.graph, cut, machine, "")
        return variants | self._attentions(region)

    def _parts_of_sum(self, work: _Work, variant: str) -> list[tuple[int, list[PlannedKernel]]]:
        """The kernels of a variant on a matrix unit with the product's sum in parts, if its results are too few to
        keep the device busy."""
        products = [p for p in work.kernels if isinstance(p, FusedContraction)]
        tile = unit_tiles(products[0], self._machine.dialect).get(variant) if len(products) == 1 else None
        if tile is None:
            return []
        (product,), target = products, self._machine.target
        m, n, k = product.extents
        blocks = -(-m // tile.rows) * -(-n // tile.columns) * prod(r.size for r in product.batch)
        wanted = target.units * target.group // (_POLICY.threads_of_busy * blocks)
        parts = min(wanted, k // (_POLICY.least_stretches * tile.depth))
        if parts < 2:
            return []
        cut = in_parts_of_sum(work.graph, parts, of_halves=_multiplies_halves(work))
        return [] if cut is None else [(parts, cut)]

    def _by_library(self, work: _Work, precision: Precision) -> list[PlannedKernel] | None:
        """The kernels with the products of a library in a precision, or `None`."""
        takes = partial(self._machine.takes, precision=precision)
        try:
            return library_kernels(work.graph, takes, converts=precision in HALVES)
        except Unsupported:  # 16-bit arrays under windows are read by a matrix unit alone
            return None

    def prepare(self, kernels: Iterable[Kernel]) -> None:
        """Compile at once all variants that the first calls of kernels will compare. One after the other, the regions
        of a large unit would leave most compilers idle."""
        compared = {k.kind: k for k in kernels if isinstance(k, _Measured) and k.compares_first}
        side_by_side([job.run for k in compared.values() for job in k.jobs.values()], self.compilers)

    def takes_halves(self, product: Region) -> bool:
        """True if a library computes a product of 16-bit operands as a whole, or a matrix unit one over windows."""
        try:
            work = self._work(product)
        except Unsupported:
            return False
        if _multiplies_halves(work) and product.calls[-1].op.role is Contraction.WINDOWS:
            return True
        cut = self._by_library(work, product.precision)
        return cut is not None and len(cut) == 1

    def _separately(self, work: _Work) -> dict[str, Callable[[], Kernel]]:
        """Each part by itself; with one product, that in each of the vendor's variants."""
        machine, apart = self._machine, _apart(work.graph)
        if any(machine.refusal(part) is not None for part in apart.regions):
            return {}
        products = [part for part in apart.regions if part.kind is RegionKind.CONTRACTION]
        others = machine.by_library(products[0]) if len(products) == 1 else {}
        variants: dict[str, Callable[[], Kernel]] = {_SEPARATE: partial(_steps, work.graph, [apart], machine, "")}
        for name, make in others.items():
            if name != LIBRARY:  # which is the product that the parts have anyway
                variants[name.replace(LIBRARY, _SEPARATE)] = partial(_steps, work.graph, [apart], machine, "", make)
        return variants

    def _attentions(self, region: Region) -> dict[str, Callable[[], Kernel]]:
        """The kernels that are attention as a whole, the one that is expected to be best first."""
        machine, call = self._machine, region.calls[0]
        if not is_composite(region):
            return {}
        dialect = machine.dialect
        programs: dict[str, Callable[[], KernelProgram]] = {}
        if unit_refusal(call, dialect) is None:
            for name, shape in unit_shapes(call).items():
                programs[_ON_UNIT + name] = partial(_alone, call, partial(unit_attention, call, dialect, shape))
        if plain_refusal(call) is None:
            programs[_FLASH] = partial(_alone, call, partial(plain_attention, call, dialect))
        if gradient_refusal(call, dialect) is None:
            for name, shape in gradient_shapes(call).items():
                programs[_ON_UNIT + name] = partial(unit_attention_gradient, call, dialect, shape)
        return {name: partial(_attention, region, machine, written) for name, written in programs.items()}

    def _expected(self, work: _Work, products: Sequence[FusedContraction], variants: Mapping[str, Any]) -> str:
        whole = [variant for variant in variants if variant == _FLASH or variant.startswith(_ON_UNIT)]
        if whole:
            return whole[0]
        if not products:
            return _ONE_KERNEL
        if variants and all(variant.startswith(LIBRARY) for variant in variants):
            return LIBRARY
        calls = [call for call in work.graph.calls if multiplies(call)]
        if work.size >= _POLICY.large_work:
            if LIBRARY in variants:
                return LIBRARY
            has_library = all(self._machine.has_library(call) for call in calls)
            if _SEPARATE in variants and (has_library or any(p.prepares for p in products)):
                return _SEPARATE
        first = prior(products[0], self._machine.dialect)
        return next((name for name in variants if name.startswith(f"{first}, ")), first)


@dataclass(frozen=True, slots=True)
class _Work:
    """A region as a graph of its own, and cut into kernels."""

    graph: Graph
    kernels: tuple[PlannedKernel, ...]
    native: Call | None = None
    """The composite that is only worth being whole if it has kernels of its own."""

    @classmethod
    def of(cls, region: Region) -> _Work:
        """A region's. Raises `Unsupported`."""
        own = in_parts(region)
        if is_composite(region) or region.kind in JOINED:
            if not all(s.size for call in own.graph.calls for s in (*call.inputs, *call.outputs)):
                raise Unsupported("there is nothing to compute")
            if is_composite(region) and isinstance(region.calls[0].op.role, AttentionGradient):
                return cls(own.graph, (_apart(own.graph),), region.calls[0])
            return cls(own.graph, tuple(planned_kernels(own.graph)))
        entry = own.graph.outputs[0]
        if slides(own.graph.calls[entry]):
            return cls(own.graph, (slide_of(own.graph, entry),))
        if not multiplies(own.graph.calls[entry]):
            raise Unsupported("it is no product any more")
        product = contraction(own.graph, entry, (entry,), of_halves=region.precision in HALVES)
        return cls(own.graph, (product,))

    @property
    def size(self) -> int:
        """Products of elements; where there are none, elements of results."""
        products = [p for p in self.kernels if isinstance(p, FusedContraction)]
        if not products:
            return sum(self.graph.calls[o].spec.size for o in self.graph.outputs)
        return sum(prod(p.extents) * prod(r.size for r in p.batch) for p in products)


def _multiplies_halves(work: _Work) -> bool:
    """True for products of 16-bit floats with float32 results."""
    products = [p for p in work.kernels if isinstance(p, FusedContraction)]
    return all(p.left.dtype.is_half and p.result is float32 for p in products) and bool(products)


def _words(region: Region) -> str:
    """The computation of a region without its sizes: ops with their attributes and inputs. A variant that was correct
    for another key may be wrong for this one."""
    at = {entry: n for n, entry in enumerate((*region.inputs, *region.nodes))}
    reads = [[at.get(a, "constant") for a in region.graph.args[n]] for n in region.nodes]
    return " ".join(f"{call!r}{read}" for call, read in zip(region.calls, reads, strict=True))


def _apart(graph: Graph) -> Rest:
    return Rest(tuple(fuse(graph)), tuple(range(len(graph.calls))))


def _steps(
    graph: Graph,
    cut: Sequence[PlannedKernel],
    machine: KernelMachine,
    variant: str,
    product: Callable[[], Kernel] | None = None,
) -> Kernel:
    """Pieces, one after the other; where `product` is given, it makes the one that is a region of its own."""
    steps: list[tuple[Callable[..., Sequence[Any]], tuple[int, ...], tuple[int, ...]]] = []
    fixed: dict[int, Any] = {}
    for planned in cut:
        if isinstance(planned, Rest):
            for region in planned.regions:
                reads, writes = (tuple(planned.entries[e] for e in own) for own in (region.inputs, region.outputs))
                if product is not None and region.kind is RegionKind.CONTRACTION:
                    steps.append((product(), reads, writes))
                else:
                    steps.append((machine.compile(region), reads, writes))
            continue
        if isinstance(planned, LibraryProduct):
            reads, launch = machine.multiplier(planned)
            fixed |= {
                e: machine.memory.from_host(np.asarray(bind(graph.calls[e])())) for e in reads if is_constant(graph, e)
            }
            outputs = tuple(o.entry for o in planned.product.outputs)
            specs = [graph.calls[e].spec for e in outputs]
            steps.append((_launched(machine, launch, (), [(s.shape, s.dtype) for s in specs]), reads, outputs))
            continue
        made = rendered(graph, planned, machine.dialect, machine.target, variant)
        reads = tuple(e for e in made.inputs.entries if not is_constant(graph, e))
        constants = [machine.memory.from_host(array) for array in made.inputs.constants]
        if isinstance(planned, PartialSums):
            specs = [planned.spec]
        else:
            specs = [graph.calls[e].spec for e in made.outputs]
        launch = machine.launcher(made.kernel, len(made.inputs.entries), len(specs))
        steps.append((_launched(machine, launch, constants, [(s.shape, s.dtype) for s in specs]), reads, made.outputs))
    inputs, outputs = graph.inputs, graph.outputs

    def kernel(*data: Any) -> tuple[Any, ...]:
        values = fixed | dict(zip(inputs, data, strict=True))
        for run, reads, writes in steps:
            values.update(zip(writes, run(*[values[e] for e in reads]), strict=True))
        return tuple([values[o] for o in outputs])

    return kernel


def _launched(
    machine: KernelMachine, launch: Launcher, constants: Sequence[Any], specs: Sequence[tuple[Shape, DType]]
) -> Callable[..., Sequence[Any]]:
    def run(*data: Any) -> Sequence[Any]:
        made = [machine.memory.new(shape, dtype) for shape, dtype in specs]
        launch([*data, *constants], made)
        return made

    return run


def _alone(call: Call, written: Callable[[], Generated]) -> KernelProgram:
    """One kernel for a call."""
    count = len(call.inputs)
    return KernelProgram((Stage(written(), tuple(range(count)), (count,)),))


def _attention(region: Region, machine: KernelMachine, written: Callable[[], KernelProgram]) -> Kernel:
    (call, *picks), program, memory = region.calls, written(), machine.memory
    steps = [(machine.launcher(s.kernel, len(s.reads), len(s.writes)), s.reads, s.writes) for s in program.stages]
    rooms = (*[(s.shape, s.dtype) for s in call.outputs], *program.scratch)
    args, graph = region.graph.args[region.nodes[0]], region.graph
    fixed = {a: memory.from_host(np.asarray(bind(graph.calls[a])())) for a in args if is_constant(graph, a)}
    index = dict(zip(region.nodes, [0, *[pick.attrs["index"] for pick in picks]], strict=True))
    results = [len(args) + index[o] for o in region.outputs]

    def kernel(*data: Any) -> tuple[Any, ...]:
        given = fixed | dict(zip(region.inputs, data, strict=True))
        arrays = [*[given[a] for a in args], *[memory.new(*room) for room in rooms]]
        for launch, reads, writes in steps:
            launch([arrays[n] for n in reads], [arrays[n] for n in writes])
        return tuple([arrays[n] for n in results])

    return kernel


class _Shown:
    """A kernel whose results are copied to the host when they are compared."""

    def __init__(self, machine: KernelMachine, kernel: Kernel) -> None:
        self.kernel = kernel
        self._machine = machine

    def __call__(self, *data: Any) -> Sequence[Any]:
        """Run it."""
        return [_Lazy(self._machine, made) for made in self.kernel(*data)]


class _Lazy:
    """Data that is copied to the host when it is compared."""

    def __init__(self, machine: KernelMachine, data: Any) -> None:
        self._machine = machine
        self._data = data

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self._machine.memory.to_host(self._data)
        return array if dtype is None else array.astype(dtype)


class _Measured:
    """A kernel that changes to a better variant when one has been found."""

    def __init__(
        self, machine: KernelMachine, records: TuningRecords, region: Region, work: _Work,
        variants: Mapping[str, Callable[[], Kernel]], expected: str,
    ) -> None:  # fmt: skip
        self._machine, self._records, self._region, self._work = machine, records, region, work
        self._variants, self._expected = variants, expected
        specs = [work.graph.calls[e].spec for e in work.graph.inputs]
        shapes = [f"{s.dtype.name} {size_class(*s.shape)}" for s in specs]
        self.kind = f"{_words(region)} {region.precision.value} {'; '.join(shapes)} of {', '.join(variants)}"
        known = records.known(self.kind)
        worth = work.size >= _POLICY.measured_work
        self._wait = 0 if known is not None or not worth else 1 if region.repeats else _POLICY.patience_runs
        self._lock = Lock()
        winner = None if known is None else known.winner
        variant, self._kernel = self._first(winner if winner is not None and winner in variants else expected)
        if known is not None:
            records.take(self.kind, variant)

    @property
    def compares_first(self) -> bool:
        """True if the first call compares variants."""
        return self._wait == 1 and len(self._variants) > 1

    @cached_property
    def jobs(self) -> dict[str, Job[_Shown]]:
        """The variants to be compared, the expected one first."""
        order = sorted(self._variants, key=lambda name: name != self._expected)
        return {name: Job(partial(self._shown, name), inf) for name in order}

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        """Run it."""
        if self._wait:
            self._machine.undecided()
            with self._lock:
                try:
                    if self.compares_first:
                        self._measure(data)
                finally:
                    self._wait = max(0, self._wait - 1)  # until then others wait
        return self._kernel(*data)

    def _first(self, name: str) -> tuple[str, Kernel]:
        """A variant and its kernel, or the next that compiles. The winner for other work of the kind may be missing."""
        failed: CompileFailure | None = None
        for variant in dict.fromkeys((name, self._expected, *self._variants)):
            try:
                return variant, self._variants[variant]()
            except CompileFailure as failure:
                failed = failed or failure
                if not isinstance(failure, NoSuchVariant):
                    trace.failed(str(self._region), self._machine.name, CompileFailure(f"{variant}: {failure}"))
        assert failed is not None
        raise failed

    def _measure(self, data: Sequence[Any]) -> None:
        machine, jobs = self._machine, self.jobs
        del self.jobs  # and with it the kernels that lose
        if self._records.known(self.kind) is None:
            side_by_side([job.run for job in jobs.values()], machine.compilers)

        def turn(shown: _Shown, given: Sequence[Any], calls: int) -> float:
            return machine.seconds(shown.kernel, given, _POLICY.calls_factor * calls)

        roundings = _POLICY.roundings_of_rounded if is_rounded(self._region) else _POLICY.roundings
        trial = TrialSetup(
            lambda: data, self._reference(), roundings, turn=turn, tie=_POLICY.tie_share,
            seconds=_POLICY.sitting_seconds,
        )  # fmt: skip
        chosen = self._records.best(self.kind, {name: job.result for name, job in jobs.items()}, trial)
        for name, refusal in chosen.verdict.refused.items():
            trace.failed(str(self._region), machine.name, CompileFailure(f"{name}: {refusal.reason}"))
        if chosen.verdict.winner is not None:
            self._kernel = jobs[chosen.verdict.winner].result().kernel

    def _shown(self, name: str) -> _Shown:
        return _Shown(self._machine, self._variants[name]())

    def _reference(self) -> Callable[..., Sequence[Any]]:
        """The host's results; of large products those of the simplest kernel."""
        region, machine = self._region, self._machine
        if self._work.size > _POLICY.host_work:
            simplest = _steps(self._work.graph, self._work.kernels, machine, NAIVE)
            return lambda *data: [machine.memory.to_host(d) for d in simplest(*data)]
        return lambda *data: outputs_of(region, [machine.memory.to_host(d) for d in data])
