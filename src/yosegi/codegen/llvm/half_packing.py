"""Operands of a product, rounded to bfloat16 and stored in tiles.

A tile has 16 lines: rows of the left operand, columns of the right. The left one's tiles have the numbers of a line
side by side, the right one's have the lines side by side, in pairs of numbers that are neighbours along the sum. An
operand of several parts is the sum of as many bfloat16 numbers: each part is what the ones before have left over,
rounded. What is not finite goes into the last part, which is multiplied least; an infinity in the first would meet
parts that are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from ..._tensor.dtype import DType, bool_, float32, int64
from ..scalar.value import Value
from .bfloat16_units import LINES, STEP, step_bytes
from .builder import LlvmBuilder
from .integers import add, most, mul, shifted, sub
from .ir import Module
from .load_store import gather, lanes_below, load
from .product import FusedStage

_Read = Callable[[str, str, "str | None"], Value]
"""The numbers of half a step, from a line's beginning and how far along they are, under a mask."""

_BITS: Final = f"<{STEP} x i16>"
_WORDS: Final = f"<{LINES} x i32>"


class TileOrder(Enum):
    """How the numbers of a tile lie."""

    LINES = "lines"
    """Line by line: the left operand."""
    PAIRS = "pairs"
    """Pair by pair, of all lines: the right operand."""


def write_packs(module: Module, dtypes: tuple[DType, DType], parts: int, before: FusedStage | None = None) -> None:
    """`pack_a(from, line, along, lines, length, to)`, with what comes before the product, and `pack_b`.

    Lines and the numbers along them are so many elements apart; up to 16 lines, and any length. Behind it, zeros fill
    the last tile. Lines that are not there may come out as anything: so do their sums, which nobody wants.
    """
    _write_turn(module)
    _Packer(module, "pack_a", TileOrder.LINES, dtypes[0], parts, before).write()
    _Packer(module, "pack_b", TileOrder.PAIRS, dtypes[1], parts, None).write()


def _write_turn(module: Module) -> None:
    """`turn(tile)`: a tile in the other layout, in its place."""
    code = module.function("turn", [("ptr", "tile")])
    places = [shifted(code, "%tile", str(2 * STEP * n)) for n in range(LINES)]
    rows = [code.let(f"load {_WORDS}, ptr {place}, align {2 * STEP}") for place in places]
    distance = LINES // 2
    while distance:
        # Of two rows that are `distance` apart, the off-diagonal blocks of that size change places.
        upper = [n if not n & distance else LINES + (n ^ distance) for n in range(LINES)]
        lower = [n ^ distance if not n & distance else LINES + n for n in range(LINES)]
        for i in range(LINES):
            if not i & distance:
                both = f"{_WORDS} {rows[i]}, {_WORDS} {rows[i | distance]}"
                for row, order in ((i, upper), (i | distance, lower)):
                    lanes = ", ".join(f"i32 {n}" for n in order)
                    rows[row] = code.let(f"shufflevector {both}, <{LINES} x i32> <{lanes}>")
        distance //= 2
    for vector, place in zip(rows, places, strict=True):
        code.do(f"store {_WORDS} {vector}, ptr {place}, align {2 * STEP}")
    code.ret()


