"""Norms, powers and ranks of matrices; and, gathered from their files, the whole `linalg` namespace."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from .._tensor.dtype import DEFAULT_INT, number_type
from .._tensor.tensor import Operand, Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import asarray, eye
from .decompositions import as_rtol, cholesky, eig, eigh, eigvals, eigvalsh, floating, pinv, qr, svd, svdvals
from .elementwise import abs, imag, real, sqrt, square, where
from .products import (
    cross,
    diagonal,
    matmul,
    matrix_transpose,
    outer,
    tensordot,
    trace,
    vecdot,
    widened,
)
from .reduce import max, min, sum
from .shape import Axes, broadcast_to, expand_dims, moveaxis
from .solves import det, inv, slogdet, solve
from .systems import lstsq, multi_dot, tensorinv, tensorsolve


@rules.on_tensor
def vector_norm(x: Tensor, /, *, axis: Axes | None = None, keepdims: bool = False, ord: float = 2) -> Tensor:
    """The norm of the vectors along some axes (of all elements by default): `sum(abs(x)**ord)**(1/ord)`, the largest
    magnitude for inf, the smallest for -inf, how many are not zero for 0. Where the norm is 0, so is its gradient."""
    exact = floating(x)
    x = widened(exact)
    ord = _plain(ord)
    if number_type(ord) not in (int, float):
        raise ArgumentError(f"expected a real number for ord, got {ord!r}; matrix_norm has named norms")
    if ord == inf:
        norm = _largest(abs(x), axis, keepdims)
    elif ord == -inf:
        norm = min(abs(x), axis=axis, keepdims=keepdims)
    elif ord == 0:
        norm = sum((x != 0).astype(real(x).dtype), axis=axis, keepdims=keepdims)
    elif ord == 1:
        norm = sum(abs(x), axis=axis, keepdims=keepdims)
    elif ord == 2:
        squares = square(real(x)) + square(imag(x)) if x.dtype.is_complex else square(x)
        norm = _root(sum(squares, axis=axis, keepdims=keepdims), 2)
    else:
        norm = _root(sum(abs(x) ** ord, axis=axis, keepdims=keepdims), ord)
    return norm.astype(exact.dtype) if exact.dtype.is_half else norm


def _plain(ord: Any) -> Any:
    """An order given by NumPy or as a tensor, in Python's own types."""
    return ord.tolist() if isinstance(ord, (Tensor, np.ndarray, np.generic)) else ord


def _root(x: Tensor, order: float) -> Tensor:
    """x**(1/order); at 0, where the derivative of a root is infinite, it counts as 0."""
    if order < 0:
        return x ** (1 / order)
    zero = x == 0
    safe = where(zero, 1, x)
    return where(zero, 0, sqrt(safe) if order == 2 else safe ** (1 / order))


def _largest(x: Tensor, axis: Any, keepdims: bool) -> Tensor:
    """The maximum of numbers of at least 0; that of none is 0."""
    axes = rules.normal_axes(axis, x.ndim)
    reduce: Callable[..., Tensor] = sum if any(x.shape[a] == 0 for a in axes) else max
    return reduce(x, axis=axes, keepdims=keepdims)


@rules.on_tensor
def matrix_norm(x: Tensor, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Tensor:
    """The norm of matrices: "fro" of all elements as a vector, "nuc" the sum of the singular values, 2 and -2 the
    largest and smallest of them, 1 and -1 the largest and smallest sum of a column, inf and -inf of a row."""
    if x.ndim < 2:
        raise ShapeError(f"expected a matrix or a stack of them, got shape {x.shape}; use vector_norm")
    ord = _plain(ord)
    if ord is None or ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    rules.one_of("ord", ord, ("fro", "nuc", 1, -1, 2, -2, inf, -inf))
    exact = floating(x)
    x = widened(exact)
    if ord in ("nuc", 2, -2):
        parts = svdvals(x)
    else:
        parts = sum(abs(x), axis=-2 if ord in (1, -1) else -1)
    if ord == "nuc":
        norm = sum(parts, axis=-1)
    else:
        norm = _largest(parts, -1, False) if ord in (2, 1, inf) else min(parts, axis=-1)
    norm = expand_dims(norm, axis=(-2, -1)) if keepdims else norm
    return norm.astype(exact.dtype) if exact.dtype.is_half else norm


@rules.on_tensor
def norm(x: Tensor, /, ord: float | str | None = None, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """The norm of vectors along one axis, or of matrices along two; of all elements as one vector by default.

    - `ord`: the order, as in `vector_norm` and `matrix_norm`. 2 for vectors and "fro" for matrices by default.

    >>> import yosegi as ys
    >>> ys.linalg.norm(ys.asarray([3.0, 4.0])).tolist()
    5.0
    """
    if axis is None and (ord is None or x.ndim < 2):
        return vector_norm(x, keepdims=keepdims, ord=2 if ord is None else _real_order(ord))
    axes = rules.normal_axes(axis, x.ndim)
    if len(axes) == 1:
        return vector_norm(x, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else _real_order(ord))
    if len(axes) != 2:
        raise ShapeError(f"expected one or two axes for ord={ord!r}, got shape {x.shape} and axis {axis}; name axes")
    made = matrix_norm(moveaxis(x, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return expand_dims(made, tuple(sorted(axes))) if keepdims else made


def _real_order(ord: Any) -> float:
    if isinstance(ord, str):
        raise ArgumentError(f"expected a number for the norm of vectors, got {ord!r}; name two axes for a matrix's")
    return float(ord)


@rules.on_tensor
def cond(x: Tensor, /, p: float | str | None = None) -> Tensor:
    """The condition number of matrices: the norm of each times the norm of its inverse.

    - `p`: the order of the norm, as in `matrix_norm`; 2 by default.

    >>> import yosegi as ys
    >>> ys.linalg.cond(ys.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    2.0
    """
    if p is None or p in (2, -2):
        values = svdvals(floating(x))
        return values[..., 0] / values[..., -1] if p != -2 else values[..., -1] / values[..., 0]
    return matrix_norm(x, ord=p) * matrix_norm(inv(floating(x)), ord=p)


@rules.on_tensor
def matrix_power(x: Tensor, n: int, /) -> Tensor:
    """The product of n copies of square matrices; of their inverses for n < 0, the identity for n = 0."""
    n = rules.as_index(n, "n")
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"expected square matrices, got shape {x.shape}")
    rules.expect(x.dtype, "a numeric dtype", rules.is_numeric)
    if n == 0:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype), x.shape)
    square, n = (x, n) if n > 0 else (inv(x), -n)
    result: Tensor | None = None
    while True:
        if n & 1:
            result = square if result is None else matmul(result, square)
        n >>= 1
        if not n:
            assert result is not None
            return result
        square = matmul(square, square)


@rules.on_tensor
def matrix_rank(x: Tensor, /, *, rtol: Operand | None = None) -> Tensor:
    """How many singular values are more than `rtol` times the largest (by default, eps by the larger side)."""
    x = floating(x)
    values = svdvals(x)
    limit = as_rtol(x, rtol)
    limit = limit if isinstance(limit, float) else expand_dims(asarray(limit), axis=-1)
    return sum((values > values[..., :1] * limit).astype(DEFAULT_INT), axis=-1)


__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "matmul",
    "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv", "qr",
    "slogdet", "solve", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace", "vecdot", "vector_norm",
]  # fmt: skip
