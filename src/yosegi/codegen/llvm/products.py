"""Matrix products, from packed panels and register tiles to a kernel.

    for each matrix of a stack, for each block of the sum:
        copy the right operand's rows of that block in panels    (all threads)
        for each block of rows:
            copy the left operand's elements of that block, with what is to be done to them    (all threads)
            for each unit, some tiles high and wide:    (all threads)
                for each panel: for each tile: add to the result; with the last block, what is to be done to it

Sizes, strides, and how the work is cut are data: there is one object for a dtype and its functions. Either copy can be
left out, if tiles read the operand well where it lies. A right operand that stays the same is copied once and kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ...dtype import DType
from .builder import LlvmBuilder
from .entry import BEFORE_ARRAYS, PARAMETERS
from .integers import add, ceil_div, choice, div, least, mul, shifted, sub, word
from .ir import Function, Module
from .memory import lanes_below, load, repeated, store
from .nest import Target
from .packing import Elementwise, write_lines, write_panel
from .tiles import LINE, TileShape, tile_shape, write_tile

PLAN: Final = (
    "pool", "spread", "batches", "m", "n", "k", "depth", "blocks", "band", "tall", "wide",
    "a_m", "a_k", "b_k", "b_n", "c_m", "copies_a", "copies_b", "kept_b", "by_batch", "room", "slot",
)  # fmt: skip
"""The words of a plan, in order. After them, of each operand of the epilogue, the bytes from one row to the next."""
_JOB: Final = ("a", "b", "c", "a_row", "a_step", "b_step", "first_row", "rows", "steps", "is_first", "is_last",
               "packed_b", "packed_a", "apart", "a_panel", "group_bytes")  # fmt: skip
"""What the threads are told about one block; the plan comes before it, and the epilogue's operands after it."""
PADDING: Final = 64
"""Bytes between copied lines, lest all of them fall into the same places of a cache."""


@dataclass(frozen=True, slots=True)
class Side:
    """An operand of an epilogue: a value for each element of the result, or for each row if `along` is not set.

    A row vector has a distance of zero between rows.
    """

    dtype: DType
    along: bool = True


@dataclass(frozen=True, slots=True)
class Product:
    """What a kernel computes: epilogue(prologue(a) @ b, *sides)."""

    dtype: DType
    prologue: Elementwise | None = None
    """`prologue(k, a)`."""
    epilogue: Elementwise | None = None
    """`epilogue(k, sum, *sides)`."""
    sides: tuple[Side, ...] = ()
    out: DType | None = None
    """The dtype of the results; if it is not that of the sums, these are not cut into blocks."""

    @property
    def result(self) -> DType:
        """The dtype of the results."""
        return self.out or self.dtype


def product_source(product: Product, target: Target, registers: int) -> str:
    """The module of a product: `kernel` and, to keep a right operand, `pack`.

    Their arrays are a, b, the sides, the result, the batches' offsets (in bytes, of a, b, the sides and the result) and
    the workspace; of `pack`: a right operand, where it is kept, and the offset of the first.
    """
    module = Module(converts_halves=target.converts_halves)
    shape = tile_shape(target, product.dtype, registers)
    write_tile(module, product.dtype, shape)
    _Finish(module, product, shape)
    _write_units(module, product, shape)
    _write_pack_panels(module, product, shape)
    _write_pack_lines(module, product, shape)
    _write_one(module, product, shape)
    _write_kernel(module, product)
    _write_pack(module, product, shape)
    return module.text(target.attributes)


class _Job:
    """A function of the threads, and the words that it is given."""

    def __init__(self, module: Module, name: str) -> None:
        self.code = module.function(name, PARAMETERS)
        self.plan = self.code.let("load ptr, ptr %arguments")

    def planned(self, name: str) -> str:
        """A word of the plan."""
        return word(self.code, self.plan, PLAN.index(name))

    def __getitem__(self, name: str) -> str:
        """A number of the job."""
        return word(self.code, "%arguments", 1 + _JOB.index(name))

    def pointer(self, name: str) -> str:
        """An address of the job."""
        return word(self.code, "%arguments", 1 + _JOB.index(name), "ptr")


def _row(code: Function, panel: str, rows: str, panels: str) -> str:
    """The first row of a panel: rows are dealt out evenly."""
    return div(code, mul(code, panel, rows), panels)


