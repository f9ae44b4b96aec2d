"""The threads' part of a product with bfloat16 numbers inside: packing operands, and adding up blocks.

Each thread has a slot of memory for sums that are under way. It takes units until none is left, so that one that
comes late takes fewer; two threads begin at opposite ends.
"""

from __future__ import annotations

from ..._tensor.dtype import DType, float32
from .bfloat16_units import BLOCK, BLOCK_ROW, LINES, PANEL, STEP, TILE, BFloat16Unit, configure, release, step_bytes
from .half_words import LINE, HalfJob, HalfProduct, split
from .integers import add, ceil_div, choice, div, least, mul, shifted, sub, word
from .ir import Module

# Packing


def write_packing(module: Module, product: HalfProduct) -> None:
    """`packing`: a unit is a stretch of some lines. Those of the right operand lie in the middle, between the first and
    the last of the left one: a thread packs what it will read."""
    job = HalfJob(module, "packing")
    code = job.code
    units, units_b = job.told("units", "units_b")
    operands = [_PackedOperand(job, name, product) for name in ("a", "b")]
    before = div(code, sub(code, units, units_b), "2")
    with code.loop(0, units, carried=[("i64", job.next(units))]) as turn:
        unit = turn.values[0]
        with code.when(code.let(f"icmp slt i64 {unit}, {units}"), [("i64", unit)]) as branch:
            past = sub(code, unit, before)
            is_right = code.let(f"icmp ult i64 {past}, {units_b}")
            with code.when(is_right):
                operands[1].pack(past)
            with code.when(code.let(f"xor i1 {is_right}, true")):
                is_first = code.let(f"icmp slt i64 {past}, 0")
                operands[0].pack(choice(code, is_first, unit, sub(code, unit, units_b)))
            branch.give(job.next(units))
        turn.carry(branch.values[0])
    code.ret()


class _PackedOperand:
    """One operand, as the threads pack it."""

    def __init__(self, job: HalfJob, name: str, product: HalfProduct) -> None:
        self.code = job.code
        self.name = name
        self.column = 0 if name == "a" else 1
        self.item = (product.a if name == "a" else product.b).itemsize
        self.job = job
        self.arrays = product.arrays
        self.step = step_bytes(product.parts)
        self.k, self.steps = job.planned("k", "steps")
        self.line, self.along = job.planned(f"{name}_line", f"{name}_along")
        self.group, self.segment, self.chunk = job.planned(*[f"{name}_{w}" for w in ("group", "segment", "chunk")])
        self.source, self.packed = job.pointers(f"{name}_from", f"{name}_packed")
        self.batch, self.first, self.lines, self.next = job.told(
            "first", *(("row", "rows") if name == "a" else ("column", "columns")), f"{name}_next"
        )
        self.tiles = ceil_div(self.code, self.lines, LINES)
        self.groups = ceil_div(self.code, self.tiles, self.group)
        self.segments = ceil_div(self.code, self.steps, self.segment)

    def pack(self, unit: str) -> None:
        """Pack a unit: some tiles' lines, for some steps; a few steps of all these lines before the next steps."""
        code = self.code
        matrix, rest = split(code, unit, mul(code, self.groups, self.segments))
        group, segment = split(code, rest, self.segments)
        batch = add(code, self.batch, matrix)
        offset = word(code, shifted(code, self.job.table, mul(code, batch, 8 * self.arrays)), self.column)
        source = shifted(code, self.source, offset)
        target = shifted(code, self.packed, mul(code, matrix, self.next))
        begin = mul(code, segment, self.segment)
        end = least(code, add(code, begin, self.segment), self.steps)
        top = mul(code, group, self.group)
        bottom = least(code, add(code, top, self.group), self.tiles)
        with code.loop(begin, end, self.chunk) as steps:
            done = mul(code, steps.index, STEP)
            count = least(code, sub(code, end, steps.index), self.chunk)
            length = least(code, sub(code, self.k, done), mul(code, count, STEP))
            here = shifted(code, source, mul(code, mul(code, done, self.along), self.item))
            there = shifted(code, target, mul(code, steps.index, self.step))
            with code.loop(top, bottom) as tile:
                line = mul(code, tile.index, LINES)
                lines = least(code, sub(code, self.lines, line), LINES)
                across = mul(code, mul(code, add(code, self.first, line), self.line), self.item)
                panel, second = split(code, tile.index, "2")
                place = add(code, mul(code, panel, mul(code, self.steps, self.step)), mul(code, second, TILE))
                code.do(
                    f"call void @pack_{self.name}(ptr {shifted(code, here, across)}, i64 {self.line}, "
                    f"i64 {self.along}, i64 {lines}, i64 {length}, ptr {shifted(code, there, place)})"
                )


# Products


def write_products(module: Module, product: HalfProduct, unit: BFloat16Unit) -> None:
    """`products`: a unit is some panels of rows and some of columns, of one matrix. The slot is the first argument."""
    job = HalfJob(module, "products")
    code = job.code
    if unit is BFloat16Unit.TILES:
        configure(code)
    units, rows, columns = job.told("units", "rows", "columns")
    tall, wide = job.planned("tall", "wide")
    writer = _Unit(job, product)
    down, across = (ceil_div(code, ceil_div(code, n, PANEL), size) for n, size in ((rows, tall), (columns, wide)))
    with code.loop(0, units, carried=[("i64", job.next(units))]) as turn:
        number = turn.values[0]
        with code.when(code.let(f"icmp slt i64 {number}, {units}"), [("i64", number)]) as branch:
            matrix, rest = split(code, number, mul(code, down, across))
            i, j = split(code, rest, across)
            writer.write(matrix, mul(code, i, tall), mul(code, j, wide))
            branch.give(job.next(units))
        turn.carry(branch.values[0])
    if unit is BFloat16Unit.TILES:
        release(code)
    code.ret()


