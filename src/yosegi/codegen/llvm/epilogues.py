"""The epilogue of a product: elementwise work on a block of its sums."""

from __future__ import annotations

from ..._tensor.dtype import DType, float32
from ..scalar.value import Value
from .bfloat16_units import BLOCK_ROW, LINES, PANEL
from .builder import LlvmBuilder
from .integers import mul, shifted, sub
from .ir import Function, Module
from .load_store import lanes_below, load, repeated, store
from .product import FusedStage, Side


def write_finish(module: Module, after: FusedStage | None, out: DType) -> None:
    """`finish(sums, height, width, out, out_row, side0, side0_row, …)`: so much of a block's sums to the result.

    Rows are so many bytes apart.
    """
    parameters = [("ptr", "sums"), ("i64", "height"), ("i64", "width"), ("ptr", "out"), ("i64", "out_row")]
    for n in range(len(after.sides) if after is not None else 0):
        parameters += [("ptr", f"side{n}"), ("i64", f"side{n}_row")]
    code = module.function("finish", parameters)
    whole = code.let(f"icmp eq i64 %width, {PANEL}")
    for condition, masked in ((whole, False), (code.let(f"xor i1 {whole}, true"), True)):
        with code.when(condition):
            _write_rows(code, after, out, masked=masked)
    code.ret()


def _write_rows(code: Function, after: FusedStage | None, out: DType, *, masked: bool) -> None:
    k = LlvmBuilder(code, LINES)
    with code.loop(0, "%height") as row, code.loop(0, "%width", LINES) as column:

        def place(name: str, dtype: DType, *, along: bool = True) -> str:
            line = shifted(code, f"%{name}", mul(code, row.index, f"%{name}_row"))
            return shifted(code, line, mul(code, column.index, dtype.itemsize)) if along else line

        mask = lanes_below(k, sub(code, "%width", column.index)) if masked else None
        sums = shifted(code, "%sums", mul(code, row.index, BLOCK_ROW))
        value = load(k, float32, shifted(code, sums, mul(code, column.index, 4)))
        if after is not None:
            sides = [_side(k, s, place(f"side{n}", s.dtype, along=s.along), mask) for n, s in enumerate(after.sides)]
            (value,) = after.function(k, value, *sides)
        store(k, k.rounded(k.convert(value, out)), place("out", out), mask)


def _side(k: LlvmBuilder, side: Side, pointer: str, mask: str | None) -> Value:
    return load(k, side.dtype, pointer, mask) if side.along else repeated(k, side.dtype, pointer)
