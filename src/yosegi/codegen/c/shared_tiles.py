"""Products in tiles: a block of threads brings tiles of both operands into the memory it shares, and multiplies them.

    for each tile of the result, by a block:
        values of the left operand's rows, if its elements need any    (each row by some threads)
        for each stretch of the sum:
            both operands' tiles to shared memory, elementwise work done on the way    (each element once)
            each thread adds products to its own tile of results, which stays in registers
        each thread's tile to memory, elementwise work done on the way

Elements beyond the edges are zeros in shared memory, so that any shape can be multiplied. A thread brings packets where
rows are made of whole ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from ..._graph.graph import Graph
from ..scalar.value import Value, spelled
from .contractions import FusedContraction
from .dialect import Dialect, Target
from .expressions import Expression, Read, Windowed
from .frames import multiplied
from .kernel_source import Kernel
from .packets import LANE, drain, each_lane, lane_of, packet_type, set_lane
from .product_frame import ProductFrame

_UNROLLED: Final = 8
"""Steps of the sum that are written out."""
_PADDING: Final = 4
"""Elements between the rows of a tile, so that a column does not lie in one bank of the shared memory."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How a product is cut: so many results a block, so many a thread, and the stretch of the sum at a time."""

    rows: int
    columns: int
    depth: int
    item_rows: int
    item_columns: int

    @property
    def items(self) -> int:
        """Threads in a block."""
        return self.rows // self.item_rows * (self.columns // self.item_columns)


ON_GPUS: Final = {
    "16": Tile(16, 16, 32, 2, 2),
    "32": Tile(32, 32, 32, 4, 4),
    "64": Tile(64, 64, 32, 4, 4),
    "128": Tile(128, 128, 16, 8, 8),
}
"""Tiles by name: their rows. The larger are for GPUs with many registers, and large products."""


def tiles(target: Target) -> dict[str, Tile]:
    """The tiles that a target may try, by name."""
    return {name: tile for name, tile in ON_GPUS.items() if tile.items <= max(target.group, target.cooperating)}


def tiled_product(graph: Graph, product: FusedContraction, dialect: Dialect, tile: Tile) -> Kernel:
    """The kernel of a product whose result has elements."""
    own = ProductFrame(graph, product, dialect, (tile.rows, tile.columns), tile.items)
    return _TiledProduct(own, tile).written()


@dataclass(frozen=True, slots=True)
class _SharedOperand:
    """One operand: what it is, and how its tiles are brought."""

    value: Expression
    side: str
    first: str
    extent: int
    end: str
    """Where the block's rows or columns begin, how many a tile has, and where there are no more."""
    deep: bool
    """True if neighbours are brought along the sum."""
    lanes: int
    """Neighbours that are brought at once."""
    line_indices: Mapping[int, str] | None = None
    """The indices of a thread's row or column, where it brings the same one in every turn."""

    @property
    def role(self) -> str:
        """The role of its lines in the product."""
        return "rows" if self.side == "left" else "columns"


