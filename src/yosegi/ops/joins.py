"""Tensors put together and taken apart along axes, by NumPy's names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import arange, asarray
from .index import gather
from .shape import broadcast_to, concat, expand_dims, moveaxis, reshape, tile

# At least so many dimensions


def _each(function: Any, tensors: tuple[Any, ...]) -> Any:
    """The function of one tensor, or a tuple of it for several."""
    made = tuple(function(asarray(t)) for t in tensors)
    return made[0] if len(made) == 1 else made


@rules.named
def atleast_1d(*tensors: Tensor) -> Any:
    """The tensor with at least one dimension; a tuple of them for several tensors.

    >>> import yosegi as ys
    >>> ys.atleast_1d(ys.asarray(3.0)).shape
    (1,)
    """
    return _each(lambda t: t if t.ndim else reshape(t, (1,)), tensors)


@rules.named
def atleast_2d(*tensors: Tensor) -> Any:
    """The tensor with at least two dimensions, new ones in front; a tuple of them for several tensors.

    >>> import yosegi as ys
    >>> ys.atleast_2d(ys.asarray([1.0, 2.0])).shape
    (1, 2)
    """
    return _each(lambda t: reshape(t, (1,) * (2 - t.ndim) + t.shape) if t.ndim < 2 else t, tensors)


@rules.named
def atleast_3d(*tensors: Tensor) -> Any:
    """The tensor with at least three dimensions, by NumPy's rule for where the new ones go; a tuple for several.

    >>> import yosegi as ys
    >>> ys.atleast_3d(ys.asarray([1.0, 2.0])).shape, ys.atleast_3d(ys.zeros((4, 5))).shape
    ((1, 2, 1), (4, 5, 1))
    """

    def deepened(t: Tensor) -> Tensor:
        if t.ndim >= 3:
            return t
        return reshape(t, {0: (1, 1, 1), 1: (1, *t.shape, 1), 2: (*t.shape, 1)}[t.ndim])

    return _each(deepened, tensors)


# Together


@rules.named
def vstack(tensors: Sequence[Tensor], /) -> Tensor:
    """Tensors one below the other, along the first axis; vectors are rows.

    >>> import yosegi as ys
    >>> ys.vstack([ys.asarray([1, 2]), ys.asarray([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    return concat([atleast_2d(t) for t in tensors], axis=0)


@rules.named
def hstack(tensors: Sequence[Tensor], /) -> Tensor:
    """Tensors side by side, along the second axis; vectors one behind the other.

    >>> import yosegi as ys
    >>> ys.hstack([ys.asarray([1, 2]), ys.asarray([3])]).tolist()
    [1, 2, 3]
    """
    parts = [atleast_1d(t) for t in tensors]
    return concat(parts, axis=0 if parts and parts[0].ndim == 1 else 1)


@rules.named
def dstack(tensors: Sequence[Tensor], /) -> Tensor:
    """Tensors one behind the other along the third axis.

    >>> import yosegi as ys
    >>> ys.dstack([ys.asarray([1, 2]), ys.asarray([3, 4])]).tolist()
    [[[1, 3], [2, 4]]]
    """
    return concat([atleast_3d(t) for t in tensors], axis=2)


@rules.named
def column_stack(tensors: Sequence[Tensor], /) -> Tensor:
    """Vectors as the columns of a matrix; matrices side by side.

    >>> import yosegi as ys
    >>> ys.column_stack([ys.asarray([1, 2]), ys.asarray([3, 4])]).tolist()
    [[1, 3], [2, 4]]
    """
    parts = [asarray(t) for t in tensors]
    return concat([reshape(t, (-1, 1)) if t.ndim < 2 else t for t in parts], axis=1)


@rules.named
def block(tensors: Any, /) -> Tensor:
    """A tensor of blocks given in nested lists: the innermost side by side, the next one below the other, and so on.

    >>> import yosegi as ys
    >>> one = ys.ones((1, 1))
    >>> ys.block([[one, one * 2], [one * 3, one * 4]]).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    depth = _depth(tensors)
    ndim = max(depth, max((asarray(t).ndim for t in _leaves(tensors)), default=0))

    def joined(part: Any, level: int) -> Tensor:
        if not isinstance(part, list):
            t = asarray(part)
            return reshape(t, (1,) * (ndim - t.ndim) + t.shape)
        return concat([joined(p, level + 1) for p in part], axis=ndim - depth + level)

    return joined(tensors, 0)


def _depth(part: Any) -> int:
    if not isinstance(part, list):
        return 0
    depths = {_depth(p) for p in part}
    if len(depths) != 1:
        raise ArgumentError(f"expected blocks in lists of one depth, none empty, got depths {sorted(depths)}")
    return 1 + depths.pop()


def _leaves(part: Any) -> list[Any]:
    return [leaf for p in part for leaf in _leaves(p)] if isinstance(part, list) else [part]


@rules.on_tensor
def append(x: Tensor, values: Tensor, /, axis: int | None = None) -> Tensor:
    """The tensor with values behind it along an axis; both flattened by default.

    >>> import yosegi as ys
    >>> ys.append(ys.asarray([1, 2]), ys.asarray([3])).tolist()
    [1, 2, 3]
    """
    return concat([x, asarray(values)], axis=axis)


# Apart


@rules.on_tensor
def array_split(x: Tensor, sections: int | Sequence[int], /, axis: int = 0) -> list[Tensor]:
    """The tensor in parts along an axis.

    - `sections`: how many parts, the first ones longer by one where they cannot be equal; or where the parts begin.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.array_split(ys.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    axis = rules.normal_axis(axis, x.ndim)
    length = x.shape[axis]
    if isinstance(sections, (Sequence, np.ndarray, Tensor)):
        given: Any = sections if isinstance(sections, Sequence) else sections.tolist()
        bounds = [0, *[rules.as_index(n, "a bound") for n in given], length]
    else:
        count = rules.as_index(sections, "sections")
        if count < 1:
            raise ArgumentError(f"expected at least one section, got {count}")
        each, longer = length // count, length % count
        bounds = [n * each + min(n, longer) for n in range(count + 1)]
    before = (slice(None),) * axis
    return [x[(*before, slice(start, stop))] for start, stop in pairwise(bounds)]


@rules.on_tensor
def split(x: Tensor, sections: int | Sequence[int], /, axis: int = 0) -> list[Tensor]:
    """The tensor in equal parts along an axis, or in parts that begin at given places.

    - `sections`: how many parts, which must divide the length; or where the parts begin.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.split(ys.arange(6), [1, 4])]
    [[0], [1, 2, 3], [4, 5]]
    """
    length = x.shape[rules.normal_axis(axis, x.ndim)]
    if isinstance(sections, int) and (sections < 1 or length % sections):
        raise ShapeError(f"expected sections that divide the length {length}, got {sections}; use array_split")
    return array_split(x, sections, axis)


@rules.on_tensor
def hsplit(x: Tensor, sections: int | Sequence[int], /) -> list[Tensor]:
    """`split` along the second axis, or the only one.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.hsplit(ys.asarray([[1, 2], [3, 4]]), 2)]
    [[[1], [3]], [[2], [4]]]
    """
    return split(x, sections, 0 if x.ndim == 1 else 1)


@rules.on_tensor
def vsplit(x: Tensor, sections: int | Sequence[int], /) -> list[Tensor]:
    """`split` of at least two dimensions along the first axis.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.vsplit(ys.asarray([[1, 2], [3, 4]]), 2)]
    [[[1, 2]], [[3, 4]]]
    """
    _expect_dimensions(x, 2)
    return split(x, sections, 0)


@rules.on_tensor
def dsplit(x: Tensor, sections: int | Sequence[int], /) -> list[Tensor]:
    """`split` of at least three dimensions along the third axis.

    >>> import yosegi as ys
    >>> [part.shape for part in ys.dsplit(ys.zeros((2, 3, 4)), 2)]
    [(2, 3, 2), (2, 3, 2)]
    """
    _expect_dimensions(x, 3)
    return split(x, sections, 2)


def _expect_dimensions(x: Tensor, least: int) -> None:
    if x.ndim < least:
        raise ShapeError(f"expected a tensor of at least {least} dimensions, got shape {x.shape}")


# Elements in and out


@rules.on_tensor
def delete(x: Tensor, places: Any, /, axis: int | None = None) -> Tensor:
    """The tensor without some slices along an axis (without some elements of the flattened tensor by default).

    - `places`: an index, a slice or several indices. They are needed at once: the shape depends on them.

    >>> import yosegi as ys
    >>> ys.delete(ys.arange(5), [0, 3]).tolist()
    [1, 2, 4]
    """
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = rules.normal_axis(axis, x.ndim)
    kept = np.delete(np.arange(x.shape[axis]), places if isinstance(places, slice) else np.asarray(places))
    return gather(x, asarray(kept), axes=(axis,), at=axis, of="delete")


@rules.on_tensor
def insert(x: Tensor, places: Any, values: Any, /, axis: int | None = None) -> Tensor:
    """The tensor with values before some slices along an axis (into the flattened tensor by default).

    - `places`: an index, a slice or several indices of `x`. They are needed at once: the shape depends on them.
    - `values`: broadcast to what is inserted, and cast to the dtype of `x`.

    >>> import yosegi as ys
    >>> ys.insert(ys.asarray([1, 2, 3]), 1, 9).tolist()
    [1, 9, 2, 3]
    """
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = rules.normal_axis(axis, x.ndim)
    length = x.shape[axis]
    at = places if isinstance(places, slice) else np.asarray(places)
    new = asarray(values).astype(x.dtype)
    lone = isinstance(at, np.ndarray) and at.ndim == 0
    if lone and new.ndim:  # one place takes as many slices as the values have
        new = moveaxis(new, 0, axis) if new.ndim == x.ndim else new
        count = new.shape[axis] if new.ndim == x.ndim else new.shape[0] if x.ndim == 1 else 1
        new = expand_dims(new, axis) if new.ndim == x.ndim - 1 else new
        at = np.full(count, at)
    marks = np.arange(length, dtype=np.float64)
    order = np.insert(marks, at, -1.0)
    fresh = order < 0
    shape = tuple(int(fresh.sum()) if i == axis else n for i, n in enumerate(x.shape))
    both = concat([x, broadcast_to(new, shape)], axis=axis)
    # Where each slice of the result stands in both: the old ones by number, the new ones behind them in their order.
    source = np.where(fresh, length + np.cumsum(fresh) - 1, order).astype(np.int64)
    if isinstance(at, np.ndarray) and at.ndim and at.size > 1:  # values are in the order of the places, not of the axis
        turns = np.argsort(np.where(at < 0, at + length, at), kind="stable")
        source[fresh] = length + turns
    return gather(both, asarray(source), axes=(axis,), at=axis, of="insert")


@rules.on_tensor
def resize(x: Tensor, shape: int | Sequence[int], /) -> Tensor:
    """The elements in a new shape, repeated from the beginning or cut off as it needs.

    >>> import yosegi as ys
    >>> ys.resize(ys.asarray([1, 2, 3]), (2, 2)).tolist()
    [[1, 2], [3, 1]]
    """
    lengths = rules.normal_shape(shape)
    size = 1
    for n in lengths:
        size *= n
    if not x.size:
        return broadcast_to(asarray(0, dtype=x.dtype), lengths)
    flat = reshape(x, (-1,))
    return reshape(tile(flat, (-(-size // x.size),))[:size], lengths)


@rules.named
def indices(lengths: Sequence[int], /, dtype: Any = None, sparse: bool = False) -> Any:
    """The index of each element of a tensor of these lengths along each dimension.

    - `sparse`: a tuple of tensors that broadcast to the grid, in place of one tensor of all.

    >>> import yosegi as ys
    >>> ys.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    shape = rules.normal_shape(lengths)
    parts = [
        reshape(arange(n, dtype=dtype or "int64"), (1,) * i + (n,) + (1,) * (len(shape) - i - 1))
        for i, n in enumerate(shape)
    ]
    if sparse:
        return tuple(parts)
    if not parts:
        return asarray(np.zeros((0,), np.int64), dtype=dtype)
    return concat([expand_dims(broadcast_to(p, shape), 0) for p in parts], axis=0)


__all__ = [
    "append", "array_split", "atleast_1d", "atleast_2d", "atleast_3d", "block", "column_stack", "delete", "dsplit",
    "dstack", "hsplit", "hstack", "indices", "insert", "resize", "split", "vsplit", "vstack",
]  # fmt: skip
