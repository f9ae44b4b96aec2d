"""Ops that move elements and compute nothing. On the host most are views: the same memory, other strides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from .._tensor.batch import along, stacked
from .._tensor.node import Shape, Spec, spec
from .._tensor.op import Arr, Normal, OpKind, op
from .._tensor.role import Triangle, View
from .._tensor.tensor import OPERATORS, Tensor
from ..errors import ArgumentError, DTypeError, ShapeError
from . import rules

_op = partial(op, OpKind.MOVEMENT)
Axes = int | tuple[int, ...]


def _reshape_rule(x: Spec, *, shape: Any, copy: bool | None) -> Normal:
    wanted = [rules.as_index(n, "a length") for n in (shape if isinstance(shape, tuple) else (shape,))]
    known = prod(n for n in wanted if n != -1)
    if wanted.count(-1) == 1 and known and x.size % known == 0:
        wanted[wanted.index(-1)] = x.size // known
    if any(n < 0 for n in wanted) or prod(wanted) != x.size:
        raise ShapeError(f"expected a shape of {x.size} elements, got {shape} for a tensor of shape {x.shape}")
    return Normal(spec(tuple(wanted), x.dtype), {"shape": tuple(wanted)})


@_op(infer=_reshape_rule, vjp=lambda g, out, x, *, shape: (reshape(g, x.shape),), role=View.RESHAPED)
def reshape(x: Arr, /, shape: Any, *, copy: bool | None = None) -> Arr:
    """The elements, in row-major order, in another shape; one length may be -1. `copy` changes nothing here:
    tensors are values."""
    return np.reshape(x, shape)


OPERATORS["reshape"] = reshape


def _permute_rule(x: Spec, *, axes: Any) -> Normal:
    order = () if axes is None else rules.normal_axes(axes, x.ndim)
    if axes is None or len(order) != x.ndim:
        raise ShapeError(f"expected axes to name each of the {x.ndim} dimensions once, got {axes}")
    return Normal(spec(tuple(x.shape[a] for a in order), x.dtype), {"axes": order})


@_op(infer=_permute_rule, vjp=lambda g, out, x, *, axes: (permute_dims(g, tuple(np.argsort(axes).tolist())),),
     role=View.PERMUTED)  # fmt: skip
def permute_dims(x: Arr, /, axes: tuple[int, ...]) -> Arr:
    """The dimensions in another order."""
    return np.transpose(x, axes)


def _broadcast_rule(x: Spec, *, shape: Any) -> Normal:
    wanted = rules.normal_shape(shape)
    if rules.broadcast_shapes(x.shape, wanted) != wanted:
        raise ShapeError(f"expected a shape that {x.shape} broadcasts to, got {wanted}")
    return Normal(spec(wanted, x.dtype), {"shape": wanted})


@_op(infer=_broadcast_rule, vjp=lambda g, out, x, *, shape: (g,), scalar=lambda k, x, *, shape: x,
     role=View.BROADCAST)  # fmt: skip
def broadcast_to(x: Arr, /, shape: Any) -> Arr:
    """The tensor repeated along new dimensions and those of length 1, without copies."""
    return np.broadcast_to(x, shape)


OPERATORS["broadcast_to"] = broadcast_to


def _flip_rule(x: Spec, *, axis: Any) -> Normal:
    return Normal(x, {"axis": rules.normal_axes(axis, x.ndim)})


@_op(infer=_flip_rule, vjp=lambda g, out, x, *, axis: (flip(g, axis=axis),), batch=along("axis"))
def flip(x: Arr, /, axis: Axes | None = None) -> Arr:
    """The elements in reverse order along some axes (all by default)."""
    return np.flip(x, axis)


def _concat_rule(*arrays: Spec, axis: int) -> Normal:
    if not arrays:
        raise ArgumentError("expected at least one tensor, got none")
    first = arrays[0]
    if first.ndim == 0:
        raise ShapeError("expected tensors of at least one dimension, got a 0-d tensor; use stack, or axis=None")
    axis = rules.normal_axis(axis, first.ndim)
    for other in arrays[1:]:
        if other.ndim != first.ndim or any(
            a != b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if i != axis
        ):
            raise ShapeError(f"expected shapes equal but for dimension {axis}, got {first.shape} and {other.shape}")
    shape = list(first.shape)
    shape[axis] = sum(s.shape[axis] for s in arrays)
    return Normal(spec(tuple(shape), first.dtype), {"axis": axis})


def _concat_vjp(g: Tensor, out: Tensor, *arrays: Tensor, axis: int) -> tuple[Tensor, ...]:
    ends = np.cumsum([a.shape[axis] for a in arrays]).tolist()
    before = (slice(None),) * axis
    return tuple(g[(*before, slice(end - a.shape[axis], end))] for a, end in zip(arrays, ends, strict=True))


@_op(infer=_concat_rule, vjp=_concat_vjp, promotes_from=0, batch=along("axis"))
def concatenate(*arrays: Arr, axis: int) -> Arr:
    """Tensors one after another along an axis."""
    return np.concatenate(arrays, axis)


@rules.named
def concat(arrays: Sequence[Tensor], /, axis: int | None = 0) -> Tensor:
    """Tensors one after another along an existing axis; `axis=None` flattens them first."""
    tensors = rules.as_tensors(arrays)
    if axis is None:
        return concatenate(*[reshape(t, (-1,)) for t in tensors], axis=0)
    return concatenate(*tensors, axis=axis)


@rules.named
def stack(arrays: Sequence[Tensor], /, axis: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    tensors = rules.as_tensors(arrays)
    shapes = {t.shape for t in tensors}
    if len(shapes) != 1:
        raise ShapeError(f"expected tensors of one shape, got {sorted(shapes) if shapes else 'none'}")
    return concatenate(*[expand_dims(t, axis) for t in tensors], axis=axis)


@rules.on_tensor
def unstack(x: Tensor, /, axis: int = 0) -> tuple[Tensor, ...]:
    """The slices along an axis, which disappears."""
    if not x.ndim:
        raise ShapeError("expected a tensor of at least one dimension, got a 0-d tensor")
    axis = rules.normal_axis(axis, x.ndim)
    return tuple(x[(slice(None),) * axis + (i,)] for i in range(x.shape[axis]))


def _roll_rule(x: Spec, *, shift: Any, axis: Any) -> Normal:
    shifts = tuple(rules.as_index(s, "a shift") for s in (shift if isinstance(shift, tuple) else (shift,)))
    axes = tuple(rules.normal_axis(a, x.ndim) for a in (axis if isinstance(axis, tuple) else (axis,)))
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ArgumentError(f"expected as many shifts as axes, got {shift} and {axis}")
    return Normal(
        x,
        {
            "shift": shifts if len(shifts) > 1 else shifts * len(axes),
            "axis": axes * (len(shifts) if len(axes) == 1 else 1),
        },
    )


@_op(infer=_roll_rule, batch=along("axis"),
     vjp=lambda g, out, x, *, shift, axis: (rolled(g, shift=tuple(-s for s in shift), axis=axis),))  # fmt: skip
def rolled(x: Arr, /, *, shift: Any, axis: Any) -> Arr:
    """Elements moved along axes; those pushed out at the end come in at the front."""
    return np.roll(x, shift, axis)


@rules.on_tensor
def roll(x: Tensor, /, shift: Axes, axis: Axes | None = None) -> Tensor:
    """Elements moved along axes (of the flattened tensor by default), coming in again at the other end."""
    if axis is None:
        return reshape(rolled(reshape(x, (-1,)), shift=shift, axis=0), x.shape)
    return rolled(x, shift=shift, axis=axis)


@rules.on_tensor
def expand_dims(x: Tensor, /, axis: Axes = 0) -> Tensor:
    """New dimensions of length 1, at the places they have in the result."""
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    new = set(rules.normal_axes(tuple(axes), x.ndim + len(axes)))
    old = iter(x.shape)
    return reshape(x, tuple(1 if i in new else next(old) for i in range(x.ndim + len(axes))))


@rules.on_tensor
def squeeze(x: Tensor, /, axis: Axes | None = None) -> Tensor:
    """Without the given dimensions, which must have length 1; by default without all dimensions of length 1."""
    gone = rules.normal_axes(tuple(i for i, n in enumerate(x.shape) if n == 1) if axis is None else axis, x.ndim)
    for a in gone:
        if x.shape[a] != 1:
            raise ShapeError(f"expected dimension {a} to have length 1, got {x.shape[a]} (shape {x.shape})")
    return reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in gone))


@rules.on_tensor
def moveaxis(x: Tensor, source: Axes, destination: Axes, /) -> Tensor:
    """Some dimensions at other places, the rest in their order."""
    sources, targets = rules.normal_axes(source, x.ndim), rules.normal_axes(destination, x.ndim)
    if len(sources) != len(targets):
        raise ArgumentError(f"expected as many sources as destinations, got {source} and {destination}")
    order = [a for a in range(x.ndim) if a not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return permute_dims(x, tuple(order))


@rules.on_tensor
def tile(x: Tensor, repetitions: tuple[int, ...], /) -> Tensor:
    """The tensor repeated as a whole along each dimension."""
    counts = rules.normal_shape(repetitions)
    ndim = max(x.ndim, len(counts))
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - x.ndim) + x.shape
    blocks = [(1, 1)]  # how often, and how long; dimensions that are not repeated belong to the one before
    for count, length in zip(counts, shape, strict=True):
        if count == 1:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] * length)
        else:
            blocks.append((count, length))
    spread = reshape(x, tuple(m for c, n in blocks for m in ((1, n) if n > 1 else (n,))))
    wide = broadcast_to(spread, tuple(m for c, n in blocks for m in ((c, n) if n > 1 else (c * n,))))
    return reshape(wide, tuple(c * n for c, n in zip(counts, shape, strict=True)))


@rules.on_tensor
def repeat(x: Tensor, repeats: int | Sequence[int] | Tensor, /, axis: int | None = None) -> Tensor:
    """Each element repeated along an axis (of the flattened tensor by default).

    Repeats given as a tensor are needed at once: the shape of the result depends on them.
    """
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = rules.normal_axis(axis, x.ndim)
    if not isinstance(repeats, int):
        given = rules.as_tensor(np.asarray(repeats) if isinstance(repeats, (list, tuple)) else repeats)
        if not given.dtype.is_integer:
            raise DTypeError(f"expected integer repeats, got {given.dtype.name}; cast them with astype")
        counts = given.numpy()
        if counts.ndim > 1 or counts.size not in (1, x.shape[axis]):
            raise ShapeError(f"expected 1 or {x.shape[axis]} repeats, got shape {given.shape}")
        if counts.size != 1:
            _expect_counts(counts.min(initial=0))
            places = np.repeat(np.arange(x.shape[axis]), counts.astype(np.int64))
            return x[(slice(None),) * axis + (places,)]
        repeats = int(counts.reshape(()))
    _expect_counts(repeats)
    before, length, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    spread = reshape(x, (prod(before), length, 1, prod(behind)))
    wide = broadcast_to(spread, (prod(before), length, repeats, prod(behind)))
    return reshape(wide, (*before, length * repeats, *behind))


def _expect_counts(least: int) -> None:
    if least < 0:
        raise ArgumentError(f"expected repeats of at least 0, got {least}")


@rules.named
def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all of these broadcast to."""
    return rules.broadcast_shapes(*map(rules.normal_shape, shapes))


