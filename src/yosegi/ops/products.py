"""Products of vectors, matrices and tensors, and the parts of matrices they need."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from .._tensor.batch import Flags, aligned, stacked
from .._tensor.dtype import float32, promote
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, Normal, Op, OpKind, op
from .._tensor.role import Contraction
from .._tensor.tensor import OPERATORS, Tensor
from ..errors import ArgumentError, AxisError, ShapeError
from . import rules
from .elementwise import conj
from .reduce import sum
from .shape import expand_dims, permute_dims, reshape, roll, squeeze

# Matrix products


def _matmul_rule(a: Spec, b: Spec) -> Spec:
    rules.expect(a.dtype, "a numeric dtype", rules.is_numeric)
    if not a.ndim or not b.ndim:
        raise ShapeError(
            f"expected operands of at least one dimension, got shapes {a.shape} and {b.shape}; use * to scale"
        )
    row, column = a.shape[-1], b.shape[max(b.ndim - 2, 0)]
    if row != column:
        place = "second to last of b" if b.ndim > 1 else "length of b"
        raise ShapeError(
            f"expected the last dimension of a, {row}, to equal the {place}, {column} "
            f"(shapes {a.shape} and {b.shape}); transpose one of them?"
        )
    batch = rules.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return spec((*batch, *a.shape[-2:-1], *b.shape[1:][-1:]), a.dtype)


def _matmul_vjp(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if a.ndim == b.ndim == 1:
        return g * conj(b), g * conj(a)
    if a.ndim == 1:
        to_a, to_b = _matmul_vjp(expand_dims(g, axis=-2), out, expand_dims(a, axis=0), b)
        return squeeze(to_a, axis=-2), to_b
    if b.ndim == 1:
        to_a, to_b = _matmul_vjp(expand_dims(g, axis=-1), out, a, expand_dims(b, axis=1))
        return to_a, squeeze(to_b, axis=-1)
    if a.ndim > 2 and b.ndim == 2:  # one product over all rows, not a stack of products to be summed
        return matmul(g, adjoint(b)), matmul(adjoint(_rows(a)), _rows(g))
    return matmul(g, adjoint(b)), matmul(adjoint(a), g)


def _rows(x: Tensor) -> Tensor:
    """The rows of all matrices of a stack, as one matrix."""
    return reshape(x, (prod(x.shape[:-1]), x.shape[-1]))


def _matmul_batch(op: Op[Any], batched: Flags, a: Tensor, b: Tensor) -> Tensor:
    rank_a, rank_b = a.ndim - batched[0], b.ndim - batched[1]
    if batched == (True, False) and rank_b <= 2:  # the examples are rows, or stacks of rows
        return matmul(a, b)
    if batched == (False, True) and rank_b == 1 and rank_a == 2:
        return matmul(b, matrix_transpose(a))
    rows = a if rank_a > 1 else expand_dims(a, axis=-2)
    columns = b if rank_b > 1 else expand_dims(b, axis=-1)
    ndim = max(rows.ndim - batched[0], columns.ndim - batched[1])
    made = matmul(aligned(rows, batched[0], ndim), aligned(columns, batched[1], ndim))
    gone = (*[-2] * (rank_a == 1), *[-1] * (rank_b == 1))
    return squeeze(made, axis=gone) if gone else made


@op(OpKind.LINEAR_ALGEBRA, infer=_matmul_rule, vjp=_matmul_vjp, promotes_from=0, operator="matmul", batch=_matmul_batch,
    role=Contraction.MATRICES)  # fmt: skip
def matmul(x1: Arr, x2: Arr, /) -> Arr:
    """The matrix product. Vectors stand for a row on the left and a column on the right; stacks broadcast."""
    if x1.ndim > 2 and x2.ndim == 2:  # one product of all rows, where NumPy would call BLAS once per matrix
        return np.matmul(x1.reshape(prod(x1.shape[:-1]), x1.shape[-1]), x2).reshape(*x1.shape[:-1], x2.shape[-1])
    return np.matmul(x1, x2)


@rules.on_tensor
def matrix_transpose(x: Tensor, /) -> Tensor:
    """The matrix, or each of a stack, with rows and columns exchanged."""
    if x.ndim < 2:
        raise ShapeError(f"expected at least two dimensions, got shape {x.shape}; use expand_dims")
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


OPERATORS["matrix_transpose"] = matrix_transpose


def adjoint(x: Tensor) -> Tensor:
    """The conjugate transpose of the matrix, or of each of a stack."""
    return conj(matrix_transpose(x))


# Vector products


def widened(x: Tensor) -> Tensor:
    """16-bit floats as float32, for formulas of several steps that should round only once."""
    return x.astype(float32) if x.dtype.is_half else x


def _shared_axis(x1: Tensor, x2: Tensor, axis: int) -> int:
    """An axis that both have, counted from the back: the standard aligns the operands there."""
    axis = rules.as_index(axis, "an axis")
    if x1.ndim == x2.ndim and 0 <= axis < x1.ndim:
        axis -= x1.ndim
    shared = min(x1.ndim, x2.ndim)
    if not -shared <= axis < 0:
        raise AxisError(f"expected an axis from {-shared} to -1 for shapes {x1.shape} and {x2.shape}, got {axis}")
    return axis


@rules.on_tensor
def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The dot product of the vectors along an axis. Complex `x1` is conjugated."""
    x2 = rules.as_tensor(x2)
    axis = _shared_axis(x1, x2, axis)
    if x1.shape[axis] != x2.shape[axis]:
        raise ShapeError(f"expected vectors of one length, got {x1.shape[axis]} and {x2.shape[axis]}")
    product = conj(widened(x1)) * widened(x2)
    total = sum(product, axis=axis, dtype=product.dtype)
    return total.astype(promote(x1.dtype, x2.dtype))


