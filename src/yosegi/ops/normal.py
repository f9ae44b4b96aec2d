"""Normalisation: softmax, and the norms over features, groups and batches."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import prod
from typing import Any

from .._tensor.batch import along, along_first
from .._tensor.composite import composite
from .._tensor.node import Spec
from .._tensor.op import Arr, OpKind
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, AxisError, ShapeError
from . import rules
from .elementwise import exp, isfinite, log, reciprocal, sqrt, square, where
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


@_composite(normal=_axis_form, batch=along("axis"),
            vjp=lambda g, out, x, *, axis: (out * (g - sum(g * out, axis=axis, keepdims=True)),))  # fmt: skip
def softmax(x: Arr, /, axis: int = -1) -> Arr:
    """Compute exp(x) / sum(exp(x)) along an axis.

    Parameters
    ----------
    x : Tensor
        The input.
    axis : int
        The axis.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.softmax(ys.asarray([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    powers = exp(_shifted(x, axis))
    return powers / sum(powers, axis=axis, keepdims=True)


@_composite(normal=_axis_form, batch=along("axis"),
            vjp=lambda g, out, x, *, axis: (g - exp(out) * sum(g, axis=axis, keepdims=True),))  # fmt: skip
def log_softmax(x: Arr, /, axis: int = -1) -> Arr:
    """Compute the logarithm of the softmax along an axis.

    It is exact where the softmax itself is too small for the dtype.

    Parameters
    ----------
    x : Tensor
        The input.
    axis : int
        The axis.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 4) for v in ys.nn.log_softmax(ys.asarray([0.0, 0.0])).tolist()]
    [-0.6931, -0.6931]
    """
    shifted = _shifted(x, axis)
    return shifted - log(sum(exp(shifted), axis=axis, keepdims=True))


@rules.on_tensor
def logsumexp(x: Tensor, /, axis: Axes | None = None, *, keepdims: bool = False) -> Tensor:
    """The logarithm of the sum of e**x over some axes, without overflow.

    Parameters
    ----------
    x
        A real tensor.
    axis
        The axes to sum over, all by default.
    keepdims
        Whether the summed axes stay, with length 1.

    Returns
    -------
    Tensor
        The logarithms of the sums.

    Examples
    --------
    >>> import yosegi as ys
    >>> round(float(ys.nn.logsumexp(ys.asarray([1000.0, 1000.0]))), 6)
    1000.693147
    """
    x = x if x.dtype.is_inexact else x.astype(exp(x).dtype)
    rules.expect(x.dtype, "a real floating dtype", lambda d: d.is_float)
    top = max(x, axis=axis, keepdims=True)
    top = where(isfinite(top), top, 0)  # an infinity less itself is no number
    total = log(sum(exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else reshape(total, rules.reduced_shape(x.shape, rules.normal_axes(axis, x.ndim), False))


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


@_composite(normal=_layer_form, batch=along_first("axis"))
def layer_norm(x: Arr, /, weight: Arr = None, bias: Arr = None, *, axis: Axes = -1, eps: float = 1e-5) -> Arr:
    """Normalise to mean 0 and variance 1 over some axes, then scale and shift.

    Parameters
    ----------
    x : Tensor
        The input.
    weight : Tensor, optional
        Multiplies the normalised values, of the shape of these axes.
    bias : Tensor, optional
        Added last, of the shape of these axes.
    axis : int or tuple of int
        The axes to normalise over.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 3) for v in ys.nn.layer_norm(ys.asarray([1.0, 2.0, 3.0])).tolist()]
    [-1.225, 0.0, 1.225]
    """
    return _scaled(_standardised(x, axis, eps), axis, weight, bias)  # type: ignore[arg-type]  # normal form: a tuple


@_composite(normal=_layer_form, batch=along_first("axis"))
def rms_norm(x: Arr, /, weight: Arr = None, *, axis: Axes = -1, eps: float = 1e-6) -> Arr:
    """Divide by the root of the mean square over some axes, then scale.

    Parameters
    ----------
    x : Tensor
        The input.
    weight : Tensor, optional
        Multiplies the normalised values, of the shape of these axes.
    axis : int or tuple of int
        The axes to normalise over.
    eps : float
        Added to the mean square.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 3) for v in ys.nn.rms_norm(ys.asarray([3.0, 4.0])).tolist()]
    [0.849, 1.131]
    """
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
    """Normalise to mean 0 and variance 1 over each group of channels of each sample, then scale and shift.

    Parameters
    ----------
    x : Tensor
        The input, of shape (batch, channels, …).
    num_groups : int
        The number of groups; it divides the channels. With one group per channel this is instance norm.
    weight : Tensor, optional
        Multiplies the normalised values, one number per channel.
    bias : Tensor, optional
        Added last, one number per channel.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> [round(v, 3) for v in ys.nn.group_norm(ys.asarray([[1.0, 3.0, 5.0, 5.0]]), 2)[0].tolist()]
    [-1.0, 1.0, 0.0, 0.0]
    """
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
    """Normalise by a given mean and variance of each channel, then scale and shift.

    Parameters
    ----------
    x : Tensor
        The input.
    mean : Tensor
        The mean of each channel.
    var : Tensor
        The variance of each channel.
    weight : Tensor, optional
        Multiplies the normalised values, one number per channel.
    bias : Tensor, optional
        Added last, one number per channel.
    axis : int
        The axis of the channels.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor
        A tensor of the shape of `x`.

    Examples
    --------
    >>> import yosegi as ys
    >>> x = ys.asarray([[1.0], [3.0]])
    >>> [round(v, 3) for v in ys.nn.batch_norm(x, ys.asarray([2.0]), ys.asarray([1.0])).flatten().tolist()]
    [-1.0, 1.0]
    """
    scale = reciprocal(sqrt(var + eps))
    return _scaled((x - _along(mean, (axis,), x)), (axis,), scale if weight is None else scale * weight, bias)


@rules.on_tensor
def batch_norm_train(
    x: Tensor, /, weight: Any = None, bias: Any = None, *, axis: int = 1, eps: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise by the mean and variance of the batch, and return both.

    The caller keeps the running averages: `running = (1 - rate) * running + rate * mean`.

    Parameters
    ----------
    x : Tensor
        The input.
    weight : Tensor, optional
        Multiplies the normalised values, one number per channel.
    bias : Tensor, optional
        Added last, one number per channel.
    axis : int
        The axis of the channels.
    eps : float
        Added to the variance.

    Returns
    -------
    tuple of Tensor
        The normalised tensor, the mean and the variance of each channel. The variance is divided by the count. For
        16-bit floats mean and variance are float32.

    Examples
    --------
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
    "batch_norm", "batch_norm_train", "group_norm", "layer_norm", "log_softmax", "logsumexp", "rms_norm", "softmax",
]  # fmt: skip
