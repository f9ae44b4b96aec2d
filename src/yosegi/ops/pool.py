"""Pooling: the largest, or the mean, of the elements in each of the windows that slide over an input."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from .._tensor.batch import merged
from .._tensor.composite import composite
from .._tensor.node import Call, Shape, Spec, spec
from .._tensor.op import Arr, Normal, OpKind, op
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .conv import SPATIAL, Numbers, batched, called, conv
from .creation import ones
from .elementwise import where
from .reduce import sum
from .shape import reshape
from .windows import Windows, numbers, padded, pads, places, views


def _pool_windows(x: Spec, kernel: Any, stride: Any, padding: Any, dilation: Any) -> Windows:
    rank = x.ndim - 2
    if rank not in SPATIAL:
        raise ShapeError(f"expected x of shape (batch, channels, 1 to 3 lengths), got {x.shape}")
    size = numbers(kernel, rank, "kernel_size")
    steps = size if stride is None else numbers(stride, rank, "stride")
    far = numbers(dilation, rank, "dilation")
    windows = Windows(size, steps, (), far, (1,) * rank)
    around = pads(padding, x.shape[2:], windows)
    if any(2 * p > e for pair, e in zip(around, windows.extent, strict=True) for p in pair):
        raise ArgumentError(f"expected padding of at most half of the window {windows.extent}, got {around}")
    return Windows(size, steps, around, far, (1,) * rank)


def _lowest(dtype: Any) -> Any:
    return -np.inf if dtype.kind != "i" and dtype.kind != "u" else np.iinfo(dtype).min


# Windows as dimensions: the second gradient of a largest element is written in them


def _spatial(windows: Windows) -> tuple[int, ...]:
    """The axes of the kernel's places."""
    rank = len(windows.kernel)
    return tuple(range(2 + rank, 2 + 2 * rank))


def _windowed_rule(x: Spec, *, windows: Windows, lowest: bool) -> Spec:
    rules.expect(x.dtype, "a numeric dtype", rules.is_numeric)
    windows.check_pool(x.ndim - 2)
    return spec((*x.shape[:2], *windows.counts(x.shape[2:]), *windows.kernel), x.dtype)


def _overlapped_rule(x: Spec, *, lengths: Shape, windows: Windows) -> Spec:
    out = spec((*x.shape[:2], *rules.normal_shape(lengths)), x.dtype)
    if _windowed_rule(out, windows=windows, lowest=False).shape != x.shape:
        raise ShapeError(f"expected the windows over {lengths}, got shape {x.shape}")
    return out


@op(OpKind.MOVEMENT, infer=_windowed_rule, batch=merged,
    vjp=lambda g, out, x, *, windows, lowest: (overlapped(g, lengths=x.shape[2:], windows=windows),))  # fmt: skip
def windowed(x: Arr, /, *, windows: Windows, lowest: bool) -> Arr:
    """The windows over x, of shape (batch, channels, windows, kernel), padded with zeros or the lowest number."""
    return views(padded(x, windows, _lowest(x.dtype) if lowest else 0), windows)


@op(OpKind.REDUCTION, infer=_overlapped_rule, batch=merged,
    vjp=lambda g, out, x, *, lengths, windows: (windowed(g, windows=windows, lowest=False),))  # fmt: skip
def overlapped(x: Arr, /, *, lengths: Shape, windows: Windows) -> Arr:
    """Windows scattered back to their places, added up where they overlap: the transpose of `windowed`."""
    around = [n + a + b for n, (a, b) in zip(lengths, windows.padding, strict=True)]
    wide = np.zeros((*x.shape[:2], *around), x.dtype)
    for place, at in places(windows, x.shape[2 : 2 + len(lengths)]):
        wide[(..., *at)] += x[(..., *place)]
    return wide[(..., *[slice(a, a + n) for n, (a, _) in zip(lengths, windows.padding, strict=True)])]


# Pools


