"""Reading and writing parts of tensors, by NumPy's rules.

A key is a window followed by selectors (see `index_key`). Reading is `slice_view`, then `gather`. Writing is
`scatter` into the window's view, then `slice_set` of the view back into the tensor. `scatter_add` is the gradient of
`gather`. These five ops are each other's gradients, so that derivatives of any order exist.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from .._run.memory import HOST, Buffer
from .._tensor.batch import Flags, aligned, applied, size_of, spread
from .._tensor.dtype import DType, as_dtype, bool_, int64, number_type
from .._tensor.interchange import settled
from .._tensor.node import Node, Shape, Spec, kept_histories, spec
from .._tensor.op import Arr, Op, OpKind, leaf_call, number, op
from .._tensor.role import Cut, Indexing, Overwrite
from .._tensor.tensor import OPERATORS, Array, Tensor
from .._trace.tracing import is_tracing
from ..errors import ArgumentError, DTypeError, ShapeError
from . import rules
from .creation import arange, asarray, zeros
from .elementwise import add, logical_or, where
from .index_key import (
    Key,
    Window,
    as_places,
    check_range,
    check_window,
    is_whole,
    numpy_key,
    out_of_range,
    parse,
    resolve,
    window_shape,
)
from .shape import broadcast_to, expand_dims, moveaxis, reshape

_op = partial(op, OpKind.MOVEMENT)

_LONG_ROW: Final = 64
"""Elements from which a NumPy call for a row is faster than `np.add.at` is with it."""


# Windows


def _view_rule(x: Spec, *, key: Window) -> Spec:
    check_window(key, x.shape)
    return spec(window_shape(key), x.dtype)


def _set_rule(x: Spec, value: Spec, *, key: Window) -> Spec:
    check_window(key, x.shape)
    _check_value(x, value, window_shape(key))
    return spec(x.shape, x.dtype)


def _view_batch(op: Op[Any], batched: Flags, x: Tensor, /, *, key: Window) -> Any:
    return applied(op, [x], {"key": ((0, x.shape[0], 1), *key)})


def _set_batch(op: Op[Any], batched: Flags, x: Tensor, value: Tensor, /, *, key: Window) -> Any:
    size = size_of(batched, (x, value))
    fitting = aligned(value, batched[1], len(window_shape(key)))
    return applied(op, [spread(x, batched[0], size), fitting], {"key": ((0, size, 1), *key)})


@_op(infer=_view_rule, batch=_view_batch, role=Cut(), linear=((0,),),
     vjp=lambda g, out, x, *, key: (slice_set(zeros(x.shape, dtype=g.dtype), g, key=key),))  # fmt: skip
def slice_view(x: Arr, /, *, key: Window) -> Arr:
    """A window of the tensor: ints, slices and new dimensions, in the normal form of `index_key.Window`."""
    return x[numpy_key(key)]


@_op(infer=_set_rule, role=Overwrite(), batch=_set_batch,
     vjp=lambda g, out, x, value, *, key: (slice_set(g, _zero(g), key=key), slice_view(g, key=key)))  # fmt: skip
def slice_set(x: Arr, value: Arr, /, *, key: Window) -> Arr:
    """The tensor with a window of it replaced."""
    out = x.copy()
    out[numpy_key(key)] = value
    return out


# Selectors


def _region(x: Shape, indices: Shape, axes: tuple[int, ...], at: int) -> Shape:
    """The shape of what indices that broadcast to `indices` select along `axes`."""
    rest = tuple(n for i, n in enumerate(x) if i not in axes)
    return rest[:at] + indices + rest[at:]


def _gather_rule(x: Spec, *indices: Spec, axes: tuple[int, ...], at: int, of: str) -> Spec:
    for index in indices:
        rules.expect(index.dtype, "integer indices", lambda d: d.is_integer)
    if not indices or len(indices) != len(axes):
        raise ArgumentError(f"expected an index tensor for each axis, got {len(indices)} for axes {axes}")
    if rules.normal_axes(axes, x.ndim) != axes or not 0 <= at <= x.ndim - len(axes):
        raise ArgumentError(f"expected axes and a place within {x.ndim} dimensions, got axes {axes} and place {at}")
    return spec(_region(x.shape, rules.broadcast_shapes(*[i.shape for i in indices]), axes, at), x.dtype)


def _scatter_rule(x: Spec, value: Spec, *indices: Spec, axes: tuple[int, ...], at: int, of: str) -> Spec:
    _check_value(x, value, _gather_rule(x, *indices, axes=axes, at=at, of=of).shape)
    return spec(x.shape, x.dtype)


def _check_value(x: Spec, value: Spec, region: Shape) -> None:
    rules.expect(value.dtype, f"a value of dtype {x.dtype.name}", lambda d: d is x.dtype)
    if value.ndim > len(region) or rules.broadcast_shapes(value.shape, region) != region:
        raise ShapeError(f"expected a value that broadcasts to {region}, got shape {value.shape}")


def _gather_vjp(g: Tensor, out: Tensor, x: Tensor, *indices: Tensor, **places: Any) -> Any:
    into = zeros(x.shape, dtype=g.dtype)
    return (scatter_add(into, g, *indices, **places), *[None] * len(indices))


def _scatter_vjp(g: Tensor, out: Tensor, x: Tensor, value: Tensor, *indices: Tensor, **places: Any) -> Any:
    read = gather(g, *indices, **places)
    # Of several values for one place only the last is in the result. A scatter of numbers shows which it was.
    numbers = reshape(arange(read.size), read.shape)
    winners = scatter(zeros(x.shape, dtype=int64), numbers, *indices, **places)
    to_value = where(gather(winners, *indices, **places) == numbers, read, 0)
    return (scatter(g, _zero(g), *indices, **places), to_value, *[None] * len(indices))


def _scatter_add_vjp(g: Tensor, out: Tensor, x: Tensor, value: Tensor, *indices: Tensor, **places: Any) -> Any:
    return (g, gather(g, *indices, **places), *[None] * len(indices))


def _own_example(batched: Flags, indices: tuple[Tensor, ...]) -> list[Tensor]:
    """Index tensors with the examples in front, after one that takes each example to itself."""
    ndim = max(i.ndim - b for i, b in zip(indices, batched, strict=True))
    size = size_of(batched, indices)
    return [
        reshape(arange(size), (size, *[1] * ndim)),
        *[aligned(i, b, ndim) for i, b in zip(indices, batched, strict=True)],
    ]


def _gather_batch(op: Op[Any], batched: Flags, x: Tensor, /, *indices: Tensor, axes: Shape, at: int, of: str) -> Any:
    next_axes = tuple([a + 1 for a in axes])
    if not any(batched[1:]):
        return applied(op, [x, *indices], {"axes": next_axes, "at": at + 1, "of": of})
    own, *places = _own_example(batched[1:], indices)
    if batched[0]:
        made = applied(op, [x, own, *places], {"axes": (0, *next_axes), "at": at, "of": of})
    else:
        made = applied(op, [x, *places], {"axes": axes, "at": at, "of": of})
    return moveaxis(made, at, 0)  # type: ignore[arg-type]


def _scatter_batch(
    op: Op[Any], batched: Flags, x: Tensor, value: Tensor, /, *indices: Tensor, axes: Shape, at: int, of: str
) -> Any:
    x = spread(x, batched[0], size_of(batched, (x, value, *indices)))
    ndim = x.ndim - 1 - len(axes) + max(i.ndim - b for i, b in zip(indices, batched[2:], strict=True))
    value = aligned(value, batched[1], ndim)
    next_axes = tuple([a + 1 for a in axes])
    if not any(batched[2:]):
        return applied(op, [x, value, *indices], {"axes": next_axes, "at": at + 1, "of": of})
    if batched[1]:
        value = moveaxis(value, 0, at)
    elif value.ndim >= ndim - at:  # it has dimensions on both sides of the examples, or just behind them
        value = expand_dims(value, axis=value.ndim - (ndim - at))
    own = _own_example(batched[2:], indices)
    return applied(op, [x, value, *own], {"axes": (0, *next_axes), "at": at, "of": of})


@_op(infer=_gather_rule, vjp=_gather_vjp, role=Indexing.READ, batch=_gather_batch)
def gather(x: Arr, /, *indices: Arr, axes: tuple[int, ...], at: int, of: str = "getitem") -> Arr:
    """The elements at `indices` along `axes`. The dimensions of the indices, broadcast together, stand in the result
    at `at`, between the dimensions of `x` that are not indexed. An index out of range is reported as a mistake of the
    function `of`."""
    places = tuple([as_places(i) for i in indices])
    try:
        if axes == (at,):
            return np.asarray(np.take(x, places[0], axis=at))
        taken = np.asarray(_to_front(x, axes)[places])
    except IndexError:
        raise out_of_range(indices, [x.shape[a] for a in axes], of) from None
    count = taken.ndim - x.ndim + len(axes)
    return np.moveaxis(taken, range(count), range(at, at + count)) if at else taken


@_op(infer=_scatter_rule, vjp=_scatter_vjp, role=Indexing.WRITE, batch=_scatter_batch)
def scatter(x: Arr, value: Arr, /, *indices: Arr, axes: tuple[int, ...], at: int, of: str = "setitem") -> Arr:
    """`x` with the elements that `gather` would read replaced; of several values for one element, the last stays."""
    out = x.copy()
    _write(operator.setitem, out, value, indices, axes, at, of)
    return out


@op(OpKind.REDUCTION, infer=_scatter_rule, vjp=_scatter_add_vjp, role=Indexing.ADD, batch=_scatter_batch)
def scatter_add(x: Arr, value: Arr, /, *indices: Arr, axes: tuple[int, ...], at: int, of: str = "getitem") -> Arr:
    """`x` with values added to the elements that `gather` would read; several values for one element are all added."""
    out = x.copy()
    _write(_add, out, value, indices, axes, at, of)
    return out


def _add(out: Array, places: tuple[Array, ...], values: Array) -> None:
    """`np.add.at`, which goes element by element: long rows are added one by one instead, in the same order."""
    if len(places) > 1 or prod(out.shape[1:]) < _LONG_ROW:
        np.add.at(out, places, values)
        return
    for place, value in zip(places[0].ravel().tolist(), values.reshape(-1, *out.shape[1:]), strict=True):
        row = out[place]
        np.add(row, value, row)


def _write(
    write: Callable[..., Any],
    out: Array,
    value: Array,
    indices: tuple[Array, ...],
    axes: tuple[int, ...],
    at: int,
    of: str,
) -> None:
    # Indices in row-major memory make NumPy write in row-major order.
    places = tuple([as_places(i) for i in np.broadcast_arrays(*indices)])
    count = places[0].ndim
    values = np.broadcast_to(value, _region(out.shape, places[0].shape, axes, at))
    try:
        write(_to_front(out, axes), places, np.moveaxis(values, range(at, at + count), range(count)))
    except IndexError:
        raise out_of_range(indices, [out.shape[a] for a in axes], of) from None


def _to_front(x: Array, axes: tuple[int, ...]) -> Array:
    return x if axes == tuple(range(len(axes))) else np.moveaxis(x, axes, range(len(axes)))


def _zero(like: Tensor) -> Tensor:
    return number(0, like.dtype)


# x[key] and x[key] = value


@rules.on_tensor
def getitem(x: Tensor, key: Any, /) -> Tensor:
    """`x[key]` by NumPy's rules. A boolean mask is evaluated at once, for the shape of the result depends on it."""
    at_once = _host_view(x, key)
    if at_once is not None:
        return at_once
    normal = parse(key, x.shape)
    view = _view(x, normal)
    if not normal.selectors:
        return view
    indices, axes = resolve(normal)
    return gather(view, *indices, axes=axes, at=normal.at)


