"""Chains of matrix products, and linear systems: the part of `linalg` that NumPy has and the standard does not."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

from .._tensor.dtype import float_info, real_of
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import asarray
from .decompositions import floating
from .decompositions import svd as decomposed
from .elementwise import conj, real, where
from .products import matmul, matrix_transpose
from .reduce import sum
from .shape import expand_dims, permute_dims, reshape, squeeze
from .solves import inv, solve

# Products


@rules.named
def multi_dot(tensors: Sequence[Tensor], /) -> Tensor:
    """The product of several matrices, in the order that needs the fewest multiplications. The first and the last may
    be vectors.

    >>> import yosegi as ys
    >>> ys.linalg.multi_dot([ys.ones((2, 3)), ys.ones((3, 4)), ys.ones((4,))]).tolist()
    [12.0, 12.0]
    """
    parts = [asarray(t) for t in tensors]
    if len(parts) < 2:
        raise ArgumentError(f"expected at least two matrices, got {len(parts)}")
    row, column = parts[0].ndim == 1, parts[-1].ndim == 1
    parts[0] = expand_dims(parts[0], 0) if row else parts[0]
    parts[-1] = expand_dims(parts[-1], 1) if column else parts[-1]
    for part in parts:
        if part.ndim != 2:
            raise ShapeError(f"expected matrices, got shape {part.shape}")
    made = _ordered(parts)
    gone = (*((0,) if row else ()), *((1,) if column else ()))
    return squeeze(made, gone) if gone else made


def _ordered(parts: list[Tensor]) -> Tensor:
    """Dynamic programming over where the last product of each run is cut."""
    sizes = [parts[0].shape[0], *[p.shape[1] for p in parts]]
    best: dict[tuple[int, int], tuple[int, Tensor]] = {(i, i): (0, p) for i, p in enumerate(parts)}
    for length in range(2, len(parts) + 1):
        for i in range(len(parts) - length + 1):
            j = i + length - 1
            costs = [
                (best[i, k][0] + best[k + 1, j][0] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)
            ]
            cost, k = min(costs)
            best[i, j] = cost, matmul(best[i, k][1], best[k + 1, j][1])
    return best[0, len(parts) - 1][1]


# Systems


class LeastSquares(NamedTuple):
    """The solution of `lstsq`, with what is known of the matrix."""

    x: Tensor
    residuals: Tensor
    rank: Tensor
    s: Tensor


@rules.named
def lstsq(a: Tensor, b: Tensor, /, rcond: float | None = None) -> LeastSquares:
    """The x of least squares |a x - b|, of least norm where several are, by singular values.

    - `rcond`: singular values below this share of the largest count as 0; eps times the longer side by default.

    Returns the solution, the sum of squares left for each column of `b`, the rank and the singular values of `a`.
    Unlike NumPy's, the sums are there whatever the rank is.

    >>> import yosegi as ys
    >>> a = ys.asarray([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> [round(v, 6) for v in ys.linalg.lstsq(a, ys.asarray([1.0, 3.0, 5.0])).x.tolist()]
    [1.0, 2.0]
    """
    matrix, target = floating(asarray(a)), floating(asarray(b))
    if matrix.ndim != 2 or target.ndim not in (1, 2) or target.shape[0] != matrix.shape[0]:
        raise ShapeError(f"expected a matrix and as many rows, got shapes {matrix.shape} and {target.shape}")
    u, s, vh = decomposed(matrix, full_matrices=False)
    eps = float_info(real_of(matrix.dtype)).eps * max(matrix.shape)
    counts = s > s[:1] * (eps if rcond is None else rcond)
    inverse = where(counts, 1 / where(counts, s, 1), 0)
    columns = expand_dims(target, 1) if target.ndim == 1 else target
    made = matmul(conj(matrix_transpose(vh)), expand_dims(inverse, 1) * matmul(conj(matrix_transpose(u)), columns))
    rest = matmul(matrix, made) - columns
    squares = sum(real(rest * conj(rest)), axis=0)
    solution = squeeze(made, 1) if target.ndim == 1 else made
    return LeastSquares(solution, squares, sum(counts.astype("int64")), s)


@rules.on_tensor
def tensorinv(x: Tensor, /, ind: int = 2) -> Tensor:
    """The inverse by `tensordot` over the first `ind` dimensions, whose product equals that of the others.

    >>> import yosegi as ys
    >>> ys.linalg.tensorinv(ys.reshape(ys.eye(4), (4, 2, 2)), ind=1).shape
    (2, 2, 4)
    """
    if ind < 1:
        raise ArgumentError(f"expected ind of at least 1, got {ind}")
    rows = prod(x.shape[:ind])
    return reshape(inv(reshape(x, (rows, -1))), (*x.shape[ind:], *x.shape[:ind]))


@rules.named
def tensorsolve(a: Tensor, b: Tensor, /, axes: Sequence[int] | None = None) -> Tensor:
    """The x with `tensordot(a, x, x.ndim) == b`.

    - `axes`: dimensions of `a` that are moved to the end first.

    >>> import yosegi as ys
    >>> ys.linalg.tensorsolve(ys.reshape(ys.eye(4), (2, 2, 4)), ys.ones((2, 2))).shape
    (4,)
    """
    matrix, target = asarray(a), asarray(b)
    if axes is not None:
        last = rules.normal_axes(tuple(axes), matrix.ndim)
        matrix = permute_dims(matrix, (*[n for n in range(matrix.ndim) if n not in last], *last))
    shape = matrix.shape[target.ndim :]
    return reshape(solve(reshape(matrix, (target.size, -1)), reshape(target, (-1,))), shape)


__all__ = ["LeastSquares", "lstsq", "multi_dot", "tensorinv", "tensorsolve"]
