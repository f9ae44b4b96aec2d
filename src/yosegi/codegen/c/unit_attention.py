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

from dataclasses import dataclass
from math import e, log2
from typing import Final

from ..._tensor.dtype import float32
from ..._tensor.node import Call
from ..scalar.value import Value, spelled
from .attention import Attending, attention_refusal
from .dialect import Dialect
from .fragments import PacketTiles
from .kernel_source import Kernel
from .matrix_unit import COLUMNS, DEPTH, PACKET, ROWS, SUBGROUP, MatrixUnit
from .packets import packet_type

_WIDEST: Final = 128
"""Features of queries and of values that registers have room for."""
_GROWTH: Final = 8.0
"""Powers of two that a row's scores may be above its base."""
_REGISTERS: Final = 160
"""Registers of a thread that matrices may have; the rest is for fragments on their way, and for places."""
_FOR_MASK: Final = 40
"""Those that a mask takes away from them."""
_SHARED: Final = 48 << 10
"""Bytes that a block may share."""
_STAGES: Final = 2
"""Tiles of keys at a time: one that is worked on, one on its way."""


def unit_refusal(call: Call, dialect: Dialect) -> str | None:
    """Why a call is not computed by this kernel, or `None`."""
    reason = attention_refusal(call)
    if reason is not None:
        return reason
    dtype = call.inputs[0].dtype
    unit = dialect.matrix_unit(dtype)
    if unit is None or not unit.keeps_places or unit.splits:
        return f"no matrix unit for {dtype.name}"
    for width in (call.inputs[0].shape[-1], call.spec.shape[-1]):
        if width % DEPTH or not 0 < width <= _WIDEST:
            return f"{width} features are no multiple of {DEPTH} up to {_WIDEST}"
    if not call.attrs["scale"] > 0:
        return "its scale turns scores round"
    return None


