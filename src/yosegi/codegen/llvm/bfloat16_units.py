"""Blocks of a product of bfloat16 numbers, by the processor's own instructions for it.

A block is two tiles high and two wide, a tile is 16 by 16 sums. The operands are packed (`half_packing`): each step
along the sum is 32 numbers long, and has of either operand two tiles side by side, 16 lines of 64 bytes each. Where
an operand is a sum of several parts, a step has the tiles of each part, one behind the other, and multiplies those
pairs of parts whose product is not too small to count.

Both units take numbers below the smallest normal one for zero, and give zero for such results.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final

from .integers import add, choice, mul, shifted
from .ir import Function, Module

LINES: Final = 16
"""Rows of a tile of the left operand, columns of one of the right."""
STEP: Final = 32
"""Numbers of a line of a tile."""
PANEL: Final = 2 * LINES
"""Lines of a block."""
TILE: Final = 1024
"""Bytes of a tile, of operands and of sums alike."""
BLOCK_ROW: Final = 4 * PANEL
"""Bytes of a row of a block's sums, where it lies alone."""
BLOCK: Final = BLOCK_ROW * PANEL

PAIRS: Final = {
    1: ((0, 0),),
    2: ((1, 0), (0, 0), (0, 1)),
    3: ((2, 0), (1, 0), (1, 1), (0, 1), (0, 0), (0, 2)),
}
"""By the number of parts: the pairs that are multiplied, in an order in which each needs one new part."""

_ROWS_OF_DOTS: Final = 8
_UNROLLED: Final = 2
"""Pairs of numbers that are multiplied before the loop goes round."""
_PARAMETERS: Final = (
    ("ptr", "a"), ("ptr", "b"), ("i64", "steps"), ("i64", "tiles"), ("ptr", "before"), ("i64", "before_row"),
    ("ptr", "out"), ("i64", "out_row"),
)  # fmt: skip


class BFloat16Unit(Enum):
    """The instructions that multiply bfloat16 numbers."""

    TILES = "AMX"
    """Registers that hold a tile each, and an instruction that multiplies two."""
    DOTS = "AVX512-BF16"
    """Vectors of pairs of numbers."""


def block_source(unit: BFloat16Unit, attributes: str) -> str:
    """A module whose function `kernel(a, b, out)` multiplies one block of one step: all that a unit's instructions are
    needed for, and nothing else."""
    module = Module(converts_halves=True)
    write_block(module, unit, 1)
    code = module.function("kernel", (("ptr", "a"), ("ptr", "b"), ("ptr", "out")))
    if unit is BFloat16Unit.TILES:
        configure(code)
    code.do(f"call void @block(ptr %a, ptr %b, i64 1, i64 3, ptr null, i64 0, ptr %out, i64 {BLOCK_ROW})")
    if unit is BFloat16Unit.TILES:
        release(code)
    code.ret()
    return module.text(attributes)


def step_bytes(parts: int) -> int:
    """Bytes of a packed step of a panel."""
    return 2 * TILE * parts


def write_block(module: Module, unit: BFloat16Unit, parts: int) -> None:
    """`block(a, b, steps, tiles, before, before_row, out, out_row)`.

    The sums of a block, added to what is at `before` if that is not null, go to `out`; rows are so many bytes apart.
    `tiles` has a bit for each direction: 1, if the block is two tiles wide, and 2, if it is two tiles high.
    """
    code = module.function("block", _PARAMETERS)
    is_wide, is_high = (code.let(f"icmp ne i64 {code.let(f'and i64 %tiles, {bit}')}, 0") for bit in (1, 2))
    rows, columns = (choice(code, two, str(PANEL), str(LINES)) for two in (is_high, is_wide))
    widths = ((2, is_wide), (1, code.let(f"xor i1 {is_wide}, true")))
    if unit is BFloat16Unit.DOTS:
        for wide, width in widths:
            with code.when(width):
                _write_dots(code, parts, rows, wide)
        code.ret()
        return
    sums = _Sums(code, apart=parts == 3)
    for wide, width in widths:
        for high, height in ((2, is_high), (1, code.let(f"xor i1 {is_high}, true"))):
            with code.when(code.let(f"and i1 {width}, {height}")):
                _write_tiles(code, parts, high, wide, sums)
    sums.write_end(rows, columns)
    code.ret()


