"""The key of `x[key]`, brought into a normal form.

NumPy's rules in two steps. First the window: ints, slices, `None` and `...` cut a strided view out of the tensor.
Then the selectors: index tensors and boolean masks pick elements along dimensions of that view. Ints take part in
NumPy's rule for where the picked dimensions stand in the result, though the window has dealt with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np

from .._tensor.dtype import bool_
from .._tensor.node import Node, Shape
from .._tensor.op import from_array
from .._tensor.tensor import Array, Tensor
from .._trace.tracing import is_tracing
from ..errors import DTypeError, IndexingError, ShapeError, UserError
from . import rules
from .creation import asarray
from .shape import reshape

Window: TypeAlias = tuple["int | tuple[int, int, int] | None", ...]
"""A basic key in normal form: for each dimension an index that drops it, or (start, length, step); None adds one."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key for tensors of one shape. `at` is where the dimensions picked by the selectors stand in the result."""

    window: Window
    selectors: tuple[tuple[int, Tensor], ...]
    at: int


def parse(key: Any, shape: Shape) -> Key:
    """The normal form of a key; raises on any that does not fit the shape."""
    items, missing, has_arrays = _items(key, shape)
    window: list[int | tuple[int, int, int] | None] = []
    selectors: list[tuple[int, Tensor]] = []
    used = width = at = groups = 0
    in_group = False
    for item in items:
        is_int = type(item) is int
        is_advanced = isinstance(item, Tensor) or (has_arrays and is_int)
        if is_advanced and not in_group:
            groups += 1
            at = width if groups == 1 else 0
        in_group = is_advanced
        if is_int:
            window.append(_static_index(item, shape[used]))
            used += 1
            continue
        if item is None:
            parts: list[Any] = [None]
        elif item is Ellipsis:
            parts = [(0, n, 1) for n in shape[used : used + missing]]
            used += missing
        elif isinstance(item, slice):
            parts = [_static_slice(item, shape[used])]
            used += 1
        else:
            over = shape[used : used + _consumes(item)]
            _check_mask(item, over)
            selectors.append((width, item if over else reshape(item, (1,))))
            parts = [(0, n, 1) for n in over] or [None]  # a 0-d mask selects along a dimension of its own
            used += len(over)
        window += parts
        width += len(parts)
    return Key(tuple(window), tuple(selectors), at)


def _items(key: Any, shape: Shape) -> tuple[list[Any], int, bool]:
    """The items with exactly one `...` among them, how many dimensions that stands for, and whether any is an array."""
    items = [k if type(k) is int else _item(k) for k in (key if isinstance(key, tuple) else (key,))]
    missing, ellipses, has_arrays = len(shape), 0, False
    for item in items:
        if item is Ellipsis:
            ellipses += 1
        elif isinstance(item, Tensor):
            missing -= _consumes(item)
            has_arrays = has_arrays or item.ndim > 0 or item.dtype is bool_
        elif item is not None:
            missing -= 1
    if missing < 0:
        count = len(shape) - missing
        raise IndexingError(f"expected at most {len(shape)} indices for shape {shape}, got {count}; drop some")
    if ellipses > 1:
        raise IndexingError(f"expected at most one ..., got {ellipses}; write : for single dimensions")
    if not ellipses:
        items.append(Ellipsis)
    return items, missing, has_arrays


def _consumes(selector: Tensor) -> int:
    """How many dimensions a selector stands for."""
    return selector.ndim if selector.dtype is bool_ else 1


def _item(item: Any) -> Any:
    """One item as None, Ellipsis, a slice, an int, or a tensor of integers or bools."""
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if not isinstance(item, Tensor):
        if not (isinstance(item, (bool, np.bool_)) or getattr(item, "ndim", 0) > 0):
            try:
                return rules.as_index(item, "an index")  # ints, and 0-d integer arrays
            except DTypeError:
                pass
        item = _as_tensor(item)
    if not (item.dtype.is_integer or item.dtype is bool_):
        raise IndexingError(f"expected an integer or bool index, got {item.dtype.name}; cast it with astype")
    return item


def _as_tensor(item: Any) -> Tensor:
    convertible = isinstance(item, (bool, list, range)) or hasattr(item, "__array__") or hasattr(item, "__dlpack__")
    if not convertible:
        raise IndexingError(
            f"expected ints, slices, ..., None, integer or bool tensors as indices, got {type(item).__name__}"
        )
    try:
        made = asarray(list(item) if isinstance(item, range) else item)
    except UserError as error:
        raise IndexingError(f"expected numbers as indices, got a {type(item).__name__}: {error}") from None
    return made if made.size or isinstance(item, np.ndarray) else made.astype("int64")  # [] selects nothing


def _static_index(i: int, length: int) -> int:
    if not -length <= i < length:
        raise _range_error(i, length)
    return i if i >= 0 else i + length


