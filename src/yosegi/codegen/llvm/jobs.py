"""The jobs of the threads of a product: pack parts of the operands, and multiply.

Rows are dealt out to panels as high as a tile or almost, and vectors of columns to panels as wide or almost. A unit of
the multiplication is a group of row panels and a group of column panels, which stays in the core's own cache while all
the unit's rows are multiplied with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType
from .bfloat16_units import BFloat16Unit, folds, prepared
from .builder import LlvmBuilder
from .entry import PARAMETERS
from .fused_projections import FOLD, FOLDED, write_row_bytes, write_zeros
from .fused_stages import FINISH, LINES
from .integers import add, ceil_div, choice, div, least, mul, shifted, sub
from .ir import Function, Module
from .load_store import lanes_below, load, store
from .packing import PARAMETERS as PANEL
from .product import ProductJob
from .register_tiles import LINE, TileShape
from .register_tiles import PARAMETERS as TILE

_CHUNK: Final = 64
"""Numbers of each sum that are copied of a panel before the next panel's."""


class _Shares:
    """A number of things, dealt out evenly to some parts: the first ones get one more than the others."""

    def __init__(self, code: Function, whole: str, parts: str) -> None:
        self._code = code
        self._each = div(code, whole, parts)
        self._more = sub(code, whole, mul(code, self._each, parts))

    def first(self, part: str) -> str:
        """Where a part begins."""
        return add(self._code, mul(self._code, part, self._each), least(self._code, part, self._more))

    def count(self, part: str) -> str:
        """How many things a part gets."""
        gets_more = self._code.pure(f"icmp slt i64 {part}, {self._more}")
        return add(self._code, self._each, self._code.pure(f"zext i1 {gets_more} to i64"))

    def bounds(self, part: str) -> tuple[str, str]:
        """Where a part begins, and where it ends."""
        first = self.first(part)
        return first, add(self._code, first, self.count(part))


class Panels:
    """The panels of rows, or of columns: groups of `size` lines, dealt out evenly, at most `most` to a panel."""

    def __init__(self, code: Function, lines: str, size: int, most: int) -> None:
        self._code, self._lines, self._size = code, lines, size
        groups = ceil_div(code, lines, size)
        self.width = mul(code, groups, size)
        """Lines in all groups."""
        self.count = ceil_div(code, groups, most)
        self._shares = _Shares(code, groups, self.count)

    def of(self, panel: str) -> tuple[str, str, str]:
        """The first line of a panel, how many groups it has, and how many lines are in them."""
        code = self._code
        line, groups = mul(code, self._shares.first(panel), self._size), self._shares.count(panel)
        if self._size == 1:
            return line, groups, groups
        return line, groups, least(code, sub(code, self._lines, line), mul(code, groups, self._size))


def write_pack_lines(module: Module, shape: TileShape) -> None:
    """`pack_lines`: a unit is a panel of the left operand's rows.

    It is copied as it lies: row by row, or column by column, as many elements of each as the panel has rows.
    """
    job = ProductJob(module.function("pack_lines", PARAMETERS))
    code = job.code
    a_m, a_k, k, lines = job.planned("a_m"), job.planned("a_k"), job.planned("k"), job.planned("lines", "ptr")
    source, packed, apart, a_panel = job.array(0), job.pointer("packed_a"), job["apart"], job["a_panel"]
    rows = Panels(code, job.planned("m"), shape.lines, shape.rows)
    in_panels = job.is_planned("in_panels")
    with code.loop("%low", "%high") as loop:
        first, _, height = rows.of(loop.index)
        here = shifted(code, source, mul(code, first, a_m))
        with code.when(in_panels):
            to = shifted(code, packed, mul(code, loop.index, a_panel))
            lie = [a_m, a_k, height, k] if shape.packs_both else [a_k, a_m, k, height]
            code.invoke(lines, LINES, "%arguments", here, *lie, to, apart, "0", "0")
        with code.when(code.let(f"xor i1 {in_panels}, true")):
            to = shifted(code, packed, mul(code, first, apart))
            code.invoke(lines, LINES, "%arguments", here, a_m, a_k, height, k, to, apart, first, "0")
    code.ret()