@rules.named
def broadcast_arrays(*arrays: Tensor) -> tuple[Tensor, ...]:
    """The tensors, all broadcast to their common shape."""
    tensors = [rules.as_tensor(a) for a in arrays]
    shape = rules.broadcast_shapes(*[t.shape for t in tensors])
    return tuple(broadcast_to(t, shape) for t in tensors)


def _triangle_rule(x: Spec, *, k: Any) -> Normal:
    if x.ndim < 2:
        raise ShapeError(f"expected a matrix or a stack of them, got shape {x.shape}")
    diagonal = rules.as_index(k, "k")
    if not -(2**63) <= diagonal < 2**63:
        raise ArgumentError(f"expected k of at most 64 bits, got {diagonal}")
    return Normal(x, {"k": diagonal})


@_op(infer=_triangle_rule, vjp=lambda g, out, x, *, k: (tril(g, k=k),), role=Triangle(is_lower=True), batch=stacked)
def tril(x: Arr, /, k: int = 0) -> Arr:
    """The matrices with zeros above the k-th diagonal."""
    return np.tril(x, k)


@_op(infer=_triangle_rule, vjp=lambda g, out, x, *, k: (triu(g, k=k),), role=Triangle(is_lower=False), batch=stacked)
def triu(x: Arr, /, k: int = 0) -> Arr:
    """The matrices with zeros below the k-th diagonal."""
    return np.triu(x, k)