class _Unit:
    """Writes the work of a unit."""

    def __init__(self, job: HalfJob, product: HalfProduct) -> None:
        self.code = code = job.code
        self.job = job
        self.product = product
        self.step = step_bytes(product.parts)
        self.steps, self.depth, self.stretches, self.tall, self.wide, self.c_row, slot = job.planned(
            "steps", "depth", "stretches", "tall", "wide", "c_row", "slot"
        )
        self.batch, self.row, self.rows, self.column, self.columns, self.a_next, self.b_next = job.told(
            "first", "row", "rows", "column", "columns", "a_next", "b_next"
        )
        self.a, self.b, sums = job.pointers("a_packed", "b_packed", "sums")
        self.sides = [(job.end(n), job.side_row(n)) for n in range(len(product.sides))]
        self.result = job.end(len(product.sides))
        self.sums = shifted(code, sums, mul(code, "%low", slot))
        self.scratch = code.let(f"alloca i8, i64 {BLOCK}, align {LINE}")

    def write(self, matrix: str, top: str, left: str) -> None:
        """All blocks of the panels from `top` and `left` on."""
        code, product = self.code, self.product
        arrays = product.arrays
        line = shifted(code, self.job.table, mul(code, add(code, self.batch, matrix), 8 * arrays))
        ends = [(self.result, self.c_row), *self.sides]
        self.ends = [
            (shifted(code, base, word(code, line, n)), apart)
            for (base, apart), n in zip(ends, (arrays - 1, *range(2, arrays - 1)), strict=True)
        ]
        panel = mul(code, self.steps, self.step)
        a = shifted(code, self.a, mul(code, matrix, self.a_next))
        b = shifted(code, self.b, mul(code, matrix, self.b_next))
        bottom = least(code, add(code, top, self.tall), ceil_div(code, self.rows, PANEL))
        right = least(code, add(code, left, self.wide), ceil_div(code, self.columns, PANEL))
        with code.loop(0, self.stretches) as stretch:
            done = mul(code, stretch.index, self.depth)
            self.count = least(code, sub(code, self.steps, done), self.depth)
            self.is_first = code.let(f"icmp eq i64 {stretch.index}, 0")
            self.is_last = code.let(f"icmp eq i64 {add(code, stretch.index, '1')}, {self.stretches}")
            begin = mul(code, done, self.step)
            with code.loop(top, bottom) as i:
                row = mul(code, i.index, PANEL)
                height = least(code, sub(code, self.rows, row), PANEL)
                a_panel = shifted(code, a, add(code, mul(code, i.index, panel), begin))
                kept = shifted(code, self.sums, mul(code, mul(code, sub(code, i.index, top), self.wide), BLOCK))
                with code.loop(left, right) as j:
                    column = mul(code, j.index, PANEL)
                    width = least(code, sub(code, self.columns, column), PANEL)
                    b_panel = shifted(code, b, add(code, mul(code, j.index, panel), begin))
                    sums = shifted(code, kept, mul(code, sub(code, j.index, left), BLOCK))
                    place = add(code, self.row, row), add(code, self.column, column)
                    self._block(a_panel, b_panel, sums, place, (height, width))

    def _block(self, a: str, b: str, sums: str, place: tuple[str, str], size: tuple[str, str]) -> None:
        """The sums of a block; in the end to the result."""
        code, product = self.code, self.product
        result = self._at(*self.ends[0], place, product.out)
        goes_on = self.is_last
        if product.after is None and product.out is float32:
            # Tiles that are full, and to which nothing is to be done, go straight to the result.
            odd = code.let(f"and i64 {code.let(f'or i64 {size[0]}, {size[1]}')}, {LINES - 1}")
            is_whole = code.let(f"icmp eq i64 {odd}, 0")
            goes_on = code.let(f"icmp ugt i1 {self.is_last}, {is_whole}")
        to = choice(code, goes_on, self.scratch, result, "ptr")
        to = choice(code, self.is_last, to, sums, "ptr")
        stays = code.let(f"icmp uge i1 {goes_on}, {self.is_last}")
        to_row = choice(code, stays, str(BLOCK_ROW), self.c_row)
        before = choice(code, self.is_first, "null", sums, "ptr")
        high, wide = (code.let(f"zext i1 {code.let(f'icmp sgt i64 {s}, {LINES}')} to i64") for s in size)
        tiles = add(code, mul(code, high, 2), wide)
        code.do(
            f"call void @block(ptr {a}, ptr {b}, i64 {self.count}, i64 {tiles}, ptr {before}, i64 {BLOCK_ROW}, "
            f"ptr {to}, i64 {to_row})"
        )
        with code.when(goes_on):
            sides = "".join(
                f", ptr {self._at(base, apart, place, side.dtype, along=side.along)}, i64 {apart}"
                for (base, apart), side in zip(self.ends[1:], product.sides, strict=True)
            )
            code.do(
                f"call void @finish(ptr {self.scratch}, i64 {size[0]}, i64 {size[1]}, ptr {result}, "
                f"i64 {self.c_row}{sides})"
            )

    def _at(self, base: str, apart: str, place: tuple[str, str], dtype: DType, *, along: bool = True) -> str:
        """Where a block begins in an array."""
        code = self.code
        offset = mul(code, place[0], apart)
        return shifted(code, base, add(code, offset, mul(code, place[1], dtype.itemsize)) if along else offset)
