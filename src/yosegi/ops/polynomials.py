"""Polynomials as vectors of coefficients, the highest power first, by NumPy's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._tensor.op import from_array
from .._tensor.tensor import Operand, Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import arange, asarray, ones, zeros
from .decompositions import eigvals, floating, pinv
from .elementwise import real, sqrt, where
from .products import matmul
from .reduce import cumulative_prod, sum
from .shape import concat, expand_dims, flip, reshape
from .signal import convolve
from .types import astype, result_type


def _vector(p: Any) -> Tensor:
    t = asarray(p)
    t = reshape(t, (1,)) if t.ndim == 0 else t
    if t.ndim != 1:
        raise ShapeError(f"expected a vector of coefficients, got shape {t.shape}")
    return t


@rules.named
def polyval(p: Tensor, x: Operand, /) -> Tensor:
    """The polynomial with coefficients `p` at `x`, by Horner's rule.

    >>> import yosegi as ys
    >>> ys.polyval(ys.asarray([3.0, 0.0, 1.0]), ys.asarray([2.0, 5.0])).tolist()
    [13.0, 76.0]
    """
    coefficients, at = _vector(p), rules.as_tensor(x)
    common = result_type(coefficients, at)
    at = astype(at, common)
    total = zeros(at.shape, dtype=common)
    for n in range(coefficients.shape[0]):
        total = total * at + coefficients[n]
    return total


@rules.named
def polyadd(p: Tensor, q: Tensor, /) -> Tensor:
    """The sum of two polynomials.

    >>> import yosegi as ys
    >>> ys.polyadd(ys.asarray([1, 2]), ys.asarray([9, 5, 4])).tolist()
    [9, 6, 6]
    """
    first, second = _aligned(_vector(p), _vector(q))
    return first + second


@rules.named
def polysub(p: Tensor, q: Tensor, /) -> Tensor:
    """The difference of two polynomials.

    >>> import yosegi as ys
    >>> ys.polysub(ys.asarray([2, 10, -2]), ys.asarray([3, 10, -4])).tolist()
    [-1, 0, 2]
    """
    first, second = _aligned(_vector(p), _vector(q))
    return first - second


def _aligned(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both with as many coefficients as the longer."""
    n = max(p.shape[0], q.shape[0])
    first, second = (concat([zeros((n - t.shape[0],), t.dtype), t]) if t.shape[0] < n else t for t in (p, q))
    return first, second


@rules.named
def polymul(p: Tensor, q: Tensor, /) -> Tensor:
    """The product of two polynomials.

    >>> import yosegi as ys
    >>> ys.polymul(ys.asarray([1, 2]), ys.asarray([1, -2])).tolist()
    [1, 0, -4]
    """
    return convolve(_vector(p), _vector(q))


@rules.named
def polydiv(p: Tensor, q: Tensor, /) -> tuple[Tensor, Tensor]:
    """The quotient and the remainder of two polynomials. The remainder keeps leading zeros, one coefficient less than
    `q` has, so that its shape does not depend on values.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.polydiv(ys.asarray([3.0, 5.0, 2.0]), ys.asarray([2.0, 1.0]))]
    [[1.5, 1.75], [0.25]]
    """
    dividend, divisor = floating(_vector(p)), floating(_vector(q))
    common = result_type(dividend, divisor)
    rest, divisor = astype(dividend, common), astype(divisor, common)
    n, m = rest.shape[0], divisor.shape[0]
    if n < m:
        return zeros((1,), common), rest
    quotient = []
    for _ in range(n - m + 1):
        factor = rest[0] / divisor[0]
        quotient.append(reshape(factor, (1,)))
        rest = concat([rest[:m] - factor * divisor, rest[m:]])[1:]
    return concat(quotient), rest if m > 1 else zeros((1,), common)


@rules.named
def polyder(p: Tensor, /, m: int = 1) -> Tensor:
    """The m-th derivative of a polynomial.

    >>> import yosegi as ys
    >>> ys.polyder(ys.asarray([1, 1, 1, 1])).tolist()
    [3, 2, 1]
    """
    made = _vector(p)
    for _ in range(_order(m)):
        made = made[:-1] * arange(made.shape[0] - 1, 0, -1).astype(made.dtype)
    return made


@rules.named
def polyint(p: Tensor, /, m: int = 1, k: Any = None) -> Tensor:
    """The m-th antiderivative of a polynomial.

    - `k`: the constants of integration, the first one for the first integration; 0 by default.

    >>> import yosegi as ys
    >>> ys.polyint(ys.asarray([6.0, 2.0]), k=5.0).tolist()
    [3.0, 2.0, 5.0]
    """
    made = floating(_vector(p))
    constants = zeros((_order(m),), made.dtype) if k is None else _vector(k).astype(made.dtype)
    if constants.shape[0] == 1 and m > 1:
        constants = concat([constants] * m)
    if constants.shape[0] < m:
        raise ArgumentError(f"expected {m} constants of integration, got {constants.shape[0]}")
    for n in range(m):
        made = concat([made / arange(made.shape[0], 0, -1).astype(made.dtype), constants[n : n + 1]])
    return made


