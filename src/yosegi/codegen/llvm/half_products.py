"""Matrix products with bfloat16 numbers inside, sums and results in float32: from packed tiles to a kernel.

    for some matrices of a stack, for each band of columns, for each band of rows:
        round and pack the operands' lines of that band    (all threads)
        for each unit, some blocks high and wide:    (all threads)
            for each stretch of the sum:
                for each panel of rows: for each panel of columns: a block's sums; with the last stretch, to the result

Sizes, strides, and how the work is cut are data: there is one object for the dtypes, the number of parts and the
functions of a product. A right operand that stays the same is packed once and kept.
"""

from __future__ import annotations

from .bfloat16_units import LINES, PANEL, BFloat16Unit, step_bytes, write_block
from .entry import BEFORE_ARRAYS, PARAMETERS
from .epilogues import write_finish
from .half_jobs import write_packing, write_products
from .half_packing import write_packs
from .half_words import BEFORE_JOB, COUNTERS, JOB, LINE, PLAN, HalfProduct
from .integers import add, ceil_div, choice, div, least, lined_up, mul, shifted, sub, word
from .ir import Module
from .nest import VectorTarget


def half_product_source(product: HalfProduct, unit: BFloat16Unit, target: VectorTarget) -> str:
    """The module of a product: `kernel` and, to keep a right operand, `keep`.

    The arrays of `kernel` are a, b, the sides, the result, and the workspace; of `keep`: a right operand, and where it
    is kept.
    """
    module = Module(converts_halves=target.converts_halves)
    write_block(module, unit, product.parts)
    write_packs(module, (product.a, product.b), product.parts, product.before)
    write_finish(module, product.after, product.out)
    write_packing(module, product)
    write_products(module, product, unit)
    _write_kernel(module, product)
    _write_keep(module, product)
    return module.text(target.attributes)


# The way in


class _Driver:
    """The function that starts the threads with their jobs."""

    def __init__(self, module: Module, name: str, product: HalfProduct) -> None:
        self.code = code = module.function(name, PARAMETERS)
        self.plan = code.let("load ptr, ptr %arguments")
        self.p = {name: word(code, self.plan, n) for n, name in enumerate(PLAN)}
        words = BEFORE_JOB + len(JOB) + len(product.sides) + 1
        self.job = code.let(f"alloca i8, i64 {LINE + 8 * words}, align {LINE}")
        self._put(0, self.plan, "ptr")
        self._put(1, shifted(code, self.plan, str(8 * (len(PLAN) + len(product.sides)))), "ptr")
        self.panel = mul(code, self.p["steps"], step_bytes(product.parts))
        self._is_shared = {name: code.let(f"icmp ne i64 {self.p[f'{name}_shared']}, 0") for name in ("a", "b")}

    def array(self, number: int, kind: str = "ptr") -> str:
        """The address of an array, by its place among the arguments."""
        return word(self.code, "%arguments", BEFORE_ARRAYS + number, kind)

    def tell(self, name: str | int, value: str, kind: str = "i64") -> None:
        """Set a word of the job; those that have a number are the sides, and the result."""
        self._put(BEFORE_JOB + (JOB.index(name) if isinstance(name, str) else len(JOB) + name), value, kind)

    def _put(self, place: int, value: str, kind: str) -> None:
        code = self.code
        code.do(f"store {kind} {value}, ptr {shifted(code, self.job, str(LINE + 8 * place))}")

    def units(self, name: str, lines: str, matrices: str) -> str:
        """The units of packing so many matrices of an operand; one, if all are the same."""
        code, p = self.code, self.p
        groups = ceil_div(code, ceil_div(code, lines, LINES), p[f"{name}_group"])
        own = mul(code, groups, ceil_div(code, p["steps"], p[f"{name}_segment"]))
        return choice(code, self._is_shared[name], own, mul(code, own, matrices))

    def panels(self, name: str, lines: str) -> str:
        """The bytes of an operand's packed lines, from one matrix to the next."""
        code = self.code
        return choice(code, self._is_shared[name], "0", mul(code, ceil_div(code, lines, PANEL), self.panel))

    def spread(self, name: str) -> None:
        """Have the units of a job done, by all threads if there is a pool."""
        code, p = self.code, self.p
        code.do(f"store [{COUNTERS} x i64] zeroinitializer, ptr {self.job}")
        alone = code.let(f"icmp eq i64 {p['pool']}, 0")
        with code.when(alone):
            code.do(f"call void @{name}(ptr {self.job}, i64 0, i64 1)")
        with code.when(code.let(f"xor i1 {alone}, true")):
            pool, spread = (code.let(f"inttoptr i64 {p[w]} to ptr") for w in ("pool", "spread"))
            code.do(f"call void {spread}(ptr {pool}, ptr @{name}, ptr {self.job}, i64 {p['threads']}, i64 1)")


