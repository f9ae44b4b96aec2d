"""Linear systems and determinants, of matrices and of stacks of them.

Values never raise. Where a matrix is singular, its inverse and its solutions are NaN, and those of the rest of the
stack are as they should be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._tensor.batch import Flags, elementwise, stacked
from .._tensor.dtype import real_of
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, Op, OpKind, op
from .._tensor.tensor import Tensor
from ..errors import ShapeError
from . import rules
from .elementwise import conj, imag
from .products import adjoint, matrix_transpose
from .reduce import sum
from .shape import expand_dims, squeeze

linalg_op = partial(op, OpKind.LINEAR_ALGEBRA, promotes_from=0, inexact=True, batch=stacked)


def sides(x: Spec) -> tuple[int, int]:
    """Rows and columns of the matrices; raises if there are none."""
    rules.expect(x.dtype, "a floating dtype", lambda d: d.is_inexact)
    if x.ndim < 2:
        raise ShapeError(f"expected a matrix or a stack of them, got shape {x.shape}")
    return x.shape[-2], x.shape[-1]


def square_matrices(x: Spec) -> Spec:
    """The rule of an op from square matrices to such."""
    rows, columns = sides(x)
    if rows != columns:
        raise ShapeError(f"expected square matrices, got shape {x.shape}")
    return x


def per_matrix(x: Spec, *lengths: int) -> Spec:
    """Arrays of these lengths, one for each matrix of the stack."""
    return spec((*x.shape[:-2], *lengths), x.dtype)


def real_spec(x: Spec) -> Spec:
    """The output rule: the input's shape, with real numbers."""
    return spec(x.shape, real_of(x.dtype))


def nan_where_it_fails(function: Callable[..., Any], x: Arr, *rest: Arr) -> Any:
    """The function on a stack of matrices, with NaN for those on which LAPACK gives up."""
    try:
        return function(x, *rest)
    except np.linalg.LinAlgError:
        if x.ndim > 2:  # only the matrix that failed shall suffer
            parts = [nan_where_it_fails(function, *item) for item in zip(x, *rest, strict=True)]
            return tuple(map(np.stack, zip(*parts, strict=True))) if isinstance(parts[0], tuple) else np.stack(parts)
        pattern = function(np.eye(*x.shape, dtype=x.dtype), *rest)
        if isinstance(pattern, tuple):
            return tuple([np.full_like(p, np.nan) for p in pattern])
        return np.full_like(pattern, np.nan)


def nan_unless_finite(function: Callable[..., Any], x: Arr) -> Any:
    """NaN for matrices with infinities or NaN: iterations might not end on them."""

    def checked(a: Arr) -> Any:
        if not np.isfinite(a).all():
            raise np.linalg.LinAlgError
        return function(a)

    return nan_where_it_fails(checked, x)


# Linear systems


@linalg_op(infer=square_matrices, vjp=lambda g, out, x: (-(adjoint(out) @ g @ adjoint(out)),))
def inv(x: Arr, /) -> Arr:
    """The inverse of square matrices; NaN for a singular one."""
    return nan_where_it_fails(np.linalg.inv, x)


def _solve_rule(a: Spec, b: Spec) -> Spec:
    n = square_matrices(a).shape[-1]
    if not b.ndim or b.shape[max(b.ndim - 2, 0)] != n:
        raise ShapeError(
            f"expected right-hand sides of shape ({n},) or (..., {n}, columns) for matrices of shape {a.shape}, "
            f"got {b.shape}"
        )
    if b.ndim == 1:
        return spec(a.shape[:-1], a.dtype)
    return spec((*rules.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), a.dtype)


def _solve_vjp(g: Tensor, out: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    if b.ndim == 1:
        to_a, to_b = _solve_vjp(expand_dims(g, axis=-1), expand_dims(out, axis=-1), a, expand_dims(b, axis=1))
        return to_a, squeeze(to_b, axis=-1)
    to_b = solve(adjoint(a), g)
    return -(to_b @ adjoint(out)), to_b


def _solve_batch(op: Op[Any], batched: Flags, a: Tensor, b: Tensor) -> Any:
    if b.ndim - batched[1] > 1:
        return elementwise(op, batched, a, b)
    return squeeze(elementwise(op, batched, a, expand_dims(b, axis=-1)), axis=-1)  # type: ignore[arg-type]


@linalg_op(infer=_solve_rule, vjp=_solve_vjp, batch=_solve_batch)
def solve(x1: Arr, x2: Arr, /) -> Arr:
    """The x of `x1 @ x = x2`; NaN for a singular matrix. `x2` is one vector, or a stack of matrices."""
    columns = x2[:, None] if x2.ndim == 1 else x2
    batch = np.broadcast_shapes(x1.shape[:-2], columns.shape[:-2])
    matrices = np.broadcast_to(x1, (*batch, *x1.shape[-2:]))
    solved = nan_where_it_fails(np.linalg.solve, matrices, np.broadcast_to(columns, (*batch, *columns.shape[-2:])))
    return solved[..., 0] if x2.ndim == 1 else solved


# Determinants


def _det_vjp(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    return (expand_dims(g, axis=(-2, -1)) * conj(cofactors(x)),)


@linalg_op(infer=lambda x: per_matrix(square_matrices(x)), vjp=_det_vjp)
def det(x: Arr, /) -> Arr:
    """The determinant of square matrices."""
    return np.linalg.det(x)


def _cofactors_vjp(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    inverse = adjoint(inv(x))
    scale = sum(g * inverse, axis=(-2, -1), keepdims=True)
    return (conj(out) * scale - conj(out) @ matrix_transpose(g) @ inverse,)


@linalg_op(infer=square_matrices, vjp=_cofactors_vjp)
def cofactors(x: Arr, /) -> Arr:
    """The derivative of the determinant by each element: the transposed inverse times the determinant, which exists
    for singular matrices too. (Its own gradient does not, there.)"""
    determinant = np.linalg.det(x)[..., None, None]
    result = determinant * np.swapaxes(nan_where_it_fails(np.linalg.inv, x), -2, -1)
    singular = determinant[..., 0, 0] == 0
    if np.any(singular):
        u, s, vh = nan_unless_finite(lambda a: tuple(np.linalg.svd(a)), x[singular])
        n = x.shape[-1]
        others = np.where(np.eye(n, dtype=bool), 1, s[:, None, :]).prod(axis=-1)
        turn = np.linalg.det(u) * np.linalg.det(vh)
        result[singular] = (turn[:, None, None] * (u.conj() * others[:, None, :]) @ vh.conj()).astype(x.dtype)
    return result


class SlogdetResult(NamedTuple):
    """The result of `slogdet`."""

    sign: Tensor
    logabsdet: Tensor


def _slogdet_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor]:
    scale = g[1] - 1j * imag(conj(g[0]) * out[0]) if x.dtype.is_complex else g[1]
    return (expand_dims(scale, axis=(-2, -1)) * adjoint(inv(x)),)


@linalg_op(infer=lambda x: (per_matrix(square_matrices(x)), real_spec(per_matrix(x))), vjp=_slogdet_vjp)
def _slogdet(x: Arr, /) -> Arr:
    return tuple(map(np.asarray, np.linalg.slogdet(x)))


@rules.on_tensor
def slogdet(x: Tensor, /) -> SlogdetResult:
    """Sign and logarithm of the magnitude of the determinant: it may be too large or too small for a float."""
    return SlogdetResult(*_slogdet.outputs(x))
