"""Random projections of a product, computed by the product's own kernel while its arrays are in the caches.

For C ≈ A·B and a few random rows L, the sums of L·C − (L·A)·B estimate the error. A left operand is projected where it
is packed, a right operand where its panels are copied, and a result where its rows are complete: each is read from the
caches once more, and never from memory.

Results have a row for each random vector. Behind those of L·C comes a row of the sums of squares of
the columns of C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..._tensor.dtype import float32, float64
from ..scalar.value import Value
from .builder import LlvmBuilder
from .integers import Multiples, add, ceil_div, choice, mul, shifted, sub
from .ir import Function, Module
from .lanes import sum_of_lanes
from .load_store import lanes_below, load, repeated, store
from .register_tiles import LINE

FOLD: Final = (
    ("ptr", "x"), ("i64", "x_row"), ("i64", "x_column"), ("ptr", "w"), ("i64", "w_row"), ("i64", "rows"),
    ("i64", "columns"), ("ptr", "out"), ("i64", "out_row"),
)  # fmt: skip
"""Adds w·x to `out`. Strides are in bytes; the numbers of a row of w and of `out` lie side by side, and so do those of
a row or of a column of x."""
FOLDED: Final = (("ptr", "w"), ("i64", "w_row"), ("ptr", "folded"), ("i64", "folded_row"))
"""The further arguments of functions that project the numbers that they have in registers: w times these is added to
`folded`, if w is not null."""
ADD_UP: Final = (("ptr", "slabs"), ("i64", "count"), ("i64", "rows"), ("i64", "columns"))
"""Adds slabs of so many rows and columns, one behind the other, to the first of them."""
COMPARE: Final = (("ptr", "seen"), ("i64", "columns"), ("ptr", "sums"))
"""Writes, as float64, the mean of the eigenvalues of the Gram matrix of the differences, the mean of their squares, and
the sum of the result's squares."""
_WIDE: Final = 2
"""Vectors of columns that share the numbers of w."""
_ITEM: Final = 4
_AT_ONCE: Final = 5
"""Random vectors, or squares, whose sums are computed side by side."""


def row_bytes(columns: int) -> int:
    """Bytes from one row of projections, or of random vectors, to the next: whole cache lines, and one more, lest all
    rows fall into the same places of a cache."""
    return (columns * _ITEM + LINE - 1) // LINE * LINE + LINE


def write_row_bytes(code: Function, columns: str) -> str:
    """`row_bytes` of a number that is known when the kernel runs."""
    return mul(code, add(code, ceil_div(code, mul(code, columns, _ITEM), LINE), "1"), LINE)


def write_projections(module: Module, lanes: int, vectors: int) -> None:
    """The functions `fold_left`, which subtracts, `fold_right`, `fold_result`, which adds squares, `add_up`, and
    `compare`."""
    _write_fold(module, "fold_left", lanes, vectors, negates=True)
    _write_fold(module, "fold_right", lanes, vectors)
    _write_fold(module, "fold_result", lanes, vectors, squares=True)
    _write_add_up(module, lanes)
    _write_compare(module, lanes, vectors)


def write_zeros(code: Function, lanes: int, out: str, out_row: str, rows: int, columns: str) -> None:
    """Rows of zeros."""
    k = LlvmBuilder(code, lanes)
    with code.loop(0, columns, lanes) as loop:
        mask = lanes_below(k, sub(code, columns, loop.index))
        for row in range(rows):
            place = shifted(code, out, add(code, mul(code, out_row, row), mul(code, loop.index, _ITEM)))
            store(k, k.literal(0, float32), place, mask)


