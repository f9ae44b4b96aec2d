"""Kernels that read, replace or add to the elements at indices along one axis, as LLVM IR.

Arrays have three dimensions here: everything before the indexed axis, the axis, and everything behind it, a row. Axes
that are neighbours are one axis.
Reading is cut by indices. Writing is cut by places along the axis: each part of the work reads all indices, and writes
its own places. So values for one place are taken in the order of their indices, by any number of threads. An index out
of range reads and writes nothing, and sets a flag.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from math import prod

import numpy as np

from ..._tensor.dtype import DType, bool_
from ..._tensor.node import Call
from ..._tensor.role import Indexing
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, div, least, most, mul, shifted, sub
from .ir import Function, Module
from .load_store import lanes_below, load, store
from .nest import VectorTarget


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """The sizes of a kernel."""

    before: int
    """Elements of the dimensions before the axis."""
    length: int
    """Places along the axis."""
    behind: int
    """Elements of a row."""
    count: int
    """Indices."""

    @classmethod
    def of(cls, call: Call) -> IndexSizes | None:
        """The sizes for a call; `None` if there is no kernel for it."""
        role = call.op.role
        if not isinstance(role, Indexing):
            return None
        x, at = call.inputs[0], call.attrs["at"]
        indices = call.inputs[1 if role is Indexing.READ else 2 :]
        end = at + len(indices)
        if call.attrs["axes"] != tuple(range(at, end)):
            return None
        places = np.broadcast_shapes(*[i.shape for i in indices])
        if role is not Indexing.READ and call.inputs[1].shape != (*x.shape[:at], *places, *x.shape[end:]):
            return None
        dtype = call.spec.dtype
        if role is Indexing.ADD and (dtype.is_half or dtype.is_complex or dtype is bool_):
            return None
        return cls(prod(x.shape[:at]), prod(x.shape[at:end]), prod(x.shape[end:]), prod(places))

    @property
    def words(self) -> list[int]:
        """The sizes in the order of the kernel's."""
        return list(astuple(self))

    def units(self, does: Indexing) -> int:
        """The units of work: results of all indices, or places along the axis."""
        return self.before * self.count if does is Indexing.READ else self.length


def index_source(does: Indexing, dtype: DType, index: DType, target: VectorTarget) -> str:
    """The module of a kernel: of the indexed array, the values unless it reads, the indices, the flag and the result.

    The arrays are contiguous.
    """
    module = Module()
    code = module.function("kernel", PARAMETERS)
    given = KernelArguments(code, ("before", "length", "behind", "count"))
    arrays = given.arrays(4 if does is Indexing.READ else 5)
    writer = _IndexKernel(code, dtype, index, target, given, arrays[-3], arrays[-2])
    if does is Indexing.READ:
        writer.read(arrays[0], arrays[-1])
    else:
        writer.write(arrays[0], arrays[1], arrays[-1], adds=does is Indexing.ADD)
    code.ret()
    return module.text(target.attributes)