def _static_slice(s: slice, length: int) -> tuple[int, int, int]:
    try:
        places = range(length)[s]
    except (TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise IndexingError(f"expected ints and a step other than 0 in a slice, got {s}: {error}") from None
    if len(places) > 1:
        return places.start, len(places), places.step
    return (places.start, 1, 1) if places else (0, 0, 1)


def _check_mask(selector: Tensor, over: Shape) -> None:
    if selector.dtype is bool_ and any(n not in (length, 0) for n, length in zip(selector.shape, over, strict=True)):
        raise IndexingError(f"expected a mask of shape {over}, got {selector.shape}; a mask covers whole dimensions")


# Windows


def check_window(window: Window, shape: Shape) -> None:
    """Raise unless a window stays inside a tensor of this shape."""
    if sum(w is not None for w in window) != len(shape):
        raise IndexingError(f"expected a window over the {len(shape)} dimensions of {shape}, got {window}")
    for item, length in zip([w for w in window if w is not None], shape, strict=True):
        start, count, step = (item, 1, 1) if isinstance(item, int) else item
        last = start + (count - 1) * step if count else 0
        inside = 0 <= last < length and 0 <= start < length if count else start == 0
        if not inside or count < 0 or not 1 <= abs(step) <= max(length, 1):
            raise IndexingError(f"expected a window inside a dimension of length {length}, got {item}")


def is_whole(window: Window, shape: Shape) -> bool:
    """Whether the window is the whole tensor, as it is."""
    return len(window) == len(shape) and all(w == (0, n, 1) for w, n in zip(window, shape, strict=True))


@lru_cache(maxsize=4096)
def window_shape(window: Window) -> Shape:
    """The shape of a window's view."""
    return tuple(1 if w is None else w[1] for w in window if not isinstance(w, int))


@lru_cache(maxsize=4096)
def numpy_key(window: Window) -> tuple[Any, ...]:
    """The window as NumPy takes it; the result is a view, never a scalar."""
    return (*[_numpy_item(w) for w in window], ...)


def _numpy_item(item: int | tuple[int, int, int] | None) -> Any:
    if not isinstance(item, tuple):
        return item
    start, length, step = item
    stop = start + length * step
    return slice(start, None if stop < 0 else stop, step)


# Selectors


def resolve(key: Key) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """The selectors as index tensors, and the dimensions of the view that each indexes.

    A mask is evaluated here: how many elements it selects decides the shape.
    """
    shape = window_shape(key.window)
    indices: list[Tensor] = []
    axes: list[int] = []
    for dim, selector in key.selectors:
        if selector.dtype is bool_:
            indices += [from_array(places) for places in np.nonzero(selector.numpy())]
            axes += range(dim, dim + selector.ndim)
        else:
            check_range(selector, shape[dim])
            indices.append(selector)
            axes.append(dim)
    try:
        rules.broadcast_shapes(*[i.shape for i in indices])
    except ShapeError:
        shapes = " and ".join(str(i.shape) for i in indices)
        raise IndexingError(f"expected indices that broadcast together, got shapes {shapes}; reshape one") from None
    return tuple(indices), tuple(axes)


_KEEPS_VALUES: Final = frozenset({"reshape", "permute_dims", "broadcast_to", "flip", "rolled", "slice_view"})
_POSITIONS: Final = frozenset({"argsort", "argmax", "argmin"})


def check_range(index: Tensor, length: int) -> None:
    """Raise if an index is out of range. A value not computed yet is computed for it, except while tracing and over
    ranks, where the op's body checks, and where every possible value is in range."""
    node = index._node
    if index.layout is not None or (node.buffer is None and (is_tracing() or _is_bounded(node, length))):
        return
    found = first_outside(index.numpy(), length)
    if found is not None:
        raise _range_error(found, length)


def _is_bounded(node: Node, length: int) -> bool:
    """Whether the values are positions, found by a sort or a search, along a dimension that is not longer."""
    inputs = node.inputs
    while inputs and node.call.op.name in _KEEPS_VALUES:
        node = inputs[0]
        inputs = node.inputs
    if not inputs or node.call.op.name not in _POSITIONS:
        return False
    searched, axis = inputs[0].spec, node.call.attrs["axis"]
    return (searched.size if axis is None else searched.shape[axis]) <= length


def first_outside(index: Array, length: int) -> int | None:
    """The first value that is no index of a dimension of this length."""
    if index.size == 0 or (index.min() >= -length and index.max() < length):
        return None
    return int(index[(index < -length) | (index >= length)][0])


def as_places(index: Array) -> Array:
    """Indices as NumPy takes them, in row-major memory. One too large for that stays out of range."""
    if index.dtype == np.uint64:
        index = np.minimum(index, np.uint64(np.iinfo(np.intp).max))
    return np.asarray(index, np.intp, order="C")


def out_of_range(indices: Iterable[Array], lengths: Iterable[int], op_name: str) -> UserError:
    """The error for indices of which one is known to be out of range, with the name of an op."""
    for index, length in zip(indices, lengths, strict=True):
        found = first_outside(index, length)
        if found is not None:
            return _range_error(found, length).of(op_name)
    raise AssertionError("all indices are in range")


def _range_error(found: int, length: int) -> IndexingError:
    if length == 0:
        return IndexingError(f"expected no index into a dimension of length 0, got {found}")
    return IndexingError(
        f"expected indices from {-length} to {length - 1} for a dimension of length {length}, got {found}"
    )
