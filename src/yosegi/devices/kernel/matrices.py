"""Products as libraries take them: matrices in memory with a factor, and behind them a bias and a residual.

Libraries have more, a relu among them, of which nobody says what becomes of a NaN. What they are not sure to compute as
the ops do is left to kernels behind them; so is a factor of 0, for which they would not look at the operands at all.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..._schedule.fuse import is_exact_conversion
from ..._tensor.dtype import DType, bfloat16, float16, float32
from ..._tensor.role import Arithmetic
from ...codegen.c.contractions import FusedContraction, MergedAxes
from ...codegen.c.expressions import Apply, ConstantNumber, Expression, Read, Sum


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand: where it is read from, and how it lies there."""

    entry: int
    is_turned: bool
    """True if neighbours along its columns lie side by side, not those along its rows."""
    pitch: int
    """Elements from one row to the next; of one that is turned, from one column to the next."""
    stride: int
    """Elements from one matrix of a stack to the next."""


@dataclass(frozen=True, slots=True)
class Matrices:
    """C = scale * A B + bias + residual, or less of it, for a stack of `count`."""

    left: Matrix
    right: Matrix
    m: int
    n: int
    k: int
    count: int
    operand: DType
    """The dtype of A and B."""
    dtype: DType
    """The dtype of all others."""
    scale: float
    bias: int | None
    """The entry of a number for each column."""
    residual: int | None
    """The entry of an array like the result."""

    @property
    def reads(self) -> tuple[int, ...]:
        """The entries it reads: operands, bias, residual."""
        return (self.left.entry, self.right.entry, *[e for e in (self.bias, self.residual) if e is not None])


def matrices_of(product: FusedContraction, half: DType | None = None) -> Matrices | None:
    """A product in these terms, or `None` if it has others. With `half`, its operands are converted from that dtype."""
    runs = (product.rows, product.columns, product.depth)
    if any(len(r) != 1 for r in runs) or len(product.batch) > 1 or len(product.outputs) != 1:
        return None
    if product.result not in (float32, float16, bfloat16):
        return None
    (rows,), (columns,), (depth,) = runs
    (output,) = product.outputs
    around = _behind(output.expression, product, columns)
    (left, factor), (right, other) = _scaled(product.left, half), _scaled(product.right, half)
    operand = half or product.result
    if around is None or left is None or right is None or not (left.dtype is right.dtype is operand):
        return None
    stack = product.batch[0] if product.batch else None
    first, second = _matrix(left, rows, depth, stack), _matrix(right, depth, columns, stack)
    dense = (columns.size, 1, rows.size * columns.size)
    lies = (output.strides[rows.axis], output.strides[columns.axis], output.strides[stack.axis] if stack else dense[2])
    if first is None or second is None or lies != dense:
        return None
    return Matrices(
        first, second, rows.size, columns.size, depth.size, stack.size if stack else 1, operand,
        product.result, factor * other, *around,
    )  # fmt: skip


def _scaled(operand: Expression, half: DType | None) -> tuple[Read | None, float]:
    """An array, and what it is multiplied by; with `half`, the array that is converted from that dtype."""
    if half is not None and isinstance(operand, Apply) and is_exact_conversion(operand.call):
        (operand,) = operand.operands
    if isinstance(operand, Apply) and operand.call.op.role is Arithmetic.TIMES:
        numbers = [p for p in operand.operands if isinstance(p, ConstantNumber)]
        arrays = [p for p in operand.operands if isinstance(p, Read)]
        if len(numbers) == len(arrays) == 1 and numbers[0].value:
            return arrays[0], float(numbers[0].value)
    return (operand, 1.0) if isinstance(operand, Read) else (None, 1.0)


def _matrix(read: Read, rows: MergedAxes, columns: MergedAxes, stack: MergedAxes | None) -> Matrix | None:
    down, along = read.strides[rows.axis], read.strides[columns.axis]
    stride = 0 if stack is None else read.strides[stack.axis]
    if along == 1 and down >= columns.size:
        return Matrix(read.entry, False, down, stride)
    return Matrix(read.entry, True, along, stride) if down == 1 and along >= rows.size else None


def _behind(
    expression: Expression, product: FusedContraction, columns: MergedAxes
) -> tuple[int | None, int | None] | None:
    """The entries of a bias and of a residual; `None` if there is anything else."""
    added = [expression]
    terms: list[Expression] = []
    while added:
        term = added.pop()
        if isinstance(term, Apply) and term.call.op.role is Arithmetic.PLUS:
            added += term.operands
        else:
            terms.append(term)
    bias: int | None = None
    residual: int | None = None
    per_column = tuple(int(axis == columns.axis) for axis in range(len(product.outputs[0].strides)))
    for term in terms:
        if isinstance(term, Sum):
            continue
        if not isinstance(term, Read) or term.dtype is not product.result:
            return None
        if bias is None and term.strides == per_column:
            bias = term.entry
        elif residual is None and term.strides == product.outputs[0].strides:
            residual = term.entry
        else:
            return None
    return (bias, residual) if sum(isinstance(t, Sum) for t in terms) == 1 else None
