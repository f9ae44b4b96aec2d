"""Matrix products, from packed panels and register tiles to a kernel: the order of the work.

    for each matrix of a stack:
        copy the left operand, with what is to be done to it    (all threads)
        for each unit, some tiles high and wide, for each block of the sum:    (all threads)
            copy the right operand's rows of that block, and the unit's columns, in panels
            for each row of tiles: for each tile: add to the result; with the last block, what is to be done to it

The left operand is copied only if tiles cannot read it where it lies, the right one if that is faster: a unit's part of
it then stays in the core's own cache. A right operand that stays the same is copied once and kept.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType
from .bfloat16_units import BFloat16Unit
from .entry import BEFORE_ARRAYS, PARAMETERS
from .fused_projections import ADD_UP, COMPARE, write_projections
from .integers import add, ceil_div, choice, div, least, lined_up, most, mul, shifted, sub, word
from .ir import Function, Module
from .jobs import Panels, write_claim, write_keeping, write_pack_and_fold, write_pack_lines, write_units
from .nest import VectorTarget
from .packing import PARAMETERS as PANEL
from .product import PLAN, JobWriter
from .register_tiles import LINE, TileShape

PADDING: Final = 64
"""Bytes between copied lines, lest all of them fall into the same places of a cache."""
_LINE_CHUNKS: Final = 16
"""Chunks into which the copying of a left operand is cut."""


def product_source(
    target: VectorTarget, dtype: DType, shape: TileShape, unit: BFloat16Unit | None = None, *, projections: int = 0
) -> str:
    """The module of all products with sums of a dtype and tiles of a shape. `unit` multiplies bfloat16 numbers.
    `projections`: it is projected on so many random vectors.

    `kernel` takes the arrays of a `Product`, then the workspace; `pack`, a right operand, and where it is kept.
    """
    module = Module()
    write_keeping(module, dtype, shape.lanes)
    write_claim(module)
    if projections:
        write_projections(module, shape.lanes, projections)
        write_pack_and_fold(module, shape, projections)
    write_units(module, dtype, shape, unit, projections=projections)
    write_pack_lines(module, shape)
    _write_one(module, shape, projections)
    write_stack(module, "kernel")
    _write_pack(module, shape)
    return module.text(target.attributes)


def _write_one(module: Module, shape: TileShape, projections: int) -> None:
    """`one(arguments, batch, pool, work)`: the product of one matrix of a stack; on one thread if there is no pool."""
    code = module.function("one", [("ptr", "arguments"), ("i64", "batch"), ("ptr", "pool"), ("ptr", "work")])
    item = shape.step_bytes
    plan = code.let("load ptr, ptr %arguments")
    p = {name: word(code, plan, n) for n, name in enumerate(PLAN)}
    put = job_with_arrays(code, plan, p["arrays"], p["offsets"])
    copies_a, in_panels = (code.let(f"icmp ne i64 {p[w]}, 0") for w in ("copies_a", "in_panels"))
    row_panels = ceil_div(code, ceil_div(code, p["m"], shape.lines), shape.rows)
    apart = choice(code, in_panels, str(shape.height * item), add(code, mul(code, p["k"], item), str(PADDING)))
    packed = shifted(code, "%work", mul(code, p["slots"], add(code, p["room"], str(LINE))))
    put("work", "%work", "ptr")
    put("packed_a", packed, "ptr")
    put("apart", apart)
    put("a_panel", mul(code, ceil_div(code, p["k"], shape.step), shape.height * item))
    put("a", choice(code, copies_a, packed, put.given("0"), "ptr"), "ptr")
    put("a_row", choice(code, copies_a, choice(code, in_panels, str(item), apart), p["a_m"]))
    put("a_step", choice(code, copies_a, choice(code, in_panels, apart, str(item)), p["a_k"]))
    with code.loop(0, p["slots"]) as slot:
        code.do(f"store i64 0, ptr {shifted(code, '%work', mul(code, slot.index, LINE))}")
    if projections:
        in_columns = code.let(f"icmp ne i64 {p['a_k']}, 4")
        with code.when(in_columns):
            chunks = ceil_div(code, p["k"], p["fold_chunk"])
            spread(code, "%pool", p["spread"], "pack_columns_and_fold", put.job, chunks, "1")
        with code.when(code.let(f"xor i1 {in_columns}, true")):
            spread(code, "%pool", p["spread"], "pack_rows_and_fold", put.job, p["fold_parts"], "1")
            sums = shifted(code, "%work", p["folded"])
            code.invoke("@add_up", ADD_UP, sums, p["fold_parts"], str(projections), p["k"])
    else:
        with code.when(copies_a):
            several = code.pure(f"udiv i64 {row_panels}, {_LINE_CHUNKS}")
            spread(code, "%pool", p["spread"], "pack_lines", put.job, row_panels, most(code, several, 1))
    spread(code, "%pool", p["spread"], "units", put.job, mul(code, p["down"], p["across"]), "1")
    if projections:
        seen, sums = shifted(code, "%work", p["seen"]), put.given(add(code, p["random"], "1"))
        code.invoke("@add_up", ADD_UP, seen, p["down"], str(projections + 1), p["n"])
        code.invoke("@compare", COMPARE, seen, p["n"], sums)
    code.ret()


def job_with_arrays(code: Function, plan: str, arrays: str, offsets: str) -> JobWriter:
    """A job with the arrays of the matrix `%batch` of a stack."""
    put = JobWriter(code, plan, arrays)
    table = code.pure(f"getelementptr i64, ptr {plan}, i64 {offsets}")
    line = code.pure(f"getelementptr i64, ptr {table}, i64 {mul(code, '%batch', arrays)}")
    given = code.pure(f"getelementptr ptr, ptr %arguments, i64 {BEFORE_ARRAYS}")
    with code.loop(0, arrays) as loop:
        base = code.let(f"load ptr, ptr {code.pure(f'getelementptr ptr, ptr {given}, i64 {loop.index}')}")
        offset = code.let(f"load i64, ptr {code.pure(f'getelementptr i64, ptr {line}, i64 {loop.index}')}")
        put.array(loop.index, shifted(code, base, offset))
    return put


def spread(code: Function, pool: str, function: str, name: str, job: str, count: str, chunk: str) -> None:
    """Have units of work done, by all threads if there is a pool; `function` is the pool's, as an i64."""
    alone = code.let(f"icmp eq ptr {pool}, null")
    with code.when(alone):
        code.do(f"call void @{name}(ptr {job}, i64 0, i64 {count})")
    with code.when(code.let(f"xor i1 {alone}, true")):
        address = code.let(f"inttoptr i64 {function} to ptr")
        code.do(f"call void {address}(ptr {pool}, ptr @{name}, ptr {job}, i64 {count}, i64 {chunk})")


