"""Statistics by NumPy's names: order statistics, averages and correlations."""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np

from .._tensor.dtype import int64
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import arange, asarray
from .decompositions import floating
from .elementwise import (
    ceil,
    clip,
    conj,
    divide,
    floor,
    imag,
    isnan,
    logical_not,
    logical_or,
    real,
    round,
    sqrt,
    where,
)
from .index import take_along_axis
from .products import matmul, matrix_transpose
from .reduce import any, max, mean, min, sum
from .shape import Axes, broadcast_to, concat, expand_dims, moveaxis, reshape, squeeze
from .sort import sort

Method = Literal["linear", "lower", "higher", "midpoint", "nearest"]
METHODS: Final = ("linear", "lower", "higher", "midpoint", "nearest")

# Order


def along_last(x: Tensor, axis: Axes | None) -> tuple[Tensor, tuple[int, ...]]:
    """The tensor with the reduced axes as one, the last; and which axes they were."""
    axes = tuple(sorted(rules.normal_axes(axis, x.ndim)))
    rest = [a for a in range(x.ndim) if a not in axes]
    moved = moveaxis(x, axes, tuple(range(len(rest), x.ndim))) if axes else x
    length = 1
    for a in axes:
        length *= x.shape[a]
    return reshape(moved, (*[x.shape[a] for a in rest], length)), axes


def _at_rank(ordered: Tensor, rank: Tensor, method: str) -> Tensor:
    """The element at a rank, which need not be whole, of elements in order along the last axis; `rank` is (…, 1)."""
    if method == "nearest":
        return take_along_axis(ordered, round(rank).astype(int64), axis=-1)
    below, above = floor(rank), ceil(rank)
    low = take_along_axis(ordered, below.astype(int64), axis=-1) if method != "higher" else None
    if low is not None and method == "lower":
        return low
    high = take_along_axis(ordered, above.astype(int64), axis=-1)
    if low is None:
        return high
    if method == "midpoint":
        return low * 0.5 + high * 0.5
    share = (rank - below).astype(ordered.dtype)
    return where(logical_or(share == 0, low == high), low, low + (high - low) * share)


def quantiles_of(
    x: Tensor, q: Any, axis: Axes | None, method: str, keepdims: bool, *, skip_nan: bool, scale: float
) -> Tensor:
    """Quantiles along axes, `scale` times as large as `q`; without NaNs, or NaN where there is one."""
    rules.one_of("method", method, METHODS)
    rules.expect(x.dtype, "a real dtype", lambda d: not d.is_complex)
    shares = _shares(q, scale)
    lined, axes = along_last(floating(x), axis)
    if not lined.shape[-1]:
        raise ShapeError(f"expected at least one element, got shape {x.shape}")
    ordered = sort(lined, axis=-1)
    unknown = isnan(ordered)
    if skip_nan:  # NaN is sorted to the end: the numbers before it are the sample
        count = sum(logical_not(unknown).astype(int64), axis=-1, keepdims=True)
        last = clip(count - 1, 0).astype(shares.dtype)
    else:
        last = asarray(lined.shape[-1] - 1, dtype=shares.dtype)
        # One NaN, and every quantile is unknown.
        ordered = where(any(unknown, axis=-1, keepdims=True), float("nan"), ordered)
    flat = reshape(shares, (-1,))
    parts = []
    for n in range(flat.size):
        rank = broadcast_to(reshape(flat[n] * last, (1,) * ordered.ndim if last.ndim == 0 else last.shape),
                            (*ordered.shape[:-1], 1))  # fmt: skip
        parts.append(squeeze(_at_rank(ordered, rank, method), -1))
    shape = rules.reduced_shape(x.shape, axes, keepdims)
    return reshape(concat([expand_dims(p, 0) for p in parts], axis=0), (*shares.shape, *shape))


def _shares(q: Any, scale: float) -> Tensor:
    shares = asarray(q).astype("float64") / scale
    if shares._node.buffer is not None or not isinstance(q, Tensor):
        values = shares.numpy()
        if not ((values >= 0) & (values <= 1)).all():
            raise ArgumentError(f"expected q from 0 to {scale:g}, got {q}")
    return shares


@rules.on_tensor
def quantile(
    x: Tensor, q: Any, /, axis: Axes | None = None, *, method: Method = "linear", keepdims: bool = False
) -> Tensor:
    """The q-th quantile along some axes (of all elements by default); NaN where an element is.

    - `q`: from 0 to 1, a number or a tensor, whose dimensions come first in the result.
    - `method`: what stands between two elements: "linear", "lower", "higher", "midpoint" or "nearest".

    >>> import yosegi as ys
    >>> ys.quantile(ys.asarray([1.0, 2.0, 4.0]), [0.5, 0.75]).tolist()
    [2.0, 3.0]
    """
    return quantiles_of(x, q, axis, method, keepdims, skip_nan=False, scale=1)


@rules.on_tensor
def percentile(
    x: Tensor, q: Any, /, axis: Axes | None = None, *, method: Method = "linear", keepdims: bool = False
) -> Tensor:
    """The q-th percentile along some axes (of all elements by default): `quantile` of q / 100.

    >>> import yosegi as ys
    >>> ys.percentile(ys.asarray([1.0, 2.0, 4.0]), 25).tolist()
    1.5
    """
    return quantiles_of(x, q, axis, method, keepdims, skip_nan=False, scale=100)


