"""Rows of matrices on a matrix unit: the pieces of kernels of attention and of its gradient.

A warp holds rows of its own in registers, as left operands. Tiles of other rows come to shared memory, and are right
operands: as they are, for the products of every own row with every other row, or transposed, for weighted sums of the
other rows. The weights are sums of such products, and stay in registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ..._tensor.dtype import float32
from ..scalar.value import Value, spelled
from .attention import Attending
from .fragments import Fragments, PacketTiles
from .matrix_unit import COLUMNS, DEPTH, PACKET, ROWS, SUBGROUP, MatrixUnit
from .packets import packet_type


@dataclass(frozen=True, slots=True)
class Shape:
    """How the work is cut: warps of a block, fragments of rows that each of them has, and rows of a tile."""

    warps: int
    fragments: int
    tile: int

    @property
    def block(self) -> int:
        """Rows of a block."""
        return self.warps * self.fragments * ROWS

    @property
    def items(self) -> int:
        """Threads of a block."""
        return self.warps * SUBGROUP


class UnitRows:
    """A kernel while it is written."""

    def __init__(self, own: Attending, unit: MatrixUnit, shape: Shape) -> None:
        self.own, self.shape, self.frame, self.k, self.ctype = own, shape, own.frame, own.frame.k, own.ctype
        self.dtype = own.call.inputs[0].dtype
        self.name = unit.names[self.dtype]
        self._packet = packet_type(self.k, self.dtype, PACKET)
        self._two = packet_type(self.k, self.dtype, 2)
        self.k.declarations["matrix unit"] = unit.functions

    def write_thread(self) -> None:
        """Which rows and columns of fragments the thread has."""
        k, own = self.k, self.own
        own.write_places()
        self.lane = k.let("int", f"{own.item} % {SUBGROUP}")
        rows = self.shape.fragments * ROWS
        self.warp_row = k.let(self.ctype, f"{own.first} + {own.item} / {SUBGROUP} * {rows}")
        """The warp's first row."""
        self.row = k.let(self.ctype, f"{self.warp_row} + {self.lane} / 4")
        """The thread's first row; it has every eighth from there."""
        self.pair = k.let("int", f"{self.lane} % 4 * 2")
        """The first of the two columns that a thread has of each fragment."""
        k.say("int stage = 0")

    @contextmanager
    def each_tile(
        self, operands: Mapping[PacketTiles, int], end: str, first: str = "0",
        more: Callable[[str, str], None] | None = None,
    ) -> Iterator[None]:  # fmt: skip
        """A loop over tiles of operands' rows, up to where the block has to look; `end` is where they end. `stage` is
        that of the tile that is worked on while the next one is on its way, with what `more` brings beside it."""
        k, step = self.k, self.shape.tile

        def write(stage: str, begin: str) -> None:
            for tiles, operand in operands.items():
                self._write_tile(tiles, operand, stage, begin, end)
            if more is not None:
                more(stage, begin)
            k.say("end_copies()")

        write("stage", first)
        with k.block(f"for ({self.ctype} begin = {first}; begin < {self.own.stop}; begin += {step})"):
            k.say("await_copies<0>()")
            k.barrier()
            with k.block(f"if (begin + {step} < {self.own.stop})"):
                write("1 - stage", k.let(self.ctype, f"begin + {step}"))
            yield
            k.say("stage = 1 - stage")

    def tiles(self, name: str, width: int, stages: int) -> PacketTiles:
        """Tiles of other rows."""
        tiles = PacketTiles(name, self.shape.tile, width, stages)
        tiles.declare(self.k, self._packet)
        return tiles

    def fragments(self, tiles: PacketTiles, *, transposed: bool = False) -> Fragments:
        """The fragments of tiles, for products with the rows, or for sums of them."""
        # Of rows a fragment is read with the second eight rows last, of sums, with the second eight columns.
        row, column = f"({self.lane} / 16 * 8 + {self.lane} % 8)", f"{self.lane} / 8 % 2"
        if transposed:
            row, column = f"({self.lane} % 16)", f"{self.lane} / 16"
        return tiles.write_fragments(self.k, row, column, name=tiles.name + "_transposed" * transposed)

    def number(self, value: float) -> str:
        """A float, as text."""
        return spelled(value, float32, "float")

    # Memory

    def _write_tile(self, tiles: PacketTiles, operand: int, stage: str, begin: str, end: str) -> None:
        """Begin to bring rows of an operand to shared memory; zeros beyond the end."""
        k, items, packets = self.k, self.shape.items, tiles.packets
        with k.each("turn", -(-tiles.total // items)):
            number = k.let("int", f"turn * {items} + {self.own.item}")
            with k.block(f"if ({number} < {tiles.total})" if tiles.total % items else ""):
                row, packet = k.let("int", f"{number} / {packets}"), k.let("int", f"{number} % {packets}")
                at = k.let(self.ctype, f"{begin} + {row}")
                inside = k.let("bool", f"{at} < {end}")
                start = f"{self.own.starts[operand]} + ({inside} ? {at} : 0) * {tiles.columns} + {packet} * {PACKET}"
                k.say(f"copy_packet({tiles.place(stage, row, packet)}, a{operand} + ({start}), {inside})")

    def write_left(self, name: str, operand: int, width: int, end: str) -> None:
        """The warp's rows of an operand, as left operands; zeros beyond the end."""
        k, steps = self.k, width // DEPTH
        k.say(f"unsigned {name}[{self.shape.fragments}][{steps}][4]")
        with k.each("m", self.shape.fragments), k.each("s", steps), k.each("w", 4):
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + w % 2 * 8")
            place = f"{self.own.starts[operand]} + {row} * {width} + s * {DEPTH} + w / 2 * 8 + {self.pair}"
            k.say(f"{name}[m][s][w] = 0")
            with k.block(f"if ({row} < {end})"):
                read = self.read_pair(operand, place)
                k.say(f"{name}[m][s][w] = {self.own.dialect.reinterpret.format(type='unsigned', x=read)}")

    def read_pair(self, operand: int, place: str) -> str:
        """Two neighbouring elements of an operand."""
        load = self.own.dialect.load_packet
        return self.k.let(self._two, load.format(name=self._two, pointer=f"a{operand}", at=f"({place})"))

    def write_row(self, output: int, sums: str, width: int, row: str, factor: str) -> None:
        """A row [m][r] of sums, times a factor, to memory."""
        k, dialect = self.k, self.own.dialect
        with k.each("n", width // COLUMNS):
            made = [f"{sums}[m][n][r * 2 + {c}] * {factor}" for c in range(2)]
            word = k.let("unsigned", f"words_of_{self.name}({', '.join(made)})")
            place = f"({self.own.results[output]} + {row} * {width} + n * {COLUMNS} + {self.pair})"
            value = dialect.reinterpret.format(type=self._two, x=word)
            k.say(dialect.store_packet.format(name=self._two, pointer=f"b{output}", at=place, value=value))

    # Sums

    def write_zeros(self, sums: str, columns: int) -> None:
        """Sums for so many columns."""
        k, fragments, across = self.k, self.shape.fragments, columns // COLUMNS
        k.say(f"float {sums}[{fragments}][{across}][4]")
        with k.each("m", fragments), k.each("n", across), k.each("c", 4):
            k.say(f"{sums}[m][n][c] = 0.0f")

    def write_products(self, sums: str, left: str, width: int, tile: Fragments) -> None:
        """The products of each own row with each row of the tile. A warp reads a fragment of the tile once for all its
        rows."""
        k, shape = self.k, self.shape
        self.write_zeros(sums, shape.tile)
        with k.each("s", width // DEPTH), k.each("p", shape.tile // DEPTH):
            k.say("unsigned words[4]")
            k.say(f"load_matrices(words, {tile.place('stage', 'p', 's')})")
            with k.each("m", shape.fragments), k.each("h", 2):
                operands = f"{sums}[m][p * 2 + h], {left}[m][s], words[h * 2], words[h * 2 + 1]"
                k.say(f"multiply_add_{self.name}({operands})")

    def write_weighted(self, sums: str, weights: str, tile: Fragments) -> None:
        """Add the rows of the tile, weighted, to sums."""
        k, shape = self.k, self.shape
        with k.each("s", shape.tile // DEPTH):
            k.say(f"unsigned left[{shape.fragments}][4]")
            with k.each("m", shape.fragments), k.each("w", 4):
                low, high = (f"{weights}[m][s * 2 + w / 2][w % 2 * 2{more}]" for more in ("", " + 1"))
                k.say(f"left[m][w] = words_of_{self.name}({low}, {high})")
            with k.each("p", tile.tiles.columns // DEPTH):
                k.say("unsigned words[4]")
                k.say(f"load_turned(words, {tile.place('stage', 's', 'p')})")
                with k.each("m", shape.fragments), k.each("h", 2):
                    operands = f"{sums}[m][p * 2 + h], left[m], words[h * 2], words[h * 2 + 1]"
                    k.say(f"multiply_add_{self.name}({operands})")

    def write_masked(self, sums: str, begin: str, stop: str) -> None:
        """Scores that are not to be seen become the least there is, in a tile that begins there."""
        k, own, shape = self.k, self.own, self.shape
        end = k.let(self.ctype, f"{begin} + {shape.tile}")
        partly = f"{end} > {stop}"
        if own.is_causal:
            last = f"{self.warp_row} + {shape.fragments * ROWS} - 1"
            partly += f" || {begin} < {last}" if own.by_keys else f" || {end} > {self.warp_row} + 1"
        with (
            k.block("" if own.has_mask else f"if ({partly})"),
            k.each("m", shape.fragments),
            k.each("n", shape.tile // COLUMNS),
            k.each("c", 4),
        ):
            row = k.let(self.ctype, f"{self.row} + m * {ROWS} + c / 2 * 8")
            column = k.let(self.ctype, f"{begin} + n * {COLUMNS} + {self.pair} + c % 2")
            query, key = (column, row) if own.by_keys else (row, column)
            k.say("float made = -INFINITY")
            with k.block(f"if ({own.seen(query, key)})"):
                score = Value(float32, f"{sums}[m][n][c]")
                scaled = k.mul(score, own.scale(k)) if own.adds else score
                k.say(f"made = {own.masked(k, scaled, query, key).text}")
            k.say(f"{sums}[m][n][c] = made")
