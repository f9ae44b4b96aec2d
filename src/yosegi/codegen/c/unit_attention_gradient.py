"""The gradient of attention on a matrix unit: two kernels, with scores and their gradients in registers only.

The first kernel takes tiles of queries. It goes through the keys twice:

    totals of every row of scores
    for each tile of keys and values:
        scores = queries · keysᵀ, weights = two to the power of the scores less their row's total
        slopes = weights × (g · valuesᵀ - delta), where delta is the sum over a row of g × the result
        gradient of queries += slopes · keys

It writes the totals and deltas for the second kernel, which takes tiles of keys, and goes through the queries once:

    for each tile of queries and of g:
        weights and slopes as before, transposed
        gradient of values += weightsᵀ · g, gradient of keys += slopesᵀ · queries

Every sum is added up by one warp, in one order.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import float32
from ..._tensor.node import Call, spec
from ..._tensor.role import AttentionGradient
from .attention import Attending, operands_refusal
from .dialect import Dialect
from .kernel_source import Kernel
from .matrix_unit import COLUMNS, ROWS, MatrixUnit
from .packets import packet_type
from .stages import KernelProgram, Stage
from .unit_attention import SHARED, STAGES, powers_of_two, rows_refusal
from .unit_rows import Shape as Cut
from .unit_rows import UnitRows

_REGISTERS: Final = 208
"""Registers of a thread that matrices may have."""
_LANES: Final = 4
"""Row numbers that are copied at once."""
_PADDING: Final = 128
"""Row numbers are written in multiples of it: a whole number of blocks of each shape."""

SHAPES: Final = {
    "4x16 rows, 64 columns": Cut(4, 1, 64),
    "4x16 rows, 32 columns": Cut(4, 1, 32),
    "8x16 rows, 32 columns": Cut(8, 1, 32),
    "4x16 rows, 16 columns": Cut(4, 1, 16),
}
"""The shapes that may be tried, by name."""


def gradient_refusal(call: Call, dialect: Dialect) -> str | None:
    """Why a call is not computed by these kernels, or `None`."""
    if not isinstance(call.op.role, AttentionGradient):
        return "it is no gradient of attention"
    return operands_refusal(call) or rows_refusal(call, dialect)


def gradient_shapes(call: Call) -> dict[str, Cut]:
    """The shapes for a call that is not refused, the one that is expected to be best first."""
    return {name: shape for name, shape in SHAPES.items() if _fits(shape, call)}


def _fits(shape: Cut, call: Call) -> bool:
    """True if there is shared memory for the tiles, and registers for rows, scores, slopes and sums."""
    widths = call.inputs[0].shape[-1] + call.inputs[2].shape[-1]
    registers = shape.fragments * (widths // 4 + widths // 2 + shape.tile)
    shared = STAGES * shape.tile * (2 * widths + 2 * float32.itemsize)
    return shared <= SHARED and registers <= _REGISTERS


def unit_attention_gradient(call: Call, dialect: Dialect, shape: Cut) -> KernelProgram:
    """The kernels of a call that is not refused, whose results have elements."""
    unit = dialect.matrix_unit(call.inputs[0].dtype)
    assert unit is not None
    q, k, v, out, g, *mask = call.inputs
    dq, dk, dv = call.outputs
    padded = -(-q.shape[-2] // _PADDING) * _PADDING
    numbers = spec((*dq.shape[:-2], 1, padded), float32)
    by_queries = Attending(call, dialect, shape.block, (q, k, v, out, g, *mask), (dq, numbers, numbers))
    by_keys = Attending(call, dialect, shape.block, (q, k, v, g, numbers, numbers, *mask), (dk, dv), by_keys=True)
    count = len(call.inputs)
    masks = tuple(range(5, count))
    outputs = range(count, count + 3)
    scratch = (count + 3, count + 4)
    return KernelProgram(
        (
            Stage(_ByQueries(by_queries, unit, shape).written(), tuple(range(count)), (outputs[0], *scratch)),
            Stage(_ByKeys(by_keys, unit, shape).written(), (0, 1, 2, 4, *scratch, *masks), (outputs[1], outputs[2])),
        ),
        ((numbers.shape, float32), (numbers.shape, float32)),
    )


class _GradientKernel(UnitRows):
    """The common part of both kernels."""

    def __init__(self, own: Attending, unit: MatrixUnit, shape: Cut) -> None:
        super().__init__(own, unit, shape)
        self.powers = self.number(powers_of_two(own))
        self.scale = self.number(own.call.attrs["scale"])

    def power(self, score: str, shift: str) -> str:
        """Two to the power of a score, relative to its row."""
        return f"exp2_of({self.own.dialect.function('fma', 'float')}({score}, {self.powers}, {shift}))"

    def write_slopes(self, shift: str, delta: str) -> None:
        """Scores become weights; the products of g and values, the gradients of scores."""
        k = self.k
        with k.each("m", self.shape.fragments), k.each("n", self.shape.tile // COLUMNS), k.each("c", 4):
            k.say(f"score[m][n][c] = {self.power('score[m][n][c]', shift)}")
            k.say(f"slope[m][n][c] = score[m][n][c] * (slope[m][n][c] - {delta})")

    def write_results(self, end: str, **factors: tuple[int, str]) -> None:
        """Sums to memory, each with its width and its factor."""
        k = self.k
        with k.each("m", self.shape.fragments), k.each("r", 2):
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + r * 8")
            with k.block(f"if ({row} < {end})"):
                for output, (sums, (width, factor)) in enumerate(factors.items()):
                    self.write_row(output, sums, width, row, factor)


class _ByQueries(_GradientKernel):
    """Writes the kernel of the queries' gradient."""

    def written(self) -> Kernel:
        """The whole kernel."""
        own, shape = self.own, self.shape
        k_tiles, v_tiles = self.tiles("k_tiles", own.features, STAGES), self.tiles("v_tiles", own.values, STAGES)
        self.write_thread()
        keys, values = self.fragments(k_tiles), self.fragments(v_tiles)
        transposed = self.fragments(k_tiles, transposed=True)
        self.write_left("queries", 0, own.features, own.queries)
        self.write_left("g", 4, own.values, own.queries)
        self._write_start()
        with self.each_tile({k_tiles: 1}, own.keys):
            self.write_products("score", "queries", own.features, keys)
            self.write_masked("score", "begin", own.keys)
            self._write_totals()
        self._write_numbers()
        self.write_zeros("dq", own.features)
        with self.each_tile({k_tiles: 1, v_tiles: 2}, own.keys):
            self.write_products("score", "queries", own.features, keys)
            self.write_masked("score", "begin", own.keys)
            self.write_products("slope", "g", own.values, values)
            self.write_slopes("shift[m][c / 2]", "delta[m][c / 2]")
            self.write_weighted("dq", "slope", transposed)
        self.write_results(own.queries, dq=(own.features, self.scale))
        return self.frame.kernel(own.groups * shape.items, shape.items)

    def _write_start(self) -> None:
        """For each of a thread's rows: the sum of g times the result, the largest score that the thread has seen, and
        the sum of weights relative to it."""
        k, own, fragments = self.k, self.own, self.shape.fragments
        k.say(f"float delta[{fragments}][2], most[{fragments}][2], total[{fragments}][2], shift[{fragments}][2]")
        with k.each("m", fragments), k.each("r", 2):
            k.say("delta[m][r] = 0.0f; most[m][r] = -INFINITY; total[m][r] = 0.0f")
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + r * 8")
            with k.block(f"if ({row} < {own.queries})"), k.each("n", own.values // COLUMNS):
                column = f"{row} * {own.values} + n * {COLUMNS} + {self.pair}"
                out, g = (self.read_pair(n, f"{own.starts[n]} + {column}") for n in (3, 4))
                for lane in range(2):
                    a, b = (k.from_half_bits(self.dtype, f"{pair}.lane[{lane}]").text for pair in (out, g))
                    k.say(f"delta[m][r] += {a} * {b}")

    def _write_totals(self) -> None:
        """Sums of weights, relative to the largest score so far."""
        k = self.k
        with k.each("m", self.shape.fragments), k.each("r", 2):
            k.say("float above = most[m][r]")
            with k.each("n", self.shape.tile // COLUMNS), k.each("c", 2):
                k.say("above = fmaxf(above, score[m][n][r * 2 + c])")
            k.say(f"const float base = above == -INFINITY ? 0.0f : -above * {self.powers}")
            k.say(f"total[m][r] *= {self.power('most[m][r]', 'base')}")
            with k.each("n", self.shape.tile // COLUMNS), k.each("c", 2):
                k.say(f"total[m][r] += {self.power('score[m][n][r * 2 + c]', 'base')}")
            k.say("most[m][r] = above")

    def _write_numbers(self) -> None:
        """Combine the totals and deltas of the four threads of a row, and write them for the other kernel. A query that
        sees nothing has no weights."""
        k, own = self.k, self.own
        with k.each("m", self.shape.fragments), k.each("r", 2):
            for distance in (1, 2):
                with k.block(""):
                    k.say(f"const float other = from_partner(most[m][r], {distance})")
                    k.say(f"const float more = from_partner(total[m][r], {distance})")
                    k.say("const float above = fmaxf(most[m][r], other)")
                    k.say(f"const float base = above == -INFINITY ? 0.0f : -above * {self.powers}")
                    own_total, other_total = self.power("most[m][r]", "base"), self.power("other", "base")
                    k.say(f"total[m][r] = total[m][r] * {own_total} + more * {other_total}")
                    k.say("most[m][r] = above")
                    k.say(f"delta[m][r] += from_partner(delta[m][r], {distance})")
            logarithm = f"{own.dialect.function('log2', 'float')}(total[m][r])"
            k.say(f"shift[m][r] = most[m][r] == -INFINITY ? 0.0f : -most[m][r] * {self.powers} - {logarithm}")
            with k.block(f"if ({self.pair} == 0)"):
                row = k.let(self.ctype, f"{self.row} + m * {ROWS} + r * 8")
                for output, name in ((1, "shift"), (2, "delta")):
                    k.say(f"b{output}[{own.results[output]} + {row}] = {name}[m][r]")


class _ByKeys(_GradientKernel):
    """Writes the kernel of the gradients of keys and values."""

    def written(self) -> Kernel:
        """The whole kernel."""
        own, k, shape = self.own, self.k, self.shape
        q_tiles, g_tiles = self.tiles("q_tiles", own.features, STAGES), self.tiles("g_tiles", own.values, STAGES)
        k.shared(packet_type(k, float32, _LANES), "numbers", STAGES * self._packets)
        k.say("const Place numbers_place = place_of(numbers)")
        self.write_thread()
        queries, g = self.fragments(q_tiles), self.fragments(g_tiles)
        q_transposed, g_transposed = (self.fragments(t, transposed=True) for t in (q_tiles, g_tiles))
        self.write_left("keys", 1, own.features, own.keys)
        self.write_left("values", 2, own.values, own.keys)
        self.write_zeros("dk", own.features)
        self.write_zeros("dv", own.values)
        first = k.let(self.ctype, f"{own.first} / {shape.tile} * {shape.tile}") if own.is_causal else "0"
        with self.each_tile({q_tiles: 0, g_tiles: 3}, own.queries, first, self._write_numbers):
            self.write_products("score", "keys", own.features, queries)
            self.write_masked("score", "begin", own.queries)
            self.write_products("slope", "values", own.values, g)
            self.write_slopes(self._number_of(0), self._number_of(1))
            self.write_weighted("dv", "score", g_transposed)
            self.write_weighted("dk", "slope", q_transposed)
        self.write_results(own.keys, dk=(own.features, self.scale), dv=(own.values, "1.0f"))
        return self.frame.kernel(own.groups * shape.items, shape.items)

    @property
    def _packets(self) -> int:
        """Packets of the numbers of a tile's rows: their totals, then their deltas."""
        return 2 * self.shape.tile // _LANES

    def _write_numbers(self, stage: str, begin: str) -> None:
        """Begin to bring the numbers of rows to shared memory."""
        k, own = self.k, self.own
        with k.block(f"if ({own.item} < {self._packets})"):
            half = self._packets // 2
            row = k.let(self.ctype, f"{begin} + {own.item} % {half} * {_LANES}")
            source = f"{own.item} < {half} ? a4 + ({own.starts[4]} + {row}) : a5 + ({own.starts[5]} + {row})"
            place = f"numbers_place + (({stage}) * {self._packets} + {own.item}) * 16"
            k.say(f"copy_packet({place}, {source}, {begin} < {own.queries})")

    def _number_of(self, kind: int) -> str:
        """A number of the row [n][c] of a tile."""
        packet = f"(stage * 2 + {kind}) * {self._packets // 2} + n * {COLUMNS // _LANES} + {self.pair} / {_LANES}"
        return f"numbers[{packet}].lane[{self.pair} % {_LANES} + c % 2]"