def _max_rule(x: Spec, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> Normal:
    rules.expect(x.dtype, "a real numeric dtype", rules.is_real)
    windows = _pool_windows(x, kernel_size, stride, padding, dilation)
    attrs = {"kernel_size": windows.kernel, "stride": windows.stride, "padding": windows.padding,
             "dilation": windows.dilation}  # fmt: skip
    return Normal(spec((*x.shape[:2], *windows.counts(x.shape[2:])), x.dtype), attrs)


def _of(kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> Windows:
    return Windows(kernel_size, stride, padding, dilation, (1,) * len(kernel_size))


def windows_of(call: Call) -> Windows:
    """The windows of a pool, or of its gradient."""
    return _of(**call.attrs)


def _gradient_rule(x: Spec, out: Spec, g: Spec, **attrs: Any) -> Normal:
    rules.expect(x.dtype, "a real floating dtype", lambda d: d.is_float)
    made = _max_rule(x, **attrs)
    if (made.outputs, out) != (out, g):
        raise ShapeError(f"expected the windows {made.outputs} twice, got {out} and {g}")
    return Normal(x, made.attrs)


def _gradient_vjp(h: Tensor, made: Tensor, x: Tensor, out: Tensor, g: Tensor, **attrs: Any) -> Any:
    windows = _of(**attrs)
    kept = (*out.shape, *[1] * len(windows.kernel))
    inside = windowed(ones((1, 1, *x.shape[2:]), dtype=x.dtype), windows=windows, lowest=False)
    best = where(windowed(x, windows=windows, lowest=True) < reshape(out, kept), 0 * inside, inside)
    chosen = windowed(h, windows=windows, lowest=False) * best
    axes = _spatial(windows)
    return None, None, sum(chosen, axis=axes) / sum(best, axis=axes)


@op(OpKind.CONVOLUTION, infer=_gradient_rule, vjp=_gradient_vjp, batch=merged)
def max_pool_gradient(
    x: Arr, out: Arr, g: Arr, /, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any
) -> Arr:
    """The gradient of `max_pool` by x, where its result is `out` and the gradient by that is g.

    The largest elements of a window share its gradient. All elements of a window with NaN share it.
    """
    windows = _of(kernel_size, stride, padding, dilation)
    wide = padded(x, windows, 0)
    inside = padded(np.ones((1, 1, *x.shape[2:]), bool), windows, False)
    with np.errstate(invalid="ignore"):
        best = [~(wide[(..., *at)] < out) & inside[(..., *at)] for _, at in places(windows, out.shape[2:])]
    share = g / np.maximum(np.add.reduce(best, axis=0, dtype=np.int64), 1).astype(g.dtype)
    made = np.zeros_like(wide)
    for is_best, (_, at) in zip(best, places(windows, out.shape[2:]), strict=True):
        made[(..., *at)] += np.where(is_best, share, 0)
    return made[(..., *[slice(low, low + n) for n, (low, _) in zip(x.shape[2:], windows.padding, strict=True)])]


def _max_vjp(g: Tensor, out: Tensor, x: Tensor, **attrs: Any) -> tuple[Tensor]:
    return (max_pool_gradient(x, out, g, **attrs),)


@op(OpKind.CONVOLUTION, infer=_max_rule, vjp=_max_vjp, computes_half=True, batch=merged)
def max_pool(x: Arr, /, *, kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> Arr:
    """The largest element of each window over x (batch, channels, lengths)."""
    windows = _of(kernel_size, stride, padding, dilation)
    counts = windows.counts(x.shape[2:])
    wide = padded(x, windows, _lowest(x.dtype))
    made = np.full((*x.shape[:2], *counts), _lowest(x.dtype), x.dtype)
    for _, at in places(windows, counts):
        np.maximum(made, wide[(..., *at)], out=made)
    return made


def _avg_form(x: Spec, *, kernel_size: Any, stride: Any, padding: Any, count_include_pad: Any) -> dict[str, Any]:
    rules.expect(x.dtype, "a floating dtype", lambda d: d.is_inexact)
    windows = _pool_windows(x, kernel_size, stride, padding, 1)
    return {"kernel_size": windows.kernel, "stride": windows.stride, "padding": windows.padding,
            "count_include_pad": bool(count_include_pad)}  # fmt: skip


@composite(OpKind.CONVOLUTION, normal=_avg_form, promotes_from=0, inexact=True, batch=merged)
def avg_pool(x: Arr, /, *, kernel_size: Any, stride: Any, padding: Any, count_include_pad: bool) -> Arr:
    """The mean of each window over x (batch, channels, lengths): a convolution with a kernel of ones."""
    lengths, rank = x.shape[2:], len(kernel_size)
    kernel = ones((1, 1, *kernel_size), dtype=x.dtype)
    totals = conv(reshape(x, (x.shape[0] * x.shape[1], 1, *lengths)), kernel, stride=stride, padding=padding)
    count: Tensor | int = prod(kernel_size)
    if not count_include_pad:
        count = conv(ones((1, 1, *lengths), dtype=x.dtype), kernel, stride=stride, padding=padding)
    return reshape(totals / count, (*x.shape[:2], *totals.shape[-rank:]))


_LARGEST: Final = """Compute the largest element of each window, in {rank} dimensions.

    Equal largest elements share the gradient.

    Parameters
    ----------
    x : Tensor
        The input, of shape (batch, channels, {rank} lengths). The batch may be left out.
    kernel_size : int or tuple of int
        The lengths of a window.
    stride : int or tuple of int, optional
        The step between windows; `kernel_size` by default.
    padding : int or tuple of int
        Elements added on each side of each dimension.
    dilation : int or tuple of int
        The step between the elements of a window.

    Returns
    -------
    Tensor
        A tensor of shape (batch, channels, {rank} lengths).

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.max_pool{rank}d(ys.ones((1, 2) + (6,) * {rank}), 2).shape == (1, 2) + (3,) * {rank}
    True
    """
_MEAN: Final = """Compute the mean of each window, in {rank} dimensions.

    Parameters
    ----------
    x : Tensor
        The input, of shape (batch, channels, {rank} lengths). The batch may be left out.
    kernel_size : int or tuple of int
        The lengths of a window.
    stride : int or tuple of int, optional
        The step between windows; `kernel_size` by default.
    padding : int or tuple of int
        Elements added on each side of each dimension.
    count_include_pad : bool
        True: padding counts as zeros. False: padding does not count.

    Returns
    -------
    Tensor
        A tensor of shape (batch, channels, {rank} lengths).

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.avg_pool{rank}d(ys.ones((1, 2) + (6,) * {rank}), 2).shape == (1, 2) + (3,) * {rank}
    True
    """


def _max_pool_of(rank: int) -> Callable[..., Tensor]:
    def function(
        x: Tensor,
        /,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        dilation: Numbers = 1,
    ) -> Tensor:
        attrs: dict[str, Any] = {"kernel_size": kernel_size, "stride": stride, "padding": padding, "dilation": dilation}
        return batched(x, rank, lambda x: max_pool(x, **attrs))

    return called(function, f"max_pool{rank}d", _LARGEST.format(rank=rank))


def _avg_pool_of(rank: int) -> Callable[..., Tensor]:
    def function(
        x: Tensor,
        /,
        kernel_size: Numbers,
        stride: Numbers | None = None,
        padding: Numbers = 0,
        count_include_pad: bool = True,
    ) -> Tensor:
        attrs: dict[str, Any] = {"kernel_size": kernel_size, "stride": stride, "padding": padding,
                                 "count_include_pad": count_include_pad}  # fmt: skip
        return batched(x, rank, lambda x: avg_pool(x, **attrs))

    return called(function, f"avg_pool{rank}d", _MEAN.format(rank=rank))


max_pool1d, max_pool2d, max_pool3d = map(_max_pool_of, SPATIAL)
avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool_of, SPATIAL)

__all__ = [
    "avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool", "max_pool1d", "max_pool2d", "max_pool3d",
    "max_pool_gradient",
]  # fmt: skip
