"""Attention on a matrix unit: one kernel, with the scores in registers only.

    for each tile of queries, by a block; each of its subgroups has some rows of it, in registers:
        for each tile of keys and their values, in shared memory, the next one on its way:
            scores = queries · keysᵀ    (fragments of sums)
            weights = two to the power of the scores, relative to each row's base
            results += weights · values    (the weights are a left operand where they are)

The base of a row is one of its scores. It follows when scores have grown beyond it by a factor of more than 2⁸, which
happens a few times: till then weights are at most that large, and nothing has to shrink. What is hidden by a mask has
weight 0, and a query that sees nothing becomes 0.
"""

from __future__ import annotations

from math import e, log2
from typing import Final

from ..._tensor.node import Call
from .attention import Attending, attention_refusal
from .dialect import Dialect
from .kernel_source import Kernel
from .matrix_unit import COLUMNS, DEPTH, ROWS
from .unit_rows import Shape, UnitRows

_WIDEST: Final = 128
"""Features of queries and of values that registers have room for."""
_GROWTH: Final = 8.0
"""Powers of two that a row's scores may be above its base."""
_REGISTERS: Final = 160
"""Registers of a thread that matrices may have; the rest is for fragments on their way, and for places."""
_FOR_MASK: Final = 40
"""Those that a mask takes away from them."""
SHARED: Final = 48 << 10
"""Bytes that a block may share."""
STAGES: Final = 2
"""Tiles at a time: one that is worked on, one on its way."""


def unit_refusal(call: Call, dialect: Dialect) -> str | None:
    """Why a call is not computed by this kernel, or `None`."""
    return attention_refusal(call) or rows_refusal(call, dialect)


def powers_of_two(own: Attending) -> float:
    """The factor that makes a score a power of two; numbers that a mask adds come after the scale."""
    return log2(e) if own.adds else float(own.call.attrs["scale"]) * log2(e)


def rows_refusal(call: Call, dialect: Dialect) -> str | None:
    """Why a matrix unit does not multiply the rows of attention, or of its gradient, or `None`."""
    dtype = call.inputs[0].dtype
    unit = dialect.matrix_unit(dtype)
    if unit is None or not unit.keeps_places or unit.splits:
        return f"no matrix unit for {dtype.name}"
    for width in (call.inputs[0].shape[-1], call.inputs[2].shape[-1]):
        if width % DEPTH or not 0 < width <= _WIDEST:
            return f"{width} features are no multiple of {DEPTH} up to {_WIDEST}"
    if not call.attrs["scale"] > 0:
        return "its scale turns scores round"
    return None


SHAPES: Final = {
    "4x32 queries, 64 keys": Shape(4, 2, 64),
    "4x16 queries, 64 keys": Shape(4, 1, 64),
    "4x32 queries, 32 keys": Shape(4, 2, 32),
    "4x16 queries, 32 keys": Shape(4, 1, 32),
}
"""The shapes that may be tried, by name. With more rows for a subgroup each fragment of keys serves more of them; with
fewer there are more blocks."""


def unit_shapes(call: Call) -> dict[str, Shape]:
    """The shapes for a call that is not refused, the one that is expected to be best first."""
    return {name: shape for name, shape in SHAPES.items() if _fits(shape, call)}


