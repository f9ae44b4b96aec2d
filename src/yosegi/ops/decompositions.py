"""Decompositions of matrices, and of stacks of them.

Values never raise. Where a matrix is not positive definite, holds infinities or NaN, or LAPACK does not converge, the
result for it is NaN, and those for the rest of the stack are as they should be.

Eigenvectors and singular vectors are unique only up to a phase, and within the space of equal values up to a
rotation. The gradients are those of functions that do not depend on that choice.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._tensor.batch import Flags, aligned, applied, size_of, spread
from .._tensor.dtype import complex_of, default_float, float_info
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, Normal, Op, OpKind, op
from .._tensor.tensor import Operand, Tensor
from ..errors import ShapeError
from . import rules
from .elementwise import conj, imag, real, where
from .products import adjoint, diagonal, on_diagonal
from .shape import concat, expand_dims, tril, triu
from .solves import (
    linalg_op,
    nan_unless_finite,
    nan_where_it_fails,
    per_matrix,
    real_spec,
    sides,
    solve,
    square_matrices,
)


def _of_complex(x: Spec) -> Spec:
    return spec(x.shape, complex_of(x.dtype))


def _reciprocal(x: Tensor) -> Tensor:
    """1/x, and 0 where x is 0."""
    zero = x == 0
    return where(zero, 0, 1 / where(zero, 1, x))


def _differences(values: Tensor) -> Tensor:
    """The matrix of values[j] - values[i]."""
    return expand_dims(values, axis=-2) - expand_dims(values, axis=-1)


def _diag(values: Tensor) -> Tensor:
    n = values.shape[-1]
    return on_diagonal(values, shape=(n, n))


def _hermitian(x: Tensor) -> Tensor:
    return (x + adjoint(x)) / 2


# Factors


def _cholesky_vjp(g: Tensor, out: Tensor, x: Tensor, *, upper: bool) -> tuple[Tensor]:
    factor, to_factor = (adjoint(out), adjoint(g)) if upper else (out, g)
    inner = adjoint(factor) @ to_factor
    lower = tril(inner, k=-1) + _diag(diagonal(inner)) / 2
    half = solve(adjoint(factor), lower)
    return (_hermitian(adjoint(solve(adjoint(factor), adjoint(half)))),)


def _cholesky_rule(x: Spec, *, upper: bool) -> Normal:
    rules.one_of("upper", upper, (False, True))
    return Normal(square_matrices(x), {"upper": bool(upper)})


@linalg_op(infer=_cholesky_rule, vjp=_cholesky_vjp)
def cholesky(x: Arr, /, *, upper: bool = False) -> Arr:
    """The triangular L of `L @ L^H = x`, or U of `U^H @ U = x`; NaN where x is not positive definite."""
    return nan_where_it_fails(partial(np.linalg.cholesky, upper=upper), x)


class QRResult(NamedTuple):
    """The result of `qr`."""

    Q: Tensor
    R: Tensor


def _qr_rule(x: Spec, *, mode: str) -> tuple[Spec, Spec]:
    rules.one_of("mode", mode, ("reduced", "complete"))
    rows, columns = sides(x)
    k = rows if mode == "complete" else min(rows, columns)
    return per_matrix(x, rows, k), per_matrix(x, k, columns)


def _qr_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], x: Tensor, *, mode: str) -> tuple[Tensor]:
    (rows, columns), (q, r), (to_q, to_r) = x.shape[-2:], out, g
    if rows < columns:  # q and r of the first columns; the others only say where r ends: r = q^H @ x
        inner = to_q + x[..., rows:] @ adjoint(to_r[..., rows:])
        first = _qr_vjp((inner, to_r[..., :rows]), (q, r[..., :rows]), x[..., :rows], mode=mode)
        return (concat([*first, q @ to_r[..., rows:]], axis=-1),)
    r, to_r = r[..., :columns, :], to_r[..., :columns, :]
    rest, to_rest = q[..., columns:], to_q[..., columns:]
    q, to_q = q[..., :columns], to_q[..., :columns]
    inner = triu(to_r @ adjoint(r) - adjoint(q) @ to_q, k=0)
    above = triu(inner, k=1)
    rotated = to_q + q @ (above + adjoint(above) + _diag(real(diagonal(inner))))
    if mode == "complete" and rows > columns:  # the complement of q turns against it
        rotated = rotated - rest @ adjoint(to_rest) @ q
    return (adjoint(solve(r, adjoint(rotated))),)


@linalg_op(infer=_qr_rule, vjp=_qr_vjp)
def _qr(x: Arr, /, *, mode: str) -> Arr:
    return tuple(np.linalg.qr(x, mode))


@rules.on_tensor
def qr(x: Tensor, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal Q and upper triangular R with `Q @ R = x`; Q is square if the mode is "complete"."""
    return QRResult(*_qr.outputs(x, mode=mode))