@rules.on_tensor
def outer(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The products of each element of one vector with each of another."""
    x2 = rules.as_tensor(x2)
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"expected two vectors, got shapes {x1.shape} and {x2.shape}; use tensordot with axes=0")
    return expand_dims(x1, axis=1) * x2


@rules.on_tensor
def cross(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The cross product of the 3-element vectors along an axis."""
    x2 = rules.as_tensor(x2)
    axis = _shared_axis(x1, x2, axis)
    if not x1.shape[axis] == x2.shape[axis] == 3:
        raise ShapeError(f"expected vectors of 3 elements along axis {axis}, got shapes {x1.shape} and {x2.shape}")

    def turn(x: Tensor, by: int) -> Tensor:
        return roll(x, by, axis=axis)

    return turn(x1, -1) * turn(x2, -2) - turn(x1, -2) * turn(x2, -1)


@rules.on_tensor
def tensordot(x1: Tensor, x2: Tensor, /, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum of products over pairs of axes: the last and first few, or those listed for each tensor."""
    x2 = rules.as_tensor(x2)
    first, second = _contracted(x1, x2, axes)
    if [x1.shape[a] for a in first] != [x2.shape[a] for a in second]:
        raise ShapeError(
            f"expected equal lengths along the contracted axes, got axes {first} of shape {x1.shape} "
            f"and {second} of {x2.shape}"
        )
    rest1 = tuple(a for a in range(x1.ndim) if a not in first)
    rest2 = tuple(a for a in range(x2.ndim) if a not in second)
    shape1, shape2 = [x1.shape[a] for a in rest1], [x2.shape[a] for a in rest2]
    inner = prod(x1.shape[a] for a in first)
    left = reshape(permute_dims(x1, rest1 + first), (prod(shape1), inner))
    right = reshape(permute_dims(x2, second + rest2), (inner, prod(shape2)))
    return reshape(matmul(left, right), (*shape1, *shape2))


def _contracted(x1: Tensor, x2: Tensor, axes: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not isinstance(axes, (tuple, list)):
        count = rules.as_index(axes, "axes")
        if not 0 <= count <= min(x1.ndim, x2.ndim):
            most = min(x1.ndim, x2.ndim)
            raise AxisError(f"expected axes from 0 to {most} for shapes {x1.shape} and {x2.shape}, got {count}")
        return tuple(range(x1.ndim - count, x1.ndim)), tuple(range(count))
    if len(axes) != 2:
        raise ArgumentError(f"expected axes as a number or as two sequences, got {axes}")
    first, second = rules.normal_axes(axes[0], x1.ndim), rules.normal_axes(axes[1], x2.ndim)
    if len(first) != len(second):
        raise ArgumentError(f"expected as many axes of x1 as of x2, got {axes}")
    return first, second


# Diagonals


def _diagonal_rule(x: Spec, *, offset: int) -> Normal:
    if x.ndim < 2:
        raise ShapeError(f"expected a matrix or a stack of them, got shape {x.shape}")
    rows, columns = x.shape[-2:]
    offset = rules.as_index(offset, "offset")
    length = max(0, min(rows + min(offset, 0), columns - max(offset, 0)))
    return Normal(spec((*x.shape[:-2], length), x.dtype), {"offset": offset})


def _diagonal_vjp(g: Tensor, out: Tensor, x: Tensor, *, offset: int) -> tuple[Tensor]:
    return (on_diagonal(g, shape=x.shape[-2:], offset=offset),)


@op(OpKind.MOVEMENT, infer=_diagonal_rule, vjp=_diagonal_vjp, batch=stacked)
def diagonal(x: Arr, /, *, offset: int = 0) -> Arr:
    """The elements of a diagonal of the matrices, `offset` places above the main one."""
    rows, columns = x.shape[-2:]
    return np.diagonal(x, min(max(offset, -rows), columns), axis1=-2, axis2=-1)


def _on_diagonal_rule(x: Spec, *, shape: tuple[int, ...], offset: int) -> Spec:
    if not x.ndim or len(shape) != 2 or min(shape) < 0:
        raise ShapeError(f"expected diagonals and the shape of a matrix, got shapes {x.shape} and {shape}")
    out = spec((*x.shape[:-1], *shape), x.dtype)
    if _diagonal_rule(out, offset=offset).outputs != spec(x.shape, x.dtype):
        raise ShapeError(f"expected as many elements as diagonal {offset} of {shape} has, got shape {x.shape}")
    return out


@op(OpKind.MOVEMENT, infer=_on_diagonal_rule, batch=stacked,
    vjp=lambda g, out, x, *, shape, offset: (diagonal(g, offset=offset),))  # fmt: skip
def on_diagonal(x: Arr, /, *, shape: tuple[int, ...], offset: int = 0) -> Arr:
    """Matrices of zeros with these elements on a diagonal: the inverse of `diagonal`."""
    made = np.zeros((*x.shape[:-1], *shape), x.dtype)
    places = np.arange(x.shape[-1])
    made[..., places + max(-offset, 0), places + max(offset, 0)] = x
    return made


@rules.on_tensor
def trace(x: Tensor, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of a diagonal of the matrices, `offset` places above the main one."""
    rules.expect(x.dtype, "a numeric dtype", rules.is_numeric)
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


__all__ = [
    "adjoint", "cross", "diagonal", "matmul", "matrix_transpose", "on_diagonal", "outer", "tensordot",
    "trace", "vecdot", "widened",
]  # fmt: skip
