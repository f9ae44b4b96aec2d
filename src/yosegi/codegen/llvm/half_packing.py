"""Operands of a product, rounded to bfloat16 and stored in squares.

A square has 16 lines: rows of the left operand, columns of the right. The left one's squares have the numbers of a line
side by side, the right one's have the lines side by side, in pairs of numbers that are neighbours along the sum. An
operand of several parts is the sum of as many bfloat16 numbers: each part is the rounded remainder of those before
it. What is not finite goes into the last part, which is multiplied least; an infinity in the first would meet parts
that are zero.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from ..._tensor.dtype import DType, bool_, float32, int64, uint32
from ..scalar.value import Value
from .bfloat16_units import LINES, SQUARE, STEP, unit_shape
from .builder import LlvmBuilder
from .fused_projections import FOLDED, folded, write_added
from .fused_stages import LINES as LINES_PARAMETERS
from .integers import Multiples, add, choice, least, most, mul, shifted, sub
from .ir import Function, Module
from .lanes import transposed
from .load_store import gather, lanes_below, load
from .nest import VectorTarget
from .packing import PARAMETERS as PANEL_PARAMETERS
from .product import FusedStage, Product
from .register_tiles import ask_for

_Read = Callable[[str, str, "str | None"], Value]
"""The numbers of half a step, from a line's beginning and how far along they are, under a mask."""

PARAMETERS: Final = (
    ("ptr", "from"), ("i64", "line"), ("i64", "along"), ("i64", "lines"), ("i64", "length"), ("ptr", "to"),
    ("i64", "pitch"),
)  # fmt: skip
_CHUNK_STEPS: Final = 8
"""Steps that are packed of a square's lines before the next square's: each writes a line of a cache for each step."""
_BITS: Final = f"<{STEP} x i16>"
_WORDS: Final = f"<{LINES} x i32>"


class SquareOrder(Enum):
    """How the numbers of a square lie."""

    LINES = "lines"
    """Line by line: the left operand."""
    PAIRS = "pairs"
    """Pair by pair, of all lines: the right operand."""


def unit_lines_source(product: Product, target: VectorTarget) -> str:
    """The module of `lines`, for a left operand with its prologue: see `fused_stages.lines_source`. The rows of a panel
    become squares side by side; lines that are not there may come out as anything."""
    module = Module(converts_halves=target.converts_halves)
    dtype = product.dtype if product.before is None else product.before.dtype
    _Packer(module, "pack_a", SquareOrder.LINES, dtype, product.parts, product.before, product.projections).write()
    code = module.function("lines", (*LINES_PARAMETERS, *(FOLDED if product.projections else ())))
    pitch = unit_shape(1).rows * SQUARE
    strides, sizes = ("%across", "%along"), ("%rows", "%steps")
    folded = ("%w", "%folded") if product.projections else None
    _write_squares(code, "pack_a", dtype, product.parts, strides, sizes, str(pitch), folded)
    code.ret()
    return module.text(target.attributes)


def unit_panel_source(product: Product, target: VectorTarget) -> str:
    """The module of `panel`, for a right operand: see `packing.panel_source`."""
    module = Module(converts_halves=target.converts_halves)
    _Packer(module, "pack_b", SquareOrder.PAIRS, product.dtype, product.parts, None, product.projections).write()
    code = module.function("panel", (*PANEL_PARAMETERS, *(FOLDED if product.projections else ())))
    pitch = mul(code, "%width", 2 * STEP)
    strides, sizes = ("%along", "%across"), ("%columns", "%rows")
    folded = ("%folded", "%w") if product.projections else None
    _write_squares(code, "pack_b", product.dtype, product.parts, strides, sizes, pitch, folded)
    code.ret()
    return module.text(target.attributes)