_BASIC: Final = frozenset({int, slice, type(None), type(...)})


def _host_view(x: Tensor, key: Any) -> Tensor | None:
    """A window of a value that is there, taken at once: it costs nothing, where a plan for each window would.

    `None` where the value is not there, or the way to it matters, or the key is of another kind or does not fit.
    """
    buffer = x._node.buffer
    if (
        buffer is None
        or buffer.space is not HOST
        or kept_histories() is not None
        or is_tracing()
        or x.layout is not None
    ):
        return None
    if type(key) not in _BASIC and not (type(key) is tuple and _BASIC.issuperset(map(type, key))):
        return None
    try:
        array = settled(np.asarray(buffer.data[key]))
        return Tensor(Node(leaf_call(spec(array.shape, x._node.spec.dtype)), (), Buffer(array)))
    except (IndexError, TypeError, ValueError):
        return None


@rules.on_tensor
def setitem(x: Tensor, key: Any, value: Any, /) -> Tensor:
    """The tensor that `x` is after `x[key] = value`: of the same dtype, with the value broadcast."""
    return _updated(x, key, as_value(value, x.dtype), None)


def add_at(x: Tensor, key: Any, value: Tensor, /) -> Tensor:
    """`x` with a value added to `x[key]`, broadcast to it. Several values for one element are all added."""
    return _updated(x, key, value, logical_or if x.dtype is bool_ else add)


