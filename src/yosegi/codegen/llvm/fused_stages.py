"""Prologues and epilogues: elementwise work on the operands and the sums of a product.

`lines` copies rows of the left operand to where tiles read them, through whatever comes before the product. `finish`
takes a block of sums to the outputs, through whatever comes after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..._tensor.dtype import DType
from ..scalar.value import Value
from .builder import LlvmBuilder
from .integers import add, mul, shifted, sub
from .ir import Function, Module
from .load_store import lanes_below, load, repeated, store
from .nest import VectorTarget
from .product import Product, ProductJob, Side, Words

LINES: Final = (
    ("ptr", "arguments"), ("ptr", "from"), ("i64", "across"), ("i64", "along"), ("i64", "rows"), ("i64", "steps"),
    ("ptr", "to"), ("i64", "apart"), ("i64", "row"), ("i64", "step"),
)  # fmt: skip
FINISH: Final = (
    ("ptr", "arguments"), ("ptr", "sums"), ("i64", "sums_row"), ("i64", "row"), ("i64", "height"), ("i64", "column"),
    ("i64", "columns"),
)  # fmt: skip


class _Sides:
    """The further operands of a stage, at a part of the matrix: where they begin, and their strides."""

    def __init__(
        self, code: Function, sides: Sequence[Side], starts: Sequence[str], strides: Sequence[tuple[str, str]]
    ):
        self._code = code
        self._all = list(zip(sides, starts, strides, strict=True))

    def at(self, k: LlvmBuilder, row: str, column: str, mask: str | None) -> list[Value]:
        """Their values."""
        code, given = self._code, []
        for side, start, (across, along) in self._all:
            line = shifted(code, start, mul(code, row, across))
            if side.along:
                given.append(load(k, side.dtype, shifted(code, line, mul(code, column, along)), mask))
            else:
                given.append(repeated(k, side.dtype, line))
        return given


def lines_source(product: Product, target: VectorTarget) -> str:
    """The module of `lines(arguments, from, across, along, rows, steps, to, apart, row, step)`.

    Rows are copied to lines that are `apart`. What is before the product finds its sides in the job; `row` and `step`
    are where in the matrix the rows begin.
    """
    module = Module(converts_halves=target.converts_halves)
    code = module.function("lines", LINES)
    stage, dtype = product.before, product.dtype
    given_as = dtype if stage is None else stage.dtype
    beside = code.let(f"icmp eq i64 %along, {given_as.itemsize}")
    strides: list[tuple[str, str]] = []
    starts = []
    if stage is not None:
        job, words = ProductJob(code), Words(product)
        for n, side in enumerate(stage.sides):
            across, along = job.word(words.fed + 2 * n), job.word(words.fed + 2 * n + 1)
            strides.append((across, along))
            starts.append(
                shifted(code, job.array(1 + n), add(code, mul(code, "%row", across), mul(code, "%step", along)))
            )
            if side.along:
                here = code.let(f"icmp eq i64 {along}, {side.dtype.itemsize}")
                beside = code.let(f"and i1 {beside}, {here}")
    sides = _Sides(code, product.fed, starts, strides)
    lanes = target.vector_bytes // dtype.itemsize
    for width, condition in ((lanes, beside), (1, code.let(f"xor i1 {beside}, true"))):
        k = LlvmBuilder(code, width)
        with code.when(condition), code.loop(0, "%rows", carried=[("ptr", "%from"), ("ptr", "%to")]) as row:
            here, there = row.values
            with code.loop(0, "%steps", width) as loop:
                mask = lanes_below(k, sub(code, "%steps", loop.index)) if width > 1 else None
                value = load(k, given_as, shifted(code, here, mul(code, loop.index, "%along")), mask)
                if stage is not None:
                    (made,) = stage.function(k, value, *sides.at(k, row.index, loop.index, mask))
                    value = k.rounded(made)
                store(k, value, shifted(code, there, mul(code, loop.index, dtype.itemsize)), mask)
            row.carry(shifted(code, here, "%across"), shifted(code, there, "%apart"))
    code.ret()
    return module.text(target.attributes)


def finish_source(product: Product, target: VectorTarget) -> str:
    """The module of `finish(arguments, sums, sums_row, row, height, column, columns)`: a block of sums to the outputs.

    The sums may be where the outputs are.
    """
    module = Module(converts_halves=target.converts_halves)
    code = module.function("finish", FINISH)
    job, words = ProductJob(code), Words(product)
    first = product.right + 1
    side_rows = [job.word(words.sides + n) for n in range(len(product.sides))]
    sides = _Sides(
        code, product.sides,
        [_start(code, job.array(first + n), side_rows[n], side.dtype, along=side.along)
         for n, side in enumerate(product.sides)],
        [(across, str(side.dtype.itemsize)) for across, side in zip(side_rows, product.sides, strict=True)],
    )  # fmt: skip
    rows = [job.word(words.outs + n) for n in range(len(product.results))]
    outs = [_start(code, job.array(product.first_out + n), rows[n], dtype) for n, dtype in enumerate(product.results)]
    lanes = target.vector_bytes // product.dtype.itemsize
    k = LlvmBuilder(code, lanes)
    part = code.let(f"urem i64 %columns, {lanes}")
    is_whole = code.let(f"icmp eq i64 {part}, 0")
    for condition, masked in ((is_whole, False), (code.let(f"xor i1 {is_whole}, true"), True)):
        with code.when(condition), code.loop(0, "%height") as row:
            sums = shifted(code, "%sums", mul(code, row.index, "%sums_row"))
            with code.loop(0, "%columns", lanes) as column:
                mask = lanes_below(k, sub(code, "%columns", column.index)) if masked else None
                at = shifted(code, sums, mul(code, column.index, product.dtype.itemsize))
                values: Sequence[Value] = [load(k, product.dtype, at, mask)]
                if product.after is not None:
                    given = sides.at(k, row.index, column.index, mask)
                    values = [k.rounded(v) for v in product.after.function(k, *values, *given)]
                for value, out, across in zip(values, outs, rows, strict=True):
                    line = shifted(code, out, mul(code, row.index, across))
                    store(k, value, shifted(code, line, mul(code, column.index, value.dtype.itemsize)), mask)
    code.ret()
    return module.text(target.attributes)


def _start(code: Function, base: str, across: str, dtype: DType, *, along: bool = True) -> str:
    """Where in an array a block begins."""
    offset = add(code, mul(code, "%row", across), mul(code, "%column", dtype.itemsize) if along else "0")
    return shifted(code, base, offset)