def _write_pack_panels(module: Module, product: Product, shape: TileShape) -> None:
    """`pack_panels`: a unit is a panel of the right operand."""
    job = _Job(module, "pack_panels")
    code = job.code
    b_k, b_n, n, steps = job.planned("b_k"), job.planned("b_n"), job.planned("n"), job["steps"]
    source, packed = job.pointer("b"), job.pointer("packed_b")
    size = mul(code, steps, shape.columns * product.dtype.itemsize)
    with code.loop("%low", "%high") as loop:
        column = mul(code, loop.index, shape.columns)
        columns = least(code, sub(code, n, column), shape.columns)
        here = shifted(code, source, mul(code, column, b_n))
        there = shifted(code, packed, mul(code, loop.index, size))
        write_panel(code, product.dtype, shape, here, (b_k, b_n), (steps, columns), there)
        loop.carry()
    code.ret()


def _group(code: Function, group: str, tall: str, rows: str, panels: str) -> tuple[str, str, str, str]:
    """A group of row panels: the first and the one after the last, and the same in rows."""
    first = mul(code, group, tall)
    end = least(code, add(code, first, tall), panels)
    return first, end, _row(code, first, rows, panels), _row(code, end, rows, panels)


def _write_pack_lines(module: Module, product: Product, shape: TileShape) -> None:
    """`pack_lines`: a unit is a group of the left operand's row panels."""
    job = _Job(module, "pack_lines")
    code = job.code
    item = str(product.dtype.itemsize)
    a_m, a_k, tall = (job.planned(name) for name in ("a_m", "a_k", "tall"))
    source, packed = job.pointer("a"), job.pointer("packed_a")
    steps, rows, apart, group_bytes = (job[name] for name in ("steps", "rows", "apart", "group_bytes"))
    panels = ceil_div(code, rows, shape.rows)
    by_columns = code.let(f"icmp eq i64 {a_m}, {item}")
    a_panel = job["a_panel"]
    function = product.prologue or (lambda k, value: value)
    with code.loop("%low", "%high") as loop:
        first, end, top, bottom = _group(code, loop.index, tall, rows, panels)
        there = shifted(code, packed, mul(code, loop.index, group_bytes))
        with code.when(by_columns), code.loop(first, end) as panel:
            row = _row(code, panel.index, rows, panels)
            count = sub(code, _row(code, add(code, panel.index, "1"), rows, panels), row)
            here = shifted(code, source, mul(code, row, a_m))
            to = shifted(code, there, mul(code, sub(code, panel.index, first), a_panel))
            write_lines(code, product.dtype, shape.lanes, here, (a_k, a_m), (steps, count), to, apart, function)
            panel.carry()
        with code.when(code.let(f"xor i1 {by_columns}, true")):
            here = shifted(code, source, mul(code, top, a_m))
            size = sub(code, bottom, top), steps
            write_lines(code, product.dtype, shape.lanes, here, (a_m, a_k), size, there, apart, function)
        loop.carry()
    code.ret()


