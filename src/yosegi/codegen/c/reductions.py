"""Reductions with the elementwise work before them, as trees in one or two kernels.

Each result is folded in slices, so that there is work for the whole device. The threads of a subgroup take the packets
of a slice in turn. If the innermost dimension is reduced, a packet's lanes are folded in the end, and a block is one
subgroup. If it is kept, every lane is a result of its own: neighbouring threads take neighbouring results, and a block
is a row of subgroups. Sums go through short runs, whose totals are summed again. If there are several slices, a
second stage or the host folds their results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from math import prod
from typing import Final

from ..._schedule.fuse import Region
from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ..scalar.access import Dimension, dimensions
from ..scalar.folds import Fold
from ..scalar.value import Value
from .builder import CBuilder
from .dialect import Dialect, Target
from .kernel_source import Inputs, Kernel, assembled, decomposed, evaluated, offsets
from .packets import (
    LANE,
    drain,
    each_lane,
    element_at,
    fill,
    lane_of,
    lanes,
    packet_type,
    put_element,
    set_lane,
)

_BLOCK: Final = 64
_UNROLLED: Final = 4
"""Steps whose reads are under way at a time."""
_LEAST: Final = 4
"""Steps of each thread of a subgroup, or more, that make another slice worth it."""
_LEAST_IN_ROWS: Final = 8
"""Steps of each thread, in one of a row of subgroups, that make another slice worth it."""
_WARP: Final = 32
"""A small subgroup: the threads of a block this size run in step on most GPUs; and how many side by side read best."""
_NARROW: Final = 8
"""So many packets side by side still are a line of the cache."""
_SHARED: Final = 32 << 10
"""Bytes that a block may share on every GPU."""

Body = Callable[[CBuilder, Callable[[int], Value]], tuple[Value, list[tuple[Value, str]]]]
"""From a builder and a reader of inputs: the value to fold, and values to store, with the pointers to store them by."""


class _TreeWriter:
    """Writes one stage. `whole`: it ends in results, in one slice."""

    def __init__(
        self,
        dialect: Dialect,
        target: Target,
        shape: Shape,
        axes: Sequence[int],
        inputs: Sequence[Shape],
        dtypes: Sequence[DType],
        stored: Sequence[DType],
        accumulated: DType,
        *,
        whole: bool = False,
    ) -> None:
        """`accumulated`: what a block shares to fold it."""
        self.dialect, self.target, self.dtypes = dialect, target, tuple(dtypes)
        dims = dimensions(shape, inputs, frozenset(axes)) or [Dimension(1, (0,) * len(inputs), 1)]
        self.inner = dims[-1]
        self.along = self.inner.reduced
        self.count = lanes(dims, (*dtypes, *stored))
        while not self.along and self.count > 1 and self.count * target.cooperating * accumulated.itemsize > _SHARED:
            self.count //= 2
        if whole and not self.along:
            self.count = 1  # few results, each folded by a team
        self.chunks = -(-self.inner.size // self.count)
        self.kept = [d for d in dims if not d.reduced and d is not self.inner]
        self.reduced = [d for d in dims if d.reduced and d is not self.inner]
        self.results = prod(n for a, n in enumerate(shape) if a not in axes)
        self.units = prod(d.size for d in self.kept) * (1 if self.along else self.chunks)
        self.steps = prod(d.size for d in self.reduced) * (self.chunks if self.along else 1)
        self.k = CBuilder(dialect, prod(shape) + self.count)
        self.sizes = self.k.sizes
        self.across = 1
        """Subgroups of a block."""
        if self.along:
            self.subgroup, self.slices = self._along(whole)
        else:
            self.subgroup, self.slices = self._in_rows(whole)
            self.across = target.cooperating // self.subgroup if self.subgroup > 1 else 1

    def _along(self, whole: bool) -> tuple[int, int]:
        """How many threads share a slice, and how many slices there are, where the innermost dimension is reduced."""
        most = self.target.cooperating
        subgroup = most if self.steps >= most else min(_WARP, most) if self.steps > _UNROLLED else 1
        wanted = -(-2 * self.target.units // max(self.units, 1))
        return subgroup, 1 if whole else max(1, min(wanted, self.steps // (_LEAST * subgroup)))

    def _in_rows(self, whole: bool) -> tuple[int, int]:
        """How many threads share a slice, and how many slices there are, where the innermost dimension is kept: half of
        all threads keep memory busy. A second stage is avoided if narrow blocks do without."""
        most, resident = self.target.cooperating, self.target.units * self.target.group
        if whole:
            subgroup = min(2 * most // _NARROW, _power_of_two(self.steps // 2)) if self.units < resident else 1
            return max(1, subgroup), 1
        shares = min(-(-resident // (2 * max(self.units, 1))), self.steps // _LEAST_IN_ROWS)
        narrow = most // _NARROW
        if shares <= 2 * narrow:
            return min(narrow, _power_of_two(2 * shares - 1)) if shares > 1 else 1, 1
        subgroup = most // min(_WARP, _power_of_two(2 * self.units - 1), most)
        return subgroup, -(-shares // subgroup)

    def write(self, fold: Fold, body: Body, outputs: Sequence[DType], result: str, *, ends: bool) -> Kernel:
        """The kernel; `ends` says whether it writes results or partial ones."""
        k, sizes, ctype = self.k, self.sizes, self.sizes.ctype
        own = k.let(ctype, self.dialect.group_id if self.subgroup > 1 else self.dialect.global_id)
        groups = -(-self.units // self.across)
        work = groups * self.slices
        if self.subgroup == 1:
            k.say(f"if ({own} >= {sizes(work)}) return")
        part, unit = "0", own
        if self.slices > 1:
            n = sizes(groups)
            part = k.let(ctype, f"{own} / {n}")
            unit = k.let(ctype, f"{own} - {part} * {n}")
        row, inside = k.let("int", self.dialect.local_id if self.subgroup > 1 else "0"), ""
        if self.across > 1:
            unit = k.let(ctype, f"{unit} * {self.across} + {row} % {self.across}")
            row = k.let("int", f"{row} / {self.across}")
            inside = k.let("int", f"{unit} < {sizes(self.units)}") if self.units % self.across else ""
        starts, place = self._unit(k, unit)
        extra = {f"b{n}": dtype for n, dtype in enumerate(outputs) if f"b{n}" != result}
        self._fold_slice(k, fold, body, (part, row, inside), starts, extra)
        where = place if self.slices == 1 else k.let(ctype, f"{part} * {sizes(self.results)} + {place}")

        def put(totals: list[Value]) -> None:
            if self.along:
                put_element(k, fold.end(k, totals[0]) if ends else totals[0], result, where)
                return
            with k.block(f"if ({inside})") if inside else nullcontext():
                self._store_lanes(k, fold, totals, outputs[int(result[1:])], result, (where, place), ends)

        totals = [self._lane(fold, "total", str(n)) for n in range(self.count)]
        if self.along:
            totals = [_folded(k, fold, totals)]
        if self.subgroup > 1:
            _fold_in_subgroup(k, fold, totals, self.subgroup, put, self.across)
        else:
            put(totals)
        group = self.subgroup * self.across
        return assembled(k, self.dtypes, outputs, work * group, group if self.subgroup > 1 else self.target.group)

    def _unit(self, k: CBuilder, unit: str) -> tuple[list[str], str]:
        """Where a unit's elements begin, per input and for the loop's own shape; and where its results go."""
        sizes, ctype, at, place = self.sizes, self.sizes.ctype, "0", unit
        if not self.along:
            n, row, chunk = sizes(self.chunks), "0", unit
            if self.kept:
                row = k.let(ctype, f"{unit} / {n}")
                chunk = k.let(ctype, f"{unit} - {row} * {n}")
            at = k.let(ctype, f"{chunk} * {self.count}")
            place = k.let(ctype, f"{row} * {sizes(self.inner.size)} + {at}")
            unit = row
        starts = offsets(decomposed(k, ctype, unit, self.kept, sizes), self.kept, len(self.dtypes), sizes)
        if not self.along:
            moves = (*self.inner.strides, self.inner.whole)
            starts = [f"{s} + {at}" if move else s for s, move in zip(starts, moves, strict=True)]
        return [k.let(ctype, s) for s in starts], place

    def _fold_slice(
        self, k: CBuilder, fold: Fold, body: Body, item: tuple[str, str, str], starts: list[str],
        extra: dict[str, DType],
    ) -> None:  # fmt: skip
        """All steps of a slice, or of a thread's share in it, folded into `total`, lane by lane. `item`: its slice, its
        place in its subgroup, and whether there is anything for it to do."""
        sizes, ctype = self.sizes, self.sizes.ctype
        part, row, inside = item
        count = sizes(self.steps)
        if self.along and self.subgroup > 1:
            per_slice = sizes(-(-self.steps // self.slices))
            begin = k.let(ctype, f"{part} * {per_slice}" if self.slices > 1 else "0")
            stop = k.let(ctype, f"min({begin} + {per_slice}, {count})" if self.slices > 1 else count)
            first, stride = k.let(ctype, f"{begin} + ({ctype}){row}"), str(self.subgroup)
        else:
            first = k.let(ctype, f"{part} * {self.subgroup} + {row}")
            stop = k.let(ctype, f"{inside} ? {count} : 0") if inside else count
            stride = sizes(self.slices * self.subgroup)
        self._variables(k, "total", fold)
        hop = k.let(ctype, f"{_BLOCK} * {stride}")
        with k.block(f"for ({ctype} block = {first}; block < {stop}; block += {hop})"):
            self._variables(k, "little", fold)
            end = k.let(ctype, f"min(block + {hop}, {stop})")
            unrolled = self.dialect.unrolled.format(n=_UNROLLED)
            with k.block(f"{unrolled}\nfor ({ctype} step = block; step < {end}; step += {stride})"):
                self._step(k, fold, body, starts, extra)
            with each_lane(k, self.count):
                self._into(k, "total", fold, self._lane(fold, "little"))

    def _step(self, k: CBuilder, fold: Fold, body: Body, starts: list[str], extra: dict[str, DType]) -> None:
        """One packet of each input, its elements folded into `little`."""
        at, places = self._places(k, starts)
        end = self.sizes(self.inner.size) if self.inner.size % self.count else None
        moving = [n for n, stride in enumerate(self.inner.strides) if stride]
        for n in moving:
            k.say(f"{packet_type(k, self.dtypes[n], self.count)} p{n}")
            fill(k, self.dtypes[n], self.count, f"p{n}", f"a{n}", places[n], end)
        for pointer, dtype in extra.items():
            k.say(f"{packet_type(k, dtype, self.count)} q{pointer}")

        def read(n: int) -> Value:
            return (
                lane_of(k, self.dtypes[n], f"p{n}")
                if n in moving
                else element_at(k, self.dtypes[n], f"a{n}", places[n])
            )

        with each_lane(k, self.count):
            value, stored = body(k, read)
            for shown, pointer in stored:
                set_lane(k, f"q{pointer}", shown)
            element = fold.begin(k, value)
            if end is not None and self.along:
                inside = k.truth(f"({at} + {LANE} < {end})")
                element = k.select(inside, element, k.literal(fold.start, fold.accumulated))
            self._into(k, "little", fold, element)
        for pointer, dtype in extra.items():
            drain(k, dtype, self.count, f"q{pointer}", pointer, places[-1], end)

    def _places(self, k: CBuilder, starts: list[str]) -> tuple[str, list[str]]:
        """A step's place in the innermost dimension; and its places per input and for the loop's own shape."""
        sizes, ctype, index, at = self.sizes, self.sizes.ctype, "step", "0"
        if self.along:
            chunk = "step"
            if self.reduced:
                n = sizes(self.chunks)
                index = k.let(ctype, f"step / {n}")
                chunk = k.let(ctype, f"step - {index} * {n}")
            at = k.let(ctype, f"{chunk} * {self.count}")
        more = offsets(decomposed(k, ctype, index, self.reduced, sizes), self.reduced, len(self.dtypes), sizes)
        places = []
        for start, further, move in zip(starts, more, (*self.inner.strides, self.inner.whole), strict=True):
            terms = [start, further, *([at] if self.along and move else [])]
            places.append(k.let(ctype, " + ".join(t for t in terms if t != "0") or "0"))
        return at, places

    # What is folded: an array with an element for each lane, and a second one for imaginary parts

    def _variables(self, k: CBuilder, name: str, fold: Fold) -> None:
        start, scalar = k.literal(fold.start, fold.accumulated), self.dialect.types[fold.accumulated]
        parts = {name: start.text, **({f"{name}_imag": start.imag} if start.imag else {})}
        for part in parts:
            k.say(f"{scalar} {part}[{self.count}]")
        with each_lane(k, self.count):
            k.lines += [f"{part}[{LANE}] = {text};" for part, text in parts.items()]

    def _lane(self, fold: Fold, name: str, lane: str = LANE) -> Value:
        is_complex = fold.accumulated.is_complex
        return Value(fold.accumulated, f"{name}[{lane}]", f"{name}_imag[{lane}]" if is_complex else "")

    def _into(self, k: CBuilder, name: str, fold: Fold, element: Value) -> None:
        own = self._lane(fold, name)
        k.assign(own, fold.combine(k, own, element))

    def _store_lanes(
        self, k: CBuilder, fold: Fold, totals: list[Value], dtype: DType, result: str, places: tuple[str, str],
        ends: bool,
    ) -> None:  # fmt: skip
        """Lane by lane. `places`: in memory, and among the results, beyond which the last packet may go."""
        for n, value in enumerate(totals):
            if self.subgroup > 1:
                k.assign(self._lane(fold, "total", str(n)), value)
        k.say(f"{packet_type(k, dtype, self.count)} made")
        with each_lane(k, self.count):
            total = self._lane(fold, "total")
            set_lane(k, "made", fold.end(k, total) if ends else total)
        where, place = places
        parts = 2 if dtype.is_complex else 1
        end = f"if ({place} + {LANE} / {parts} < {self.sizes(self.results)}) " if self.inner.size % self.count else ""
        with each_lane(k, self.count * parts):
            k.say(f"{end}{result}[{parts} * ({where}) + {LANE}] = made.lane[{LANE}]")


def _folded(k: CBuilder, fold: Fold, values: list[Value]) -> Value:
    """Several as one; their number is a power of two."""
    while len(values) > 1:
        values = [fold.combine(k, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def _power_of_two(most: int) -> int:
    """The largest that is not more."""
    return 1 << max(0, most.bit_length() - 1)


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
    shown = [dtype for n, dtype in enumerate(outputs) if n != place]
    writer = _TreeWriter(dialect, target, shape, axes, inputs.shapes, inputs.dtypes, shown, fold.accumulated)
    if writer.slices > 1:
        outputs[place] = fold.accumulated
    kernel = writer.write(fold, body, outputs, f"b{place}", ends=writer.slices == 1)
    return ReductionStages(kernel, fold, writer.slices, writer.results)


def second_stage(of: ReductionStages, dialect: Dialect, target: Target) -> Kernel:
    """The kernel that folds partial results, a row per slice, into the results."""
    dtype = of.fold.accumulated
    shape = (of.slices, of.results)
    writer = _TreeWriter(dialect, target, shape, (0,), (shape,), (dtype,), (dtype,), dtype, whole=True)
    return writer.write(of.fold, lambda k, read: (read(0), []), [of.fold.result], "b0", ends=True)


def _fold_in_subgroup(
    k: CBuilder,
    fold: Fold,
    totals: Sequence[Value],
    subgroup: int,
    store: Callable[[list[Value]], None],
    across: int = 1,
) -> None:
    """Fold the values of a subgroup's threads, whose number is a power of two; the first of them stores the result. A
    block has `across` subgroups, whose threads take turns: the next thread of a subgroup is so many threads on."""
    scalar = k.dialect.types[fold.accumulated]
    names = ["shared", *(["shared_imag"] if fold.accumulated.is_complex else [])]
    mine = k.let("int", k.dialect.local_id)
    group = subgroup * across

    def at(number: int, place: str) -> Value:
        texts = [k.let(scalar, f"{name}[{place} + {number * group}]") for name in names]
        return Value(fold.accumulated, texts[0], texts[1] if texts[1:] else "")

    def put(number: int, value: Value) -> None:
        for name, text in zip(names, (value.text, value.imag), strict=False):
            k.say(f"{name}[{mine} + {number * group}] = {text}")

    for n, total in enumerate(totals):
        put(n, total)
    k.barrier()
    with k.block(f"for (int span = {group // 2}; span >= {across}; span /= 2)"):
        with k.block(f"if ({mine} < span)"):
            for n in range(len(totals)):
                put(n, fold.combine(k, at(n, mine), at(n, f"{mine} + span")))
        k.barrier()
    with k.block(f"if ({mine} < {across})"):
        store([at(n, mine) for n in range(len(totals))])
    for name in names:
        k.shared(scalar, name, len(totals) * group)