@dataclass(frozen=True, slots=True)
class Shape:
    """How the work is cut: subgroups of a block, fragments of rows that each of them has, and keys in a tile."""

    subgroups: int
    fragments: int
    keys: int

    @property
    def block(self) -> int:
        """Queries of a block."""
        return self.subgroups * self.fragments * ROWS

    @property
    def items(self) -> int:
        """Threads of a block."""
        return self.subgroups * SUBGROUP

    def fits(self, features: int, values: int, has_mask: bool) -> bool:
        """Whether there is shared memory for the tiles, and registers for queries, scores and results."""
        registers = self.fragments * (features // 4 + self.keys // 2 + values // 2)
        shared = _STAGES * self.keys * 2 * (features + values)
        return shared <= _SHARED and registers <= _REGISTERS - (_FOR_MASK if has_mask else 0)


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
    features, values = call.inputs[0].shape[-1], call.spec.shape[-1]
    return {name: shape for name, shape in SHAPES.items() if shape.fits(features, values, len(call.inputs) > 3)}


def unit_attention(call: Call, dialect: Dialect, shape: Shape) -> Kernel:
    """The kernel of a call that is not refused, whose result has elements."""
    unit = dialect.matrix_unit(call.inputs[0].dtype)
    assert unit is not None
    return _UnitAttention(Attending(call, dialect, shape.block), unit, shape).written()


class _UnitAttention:
    """Writes one kernel."""

    def __init__(self, own: Attending, unit: MatrixUnit, shape: Shape) -> None:
        self.own, self.frame, self.k, self.ctype = own, own.frame, own.frame.k, own.ctype
        self.shape = shape
        dtype = own.call.spec.dtype
        self.name, self.word = unit.names[dtype], own.dialect.stored[dtype]
        self.packet = packet_type(self.k, dtype, PACKET)
        self.k.declarations["matrix unit"] = unit.functions
        self.k_tiles = PacketTiles("k_tiles", shape.keys, own.features, _STAGES)
        self.v_tiles = PacketTiles("v_tiles", shape.keys, own.values, _STAGES)
        self.steps, self.across = own.features // DEPTH, own.values // COLUMNS
        self.fma = own.dialect.function("fma", "float")
        scale = float(own.call.attrs["scale"])
        self.to_powers = log2(e) if own.adds else scale * log2(e)
        """The factor that makes a score a power of two; numbers that a mask adds come after the scale."""

    def written(self) -> Kernel:
        """The whole kernel."""
        own, k, shape, frame = self.own, self.k, self.shape, self.frame
        for tiles in (self.k_tiles, self.v_tiles):
            tiles.declare(self.k, self.packet)
        own.write_places()
        self.lane = k.let("int", f"{own.item} % {SUBGROUP}")
        self.row = k.let(
            self.ctype, f"{own.first} + {own.item} / {SUBGROUP} * {shape.fragments * ROWS} + {self.lane} / 4"
        )
        """The thread's first query; it has every eighth from there."""
        self.pair = k.let("int", f"{self.lane} % 4 * 2")
        """The first of the two columns that a thread has of each fragment."""
        # Of keys a fragment is read with the second eight rows last, of values, turned, with the second eight columns.
        self.key_places = self.k_tiles.write_fragments(
            k, f"({self.lane} / 16 * 8 + {self.lane} % 8)", f"{self.lane} / 8 % 2"
        )
        self.value_places = self.v_tiles.write_fragments(k, f"({self.lane} % 16)", f"{self.lane} / 16")
        self._write_tiles("0", "0")
        self._write_queries()
        self._write_start()
        k.say("int stage = 0")
        with k.block(f"for ({self.ctype} begin = 0; begin < {own.stop}; begin += {shape.keys})"):
            k.say("await_copies<0>()")
            k.barrier()
            with k.block(f"if (begin + {shape.keys} < {own.stop})"):
                self._write_tiles("1 - stage", k.let(self.ctype, f"begin + {shape.keys}"))
            self._write_scores()
            self._write_masks()
            self._write_bases()
            self._write_weights()
            self._write_sums()
            k.say("stage = 1 - stage")
        self._write_results()
        return frame.kernel(own.groups * shape.items, shape.items)

    def _number(self, value: float) -> str:
        return spelled(value, float32, "float")

    # Memory

    def _write_tiles(self, stage: str, begin: str) -> None:
        """Begin to bring keys and their values to shared memory; zeros beyond the end."""
        self._write_tile(self.k_tiles, 1, stage, begin)
        self._write_tile(self.v_tiles, 2, stage, begin)
        self.k.say("end_copies()")

    def _write_tile(self, tiles: PacketTiles, operand: int, stage: str, begin: str) -> None:
        k, items, packets = self.k, self.shape.items, tiles.packets
        with k.each("turn", -(-tiles.total // items)):
            number = k.let("int", f"turn * {items} + {self.own.item}")
            with k.block(f"if ({number} < {tiles.total})" if tiles.total % items else ""):
                row, packet = k.let("int", f"{number} / {packets}"), k.let("int", f"{number} % {packets}")
                key = k.let(self.ctype, f"{begin} + {row}")
                inside = k.let("bool", f"{key} < {self.own.keys}")
                start = f"{self.own.starts[operand]} + ({inside} ? {key} : 0) * {tiles.columns} + {packet} * {PACKET}"
                k.say(f"copy_packet({tiles.place(stage, row, packet)}, a{operand} + ({start}), {inside})")

    def _write_queries(self) -> None:
        """A subgroup's queries, as left operands; zeros beyond the end."""
        k, own = self.k, self.own
        two = packet_type(k, own.call.spec.dtype, 2)
        k.say(f"unsigned queries[{self.shape.fragments}][{self.steps}][4]")
        with (
            k.each("m", self.shape.fragments),
            k.each("s", self.steps),
            k.each("w", 4),
        ):
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + w % 2 * 8")
            place = f"{own.starts[0]} + {row} * {own.features} + s * {DEPTH} + w / 2 * 8 + {self.pair}"
            k.say("queries[m][s][w] = 0")
            with k.block(f"if ({row} < {own.queries})"):
                read = k.let(two, own.dialect.load_packet.format(name=two, pointer="a0", at=f"({place})"))
                k.say(f"queries[m][s][w] = {own.dialect.reinterpret.format(type='unsigned', x=read)}")

    # Sums

    def _write_start(self) -> None:
        """The registers of a thread: for each of its rows the sum of weights, the scores that make a new base, and the
        number that is added to scores to be relative to the base."""
        k, fragments = self.k, self.shape.fragments
        k.say(f"float out[{fragments}][{self.across}][4]")
        k.say(f"float total[{fragments}][2], limit[{fragments}][2], shift[{fragments}][2]")
        with k.each("m", fragments):
            with k.each("n", self.across), k.each("c", 4):
                k.say("out[m][n][c] = 0.0f")
            with k.each("r", 2):
                k.say("total[m][r] = 0.0f; limit[m][r] = -INFINITY; shift[m][r] = 0.0f")

    def _write_scores(self) -> None:
        """Queries by keys. A subgroup reads a fragment of the keys once for all its rows."""
        k, shape = self.k, self.shape
        k.say(f"float score[{shape.fragments}][{shape.keys // COLUMNS}][4]")
        with (
            k.each("m", shape.fragments),
            k.each("n", shape.keys // COLUMNS),
            k.each("c", 4),
        ):
            k.say("score[m][n][c] = 0.0f")
        with k.each("s", self.steps), k.each("p", shape.keys // DEPTH):
            k.say("unsigned words[4]")
            k.say(f"load_matrices(words, {self.key_places.place('stage', 'p', 's')})")
            with k.each("m", shape.fragments), k.each("h", 2):
                operands = "score[m][p * 2 + h], queries[m][s], words[h * 2], words[h * 2 + 1]"
                k.say(f"multiply_add_{self.name}({operands})")

    def _write_masks(self) -> None:
        """Scores that are not to be seen become the least there is."""
        k, own, shape = self.k, self.own, self.shape
        end = k.let(self.ctype, f"begin + {shape.keys}")
        beyond = f"{end} > {own.keys}"
        if own.is_causal:
            beyond += f" || {end} > {own.first} + {own.item} / {SUBGROUP} * {shape.fragments * ROWS} + 1"
        with (
            k.block("" if own.has_mask else f"if ({beyond})"),
            k.each("m", shape.fragments),
            k.each("n", shape.keys // COLUMNS),
            k.each("c", 4),
        ):
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + c / 2 * 8")
            column = k.let(self.ctype, f"begin + n * {COLUMNS} + {self.pair} + c % 2")
            k.say("float made = -INFINITY")
            with k.block(f"if ({own.seen(row, column)})"):
                score = Value(float32, "score[m][n][c]")
                scaled = k.mul(score, own.scale(k)) if own.adds else score
                k.say(f"made = {own.masked(k, scaled, row, column).text}")
            k.say("score[m][n][c] = made")

    def _write_bases(self) -> None:
        """Where scores have grown, a row's base is the largest score so far, and its sums shrink."""
        k, shape = self.k, self.shape
        k.lines += [f"float most[{shape.fragments}][2];", "bool grown = false;"]
        with k.each("m", shape.fragments), k.each("r", 2):
            k.say("most[m][r] = score[m][0][r * 2]")
            with k.each("n", shape.keys // COLUMNS), k.each("c", 2):
                k.say("most[m][r] = fmaxf(most[m][r], score[m][n][r * 2 + c])")
            k.say("grown |= most[m][r] > limit[m][r]")
        growth = self._number(_GROWTH / self.to_powers)
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
            k.say(f"const float turned = blind ? 0.0f : -base * {self._number(self.to_powers)}")
            k.say("const float shrunk = fresh ? 0.0f : exp2_of(turned - shift[m][r])")
            k.lines += ["shift[m][r] = turned;", f"limit[m][r] = base + {growth};", "total[m][r] *= shrunk;"]
            with k.each("n", self.across), k.each("c", 2):
                k.say("out[m][n][r * 2 + c] *= shrunk")

    def _write_weights(self) -> None:
        k, shape = self.k, self.shape
        with (
            k.each("n", shape.keys // COLUMNS),
            k.each("m", shape.fragments),
            k.each("c", 4),
        ):
            power = f"{self.fma}(score[m][n][c], {self._number(self.to_powers)}, shift[m][c / 2])"
            k.say(f"score[m][n][c] = exp2_of({power})")
            k.say("total[m][c / 2] += score[m][n][c]")

    def _write_sums(self) -> None:
        """Weights by values."""
        k, shape = self.k, self.shape
        with k.each("s", shape.keys // DEPTH):
            k.say(f"unsigned weights[{shape.fragments}][4]")
            with k.each("m", shape.fragments), k.each("w", 4):
                low, high = (f"score[m][s * 2 + w / 2][w % 2 * 2{more}]" for more in ("", " + 1"))
                k.say(f"weights[m][w] = words_of_{self.name}({low}, {high})")
            with k.each("p", self.own.values // DEPTH):
                k.say("unsigned words[4]")
                k.say(f"load_turned(words, {self.value_places.place('stage', 's', 'p')})")
                with k.each("m", shape.fragments), k.each("h", 2):
                    operands = "out[m][p * 2 + h], weights[m], words[h * 2], words[h * 2 + 1]"
                    k.say(f"multiply_add_{self.name}({operands})")

    def _write_results(self) -> None:
        k, own = self.k, self.own
        two = packet_type(k, own.call.spec.dtype, 2)
        with k.each("m", self.shape.fragments), k.each("r", 2):
            for distance in (1, 2):
                k.say(f"total[m][r] += from_partner(total[m][r], {distance})")
            inverse = "1.0f / total[m][r]"
            inverse = k.let("float", f"total[m][r] == 0.0f ? 0.0f : {inverse}" if own.hides else inverse)
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + r * 8")
            with k.block(f"if ({row} < {own.queries})"), k.each("n", self.across):
                made = [f"out[m][n][r * 2 + {c}] * {inverse}" for c in range(2)]
                word = k.let("unsigned", f"words_of_{self.name}({', '.join(made)})")
                place = f"({own.starts[-1]} + {row} * {own.values} + n * {COLUMNS} + {self.pair})"
                value = own.dialect.reinterpret.format(type=two, x=word)
                k.say(own.dialect.store_packet.format(name=two, pointer="b0", at=place, value=value))
