"""Stable orders of NumPy's arrays by its fast sorts, which are not stable.

NumPy sorts numbers by vector instructions, but not stably. A number of at most 32 bits becomes the upper half of a
64-bit key, and its place the lower half: equal numbers then have keys in the order of their places. Wider numbers are
sorted as they are, and once more by the stable sort if any two are equal.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from .._tensor.tensor import Array

_SHORT: Final = 16
"""The length up to which the stable sort is as fast."""
_NUMBERS: Final = "fiub"
"""The kinds of dtypes that NumPy knows itself."""


def ordered(x: Array, axis: int, descending: bool) -> Array:
    """The elements in order along an axis. Zeros of both signs keep their order."""
    if x.shape[axis] > _SHORT and x.dtype.kind in _NUMBERS:
        made = np.sort(x, axis=axis)
        if x.dtype.kind != "f" or _is_unique(made, axis):
            return np.flip(made, axis) if descending else made
    if descending:  # backwards and forwards again, so that equal elements keep their order
        return np.flip(np.sort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return np.sort(x, axis=axis, kind="stable")


def _is_unique(made: Array, axis: int) -> bool:
    """True if equal floats in order are the same bits: no NaN, and zeros of one sign."""
    if np.isnan(np.take(made, -1, axis)).any():
        return False
    signs = np.signbit(made[made == 0])
    return bool(signs.all()) or not signs.any()


def places_in_order(x: Array, axis: int, descending: bool) -> Array:
    """The indices along an axis that sort the elements, those of equal elements in ascending order."""
    length = x.shape[axis]
    if length <= _SHORT or x.dtype.kind not in _NUMBERS:
        return _stable_places(x, axis, descending)
    if x.dtype.itemsize <= 4 and length < 1 << 32:
        rows = np.moveaxis(x, axis, -1)
        keys = _keys(rows, descending)
        keys.sort(axis=-1)
        return np.moveaxis(keys & 0xFFFFFFFF, -1, axis)
    places = np.argsort(x, axis=axis)
    found = np.moveaxis(np.take_along_axis(x, places, axis), axis, -1)
    if not (found[..., :-1] < found[..., 1:]).all():
        return _stable_places(x, axis, descending)
    return np.flip(places, axis) if descending else places


def _stable_places(x: Array, axis: int, descending: bool) -> Array:
    if descending:
        return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    return np.argsort(x, axis=axis, kind="stable")


def _keys(x: Array, descending: bool) -> Array:
    """Numbers of at most 32 bits with their places along the last axis, as integers of the same order."""
    if x.dtype.kind == "f":
        single = np.where(np.isnan(x), np.float32(np.nan), x.astype(np.float32)) + np.float32(0)  # one NaN, one zero
        bits = single.view(np.int32)
        ranks = bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))  # negative floats in the order of their values
    else:
        ranks = x.astype(np.int64) - ((1 << 31) if x.dtype == np.uint32 else 0)
    wide: Array = ranks.astype(np.int64)
    return (~wide if descending else wide) * (1 << 32) + np.arange(x.shape[-1], dtype=np.int64)


def first_places(x: Array, k: int, axis: int, descending: bool) -> Array:
    """The first k indices of `places_in_order`."""
    rows = np.moveaxis(x, axis, -1)
    length = rows.shape[-1]
    if not x.size or not k or 4 * k > length or x.dtype.kind not in _NUMBERS:
        return np.take(places_in_order(x, axis, descending), np.arange(k), axis)
    kept = _candidates(np.ascontiguousarray(rows).reshape(-1, length), k, descending)
    if kept is None:
        return np.take(places_in_order(x, axis, descending), np.arange(k), axis)
    return np.moveaxis(kept.reshape(*rows.shape[:-1], k), -1, axis)


def _candidates(rows: Array, k: int, descending: bool) -> Array | None:
    """The first k places in each row, or `None` if NaN or many equal elements are among the first."""
    count, length = rows.shape
    at = length - k if descending else k - 1
    parted = np.partition(rows, at, axis=1)
    last = parted[:, at, None]
    if rows.dtype.kind == "f" and np.isnan(parted[:, at:] if descending else last).any():
        return None
    places = np.flatnonzero(rows >= last if descending else rows <= last)
    if len(places) > 2 * k * count:
        return None
    owner, columns = np.divmod(places, length)
    values = rows.reshape(-1)[places]
    order = np.lexsort((_descending(values) if descending else values, owner))
    starts = np.searchsorted(owner, np.arange(count))  # `lexsort` keeps each row where it is
    made: Array = columns[order][starts[:, None] + np.arange(k)]
    return made


def _descending(values: Array) -> Array:
    """Numbers in the reverse order, equal ones equal."""
    return -values if values.dtype.kind == "f" else ~values