def _write_units(module: Module, product: Product, shape: TileShape) -> None:
    """`units`: a unit is a group of row panels, and a group of the right operand's panels."""
    out_item = product.result.itemsize
    job = _Job(module, "units")
    code = job.code
    item = product.dtype.itemsize
    n, tall, wide, rows, steps = (
        job.planned("n"), job.planned("tall"), job.planned("wide"), job["rows"], job["steps"],
    )  # fmt: skip
    a, b, packed_b, packed_a = (job.pointer(p) for p in ("a", "b", "packed_b", "packed_a"))
    a_row, a_step, b_step, group_bytes = (job[p] for p in ("a_row", "a_step", "b_step", "group_bytes"))
    copies_a, copies_b = (code.let(f"icmp ne i64 {job.planned(p)}, 0") for p in ("copies_a", "copies_b"))
    a_panel = job["a_panel"]
    in_panels = code.let(f"icmp ne i64 {a_panel}, 0")
    line = shape.columns * item
    tile_bytes = shape.rows * line
    c, c_m, first_row = job.pointer("c"), job.planned("c_m"), job["first_row"]
    is_first, is_last = (code.let(f"icmp ne i64 {job[name]}, 0") for name in ("is_first", "is_last"))
    is_later = code.let(f"xor i1 {is_first}, true")
    scratch, nothing = (code.let(f"alloca i8, i64 {size}, align {LINE}") for size in (tile_bytes, line))
    with code.loop(0, shape.columns, shape.lanes) as loop:
        k = LlvmBuilder(code, shape.lanes)
        store(k, k.literal(0, product.dtype), shifted(code, nothing, mul(code, loop.index, item)))
        loop.carry()
    panels, right = ceil_div(code, rows, shape.rows), ceil_div(code, n, shape.columns)
    across = ceil_div(code, right, wide)
    panel_bytes = mul(code, steps, shape.columns * item)
    with code.loop("%low", "%high") as unit:
        group = div(code, unit.index, across)
        first, end, top, _ = _group(code, group, tall, rows, panels)
        left = mul(code, sub(code, unit.index, mul(code, group, across)), wide)
        in_place = shifted(code, a, mul(code, top, a_row))
        copied = shifted(code, packed_a, mul(code, group, group_bytes))
        base = choice(code, copies_a, copied, in_place, "ptr")
        with code.loop(left, least(code, add(code, left, wide), right)) as panel:
            column = mul(code, panel.index, shape.columns)
            columns = least(code, sub(code, n, column), shape.columns)
            # A panel that is not as wide as a tile is copied in any case: nothing may be read beyond the rows' ends.
            is_part = code.let(f"icmp slt i64 {columns}, {shape.columns}")
            is_copied = code.let(f"or i1 {is_part}, {copies_b}")
            there = shifted(code, packed_b, mul(code, panel.index, panel_bytes))
            source = choice(code, is_copied, there, shifted(code, b, mul(code, column, item)), "ptr")
            step = choice(code, is_copied, str(line), b_step)
            # Sums go straight to the result, if there is nothing more to do to them and they are as wide as the tile.
            is_indirect = is_part if product.epilogue is None else code.let(f"or i1 {is_part}, {is_last}")
            with code.loop(first, end) as tile:
                row = _row(code, tile.index, rows, panels)
                height = sub(code, _row(code, add(code, tile.index, "1"), rows, panels), row)
                by_row, by_panel = sub(code, row, top), sub(code, tile.index, first)
                start = choice(code, in_panels, mul(code, by_panel, a_panel), mul(code, by_row, a_row))
                start = shifted(code, base, start)
                place = f"i64 {row}, i64 {height}, i64 {column}, i64 {columns}"
                with code.when(code.let(f"and i1 {is_part}, {is_later}")):
                    code.do(f"call void @resume(ptr %arguments, ptr {scratch}, {place})")
                result = add(code, mul(code, add(code, row, first_row), c_m), mul(code, column, out_item))
                result = shifted(code, c, result)
                before = choice(code, is_part, scratch, result, "ptr")
                before = choice(code, is_first, nothing, before, "ptr")
                before_row = choice(code, is_first, "0", choice(code, is_part, str(line), c_m))
                to = choice(code, is_indirect, scratch, result, "ptr")
                to_row = choice(code, is_indirect, str(line), c_m)
                code.do(
                    f"call void @tile(ptr {start}, i64 {a_row}, i64 {a_step}, ptr {source}, i64 {step}, i64 {steps}, "
                    f"i64 {height}, ptr {before}, i64 {before_row}, ptr {to}, i64 {to_row})"
                )
                with code.when(is_indirect):
                    code.do(f"call void @finish(ptr %arguments, ptr {scratch}, {place})")
                tile.carry()
            panel.carry()
        unit.carry()
    code.ret()