def _order(m: int) -> int:
    if rules.as_index(m, "m") < 0:
        raise ArgumentError(f"expected m of at least 0, got {m}")
    return m


@rules.on_tensor
def vander(x: Tensor, /, N: int | None = None, increasing: bool = False) -> Tensor:
    """The Vandermonde matrix: the powers of each element of a vector in a row.

    - `N`: how many powers; as many as elements by default.
    - `increasing`: the powers from 0 up, not down to 0.

    >>> import yosegi as ys
    >>> ys.vander(ys.asarray([2, 3]), 3).tolist()
    [[4, 2, 1], [9, 3, 1]]
    """
    if x.ndim != 1:
        raise ShapeError(f"expected a vector, got shape {x.shape}")
    count = x.shape[0] if N is None else rules.as_index(N, "N")
    if count == 0:
        return zeros((x.shape[0], 0), x.dtype)
    first = ones((x.shape[0], 1), dtype=x.dtype)
    columns = concat([first, *[expand_dims(x, 1)] * (count - 1)], axis=1)
    powers = cumulative_prod(columns, axis=1)
    return powers if increasing else flip(powers, axis=1)


@rules.named
def polyfit(x: Tensor, y: Tensor, deg: int, /, *, w: Tensor | None = None) -> Tensor:
    """The coefficients of the polynomial of a degree that is nearest to points, by least squares.

    - `x`, `y`: the points; `y` may have several columns.
    - `w`: the weight of each point's distance.

    >>> import yosegi as ys
    >>> [round(c, 6) for c in ys.polyfit(ys.arange(4.0), ys.asarray([1.0, 3.0, 5.0, 7.0]), 1).tolist()]
    [2.0, 1.0]
    """
    places, values = floating(_vector(x)), floating(asarray(y))
    if values.ndim not in (1, 2) or values.shape[0] != places.shape[0]:
        raise ShapeError(f"expected a value for each of {places.shape[0]} places, got shape {values.shape}")
    if rules.as_index(deg, "deg") < 0:
        raise ArgumentError(f"expected deg of at least 0, got {deg}")
    matrix = vander(places, deg + 1)
    if w is not None:
        weights = expand_dims(asarray(w), 1)
        matrix = matrix * weights
        values = values * (weights if values.ndim == 2 else asarray(w))
    scale = sqrt(sum(matrix * matrix, axis=0))
    scale = where(scale == 0, 1, scale)
    made = matmul(pinv(matrix / scale, rtol=float(places.shape[0]) * 2.220446049250313e-16), values)
    return made / (expand_dims(scale, 1) if made.ndim == 2 else scale)


@rules.named
def poly(roots: Tensor, /) -> Tensor:
    """The coefficients of the polynomial with these roots, or of the characteristic polynomial of a square matrix.

    >>> import yosegi as ys
    >>> ys.poly(ys.asarray([2.0, 3.0])).tolist()
    [1.0, -5.0, 6.0]
    """
    given = floating(asarray(roots))
    is_real = not given.dtype.is_complex
    if given.ndim == 2 and given.shape[0] == given.shape[1]:
        given = eigvals(given)
    elif given.ndim != 1:
        raise ShapeError(f"expected a vector of roots or a square matrix, got shape {given.shape}")
    made = ones((1,), dtype=given.dtype)
    for n in range(given.shape[0]):
        zero = zeros((1,), made.dtype)
        made = concat([made, zero]) - given[n] * concat([zero, made])
    return real(made) if is_real and made.dtype.is_complex else made


@rules.named
def roots(p: Tensor, /) -> Tensor:
    """The roots of a polynomial, as complex numbers: the eigenvalues of its companion matrix.

    Zeros at either end are found at once, for the number of roots depends on them; a traced function takes its
    coefficients as they are, and the first must not be 0.

    >>> import yosegi as ys
    >>> sorted(round(r.real, 6) for r in ys.roots(ys.asarray([1.0, -3.0, 2.0])).tolist())
    [1.0, 2.0]
    """
    given = floating(_vector(p))
    trailing = 0
    if given._node.buffer is not None:
        values: Any = np.flatnonzero(given.numpy())
        if not values.size:
            return from_array(np.zeros((0,), np.complex128))
        trailing = given.shape[0] - 1 - int(values[-1])
        given = given[int(values[0]) : int(values[-1]) + 1]
    n = given.shape[0] - 1
    if n < 1:
        return zeros((trailing,), "complex128")
    top = expand_dims(-given[1:] / given[0], 0)
    below = from_array(np.eye(n - 1, n).astype(given.dtype.numpy))
    found = eigvals(concat([top, below], axis=0))
    return concat([found, zeros((trailing,), found.dtype)]) if trailing else found


__all__ = [
    "poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval", "roots", "vander",
]  # fmt: skip