def write_sums(k: LlvmBuilder, w: str, apart: Multiples, vectors: int, columns: list[list[str]]) -> None:
    """Add some rows of a result to its projections, and to the sums of squares: vectors side by side, of which
    `columns` has the rows. Several random vectors are taken at a time: a sum is added to the one before, which takes
    longer than it takes to begin with the next."""
    code = k.code
    groups = -(-(vectors + 1) // _AT_ONCE)
    for group in range(groups):
        own_vectors = range(group * (vectors + 1) // groups, (group + 1) * (vectors + 1) // groups)
        totals: dict[tuple[int, int], Value] = {}
        for row in range(len(columns[0])):
            own = [Value(float32, rows[row]) for rows in columns]
            for v in own_vectors:
                place = shifted(code, shifted(code, w, apart[v]), str(_ITEM * row)) if v < vectors else ""
                weights = [repeated(k, float32, place)] * len(own) if v < vectors else own
                for n, (weight, x) in enumerate(zip(weights, own, strict=True)):
                    total = totals.get((v, n))
                    totals[v, n] = k.arithmetic("*", weight, x) if total is None else k.fma(weight, x, total)
        for v in own_vectors:
            write_added(k, v, [totals[v, n] for n in range(len(columns))], [None] * len(columns))


def write_added(
    k: LlvmBuilder, vector: int, totals: Sequence[Value], masks: Sequence[str | None], offset: str = "0"
) -> None:
    """Add neighbouring vectors to a row of `%folded`, some bytes from its beginning."""
    row = shifted(k.code, shifted(k.code, "%folded", mul(k.code, "%folded_row", vector)), offset)
    for n, (total, mask) in enumerate(zip(totals, masks, strict=True)):
        place = shifted(k.code, row, str(_ITEM * k.width * n))
        store(k, k.arithmetic("+", load(k, float32, place, mask), total), place, mask)


def folded(k: LlvmBuilder, apart: Multiples, w: str, row: Sequence[Value], sums: Sequence[str]) -> list[str]:
    """The sums of each random vector in turn, with a row of neighbouring vectors more; `w` has the row's weights."""
    made = []
    for v in range(len(sums) // len(row)):
        weight = repeated(k, float32, shifted(k.code, w, apart[v]))
        made += [k.fma(weight, x, Value(float32, sums[v * len(row) + n])).text for n, x in enumerate(row)]
    return made


def _write_fold(
    module: Module, name: str, lanes: int, vectors: int, *, negates: bool = False, squares: bool = False
) -> None:
    code = module.function(name, FOLD)
    k = LlvmBuilder(code, lanes)
    apart = Multiples(code, "%w_row", vectors)
    beside = code.let(f"icmp eq i64 %x_column, {_ITEM}")
    with code.when(beside):
        _write_columns(k, apart, vectors, negates=negates, squares=squares)
    if not squares:  # the rows of a result are contiguous
        with code.when(code.let(f"xor i1 {beside}, true")):
            _write_dots(k, apart, vectors, negates=negates)
    code.ret()


def _write_columns(k: LlvmBuilder, apart: Multiples, vectors: int, *, negates: bool, squares: bool) -> None:
    """Rows of x are contiguous: the sums of neighbouring columns are lanes of vectors."""
    code = k.code
    whole = code.let(f"and i64 %columns, {-_WIDE * k.width}")
    with code.loop(0, whole, _WIDE * k.width) as loop:
        _write_strip(k, apart, vectors, loop.index, _WIDE, None, negates=negates, squares=squares)
    with code.loop(whole, "%columns", k.width) as loop:
        mask = lanes_below(k, sub(code, "%columns", loop.index))
        _write_strip(k, apart, vectors, loop.index, 1, mask, negates=negates, squares=squares)


def _write_strip(
    k: LlvmBuilder, apart: Multiples, vectors: int, column: str, wide: int, mask: str | None, *, negates: bool,
    squares: bool,
) -> None:  # fmt: skip
    """Some vectors of columns, all rows. Sums begin with zero: a long row of sums would lose digits."""
    code, kind = k.code, k.type(float32)
    first = shifted(code, "%x", mul(code, column, _ITEM))
    count = (vectors + squares) * wide
    with code.loop(0, "%rows", carried=[("ptr", first), ("ptr", "%w"), *[(kind, "zeroinitializer")] * count]) as loop:
        x, w, *sums = loop.values
        own = [load(k, float32, shifted(code, x, str(_ITEM * k.width * n)), mask) for n in range(wide)]
        signed = [k.negated(o) for o in own] if negates else own
        made = folded(k, apart, w, signed, sums[: vectors * wide])
        if squares:
            made += [k.fma(o, o, Value(float32, sums[vectors * wide + n])).text for n, o in enumerate(own)]
        loop.carry(shifted(code, x, "%x_row"), shifted(code, w, str(_ITEM)), *made)
    for v in range(vectors + squares):
        for n in range(wide):
            along = add(code, mul(code, column, _ITEM), str(_ITEM * k.width * n))
            place = shifted(code, "%out", add(code, mul(code, "%out_row", v), along))
            total = k.arithmetic("+", load(k, float32, place, mask), Value(float32, loop.values[2 + v * wide + n]))
            store(k, total, place, mask)


def _write_dots(k: LlvmBuilder, apart: Multiples, vectors: int, *, negates: bool) -> None:
    """Columns of x are contiguous: each sum has parts in all lanes of a vector. Two columns share the numbers of w; of
    an odd number of them, the last one is its own neighbour."""
    code, kind = k.code, k.type(float32)
    whole = code.let(f"and i64 %rows, {-k.width}")
    rest = sub(code, "%rows", whole)
    with code.loop(0, "%columns", 2) as loop:
        is_pair = code.let(f"icmp slt i64 {add(code, loop.index, '1')}, %columns")
        columns = [loop.index, choice(code, is_pair, add(code, loop.index, "1"), loop.index)]
        starts = [shifted(code, "%x", mul(code, c, "%x_column")) for c in columns]

        def step(index: str, sums: tuple[str, ...], mask: str | None, starts: list[str] = starts) -> list[str]:
            at = mul(code, index, _ITEM)
            own = [load(k, float32, shifted(code, s, at), mask) for s in starts]
            own = [k.negated(o) for o in own] if negates else own
            made = []
            for v in range(vectors):
                weight = load(k, float32, shifted(code, shifted(code, "%w", apart[v]), at), mask)
                made += [k.fma(weight, o, Value(float32, sums[2 * v + n])).text for n, o in enumerate(own)]
            return made

        zeros = [(kind, "zeroinitializer")] * (2 * vectors)
        with code.loop(0, whole, k.width, carried=zeros) as along:
            along.carry(*step(along.index, along.values, None))
        with code.when(code.let(f"icmp sgt i64 {rest}, 0"), [(kind, s) for s in along.values]) as branch:
            branch.give(*step(whole, along.values, lanes_below(k, rest)))
        one = k.at_width(1)
        for v in range(vectors):
            totals = [sum_of_lanes(k, Value(float32, s)) for s in branch.values[2 * v : 2 * v + 2]]
            row = shifted(code, "%out", mul(code, "%out_row", v))
            places = [shifted(code, row, mul(code, c, _ITEM)) for c in columns]
            before = [load(one, float32, place) for place in places]
            for total, place, old in zip(totals, places, before, strict=True):
                store(one, one.arithmetic("+", total, old), place)


def _write_add_up(module: Module, lanes: int) -> None:
    code = module.function("add_up", ADD_UP)
    k = LlvmBuilder(code, lanes)
    row = write_row_bytes(code, "%columns")
    slab = mul(code, row, "%rows")
    with code.loop(1, "%count") as other, code.loop(0, "%rows") as vector:
        first = shifted(code, "%slabs", mul(code, row, vector.index))
        with code.loop(0, "%columns", lanes) as loop:
            mask = lanes_below(k, sub(code, "%columns", loop.index))
            here = shifted(code, first, mul(code, loop.index, _ITEM))
            there = load(k, float32, shifted(code, here, mul(code, slab, other.index)), mask)
            store(k, k.arithmetic("+", load(k, float32, here, mask), there), here, mask)
    code.ret()


def _write_compare(module: Module, lanes: int, vectors: int) -> None:
    code = module.function("compare", COMPARE)
    k = LlvmBuilder(code, lanes)
    kind, doubles = k.type(float32), k.type(float64)
    row = write_row_bytes(code, "%columns")
    one = k.at_width(1)
    with code.loop(0, vectors, carried=[("double", "0.0"), ("double", "0.0")]) as vector:
        trace, squared = (Value(float64, text) for text in vector.values)
        zeros = [(kind, "zeroinitializer")] * vectors
        with code.loop(0, "%columns", lanes, carried=zeros) as loop:
            mask = lanes_below(k, sub(code, "%columns", loop.index))
            at = shifted(code, "%seen", mul(code, loop.index, _ITEM))
            own = load(k, float32, shifted(code, at, mul(code, row, vector.index)), mask)
            others = [load(k, float32, shifted(code, at, mul(code, row, v)), mask) for v in range(vectors)]
            pairs = zip(others, loop.values, strict=True)
            loop.carry(*[k.fma(own, other, Value(float32, s)).text for other, s in pairs])
        for v, s in enumerate(loop.values):
            total = one.converted(sum_of_lanes(k, Value(float32, s)), float64)
            squared = one.fma(total, total, squared)
            is_own = code.pure(f"icmp eq i64 {vector.index}, {v}")
            trace = one.arithmetic("+", trace, Value(float64, choice(code, is_own, total.text, "0.0", "double")))
        vector.carry(trace.text, squared.text)
    for n, text in enumerate(vector.values):
        mean = one.arithmetic("/", Value(float64, text), one.literal(vectors, float64))
        store(one, mean, shifted(code, "%sums", str(8 * n)))
    with code.loop(0, "%columns", lanes, carried=[(doubles, "zeroinitializer")]) as loop:
        mask = lanes_below(k, sub(code, "%columns", loop.index))
        at = shifted(code, "%seen", add(code, mul(code, row, vectors), mul(code, loop.index, _ITEM)))
        squares = k.converted(load(k, float32, at, mask), float64)
        loop.carry(k.arithmetic("+", squares, Value(float64, loop.values[0])).text)
    total = sum_of_lanes(k, Value(float64, loop.values[0]))
    store(one, total, shifted(code, "%sums", "16"))
    code.ret()
