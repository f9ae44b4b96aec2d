"""Matrices times a few vectors, for matrices whose rows, or whose columns, are contiguous.

`rows` computes x·V − y·W and the sums of the squares of x's rows. The sums of a row are kept in the lanes of vector
registers, which are added up in the end. `columns` subtracts x·V from a result, some columns of x at a time.
The vectors lie one after the other; so do the results.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import float32
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, least, mul, shifted, sub
from .ir import Module
from .lanes import sum_of_lanes
from .load_store import lanes_below, load, store
from .nest import VectorTarget

VECTORS: Final = 8
ROWS: Final = 2
"""Rows of a unit of work: they share what is loaded of the vectors."""
BLOCK: Final = 256
"""Rows of a unit of work where columns are contiguous: their results stay in the first cache."""
_COLUMNS: Final = 4  # that are added to the results at once
_SIZES: Final = ("x_row", "x_length", "y_row", "y_length", "rows")
"""Bytes from one row (column) to the next, numbers in a row (column), and how many rows there are in all."""


def projection_source(target: VectorTarget) -> str:
    """The module, with `rows` of x, V, y, W and a result of shape (VECTORS + 1, rows), and `columns` of x, V and such a
    result."""
    module = Module(converts_halves=target.converts_halves)
    _write_rows(module, target)
    _write_columns(module, target)
    return module.text(target.attributes)


def _begun(
    module: Module, name: str, target: VectorTarget, arrays: int
) -> tuple[LlvmBuilder, dict[str, str], list[str]]:
    """A function's builder, its sizes, and its arrays."""
    given = KernelArguments(module.function(name, PARAMETERS), _SIZES)
    size = dict(zip(_SIZES, given.all_sizes(), strict=True))
    return LlvmBuilder(given.code, target.vector_bytes // 4), size, given.arrays(arrays)


def _write_rows(module: Module, target: VectorTarget) -> None:
    k, size, (x, v, y, w, out) = _begun(module, "rows", target, 5)
    code = k.code
    last = sub(code, size["rows"], "1")
    with code.loop("%low", "%high") as unit:
        rows = [least(code, add(code, mul(code, unit.index, ROWS), str(n)), last) for n in range(ROWS)]
        zero = [k.splat(float32, "0.0").text] * (ROWS * VECTORS)
        squares = zero[:ROWS]
        places = [shifted(code, x, mul(code, row, size["x_row"])) for row in rows]
        *sums, s0, s1 = _added(k, places, v, size["x_length"], [*zero, *squares], squares=True)
        places = [shifted(code, y, mul(code, row, size["y_row"])) for row in rows]
        sums = _added(k, places, w, size["y_length"], sums, squares=False)
        for n, row in enumerate(rows):
            own = [*sums[n * VECTORS : (n + 1) * VECTORS], (s0, s1)[n]]
            for place, total in enumerate(own):
                at = mul(code, add(code, mul(code, size["rows"], place), row), 4)
                store(k.at_width(1), sum_of_lanes(k, Value(float32, total)), shifted(code, out, at))
    code.ret()


def _write_columns(module: Module, target: VectorTarget) -> None:
    k, size, (x, v, out) = _begun(module, "columns", target, 3)
    code = k.code
    length = size["x_length"]
    whole = code.let(f"and i64 {length}, {-_COLUMNS}")
    with code.loop("%low", "%high") as unit:
        first = mul(code, unit.index, BLOCK)
        count = least(code, sub(code, size["rows"], first), BLOCK)
        for start, end, columns in (("0", whole, _COLUMNS), (whole, length, 1)):
            with code.loop(start, end, columns) as loop:
                from_ = [add(code, loop.index, str(n)) for n in range(columns)]
                _write_block(k, size, (x, v, out), first, count, from_)
    code.ret()


def _write_block(
    k: LlvmBuilder, size: dict[str, str], arrays: tuple[str, str, str], first: str, count: str, columns: list[str]
) -> None:
    """Write the product of columns and random vectors for the `count` rows of a block."""
    code = k.code
    x, v, out = arrays
    starts = [shifted(code, x, add(code, mul(code, c, size["x_row"]), mul(code, first, 4))) for c in columns]
    ends = [shifted(code, out, mul(code, add(code, mul(code, size["rows"], n), first), 4)) for n in range(VECTORS)]
    weights = [
        [shifted(code, v, mul(code, add(code, mul(code, size["x_length"], n), c), 4)) for c in columns]
        for n in range(VECTORS)
    ]
    splats = [[code.let(f"fneg float {code.let(f'load float, ptr {w}, align 4')}") for w in row] for row in weights]
    whole = code.let(f"and i64 {count}, {-k.width}")

    def step(index: str, mask: str | None) -> None:
        at = mul(code, index, 4)
        own = [load(k, float32, shifted(code, s, at), mask) for s in starts]
        for end, row in zip(ends, splats, strict=True):
            place = shifted(code, end, at)
            total = load(k, float32, place, mask)
            for o, w in zip(own, row, strict=True):
                total = k.fma(o, k.splat(float32, w), total)
            store(k, total, place, mask)

    with code.loop(0, whole, k.width) as rows:
        step(rows.index, None)
    rest = sub(code, count, whole)
    with code.when(code.let(f"icmp sgt i64 {rest}, 0")):
        step(whole, lanes_below(k, rest))


def _added(k: LlvmBuilder, rows: list[str], vectors: str, length: str, sums: list[str], *, squares: bool) -> list[str]:
    """The sums with what the rows give on the vectors; what is not the first pair of operands is subtracted."""
    code, kind = k.code, k.type(float32)
    whole = code.let(f"and i64 {length}, {-k.width}")
    apart = mul(code, length, 4)

    def step(index: str, sums: tuple[str, ...], mask: str | None) -> list[str]:
        at = mul(code, index, 4)
        own = [load(k, float32, shifted(code, row, at), mask) for row in rows]
        made = [Value(float32, s) for s in sums]
        signed = own if squares else [k.negated(o) for o in own]
        for n in range(VECTORS):
            weight = load(k, float32, shifted(code, shifted(code, vectors, mul(code, apart, n)), at), mask)
            for row in range(len(rows)):
                made[row * VECTORS + n] = k.fma(signed[row], weight, made[row * VECTORS + n])
        if squares:
            for n, x in enumerate(own, len(rows) * VECTORS):
                made[n] = k.fma(x, x, made[n])
        return [total.text for total in made]

    with code.loop(0, whole, k.width, carried=[(kind, s) for s in sums]) as loop:
        loop.carry(*step(loop.index, loop.values, None))
    rest = sub(code, length, whole)
    with code.when(code.let(f"icmp sgt i64 {rest}, 0"), [(kind, s) for s in loop.values]) as branch:
        branch.give(*step(whole, loop.values, lanes_below(k, rest)))
    return list(branch.values)
