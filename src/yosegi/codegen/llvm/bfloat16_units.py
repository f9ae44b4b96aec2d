"""Tiles of a product of bfloat16 numbers, by the processor's own instructions for it.

A tile here is up to two squares high and two wide; a square is 16 by 16 sums. The operands are packed
(`half_packing`): each step along the sum is 32 numbers long, and has of either operand the squares side by side, 16
lines of 64 bytes each. Where an operand is a sum of several parts, a step has the squares of each part, one behind the
other, and multiplies those pairs of parts whose product is not too small to count.

Both units take numbers below the smallest normal one for zero, and give zero for such results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Final

from .builder import LlvmBuilder
from .fused_projections import FOLDED, write_sums
from .integers import Multiples, add, mul, shifted
from .ir import Function, Module
from .register_tiles import LINE, PARAMETERS, TileShape, ask_for, tile_name

LINES: Final = 16
"""Rows of a square of the left operand, columns of one of the right."""
STEP: Final = 32
"""Numbers of a line of a square."""
SQUARE: Final = 1024
"""Bytes of a square, of operands and of sums alike."""

PAIRS: Final = {
    1: ((0, 0),),
    2: ((1, 0), (0, 0), (0, 1)),
    3: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 0), (0, 2)),
}
"""The pairs of parts that are multiplied, by the number of parts, in an order in which each pair needs one new part."""

_ROWS_OF_DOTS: Final = 8
_UNROLLED: Final = 2
"""Pairs of numbers that are multiplied before the loop goes round."""
_SUMS: Final = f"<{LINES} x float>"


class BFloat16Unit(Enum):
    """The instructions that multiply bfloat16 numbers."""

    TILES = "AMX"
    """Registers that hold a square each, and an instruction that multiplies two."""
    DOTS = "AVX512-BF16"
    """Vectors of pairs of numbers."""


def unit_shape(parts: int) -> TileShape:
    """The tiles of products whose operands have so many parts."""
    return TileShape(2, 2, LINES, 2 * STEP * parts, LINES, STEP)


def unit_tile_source(
    unit: BFloat16Unit, parts: int, rows: int, vectors: int, attributes: str, *, projections: int = 0
) -> str:
    """The module of one size of tile, with the arguments of `register_tiles.tile_source`.

    A step of the left operand has place for all squares of a tile's height, whether they are there or not. If the unit
    `folds`, a tile with `projections` on random vectors takes the arguments `FOLDED`, too.
    """
    module = Module()
    _write_tile(module, unit, parts, rows, vectors, projections if folds(unit) else 0)
    return module.text(attributes)


def folds(unit: BFloat16Unit | None) -> bool:
    """True if tiles of a unit can be projected in the registers where their sums are."""
    return unit is BFloat16Unit.DOTS


def trial_source(unit: BFloat16Unit, attributes: str) -> str:
    """A module whose function `kernel(a, b, out)` multiplies one tile of one step: all that a unit's instructions are
    needed for, and nothing else."""
    module, shape = Module(), unit_shape(1)
    _write_tile(module, unit, 1, shape.rows, shape.vectors)
    code = module.function("kernel", (("ptr", "a"), ("ptr", "b"), ("ptr", "out")))
    step, row = shape.height * shape.step_bytes, shape.columns * 4
    with prepared(code, unit):
        code.do(
            f"call void @{tile_name(shape.rows, shape.vectors)}(ptr %a, i64 0, i64 {step}, ptr %b, i64 {step}, i64 1, "
            f"ptr %out, i64 {row}, ptr %out, i64 {row})"
        )
    code.ret()
    return module.text(attributes)


@contextmanager
def prepared(code: Function, unit: BFloat16Unit | None) -> Iterator[None]:
    """Code that uses tiles of a unit: they get their size before, as large as can be, and the system need not save them
    afterwards."""
    if unit is BFloat16Unit.TILES:
        shapes = [1, *[0] * 15, *[2 * STEP, 0] * 8, *[0] * 16, *[LINES] * 8, *[0] * 8]
        code.module.table("tile_shapes", "i8", [str(n) for n in shapes])
        code.call("void", "llvm.x86.ldtilecfg", ["ptr"], ["@tile_shapes"])
    yield
    if unit is BFloat16Unit.TILES:
        code.call("void", "llvm.x86.tilerelease", [], [])


def _write_tile(module: Module, unit: BFloat16Unit, parts: int, rows: int, vectors: int, projections: int = 0) -> None:
    code = module.function(tile_name(rows, vectors), (*PARAMETERS, *(FOLDED if projections else ())))
    if unit is BFloat16Unit.TILES:
        _write_squares(code, parts, rows, vectors)
    else:
        _write_dots(code, parts, rows, vectors, projections)
    code.ret()


def _parts_apart(vectors: int) -> tuple[int, int]:
    """Bytes from one part of a step to the next, of the left and of the right operand."""
    return unit_shape(1).rows * SQUARE, vectors * SQUARE


# Squares in registers


def _write_squares(code: Function, parts: int, rows: int, vectors: int) -> None:
    """Registers 0 to 3 are sums, 4 and 5 of the left operand, 6 and 7 of the right.

    With three parts, sums begin with zero, and those before are added in the end: with many products to add up, the
    first loses digits that three parts are meant to keep.
    """
    squares = [(2 * i + j, i, j) for i in range(rows) for j in range(vectors)]
    out, out_row = "%out", "%out_row"
    if parts == 3:
        out, out_row = code.let(f"alloca i8, i64 {4 * SQUARE}, align {LINE}"), str(8 * LINES)
    for square, i, j in squares:
        if parts == 3:
            code.call("void", "llvm.x86.tilezero", ["i8"], [str(square)])
        else:
            _load_square(code, square, _place(code, "%before", "%before_row", i, j), "%before_row")
    with code.loop(0, "%steps", carried=[("ptr", "%a"), ("ptr", "%b")]) as loop:
        before: tuple[int, int] | None = None
        for pair in PAIRS[parts]:
            for side, (operand, count, apart) in enumerate(
                zip(loop.values, (rows, vectors), _parts_apart(vectors), strict=True)
            ):
                if before is None or before[side] != pair[side]:
                    for n in range(count):
                        place = str(apart * pair[side] + SQUARE * n)
                        _load_square(code, 4 + 2 * side + n, shifted(code, operand, place), str(2 * STEP))
            before = pair
            for square, i, j in squares:
                code.call("void", "llvm.x86.tdpbf16ps", ["i8"] * 3, [str(square), str(4 + i), str(6 + j)])
        loop.carry(*[shifted(code, x, f"%{n}_step") for x, n in zip(loop.values, "ab", strict=True)])
    for square, i, j in squares:
        values = [str(square), _place(code, out, out_row, i, j), out_row]
        code.call("void", "llvm.x86.tilestored64", ["i8", "ptr", "i64"], values)
    if parts == 3:
        with code.loop(0, rows * LINES) as row, code.loop(0, vectors * LINES, LINES) as column:
            at = mul(code, column.index, 4)
            own, earlier, to = (
                shifted(code, base, add(code, mul(code, row.index, apart), at))
                for base, apart in ((out, out_row), ("%before", "%before_row"), ("%out", "%out_row"))
            )
            x, y = (code.let(f"load {_SUMS}, ptr {place}, align 4") for place in (own, earlier))
            code.do(f"store {_SUMS} {code.let(f'fadd {_SUMS} {x}, {y}')}, ptr {to}, align 4")


def _load_square(code: Function, register: int, pointer: str, apart: str) -> None:
    code.call("void", "llvm.x86.tileloadd64", ["i8", "ptr", "i64"], [str(register), pointer, apart])


def _place(code: Function, base: str, apart: str, i: int, j: int) -> str:
    """Where a square of sums lies."""
    return shifted(code, base, add(code, mul(code, apart, LINES * i), str(4 * LINES * j)))


# Dots


def _write_dots(code: Function, parts: int, rows: int, vectors: int, projections: int) -> None:
    """Write the sums of rows by vectors of columns. All rows read the same columns, and each an element of its own.

    Sums begin with zero: they are added one by one, and a long row of sums would lose digits.
    """
    k = LlvmBuilder(code, LINES)
    is_projected = code.let("icmp ne ptr %w, null") if projections else ""
    weights = Multiples(code, "%w_row", projections) if projections else None
    places = [(row, 4 * LINES * j) for row in range(_ROWS_OF_DOTS) for j in range(vectors)]
    with code.loop(0, rows * LINES, _ROWS_OF_DOTS) as group:
        lines = shifted(code, "%a", mul(code, group.index, 2 * STEP))
        before, out = (shifted(code, f"%{n}", mul(code, group.index, f"%{n}_row")) for n in ("before", "out"))
        for place in places:
            ask_for(code, _row(code, out, "out", *place))
        carried = [("ptr", lines), ("ptr", "%b"), *[(_SUMS, "zeroinitializer")] * len(places)]
        with code.loop(0, "%steps", carried=carried) as loop:
            a, b, *sums = loop.values
            for pair in PAIRS[parts]:
                begin = [
                    ("ptr", shifted(code, x, str(apart * part)))
                    for x, part, apart in zip((a, b), pair, _parts_apart(vectors), strict=True)
                ]
                with code.loop(0, STEP // 2, _UNROLLED, carried=[*begin, *[(_SUMS, s) for s in sums]]) as pairs:
                    left_pair, right_pair, *sums = pairs.values
                    for n in range(_UNROLLED):
                        sums = _dots(code, left_pair, right_pair, n, sums)
                    beside = (
                        shifted(code, left_pair, str(4 * _UNROLLED)),
                        shifted(code, right_pair, str(64 * _UNROLLED)),
                    )
                    pairs.carry(*beside, *sums)
                sums = list(pairs.values[2:])
            loop.carry(shifted(code, a, "%a_step"), shifted(code, b, "%b_step"), *sums)
        earlier = [code.let(f"load {_SUMS}, ptr {_row(code, before, 'before', *p)}, align 4") for p in places]
        totals = []
        for place, x, y in zip(places, earlier, loop.values[2:], strict=True):
            totals.append(code.let(f"fadd {_SUMS} {x}, {y}"))
            code.do(f"store {_SUMS} {totals[-1]}, ptr {_row(code, out, 'out', *place)}, align 4")
        if weights is not None:
            with code.when(is_projected):
                own = shifted(code, "%w", mul(code, group.index, 4))
                write_sums(k, own, weights, projections, [totals[n::vectors] for n in range(vectors)])


def _dots(code: Function, a: str, b: str, pair: int, sums: list[str]) -> list[str]:
    """The sums with the products of a pair of each line added."""
    numbers, words = f"<{STEP} x bfloat>", f"<{LINES} x i32>"
    vectors = len(sums) // _ROWS_OF_DOTS
    places = [shifted(code, b, str(2 * STEP * pair + SQUARE * j)) for j in range(vectors)]
    columns = [code.let(f"load {numbers}, ptr {place}, align {2 * STEP}") for place in places]
    made = []
    for row in range(_ROWS_OF_DOTS):
        word = code.let(f"load i32, ptr {shifted(code, a, str(4 * pair + 2 * STEP * row))}, align 4")
        first = code.pure(f"insertelement {words} poison, i32 {word}, i64 0")
        every = code.pure(f"shufflevector {words} {first}, {words} poison, {words} zeroinitializer")
        element = code.pure(f"bitcast {words} {every} to {numbers}")
        for j, column in enumerate(columns):
            given = [sums[row * vectors + j], element, column]
            made.append(code.call(_SUMS, "llvm.x86.avx512bf16.dpbf16ps.512", [_SUMS, numbers, numbers], given))
    return made


def _row(code: Function, base: str, name: str, row: int, column: int) -> str:
    return shifted(code, base, add(code, mul(code, f"%{name}_row", row), str(column)))