class _Finish:
    """`finish(arguments, sums, row, height, column, columns)`: a tile's sums to the result.

    And `resume`, the other way round: what is there of the sums of a tile that is not full.
    """

    def __init__(self, module: Module, product: Product, shape: TileShape) -> None:
        self.product = product
        self.shape = shape
        self._begin(module, "resume")
        self._each(self._resumed, masked=True)
        self.code.ret()
        self._begin(module, "finish")
        code = self.code
        is_last = code.let(f"icmp ne i64 {word(code, '%arguments', 1 + _JOB.index('is_last'))}, 0")
        whole = code.let(f"icmp eq i64 %columns, {shape.columns}")
        partial = code.let(f"xor i1 {whole}, true")
        with code.when(code.let(f"icmp ugt i1 {partial}, {is_last}")):
            self._each(self._kept, masked=True)
        for condition, masked in ((whole, False), (partial, True)):
            with code.when(code.let(f"and i1 {condition}, {is_last}")):
                self._each(self._ended, masked=masked)
        code.ret()

    def _begin(self, module: Module, name: str) -> None:
        product = self.product
        self.code = code = module.function(name, [
            ("ptr", "arguments"), ("ptr", "sums"), ("i64", "row"), ("i64", "height"), ("i64", "column"),
            ("i64", "columns"),
        ])  # fmt: skip
        plan = code.let("load ptr, ptr %arguments")
        row = add(code, "%row", word(code, "%arguments", 1 + _JOB.index("first_row")))
        self.c_m = word(code, plan, PLAN.index("c_m"))
        self.result = self._start(word(code, "%arguments", 1 + _JOB.index("c"), "ptr"), row, self.c_m, product.result)
        self.side_rows = [word(code, plan, len(PLAN) + n) for n in range(len(product.sides))]
        self.sides = []
        for n, side in enumerate(product.sides):
            base = word(code, "%arguments", 1 + len(_JOB) + n, "ptr")
            self.sides.append(self._start(base, row, self.side_rows[n], side.dtype, along=side.along))

    def _start(self, base: str, row: str, apart: str, dtype: DType, *, along: bool = True) -> str:
        code = self.code
        offset = add(code, mul(code, row, apart), mul(code, "%column", dtype.itemsize) if along else "0")
        return shifted(code, base, offset)

    def _each(self, body: Callable[[LlvmBuilder, str, str, str, str | None], None], *, masked: bool) -> None:
        """Write `body` for each vector of the tile."""
        code, shape = self.code, self.shape
        k = LlvmBuilder(code, shape.lanes)
        item = self.product.dtype.itemsize
        with code.loop(0, "%height") as row:
            sums = shifted(code, "%sums", mul(code, row.index, shape.columns * item))
            with code.loop(0, "%columns", shape.lanes) as column:
                mask = lanes_below(k, sub(code, "%columns", column.index)) if masked else None
                body(k, row.index, column.index, shifted(code, sums, mul(code, column.index, item)), mask)
                column.carry()
            row.carry()

    def _place(self, base: str, row: str, apart: str, column: str, dtype: DType) -> str:
        code = self.code
        return shifted(code, shifted(code, base, mul(code, row, apart)), mul(code, column, dtype.itemsize))

    def _resumed(self, k: LlvmBuilder, row: str, column: str, at: str, mask: str | None) -> None:
        dtype = self.product.dtype
        store(k, load(k, dtype, self._place(self.result, row, self.c_m, column, dtype), mask), at)

    def _kept(self, k: LlvmBuilder, row: str, column: str, at: str, mask: str | None) -> None:
        dtype = self.product.dtype
        store(k, load(k, dtype, at), self._place(self.result, row, self.c_m, column, dtype), mask)

    def _ended(self, k: LlvmBuilder, row: str, column: str, at: str, mask: str | None) -> None:
        product = self.product
        value = load(k, product.dtype, at)
        if product.epilogue is not None:
            values = []
            for side, base, apart in zip(product.sides, self.sides, self.side_rows, strict=True):
                if side.along:
                    values.append(load(k, side.dtype, self._place(base, row, apart, column, side.dtype), mask))
                else:
                    values.append(repeated(k, side.dtype, shifted(self.code, base, mul(self.code, row, apart))))
            value = k.rounded(product.epilogue(k, value, *values))
        store(k, value, self._place(self.result, row, self.c_m, column, product.result), mask)


