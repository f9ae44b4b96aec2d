"""`cumulative_sum` and `cumulative_prod` as kernels.

An axis is cut into chunks. A first launch folds each chunk, the totals are scanned by the same kernels, and a last
launch scans each chunk, beginning with the total of those before it. Where the axis is the innermost one, a chunk is a
tile in shared memory: a block reads it side by side, each thread scans a few neighbours, and the threads' totals are
scanned by doubling steps. Elsewhere a thread walks along its chunk, and neighbouring threads are neighbours in memory.
Sums are accumulated as reductions are: 16-bit floats in float32. Cost: elements are read twice and written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Final

from ..._tensor.dtype import DType, bool_, float32, float64, int32
from ..._tensor.node import Call, Shape
from ..._tensor.role import Scan
from ..scalar.folds import Fold
from ..scalar.value import Value
from .kernel_source import Kernel
from .packets import element_at, put_element
from .stages import KernelProgram, KernelWriter, Setting, Stage

_OF_TRUTH: Final = {"sum": "max", "prod": "min"}
_BYTES: Final = 64
"""Of neighbours that one thread scans in a tile."""
_SHORT: Final = 64
"""Elements that one thread scans alone."""
_BANKS: Final = 32
"""Elements of a tile after which one place is left free: so threads that read some places apart do not wait for each
other."""


def scan(call: Call, setting: Setting) -> KernelProgram:
    """A running sum or product along an axis."""
    x, axis, spec = call.inputs[0], call.attrs["axis"], call.spec
    accumulated = spec.dtype
    if spec.dtype.is_half:
        accumulated = float64 if x.dtype is float64 else float32
    assert isinstance(call.op.role, Scan)
    name, truth = call.op.role.combine, spec.dtype is bool_
    line = Line(prod(x.shape[:axis]), x.shape[axis], prod(x.shape[axis + 1 :]))
    fold = Fold(_OF_TRUTH[name] if truth else name, truth, int32 if truth else accumulated, spec.dtype, 0)
    made = _Scans(setting, [])
    stages = made.scan(line, fold, x.dtype, 0, 1, first=2, initial=call.attrs["include_initial"])
    return KernelProgram(tuple(stages), tuple(made.scratch))


@dataclass(frozen=True, slots=True)
class Line:
    """Elements along an axis, with those before and behind it."""

    outer: int
    n: int
    inner: int


class _Scans:
    """Writes the kernels of a scan, and of the scans of its totals."""

    def __init__(self, setting: Setting, scratch: list[tuple[Shape, DType]]) -> None:
        self.setting, self.scratch = setting, scratch

    def scan(
        self, line: Line, fold: Fold, dtype: DType, source: int, target: int, *, first: int, initial: bool
    ) -> list[Stage]:
        """The launches that scan an array of a dtype into another. Scratch is numbered from `first` on."""
        tiled = line.inner == 1 and line.n > _SHORT
        per = self._tile(fold)[0] * self.setting.target.cooperating if tiled else self._chunk(line)
        chunks = -(-line.n // per)
        write = self._in_tiles if tiled else self._in_items
        if chunks <= 1:
            return [Stage(write(line, per, 1, fold, dtype, True, initial), (source,), (target,))]
        totals = first + len(self.scratch)
        self.scratch += [((line.outer, chunks, line.inner), fold.accumulated)] * 2
        onward = Fold(fold.name, False, fold.accumulated, fold.accumulated, 0)
        folded = Stage(write(line, per, chunks, fold, dtype, False, initial), (source,), (totals,))
        rest = self.scan(Line(line.outer, chunks, line.inner), onward, fold.accumulated, totals, totals + 1,
                         first=first, initial=False)  # fmt: skip
        last = Stage(write(line, per, chunks, fold, dtype, True, initial), (source, totals + 1), (target,))
        return [folded, *rest, last]

    def _tile(self, fold: Fold) -> tuple[int, int]:
        """Neighbours that a thread scans, and the places of a tile in shared memory."""
        each = max(2, min(16, _BYTES // fold.accumulated.itemsize))
        size = each * self.setting.target.cooperating
        return each, size + size // _BANKS + 1

    def _chunk(self, line: Line) -> int:
        """Elements of a chunk that a thread walks alone: all, if there are threads enough."""
        target, items = self.setting.target, line.outer * line.inner
        chunks = max(1, min(target.units * target.group // items, line.n // _SHORT))
        return -(-line.n // chunks)

    def _in_items(
        self, line: Line, per: int, chunks: int, fold: Fold, dtype: DType, scans: bool, initial: bool
    ) -> Kernel:
        """A chunk for each thread: scanned, or folded into its total."""
        w = self._writer(line, fold, dtype, chunks, scans, initial)
        k, sizes = w.k, w.sizes
        items = line.outer * chunks * line.inner
        item = w.item(items)
        i, rest = self._split(w, item, line.inner)
        chunk, outer = self._split(w, rest, chunks)
        start = w.let(f"{chunk} * {sizes(per)}")
        stop = w.let(f"min({start} + {sizes(per)}, {sizes(line.n)})")
        total = k.variable(self._before(w, fold, chunks, scans, chunk, outer, i, line))
        extra = int(initial)
        base = w.let(f"{outer} * {sizes(line.n * line.inner)} + {i}")
        into = w.let(f"{outer} * {sizes((line.n + extra) * line.inner)} + {i}")
        if scans and initial:
            with k.block(f"if ({chunk} == 0)"):
                put_element(k, fold.end(k, total), "b0", into)
        with k.block(f"for ({w.ctype} at = {start}; at < {stop}; at++)"):
            value = element_at(k, dtype, "a0", w.let(f"{base} + at * {sizes(line.inner)}"))
            k.assign(total, fold.combine(k, total, fold.begin(k, value)))
            if scans:
                put_element(k, fold.end(k, total), "b0", w.let(f"{into} + (at + {extra}) * {sizes(line.inner)}"))
        if not scans:
            put_element(k, total, "b0", item)
        return w.kernel(items)

    def _in_tiles(
        self, line: Line, per: int, chunks: int, fold: Fold, dtype: DType, scans: bool, initial: bool
    ) -> Kernel:
        """A chunk for each block, in shared memory: scanned, or folded into its total."""
        group, (each, places) = self.setting.target.cooperating, self._tile(fold)
        w = self._writer(line, fold, dtype, chunks, scans, initial)
        k, sizes, kind = w.k, w.sizes, fold.accumulated
        w.shared(kind, "tile", places)
        w.shared(kind, "sums", group)
        own, mine = w.let(w.dialect.group_id), k.let("int", w.dialect.local_id)
        chunk, outer = self._split(w, own, chunks)
        start = w.let(f"{chunk} * {sizes(per)}")
        base = w.let(f"{outer} * {sizes(line.n)} + {start}")
        left = w.let(f"{sizes(line.n)} - {start}")
        nothing = k.literal(fold.start, kind)
        with k.each("turn", each):
            at = k.let("int", f"turn * {group} + {mine}")
            value = k.variable(nothing)
            with k.block(f"if ({at} < {left})"):
                k.assign(value, fold.begin(k, element_at(k, dtype, "a0", w.let(f"{base} + {at}"))))
            k.assign(_place(kind, "tile", _spread(at)), value)
        w.k.barrier()
        total = k.variable(nothing)
        with k.each("turn", each):
            here = _place(kind, "tile", _spread(k.let("int", f"{mine} * {each} + turn")))
            k.assign(total, fold.combine(k, total, here))
            k.assign(here, total)
        k.assign(_place(kind, "sums", mine), total)
        w.k.barrier()
        with k.block(f"for (int span = 1; span < {group}; span *= 2)"):
            earlier = k.variable(nothing)
            with k.block(f"if ({mine} >= span)"):
                k.assign(earlier, _place(kind, "sums", f"{mine} - span"))
            w.k.barrier()
            k.assign(_place(kind, "sums", mine), fold.combine(k, earlier, _place(kind, "sums", mine)))
            w.k.barrier()
        if not scans:
            with k.block(f"if ({mine} == 0)"):
                put_element(k, _place(kind, "sums", str(group - 1)), "b0", own)
            return w.kernel(line.outer * chunks * group, group)
        carry = k.variable(self._before(w, fold, chunks, scans, chunk, outer, "0", line))
        extra = int(initial)
        into = w.let(f"{outer} * {sizes(line.n + extra)} + {start}")
        if initial:
            with k.block(f"if ({mine} == 0 && {chunk} == 0)"):
                put_element(k, fold.end(k, carry), "b0", into)
        with k.block(f"if ({mine})"):
            k.assign(carry, fold.combine(k, carry, _place(kind, "sums", f"{mine} - 1")))
        with k.each("turn", each):
            here = _place(kind, "tile", _spread(k.let("int", f"{mine} * {each} + turn")))
            k.assign(here, fold.combine(k, carry, here))
        w.k.barrier()
        with k.each("turn", each):
            at = k.let("int", f"turn * {group} + {mine}")
            with k.block(f"if ({at} < {left})"):
                put_element(k, fold.end(k, _place(kind, "tile", _spread(at))), "b0", w.let(f"{into} + {extra} + {at}"))
        return w.kernel(line.outer * chunks * group, group)

    def _writer(self, line: Line, fold: Fold, dtype: DType, chunks: int, scans: bool, initial: bool) -> KernelWriter:
        elements = line.outer * (line.n + initial) * line.inner
        reads = (dtype, fold.accumulated) if scans and chunks > 1 else (dtype,)
        return KernelWriter(self.setting, elements, reads, (fold.result if scans else fold.accumulated,))

    def _before(
        self, w: KernelWriter, fold: Fold, chunks: int, scans: bool, chunk: str, outer: str, inner: str, line: Line
    ) -> Value:
        """The initial value of a chunk: the total of the chunks before it."""
        k = w.k
        start = k.literal(fold.start, fold.accumulated)
        if chunks == 1 or not scans:
            return start
        made = k.variable(start)
        with k.block(f"if ({chunk})"):
            at = w.let(f"({outer} * {w.sizes(chunks)} + {chunk} - 1) * {w.sizes(line.inner)} + {inner}")
            k.assign(made, element_at(k, fold.accumulated, "a1", at))
        return made

    def _split(self, w: KernelWriter, number: str, length: int) -> tuple[str, str]:
        """The index along the last dimension, and the number of the rest."""
        if length == 1:
            return "0", number
        rest = w.let(f"{number} / {w.sizes(length)}")
        return w.let(f"{number} - {rest} * {w.sizes(length)}"), rest


def _spread(at: str) -> str:
    return f"{at} + {at} / {_BANKS}"


def _place(dtype: DType, name: str, at: str) -> Value:
    """An element of a shared array, to be read or assigned."""
    return Value(dtype, f"{name}[{at}]", f"{name}_imag[{at}]" if dtype.is_complex else "")