def write_pack_and_fold(module: Module, shape: TileShape, vectors: int) -> None:
    """Functions that pack a left operand, and project it while it is in the caches.

    `pack_rows_and_fold`: a unit is a part of the row panels. Its numbers are projected while they are in registers, and
    each part has sums of its own, which are added up later. `pack_columns_and_fold`: columns are contiguous, and a unit
    is a chunk of them, with all rows.
    """
    work = _PackAndFold(module, "pack_rows_and_fold", shape)
    code = work.code
    part_of = _Shares(code, work.rows.count, work.job.planned("fold_parts")).bounds
    slab = mul(code, work.folded_row, vectors)
    with code.loop("%low", "%high") as loop:
        out = shifted(code, work.folded, mul(code, loop.index, slab))
        write_zeros(code, shape.lanes, out, work.folded_row, vectors, work.k)
        with code.loop(*part_of(loop.index)) as panel:
            work.pack(panel.index, work.source, work.packed, work.k, out, is_folded=True)
    code.ret()

    work = _PackAndFold(module, "pack_columns_and_fold", shape)
    code, size = work.code, work.job.planned("fold_chunk")
    with code.loop("%low", "%high") as loop:
        done = mul(code, loop.index, size)
        length = least(code, sub(code, work.k, done), size)
        here = shifted(code, work.source, mul(code, done, work.a_k))
        there = shifted(code, work.packed, mul(code, div(code, done, shape.step), work.apart))
        out = shifted(code, work.folded, mul(code, done, 4))
        write_zeros(code, shape.lanes, out, work.folded_row, vectors, length)
        whole = [here, work.a_m, work.a_k, work.random, work.random_row, work.m, length, out, work.folded_row]
        code.invoke("@fold_left", FOLD, *whole)
        with code.loop(0, work.rows.count) as panel:
            work.pack(panel.index, here, there, length, out, is_folded=False)
    code.ret()


class _PackAndFold:
    """A function that packs and projects a left operand, with the words of its job."""

    def __init__(self, module: Module, name: str, shape: TileShape) -> None:
        self.job = job = ProductJob(module.function(name, PARAMETERS))
        self.code = code = job.code
        self.m, self.k, self.a_m, self.a_k = (job.planned(w) for w in ("m", "k", "a_m", "a_k"))
        self.source, self.packed = job.array(0), job.pointer("packed_a")
        self.apart, self._panel, self._lines = job["apart"], job["a_panel"], job.planned("lines", "ptr")
        self.random = job.array(job.planned("random"))
        self.folded = shifted(code, job.pointer("work"), job.planned("folded"))
        self.random_row, self.folded_row = (write_row_bytes(code, c) for c in (self.m, self.k))
        self.rows = Panels(code, self.m, shape.lines, shape.rows)

    def pack(self, panel: str, source: str, packed: str, length: str, out: str, *, is_folded: bool) -> None:
        """Pack so many numbers of the rows of a panel."""
        code = self.code
        first, _, height = self.rows.of(panel)
        start = shifted(code, source, mul(code, first, self.a_m))
        to = shifted(code, packed, mul(code, panel, self._panel))
        own = shifted(code, self.random, mul(code, first, 4)) if is_folded else "null"
        code.invoke(
            self._lines, (*LINES, *FOLDED), "%arguments", start, self.a_m, self.a_k, height, length, to, self.apart,
            "0", "0", own, self.random_row, out, self.folded_row,
        )  # fmt: skip