def _fits(shape: Shape, call: Call) -> bool:
    """True if there is shared memory for the tiles, and registers for queries, scores and results."""
    features, values, has_mask = call.inputs[0].shape[-1], call.spec.shape[-1], len(call.inputs) > 3
    registers = shape.fragments * (features // 4 + shape.tile // 2 + values // 2)
    shared = STAGES * shape.tile * 2 * (features + values)
    return shared <= SHARED and registers <= _REGISTERS - (_FOR_MASK if has_mask else 0)


def unit_attention(call: Call, dialect: Dialect, shape: Shape) -> Kernel:
    """The kernel of a call that is not refused, whose result has elements."""
    unit = dialect.matrix_unit(call.inputs[0].dtype)
    assert unit is not None
    return _UnitAttention(Attending(call, dialect, shape.block), unit, shape).written()


class _UnitAttention(UnitRows):
    """Writes one kernel."""

    def written(self) -> Kernel:
        """The whole kernel."""
        own, shape = self.own, self.shape
        self.to_powers = powers_of_two(own)
        k_tiles, v_tiles = self.tiles("k_tiles", own.features, STAGES), self.tiles("v_tiles", own.values, STAGES)
        self.across = own.values // COLUMNS
        self.write_thread()
        keys, values = self.fragments(k_tiles), self.fragments(v_tiles, transposed=True)
        self.write_left("queries", 0, own.features, own.queries)
        self._write_start()
        with self.each_tile({k_tiles: 1, v_tiles: 2}, own.keys):
            self.write_products("score", "queries", own.features, keys)
            self.write_masked("score", "begin", own.keys)
            self._write_bases()
            self._write_weights()
            self.write_weighted("out", "score", values)
        self._write_results()
        return self.frame.kernel(own.groups * shape.items, shape.items)

    def _write_start(self) -> None:
        """The registers of a thread: for each of its rows the sum of weights, the scores that make a new base, and the
        number that is added to scores to be relative to the base."""
        k, fragments = self.k, self.shape.fragments
        self.write_zeros("out", self.own.values)
        k.say(f"float total[{fragments}][2], limit[{fragments}][2], shift[{fragments}][2]")
        with k.each("m", fragments), k.each("r", 2):
            k.say("total[m][r] = 0.0f; limit[m][r] = -INFINITY; shift[m][r] = 0.0f")

    def _write_bases(self) -> None:
        """Where scores have grown, a row's base is the largest score so far, and its sums shrink."""
        k, shape = self.k, self.shape
        k.lines += [f"float most[{shape.fragments}][2];", "bool grown = false;"]
        with k.each("m", shape.fragments), k.each("r", 2):
            k.say("most[m][r] = score[m][0][r * 2]")
            with k.each("n", shape.tile // COLUMNS), k.each("c", 2):
                k.say("most[m][r] = fmaxf(most[m][r], score[m][n][r * 2 + c])")
            k.say("grown |= most[m][r] > limit[m][r]")
        growth = self.number(_GROWTH / self.to_powers)
        with (
            k.block("if (any_of_team(grown))"),
            k.each("m", shape.fragments),
            k.each("r", 2),
        ):
            for distance in (1, 2):
                k.say(f"most[m][r] = fmaxf(most[m][r], from_partner(most[m][r], {distance}))")
            k.say(f"const float base = fmaxf(most[m][r], limit[m][r] - {growth})")
            # Nothing was seen before, and so nothing is there to shrink, or nothing is seen yet.
            k.say("const bool fresh = limit[m][r] == -INFINITY, blind = base == -INFINITY")
            k.say(f"const float turned = blind ? 0.0f : -base * {self.number(self.to_powers)}")
            k.say("const float shrunk = fresh ? 0.0f : exp2_of(turned - shift[m][r])")
            k.lines += ["shift[m][r] = turned;", f"limit[m][r] = base + {growth};", "total[m][r] *= shrunk;"]
            with k.each("n", self.across), k.each("c", 2):
                k.say("out[m][n][r * 2 + c] *= shrunk")

    def _write_weights(self) -> None:
        k, shape, fma = self.k, self.shape, self.own.dialect.function("fma", "float")
        with (
            k.each("n", shape.tile // COLUMNS),
            k.each("m", shape.fragments),
            k.each("c", 4),
        ):
            power = f"{fma}(score[m][n][c], {self.number(self.to_powers)}, shift[m][c / 2])"
            k.say(f"score[m][n][c] = exp2_of({power})")
            k.say("total[m][c / 2] += score[m][n][c]")

    def _write_results(self) -> None:
        k, own = self.k, self.own
        with k.each("m", self.shape.fragments), k.each("r", 2):
            for distance in (1, 2):
                k.say(f"total[m][r] += from_partner(total[m][r], {distance})")
            inverse = "1.0f / total[m][r]"
            inverse = k.let("float", f"total[m][r] == 0.0f ? 0.0f : {inverse}" if own.hides else inverse)
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + r * 8")
            with k.block(f"if ({row} < {own.queries})"):
                self.write_row(0, "out", own.values, row, inverse)
