"""Products by a library, on our own threads: each multiplies some rows, with what comes before and after on the same
thread, while what it needs is in its caches.

The library is held to one thread meanwhile. Several may hold it at a time: the first one notes how many threads there
were, the last one puts that back. The guard's words are a lock, how many are inside, and that number.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType
from .entry import PARAMETERS
from .fused_stages import FINISH, LINES
from .integers import add, choice, least, mul, shifted, sub, word
from .ir import Function, Module
from .nest import VectorTarget
from .product import PLAN, ProductJob
from .product_kernels import job_with_arrays, spread, write_stack

_ROW_MAJOR: Final = 101
NOT_TRANSPOSED: Final = 111
TRANSPOSED: Final = 112
"""CBLAS's words for how matrices lie."""
HOLD: Final = (("ptr", "guard"), ("ptr", "get"), ("ptr", "set"))


def library_source(target: VectorTarget, dtype: DType, *, long: bool) -> str:
    """The module of all products of a dtype by a library whose integers are `long` or not: `kernel`, which takes the
    arrays of a `Product`, then the workspace; and `hold` and `release`."""
    module = Module()
    _write_hold(module, takes=True)
    _write_hold(module, takes=False)
    _write_rows(module, dtype, long=long)
    _write_one(module)
    write_stack(module, "stack")
    _write_kernel(module)
    return module.text(target.attributes)


def _write_hold(module: Module, *, takes: bool) -> None:
    """`hold(guard, get, set)` and `release(guard, get, set)`."""
    code = module.function("hold" if takes else "release", HOLD)
    closed = code.fresh("closed")
    code.do(f"br label %{closed}")
    code.begin(closed)
    pair = code.let("cmpxchg ptr %guard, i64 0, i64 1 acquire monotonic")
    opened = code.fresh("opened")
    code.do(f"br i1 {code.let(f'extractvalue {{ i64, i1 }} {pair}, 1')}, label %{opened}, label %{closed}")
    code.begin(opened)
    inside, threads = (code.pure(f"getelementptr i64, ptr %guard, i64 {n}") for n in (1, 2))
    count = code.let(f"load i64, ptr {inside}")
    if takes:
        with code.when(code.let(f"icmp eq i64 {count}, 0")):
            before = code.let("call i32 %get()")
            code.do(f"store i64 {code.let(f'sext i32 {before} to i64')}, ptr {threads}")
            with code.when(code.let(f"icmp ne i32 {before}, 1")):
                code.do("call void %set(i32 1)")
        code.do(f"store i64 {add(code, count, '1')}, ptr {inside}")
    else:
        code.do(f"store i64 {sub(code, count, '1')}, ptr {inside}")
        before = code.let(f"load i64, ptr {threads}")
        several = code.let(f"icmp ne i64 {before}, 1")
        with code.when(code.let(f"and i1 {several}, {code.let(f'icmp eq i64 {count}, 1')}")):
            code.do(f"call void %set(i32 {code.let(f'trunc i64 {before} to i32')})")
    code.do("store atomic i64 0, ptr %guard release, align 8")
    code.ret()