def write_keeping(module: Module, dtype: DType, lanes: int) -> None:
    """`keep` and `resume`: unfinished sums of a block whose last vector is not full, to the output that holds them and
    from there."""
    for name in ("keep", "resume"):
        job = ProductJob(module.function(name, FINISH))
        code, k = job.code, LlvmBuilder(job.code, lanes)
        out_row = job.planned("out_row")
        place = add(code, mul(code, "%row", out_row), mul(code, "%column", dtype.itemsize))
        out = shifted(code, job.array(job.planned("out")), place)
        with code.loop(0, "%height") as row, code.loop(0, "%columns", lanes) as column:
            mask = lanes_below(k, sub(code, "%columns", column.index))
            along = mul(code, column.index, dtype.itemsize)
            here = shifted(code, shifted(code, "%sums", mul(code, row.index, "%sums_row")), along)
            there = shifted(code, shifted(code, out, mul(code, row.index, out_row)), along)
            if name == "keep":
                store(k, load(k, dtype, here), there, mask)
            else:
                store(k, load(k, dtype, there, mask), here)
        code.ret()


def write_claim(module: Module) -> None:
    """`claim(work, slots)`: the number of a slot of the workspace that no other thread has; there is one for each.

    A slot is free if the first word of its line is zero.
    """
    code = module.function("claim", [("ptr", "work"), ("i64", "slots")], "i64")
    code.do("br label %look")
    code.begin("look")
    code.do("%number = phi i64 [ 0, %entry ], [ %next, %look ]")
    flag = shifted(code, "%work", mul(code, "%number", LINE))
    pair = code.let(f"cmpxchg ptr {flag}, i64 0, i64 1 acquire monotonic")
    code.do("%following = add i64 %number, 1")
    is_last = code.let("icmp eq i64 %following, %slots")
    code.do(f"%next = select i1 {is_last}, i64 0, i64 %following")
    code.do(f"br i1 {code.let(f'extractvalue {{ i64, i1 }} {pair}, 1')}, label %found, label %look")
    code.begin("found")
    code.ret("i64 %number")


def write_units(
    module: Module, dtype: DType, shape: TileShape, unit: BFloat16Unit | None, *, projections: int = 0
) -> None:
    """`units`: a unit is a group of row panels, and a group of the right operand's panels."""
    units = _Units(module, dtype, shape, projections, folds=folds(unit))
    code = units.code
    with prepared(code, unit), code.loop("%low", "%high") as loop:
        units.write(loop.index)
    code.ret()


@dataclass(frozen=True, slots=True)
class _SumBlock:
    """A block of the sum, in a unit."""

    number: str
    done: str
    """Numbers of a sum before it."""
    length: str
    """Numbers of a sum in it."""
    steps: str
    first: str
    """The unit's first column."""
    packed: str
    """Where the unit's panels are copied to."""


@dataclass(frozen=True, slots=True)
class _Panel:
    """A panel of the right operand, in a block."""

    column: str
    vectors: str
    count: str
    """Columns that are there."""
    width: str
    """Columns in its vectors."""
    is_part: str
    is_copied: str
    here: str
    packed: str


