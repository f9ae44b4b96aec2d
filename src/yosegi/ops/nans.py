"""Reductions that skip NaN, by NumPy's names. Over nothing but NaN, sums are 0, products 1, and the rest is NaN."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from .._tensor.tensor import Tensor
from ..errors import ArgumentError
from . import rules
from .decompositions import floating
from .elementwise import conj, divide, isnan, logical_not, real, sqrt, where
from .ranges import cumprod, cumsum
from .reduce import all, max, min, prod, sum
from .shape import Axes
from .sort import argmax, argmin
from .statistics import Method, quantiles_of


def _filled(x: Tensor, value: float) -> Tensor:
    return where(isnan(x), value, x) if x.dtype.is_inexact else x


def _count(x: Tensor, axis: Axes | None, keepdims: bool) -> Tensor:
    """How many elements are numbers, as reals of the dtype of `x`."""
    return sum(logical_not(isnan(x)).astype(real(x).dtype), axis=axis, keepdims=keepdims)


@rules.on_tensor
def nansum(x: Tensor, /, axis: Axes | None = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The sum over some axes (all by default), with NaN as 0.

    >>> import yosegi as ys
    >>> ys.nansum(ys.asarray([1.0, ys.nan])).tolist()
    1.0
    """
    return sum(_filled(x, 0), axis=axis, dtype=dtype, keepdims=keepdims)


@rules.on_tensor
def nanprod(x: Tensor, /, axis: Axes | None = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """The product over some axes (all by default), with NaN as 1.

    >>> import yosegi as ys
    >>> ys.nanprod(ys.asarray([2.0, ys.nan])).tolist()
    2.0
    """
    return prod(_filled(x, 1), axis=axis, dtype=dtype, keepdims=keepdims)


@rules.on_tensor
def nancumsum(x: Tensor, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running sum along an axis (of the flattened tensor by default), with NaN as 0.

    >>> import yosegi as ys
    >>> ys.nancumsum(ys.asarray([1.0, ys.nan, 2.0])).tolist()
    [1.0, 1.0, 3.0]
    """
    x = _filled(x, 0)
    return cumsum(x, axis, dtype=dtype)


@rules.on_tensor
def nancumprod(x: Tensor, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running product along an axis (of the flattened tensor by default), with NaN as 1.

    >>> import yosegi as ys
    >>> ys.nancumprod(ys.asarray([2.0, ys.nan, 3.0])).tolist()
    [2.0, 2.0, 6.0]
    """
    x = _filled(x, 1)
    return cumprod(x, axis, dtype=dtype)


@rules.on_tensor
def nanmean(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """The mean over some axes (all by default) of the elements that are numbers.

    >>> import yosegi as ys
    >>> ys.nanmean(ys.asarray([1.0, ys.nan, 3.0])).tolist()
    2.0
    """
    x = floating(x)
    return divide(sum(_filled(x, 0), axis=axis, keepdims=keepdims), _count(x, axis, keepdims))


@rules.on_tensor
def nanvar(x: Tensor, /, axis: Axes | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance over some axes (all by default) of the elements that are numbers.

    - `correction`: squares are divided by the count less this.

    >>> import yosegi as ys
    >>> ys.nanvar(ys.asarray([1.0, ys.nan, 3.0])).tolist()
    1.0
    """
    x = floating(x)
    distance = where(isnan(x), 0, x - nanmean(x, axis=axis, keepdims=True))
    count = _count(x, axis, keepdims) - rules.plain_float(correction, "correction")
    total = sum(real(distance * conj(distance)), axis=axis, keepdims=keepdims)
    return where(count > 0, total / where(count > 0, count, 1), float("nan"))


@rules.on_tensor
def nanstd(x: Tensor, /, axis: Axes | None = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation over some axes (all by default) of the elements that are numbers.

    >>> import yosegi as ys
    >>> ys.nanstd(ys.asarray([1.0, ys.nan, 3.0])).tolist()
    1.0
    """
    return sqrt(nanvar(x, axis, correction=correction, keepdims=keepdims))


@rules.on_tensor
def nanmax(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """The largest number over some axes (all by default); NaN where there is none.

    >>> import yosegi as ys
    >>> ys.nanmax(ys.asarray([1.0, ys.nan])).tolist()
    1.0
    """
    made = max(_filled(x, -inf), axis=axis, keepdims=keepdims)
    return where(all(isnan(x), axis=axis, keepdims=keepdims), float("nan"), made) if x.dtype.is_inexact else made


@rules.on_tensor
def nanmin(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """The smallest number over some axes (all by default); NaN where there is none.

    >>> import yosegi as ys
    >>> ys.nanmin(ys.asarray([1.0, ys.nan])).tolist()
    1.0
    """
    made = min(_filled(x, inf), axis=axis, keepdims=keepdims)
    return where(all(isnan(x), axis=axis, keepdims=keepdims), float("nan"), made) if x.dtype.is_inexact else made


def _expect_numbers(x: Tensor, axis: int | None) -> None:
    """Raise if values that are there have nothing but NaN along the axis; elsewhere the index is 0."""
    buffer = x._node.buffer
    if buffer is not None and x.dtype.is_float and np.isnan(x.numpy()).all(axis=axis).any():
        raise ArgumentError("expected a number in every slice, got one of NaN alone")


@rules.on_tensor
def nanargmax(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The index of the first largest number, along an axis or of the flattened tensor.

    >>> import yosegi as ys
    >>> ys.nanargmax(ys.asarray([ys.nan, 1.0, 2.0])).tolist()
    2
    """
    _expect_numbers(x, axis)
    return argmax(_filled(x, -inf), axis=axis, keepdims=keepdims)


@rules.on_tensor
def nanargmin(x: Tensor, /, axis: int | None = None, *, keepdims: bool = False) -> Tensor:
    """The index of the first smallest number, along an axis or of the flattened tensor.

    >>> import yosegi as ys
    >>> ys.nanargmin(ys.asarray([ys.nan, 1.0, 2.0])).tolist()
    1
    """
    _expect_numbers(x, axis)
    return argmin(_filled(x, inf), axis=axis, keepdims=keepdims)


@rules.on_tensor
def nanquantile(
    x: Tensor, q: Any, /, axis: Axes | None = None, *, method: Method = "linear", keepdims: bool = False
) -> Tensor:
    """`quantile` of the elements that are numbers.

    >>> import yosegi as ys
    >>> ys.nanquantile(ys.asarray([1.0, ys.nan, 3.0]), 0.5).tolist()
    2.0
    """
    return quantiles_of(x, q, axis, method, keepdims, skip_nan=True, scale=1)


@rules.on_tensor
def nanpercentile(
    x: Tensor, q: Any, /, axis: Axes | None = None, *, method: Method = "linear", keepdims: bool = False
) -> Tensor:
    """`percentile` of the elements that are numbers.

    >>> import yosegi as ys
    >>> ys.nanpercentile(ys.asarray([1.0, ys.nan, 3.0]), 50).tolist()
    2.0
    """
    return quantiles_of(x, q, axis, method, keepdims, skip_nan=True, scale=100)


@rules.on_tensor
def nanmedian(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """`median` of the elements that are numbers.

    >>> import yosegi as ys
    >>> ys.nanmedian(ys.asarray([1.0, ys.nan, 3.0])).tolist()
    2.0
    """
    return quantiles_of(x, 0.5, axis, "midpoint", keepdims, skip_nan=True, scale=1)


__all__ = [
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile",
    "nanprod", "nanquantile", "nanstd", "nansum", "nanvar",
]  # fmt: skip