def _write_rows(module: Module, dtype: DType, *, long: bool) -> None:
    """`rows`: a unit is a share of the rows."""
    job = ProductJob(module.function("rows", PARAMETERS))
    code, item = job.code, dtype.itemsize
    p = {name: job.planned(name) for name in ("m", "n", "k", "a_m", "a_k", "out_row", "out_item", "share", "room")}
    a, b = (job.array(job.planned(name)) for name in ("left", "right"))
    out = job.array(job.planned("out"))
    work = job.pointer("packed_a")
    copies, finishes, in_place = map(job.is_planned, ("copies_a", "finishes", "in_place"))
    lines, finish, multiply, apply = (job.planned(name, "ptr") for name in ("lines", "finish", "multiply", "apply"))
    is_vector = code.let(f"icmp ne ptr {apply}, null")
    line = mul(code, p["k"], item)
    sums_row = choice(code, in_place, p["out_row"], mul(code, p["n"], item))
    with code.loop("%low", "%high") as loop:
        first = mul(code, loop.index, p["share"])
        height = least(code, sub(code, p["m"], first), p["share"])
        left = shifted(code, a, mul(code, first, p["a_m"]))
        copied = shifted(code, work, mul(code, first, line))
        with code.when(copies):
            given = [left, p["a_m"], p["a_k"], height, p["k"], copied, line, first, "0"]
            code.invoke(lines, LINES, "%arguments", *given)
        beside = shifted(code, shifted(code, work, p["room"]), mul(code, first, mul(code, p["n"], item)))
        sums = choice(code, in_place, shifted(code, out, mul(code, first, p["out_row"])), beside, "ptr")
        transposed_a = choice(code, copies, str(NOT_TRANSPOSED), job.planned("transposed_a"))
        row_a = choice(code, copies, p["k"], job.planned("row_a"))
        operand = choice(code, copies, copied, left, "ptr")
        sums_width = code.pure(f"udiv i64 {sums_row}, {item}")
        operands = [(operand, row_a), (b, job.planned("row_b")), (sums, sums_width)]
        with code.when(is_vector):
            is_transposed = code.pure(f"icmp eq i64 {transposed_a}, {TRANSPOSED}")
            sizes = [choice(code, is_transposed, p["k"], height), choice(code, is_transposed, height, p["k"])]
            _call(code, apply, dtype, [transposed_a], sizes, operands, long=long)
        with code.when(code.let(f"xor i1 {is_vector}, true")):
            sizes = [height, p["n"], p["k"]]
            _call(code, multiply, dtype, [transposed_a, job.planned("transposed_b")], sizes, operands, long=long)
        with code.when(finishes):
            code.invoke(finish, FINISH, "%arguments", sums, sums_row, first, height, "0", p["n"])
    code.ret()


def _call(
    code: Function, function: str, dtype: DType, transposed: list[str], sizes: list[str],
    operands: list[tuple[str, str]], *, long: bool,
) -> None:  # fmt: skip
    """CBLAS's product: order, transposed a, transposed b, m, n, k, 1, a, row of a, b, row of b, 0, c, row of c. That
    with a vector has one word less of how operands lie, and the matrix's own two sizes."""
    kind = "float" if dtype.itemsize == 4 else "double"

    def integer(text: str) -> str:
        return f"i64 {text}" if long else f"i32 {code.pure(f'trunc i64 {text} to i32')}"

    words = [f"i32 {code.pure(f'trunc i64 {t} to i32')}" for t in transposed]
    (a, row_a), (b, row_b), (c, row_c) = operands
    given = [
        f"i32 {_ROW_MAJOR}", *words, *map(integer, sizes), f"{kind} 1.0", f"ptr {a}", integer(row_a), f"ptr {b}",
        integer(row_b), f"{kind} 0.0", f"ptr {c}", integer(row_c),
    ]  # fmt: skip
    code.do(f"call void {function}({', '.join(given)})")


def _write_one(module: Module) -> None:
    """`one(arguments, batch, pool, work)`: the product of one matrix of a stack."""
    code = module.function("one", [("ptr", "arguments"), ("i64", "batch"), ("ptr", "pool"), ("ptr", "work")])
    plan = code.let("load ptr, ptr %arguments")
    p = {name: word(code, plan, PLAN.index(name)) for name in ("arrays", "offsets", "spread", "units")}
    put = job_with_arrays(code, plan, p["arrays"], p["offsets"])
    put("packed_a", "%work", "ptr")
    spread(code, "%pool", p["spread"], "rows", put.job, p["units"], "1")
    code.ret()


def _write_kernel(module: Module) -> None:
    """`kernel`: all matrices of a stack, while the library is held."""
    code = module.function("kernel", PARAMETERS)
    plan = code.let("load ptr, ptr %arguments")
    held = [word(code, plan, PLAN.index(name), "ptr") for name in ("guard", "get_threads", "set_threads")]
    code.invoke("@hold", HOLD, *held)
    code.invoke("@stack", PARAMETERS, *[f"%{name}" for _, name in PARAMETERS])
    code.invoke("@release", HOLD, *held)
    code.ret()