@rules.on_tensor
def median(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """The median along some axes (of all elements by default): the middle element, or the mean of the middle two.

    >>> import yosegi as ys
    >>> ys.median(ys.asarray([[3.0, 1.0], [4.0, 2.0]]), axis=1).tolist()
    [2.0, 3.0]
    """
    return quantiles_of(x, 0.5, axis, "midpoint", keepdims, skip_nan=False, scale=1)


@rules.on_tensor
def ptp(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """The largest element less the smallest, over some axes (all by default).

    >>> import yosegi as ys
    >>> ys.ptp(ys.asarray([3, 1, 4])).tolist()
    3
    """
    return max(x, axis=axis, keepdims=keepdims) - min(x, axis=axis, keepdims=keepdims)


# Averages and correlation


@rules.on_tensor
def average(
    x: Tensor,
    /,
    axis: Axes | None = None,
    weights: Tensor | None = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> Any:
    """The weighted mean over some axes (all by default).

    - `weights`: of the shape of `x`, or one for each element along one axis.
    - `returned`: return the sum of the weights too.

    >>> import yosegi as ys
    >>> ys.average(ys.asarray([1.0, 2.0]), weights=ys.asarray([3.0, 1.0])).tolist()
    1.25
    """
    if weights is None:
        made = mean(x, axis=axis, keepdims=keepdims)
        count = x.size // made.size if made.size else 0
        return (made, broadcast_to(asarray(float(count), dtype=made.dtype), made.shape)) if returned else made
    given = asarray(weights)
    if given.shape != x.shape:
        axes = rules.normal_axes(axis, x.ndim)
        if given.shape != tuple(x.shape[a] for a in axes):
            raise ShapeError(f"expected weights of shape {x.shape}, or of that of the axes {axis}, got {given.shape}")
        order = np.argsort(axes).tolist()
        given = moveaxis(given, tuple(order), tuple(range(len(order)))) if len(order) > 1 else given
        given = reshape(given, tuple(n if i in axes else 1 for i, n in enumerate(x.shape)))
    product = floating(x * given)
    wide = broadcast_to(given.astype(product.dtype), x.shape)
    total = sum(wide, axis=axis, keepdims=keepdims)
    made = divide(sum(product, axis=axis, keepdims=keepdims), total)
    return (made, total) if returned else made


@rules.on_tensor
def cov(
    x: Tensor,
    /,
    y: Tensor | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    *,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """The covariance matrix of variables.

    - `x`: a variable in each row, an observation in each column; the other way round without `rowvar`.
    - `y`: more variables of the same observations.
    - `bias`: divide by the count of observations, not by one less; `ddof` says how many less.
    - `fweights`, `aweights`: how often each observation counts, and how much.

    >>> import yosegi as ys
    >>> ys.cov(ys.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    rows = _variables(x, rowvar)
    if y is not None:
        rows = concat([rows, _variables(asarray(y), rowvar)], axis=0)
    less_by = float(ddof) if ddof is not None else 0.0 if bias else 1.0
    if fweights is None and aweights is None:
        centred = rows - mean(rows, axis=1, keepdims=True)
        left = rows.shape[1] - less_by
        made = matmul(centred, conj(matrix_transpose(centred))) * (1 / left if left > 0 else float("nan"))
    else:
        real_dtype = real(rows).dtype
        counts = None if fweights is None else asarray(fweights).astype(real_dtype)
        given = None if aweights is None else asarray(aweights).astype(real_dtype)
        weights = counts * given if counts is not None and given is not None else given if counts is None else counts
        assert weights is not None
        total = sum(weights)
        centred = rows - expand_dims(sum(rows * weights, axis=1) / total, 1)
        left_over = total - less_by if given is None else total - less_by * sum(weights * given) / total
        made = matmul(centred * weights, conj(matrix_transpose(centred))) / left_over
    return reshape(made, ()) if made.shape == (1, 1) else made


def _variables(x: Tensor, rowvar: bool) -> Tensor:
    x = floating(x)
    if x.ndim > 2:
        raise ShapeError(f"expected at most two dimensions, got shape {x.shape}")
    if x.ndim < 2:
        return reshape(x, (1, -1))
    return x if rowvar or x.shape[0] == 1 else matrix_transpose(x)


@rules.on_tensor
def corrcoef(x: Tensor, /, y: Tensor | None = None, rowvar: bool = True) -> Tensor:
    """The correlation coefficients of variables; the arguments are those of `cov`.

    >>> import yosegi as ys
    >>> ys.corrcoef(ys.asarray([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    made = cov(x, y, rowvar)
    if not made.ndim:
        return made / made
    deviations = sqrt(real(_main_diagonal(made)))
    scaled = made / expand_dims(deviations, 1) / expand_dims(deviations, 0)
    if scaled.dtype.is_complex:
        return clip(real(scaled), -1, 1) + 1j * clip(imag(scaled), -1, 1)
    return clip(scaled, -1, 1)


def _main_diagonal(x: Tensor) -> Tensor:
    places = arange(x.shape[0])
    return x[places, places]


__all__ = [
    "along_last", "average", "corrcoef", "cov", "median", "percentile", "ptp", "quantile", "quantiles_of",
]  # fmt: skip
