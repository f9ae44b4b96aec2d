"""Order and search: sorting, extremes, positions, sets.

NaN counts as larger than every number, as in NumPy: it comes last in ascending order and first in descending order.
What depends on the values in its shape (`nonzero`, `unique_*`) is evaluated at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from .._tensor.batch import Flags, aligned, along, applied
from .._tensor.dtype import bool_, int64
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, Normal, Op, OpKind, from_array, op
from .._tensor.role import Extremum
from .._tensor.tensor import Array, Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .elementwise import logical_not, not_equal
from .index import gather, take, take_along_axis
from .ordering import first_places, ordered, places_in_order
from .reduce import any, sum
from .shape import Axes, expand_dims, reshape

_op = partial(op, OpKind.ORDER)
Side = Literal["left", "right"]


def _expect_ordered(x: Spec) -> None:
    rules.expect(x.dtype, "a real dtype", lambda d: not d.is_complex)


# Sorting


def _sort_rule(x: Spec, *, axis: int, descending: bool, stable: bool) -> Normal:
    _expect_ordered(x)
    # Every sort here is stable: `stable` is no part of the structure.
    attrs = {"axis": rules.normal_axis(axis, x.ndim), "descending": bool(descending)}
    return Normal(spec(x.shape, x.dtype), attrs)


def _argsort_rule(x: Spec, *, axis: int, descending: bool, stable: bool) -> Normal:
    return Normal(spec(x.shape, int64), _sort_rule(x, axis=axis, descending=descending, stable=stable).attrs)


def _sort_vjp(g: Tensor, out: Tensor, x: Tensor, *, axis: int, descending: bool) -> tuple[Tensor]:
    order = argsort(x, axis=axis, descending=descending)
    return (take_along_axis(g, argsort(order, axis=axis), axis=axis),)


@_op(infer=_sort_rule, vjp=_sort_vjp, batch=along("axis"))
def sort(x: Arr, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Arr:
    """The elements in order along an axis. Equal elements keep their order, whatever `stable` says."""
    return ordered(x, axis, descending)


@_op(infer=_argsort_rule, batch=along("axis"))
def argsort(x: Arr, /, axis: int = -1, *, descending: bool = False, stable: bool = True) -> Arr:
    """The indices along an axis that sort the elements. Equal elements keep their order, whatever `stable` says."""
    return places_in_order(x, axis, descending)


def _argtopk_rule(x: Spec, *, k: int, axis: int, descending: bool) -> Normal:
    made = _argsort_rule(x, axis=axis, descending=descending, stable=True)
    dim, count = made.attrs["axis"], rules.as_index(k, "k")
    if not 0 <= count <= x.shape[dim]:
        raise ArgumentError(f"expected k from 0 to {x.shape[dim]}, got {count}")
    return Normal(spec((*x.shape[:dim], count, *x.shape[dim + 1 :]), int64), {**made.attrs, "k": count})


@_op(infer=_argtopk_rule, batch=along("axis"))
def argtopk(x: Arr, /, k: int, axis: int = -1, *, descending: bool = False) -> Arr:
    """The first k indices of `argsort`."""
    return first_places(x, k, axis, descending)


# Extremes


def _extreme_rule(x: Spec, *, axis: int | None, keepdims: bool) -> Normal:
    _expect_ordered(x)
    dim = None if axis is None else rules.normal_axis(axis, x.ndim)
    if (x.size if dim is None else x.shape[dim]) == 0:
        raise ShapeError(f"expected at least one element to search, got shape {x.shape}")
    shape = rules.reduced_shape(x.shape, range(x.ndim) if dim is None else (dim,), keepdims)
    return Normal(spec(shape, int64), {"axis": dim, "keepdims": bool(keepdims)})


@_op(infer=_extreme_rule, operator="argmax", role=Extremum(is_largest=True))
def argmax(x: Arr, /, axis: int | None = None, *, keepdims: bool = False) -> Arr:
    """The index of the first largest element, along an axis or of the flattened tensor. NaN is the largest."""
    return np.argmax(x, axis=axis, keepdims=keepdims)


@_op(infer=_extreme_rule, operator="argmin", role=Extremum(is_largest=False))
def argmin(x: Arr, /, axis: int | None = None, *, keepdims: bool = False) -> Arr:
    """The index of the first smallest element, along an axis or of the flattened tensor; that of a NaN, if any is."""
    return np.argmin(x, axis=axis, keepdims=keepdims)


# Searching


def _searchsorted_rule(x1: Spec, x2: Spec, *, side: str) -> Spec:
    _expect_ordered(x1)
    rules.one_of("side", side, ("left", "right"))
    if x1.ndim != 1:
        raise ShapeError(f"expected a 1-d tensor to search in, got shape {x1.shape}; search row by row")
    return spec(x2.shape, int64)


@_op(infer=_searchsorted_rule, promotes_from=0,
     batch=lambda op, batched, x1, x2, **attrs: None if batched[0] else applied(op, [x1, x2], attrs))  # fmt: skip
def searchsorted_(x1: Arr, x2: Arr, /, *, side: Side) -> Arr:
    """Where in the ascending `x1` the elements of `x2` belong."""
    return np.asarray(np.searchsorted(x1, x2, side=side))


@rules.on_tensor
def searchsorted(x1: Tensor, x2: Tensor | float, /, side: Side = "left", sorter: Tensor | None = None) -> Tensor:
    """Where in the ascending `x1` the elements of `x2` belong: before equal elements ("left") or behind ("right").

    `sorter` are the indices that bring `x1` into ascending order, if it is not.
    """
    if sorter is not None:
        sorter = rules.as_tensor(sorter)
        if sorter.shape != x1.shape:
            raise ShapeError(f"expected a sorter of shape {x1.shape}, got {sorter.shape}")
        x1 = take(x1, sorter, axis=0)
    return searchsorted_(x1, x2, side=side)


@rules.on_tensor
def count_nonzero(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """How many elements are not zero, over some axes (all by default)."""
    return sum((x if x.dtype is bool_ else not_equal(x, 0)).astype(int64), axis=axis, dtype=int64, keepdims=keepdims)


@rules.on_tensor
def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the elements that are not zero, one tensor per dimension, in row-major order."""
    if not x.ndim:
        raise ShapeError("expected a tensor of at least one dimension, got a 0-d tensor; reshape it to (1,)")
    return tuple(from_array(places) for places in np.nonzero(x.numpy()))


