"""Right operands of products, copied to where tiles read them fast: in panels as wide as a tile, row behind row, so
that a tile reads one line after another."""

from __future__ import annotations

from enum import Enum
from typing import Final

from ..._tensor.dtype import DType
from .builder import LlvmBuilder
from .integers import add, least, mul, shifted, sub
from .ir import Function, Module
from .lanes import transposed
from .load_store import lanes_below, load, store
from .nest import VectorTarget
from .register_tiles import tile_shape

PARAMETERS: Final = (
    ("ptr", "from"), ("i64", "across"), ("i64", "along"), ("i64", "rows"), ("i64", "columns"), ("ptr", "to"),
    ("i64", "width"),
)  # fmt: skip


class MatrixOrder(Enum):
    """The order of a matrix in memory."""

    ROWS = "rows"
    """Rows are contiguous."""
    COLUMNS = "columns"
    """Columns are contiguous."""
    APART = "apart"
    """Neither rows nor columns are contiguous."""


def order_of(across: int, along: int, rows: int, lanes: int, item: int) -> MatrixOrder:
    """How an operand with so many bytes from one row to the next, and along a row, lies."""
    if along == item:
        return MatrixOrder.ROWS
    return MatrixOrder.COLUMNS if across == item and rows >= lanes else MatrixOrder.APART


def panel_source(target: VectorTarget, dtype: DType, order: MatrixOrder) -> str:
    """The module of `panel(from, across, along, rows, columns, to, width)`: a panel, to rows of `width` elements, which
    are whole vectors. Columns that are not there get any numbers: what comes of them is not stored."""
    module = Module()
    code = module.function("panel", PARAMETERS)
    if order is MatrixOrder.ROWS:
        _copied_rows(code, dtype, target)
    elif order is MatrixOrder.COLUMNS:
        _transposed_columns(code, dtype, target)
    else:
        _single_elements(code, dtype)
    code.ret()
    return module.text(target.attributes)


def _copied_rows(code: Function, dtype: DType, target: VectorTarget) -> None:
    shape = tile_shape(target, dtype)
    k = LlvmBuilder(code, shape.lanes)
    full = code.let(f"icmp eq i64 %columns, {shape.columns}")
    offsets = [str(v * target.vector_bytes) for v in range(shape.vectors)]
    with code.when(full), code.loop(0, "%rows", carried=[("ptr", "%from"), ("ptr", "%to")]) as row:
        here, there = row.values
        for offset in offsets:
            store(k, load(k, dtype, shifted(code, here, offset)), shifted(code, there, offset))
        row.carry(shifted(code, here, "%across"), shifted(code, there, str(shape.columns * dtype.itemsize)))
    part = code.let(f"xor i1 {full}, true")
    with code.when(part), code.loop(0, "%rows", carried=[("ptr", "%from"), ("ptr", "%to")]) as row:
        here, there = row.values
        with code.loop(0, "%width", shape.lanes) as loop:
            offset = mul(code, loop.index, dtype.itemsize)
            mask = lanes_below(k, sub(code, "%columns", loop.index))
            store(k, load(k, dtype, shifted(code, here, offset), mask), shifted(code, there, offset))
        row.carry(shifted(code, here, "%across"), shifted(code, there, mul(code, "%width", dtype.itemsize)))


def _transposed_columns(code: Function, dtype: DType, target: VectorTarget) -> None:
    """Square blocks, transposed in registers; the last begins early."""
    lanes, item = target.vector_bytes // dtype.itemsize, dtype.itemsize
    k = LlvmBuilder(code, lanes)
    line = mul(code, "%width", item)
    last_column, last_block = sub(code, "%columns", "1"), sub(code, "%rows", str(lanes))
    with code.loop(0, "%width", lanes) as group:
        columns = [least(code, add(code, group.index, str(i)), last_column) for i in range(lanes)]
        starts = [shifted(code, "%from", mul(code, c, "%along")) for c in columns]
        target_line = shifted(code, "%to", mul(code, group.index, item))
        with code.loop(0, "%rows", lanes) as loop:
            first = least(code, loop.index, last_block)
            offset = mul(code, first, item)
            vectors = [load(k, dtype, shifted(code, s, offset)) for s in starts]
            there = shifted(code, target_line, mul(code, first, line))
            for i, vector in enumerate(transposed(k, vectors)):
                store(k, vector, shifted(code, there, mul(code, line, i)))


def _single_elements(code: Function, dtype: DType) -> None:
    k, item = LlvmBuilder(code, 1), dtype.itemsize
    line = mul(code, "%width", item)
    with code.loop(0, "%columns") as column:
        here = shifted(code, "%from", mul(code, column.index, "%along"))
        there = shifted(code, "%to", mul(code, column.index, item))
        with code.loop(0, "%rows", carried=[("ptr", here), ("ptr", there)]) as loop:
            here, there = loop.values
            store(k, load(k, dtype, here), there)
            loop.carry(shifted(code, here, "%across"), shifted(code, there, line))