def _write_one(module: Module, product: Product, shape: TileShape) -> None:
    """`one(arguments, batch, pool, work)`: the product of one matrix of a stack; on one thread if there is no pool."""
    code = module.function("one", [("ptr", "arguments"), ("i64", "batch"), ("ptr", "pool"), ("ptr", "work")])
    item = product.dtype.itemsize
    plan = code.let("load ptr, ptr %arguments")
    p = {name: word(code, plan, n) for n, name in enumerate(PLAN)}
    arrays = 3 + len(product.sides)
    table = word(code, "%arguments", BEFORE_ARRAYS + arrays, "ptr")
    line = shifted(code, table, mul(code, "%batch", 8 * arrays))
    given = [
        shifted(code, word(code, "%arguments", BEFORE_ARRAYS + n, "ptr"), word(code, line, n)) for n in range(arrays)
    ]
    a, b, *sides, c = given
    job = code.let(f"alloca i64, i64 {1 + len(_JOB) + len(sides)}, align {LINE}")

    def tell(name: str | int, value: str, kind: str = "i64") -> None:
        place = 1 + (_JOB.index(name) if isinstance(name, str) else len(_JOB) + name)
        code.do(f"store {kind} {value}, ptr {code.pure(f'getelementptr i64, ptr {job}, i64 {place}')}")

    code.do(f"store ptr {plan}, ptr {job}")
    tell("c", c, "ptr")
    for n, side in enumerate(sides):
        tell(n, side, "ptr")
    copies_a, copies_b, kept_b = (code.let(f"icmp ne i64 {p[w]}, 0") for w in ("copies_a", "copies_b", "kept_b"))
    # The left operand is copied as it lies: row by row, or in panels of as many columns' elements as a tile has rows.
    by_columns = code.let(f"icmp eq i64 {p['a_m']}, {item}")
    right = ceil_div(code, p["n"], shape.columns)
    tell("b_step", p["b_k"])
    with code.loop(0, p["blocks"]) as block:
        done = mul(code, block.index, p["depth"])
        steps = least(code, sub(code, p["k"], done), p["depth"])
        is_first = code.let(f"icmp eq i64 {block.index}, 0")
        is_last = code.let(f"icmp eq i64 {add(code, block.index, '1')}, {p['blocks']}")
        tell("steps", steps)
        tell("is_first", code.let(f"zext i1 {is_first} to i64"))
        tell("is_last", code.let(f"zext i1 {is_last} to i64"))
        tell("b", shifted(code, b, mul(code, done, p["b_k"])), "ptr")
        panel_bytes = mul(code, steps, shape.columns * item)
        last = sub(code, right, "1")
        # If only the last panel is copied, it is as if the others lay before it.
        alone = shifted(code, "%work", sub(code, "0", mul(code, last, panel_bytes)))
        kept = shifted(code, b, mul(code, done, mul(code, right, shape.columns * item)))
        there = choice(code, copies_b, choice(code, kept_b, kept, "%work", "ptr"), alone, "ptr")
        tell("packed_b", there, "ptr")
        with code.when(code.let(f"icmp ugt i1 {copies_b}, {kept_b}")):
            _spread(code, "%pool", p["spread"], "pack_panels", job, right, "1")
        is_part = code.let(f"icmp ne i64 {mul(code, right, shape.columns)}, {p['n']}")
        with code.when(code.let(f"icmp ugt i1 {is_part}, {copies_b}")):
            code.do(f"call void @pack_panels(ptr {job}, i64 {last}, i64 {right})")
        tops = shifted(code, "%work", p["room"])
        tell("packed_a", tops, "ptr")
        apart_rows = add(code, mul(code, p["depth"], item), str(PADDING))
        apart = choice(code, by_columns, str(shape.rows * item), apart_rows)
        tell("apart", apart)
        panel = mul(code, p["depth"], shape.rows * item)
        tell("a_panel", choice(code, code.let(f"and i1 {by_columns}, {copies_a}"), panel, "0"))
        group = choice(code, by_columns, panel, mul(code, apart_rows, shape.rows))
        tell("group_bytes", mul(code, p["tall"], group))
        packed_row = choice(code, by_columns, str(item), apart)
        packed_step = choice(code, by_columns, apart, str(item))
        tell("a_row", choice(code, copies_a, packed_row, p["a_m"]))
        tell("a_step", choice(code, copies_a, packed_step, p["a_k"]))
        with code.loop(0, p["m"], p["band"]) as band:
            rows = least(code, sub(code, p["m"], band.index), p["band"])
            tell("first_row", band.index)
            tell("rows", rows)
            across = add(code, mul(code, band.index, p["a_m"]), mul(code, done, p["a_k"]))
            tell("a", shifted(code, a, across), "ptr")
            groups = ceil_div(code, ceil_div(code, rows, shape.rows), p["tall"])
            with code.when(copies_a):
                _spread(code, "%pool", p["spread"], "pack_lines", job, groups, "1")
            _spread(code, "%pool", p["spread"], "units", job, mul(code, groups, ceil_div(code, right, p["wide"])), "1")
            band.carry()
        block.carry()
    code.ret()