# Tiles


class _Sums:
    """Where the sums of tiles come from and go to.

    Either they begin with those of the stretch before, or, if they are kept `apart`, with zero, and those are added in
    the end: with many products to add up, the other way loses digits that three parts are meant to keep.
    """

    def __init__(self, code: Function, *, apart: bool) -> None:
        self.code = code
        self.apart = apart
        self.is_later = code.let("icmp ne ptr %before, null")
        self.out, self.out_row = "%out", "%out_row"
        if apart:
            self._scratch = code.let(f"alloca i8, i64 {BLOCK}, align 64")
            self.out = choice(code, self.is_later, self._scratch, "%out", "ptr")
            self.out_row = choice(code, self.is_later, str(BLOCK_ROW), "%out_row")

    def write_begin(self, tiles: Sequence[tuple[int, int, int]]) -> None:
        """The initial values of the tiles."""
        code = self.code
        for tile, _, _ in tiles:
            code.call("void", "llvm.x86.tilezero", ["i8"], [str(tile)])
        if not self.apart:
            with code.when(self.is_later):
                for tile, i, j in tiles:
                    _load_tile(code, tile, _place(code, "%before", "%before_row", i, j), "%before_row")

    def write_end(self, rows: str, columns: str) -> None:
        """The values that are added at the end."""
        if not self.apart:
            return
        code, kind = self.code, f"<{LINES} x float>"
        arrays = (self._scratch, str(BLOCK_ROW)), ("%before", "%before_row"), ("%out", "%out_row")
        with code.when(self.is_later), code.loop(0, rows) as row, code.loop(0, columns, LINES) as column:
            here = mul(code, column.index, 4)
            own, earlier, to = (shifted(code, b, add(code, mul(code, row.index, r), here)) for b, r in arrays)
            x, y = (code.let(f"load {kind}, ptr {place}, align 4") for place in (own, earlier))
            code.do(f"store {kind} {code.let(f'fadd {kind} {x}, {y}')}, ptr {to}, align 4")


def configure(code: Function) -> None:
    """Say how large the tiles are, before the first is used: all as large as can be."""
    shapes = [1, *[0] * 15, *[2 * STEP, 0] * 8, *[0] * 16, *[LINES] * 8, *[0] * 8]
    code.module.table("tile_shapes", "i8", [str(n) for n in shapes])
    code.call("void", "llvm.x86.ldtilecfg", ["ptr"], ["@tile_shapes"])


def release(code: Function) -> None:
    """Forget all tiles: the system need not save them any more."""
    code.call("void", "llvm.x86.tilerelease", [], [])


def _write_tiles(code: Function, parts: int, high: int, wide: int, sums: _Sums) -> None:
    """Tiles 0 to 3 are sums, 4 and 5 of the left operand, 6 and 7 of the right."""
    tiles = [(2 * i + j, i, j) for i in range(high) for j in range(wide)]
    sums.write_begin(tiles)
    with code.loop(0, "%steps", carried=[("ptr", "%a"), ("ptr", "%b")]) as loop:
        before: tuple[int, int] | None = None
        for pair in PAIRS[parts]:
            for side, (operand, count) in enumerate(zip(loop.values, (high, wide), strict=True)):
                if before is None or before[side] != pair[side]:
                    for n in range(count):
                        place = str(step_bytes(1) * pair[side] + TILE * n)
                        _load_tile(code, 4 + 2 * side + n, shifted(code, operand, place), str(2 * STEP))
            before = pair
            for tile, i, j in tiles:
                types = ["i8"] * 3
                code.call("void", "llvm.x86.tdpbf16ps", types, [str(tile), str(4 + i), str(6 + j)])
        loop.carry(*[shifted(code, operand, str(step_bytes(parts))) for operand in loop.values])
    for tile, i, j in tiles:
        values = [str(tile), _place(code, sums.out, sums.out_row, i, j), sums.out_row]
        code.call("void", "llvm.x86.tilestored64", ["i8", "ptr", "i64"], values)