def _updated(x: Tensor, key: Any, value: Tensor, combine: Callable[[Tensor, Tensor], Tensor] | None) -> Tensor:
    """The tensor with a value at `x[key]`, or with the sum of the present elements and the value."""
    normal = parse(key, x.shape)
    view = _view(x, normal)
    if not normal.selectors:
        value = _fitted(value, window_shape(normal.window))
        return _replace(x, normal, combine(view, value) if combine else value)
    made = _where_masked(view, normal, value, combine)
    if made is None:
        indices, axes = resolve(normal)
        region = _region(view.shape, rules.broadcast_shapes(*[i.shape for i in indices]), axes, normal.at)
        write = scatter_add if combine else scatter
        of = "at" if combine else "setitem"
        made = write(view, _fitted(value, region), *indices, axes=axes, at=normal.at, of=of)
    return _replace(x, normal, made)


OPERATORS["getitem"] = getitem
OPERATORS["setitem"] = setitem


def _view(x: Tensor, key: Key) -> Tensor:
    return Tensor(x._node) if is_whole(key.window, x.shape) else slice_view(x, key=key.window)


def _replace(x: Tensor, key: Key, value: Tensor) -> Tensor:
    value = _fitted(value, window_shape(key.window))
    if is_whole(key.window, x.shape):
        is_same = value.shape == x.shape and not value._node.spec.weak
        return Tensor(value._node) if is_same else broadcast_to(value, x.shape)
    return slice_set(x, value, key=key.window)