class _IndexKernel:
    """Writes one kernel."""

    def __init__(
        self, code: Function, dtype: DType, index: DType, target: VectorTarget, given: KernelArguments, indices: str,
        flag: str,
    ) -> None:  # fmt: skip
        self.code, self.dtype, self.index, self.indices, self.flag = code, dtype, index, indices, flag
        self.lanes = target.vector_bytes // dtype.itemsize
        self.before, self.length, self.behind, self.count = given.all_sizes()
        self.row = mul(code, self.behind, dtype.itemsize)
        """The bytes of a row."""
        self.is_single = code.let(f"icmp eq i64 {self.behind}, 1")

    def read(self, x: str, out: str) -> None:
        """The rows at the indices; the units of work are the rows of the result."""
        code = self.code
        last = add(code, div(code, sub(code, "%high", "1"), self.count), "1")
        with code.loop(div(code, "%low", self.count), last) as outer:
            first = mul(code, outer.index, self.count)
            low, high = most(code, sub(code, "%low", first), "0"), least(code, sub(code, "%high", first), self.count)
            array = shifted(code, x, mul(code, mul(code, outer.index, self.length), self.row))
            there = shifted(code, out, mul(code, first, self.row))
            with code.loop(low, high) as each, self._at(each.index) as place:
                source, target = (
                    shifted(code, base, mul(code, n, self.row)) for base, n in ((array, place), (there, each.index))
                )
                self._copied(source, target)

    def write(self, x: str, values: str, out: str, *, adds: bool) -> None:
        """The array with rows replaced, or added to; the units of work are places along the axis."""
        code = self.code
        whole, part = mul(code, self.length, self.row), mul(code, self.count, self.row)
        start, size = mul(code, "%low", self.row), mul(code, sub(code, "%high", "%low"), self.row)
        with code.loop(0, self.before) as outer:
            offset = add(code, mul(code, outer.index, whole), start)
            self._bytes_copied(shifted(code, x, offset), shifted(code, out, offset), size)
        with code.loop(0, self.count) as each, self._at(each.index) as place:
            is_own = code.let(f"icmp ult i64 {sub(code, place, '%low')}, {sub(code, '%high', '%low')}")
            with code.when(is_own), code.loop(0, self.before) as outer:
                source = add(code, mul(code, outer.index, part), mul(code, each.index, self.row))
                target = add(code, mul(code, outer.index, whole), mul(code, place, self.row))
                act = self._added if adds else self._copied
                act(shifted(code, values, source), shifted(code, out, target))

    @contextmanager
    def _at(self, number: str) -> Iterator[str]:
        """The place that an index stands for, where it is in range."""
        code, bits = self.code, self.index.bits
        place = code.let(f"load i{bits}, ptr {code.let(f'getelementptr i{bits}, ptr {self.indices}, i64 {number}')}")
        signed = self.index.kind == "signed integer"
        if bits < 64:
            place = code.let(f"{'sext' if signed else 'zext'} i{bits} {place} to i64")
        if signed:
            negative = code.let(f"icmp slt i64 {place}, 0")
            place = code.let(f"select i1 {negative}, i64 {add(code, place, self.length)}, i64 {place}")
        inside = code.let(f"icmp ult i64 {place}, {self.length}")
        with code.when(code.let(f"xor i1 {inside}, true")):
            code.do(f"store i8 1, ptr {self.flag}")
        with code.when(inside):
            yield place

    def _copied(self, source: str, target: str) -> None:
        """A row, of one element or of many."""
        code, kind = self.code, f"i{8 * self.dtype.itemsize}"
        with code.when(self.is_single):
            code.do(f"store {kind} {code.let(f'load {kind}, ptr {source}, align 1')}, ptr {target}, align 1")
        with code.when(code.let(f"xor i1 {self.is_single}, true")):
            self._bytes_copied(source, target, self.row)

    def _bytes_copied(self, source: str, target: str, size: str) -> None:
        self.code.call("ptr", "memcpy", ["ptr", "ptr", "i64"], [target, source, size])

    def _added(self, source: str, target: str) -> None:
        """A row added to another, in vectors of which the last one may be a part."""
        code, item = self.code, self.dtype.itemsize
        k, one = LlvmBuilder(code, self.lanes), LlvmBuilder(code, 1)
        whole = sub(code, self.behind, code.let(f"urem i64 {self.behind}, {self.lanes}"))

        def added(k: LlvmBuilder, start: str, mask: str | None = None) -> None:
            at, to = (shifted(code, base, mul(code, start, item)) for base in (source, target))
            total = k.arithmetic("+", load(k, self.dtype, to, mask), load(k, self.dtype, at, mask))
            store(k, total, to, mask)

        with code.when(self.is_single):
            added(one, "0")
        with code.when(code.let(f"xor i1 {self.is_single}, true")):
            with code.loop(0, whole, self.lanes) as column:
                added(k, column.index)
            with code.when(code.let(f"icmp ne i64 {whole}, {self.behind}")):
                added(k, whole, lanes_below(k, sub(code, self.behind, whole)))