class _Units:
    """The multiplication, under way."""

    def __init__(self, module: Module, dtype: DType, shape: TileShape, projections: int, *, folds: bool) -> None:
        self.shape, self.item, self.projections, self.folds = shape, dtype.itemsize, projections, folds
        self.line = shape.columns * self.item
        self.job = job = ProductJob(module.function("units", PARAMETERS))
        self.code = code = job.code
        self.a, self.a_row, self.a_step, self.a_panel = job.pointer("a"), job["a_row"], job["a_step"], job["a_panel"]
        self.b, self.b_k, self.b_n = job.array(job.planned("right")), job.planned("b_k"), job.planned("b_n")
        self.k, self.depth, self.blocks = job.planned("k"), job.planned("depth"), job.planned("blocks")
        self.in_panels, self.kept_b = job.is_planned("in_panels"), job.is_planned("kept_b")
        self.copies_b, self.finishes = job.is_planned("copies_b"), job.is_planned("finishes")
        self.rows = Panels(code, job.planned("m"), shape.lines, shape.rows)
        self.rows_of = _Shares(code, self.rows.count, job.planned("down")).bounds
        self.columns = Panels(code, job.planned("n"), shape.lanes, shape.vectors)
        self.across = job.planned("across")
        self.columns_of = _Shares(code, self.columns.count, self.across).bounds
        self.tiles = code.pure(f"getelementptr i64, ptr {job.plan}, i64 {job.planned('tiles')}")
        self.panel, self.finish = job.planned("panel", "ptr"), job.planned("finish", "ptr")
        self.out = job.array(job.planned("out"))
        self.out_row, self.out_item = job.planned("out_row"), job.planned("out_item")
        self.work, self.slots, self.room = job.pointer("work"), job.planned("slots"), job.planned("room")
        size = shape.height * self.line
        self.scratch, self.nothing = (code.let(f"alloca i8, i64 {s}, align {LINE}") for s in (size, self.line))
        k = LlvmBuilder(code, shape.lanes)
        with code.loop(0, shape.columns, shape.lanes) as loop:
            store(k, k.literal(0, dtype), shifted(code, self.nothing, mul(code, loop.index, self.item)))

    def write(self, unit: str) -> None:
        """One unit: for each block of the sum, its panels of the right operand are copied, and all its rows multiplied
        with them."""
        code = self.code
        down = div(code, unit, self.across)
        panels = self.columns_of(sub(code, unit, mul(code, down, self.across)))
        number = code.let(f"call i64 @claim(ptr {self.work}, i64 {self.slots})")
        slot = shifted(code, self.work, add(code, mul(code, self.slots, LINE), mul(code, number, self.room)))
        first, _, _ = self.columns.of(panels[0])
        fold = _UnitFold(self, down, first, panels[1]) if self.projections else None
        with code.loop(0, self.blocks) as block:
            done = mul(code, block.index, self.depth)
            length = least(code, sub(code, self.k, done), self.depth)
            steps = ceil_div(code, length, self.shape.step)
            in_all = mul(code, div(code, done, self.shape.step), self.columns.width)
            in_all = mul(code, add(code, in_all, mul(code, first, steps)), self.shape.step_bytes)
            packed = choice(code, self.kept_b, shifted(code, self.b, in_all), slot, "ptr")
            there = _SumBlock(block.index, done, length, steps, first, packed)
            if fold is not None:
                fold.block(there)
            self._copy(panels, there, fold)
            self._multiply(self.rows_of(down), panels, there, fold)
        flag = shifted(code, self.work, mul(code, number, LINE))
        code.do(f"store atomic i64 0, ptr {flag} release, align 8")

    def _panel(self, panel: str, block: _SumBlock) -> _Panel:
        """A panel of the right operand, in a block of the sum."""
        code = self.code
        column, vectors, count = self.columns.of(panel)
        width = mul(code, vectors, self.shape.lanes)
        # A panel whose last vector is not full is copied in any case: nothing may be read beyond the rows' ends.
        is_part = code.let(f"icmp slt i64 {count}, {width}")
        offset = mul(code, mul(code, sub(code, column, block.first), block.steps), self.shape.step_bytes)
        here = add(code, mul(code, block.done, self.b_k), mul(code, column, self.b_n))
        return _Panel(
            column, vectors, count, width, is_part, code.let(f"or i1 {is_part}, {self.copies_b}"),
            shifted(code, self.b, here), shifted(code, block.packed, offset),
        )  # fmt: skip

    def _copy(self, panels: tuple[str, str], block: _SumBlock, fold: _UnitFold | None) -> None:
        """Copy the panels of a block. Where steps are long, some of all panels before the next ones: a unit reads long
        stretches of the operand's rows, and writes few lines of a cache at a time."""
        code, shape = self.code, self.shape
        if not shape.packs_both:
            self._copy_chunk(panels, block, "0", block.length)
            return
        with code.when(code.let(f"xor i1 {self.kept_b}, true")), code.loop(0, block.length, _CHUNK) as chunk:
            length = least(code, sub(code, block.length, chunk.index), _CHUNK)
            self._copy_chunk(panels, block, chunk.index, length, fold)

    def _copy_chunk(
        self, panels: tuple[str, str], block: _SumBlock, done: str, length: str, fold: _UnitFold | None = None
    ) -> None:
        """Copy some numbers of each sum of the panels, after those that are done."""
        code, shape = self.code, self.shape
        with code.loop(*panels) as loop:
            panel = self._panel(loop.index, block)
            here = shifted(code, panel.here, mul(code, done, self.b_k))
            steps = mul(code, div(code, done, shape.step) if done != "0" else done, shape.step_bytes)
            to = shifted(code, panel.packed, mul(code, steps, panel.width))
            with code.when(code.let(f"icmp ugt i1 {panel.is_copied}, {self.kept_b}")):
                arguments = [here, self.b_k, self.b_n, length, panel.count, to, panel.width]
                more = fold.panel(add(code, block.done, done), panel.column) if fold is not None else []
                code.invoke(self.panel, (*PANEL, *(FOLDED if more else ())), *arguments, *more)

    def _multiply(
        self, rows: tuple[str, str], panels: tuple[str, str], block: _SumBlock, fold: _UnitFold | None
    ) -> None:
        code = self.code
        with code.loop(*rows) as row:
            place = self.rows.of(row.index)
            start = choice(code, self.in_panels, mul(code, row.index, self.a_panel), mul(code, place[0], self.a_row))
            done = div(code, block.done, self.shape.step)
            start = shifted(code, self.a, add(code, start, mul(code, done, self.a_step)))
            with code.loop(*panels) as loop:
                self._tile(start, place, self._panel(loop.index, block), block, fold)

    def _tile(
        self, start: str, rows: tuple[str, str, str], panel: _Panel, block: _SumBlock, fold: _UnitFold | None
    ) -> None:
        """One tile: its sums go straight to the output, if there is nothing more to do to them and all are wanted."""
        code, (row, groups, height) = self.code, rows
        is_part = panel.is_part
        if self.shape.lines > 1:
            is_low = code.let(f"icmp slt i64 {height}, {mul(code, groups, self.shape.lines)}")
            is_part = code.let(f"or i1 {is_part}, {is_low}")
        is_first = code.pure(f"icmp eq i64 {block.number}, 0")
        is_last = code.pure(f"icmp eq i64 {add(code, block.number, '1')}, {self.blocks}")
        ends = code.let(f"and i1 {is_last}, {self.finishes}")
        is_indirect = code.let(f"or i1 {is_part}, {ends}")
        place = ["%arguments", self.scratch, str(self.line), row, height, panel.column, panel.count]
        with code.when(code.let(f"icmp ugt i1 {is_part}, {is_first}")):
            code.invoke("@resume", FINISH, *place)
        result = add(code, mul(code, row, self.out_row), mul(code, panel.column, self.out_item))
        result = shifted(code, self.out, result)
        before = choice(code, is_part, self.scratch, result, "ptr")
        before = choice(code, is_first, self.nothing, before, "ptr")
        before_row = choice(code, is_first, "0", choice(code, is_part, str(self.line), self.out_row))
        to = choice(code, is_indirect, self.scratch, result, "ptr")
        to_row = choice(code, is_indirect, str(self.line), self.out_row)
        source = choice(code, panel.is_copied, panel.packed, panel.here, "ptr")
        step = choice(code, panel.is_copied, mul(code, panel.width, self.shape.step_bytes), self.b_k)
        number = add(code, mul(code, sub(code, panel.vectors, "1"), self.shape.rows), sub(code, groups, "1"))
        function = code.let(f"load ptr, ptr {code.pure(f'getelementptr ptr, ptr {self.tiles}, i64 {number}')}")
        operands = [start, self.a_row, self.a_step, source, step, block.steps]
        is_left, more = is_last, []
        if fold is not None and self.folds:
            is_left = code.let(f"and i1 {is_last}, {is_part}")
            more = fold.tile(code.let(f"icmp ugt i1 {is_last}, {is_part}"), row, panel.column)
        parameters = (*TILE, *(FOLDED if more else ()))
        code.invoke(function, parameters, *operands, before, before_row, to, to_row, *more)
        with code.when(code.let(f"and i1 {is_indirect}, {is_last}")):
            code.invoke(self.finish, FINISH, *place)
        with code.when(code.let(f"icmp ugt i1 {is_indirect}, {is_last}")):
            code.invoke("@keep", FINISH, *place)
        if fold is not None:
            with code.when(is_left):
                fold.result(result, row, height, panel)


