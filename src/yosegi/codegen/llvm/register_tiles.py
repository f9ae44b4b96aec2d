"""The innermost part of a product: a tile of the result, in registers.

A tile is some rows high and some vectors wide. Each step along the sum loads one element of every row, in all lanes,
and one row of vectors, and adds their products to the tile's registers. Where the operands lie is data, so that one
function serves packed operands and operands as they are. Each size of tile is an object of its own, which is made when
a product first needs it: most need two or three of them, and all products share them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType
from ..scalar.value import Value
from .builder import LlvmBuilder
from .integers import Multiples, mul, shifted
from .ir import Function, Module
from .load_store import load, repeated, store
from .nest import VectorTarget

LINE: Final = 64
"""Bytes of a cache line."""
PARAMETERS: Final = (
    ("ptr", "a"), ("i64", "a_row"), ("i64", "a_step"), ("ptr", "b"), ("i64", "b_step"), ("i64", "steps"),
    ("ptr", "before"), ("i64", "before_row"), ("ptr", "out"), ("i64", "out_row"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TileShape:
    """How large tiles are at most, and how operands are packed for them."""

    rows: int
    """Groups of lines of the left operand."""
    vectors: int
    lanes: int
    step_bytes: int
    """Bytes of a packed step of one line or column."""
    lines: int = 1
    """Lines of a group."""
    step: int = 1
    """Numbers of a sum that are multiplied in one step."""

    @property
    def height(self) -> int:
        """Lines of a tile."""
        return self.rows * self.lines

    @property
    def columns(self) -> int:
        """Elements in a row."""
        return self.vectors * self.lanes

    @property
    def packs_both(self) -> bool:
        """True if tiles cannot read operands where they lie."""
        return self.step > 1

    @property
    def count(self) -> int:
        """How many sizes there are, up to the largest."""
        return self.rows * self.vectors

    def number(self, rows: int, vectors: int) -> int:
        """The number of a size."""
        return (vectors - 1) * self.rows + rows - 1


def tile_shape(target: VectorTarget, dtype: DType) -> TileShape:
    """The largest tile that leaves registers for the operands.

    The wider it is, the more is done with an element of a row once it is loaded: of 32 registers, nine rows of three
    vectors are faster than fourteen of two.
    """
    vectors = 2 if target.registers < 32 else 3 if target.vector_bytes > 16 else 4
    rows, lanes = (target.registers - vectors - 2) // vectors, target.vector_bytes // dtype.itemsize
    return TileShape(rows, vectors, lanes, dtype.itemsize)


def tile_name(rows: int, vectors: int) -> str:
    """The name of the function for one size of tile."""
    return f"tile_{rows}_{vectors}"


def tile_source(target: VectorTarget, dtype: DType, rows: int, vectors: int) -> str:
    """The module of one size of tile: `tile_…(a, a_row, a_step, b, b_step, steps, before, before_row, out, out_row)`.

    The sums of a tile, added to what is at `before`, go to `out`; that may be the same. The strides are in bytes.
    """
    module = Module()
    code = module.function(tile_name(rows, vectors), PARAMETERS)
    k = LlvmBuilder(code, target.vector_bytes // dtype.itemsize)
    size = target.vector_bytes
    offsets = Multiples(code, "%a_row", rows)
    places = [(row, str(v * size)) for row in range(rows) for v in range(vectors)]
    for row, place in places:
        ask_for(code, shifted(code, _line(code, "out", row), place))
    carried = [("ptr", "%a"), ("ptr", "%b"), *zero_sums(k, dtype, rows, vectors)]
    with code.loop(0, "%steps", carried=carried) as loop:
        a, b, *sums = loop.values
        made = step_of_sums(k, dtype, lambda n: shifted(code, a, offsets[n]), b, sums, vectors)
        loop.carry(shifted(code, a, "%a_step"), shifted(code, b, "%b_step"), *made)
    for (row, place), text in zip(places, loop.values[2:], strict=True):
        before = load(k, dtype, shifted(code, _line(code, "before", row), place))
        store(k, k.arithmetic("+", Value(dtype, text), before), shifted(code, _line(code, "out", row), place))
    code.ret()
    return module.text(target.attributes)


def zero_sums(k: LlvmBuilder, dtype: DType, rows: int, vectors: int) -> list[tuple[str, str]]:
    """The sums of a tile before its first step, as a loop carries them: row by row."""
    return [(k.type(dtype), "zeroinitializer")] * (rows * vectors)


def step_of_sums(
    k: LlvmBuilder, dtype: DType, row: Callable[[int], str], columns: str, sums: Sequence[str], vectors: int
) -> list[str]:
    """The sums of a tile with a step more: an element of each row, whose address `row` gives, times the vectors of
    columns."""
    size = k.width * dtype.itemsize
    right = [load(k, dtype, shifted(k.code, columns, str(v * size))) for v in range(vectors)]
    made = []
    for n in range(len(sums) // vectors):
        element = repeated(k, dtype, row(n))
        for v, vector in enumerate(right):
            made.append(k.muladd(element, vector, Value(dtype, sums[n * vectors + v])).text)
    return made


def ask_for(code: Function, pointer: str, *, to_read: bool = False) -> None:
    """Have a cache line fetched that will be written, or, to the second cache, one that will be read. Any address will
    do."""
    code.module.declarations.add("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
    kind = "i32 0, i32 2" if to_read else "i32 1, i32 3"
    code.do(f"call void @llvm.prefetch.p0(ptr {pointer}, {kind}, i32 1)")


def _line(code: Function, name: str, row: int) -> str:
    return shifted(code, f"%{name}", mul(code, f"%{name}_row", row))