def _write_squares(
    code: Function, pack: str, dtype: DType, parts: int, strides: tuple[str, str], sizes: tuple[str, str], pitch: str,
    folded: tuple[str, str] | None,
) -> None:  # fmt: skip
    """Pack so many lines of a length, 16 at a time, and some numbers of all of them before the next ones.

    `strides` are the bytes from one line to the next, and along a line. If the operand is projected, `folded` are the
    arguments of which each has an element for each line, and for each number of a line.
    """
    (lines, length), chunk = sizes, _CHUNK_STEPS * STEP
    line, along = (code.let(f"sdiv exact i64 {s}, {dtype.itemsize}") for s in strides)
    chunk_bytes = mul(code, pitch, _CHUNK_STEPS * parts)
    carried = [("ptr", "%from"), ("ptr", "%to")]
    with code.loop(0, length, chunk, carried) as part:
        count = least(code, sub(code, length, part.index), chunk)
        with code.loop(0, lines, LINES) as loop:
            here = shifted(code, part.values[0], mul(code, loop.index, strides[0]))
            there = shifted(code, part.values[1], mul(code, loop.index, 2 * STEP))
            there_are = least(code, sub(code, lines, loop.index), LINES)
            more = []
            if folded is not None:
                beside = [
                    shifted(code, x, mul(code, n, 4)) for x, n in zip(folded, (loop.index, part.index), strict=True)
                ]
                w, to = beside if folded[0] == "%w" else reversed(beside)
                w = choice(code, code.pure("icmp eq ptr %w, null"), "null", w, "ptr")  # nothing is projected
                more = [w, "%w_row", to, "%folded_row"]
            parameters = (*PARAMETERS, *(FOLDED if more else ()))
            code.invoke(f"@{pack}", parameters, here, line, along, there_are, count, there, pitch, *more)
        part.carry(
            shifted(code, part.values[0], mul(code, strides[1], chunk)), shifted(code, part.values[1], chunk_bytes)
        )