def workspace(code: Function, plan: str) -> str:
    """The workspace, which comes behind the arrays, from its first whole cache line on."""
    arrays = word(code, plan, PLAN.index("arrays"))
    first = code.pure(f"getelementptr i64, ptr %arguments, i64 {BEFORE_ARRAYS}")
    given = code.let(f"load i64, ptr {code.pure(f'getelementptr i64, ptr {first}, i64 {arrays}')}")
    return lined_up(code, given, LINE)


def write_stack(module: Module, name: str) -> None:
    """A function for all matrices of a stack, one after another, or some by each thread, by `one`."""
    code = module.function("some", PARAMETERS)
    plan = code.let("load ptr, ptr %arguments")
    chunk, slot = (word(code, plan, PLAN.index(name)) for name in ("by_batch", "slot"))
    # Chunks are distinguished by their first index: each has a part of the workspace.
    own = shifted(code, workspace(code, plan), mul(code, div(code, "%low", chunk), slot))
    with code.loop("%low", "%high") as loop:
        code.do(f"call void @one(ptr %arguments, i64 {loop.index}, ptr null, ptr {own})")
    code.ret()

    code = module.function(name, PARAMETERS)
    plan = code.let("load ptr, ptr %arguments")
    p = {name: word(code, plan, PLAN.index(name)) for name in ("spread", "batches", "by_batch")}
    pool = word(code, plan, PLAN.index("pool"), "ptr")
    work = workspace(code, plan)
    one_by_one = code.let(f"icmp eq i64 {p['by_batch']}, 0")
    with code.when(one_by_one), code.loop(0, p["batches"]) as loop:
        code.do(f"call void @one(ptr %arguments, i64 {loop.index}, ptr {pool}, ptr {work})")
    with code.when(code.let(f"xor i1 {one_by_one}, true")):
        spread(code, pool, p["spread"], "some", "%arguments", p["batches"], p["by_batch"])
    code.ret()


def _write_pack(module: Module, shape: TileShape) -> None:
    """`pack`: a right operand, as `kernel` wants it if it is kept."""
    code = module.function("pack", PARAMETERS)
    plan = code.let("load ptr, ptr %arguments")
    p = {name: word(code, plan, n) for n, name in enumerate(PLAN)}
    function = word(code, plan, PLAN.index("panel"), "ptr")
    b, to = (word(code, "%arguments", BEFORE_ARRAYS + n, "ptr") for n in range(2))
    columns = Panels(code, p["n"], shape.lanes, shape.vectors)
    with code.loop(0, p["k"], p["depth"]) as block, code.loop(0, columns.count) as panel:
        length = least(code, sub(code, p["k"], block.index), p["depth"])
        steps = ceil_div(code, length, shape.step)
        column, vectors, count = columns.of(panel.index)
        here = add(code, mul(code, block.index, p["b_k"]), mul(code, column, p["b_n"]))
        done = div(code, block.index, shape.step)
        there = add(code, mul(code, done, columns.width), mul(code, column, steps))
        code.invoke(function, PANEL, shifted(code, b, here), p["b_k"], p["b_n"], length, count,
               shifted(code, to, mul(code, there, shape.step_bytes)), mul(code, vectors, shape.lanes))  # fmt: skip
    code.ret()