def _spread(code: Function, pool: str, spread: str, name: str, job: str, count: str, chunk: str) -> None:
    """Have units of work done, by all threads if there is a pool."""
    alone = code.let(f"icmp eq ptr {pool}, null")
    with code.when(alone):
        code.do(f"call void @{name}(ptr {job}, i64 0, i64 {count})")
    with code.when(code.let(f"xor i1 {alone}, true")):
        function = code.let(f"inttoptr i64 {spread} to ptr")
        code.do(f"call void {function}(ptr {pool}, ptr @{name}, ptr {job}, i64 {count}, i64 {chunk})")


def _write_kernel(module: Module, product: Product) -> None:
    """`kernel`: all matrices of a stack, one after another, or each by a thread of its own."""
    work_place = BEFORE_ARRAYS + 4 + len(product.sides)
    code = module.function("some", PARAMETERS)
    plan = code.let("load ptr, ptr %arguments")
    work = word(code, "%arguments", work_place, "ptr")
    chunk, slot = (word(code, plan, PLAN.index(name)) for name in ("by_batch", "slot"))
    # Chunks are told apart by where they begin: each has a part of the workspace.
    own = shifted(code, work, mul(code, div(code, "%low", chunk), slot))
    with code.loop("%low", "%high") as loop:
        code.do(f"call void @one(ptr %arguments, i64 {loop.index}, ptr null, ptr {own})")
        loop.carry()
    code.ret()

    code = module.function("kernel", PARAMETERS)
    plan = code.let("load ptr, ptr %arguments")
    p = {name: word(code, plan, PLAN.index(name)) for name in ("pool", "spread", "batches", "by_batch")}
    work = word(code, "%arguments", work_place, "ptr")
    pool = code.let(f"inttoptr i64 {p['pool']} to ptr")
    one_by_one = code.let(f"icmp eq i64 {p['by_batch']}, 0")
    with code.when(one_by_one), code.loop(0, p["batches"]) as loop:
        code.do(f"call void @one(ptr %arguments, i64 {loop.index}, ptr {pool}, ptr {work})")
        loop.carry()
    with code.when(code.let(f"xor i1 {one_by_one}, true")):
        _spread(code, pool, p["spread"], "some", "%arguments", p["batches"], p["by_batch"])
    code.ret()


def _write_pack(module: Module, product: Product, shape: TileShape) -> None:
    """`pack`: a right operand, as `kernel` wants it if it is kept."""
    code = module.function("pack", PARAMETERS)
    plan = code.let("load ptr, ptr %arguments")
    p = {name: word(code, plan, n) for n, name in enumerate(PLAN)}
    b, to = (word(code, "%arguments", BEFORE_ARRAYS + n, "ptr") for n in range(2))
    job = code.let(f"alloca i64, i64 {1 + len(_JOB)}, align {LINE}")
    code.do(f"store ptr {plan}, ptr {job}")
    places = {name: code.pure(f"getelementptr i64, ptr {job}, i64 {1 + n}") for n, name in enumerate(_JOB)}
    right = ceil_div(code, p["n"], shape.columns)
    with code.loop(0, p["k"], p["depth"]) as loop:
        steps = least(code, sub(code, p["k"], loop.index), p["depth"])
        here = shifted(code, b, mul(code, loop.index, p["b_k"]))
        there = shifted(code, to, mul(code, loop.index, mul(code, right, shape.columns * product.dtype.itemsize)))
        code.do(f"store i64 {steps}, ptr {places['steps']}")
        code.do(f"store ptr {here}, ptr {places['b']}")
        code.do(f"store ptr {there}, ptr {places['packed_b']}")
        code.do(f"call void @pack_panels(ptr {job}, i64 0, i64 {right})")
        loop.carry()
    code.ret()


def plan_words(numbers: dict[str, int], side_rows: Sequence[int]) -> list[int]:
    """A plan as data."""
    return [*[numbers[name] for name in PLAN], *side_rows]
