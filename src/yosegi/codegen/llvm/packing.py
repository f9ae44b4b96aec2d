"""Operands of a product, copied to where its tiles read them fast.

The right one in panels as wide as a tile, row behind row, so that a tile reads one line after another. The left one as
it lies, row by row or column by column, but close together: tiles take single elements of it. On its way each element
can go through a function.
"""

from __future__ import annotations

from collections.abc import Callable

from ...dtype import DType
from ..value import Value
from .builder import LlvmBuilder
from .integers import add, least, most, mul, shifted, sub
from .ir import Function
from .lanes import shuffled
from .memory import lanes_below, load, store
from .tiles import TileShape

Elementwise = Callable[..., Value]
"""Takes a builder and values, gives one."""


def write_panel(
    code: Function, dtype: DType, shape: TileShape, source: str, steps: tuple[str, str], size: tuple[str, str], to: str
) -> None:
    """Copy a panel of the right operand: `size` rows and columns of it, `steps` bytes apart.

    Columns of the panel that are not there get any numbers: what comes of them is not stored.
    """
    item = str(dtype.itemsize)
    full = code.let(f"icmp eq i64 {size[1]}, {shape.columns}")
    in_rows = code.let(f"icmp eq i64 {steps[1]}, {item}")
    for condition, masked in ((f"and i1 {in_rows}, {full}", False), (f"icmp ugt i1 {in_rows}, {full}", True)):
        with code.when(code.let(condition)):
            _copied_rows(code, dtype, shape, source, steps[0], size, to, masked=masked)
    in_columns = code.let(f"icmp eq i64 {steps[0]}, {item}")
    long = code.let(f"icmp sge i64 {size[0]}, {shape.lanes}")
    turned = code.let(f"and i1 {in_columns}, {long}")
    turned = code.let(f"icmp ugt i1 {turned}, {in_rows}")
    with code.when(turned):
        _turned_columns(code, dtype, shape, source, steps[1], size, to)
    rest = code.let(f"or i1 {in_rows}, {turned}")
    with code.when(code.let(f"xor i1 {rest}, true")):
        _single_elements(code, dtype, shape, source, steps, size, to)


def _copied_rows(
    code: Function, dtype: DType, shape: TileShape, source: str, step: str, size: tuple[str, str], to: str, *,
    masked: bool,
) -> None:  # fmt: skip
    """From rows whose elements lie side by side."""
    k = LlvmBuilder(code, shape.lanes)
    wide = shape.lanes * dtype.itemsize
    masks: list[str | None] = [None] * shape.vectors
    if masked:
        left = [sub(code, size[1], str(v * shape.lanes)) for v in range(shape.vectors)]
        masks = [lanes_below(k, most(code, count, 0)) for count in left]
    with code.loop(0, size[0], carried=[("ptr", source), ("ptr", to)]) as loop:
        here, there = loop.values
        for v, mask in enumerate(masks):
            offset = str(v * wide)
            store(k, load(k, dtype, shifted(code, here, offset), mask), shifted(code, there, offset))
        loop.carry(shifted(code, here, step), shifted(code, there, str(shape.vectors * wide)))


def _turned_columns(
    code: Function, dtype: DType, shape: TileShape, source: str, step: str, size: tuple[str, str], to: str
) -> None:
    """From columns whose elements lie side by side: square blocks, turned in registers; the last begins early."""
    k = LlvmBuilder(code, shape.lanes)
    n, item = shape.lanes, dtype.itemsize
    last_column, last_block = sub(code, size[1], "1"), sub(code, size[0], str(n))
    with code.loop(0, shape.columns, n) as group:
        columns = [least(code, add(code, group.index, str(i)), last_column) for i in range(n)]
        starts = [shifted(code, source, mul(code, c, step)) for c in columns]
        target = shifted(code, to, mul(code, group.index, item))
        with code.loop(0, size[0], n) as loop:
            first = least(code, loop.index, last_block)
            offset = mul(code, first, item)
            vectors = [load(k, dtype, shifted(code, s, offset)) for s in starts]
            line = shifted(code, target, mul(code, first, shape.columns * item))
            for i, vector in enumerate(turned(k, vectors)):
                store(k, vector, shifted(code, line, str(i * shape.columns * item)))
            loop.carry()
        group.carry()


def _single_elements(
    code: Function, dtype: DType, shape: TileShape, source: str, steps: tuple[str, str], size: tuple[str, str], to: str
) -> None:
    """From anywhere."""
    k, item = LlvmBuilder(code, 1), dtype.itemsize
    with code.loop(0, size[1]) as column:
        here = shifted(code, source, mul(code, column.index, steps[1]))
        there = shifted(code, to, mul(code, column.index, item))
        with code.loop(0, size[0], carried=[("ptr", here), ("ptr", there)]) as loop:
            store(k, load(k, dtype, loop.values[0]), loop.values[1])
            here, there = loop.values
            loop.carry(shifted(code, here, steps[0]), shifted(code, there, str(shape.columns * item)))
        column.carry()


def turned(k: LlvmBuilder, rows: list[Value]) -> list[Value]:
    """A square of vectors with rows and columns exchanged, half of each at a time."""
    n, distance = k.width, k.width // 2
    while distance:
        # Of two rows that are `distance` apart, the off-diagonal blocks of that size change places.
        low = [lane if not lane & distance else n + (lane ^ distance) for lane in range(n)]
        high = [lane ^ distance if not lane & distance else n + lane for lane in range(n)]
        made = list(rows)
        for i in range(n):
            if not i & distance:
                a, b = rows[i], rows[i | distance]
                made[i], made[i | distance] = shuffled(k, a, low, b), shuffled(k, a, high, b)
        rows, distance = made, distance // 2
    return rows


def write_lines(
    code: Function, dtype: DType, lanes: int, source: str, steps: tuple[str, str], size: tuple[str, str], to: str,
    apart: str, function: Elementwise,
) -> None:  # fmt: skip
    """Copy lines of the left operand: `size` lines and elements of each, `steps` bytes apart, to lines `apart`."""
    item = str(dtype.itemsize)
    beside = code.let(f"icmp eq i64 {steps[1]}, {item}")
    for width, condition in ((lanes, beside), (1, code.let(f"xor i1 {beside}, true"))):
        k = LlvmBuilder(code, width)
        with code.when(condition), code.loop(0, size[0], carried=[("ptr", source), ("ptr", to)]) as line:
            here, there = line.values
            with code.loop(0, size[1], width) as loop:
                mask = lanes_below(k, sub(code, size[1], loop.index)) if width > 1 else None
                value = load(k, dtype, shifted(code, here, mul(code, loop.index, steps[1])), mask)
                store(k, function(k, value), shifted(code, there, mul(code, loop.index, item)), mask)
                loop.carry()
            line.carry(shifted(code, here, steps[0]), shifted(code, there, apart))