def _write_kernel(module: Module, product: HalfProduct) -> None:
    """`kernel`: the whole stack."""
    driver = _Driver(module, "kernel", product)
    code, p = driver.code, driver.p
    a, b, *others = (driver.array(n) for n in range(product.arrays))
    work = lined_up(code, driver.array(product.arrays, "i64"), LINE)
    for n, other in enumerate(others):
        driver.tell(n, other, "ptr")
    driver.tell("a_from", a, "ptr")
    driver.tell("b_from", b, "ptr")
    driver.tell("a_packed", shifted(code, work, p["packed_a"]), "ptr")
    driver.tell("sums", shifted(code, work, p["sums"]), "ptr")
    is_kept = code.let(f"icmp ne i64 {p['b_kept']}, 0")
    with code.loop(0, p["batches"], p["wave"]) as wave:
        count = least(code, sub(code, p["batches"], wave.index), p["wave"])
        driver.tell("first", wave.index)
        with code.loop(0, p["n"], p["band_n"]) as across:
            columns = least(code, sub(code, p["n"], across.index), p["band_n"])
            driver.tell("column", across.index)
            driver.tell("columns", columns)
            # What is kept has all columns, and all matrices of the stack.
            b_next = driver.panels("b", choice(code, is_kept, p["n"], columns))
            begin = add(code, mul(code, wave.index, b_next), mul(code, div(code, across.index, PANEL), driver.panel))
            driver.tell("b_next", b_next)
            driver.tell("b_packed", choice(code, is_kept, shifted(code, b, begin), work, "ptr"), "ptr")
            with code.loop(0, p["m"], p["band_m"]) as down:
                rows = least(code, sub(code, p["m"], down.index), p["band_m"])
                driver.tell("row", down.index)
                driver.tell("rows", rows)
                driver.tell("a_next", driver.panels("a", rows))
                is_packed = code.let(f"or i1 {is_kept}, {code.let(f'icmp ne i64 {down.index}, 0')}")
                units_b = choice(code, is_packed, "0", driver.units("b", columns, count))
                driver.tell("units_b", units_b)
                driver.tell("units", add(code, units_b, driver.units("a", rows, count)))
                driver.spread("packing")
                high, wide = ceil_div(code, rows, PANEL), ceil_div(code, columns, PANEL)
                blocks = mul(code, ceil_div(code, high, p["tall"]), ceil_div(code, wide, p["wide"]))
                driver.tell("units", mul(code, blocks, count))
                driver.spread("products")
    code.ret()


def _write_keep(module: Module, product: HalfProduct) -> None:
    """`keep`: a right operand, as `kernel` wants it if it is kept."""
    driver = _Driver(module, "keep", product)
    code, p = driver.code, driver.p
    driver.tell("b_from", driver.array(0), "ptr")
    driver.tell("b_packed", driver.array(1), "ptr")
    units = driver.units("b", p["n"], p["batches"])
    numbers = {
        "first": "0", "row": "0", "rows": "0", "a_next": "0", "column": "0", "columns": p["n"],
        "b_next": driver.panels("b", p["n"]), "units": units, "units_b": units,
    }  # fmt: skip
    for name, number in numbers.items():
        driver.tell(name, number)
    driver.spread("packing")
    code.ret()
