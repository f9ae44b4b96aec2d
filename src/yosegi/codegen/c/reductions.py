"""Reductions as trees, with the elementwise work before them.

On GPUs, `trees` writes them. Elsewhere each result is folded in slices. In a slice, vectors run along the innermost
dimension: where that is reduced their lanes are folded in the end, and a group of items shares a slice and folds its
parts in local memory; where it is kept every lane is a result of its own. Sums go through short blocks, whose totals
are summed again: their error grows with the blocks' length, not with the array's. Slices, if there are several, are
folded by a second stage or by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from ..._schedule.fuse import Region
from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ..scalar.access import Dimension, dimensions, gather, load, store
from ..scalar.folds import Fold
from ..scalar.value import Value
from .builder import CBuilder
from .dialect import Dialect, Target
from .kernel_source import (
    SMALL,
    Inputs,
    Kernel,
    SizeParameters,
    assembled,
    decomposed,
    dtypes_of,
    evaluated,
    offsets,
    widest,
)
from .subgroups import fold_in_subgroup
from .trees import Body, TreeWriter

_BLOCK = 64
_MOST_SLICES = 256


@dataclass(frozen=True, slots=True)
class ReductionStages:
    """The stages of a reduction. With one slice there is no second stage."""

    first: Kernel
    fold: Fold
    slices: int
    results: int


def reduction(region: Region, inputs: Inputs, dialect: Dialect, target: Target) -> ReductionStages:
    """The first stage of a reduction of at least one element. It writes partial results if there are several slices."""
    graph, last = region.graph, region.nodes[-1]
    call = graph.calls[last]
    fold = Fold.of(call)
    shape = call.inputs[0].shape

    def body(k: CBuilder, read: Callable[[int], Value]) -> tuple[Value, list[tuple[Value, str]]]:
        values = evaluated(region, region.nodes[:-1], k, lambda e: read(inputs.entries.index(e)))
        stored = [(values[e], f"b{n}") for n, e in enumerate(region.outputs) if e != last]
        return values[graph.args[last][0]], stored

    place = region.outputs.index(last)
    outputs = [graph.calls[e].spec.dtype for e in region.outputs]
    axes = call.attrs["axis"]
    writer: _ReductionKernel | TreeWriter
    if target.blocked:
        writer = _ReductionKernel(dialect, target, shape, axes, inputs.shapes, inputs.dtypes, dtypes_of(region))
    else:
        shown = [dtype for n, dtype in enumerate(outputs) if n != place]
        writer = TreeWriter(dialect, target, shape, axes, inputs.shapes, inputs.dtypes, shown, fold.accumulated)
    if writer.slices > 1:
        outputs[place] = fold.accumulated
    kernel = writer.write(fold, body, outputs, f"b{place}", ends=writer.slices == 1)
    return ReductionStages(kernel, fold, writer.slices, writer.results)


def second_stage(of: ReductionStages, dialect: Dialect, target: Target) -> Kernel:
    """The kernel that folds partial results, a row per slice, into the results."""
    dtype = of.fold.accumulated
    shape = (of.slices, of.results)
    own = (dialect, target, shape, (0,), (shape,), (dtype,), (dtype,))
    writer = _ReductionKernel(*own, whole=True) if target.blocked else TreeWriter(*own, dtype, whole=True)
    return writer.write(of.fold, lambda k, read: (read(0), []), [of.fold.result], "b0", ends=True)


class _ReductionKernel:
    """Writes one stage."""

    def __init__(
        self,
        dialect: Dialect,
        target: Target,
        shape: Shape,
        axes: Sequence[int],
        inputs: Sequence[Shape],
        dtypes: Sequence[DType],
        computed: Sequence[DType],
        *,
        whole: bool = False,
    ) -> None:
        self.dialect, self.target, self.dtypes, self.shapes = dialect, target, tuple(dtypes), inputs
        dims = dimensions(shape, inputs, frozenset(axes)) or [Dimension(1, (0,) * len(inputs), 1)]
        total = prod(shape)
        inner = dims[-1]
        self.width = 1 if total <= SMALL else widest(dialect, target, computed, inner.size)
        self.inner = inner
        self.across = self.width > 1 and not inner.reduced
        self.along = self.width > 1 and inner.reduced
        self.kept = [d for d in dims if not d.reduced and not (self.across and d is inner)]
        self.reduced = [d for d in dims if d.reduced and not (self.along and d is inner)]
        self.chunks = -(-inner.size // self.width)
        self.results = prod(n for a, n in enumerate(shape) if a not in axes)
        self.units = prod(d.size for d in self.kept) * (self.chunks if self.across else 1)
        self.steps = prod(d.size for d in self.reduced) * (self.chunks if self.along else 1)
        self.sizes = SizeParameters(total, dialect)
        subgroup = target.cooperating
        self.subgroup = subgroup if self.along and self.units < 64 * target.units and self.steps >= 4 * subgroup else 1
        wanted = 4 * target.units * (1 if self.subgroup > 1 else target.group)
        least = 16 * self.subgroup if self.subgroup > 1 else _BLOCK
        self.slices = 1 if whole else max(1, min(-(-wanted // self.units), self.steps // least, _MOST_SLICES))

    def write(self, fold: Fold, body: Body, outputs: Sequence[DType], result: str, *, ends: bool) -> Kernel:
        """The kernel; `ends` says whether it writes results or partial ones."""
        k, sizes, ctype = CBuilder(self.dialect, self.width), self.sizes, self.sizes.ctype
        own = k.let(ctype, self.dialect.group_id if self.subgroup > 1 else self.dialect.global_id)
        work = self.units * self.slices
        if self.subgroup == 1:
            k.lines.append(f"if ({own} >= {sizes(work)}) return;")
        part, unit = "0", own
        if self.slices > 1:
            n = sizes(self.units)
            part = k.let(ctype, f"{own} / {n}")
            unit = k.let(ctype, f"{own} - {part} * {n}")
        starts, place = self._unit(k, unit)
        total = self._folded(k, fold, body, part, starts)
        where = place if self.slices == 1 else f"{part} * {sizes(self.results)} + {place}"
        prelude: list[str] = []
        single = k
        if self.along:
            total, single = self._lanes(k, fold, total)

        def put(totals: list[Value]) -> None:
            store(single, fold.end(single, totals[0]) if ends else totals[0], result, where)

        if self.subgroup > 1:
            prelude = fold_in_subgroup(single, fold, [total], self.subgroup, put)
        else:
            put([total])
        source = assembled(k, self.dtypes, outputs, sizes, prelude)
        items = work * self.subgroup
        return Kernel(source, tuple(sizes.values.values()), sizes.is_long, items,
                      self.subgroup if self.subgroup > 1 else self.target.group)  # fmt: skip

    def _unit(self, k: CBuilder, unit: str) -> tuple[list[str], str]:
        """Where a unit's elements begin, per input and for the loop's own shape; and where its results go."""
        sizes, ctype, at, place = self.sizes, self.sizes.ctype, "0", unit
        if self.across:
            n, row, chunk = sizes(self.chunks), "0", unit
            if self.kept:
                row = k.let(ctype, f"{unit} / {n}")
                chunk = k.let(ctype, f"{unit} - {row} * {n}")
            length = sizes(self.inner.size)
            at = k.let(ctype, f"min({chunk} * {self.width}, {length} - {self.width})")
            place = k.let(ctype, f"{row} * {length} + {at}")
            unit = row
        starts = offsets(decomposed(k, ctype, unit, self.kept, sizes), self.kept, len(self.shapes), sizes)
        if self.across:
            moves = (*self.inner.strides, self.inner.whole)
            starts = [f"{s} + {at}" if move else s for s, move in zip(starts, moves, strict=True)]
        return [k.let(ctype, s) for s in starts], place

    def _folded(self, k: CBuilder, fold: Fold, body: Body, part: str, starts: list[str]) -> Value:
        """All steps of a slice, or of an item's share in it, folded into one vector."""
        sizes, ctype, d = self.sizes, self.sizes.ctype, self.dialect
        per_slice = -(-self.steps // self.slices)
        count = sizes(self.steps)
        first = k.let(ctype, f"{part} * {sizes(per_slice)}" if self.slices > 1 else "0")
        stop = k.let(ctype, f"min({first} + {sizes(per_slice)}, {count})" if self.slices > 1 else count)
        if self.subgroup > 1:
            mine, share = k.let(ctype, d.local_id), sizes(-(-per_slice // self.subgroup))
            first = k.let(ctype, f"{first} + {mine} * {share}")
            stop = k.let(ctype, f"min({first} + {share}, {stop})")
        start = k.literal(fold.start, fold.accumulated)
        total = k.variable(start)
        with k.block(f"for ({ctype} block = {first}; block < {stop}; block += {_BLOCK})"):
            little = k.variable(start)
            end = k.let(ctype, f"min(block + {_BLOCK}, {stop})")
            with k.block(f"for ({ctype} step = block; step < {end}; step++)"):
                places, beyond = self._step(k, starts)
                value, stored = body(k, lambda n: self._read(k, n, places[n]))
                for extra, pointer in stored:
                    store(k, extra, pointer, places[-1])
                element = fold.begin(k, value)
                if beyond is not None:
                    element = k.select(beyond, k.literal(fold.start, fold.accumulated), element)
                k.assign(little, fold.combine(k, little, element))
            k.assign(total, fold.combine(k, total, little))
        return total

    def _step(self, k: CBuilder, starts: list[str]) -> tuple[list[str], Value | None]:
        """A step's places, per input and for the loop's own shape; and the lanes that an earlier step has had."""
        sizes, ctype, index, at = self.sizes, self.sizes.ctype, "step", ""
        beyond = None
        if self.along:
            chunk = "step"
            if self.reduced:
                n = sizes(self.chunks)
                index = k.let(ctype, f"step / {n}")
                chunk = k.let(ctype, f"step - {index} * {n}")
            at = k.let(ctype, f"min({chunk} * {self.width}, {sizes(self.inner.size)} - {self.width})")
            if self.inner.size % self.width:
                lanes = ", ".join(map(str, range(self.width)))
                vector = self.dialect.vector_type("int", self.width)
                numbers = k.let(vector, self.dialect.splat.format(type=vector, items=lanes))
                beyond = k.truth(f"({numbers} < ({vector})((int)({chunk} * {self.width} - {at})))", 32)
        indices = decomposed(k, ctype, index, self.reduced, sizes)
        more = offsets(indices, self.reduced, len(self.shapes), sizes)
        moves = (*self.inner.strides, self.inner.whole)
        places = []
        for start, further, move in zip(starts, more, moves, strict=True):
            terms = [start, further, *([at] if self.along and move else [])]
            places.append(k.let(ctype, " + ".join(t for t in terms if t != "0") or "0"))
        return places, beyond

    def _read(self, k: CBuilder, n: int, place: str) -> Value:
        if k.width > 1 and self.inner.strides[n]:
            return load(k, self.dtypes[n], f"a{n}", place)
        return gather(k, self.dtypes[n], f"a{n}", [place])

    def _lanes(self, k: CBuilder, fold: Fold, total: Value) -> tuple[Value, CBuilder]:
        """The lanes of a vector folded into one."""
        while k.width > 1:
            k = k.at_width(k.width // 2)
            halves = []
            for form in (self.dialect.low, self.dialect.high):
                texts = [k.let(k.ctype(total.dtype), form.format(x=t)) for t in (total.text, total.imag) if t]
                halves.append(Value(total.dtype, texts[0], texts[1] if total.imag else ""))
            total = fold.combine(k, *halves)
        return total, k
