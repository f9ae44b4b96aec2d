"""Small products of matrices inside a loop, as LLVM IR.

A call of a library costs more than such a product. Sums of a row run side by side in vectors, along the columns of the
result; where the right operand's elements lie side by side along the terms of the sums, these run along the vectors.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType
from ..scalar.value import Value
from .builder import LlvmBuilder
from .entry import PARAMETERS, KernelArguments
from .integers import add, choice, mul, shifted, sub
from .ir import Function, Module
from .lanes import sum_of_lanes
from .load_store import load, store
from .nest import VectorTarget
from .register_tiles import step_of_sums, zero_sums

MOST_PRODUCTS: Final = 1 << 18
"""Products of elements up to which this is as fast as a library."""
_VECTORS: Final = 4
"""Vectors of sums that are worked on together."""


_SIZES: Final = (
    "stacks", "rows", "columns", "terms", "a_stack", "a_row", "a_term", "b_stack", "b_term", "b_column",
)  # fmt: skip


def product_source(dtype: DType, target: VectorTarget) -> str:
    """The module of a kernel of two operands and a result, stack after stack.

    Its sizes are those of the stack, the rows, the columns and the terms of a sum; then, of the left and of the right
    operand, the bytes from one matrix to the next, along the rows and along the columns. The result is contiguous.
    """
    module = Module()
    code = module.function("kernel", PARAMETERS)
    given, item = KernelArguments(code, _SIZES), dtype.itemsize
    size = dict(zip(_SIZES, given.all_sizes(), strict=True))
    a, b, out = given.arrays(3)
    beside = code.let(f"icmp eq i64 {size['b_column']}, {item}")
    writer = _RowProduct(code, dtype, target.vector_bytes // item, size)
    with code.loop(0, size["stacks"]) as stack, code.loop(0, size["rows"]) as row:
        left = shifted(code, a, mul(code, stack.index, size["a_stack"]))
        left = shifted(code, left, mul(code, row.index, size["a_row"]))
        right = shifted(code, b, mul(code, stack.index, size["b_stack"]))
        line = add(code, mul(code, stack.index, size["rows"]), row.index)
        to = shifted(code, out, mul(code, line, mul(code, size["columns"], item)))
        with code.when(beside):
            writer.across(left, right, to)
        with code.when(code.let(f"xor i1 {beside}, true")):
            writer.along(left, right, to)
    code.ret()
    return module.text(target.attributes)


class _RowProduct:
    """Writes a row of the result."""

    def __init__(self, code: Function, dtype: DType, lanes: int, size: dict[str, str]) -> None:
        self.code, self.dtype, self.item, self.lanes, self.size = code, dtype, dtype.itemsize, lanes, size
        a, b = (code.let(f"icmp eq i64 {size[term]}, {self.item}") for term in ("a_term", "b_term"))
        rest = code.let(f"urem i64 {size['terms']}, {lanes}")
        self.whole = choice(code, code.let(f"and i1 {a}, {b}"), sub(code, size["terms"], rest), "0")
        """The terms that are whole vectors of both operands."""

    def across(self, left: str, right: str, to: str) -> None:
        """Sums side by side: of several vectors, of one, of one element."""
        code, size, start = self.code, self.size, "0"
        for vectors, lanes in ((_VECTORS, self.lanes), (1, self.lanes), (1, 1)):
            k, step = LlvmBuilder(code, lanes), vectors * lanes
            left_over = sub(code, size["columns"], start)
            end = add(code, start, sub(code, left_over, code.let(f"urem i64 {left_over}, {step}")))
            with code.loop(start, end, step) as column:
                first, there = (shifted(code, at, mul(code, column.index, self.item)) for at in (right, to))
                with code.loop(0, size["terms"], carried=zero_sums(k, self.dtype, 1, vectors)) as term:
                    a = shifted(code, left, mul(code, term.index, size["a_term"]))
                    b = shifted(code, first, mul(code, term.index, size["b_term"]))
                    term.carry(*step_of_sums(k, self.dtype, [a].__getitem__, b, term.values, vectors))
                for n, total in enumerate(term.values):
                    store(k, Value(self.dtype, total), shifted(code, there, str(n * lanes * self.item)))
            start = end

    def along(self, left: str, right: str, to: str) -> None:
        """Sums one by one, in vectors as far as both operands lie side by side."""
        code, size = self.code, self.size
        with code.loop(0, size["columns"]) as column:
            first = shifted(code, right, mul(code, column.index, size["b_column"]))
            wide, one = LlvmBuilder(code, self.lanes), LlvmBuilder(code, 1)
            vectors = self._dot(wide, "0", self.whole, (left, first), wide.literal(0, self.dtype))
            total = self._dot(one, self.whole, size["terms"], (left, first), sum_of_lanes(wide, vectors))
            store(one, total, shifted(code, to, mul(code, column.index, self.item)))

    def _dot(self, k: LlvmBuilder, start: str, end: str, operands: tuple[str, str], total: Value) -> Value:
        """A total, lane by lane, with the products of some terms."""
        code, item = self.code, str(self.item)
        steps = (item, item) if k.width > 1 else (self.size["a_term"], self.size["b_term"])
        with code.loop(start, end, k.width, carried=[(k.type(self.dtype), total.text)]) as term:
            a, b = (
                load(k, self.dtype, shifted(code, at, mul(code, term.index, step)))
                for at, step in zip(operands, steps, strict=True)
            )
            term.carry(k.muladd(a, b, Value(self.dtype, term.values[0])).text)
        return Value(self.dtype, term.values[0])