class _Packer:
    """Writes one such function."""

    def __init__(
        self, module: Module, name: str, layout: TileOrder, dtype: DType, parts: int, before: FusedStage | None
    ) -> None:
        self.code = module.function(name, [
            ("ptr", "from"), ("i64", "line"), ("i64", "along"), ("i64", "lines"), ("i64", "length"), ("ptr", "to"),
        ])  # fmt: skip
        self.k = LlvmBuilder(self.code, LINES)
        self.layout = layout
        self.dtype = dtype
        self.parts = parts
        self.before = before

    def write(self) -> None:
        """Code for each way in which the lines may lie."""
        code = self.code
        self.whole = code.let(f"and i64 %length, {-STEP}")
        self.rest = sub(code, "%length", self.whole)
        self.is_rest = code.let(f"icmp sgt i64 {self.rest}, 0")
        beside = code.let("icmp eq i64 %along, 1")
        across = code.let(f"icmp ugt i1 {code.let('icmp eq i64 %line, 1')}, {beside}")
        apart = code.let(f"xor i1 {code.let(f'or i1 {beside}, {across}')}, true")
        for condition, read in ((beside, self._beside), (apart, self._apart)):
            with code.when(condition):
                self._lines(read)
        with code.when(across):
            self._across()
        code.ret()

    # Line by line

    def _lines(self, read: _Read) -> None:
        """One line after another, a vector for each half of a step."""
        code = self.code
        halves = (self.rest, most(code, sub(code, self.rest, str(LINES)), 0))
        masks = [lanes_below(self.k, n) for n in halves]
        apart = mul(code, "%line", self.dtype.itemsize)
        with code.loop(0, "%lines", carried=[("ptr", "%from"), ("ptr", "%to")]) as line:
            here, there = line.values
            with code.loop(0, self.whole, STEP, carried=[("ptr", there)]) as step:
                both = [self._before(read(here, add(code, step.index, str(n)), None)) for n in (0, LINES)]
                self._store(step.values[0], self._parts(both))
                step.carry(shifted(code, step.values[0], str(step_bytes(self.parts))))
            with code.when(self.is_rest):
                both = [
                    self._kept(mask, self._before(read(here, add(code, self.whole, str(n)), mask)))
                    for n, mask in zip((0, LINES), masks, strict=True)
                ]
                self._store(step.values[0], self._parts(both))
            line.carry(shifted(code, here, apart), shifted(code, there, str(2 * STEP)))
        if self.layout is TileOrder.PAIRS:
            self._turn()

    def _beside(self, line: str, index: str, mask: str | None) -> Value:
        return load(self.k, self.dtype, shifted(self.code, line, mul(self.code, index, self.dtype.itemsize)), mask)

    def _apart(self, line: str, index: str, mask: str | None) -> Value:
        code, kind = self.code, self.k.vector("i64")
        numbers = ", ".join(f"i64 {n}" for n in range(LINES))
        at = shifted(code, line, mul(code, mul(code, index, "%along"), self.dtype.itemsize))
        places = code.pure(f"mul {kind} {self.k.splat(int64, '%along').text}, <{numbers}>")
        return gather(self.k, self.dtype, at, places, mask)

    # Across the lines

    def _across(self) -> None:
        """Pair by pair, a vector over all lines for each number."""
        code = self.code
        mask = lanes_below(self.k, "%lines")
        with code.loop(0, self.whole, STEP, carried=[("ptr", "%from"), ("ptr", "%to")]) as step:
            here, to = step.values
            following = self._pairs(here, to, mask, masked=False)
            step.carry(following, shifted(code, to, str(step_bytes(self.parts))))
        with code.when(self.is_rest):
            self._pairs(step.values[0], step.values[1], mask, masked=True)
        if self.layout is TileOrder.LINES:
            self._turn()

    def _pairs(self, here: str, to: str, mask: str, *, masked: bool) -> str:
        """A step of pairs; if `masked`, as many as are left. Where the next step begins."""
        code, truth = self.code, self.k.type(bool_)
        apart = mul(code, "%along", self.dtype.itemsize)
        with code.loop(0, STEP, 2, carried=[("ptr", here), ("ptr", to)]) as pair:
            here, there = pair.values
            both = []
            for n in range(2):
                own = mask
                if masked:
                    is_there = code.let(f"icmp sgt i64 {self.rest}, {add(code, pair.index, str(n))}")
                    own = code.let(f"select i1 {is_there}, {truth} {mask}, {truth} zeroinitializer")
                value = self._before(load(self.k, self.dtype, here, own))
                both.append(self._kept(own, value) if masked else value)
                here = shifted(code, here, apart)
            self._store(there, [self._interleaved(part) for part in self._parts(both)])
            pair.carry(here, shifted(code, there, str(2 * STEP)))
        return pair.values[0]

    def _interleaved(self, both: str) -> str:
        """The numbers of two vectors, in pairs."""
        order = ", ".join(f"i32 {n}, i32 {n + LINES}" for n in range(LINES))
        return self.code.pure(f"shufflevector {_BITS} {both}, {_BITS} poison, <{STEP} x i32> <{order}>")

    # Both

    def _before(self, value: Value) -> str:
        """A number as it goes into the product."""
        if self.before is None:
            return value.text
        (made,) = self.before.function(self.k, value)
        return made.text

    def _kept(self, mask: str, text: str) -> str:
        """Zeros where a mask is not set: what a function makes of zero may be anything."""
        kind = self.k.type(float32)
        return self.code.let(f"select {self.k.type(bool_)} {mask}, {kind} {text}, {kind} zeroinitializer")

    def _store(self, to: str, parts: list[str]) -> None:
        for part, text in enumerate(parts):
            where = shifted(self.code, to, str(step_bytes(1) * part))
            self.code.do(f"store {_BITS} {text}, ptr {where}, align {2 * STEP}")

    def _turn(self) -> None:
        """All tiles in the other layout."""
        code = self.code
        with code.loop(0, "%length", STEP, carried=[("ptr", "%to")]) as step:
            for part in range(self.parts):
                code.do(f"call void @turn(ptr {shifted(code, step.values[0], str(step_bytes(1) * part))})")
            step.carry(shifted(code, step.values[0], str(step_bytes(self.parts))))

    # Rounding

    def _parts(self, both: list[str]) -> list[str]:
        """Two vectors of floats as one of bfloat16 numbers for each part."""
        made = []
        for part in range(self.parts):
            rounded = self._rounded(both)
            if part < self.parts - 1:
                rounded = self._finite(rounded)
                both = [self._left(x, rounded, n) for n, x in enumerate(both)]
            made.append(rounded)
        return made

    def _rounded(self, both: list[str]) -> str:
        """To the nearest, of two the even one; numbers below the smallest normal one to zero."""
        code, kind = self.code, self.k.type(float32)
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        made = code.call(f"<{STEP} x bfloat>", name, [kind, kind], [both[1], both[0]])
        return code.pure(f"bitcast <{STEP} x bfloat> {made} to {_BITS}")

    def _finite(self, rounded: str) -> str:
        """The values with zeros in place of infinities and NaN."""
        code = self.code
        exponent = code.pure(f"and {_BITS} {rounded}, splat (i16 {0x7F80})")
        finite = code.pure(f"icmp ne {_BITS} {exponent}, splat (i16 {0x7F80})")
        return code.pure(f"select <{STEP} x i1> {finite}, {_BITS} {rounded}, {_BITS} zeroinitializer")

    def _left(self, x: str, rounded: str, half: int) -> str:
        """The remainder of a number after rounding, in one of the halves of a vector. It is exact."""
        code, kind = self.code, self.k.type(float32)
        lanes = ", ".join(f"i32 {LINES * half + n}" for n in range(LINES))
        own = code.pure(f"shufflevector {_BITS} {rounded}, {_BITS} poison, <{LINES} x i32> <{lanes}>")
        wide = code.pure(f"zext <{LINES} x i16> {own} to {_WORDS}")
        high = code.pure(f"shl {_WORDS} {wide}, splat (i32 16)")
        back = code.pure(f"bitcast {_WORDS} {high} to {kind}")
        return code.let(f"fsub {kind} {x}, {back}")
