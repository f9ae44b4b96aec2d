"""Small products of matrices inside a loop, as LLVM IR.

A call of a library costs more than such a product. Sums of a row run side by side in vectors, along the columns of the
result; where the right operand's elements lie side by side along the terms of the sums, these run along the vectors.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType
from .entry import PARAMETERS
from .ir import Function, Module
from .nest import VectorTarget

MOST_PRODUCTS: Final = 1 << 18
"""Products of elements up to which this is as fast as a library."""
_VECTORS: Final = 4
"""Vectors of sums that are worked on together."""


def product_source(dtype: DType, target: VectorTarget) -> str:
    """The module of a kernel of two operands and a result, stack after stack.

    Its sizes are those of the stack, the rows, the columns and the terms of a sum; then, of the left and of the right
    operand, the bytes from one matrix to the next, along the rows and along the columns. The result is contiguous.
    """
    module = Module()
    code = module.function("kernel", PARAMETERS)
    kind, size = ("double", 8) if dtype.itemsize == 8 else ("float", 4)
    lanes = target.vector_bytes // size
    numbers = code.let("load ptr, ptr %arguments")
    stacks, rows, columns, terms, a_stack, a_row, a_term, b_stack, b_term, b_column = (
        code.let(f"load i64, ptr {code.let(f'getelementptr i64, ptr {numbers}, i64 {n}')}") for n in range(10)
    )
    a, b, out = (
        code.let(f"load ptr, ptr {code.let(f'getelementptr ptr, ptr %arguments, i64 {n}')}") for n in (1, 2, 3)
    )
    beside = code.let(f"icmp eq i64 {b_column}, {size}")
    along = code.let(f"and i1 {code.let(f'icmp eq i64 {b_term}, {size}')}, {code.let(f'icmp eq i64 {a_term}, {size}')}")
    writer = _RowProduct(code, kind, size, lanes)
    writer.sizes(columns, terms, a_term, b_term, b_column)
    with code.loop(0, stacks) as stack, code.loop(0, rows) as row:
        left = _moved(code, _moved(code, a, stack.index, a_stack), row.index, a_row)
        right = _moved(code, b, stack.index, b_stack)
        line = code.let(f"add i64 {code.let(f'mul i64 {stack.index}, {rows}')}, {row.index}")
        to = _moved(code, out, line, code.let(f"mul i64 {columns}, {size}"))
        with code.when(beside):
            writer.across(left, right, to)
        with code.when(code.let(f"xor i1 {beside}, true")):
            writer.along(left, right, to, along)
        row.carry()
        stack.carry()
    code.ret()
    return module.text(target.attributes)


def _moved(code: Function, base: str, index: str, stride: str) -> str:
    return code.let(f"getelementptr i8, ptr {base}, i64 {code.let(f'mul i64 {index}, {stride}')}")


class _RowProduct:
    """One row of a result."""

    def __init__(self, code: Function, kind: str, size: int, lanes: int) -> None:
        self.code, self.kind, self.size, self.lanes = code, kind, size, lanes

    def sizes(self, columns: str, terms: str, a_term: str, b_term: str, b_column: str) -> None:
        """The numbers of the kernel."""
        self.columns, self.terms = columns, terms
        self.a_term, self.b_term, self.b_column = a_term, b_term, b_column

    def across(self, left: str, right: str, to: str) -> None:
        """Sums side by side: of several vectors, of one, of one element."""
        start = "0"
        for vectors, lanes in ((_VECTORS, self.lanes), (1, self.lanes), (1, 1)):
            wide = vectors * lanes
            left_over = self.code.let(f"sub i64 {self.columns}, {start}")
            whole = self.code.let(f"sub i64 {left_over}, {self.code.let(f'urem i64 {left_over}, {wide}')}")
            end = self.code.let(f"add i64 {start}, {whole}")
            with self.code.loop(start, end, wide) as column:
                self._sums(left, right, to, column.index, vectors, lanes)
                column.carry()
            start = end

    def _sums(self, left: str, right: str, to: str, column: str, vectors: int, lanes: int) -> None:
        code = self.code
        kind = self.kind if lanes == 1 else f"<{lanes} x {self.kind}>"
        first = _moved(code, right, column, str(self.size))
        with code.loop(0, self.terms, carried=[(kind, "zeroinitializer" if lanes > 1 else "0.0")] * vectors) as term:
            element = code.let(f"load {self.kind}, ptr {_moved(code, left, term.index, self.a_term)}")
            many = self._spread(element, lanes)
            line = _moved(code, first, term.index, self.b_term)
            sums = []
            for n, total in enumerate(term.values):
                at = code.let(f"getelementptr i8, ptr {line}, i64 {n * lanes * self.size}")
                given = code.let(f"load {kind}, ptr {at}, align {self.size}")
                sums.append(self._fma(kind, lanes, many, given, total))
            term.carry(*sums)
        target = _moved(code, to, column, str(self.size))
        for n, total in enumerate(term.values):
            at = code.let(f"getelementptr i8, ptr {target}, i64 {n * lanes * self.size}")
            code.do(f"store {kind} {total}, ptr {at}, align {self.size}")

    def along(self, left: str, right: str, to: str, is_side_by_side: str) -> None:
        """Sums one by one, in vectors as far as both operands lie side by side."""
        code, lanes = self.code, self.lanes
        kind = f"<{lanes} x {self.kind}>"
        rest = code.let(f"urem i64 {self.terms}, {lanes}")
        whole = code.let(f"select i1 {is_side_by_side}, i64 {code.let(f'sub i64 {self.terms}, {rest}')}, i64 0")
        with code.loop(0, self.columns) as column:
            first = _moved(code, right, column.index, self.b_column)
            with code.loop(0, whole, lanes, carried=[(kind, "zeroinitializer")]) as term:
                places = [_moved(code, base, term.index, str(self.size)) for base in (left, first)]
                a, b = (code.let(f"load {kind}, ptr {at}, align {self.size}") for at in places)
                term.carry(self._fma(kind, lanes, a, b, term.values[0]))
            reduced = f"llvm.vector.reduce.fadd.v{lanes}{'f64' if self.size == 8 else 'f32'}"
            total = code.call(self.kind, reduced, [self.kind, kind], ["0.0", term.values[0]], "reassoc")
            with code.loop(whole, self.terms, carried=[(self.kind, total)]) as single:
                a, b = (code.let(f"load {self.kind}, ptr {_moved(code, base, single.index, step)}")
                        for base, step in ((left, self.a_term), (first, self.b_term)))  # fmt: skip
                single.carry(self._fma(self.kind, 1, a, b, single.values[0]))
            code.do(f"store {self.kind} {single.values[0]}, ptr {_moved(code, to, column.index, str(self.size))}")
            column.carry()

    def _spread(self, element: str, lanes: int) -> str:
        if lanes == 1:
            return element
        kind = f"<{lanes} x {self.kind}>"
        one = self.code.let(f"insertelement {kind} poison, {self.kind} {element}, i64 0")
        return self.code.let(f"shufflevector {kind} {one}, {kind} poison, <{lanes} x i32> zeroinitializer")

    def _fma(self, kind: str, lanes: int, a: str, b: str, total: str) -> str:
        suffix = ("" if lanes == 1 else f"v{lanes}") + ("f64" if self.size == 8 else "f32")
        return self.code.call(kind, f"llvm.fmuladd.{suffix}", [kind] * 3, [a, b, total])
