"""Products in tiles on a matrix unit, summed up in float32.

    for each tile of the result, by a block:
        values of the left operand's rows, if its elements need any
        for each stretch of the sum:
            the tiles of both operands, some stretches ahead, to shared memory: copied as they are where that is all,
            else with elementwise work done on the way
            each subgroup adds products of fragments to its part of the results, which stays in registers
        each thread's results to memory, elementwise work done on the way

A tile lies as its operand does in memory, along the sum or across it; fragments are turned where they are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Final

from ..._graph.graph import Graph
from .contractions import FusedContraction
from .dialect import Dialect
from .expressions import Expression, Read, Windowed
from .fragments import Fragments, PacketTiles, PaddedTiles, UnitOperand
from .frames import multiplied
from .kernel_source import Kernel
from .matrix_unit import COLUMNS, DEPTH, ROWS, SUBGROUP, MatrixUnit, UnitTile
from .packets import LANE, drain, each_lane, fill, lane_of, packet_type, set_lane, widest
from .product_frame import ProductFrame

_PAIR: Final = 2
"""Neighbouring results that a thread has."""
_MATRIX: Final = 64
"""Elements of 8 × 8."""


def unit_refusal(product: FusedContraction, dialect: Dialect) -> str | None:
    """Why a product is not computed by this kernel, or `None`."""
    left, right = product.left.dtype, product.right.dtype
    if left is not right or dialect.matrix_unit(left) is None:
        return f"no matrix unit for {left.name} and {right.name}"
    return None


def unit_tiles(product: FusedContraction, dialect: Dialect) -> Mapping[str, UnitTile]:
    """The tilings that may be tried for a product, by name, smaller ones first."""
    unit = dialect.matrix_unit(product.left.dtype)
    return {} if unit is None or unit_refusal(product, dialect) is not None else unit.tiles


def unit_product(graph: Graph, product: FusedContraction, dialect: Dialect, tile: UnitTile, parts: int = 1) -> Kernel:
    """The kernel of a product that is not refused, whose result has elements; with its sum in several `parts`, which
    have results of their own."""
    unit = dialect.matrix_unit(product.left.dtype)
    assert unit is not None
    if product.row_values and tile.stages > 2:  # which take some of the shared memory
        tile = replace(tile, stages=tile.stages - 1)
    stretch = -(-product.extents[2] // (parts * tile.depth)) * tile.depth
    own = ProductFrame(graph, product, dialect, (tile.rows, tile.columns), tile.items, parts, stretch)
    return _UnitProduct(own, unit, tile).written()


class _UnitProduct:
    """Writes one kernel."""

    def __init__(self, own: ProductFrame, unit: MatrixUnit, tile: UnitTile) -> None:
        self.own, self.product, self.frame, self.k = own, own.product, own.frame, own.frame.k
        self.tile, self.ctype = tile, own.ctype
        dtype = own.product.left.dtype
        self.unit, self.name, self.lanes = unit, unit.names[dtype], widest([dtype])
        self.packet = packet_type(self.k, dtype, self.lanes)
        self.k.declarations["matrix unit"] = unit.functions
        self.high, self.wide = tile.subgroup_rows // unit.rows, tile.subgroup_columns // unit.columns
        """Fragments of a warp: of the left operand down, of the right one across."""
        self.halves = unit.columns // COLUMNS
        """Fragments of sums side by side that belong to one of the right operand."""

    def written(self) -> Kernel:
        """The whole kernel."""
        own, tile, k, product = self.own, self.tile, self.k, self.product
        if tile.blocks > 1:
            k.bounds = own.frame.dialect.bounds.format(items=tile.items, blocks=tile.blocks)
        own.write_places()
        self.lane = k.let("int", f"{own.item} % {SUBGROUP}")
        self.subgroup = k.let("int", f"{own.item} / {SUBGROUP}")
        self.subgroup_row = k.let("int", f"{self.subgroup} / {tile.across} * {tile.subgroup_rows}")
        self.subgroup_column = k.let("int", f"{self.subgroup} % {tile.across} * {tile.subgroup_columns}")
        self.left = self._operand(product.left, "rows", own.row, own.m, tile.rows)
        self.right = self._operand(product.right, "columns", own.column, own.n, tile.columns)
        if self.unit.keeps_places:
            self.left_places, self.right_places = self._left_places(), self._right_places()
        own.write_row_values()
        self._write_sums()
        self._write_results()
        return self.frame.kernel(own.groups * tile.items, tile.items)

    # Tiles

    def _operand(self, value: Expression, role: str, first: str, end: str, extent: int) -> UnitOperand:
        depth, own = self.tile.depth, self.own.runs(role)
        deep = self.own.runs_fast(value, own)
        lanes = self.own.operand_lanes(value, own, self.lanes, deep=deep)
        shape = (extent, depth) if deep else (depth, extent)
        tiles: PacketTiles | PaddedTiles
        if self.unit.keeps_places:
            by_words = self.unit.splits and not deep
            tiles = PacketTiles(f"{role}_tiles", *shape, self.tile.stages, self.lanes, by_words)
        else:
            tiles = PaddedTiles(f"{role}_tiles", *shape, self.tile.stages, self.lanes, self.name)
        tiles.declare(self.k, self.packet)
        operand = UnitOperand(value, role, own, first, end, deep, lanes, self.lanes, self.unit.keeps_places, tiles)
        if deep or lanes == self.lanes or len(own.lines) == 1 or self.tile.items % tiles.packets:
            return operand
        return replace(operand, line_indices=self._line_indices(operand))

    def _line_indices(self, operand: UnitOperand) -> dict[int, str]:
        """The indices of the neighbouring lines that a thread brings, as texts of the lane."""
        k, role = self.k, operand.role
        first = k.let(self.ctype, f"{operand.first} + {self.own.item} % {operand.tiles.packets} * {self.lanes}")
        if operand.own.lines and operand.own.lines[-1].size % self.lanes == 0:  # they differ by the last of them alone
            indices, last = self.own.line_indices(role, first), operand.own.lines[-1].axis
            return indices | {last: f"{indices[last]} + {LANE}"}
        for run in operand.own.lines:
            k.say(f"{self.ctype} {role}{run.axis}[{self.lanes}]")
        with each_lane(k, self.lanes):
            for axis, index in self.own.line_indices(role, f"{first} + {LANE}").items():
                k.say(f"{role}{axis}[{LANE}] = {index}")
        return {run.axis: f"{role}{run.axis}[{LANE}]" for run in operand.own.lines}

    def _left_places(self) -> Fragments:
        """Of a left operand the second eight rows come before the second eight columns."""
        tiles, lane = self.left.tiles, self.lane
        assert isinstance(tiles, PacketTiles)
        if self.left.deep:
            return tiles.write_fragments(self.k, f"({self.subgroup_row} + {lane} % 16)", f"{lane} / 16")
        if tiles.by_words:
            return self._word_places(tiles, self.subgroup_row, self.high)
        first = f"{self.subgroup_row} / {ROWS}"
        row = f"({lane} / 16 * 8 + {lane} % 8)"
        return tiles.write_fragments(self.k, row, f"{lane} / 8 % 2", first=first, count=self.high)

    def _right_places(self) -> Fragments:
        """Of a right operand, two fragments at a time, the second eight of the sum come before the second eight
        columns."""
        tiles, lane = self.right.tiles, self.lane
        assert isinstance(tiles, PacketTiles)
        if self.right.deep:
            row = f"({self.subgroup_column} + {lane} / 16 * 8 + {lane} % 8)"
            return tiles.write_fragments(self.k, row, f"{lane} / 8 % 2")
        if tiles.by_words:
            return self._word_places(tiles, self.subgroup_column, self.wide)
        first = f"{self.subgroup_column} / {DEPTH}"
        return tiles.write_fragments(self.k, f"({lane} % 16)", f"{lane} / 16", first=first, count=self.wide)

    def _word_places(self, tiles: PacketTiles, line: str, count: int) -> Fragments:
        """The places of single words: thread i begins with row i % 4 and column i / 4."""
        lane, parts = self.lane, 2 * count
        return tiles.write_fragments(
            self.k,
            f"({lane} % 4)",
            f"{lane} / 16",
            first=f"{line} / {COLUMNS}",
            count=parts,
            offset=f"{lane} / 4 % 4 * 4",
        )

    def _write_tiles(self, stage: str, begin: str) -> None:
        """Bring both operands' tiles to a stage, or begin to."""
        for operand in (self.left, self.right):
            with self._each_packet(operand) as (row, packet):
                self._write_packet(operand, stage, begin, row, packet)

    @contextmanager
    def _each_packet(self, operand: UnitOperand) -> Iterator[tuple[str, str]]:
        """A loop over the packets of a tile, with each packet's row and its number there."""
        tiles, items = operand.tiles, self.tile.items
        with self.k.each("turn", self._turns(operand)):
            number = self.k.let("int", f"turn * {items} + {self.own.item}")
            with self.k.block(f"if ({number} < {tiles.total})" if tiles.total % items else ""):
                row = self.k.let("int", f"{number} / {tiles.packets}")
                yield row, self.k.let("int", f"{number} % {tiles.packets}")

    def _turns(self, operand: UnitOperand) -> int:
        return -(-operand.tiles.total // self.tile.items)

    def _write_packet(self, operand: UnitOperand, stage: str, begin: str, row: str, packet: str) -> None:
        if operand.is_copied:
            self._copy_packet(operand, stage, begin, row, packet)
            return
        self.k.say(f"{self.packet} made")
        self._make_packet(operand, "made", begin, row, packet)
        self._put_packet(operand, "made", stage, row, packet)

    def _put_packet(self, operand: UnitOperand, made: str, stage: str, row: str, packet: str) -> None:
        self.k.say(f"{operand.tiles.name}[{operand.tiles.index(stage, row, packet)}] = {made}")

    def _place(self, operand: UnitOperand, begin: str, row: str, packet: str) -> tuple[str, str, str]:
        """A packet's first line, in the tile and among all, and its first step of the sum."""
        k = self.k
        along = k.let("int", f"{packet} * {self.lanes}")
        line, step = (row, along) if operand.deep else (along, row)
        return line, k.let(self.ctype, f"{operand.first} + {line}"), k.let(self.ctype, f"{begin} + {step}")

    def _copy_packet(self, operand: UnitOperand, stage: str, begin: str, row: str, packet: str) -> None:
        k, own = self.k, self.own
        _, at_line, at_step = self._place(operand, begin, row, packet)
        assert isinstance(operand.value, Read)
        inside = k.let("bool", f"{at_line} < {operand.end} && {at_step} < {own.deep}")
        at = own.operand_indices(operand.role, at_line, at_step)
        place = self.frame.place(id(operand.value), operand.value.strides, at)
        source = f"{self.frame.pointer(operand.value.entry)} + ({inside} ? {place} : 0)"
        k.say(f"copy_packet({operand.tiles.place(stage, row, packet)}, {source}, {inside})")

    def _make_packet(self, operand: UnitOperand, made: str, begin: str, row: str, packet: str) -> None:
        k, own = self.k, self.own
        line, at_line, at_step = self._place(operand, begin, row, packet)
        if operand.lanes == self.lanes:
            with k.block(f"if ({at_line} < {operand.end} && {at_step} < {own.deep})"):
                if operand.is_whole:
                    self._take_packet(operand, made, own.operand_indices(operand.role, at_line, at_step))
                else:
                    self._make_elements(operand, made, line, at_line, at_step)
            with k.block("else"), each_lane(k, self.lanes):
                k.say(f"{made}.lane[{LANE}] = 0")
        else:
            self._make_elements(operand, made, line, at_line, at_step)

    def _make_elements(self, operand: UnitOperand, made: str, line: str, at_line: str, at_step: str) -> None:
        """A packet of values that are computed, each from packets, or from elements where these are inside."""
        k, own, frame = self.k, self.own, self.frame
        packets: dict[int, tuple[Read, str]] = {}
        if operand.lanes == self.lanes:
            axis = (operand.own.depth if operand.deep else operand.own.lines)[-1].axis
            packets = own.read_packets(
                operand.value, axis, self.lanes, own.operand_indices(operand.role, at_line, at_step)
            )
        at_steps = own.step_indices(operand.role, at_step) if operand.line_indices is not None else {}
        with each_lane(k, self.lanes):
            here = k.let(self.ctype, f"{at_line} + {LANE}") if not operand.deep else at_line
            step = k.let(self.ctype, f"{at_step} + {LANE}") if operand.deep else at_step
            if operand.line_indices is not None:
                at = own.stack | dict(operand.line_indices) | at_steps
            else:
                at = own.operand_indices(operand.role, here, step)
            if operand.is_plain:
                self._take_element(operand, made, at, (f"({here} < {operand.end})", f"({step} < {own.deep})"))
                return
            k.say(f"{made}.lane[{LANE}] = 0")
            with k.block("" if packets else f"if ({here} < {operand.end} && {step} < {own.deep})"):
                row = line if operand.deep else f"{line} + {LANE}"
                known = own.row_values(row) if operand.role == "rows" else {}
                read = {key: lane_of(k, part.dtype, name) for key, (part, name) in packets.items()}
                value = frame.value(k, operand.value, frame.reader(k, at, known=known, packets=read))
                set_lane(k, made, k.rounded(value))

    def _take_packet(self, operand: UnitOperand, made: str, at: Mapping[int, str]) -> None:
        """A packet with the bits that it has in memory."""
        value, frame = operand.value, self.frame
        assert isinstance(value, Read)
        place = frame.place(id(value), value.strides, at)
        fill(self.k, value.dtype, self.lanes, made, frame.pointer(value.entry), place, None)

    def _take_element(self, operand: UnitOperand, made: str, at: Mapping[int, str], within: tuple[str, str]) -> None:
        """An element with the bits that it has in memory, or zero."""
        k, frame, value = self.k, self.frame, operand.value
        assert isinstance(value, (Read, Windowed))
        pointer = frame.pointer(value.entry)
        if operand.wraps:
            there, place = frame.guarded(k, value, at, " & ".join(within))
            bits = k.let(frame.dialect.stored[value.dtype], f"{pointer}[{place}]")
            k.say(f"{made}.lane[{LANE}] = {there.text} ? {bits} : 0")
            return
        k.say(f"{made}.lane[{LANE}] = 0")
        with k.block(f"if ({' && '.join(within)})"):
            inside, place = frame.window(k, value, at)
            condition = f"if ({' && '.join(inside)}) " if inside else ""
            k.say(f"{condition}{made}.lane[{LANE}] = {pointer}[{place}]")

    # Sums

    def _write_sums(self) -> None:
        own, k, tile, unit = self.own, self.k, self.tile, self.unit
        wide = self.wide * self.halves
        k.say(f"{unit.sums.format(high=self.high, wide=wide)}")
        each = k.each("c", 4) if unit.keeps_places else nullcontext()
        if unit.splits:
            k.say(f"float rest[{self.high}][{wide}][4], fresh[{self.high}][{wide}][4]")
        with k.each("m", self.high), k.each("n", wide), each:
            k.say(f"{unit.zero}")
        for stage in range(tile.stages - 1):
            first = str(stage * tile.depth)
            if own.begin != "0":
                first = k.let(self.ctype, f"{own.begin} + {first}")
            with k.block(f"if ({first} < {own.deep})"):
                self._write_tiles(str(stage), first)
            self._end_copies()
        k.say(f"int stage = 0, ahead = {tile.stages - 1}")
        with k.block(f"for ({self.ctype} begin = {own.begin}; begin < {own.deep}; begin += {tile.depth})"):
            if unit.keeps_places:
                k.say(f"await_copies<{tile.stages - 2}>()")
            k.barrier()
            later = k.let(self.ctype, f"begin + {(tile.stages - 1) * tile.depth}")
            self._write_ahead(later)
            (self._write_split_products if unit.splits else self._write_products)()
            self._end_ahead(later)
            for name in ("stage", "ahead"):
                k.say(f"{name} = {name} == {tile.stages - 1} ? 0 : {name} + 1")

    def _write_ahead(self, later: str) -> None:
        """Begin to bring the tiles of a later stretch. What is read element by element waits in registers."""
        k = self.k
        for operand in self._waiting():
            k.say(f"{self.packet} {operand.role}_ahead[{self._turns(operand)}]")
        with k.block(f"if ({later} < {self.own.deep})"):
            for operand in (self.left, self.right):
                with self._each_packet(operand) as (row, packet):
                    if operand.waits:
                        self._make_packet(operand, f"{operand.role}_ahead[turn]", later, row, packet)
                    else:
                        self._write_packet(operand, "ahead", later, row, packet)
        self._end_copies()

    def _end_copies(self) -> None:
        if self.unit.keeps_places:
            self.k.say("end_copies()")

    def _end_ahead(self, later: str) -> None:
        """Store the waiting registers to shared memory, whose stage no thread reads now."""
        for operand in self._waiting():
            with self.k.block(f"if ({later} < {self.own.deep})"), self._each_packet(operand) as (row, packet):
                self._put_packet(operand, f"{operand.role}_ahead[turn]", "ahead", row, packet)

    def _waiting(self) -> list[UnitOperand]:
        return [operand for operand in (self.left, self.right) if operand.waits]

    def _write_products(self) -> None:
        """A stretch of the sum. A warp reads the left operand's fragments once for all of its columns."""
        k, unit = self.k, self.unit
        with k.each("s", self.tile.depth // unit.depth):
            k.say(f"{unit.left.format(name='left', count=self.high, type=self.name)}")
            with k.each("m", self.high):
                self._read("left[m]", self.left, "m")
            with k.each("p", self.wide):
                k.say(f"{unit.right.format(name='words', type=self.name)}")
                self._read("words", self.right, "p")
                half = k.each("h", self.halves) if self.halves > 1 else nullcontext()
                with k.each("m", self.high), half:
                    k.say(f"{unit.multiply_add.format(name=self.name)}")

    def _read(self, into: str, operand: UnitOperand, number: str) -> None:
        """Load a fragment of a tile, which lies along the sum or across it."""
        unit, tiles, is_left = self.unit, operand.tiles, operand is self.left
        turned = not operand.deep
        if isinstance(tiles, PacketTiles):
            places = self.left_places if is_left else self.right_places
            place = places.place("stage", *(("s", number) if turned else (number, "s")))
        else:
            line = (
                f"{self.subgroup_row} + {number} * {unit.rows}"
                if is_left
                else (f"{self.subgroup_column} + {number} * {unit.columns}")
            )
            step = f"s * {unit.depth}"
            place = tiles.place("stage", *((step, line) if turned else (line, step)))
            turned = turned == is_left  # a right fragment lies across the sum
        load = unit.load_transposed if turned else unit.load
        self.k.say(f"{load.format(into=into, place=place)}")

    def _write_split_products(self) -> None:
        """A stretch of the sum, of float32 numbers in two parts. Products that do not depend on each other follow one
        another, because one takes long. The sums of the leading parts begin anew in each stretch: the unit cuts off
        what it adds."""
        k, unit = self.k, self.unit
        with k.each("s", self.tile.depth // unit.depth):
            k.say(unit.left.format(name="left", count=self.high))
            k.say(unit.right.format(name="right", count=self.wide))
            for name, operand, count in (("left", self.left, self.high), ("right", self.right, self.wide)):
                with k.each("m", count):
                    self._read_parts(f"{name}[m]", operand, "m")
            with k.each("t", 2):
                for sums, left, right in (("rest", 8, 0), ("rest", 0, 8), ("fresh", 0, 0)):
                    with k.each("m", self.high), k.each("n", self.wide * 2):
                        given = {
                            "sums": f"{sums}[m][n]",
                            "left": f"left[m] + {left} + t * 4",
                            "right": f"right[n / 2] + {right} + t * 4 + n % 2 * 2",
                            "begins": "s == 0 && t == 0" if sums == "fresh" else "false",
                        }
                        k.say(unit.multiply_add.format(name=self.name, **given))
        with k.each("m", self.high), k.each("n", self.wide * 2), k.each("c", 4):
            k.say("sums[m][n][c] += fresh[m][n][c]")

    def _read_parts(self, into: str, operand: UnitOperand, number: str) -> None:
        """Load a fragment of float32 numbers, a half of its packets at a time, and split the numbers."""
        unit, tiles, is_left = self.unit, operand.tiles, operand is self.left
        assert isinstance(tiles, PacketTiles)
        places = self.left_places if is_left else self.right_places
        for half in range(2):
            if operand.deep:
                place = places.place("stage", number, f"(s * 2 + {half})")
                load = unit.load.format(into=f"{into} + {half * 4}", place=place)
            else:
                place = places.place("stage", "s", f"({number} * 2 + {half})")
                step, side = tiles.packets * 16, "Left" if is_left else "Right"
                load = unit.load_transposed.format(into=into, place=place, half=half, step=step, side=side)
            self.k.say(load)
        self.k.say(f"split_words({into})")

    # Results

    def _write_results(self) -> None:
        own, k, unit, wide = self.own, self.k, self.unit, self.wide * self.halves
        pairs = own.stored_at_once(_PAIR) == _PAIR
        self.sum = f"sums[m][n][r * 2 + {LANE}]"
        """A thread's results: neighbours in a row of each 8 × 8."""
        if not unit.keeps_places:
            k.shared("float", "results", self.tile.items // SUBGROUP * wide * _MATRIX)
            self.sum = f"results[({self.subgroup} * {wide} + n) * {_MATRIX} + {self.lane} * {_PAIR} + {LANE}]"
        if unit.splits:
            with k.each("m", self.high), k.each("n", wide), k.each("c", 4):
                k.say("sums[m][n][c] = fmaf(rest[m][n][c], 1.0f / 4096.0f, sums[m][n][c])")
            k.say("unsigned long long odd = 0")
        with k.each("m", self.high), self._stored(wide), k.each("r", unit.rows // 8):
            row = k.let(self.ctype, f"{own.row} + {self.subgroup_row} + m * {unit.rows} + r * 8 + {self.lane} / 4")
            with k.block(f"if ({row} < {own.m})"):
                at = own.stack | self.frame.indices("rows", self.product.rows, row)
                with k.each("n", wide):
                    place = f"{own.column} + {self.subgroup_column} + n * {COLUMNS} + {self.lane} % 4 * 2"
                    column = k.let(self.ctype, place)
                    if unit.splits:
                        with each_lane(k, _PAIR):
                            number = f"((m * 2 + r) * {wide} + n) * {_PAIR} + {LANE}"
                            k.say(f"if (!(fabsf({self.sum}) < INFINITY)) odd |= 1ull << ({number})")
                    if pairs:
                        self._write_pair(at, column)
                    else:
                        self._write_single(at, column)
        if unit.splits:
            self._write_again(wide)

    def _write_again(self, wide: int) -> None:
        """The thread's results that are not finite, summed without splitting operands: a part of a large number may be
        infinite, and the parts of an infinite one are no numbers."""
        own, k, frame, product = self.own, self.k, self.frame, self.product
        with k.block("for (int n = 0; odd != 0; n++, odd >>= 1)"), k.block("if (odd & 1)"):
            line = k.let("int", f"{self.subgroup_row} + n / {_PAIR * wide} * 8 + {self.lane} / 4")
            row = k.let(self.ctype, f"{own.row} + {line}")
            across = f"n / {_PAIR} % {wide} * {COLUMNS} + {self.lane} % 4 * 2 + n % {_PAIR}"
            column = k.let(self.ctype, f"{own.column} + {self.subgroup_column} + {across}")
            with k.block(f"if ({column} < {own.n})"):
                known = own.row_values(line)
                total = k.variable(k.literal(0, product.summed))
                with k.block(f"for ({self.ctype} step = {own.begin}; step < {own.deep}; step++)"):
                    at_left, at_right = (
                        own.operand_indices(role, place, "step") for role, place in (("rows", row), ("columns", column))
                    )
                    left = frame.value(k, product.left, frame.reader(k, at_left, known=known))
                    right = frame.value(k, product.right, frame.reader(k, at_right))
                    k.assign(total, multiplied(k, left, right, total))
                own.write_result(k, total.text, own.stack | frame.indices("rows", product.rows, row), column)

    @contextmanager
    def _stored(self, wide: int) -> Iterator[None]:
        """Fragments of sums in shared memory, if the places of their elements are not known."""
        k, unit = self.k, self.unit
        if unit.keeps_places:
            yield
            return
        with k.each("n", wide):
            place = f"results + ({self.subgroup} * {wide} + n) * {_MATRIX}"
            k.say(f"{unit.store.format(place=place)}")
        k.say(f"{unit.barrier}")
        yield
        k.say(f"{unit.barrier}")

    def _write_single(self, at: dict[int, str], column: str) -> None:
        k, own = self.k, self.own
        with each_lane(k, _PAIR):
            here = k.let(self.ctype, f"{column} + {LANE}")
            with k.block(f"if ({here} < {own.n})"):
                own.write_result(k, self.sum, at, here)

    def _write_pair(self, at: dict[int, str], column: str) -> None:
        """Two results at once; what is read for them comes in pairs too where it lies so."""
        own, k, frame, outputs = self.own, self.k, self.frame, self.product.outputs
        with k.block(f"if ({column} < {own.n})"):
            where = at | own.result_indices(column)
            packets: dict[int, tuple[Read, str]] = {}
            for n, output in enumerate(outputs):
                k.say(f"{packet_type(k, output.expression.dtype, _PAIR)} q{n}")
                if own.result_lanes(output.expression, _PAIR) == _PAIR:
                    axis = self.product.result_columns[-1].axis
                    packets |= own.read_packets(output.expression, axis, _PAIR, where)
            with each_lane(k, _PAIR):
                read = {key: lane_of(k, part.dtype, name) for key, (part, name) in packets.items()}
                _, places = own.at_result(k, self.sum, at, f"{column} + {LANE}", read)
                for n, output in enumerate(outputs):
                    set_lane(k, f"q{n}", frame.value(k, output.expression, places))
            for n, output in enumerate(outputs):
                place = frame.place(("b", n), output.strides, where) + own.offset
                drain(k, output.expression.dtype, _PAIR, f"q{n}", f"b{n}", place, None)