def _load_tile(code: Function, tile: int, pointer: str, apart: str) -> None:
    code.call("void", "llvm.x86.tileloadd64", ["i8", "ptr", "i64"], [str(tile), pointer, apart])


def _place(code: Function, base: str, apart: str, i: int, j: int) -> str:
    """Where a tile of sums lies."""
    return shifted(code, base, add(code, mul(code, apart, LINES * i), str(4 * LINES * j)))


# Dots


def _write_dots(code: Function, parts: int, rows: str, wide: int) -> None:
    """Some rows of sums at a time, which are vectors; all rows take the same columns, and an element each.

    The sums of a stretch begin with zero: they are added one by one, and a long row of sums would lose digits.
    """
    kind = f"<{LINES} x float>"
    is_later = code.let("icmp ne ptr %before, null")
    places = [(row, 4 * LINES * j) for row in range(_ROWS_OF_DOTS) for j in range(wide)]
    with code.loop(0, rows, _ROWS_OF_DOTS) as group:
        lines = shifted(code, "%a", mul(code, group.index, 2 * STEP))
        carried = [("ptr", lines), ("ptr", "%b"), *[(kind, "zeroinitializer")] * len(places)]
        with code.loop(0, "%steps", carried=carried) as loop:
            a, b, *sums = loop.values
            for left, right in PAIRS[parts]:
                begin = [("ptr", shifted(code, x, str(step_bytes(1) * part))) for x, part in ((a, left), (b, right))]
                with code.loop(0, STEP // 2, _UNROLLED, carried=[*begin, *[(kind, s) for s in sums]]) as pairs:
                    left_pair, right_pair, *sums = pairs.values
                    for n in range(_UNROLLED):
                        sums = _dots(code, left_pair, right_pair, n, sums)
                    beside = (
                        shifted(code, left_pair, str(4 * _UNROLLED)),
                        shifted(code, right_pair, str(64 * _UNROLLED)),
                    )
                    pairs.carry(*beside, *sums)
                sums = list(pairs.values[2:])
            loop.carry(*[shifted(code, operand, str(step_bytes(parts))) for operand in (a, b)], *sums)
        sums = list(loop.values[2:])
        before, out = (shifted(code, f"%{n}", mul(code, group.index, f"%{n}_row")) for n in ("before", "out"))
        with code.when(is_later, [(kind, v) for v in sums]) as branch:
            earlier = [code.let(f"load {kind}, ptr {_row(code, before, 'before', *p)}, align 4") for p in places]
            branch.give(*[code.let(f"fadd {kind} {x}, {y}") for x, y in zip(earlier, sums, strict=True)])
        for place, value in zip(places, branch.values, strict=True):
            code.do(f"store {kind} {value}, ptr {_row(code, out, 'out', *place)}, align 4")


def _dots(code: Function, a: str, b: str, pair: int, sums: list[str]) -> list[str]:
    """The sums with the products of a pair of each line added."""
    kind, numbers, words = f"<{LINES} x float>", f"<{STEP} x bfloat>", f"<{LINES} x i32>"
    wide = len(sums) // _ROWS_OF_DOTS
    places = [shifted(code, b, str(2 * STEP * pair + TILE * j)) for j in range(wide)]
    columns = [code.let(f"load {numbers}, ptr {place}, align {2 * STEP}") for place in places]
    made = []
    for row in range(_ROWS_OF_DOTS):
        word = code.let(f"load i32, ptr {shifted(code, a, str(4 * pair + 2 * STEP * row))}, align 4")
        first = code.pure(f"insertelement {words} poison, i32 {word}, i64 0")
        every = code.pure(f"shufflevector {words} {first}, {words} poison, {words} zeroinitializer")
        element = code.pure(f"bitcast {words} {every} to {numbers}")
        for j, column in enumerate(columns):
            given = [sums[row * wide + j], element, column]
            made.append(code.call(kind, "llvm.x86.avx512bf16.dpbf16ps.512", [kind, numbers, numbers], given))
    return made


def _row(code: Function, base: str, name: str, row: int, column: int) -> str:
    return shifted(code, base, add(code, mul(code, f"%{name}_row", row), str(column)))