# Singular values


class SVDResult(NamedTuple):
    """The result of `svd`."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _svd_rule(x: Spec, *, full_matrices: bool) -> Normal:
    rules.one_of("full_matrices", full_matrices, (False, True))
    rows, columns = sides(x)
    k = min(rows, columns)
    left, right = (rows, columns) if full_matrices else (k, k)
    outputs = per_matrix(x, rows, left), real_spec(per_matrix(x, k)), per_matrix(x, right, columns)
    return Normal(outputs, {"full_matrices": bool(full_matrices)})


def _svd_vjp(
    g: tuple[Tensor, Tensor, Tensor], out: tuple[Tensor, Tensor, Tensor], x: Tensor, *, full_matrices: bool
) -> tuple[Tensor]:
    k = min(x.shape[-2:])
    s, to_s = out[1], g[1]
    u, vh, to_u, to_v = out[0][..., :k], out[2][..., :k, :], g[0][..., :k], adjoint(g[2][..., :k, :])
    inverse = expand_dims(_reciprocal(s), axis=-2)
    column, row = expand_dims(s, axis=-1), expand_dims(s, axis=-2)
    gaps = _reciprocal((row - column) * (row + column))
    ju, jv = adjoint(u) @ to_u, vh @ to_v
    core = gaps * (ju - adjoint(ju)) * row + column * (gaps * (jv - adjoint(jv))) + _diag(to_s)
    if x.dtype.is_complex:  # the phase that U and V share is free; the one between them is not
        core = core + 1j * _diag(imag(diagonal(ju) - diagonal(jv)) * _reciprocal(2 * s))
    # What of dU and dV leaves the spaces of U and V
    outside_u = (to_u - u @ ju) * inverse
    outside_v = (to_v - adjoint(vh) @ jv) * inverse
    if full_matrices:
        rest_u, rest_v = out[0][..., k:], adjoint(out[2][..., k:, :])
        outside_u = outside_u - rest_u @ adjoint(g[0][..., k:]) @ u * inverse
        outside_v = outside_v - rest_v @ g[2][..., k:, :] @ adjoint(vh) * inverse
    return ((u @ core + outside_u) @ vh + u @ adjoint(outside_v),)


@linalg_op(infer=_svd_rule, vjp=_svd_vjp)
def _svd(x: Arr, /, *, full_matrices: bool) -> Arr:
    return nan_unless_finite(lambda a: tuple(np.linalg.svd(a, full_matrices)), x)


@rules.on_tensor
def svd(x: Tensor, /, *, full_matrices: bool = True) -> SVDResult:
    """Orthonormal U and Vh, and S from large to small, with `(U * S) @ Vh = x` (U and Vh cut to the length of S)."""
    return SVDResult(*_svd.outputs(x, full_matrices=full_matrices))


def _svdvals_vjp(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    u, _, vh = svd(x, full_matrices=False)
    return (u * expand_dims(g, axis=-2) @ vh,)


@linalg_op(infer=lambda x: real_spec(per_matrix(x, min(sides(x)))), vjp=_svdvals_vjp)
def svdvals(x: Arr, /) -> Arr:
    """The singular values, from large to small."""
    return nan_unless_finite(partial(np.linalg.svd, compute_uv=False), x)


def _pinv_rule(x: Spec, rtol: Spec) -> Spec:
    rows, columns = sides(x)
    rules.expect(rtol.dtype, "an rtol of a real floating dtype", lambda d: d.is_float)
    if rules.broadcast_shapes(rtol.shape, x.shape[:-2]) != x.shape[:-2]:
        raise ShapeError(f"expected an rtol for each matrix of the stack {x.shape[:-2]}, got shape {rtol.shape}")
    return per_matrix(x, columns, rows)


def _pinv_vjp(g: Tensor, out: Tensor, x: Tensor, rtol: Tensor) -> tuple[Tensor, None]:
    p, ph, gh = out, adjoint(out), adjoint(g)
    left = gh @ p @ ph
    right = ph @ p @ gh
    return left - x @ (p @ left) + right - right @ p @ x - ph @ g @ ph, None


def _pinv_batch(op: Op[Any], batched: Flags, x: Tensor, rtol: Tensor) -> Any:
    x = spread(x, batched[0], size_of(batched, (x, rtol)))
    return applied(op, [x, aligned(rtol, batched[1], x.ndim - 3)], {})


@op(OpKind.LINEAR_ALGEBRA, infer=_pinv_rule, vjp=_pinv_vjp, batch=_pinv_batch)
def _pinv(x: Arr, rtol: Arr, /) -> Arr:
    u, s, vh = nan_unless_finite(lambda a: tuple(np.linalg.svd(a, full_matrices=False)), x)
    small = s <= rtol[..., None] * s[..., :1]
    inverse = np.where(small, 0, np.reciprocal(s))
    return np.swapaxes(vh * inverse[..., None], -2, -1).conj() @ np.swapaxes(u, -2, -1).conj()


@rules.on_tensor
def pinv(x: Tensor, /, *, rtol: Operand | None = None) -> Tensor:
    """The pseudo-inverse: singular values up to `rtol` times the largest count as 0 (by default, eps by the larger
    side). The gradient holds as long as the rank does."""
    x = floating(x)
    return _pinv(x, as_rtol(x, rtol))


def floating(x: Tensor) -> Tensor:
    """Integers as the default float, floats as they are."""
    return x if x.dtype.is_inexact else x.astype(default_float())


def as_rtol(x: Tensor, rtol: Operand | None) -> Operand:
    """The ratio of singular values up to which one counts as 0; by default, that of rounding errors."""
    if rtol is None:
        return max(x.shape[-2:], default=0) * float_info(x.dtype).eps
    return float(rtol) if isinstance(rtol, int) else rtol


# Eigenvalues


class EigResult(NamedTuple):
    """The result of `eigh` and `eig`."""

    eigenvalues: Tensor
    eigenvectors: Tensor


def _eigh_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor]:
    (values, vectors), (to_values, to_vectors) = out, g
    core = _diag(to_values) + _reciprocal(_differences(values)) * (adjoint(vectors) @ to_vectors)
    return (_hermitian(vectors @ core @ adjoint(vectors)),)


@linalg_op(infer=lambda x: (real_spec(per_matrix(square_matrices(x), x.shape[-1])), x), vjp=_eigh_vjp)
def _eigh(x: Arr, /) -> Arr:
    return nan_unless_finite(lambda a: tuple(np.linalg.eigh(a)), x)


@rules.on_tensor
def eigh(x: Tensor, /) -> EigResult:
    """Eigenvalues, rising, and eigenvectors, as columns, of symmetric or Hermitian matrices. (Only the lower triangle
    is read; the gradient is symmetric.)"""
    return EigResult(*_eigh.outputs(x))


def _eigvalsh_vjp(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    vectors = eigh(x).eigenvectors
    return (vectors * expand_dims(g, axis=-2) @ adjoint(vectors),)


@linalg_op(infer=lambda x: real_spec(per_matrix(square_matrices(x), x.shape[-1])), vjp=_eigvalsh_vjp)
def eigvalsh(x: Arr, /) -> Arr:
    """Eigenvalues, rising, of symmetric or Hermitian matrices."""
    return nan_unless_finite(np.linalg.eigvalsh, x)


def _eig_vjp(g: tuple[Tensor, Tensor], out: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor]:
    (values, vectors), (to_values, to_vectors) = out, g
    inner = adjoint(vectors) @ to_vectors
    unit = adjoint(vectors) @ vectors * expand_dims(real(diagonal(inner)), axis=-2)  # eigenvectors keep length 1
    core = _diag(to_values) + conj(_reciprocal(_differences(values))) * (inner - unit)
    return (solve(adjoint(vectors), core @ adjoint(vectors)),)


@linalg_op(infer=lambda x: (_of_complex(per_matrix(square_matrices(x), x.shape[-1])), _of_complex(x)), vjp=_eig_vjp)
def _eig(x: Arr, /) -> Arr:
    values, vectors = nan_unless_finite(lambda a: tuple(np.linalg.eig(a)), x)
    dtype = np.result_type(x.dtype, np.complex64)
    return values.astype(dtype), vectors.astype(dtype)


@rules.on_tensor
def eig(x: Tensor, /) -> EigResult:
    """Eigenvalues and eigenvectors (as columns of length 1) of any square matrices; complex always."""
    return EigResult(*_eig.outputs(x))


def _eigvals_vjp(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    adjoint_vectors = adjoint(eig(x).eigenvectors)
    return (solve(adjoint_vectors, expand_dims(g, axis=-1) * adjoint_vectors),)


@linalg_op(infer=lambda x: _of_complex(per_matrix(square_matrices(x), x.shape[-1])), vjp=_eigvals_vjp)
def eigvals(x: Arr, /) -> Arr:
    """Eigenvalues of any square matrices; complex always."""
    return nan_unless_finite(np.linalg.eigvals, x).astype(np.result_type(x.dtype, np.complex64))