# Sets


def _isin_batch(op: Op[Any], batched: Flags, x1: Tensor, x2: Tensor, *, invert: bool) -> Any:
    if not batched[1]:
        return applied(op, [x1, x2], {"invert": invert})
    each = aligned(expand_dims(x1, axis=-1), batched[0], x1.ndim + 1 - batched[0])
    kept = (x2.shape[0], *[1] * (x1.ndim - batched[0]), x2.size // max(1, x2.shape[0]))
    found = any(each == reshape(x2, kept), axis=-1)
    return logical_not(found) if invert else found


@_op(infer=lambda x1, x2, *, invert: Normal(spec(x1.shape, bool_), {"invert": bool(invert)}), promotes_from=0,
     batch=_isin_batch)  # fmt: skip
def isin(x1: Arr, x2: Arr, /, *, invert: bool = False) -> Arr:
    """Element-wise: whether (or, with `invert`, whether not) the element of `x1` equals any element of `x2`."""
    return np.asarray(np.isin(x1, x2, invert=invert))


class UniqueAll(NamedTuple):
    """The unique elements, in ascending order, with all that `unique_all` tells about them."""

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCounts(NamedTuple):
    """The unique elements, in ascending order, and how often each occurs."""

    values: Tensor
    counts: Tensor


class UniqueInverse(NamedTuple):
    """The unique elements, in ascending order, and the indices that restore the tensor from them."""

    values: Tensor
    inverse_indices: Tensor


@rules.on_tensor
def unique_all(x: Tensor, /) -> UniqueAll:
    """The unique elements, the index of each one's first occurrence in the flattened tensor, the indices that restore
    the tensor, and how often each occurs. Every NaN is unique."""
    array: Any = x.numpy()
    if x.dtype.is_half:
        array = array.astype(np.float32)
    found: tuple[Array, ...] = np.unique(
        array.reshape(-1), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    indices, inverse, counts = (from_array(part) for part in found[1:])
    # The values are read from the tensor itself, so that gradients flow to it.
    values = gather(reshape(x, (-1,)), indices, axes=(0,), at=0)
    return UniqueAll(values, indices, reshape(inverse, x.shape), counts)


@rules.on_tensor
def unique_counts(x: Tensor, /) -> UniqueCounts:
    """The unique elements and how often each occurs. Every NaN is unique."""
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


@rules.on_tensor
def unique_inverse(x: Tensor, /) -> UniqueInverse:
    """The unique elements and the indices that restore the tensor from them. Every NaN is unique."""
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


@rules.on_tensor
def unique_values(x: Tensor, /) -> Tensor:
    """The unique elements, in ascending order. Every NaN is unique."""
    return unique_all(x).values