class _TiledProduct:
    """Writes one kernel."""

    def __init__(self, own: ProductFrame, tile: Tile) -> None:
        self.own, self.product, self.frame, self.ctype = own, own.product, own.frame, own.ctype
        self.tile = tile
        self.scalar = self.frame.dialect.types[self.product.summed]
        self.left_step, self.right_step = tile.rows + _PADDING, tile.columns + _PADDING

    def written(self) -> Kernel:
        """The whole kernel."""
        frame, tile, own, k = self.frame, self.tile, self.own, self.frame.k
        own.write_places()
        self.item, self.row, self.column = own.item, own.row, own.column
        self.m, self.n, self.deep, self.stack = own.m, own.n, own.deep, own.stack
        k.shared(self.scalar, "left_tile", tile.depth * self.left_step)
        k.shared(self.scalar, "right_tile", tile.depth * self.right_step)
        own.write_row_values()
        self._write_sums()
        self._write_results()
        return frame.kernel(own.groups * tile.items, tile.items)

    # Sums

    def _write_sums(self) -> None:
        tile, k = self.tile, self.frame.k
        count = tile.item_rows * tile.item_columns
        zero = spelled(0, self.product.summed, self.scalar)
        k.say(f"{self.scalar} sums[{count}]")
        with k.each("i", count):
            k.say(f"sums[i] = {zero}")
        across = tile.columns // tile.item_columns
        self.own_row = k.let("int", f"{self.item} / {across} * {tile.item_rows}")
        self.own_column = k.let("int", f"{self.item} % {across} * {tile.item_columns}")
        left = self._operand(self.product.left, "left", self.row, tile.rows, self.m)
        right = self._operand(self.product.right, "right", self.column, tile.columns, self.n)
        self.is_ahead = self.product.slides
        if self.is_ahead:
            for operand in (left, right):
                k.say(f"{self.scalar} {operand.side}_next[{self._turns(operand) * operand.lanes}]")
                self._bring_tile(operand, "0")
        with k.block(f"for ({self.ctype} begin = 0; begin < {self.deep}; begin += {tile.depth})"):
            for operand in (left, right):
                self._write_tile(operand)
            k.barrier()
            if self.is_ahead:
                with k.block(f"if (begin + {tile.depth} < {self.deep})"):
                    for operand in (left, right):
                        self._bring_tile(operand, f"begin + {tile.depth}")
            self._write_products()
            k.barrier()

    def _write_products(self) -> None:
        """A stretch of the sum, for a thread's own results, on copies: what lives across barriers may lie in memory."""
        frame, tile, k = self.frame, self.tile, self.frame.k
        count = tile.item_rows * tile.item_columns
        with k.block(""):
            k.say(f"{self.scalar} part[{count}]")
            with k.each("i", count):
                k.say("part[i] = sums[i]")
            with k.block(f"{frame.dialect.unrolled.format(n=_UNROLLED)}\nfor (int d = 0; d < {tile.depth}; d++)"):
                k.say(f"{self.scalar} a[{tile.item_rows}]")
                k.say(f"{self.scalar} b[{tile.item_columns}]")
                with k.each("i", tile.item_rows):
                    k.say(f"a[i] = left_tile[d * {self.left_step} + {self.own_row} + i]")
                with k.each("j", tile.item_columns):
                    k.say(f"b[j] = right_tile[d * {self.right_step} + {self.own_column} + j]")
                with k.each("i", tile.item_rows), k.each("j", tile.item_columns):
                    a, b, own = (
                        Value(self.product.summed, text)
                        for text in ("a[i]", "b[j]", f"part[i * {tile.item_columns} + j]")
                    )
                    k.assign(own, multiplied(k, a, b, own))
            with k.each("i", count):
                k.say("sums[i] = part[i]")

    # Tiles

    def _operand(self, value: Expression, side: str, first: str, extent: int, end: str) -> _SharedOperand:
        """An operand, and how its tiles are brought; what does not change from tile to tile is written here."""
        own = self.own.runs("rows" if side == "left" else "columns")
        deep = self.own.runs_fast(value, own)
        lanes = self.own.operand_lanes(value, own, self.tile.depth if deep else extent, deep=deep)
        operand = _SharedOperand(value, side, first, extent, end, deep, lanes)
        if deep or lanes > 1 or len(own.lines) == 1 or self.tile.items % extent:
            return operand
        line = self.frame.k.let(self.ctype, f"{first} + {self.item} % {extent}")
        return replace(operand, line_indices=self.own.line_indices(operand.role, line))

    def _write_tile(self, operand: _SharedOperand) -> None:
        """An operand's tile, from where the stretch of the sum begins, or from what was brought before."""
        with self._each_packet(operand) as here:
            if self.is_ahead:
                here.put_packet(self._next(operand))
            else:
                self.frame.k.say(f"{self.scalar} made[{operand.lanes}]")
                here.make_packet(f"made[{LANE}]", "begin")
                here.put_packet(f"made[{LANE}]")

    def _bring_tile(self, operand: _SharedOperand, begin: str) -> None:
        """Load a thread's part of a tile into registers, where it waits while the tile before is multiplied."""
        with self._each_packet(operand) as here:
            here.make_packet(self._next(operand), begin)

    def _next(self, operand: _SharedOperand) -> str:
        return f"{operand.side}_next[turn * {operand.lanes} + {LANE}]"

    def _turns(self, operand: _SharedOperand) -> int:
        return -(-self.tile.depth * operand.extent // (operand.lanes * self.tile.items))

    @contextmanager
    def _each_packet(self, operand: _SharedOperand) -> Iterator[_TileElements]:
        """A loop over a thread's part of a tile: the body runs for each element."""
        deep, lanes, extent = operand.deep, operand.lanes, operand.extent
        k, items = self.frame.k, self.tile.items
        chunks = (self.tile.depth if deep else extent) // lanes
        total = self.tile.depth * extent // lanes
        # Written out, so that all of an item's reads are under way at a time.
        with k.each("turn", self._turns(operand)):
            number = k.let("int", f"turn * {items} + {self.item}")
            with k.block(f"if ({number} < {total})" if total % items else ""):
                along = k.let("int", f"{number} % {chunks} * {lanes}")
                beside = k.let("int", f"{number} / {chunks}")
                yield _TileElements(self, operand, *((along, beside) if deep else (beside, along)))

    # Results

    def _write_results(self) -> None:
        frame, tile, k, product = self.frame, self.tile, self.frame.k, self.product
        with k.each("i", tile.item_rows):
            row = k.let(self.ctype, f"{self.row} + {self.own_row} + i")
            with k.block(f"if ({row} < {self.m})"):
                at = self.stack | frame.indices("rows", product.rows, row)
                lanes = self.own.stored_at_once(tile.item_columns)
                if lanes > 1:
                    self._write_packets(at, lanes)
                    return
                with k.each("j", tile.item_columns):
                    column = k.let(self.ctype, f"{self.column} + {self.own_column} + j")
                    with k.block(f"if ({column} < {self.n})"):
                        self.own.write_result(k, f"sums[i * {tile.item_columns} + j]", at, column)

    def _write_packets(self, at: dict[int, str], lanes: int) -> None:
        """A thread's results of a row, packet by packet: each is inside as a whole, or not at all."""
        frame, k, outputs = self.frame, self.frame.k, self.product.outputs
        with k.each("j", self.tile.item_columns // lanes):
            column = k.let(self.ctype, f"{self.column} + {self.own_column} + j * {lanes}")
            with k.block(f"if ({column} < {self.n})"):
                for n, output in enumerate(outputs):
                    k.say(f"{packet_type(k, output.expression.dtype, lanes)} q{n}")
                with each_lane(k, lanes):
                    own = f"sums[i * {self.tile.item_columns} + j * {lanes} + {LANE}]"
                    _, places = self.own.at_result(k, own, at, f"{column} + {LANE}")
                    for n, output in enumerate(outputs):
                        set_lane(k, f"q{n}", frame.value(k, output.expression, places))
                where = at | self.own.result_indices(column)
                for n, output in enumerate(outputs):
                    place = frame.place(("b", n), output.strides, where)
                    drain(k, output.expression.dtype, lanes, f"q{n}", f"b{n}", place, None)


@dataclass(frozen=True, slots=True)
class _TileElements:
    """Neighbouring elements of one operand on their way into its tile."""

    writer: _TiledProduct
    operand: _SharedOperand
    step: str
    line: str

    def make_packet(self, made: str, begin: str) -> None:
        """Element by element, from packets where there are several lanes, into variables."""
        w, operand = self.writer, self.operand
        frame, k = w.frame, w.frame.k
        line, step = (k.let(w.ctype, t) for t in (f"{operand.first} + {self.line}", f"{begin} + {self.step}"))
        if w.is_ahead and operand.lanes == 1 and isinstance(operand.value, (Read, Windowed)):
            inside = f"({line} < {operand.end}) & ({step} < {w.deep})"
            value = frame.guarded_element(k, operand.value, self._indices(line, step), inside)
            with each_lane(k, 1):
                k.say(f"{made} = {k.convert(value, w.product.summed).text}")
            return
        with k.block(f"if ({line} < {operand.end} && {step} < {w.deep})"):
            packets = self._packets(self._indices(line, step))
            with each_lane(k, self.operand.lanes):
                lane = f" + {LANE}" if self.operand.lanes > 1 else ""
                at = self._indices(*((line, step + lane) if self.operand.deep else (line + lane, step)))
                read = {key: lane_of(k, part.dtype, name) for key, (part, name) in packets.items()}
                places = frame.reader(k, at, known=self._row_values(self.line + ("" if self.operand.deep else lane)),
                                      packets=read)  # fmt: skip
                value = k.convert(frame.value(k, self.operand.value, places), w.product.summed)
                k.say(f"{made} = {value.text}")
        with k.block("else"), each_lane(k, self.operand.lanes):
            k.say(f"{made} = ({w.scalar})0")

    def put_packet(self, made: str) -> None:
        """Variables into the tile."""
        with each_lane(self.writer.frame.k, self.operand.lanes):
            place = self._tile_place(LANE if self.operand.lanes > 1 else "0")
            self.writer.frame.k.say(f"{place} = {made}")

    def _packets(self, at: dict[int, str]) -> dict[int, tuple[Read, str]]:
        """The reads that go by packets."""
        if self.operand.lanes == 1:
            return {}
        axis = self._along()
        return self.writer.own.read_packets(self.operand.value, axis, self.operand.lanes, at)

    def _row_values(self, row: str) -> dict[int, Value]:
        return self.writer.own.row_values(row) if self.operand.side == "left" else {}

    def _along(self) -> int:
        """The axis that they are neighbours along."""
        own = self.writer.own.runs(self.operand.role)
        return (own.depth if self.operand.deep else own.lines)[-1].axis

    def _indices(self, line: str, step: str) -> dict[int, str]:
        own, held = self.writer.own, self.operand.line_indices
        if held is None:
            return own.operand_indices(self.operand.role, line, step)
        return own.stack | dict(held) | own.step_indices(self.operand.role, step)

    def _tile_place(self, lane: str) -> str:
        line, step = (
            (self.line, f"({self.step} + {lane})") if self.operand.deep else (f"({self.line} + {lane})", self.step)
        )
        w = self.writer
        across = w.left_step if self.operand.side == "left" else w.right_step
        return f"{self.operand.side}_tile[{step} * {across} + {line}]"
