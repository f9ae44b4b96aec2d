"""Normalisation: softmax, and the norms over features, groups and batches."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any

from .._tensor.composite import composite
from .._tensor.node import Spec
from .._tensor.op import Arr, OpKind
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, AxisError, ShapeError
from . import rules
from .elementwise import exp, log, reciprocal, sqrt, square
from .products import widened
from .reduce import max, mean, sum
from .shape import Axes, reshape

_composite = partial(composite, OpKind.NORMALISATION, promotes_from=0, inexact=True)

# Softmax


def _axis_form(x: Spec, *, axis: Any) -> dict[str, Any]:
    rules.expect(x.dtype, "a real floating dtype", lambda d: d.is_float)
    return {"axis": rules.normal_axis(axis, x.ndim)}


def _shifted(x: Tensor, axis: int) -> Tensor:
    """x less its largest element, so that no exponential overflows."""
    return x - max(x, axis=axis, keepdims=True) if x.shape[axis] else x


@_composite(normal=_axis_form, vjp=lambda g, out, x, *, axis: (out * (g - sum(g * out, axis=axis, keepdims=True)),))
def softmax(x: Arr, /, axis: int = -1) -> Arr:
    """e**x along an axis, divided by its sum.

    >>> import yosegi as ys
    >>> ys.nn.softmax(ys.asarray([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    powers = exp(_shifted(x, axis))
    return powers / sum(powers, axis=axis, keepdims=True)


@_composite(normal=_axis_form, vjp=lambda g, out, x, *, axis: (g - exp(out) * sum(g, axis=axis, keepdims=True),))
def log_softmax(x: Arr, /, axis: int = -1) -> Arr:
    """The logarithm of the softmax along an axis, exact where the softmax itself is too small for the dtype."""
    shifted = _shifted(x, axis)
    return shifted - log(sum(exp(shifted), axis=axis, keepdims=True))


# Norms


def _check_parameters(shape: tuple[int, ...], **parameters: Spec | None) -> None:
    for name, p in parameters.items():
        if p is not None and p.shape != shape:
            raise ShapeError(f"expected {name} of shape {shape}, as what it scales, got {p.shape}")


def _floats(x: Spec) -> None:
    rules.expect(x.dtype, "a real floating dtype", lambda d: d.is_float)


def _along(p: Tensor, axes: Iterable[int], x: Tensor) -> Tensor:
    """A parameter that belongs to some axes of `x`, shaped to broadcast against it."""
    kept = tuple(axes)
    if kept == tuple(range(x.ndim - len(kept), x.ndim)):
        return p
    return reshape(p, tuple(n if i in kept else 1 for i, n in enumerate(x.shape)))


def _scaled(x: Tensor, axes: Iterable[int], weight: Tensor | None, bias: Tensor | None) -> Tensor:
    axes = tuple(axes)
    x = x if weight is None else x * _along(weight, axes, x)
    return x if bias is None else x + _along(bias, axes, x)


def _standardised(x: Tensor, axes: tuple[int, ...], eps: float) -> Tensor:
    """x with mean 0 and variance 1 over some axes."""
    centred = x - mean(x, axis=axes, keepdims=True)
    return centred * reciprocal(sqrt(mean(square(centred), axis=axes, keepdims=True) + eps))


def _layer_form(x: Spec, weight: Spec | None, bias: Spec | None = None, *, axis: Any, eps: Any) -> dict[str, Any]:
    _floats(x)
    axes = tuple(sorted(rules.normal_axes(axis, x.ndim)))
    if not axes:
        raise AxisError("expected at least one axis to normalise over, got none")
    _check_parameters(tuple(x.shape[a] for a in axes), weight=weight, bias=bias)
    return {"axis": axes, "eps": rules.plain_float(eps, "eps")}


@_composite(normal=_layer_form)
def layer_norm(x: Arr, /, weight: Arr = None, bias: Arr = None, *, axis: Axes = -1, eps: float = 1e-5) -> Arr:
    """x with mean 0 and variance 1 over the last axis, or those named, then scaled by `weight` and moved by `bias`,
    which have the shape of these axes.

    >>> import yosegi as ys
    >>> [round(v, 3) for v in ys.nn.layer_norm(ys.asarray([1.0, 2.0, 3.0])).tolist()]
    [-1.225, 0.0, 1.225]
    """
    return _scaled(_standardised(x, axis, eps), axis, weight, bias)  # type: ignore[arg-type]  # normal form: a tuple


@_composite(normal=_layer_form)
def rms_norm(x: Arr, /, weight: Arr = None, *, axis: Axes = -1, eps: float = 1e-6) -> Arr:
    """x divided by the root of its mean square over the last axis, or those named, then scaled by `weight`."""
    root = sqrt(mean(square(x), axis=axis, keepdims=True) + eps)
    return _scaled(x * reciprocal(root), axis, weight, None)  # type: ignore[arg-type]


def _group_form(x: Spec, weight: Spec | None, bias: Spec | None, *, num_groups: Any, eps: Any) -> dict[str, Any]:
    _floats(x)
    if x.ndim < 2:
        raise ShapeError(f"expected x of shape (batch, channels, …), got {x.shape}")
    groups = rules.as_index(num_groups, "num_groups")
    if groups < 1 or x.shape[1] % groups:
        raise ArgumentError(f"expected num_groups that divides the {x.shape[1]} channels, got {groups}")
    _check_parameters(x.shape[1:2], weight=weight, bias=bias)
    return {"num_groups": groups, "eps": rules.plain_float(eps, "eps")}


@_composite(normal=_group_form)
def group_norm(x: Arr, /, num_groups: int, weight: Arr = None, bias: Arr = None, *, eps: float = 1e-5) -> Arr:
    """x, of shape (batch, channels, …), with mean 0 and variance 1 over each group of channels of each of the batch,
    then scaled by `weight` and moved by `bias`, one number a channel. With a group per channel: instance norm."""
    rows = reshape(x, (x.shape[0], num_groups, prod(x.shape[1:]) // num_groups))
    return _scaled(reshape(_standardised(rows, (2,), eps), x.shape), (1,), weight, bias)


def _batch_form(
    x: Spec, mean: Spec, var: Spec, weight: Spec | None, bias: Spec | None, *, axis: Any, eps: Any
) -> dict[str, Any]:
    _floats(x)
    axis = rules.normal_axis(axis, x.ndim)
    _check_parameters((x.shape[axis],), mean=mean, var=var, weight=weight, bias=bias)
    return {"axis": axis, "eps": rules.plain_float(eps, "eps")}


@_composite(normal=_batch_form)
def batch_norm(
    x: Arr, mean: Arr, var: Arr, /, weight: Arr = None, bias: Arr = None, *, axis: int = 1, eps: float = 1e-5
) -> Arr:
    """x less a given mean, divided by the root of a given variance, then scaled by `weight` and moved by `bias`: one
    number each a channel, and `axis` has the channels."""
    scale = reciprocal(sqrt(var + eps))
    return _scaled((x - _along(mean, (axis,), x)), (axis,), scale if weight is None else scale * weight, bias)


@rules.on_tensor
def batch_norm_train(
    x: Tensor, /, weight: Any = None, bias: Any = None, *, axis: int = 1, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """`batch_norm` by the mean and the variance of the batch itself, which are returned with it.

    The variance is that of the batch (divided by the count); 16-bit floats have both in float32. Running averages are
    the caller's: `running = (1 - rate) * running + rate * mean`.

    >>> import yosegi as ys
    >>> y, mean, var = ys.nn.batch_norm_train(ys.asarray([[1.0], [3.0]]))
    >>> mean.tolist(), var.tolist()
    ([2.0], [1.0])
    """
    channels = rules.normal_axis(axis, x.ndim)
    others = tuple(a for a in range(x.ndim) if a != channels)
    wide = widened(x)
    centre = mean(wide, axis=others)
    spread = mean(square(wide - _along(centre, (channels,), x)), axis=others)
    made = batch_norm(wide, centre, spread, weight, bias, axis=channels, eps=eps)
    return made.astype(x.dtype) if x.dtype.is_half else made, centre, spread


__all__ = [
    "batch_norm", "batch_norm_train", "group_norm", "layer_norm", "log_softmax", "rms_norm", "softmax",
]  # fmt: skip
