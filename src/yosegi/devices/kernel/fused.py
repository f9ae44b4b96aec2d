"""Products and composites on a kernel device, alone or with the neighbours that the fusion pass gave them.

A region has several variants. It is cut into few kernels (`codegen.c.fused_kernels`), with each implementation of its
product; or each part is a kernel of its own, with products by a library where there is one. `measured` selects one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, Final

from ..._run.background import side_by_side
from ..._run.device import Kernel
from ..._schedule.fuse import Region, RegionKind, is_composite, multiplies
from ..._schedule.kernels import Fusion
from ..._tensor.precision import Precision
from ..._tensor.role import AttentionGradient, Contraction
from ..._tune.records import TuningRecords
from ...codegen.c.attention import plain_attention, plain_refusal
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import (
    NAIVE,
    LibraryProduct,
    PlannedKernel,
    Rest,
    in_parts_of_sum,
    library_kernels,
    prior,
    product_variants,
)
from ...codegen.c.rowwise import Rows
from ...codegen.c.sliding import slides
from ...codegen.c.stages import KernelProgram
from ...codegen.c.unit_attention import unit_attention, unit_refusal, unit_shapes
from ...codegen.c.unit_attention_gradient import gradient_refusal, gradient_shapes, unit_attention_gradient
from ...codegen.c.unit_tiles import unit_tiles
from ...errors import Unsupported
from .half_operands import HALVES, in_halves, reads_halves
from .launching import LIBRARY, KernelMachine
from .measured import MeasuredKernel, is_rounded
from .work import PlannedRegion, apart, attention, multiplies_halves, one_kernel, steps_of

PATTERNS: Final = frozenset({
    "linear", "linear_residual_relu", "gelu_linear", "linear_batch_norm_relu", "dropout_linear", "layer_norm_linear",
    "cross_entropy", "attention_scores", "scaled_dot_product_attention", "softmax", "log_softmax", "layer_norm",
    "rms_norm", "attention_gradient",
})  # fmt: skip
"""The composites that become few kernels."""

_ONE_KERNEL: Final = "fused"
_SEPARATE: Final = "separate"
_FLASH: Final = "online softmax"
_ON_UNIT: Final = "matrix unit, "
"""The prefix of the names of variants that use a matrix unit."""


@dataclass(frozen=True, slots=True)
class FusedPolicy:
    """The sizes from which variants are expected to be faster. Work is `PlannedRegion.size`."""

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


def is_sliding(region: Region) -> bool:
    """True if a region is an op on windows, without a product."""
    return region.kind is RegionKind.OPAQUE and slides(region.calls[-1])


class Fused:
    """The products and composites of one device."""

    def __init__(self, machine: KernelMachine, identity: str) -> None:
        """`identity`: the hardware and software that times depend on."""
        self._machine = machine
        self.compilers = machine.compilers
        self.fusion = Fusion(self._joins, is_rowwise=self._is_rowwise)
        self._records = TuningRecords(identity)
        self._works: dict[Any, PlannedRegion | Unsupported] = {}

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

    def _work(self, region: Region) -> PlannedRegion:
        """The kernels of a region: equal ones, as the layers of a model have, are cut once. Raises `Unsupported`."""
        key = (region.kind, region.precision, *region.key())
        known = self._works.get(key)
        if known is None:
            try:
                known = PlannedRegion.of(region)
            except Unsupported as reason:
                known = reason
            if len(self._works) >= _POLICY.kept_works:
                self._works.clear()
            self._works[key] = known
        if isinstance(known, Unsupported):
            raise known
        return known

    def _refusal_of(self, work: PlannedRegion) -> str | None:
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
        if self._attentions(base):  # a kernel for all attention takes no neighbours
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
            return False  # the prologue would be computed again in every pass over a row
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
        """The first refusal of a region that is not a planned kernel, or `None`."""
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
        return MeasuredKernel(
            self._machine, self._records, region, work, variants, self._expected(work, products, variants)
        )

    def variants(self, region: Region) -> dict[str, Callable[[], Kernel]]:
        """The variants of a product or a composite, by name: each makes its kernel when it is called."""
        return self._variants(region, self._work(region))

    def _variants(self, region: Region, work: PlannedRegion) -> dict[str, Callable[[], Kernel]]:
        variants: dict[str, Callable[[], Kernel]] = {}
        products, machine = [p for p in work.kernels if isinstance(p, FusedContraction)], self._machine
        if work.native is not None:
            return self._attentions(region) | self._separately(work)
        precision = region.precision if is_rounded(region) else Precision.FULL
        by_library = self._by_library(work, precision) if products else None
        is_generated = precision is Precision.FULL or (by_library is None and multiplies_halves(work))
        names = product_variants(products, machine.dialect, machine.target) if products else (_ONE_KERNEL,)
        for name in names if is_generated else ():
            if name == NAIVE and work.size > _POLICY.hopeless_work:
                continue
            variants[name] = partial(steps_of, work.graph, work.kernels, machine, name)
            for parts, cut in self._parts_of_sum(work, name):
                variants[f"{name}, {parts} parts"] = partial(steps_of, work.graph, cut, machine, name)
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
                variants[name] = partial(steps_of, work.graph, cut, machine, "")
        return variants | self._attentions(region)

    def _parts_of_sum(self, work: PlannedRegion, variant: str) -> list[tuple[int, list[PlannedKernel]]]:
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
        cut = in_parts_of_sum(work.graph, parts, of_halves=multiplies_halves(work))
        return [] if cut is None else [(parts, cut)]

    def _by_library(self, work: PlannedRegion, precision: Precision) -> list[PlannedKernel] | None:
        """The kernels with the products of a library in a precision, or `None`."""
        takes = partial(self._machine.takes, precision=precision)
        try:
            return library_kernels(work.graph, takes, converts=precision in HALVES)
        except Unsupported:  # 16-bit arrays under windows are read by a matrix unit alone
            return None

    def prepare(self, kernels: Iterable[Kernel]) -> None:
        """Compile at once all variants that the first calls of kernels will compare. One after the other, the regions
        of a large unit would leave most compilers idle."""
        compared = {k.kind: k for k in kernels if isinstance(k, MeasuredKernel) and k.compares_first}
        side_by_side([job.run for k in compared.values() for job in k.jobs.values()], self.compilers)

    def takes_halves(self, product: Region) -> bool:
        """True if a library computes a product of 16-bit operands as a whole, or a matrix unit one over windows."""
        try:
            work = self._work(product)
        except Unsupported:
            return False
        if multiplies_halves(work) and product.calls[-1].op.role is Contraction.WINDOWS:
            return True
        cut = self._by_library(work, product.precision)
        return cut is not None and len(cut) == 1

    def _separately(self, work: PlannedRegion) -> dict[str, Callable[[], Kernel]]:
        """The variants with a kernel for each part; one for each of the vendor's variants of the product."""
        machine, separate = self._machine, apart(work.graph)
        if any(machine.refusal(part) is not None for part in separate.regions):
            return {}
        products = [part for part in separate.regions if part.kind is RegionKind.CONTRACTION]
        others = machine.by_library(products[0]) if len(products) == 1 else {}
        variants: dict[str, Callable[[], Kernel]] = {_SEPARATE: partial(steps_of, work.graph, [separate], machine, "")}
        for name, make in others.items():
            if name != LIBRARY:  # which is the product that the parts have anyway
                variants[name.replace(LIBRARY, _SEPARATE)] = partial(
                    steps_of, work.graph, [separate], machine, "", make
                )
        return variants

    def _attentions(self, region: Region) -> dict[str, Callable[[], Kernel]]:
        """The variants with one kernel for attention, the one that is expected to be fastest first."""
        machine, call = self._machine, region.calls[0]
        if not is_composite(region):
            return {}
        dialect = machine.dialect
        programs: dict[str, Callable[[], KernelProgram]] = {}
        if unit_refusal(call, dialect) is None:
            for name, shape in unit_shapes(call).items():
                programs[_ON_UNIT + name] = partial(one_kernel, call, partial(unit_attention, call, dialect, shape))
        if plain_refusal(call) is None:
            programs[_FLASH] = partial(one_kernel, call, partial(plain_attention, call, dialect))
        if gradient_refusal(call, dialect) is None:
            for name, shape in gradient_shapes(call).items():
                programs[_ON_UNIT + name] = partial(unit_attention_gradient, call, dialect, shape)
        return {name: partial(attention, region, machine, written) for name, written in programs.items()}

    def _expected(self, work: PlannedRegion, products: Sequence[FusedContraction], variants: Mapping[str, Any]) -> str:
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
