"""The innermost part of a product: a tile of the result, in registers.

A tile is some rows high and some vectors wide. Each step along the sum loads one element of every row, in all lanes,
and one row of vectors, and adds their products to the tile's registers. Where the operands lie is data, so that one
function serves packed operands and operands as they are. There is code for every height up to the highest: rows are
dealt out evenly, and no tile computes rows that are not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...dtype import DType
from ..value import Value
from .builder import LlvmBuilder
from .integers import mul, shifted
from .ir import Function, Module
from .memory import load, repeated, store
from .nest import Target

LINE: Final = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """How large tiles are."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        """Elements in a row."""
        return self.vectors * self.lanes


def tile_shape(target: Target, dtype: DType, registers: int) -> TileShape:
    """The largest tile that leaves registers for the operands: each of its rows is loaded once for all its vectors."""
    lanes = target.vector_bytes // dtype.itemsize
    vectors = 4 if registers >= 32 and target.vector_bytes == 16 else 2
    return TileShape((registers - vectors - 2) // vectors, vectors, lanes)


def write_tile(module: Module, dtype: DType, shape: TileShape) -> None:
    """`tile(a, a_row, a_step, b, b_step, steps, height, before, before_row, out, out_row)`.

    The sums of a tile, added to what is at `before`, go to `out`; that may be the same. The strides
    are in bytes.
    """
    code = module.function("tile", [
        ("ptr", "a"), ("i64", "a_row"), ("i64", "a_step"), ("ptr", "b"), ("i64", "b_step"), ("i64", "steps"),
        ("i64", "height"), ("ptr", "before"), ("i64", "before_row"), ("ptr", "out"), ("i64", "out_row"),
    ])  # fmt: skip
    labels = [code.fresh("high") for _ in range(shape.rows)]
    cases = " ".join(f"i64 {n + 1}, label %{label}" for n, label in enumerate(labels[:-1]))
    code.do(f"switch i64 %height, label %{labels[-1]} [ {cases} ]")
    for n, label in enumerate(labels):
        code.begin(label)
        _write_height(code, dtype, shape, n + 1)
        code.ret()


def _write_height(code: Function, dtype: DType, shape: TileShape, rows: int) -> None:
    k = LlvmBuilder(code, shape.lanes)
    kind, size = k.type(dtype), shape.lanes * dtype.itemsize
    # Odd multiples are computed once; the even ones are part of the processor's addresses, if written in the loop.
    odd = {n: _opaque(code, mul(code, "%a_row", n)) for n in range(1, rows, 2)}
    places = [(row, str(v * size)) for row in range(rows) for v in range(shape.vectors)]
    for row, place in places:
        ask_for(code, shifted(code, _line(code, "out", row), place), writes=True, near=3)
    carried = [("ptr", "%a"), ("ptr", "%b"), *[(kind, "zeroinitializer")] * len(places)]
    with code.loop(0, "%steps", carried=carried) as loop:
        a, b, *sums = loop.values
        columns = [load(k, dtype, shifted(code, b, str(v * size))) for v in range(shape.vectors)]
        made = []
        for row in range(rows):
            element = repeated(k, dtype, shifted(code, a, _multiple(code, odd, row)))
            for v, column in enumerate(columns):
                before = Value(dtype, sums[row * shape.vectors + v])
                made.append(k.muladd(element, column, before).text)
        loop.carry(shifted(code, a, "%a_step"), shifted(code, b, "%b_step"), *made)
    for (row, place), text in zip(places, loop.values[2:], strict=True):
        before = load(k, dtype, shifted(code, _line(code, "before", row), place))
        store(k, k.arithmetic("+", Value(dtype, text), before), shifted(code, _line(code, "out", row), place))


def ask_for(code: Function, pointer: str, *, writes: bool, near: int) -> None:
    """Have a cache line fetched; the nearer, the smaller the cache. Any address will do."""
    code.module.declarations.add("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    code.do(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 {int(writes)}, i32 {near}, i32 1)")


def _line(code: Function, name: str, row: int) -> str:
    return shifted(code, f"%{name}", mul(code, f"%{name}_row", row))


def _opaque(code: Function, number: str) -> str:
    """A number of which LLVM knows nothing. It would make each row's address from the one before, and such a chain of
    sums takes longer than the tile's products."""
    return code.let(f'call i64 asm "", "=r,0"(i64 {number})')


def _multiple(code: Function, odd: dict[int, str], n: int) -> str:
    if n == 0:
        return "0"
    twos = (n & -n).bit_length() - 1
    return odd[n >> twos] if not twos else code.pure(f"shl i64 {odd[n >> twos]}, {twos}")