class _Packer:
    """Writes a function of up to 16 lines, of any length; elements are `line` and `along` apart. Zeros fill the last
    square. The parts of a step are `pitch` bytes apart."""

    def __init__(
        self, module: Module, name: str, order: SquareOrder, dtype: DType, parts: int, before: FusedStage | None,
        projections: int,
    ) -> None:  # fmt: skip
        """Lines, or for the right operand columns, whose numbers are contiguous are projected on so many vectors."""
        self.code = module.function(name, (*PARAMETERS, *(FOLDED if projections else ())))
        self.projections = projections
        self.weights = Multiples(self.code, "%w_row", projections) if projections else None
        self.k = LlvmBuilder(self.code, LINES)
        self.order = order
        self.dtype = dtype
        self.parts = parts
        self.before = before

    def write(self) -> None:
        """Code for each layout of the lines."""
        code = self.code
        self.step = mul(code, "%pitch", self.parts)
        self.whole = code.let(f"and i64 %length, {-STEP}")
        self.rest = sub(code, "%length", self.whole)
        self.is_rest = code.let(f"icmp sgt i64 {self.rest}, 0")
        beside = code.let("icmp eq i64 %along, 1")
        across = code.let(f"icmp ugt i1 {code.let('icmp eq i64 %line, 1')}, {beside}")
        apart = code.let(f"xor i1 {code.let(f'or i1 {beside}, {across}')}, true")
        if self.weights is not None:
            is_folded = code.let("icmp ne ptr %w, null")
            contiguous = beside if self.order is SquareOrder.LINES else across
            with code.when(code.let(f"and i1 {contiguous}, {is_folded}")):
                self._fold_lines(self.weights) if self.order is SquareOrder.LINES else self._across(self.weights)
            none = code.let(f"xor i1 {is_folded}, true")
            if self.order is SquareOrder.LINES:
                beside = code.let(f"and i1 {beside}, {none}")
        for condition, read in ((beside, self._beside), (apart, self._apart)):
            with code.when(condition):
                self._lines(read)
        plain = across
        if self.weights is not None and self.order is SquareOrder.PAIRS:
            plain = code.let(f"and i1 {across}, {none}")
        with code.when(plain):
            self._across()
        is_other = across if self.order is SquareOrder.LINES else code.let(f"xor i1 {across}, true")
        with code.when(is_other):
            self._transpose()
        code.ret()

    # Line by line

    def _lines(self, read: _Read) -> None:
        """Pack line by line, with a vector for each half of a step."""
        code = self.code
        halves = (self.rest, most(code, sub(code, self.rest, str(LINES)), 0))
        masks = [lanes_below(self.k, n) for n in halves]
        apart = mul(code, "%line", self.dtype.itemsize)
        with code.loop(0, "%lines", carried=[("ptr", "%from"), ("ptr", "%to")]) as line:
            here, there = line.values
            with code.loop(0, self.whole, STEP, carried=[("ptr", there)]) as step:
                both = [self._before(read(here, add(code, step.index, str(n)), None)) for n in (0, LINES)]
                self._store(step.values[0], self._parts(both))
                step.carry(shifted(code, step.values[0], self.step))
            with code.when(self.is_rest):
                both = [
                    self._kept(mask, self._before(read(here, add(code, self.whole, str(n)), mask)))
                    for n, mask in zip((0, LINES), masks, strict=True)
                ]
                self._store(step.values[0], self._parts(both))
            line.carry(shifted(code, here, apart), shifted(code, there, str(2 * STEP)))

    def _fold_lines(self, weights: Multiples) -> None:
        """All lines of a step before the next step: their numbers are projected while they are in registers."""
        code, k = self.code, self.k
        apart = mul(code, "%line", self.dtype.itemsize)
        halves = (self.rest, most(code, sub(code, self.rest, str(LINES)), 0))
        masks: list[str | None] = [lanes_below(k, n) for n in halves]

        def step(index: str, to: str, masks: list[str | None]) -> None:
            at = shifted(code, "%from", mul(code, index, self.dtype.itemsize))
            zeros = [(k.type(float32), "zeroinitializer")] * (2 * self.projections)
            with code.loop(0, "%lines", carried=[("ptr", at), ("ptr", to), ("ptr", "%w"), *zeros]) as line:
                here, there, w, *sums = line.values
                both = [
                    load(k, self.dtype, shifted(code, here, str(LINES * n * self.dtype.itemsize)), mask)
                    for n, mask in enumerate(masks)
                ]
                self._store(there, self._parts([x.text for x in both]))
                made = folded(k, weights, w, [k.negated(x) for x in both], sums)
                ends = (shifted(code, here, apart), shifted(code, there, str(2 * STEP)), shifted(code, w, "4"))
                line.carry(*ends, *made)
            for v in range(self.projections):
                totals = [Value(float32, s) for s in line.values[3 + 2 * v : 5 + 2 * v]]
                write_added(k, v, totals, masks, mul(code, index, 4))

        with code.loop(0, self.whole, STEP, carried=[("ptr", "%to")]) as loop:
            step(loop.index, loop.values[0], [None, None])
            loop.carry(shifted(code, loop.values[0], self.step))
        with code.when(self.is_rest):
            step(self.whole, loop.values[0], masks)

    def _beside(self, line: str, index: str, mask: str | None) -> Value:
        return load(self.k, self.dtype, shifted(self.code, line, mul(self.code, index, self.dtype.itemsize)), mask)

    def _apart(self, line: str, index: str, mask: str | None) -> Value:
        code, kind = self.code, self.k.vector("i64")
        numbers = ", ".join(f"i64 {n}" for n in range(LINES))
        at = shifted(code, line, mul(code, mul(code, index, "%along"), self.dtype.itemsize))
        places = code.pure(f"mul {kind} {self.k.splat(int64, '%along').text}, <{numbers}>")
        return gather(self.k, self.dtype, at, places, mask)

    # Across the lines

    def _across(self, weights: Multiples | None = None) -> None:
        """Pair by pair, a vector over all lines for each number. With weights, the numbers are projected, too: the two
        of a pair have sums of their own, because a sum that waits for the one before takes longer than its numbers."""
        code, kind = self.code, self.k.type(float32)
        mask = lanes_below(self.k, "%lines")
        sums = [] if weights is None else [("ptr", "%w"), *[(kind, "zeroinitializer")] * (2 * self.projections)]
        with code.loop(0, self.whole, STEP, carried=[("ptr", "%from"), ("ptr", "%to"), *sums]) as step:
            here, to, *folded = step.values
            following = self._pairs(here, to, mask, weights, folded, masked=False)
            step.carry(following[0], shifted(code, to, self.step), *following[1:])
        carried = step.values[2:]
        types = [kind for kind, _ in sums]
        with code.when(self.is_rest, list(zip(types, carried, strict=True))) as branch:
            here, to = step.values[:2]
            branch.give(*self._pairs(here, to, mask, weights, list(carried), masked=True)[1:])
        if weights is not None:
            both = [Value(float32, s) for s in branch.values[1:]]
            for v in range(self.projections):
                total = self.k.arithmetic("+", both[v], both[v + self.projections])
                write_added(self.k, v, [total], [mask])

    def _pairs(
        self, here: str, to: str, mask: str, weights: Multiples | None, sums: list[str], *, masked: bool
    ) -> tuple[str, ...]:
        """A step of pairs; if `masked`, as many as are left. Where the next step begins, and the sums."""
        code, truth = self.code, self.k.type(bool_)
        apart = mul(code, "%along", self.dtype.itemsize)
        ahead = mul(code, "%length", apart)
        types = [] if weights is None else ["ptr", *[self.k.type(float32)] * (2 * self.projections)]
        carried = [("ptr", here), ("ptr", to), *zip(types, sums, strict=True)]
        with code.loop(0, STEP, 2, carried=carried) as pair:
            here, there, *sums = pair.values
            both = []
            for n in range(2):
                own = mask
                if masked:
                    is_there = code.let(f"icmp sgt i64 {self.rest}, {add(code, pair.index, str(n))}")
                    own = code.let(f"select i1 {is_there}, {truth} {mask}, {truth} zeroinitializer")
                read = load(self.k, self.dtype, here, own)
                if self.order is SquareOrder.PAIRS:  # a row of the next chunk: it is too far away to be guessed
                    ask_for(code, shifted(code, here, ahead), to_read=True)
                if weights is not None:
                    # Behind the last number, weights may be anything.
                    w = code.let(f"select i1 {is_there}, ptr {sums[0]}, ptr %w") if masked else sums[0]
                    own_sums = slice(1 + n * self.projections, 1 + (n + 1) * self.projections)
                    sums[own_sums] = folded(self.k, weights, w, [read], sums[own_sums])
                    sums[0] = shifted(code, sums[0], "4")
                value = self._before(read)
                both.append(self._kept(own, value) if masked else value)
                here = shifted(code, here, apart)
            self._store(there, [self._interleaved(part) for part in self._parts(both)])
            pair.carry(here, shifted(code, there, str(2 * STEP)), *sums)
        return (pair.values[0], *pair.values[2:])

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
            where = shifted(self.code, to, mul(self.code, "%pitch", part))
            self.code.do(f"store {_BITS} {text}, ptr {where}, align {2 * STEP}")

    def _transpose(self) -> None:
        """All squares in the other order."""
        code = self.code
        with code.loop(0, "%length", STEP, carried=[("ptr", "%to")]) as step:
            with code.loop(0, self.parts, carried=[("ptr", step.values[0])]) as part:
                places = [shifted(code, part.values[0], str(2 * STEP * n)) for n in range(LINES)]
                rows = [Value(uint32, code.let(f"load {_WORDS}, ptr {place}, align {2 * STEP}")) for place in places]
                for row, place in zip(transposed(self.k, rows), places, strict=True):
                    code.do(f"store {_WORDS} {row.text}, ptr {place}, align {2 * STEP}")
                part.carry(shifted(code, part.values[0], "%pitch"))
            step.carry(shifted(code, step.values[0], self.step))

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
        """Round to the nearest bfloat16, ties to even, and subnormal numbers to zero."""
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