class _UnitFold:
    """The projections of a unit's columns: of the result, less those of the projected left operand times the right one.

    Only the first group of rows takes the right operand.
    """

    def __init__(self, units: _Units, down: str, first: str, end: str) -> None:
        self._units, self._code = units, units.code
        code, job = units.code, units.job
        n, vectors = job.planned("n"), units.projections
        self._columns = sub(code, least(code, units.columns.of(end)[0], n), first)
        self._row, self._folded_row, self._random_row = (
            write_row_bytes(code, c) for c in (n, units.k, job.planned("m"))
        )
        self._first = first
        self._is_first = code.let(f"icmp eq i64 {down}, 0")
        self._in_rows = code.let(
            f"icmp ugt i1 {code.let(f'icmp eq i64 {units.b_n}, 4')}, {code.let(f'icmp eq i64 {units.b_k}, 4')}"
        )
        self._random = job.array(job.planned("random"))
        self._folded = shifted(code, units.work, job.planned("folded"))
        seen = add(code, job.planned("seen"), mul(code, mul(code, down, vectors + 1), self._row))
        self._seen = shifted(code, units.work, add(code, seen, mul(code, first, 4)))
        write_zeros(code, units.shape.lanes, self._seen, self._row, vectors + 1, self._columns)

    def block(self, block: _SumBlock) -> None:
        """All of a block of the right operand, if its columns are contiguous."""
        code = self._code
        units = self._units
        with code.when(code.let(f"icmp ugt i1 {self._is_first}, {self._in_rows}")):
            here = add(code, mul(code, block.done, units.b_k), mul(code, self._first, units.b_n))
            own = shifted(code, self._folded, mul(code, block.done, 4))
            code.invoke(
                "@fold_right", FOLD, shifted(code, units.b, here), units.b_k, units.b_n, own, self._folded_row,
                block.length, self._columns, self._seen, self._row,
            )  # fmt: skip

    def panel(self, done: str, column: str) -> list[str]:
        """The arguments `FOLDED` of a copied panel, which is projected if its rows are contiguous."""
        code = self._code
        own = shifted(code, self._folded, mul(code, done, 4))
        is_folded = code.let(f"and i1 {self._is_first}, {self._in_rows}")
        return [choice(code, is_folded, own, "null", "ptr"), self._folded_row, self._sums(column), self._row]

    def tile(self, is_folded: str, row: str, column: str) -> list[str]:
        """The arguments `FOLDED` of a tile."""
        own = choice(self._code, is_folded, self._weights(row), "null", "ptr")
        return [own, self._random_row, self._sums(column), self._row]

    def result(self, result: str, row: str, height: str, panel: _Panel) -> None:
        """A tile of the result, from where it is stored."""
        self._code.invoke(
            "@fold_result", FOLD, result, self._units.out_row, "4", self._weights(row), self._random_row, height,
            panel.count, self._sums(panel.column), self._row,
        )  # fmt: skip

    def _weights(self, row: str) -> str:
        return shifted(self._code, self._random, mul(self._code, row, 4))

    def _sums(self, column: str) -> str:
        return shifted(self._code, self._seen, mul(self._code, sub(self._code, column, self._first), 4))