def _where_masked(
    view: Tensor, key: Key, value: Tensor, combine: Callable[[Tensor, Tensor], Tensor] | None
) -> Tensor | None:
    """An update by one mask as a selection, which needs no positions. `None` if the value has an element for each."""
    dim, mask = key.selectors[0]
    rest = view.ndim - dim - mask.ndim
    covers = mask.dtype is bool_ and mask.shape == view.shape[dim : view.ndim - rest]
    if len(key.selectors) > 1 or not covers or (value.ndim and (value.ndim > rest or key.at != dim)):
        return None
    value = _fitted(value, view.shape[view.ndim - rest :])
    return where(reshape(mask, mask.shape + (1,) * rest), combine(view, value) if combine else value, view)


def _fitted(value: Tensor, region: Shape) -> Tensor:
    """The value without superfluous dimensions in front, if it broadcasts to the region."""
    extra = max(0, value.ndim - len(region))
    shape = value.shape[extra:]
    if value.shape[:extra] != (1,) * extra or any(
        n not in (1, length) for n, length in zip(shape[::-1], region[::-1], strict=False)
    ):
        raise ShapeError(f"expected a value that broadcasts to {region}, got shape {value.shape}; reshape it")
    return reshape(value, shape) if extra else value


_LEVEL: Final = {"bool": 0, "signed integer": 1, "unsigned integer": 1, "real floating": 2, "complex floating": 3}


def as_value(value: Any, dtype: DType) -> Tensor:
    """The written values, in the tensor's dtype. It must be of the same kind or a lower one."""
    python = number_type(value)
    given = value if python is not None else asarray(value)
    own = as_dtype(python) if python is not None else given.dtype
    if _LEVEL[own.kind] > _LEVEL[dtype.kind]:
        raise DTypeError(
            f"expected a value that a tensor of {dtype.name} can hold, got {own.name}; cast it with astype"
        )
    if python is not None:
        return number(value, dtype)
    return asarray(value, dtype) if isinstance(value, (list, tuple)) else given.astype(dtype)


# Functions


@rules.on_tensor
def take(x: Tensor, indices: Tensor, /, axis: int | None = None) -> Tensor:
    """The elements at `indices` along an axis (of the flattened tensor by default)."""
    indices = _as_indices(indices)
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    dim = rules.normal_axis(axis, x.ndim)
    check_range(indices, x.shape[dim])
    return gather(x, indices, axes=(dim,), at=dim, of="take")


@rules.on_tensor
def take_along_axis(x: Tensor, indices: Tensor, /, axis: int = -1) -> Tensor:
    """For each place in `indices`, the element of `x` at that place, but with the index found there along `axis`.

    The other dimensions of `x` and `indices` broadcast.
    """
    indices = _as_indices(indices)
    if x.ndim != indices.ndim:
        raise ShapeError(f"expected as many dimensions as {x.shape} has, got shape {indices.shape}")
    dim = rules.normal_axis(axis, x.ndim)
    check_range(indices, x.shape[dim])
    places = [indices if i == dim else _own_places(n, x.ndim - i) for i, n in enumerate(x.shape)]
    return gather(x, *places, axes=tuple(range(x.ndim)), at=0, of="take_along_axis")


def _own_places(length: int, trailing: int) -> Tensor:
    """The positions along a dimension, shaped to stand at it; a dimension of length 1 broadcasts."""
    return number(0, int64) if length == 1 else reshape(arange(length), (length,) + (1,) * (trailing - 1))


def _as_indices(indices: Any) -> Tensor:
    made = asarray(indices)
    rules.expect(made.dtype, "integer indices", lambda d: d.is_integer)
    return made
