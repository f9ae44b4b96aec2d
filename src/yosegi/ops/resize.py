"""Pools of a wanted output size, and interpolation: one axis after another."""

from __future__ import annotations

from collections.abc import Callable
from math import floor
from typing import Any, Final

import numpy as np

from .._tensor.op import from_array
from .._tensor.tensor import Array, Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .conv import SPATIAL, Numbers, batched, called
from .index import take
from .pool import avg_pool, max_pool
from .reduce import max, sum
from .shape import reshape
from .windows import numbers


def _bins(length: int, count: int) -> tuple[Array, Array]:
    """The positions in each of some windows that cover a length, and which of them count: windows differ by one."""
    at = np.arange(count)
    start, end = at * length // count, -(-(at + 1) * length // count)
    places = start[:, None] + np.arange((end - start).max())
    return np.minimum(places, end[:, None] - 1), places < end[:, None]


def _pooled(x: Tensor, sizes: tuple[int, ...], pool: Any, along: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """A pool of equal windows where the sizes divide the lengths, and one axis after another otherwise."""
    lengths = x.shape[2:]
    if min(lengths, default=1) < 1 or min(sizes) < 1:
        raise ShapeError(f"expected lengths and sizes of at least 1, got {lengths} and {sizes}")
    if not any(n % s for n, s in zip(lengths, sizes, strict=True)):
        kernel = tuple(n // s for n, s in zip(lengths, sizes, strict=True))
        return pool(x, kernel)  # type: ignore[no-any-return]
    for axis, size in enumerate(sizes, 2):
        x = along(x, axis, size)
    return x


def _windows(x: Tensor, axis: int, places: Array) -> Tensor:
    """The elements of some windows along an axis, which becomes two: windows, and places in each."""
    made = take(x, from_array(places.reshape(-1)), axis=axis)
    return reshape(made, (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


def _largest(x: Tensor, axis: int, size: int) -> Tensor:
    return max(_windows(x, axis, _bins(x.shape[axis], size)[0]), axis=axis + 1)


def _mean(x: Tensor, axis: int, size: int) -> Tensor:
    places, counted = _bins(x.shape[axis], size)
    shares = counted / counted.sum(axis=1, keepdims=True)
    weights = from_array(shares.reshape(*shares.shape, *[1] * (x.ndim - axis - 1)).astype(x.dtype.numpy))
    return sum(_windows(x, axis, places) * weights, axis=axis + 1)


_ADAPTIVE: Final = """Compute the {what} of windows that divide the input into a given number, in {rank} dimensions.

    Parameters
    ----------
    x : Tensor
        The input, of shape (batch, channels, {rank} lengths). The batch may be left out.
    output_size : int or tuple of int
        The number of windows in each dimension.

    Returns
    -------
    Tensor
        A tensor of shape (batch, channels, {rank} sizes).

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.{name}(ys.ones((1, 2) + (7,) * {rank}), 3).shape == (1, 2) + (3,) * {rank}
    True
    """


def _adaptive_of(kind: str, what: str, pool: Any, along: Callable[[Tensor, int, int], Tensor]) -> Any:
    def of(rank: int) -> Callable[..., Tensor]:
        def function(x: Tensor, /, output_size: Numbers) -> Tensor:
            sizes = numbers(output_size, rank, "output_size")
            return batched(x, rank, lambda x: _pooled(x, sizes, pool, along))

        name = f"adaptive_{kind}_pool{rank}d"
        return called(function, name, _ADAPTIVE.format(rank=rank, name=name, what=what))

    return map(of, SPATIAL)


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = _adaptive_of(
    "avg", "mean", lambda x, k: avg_pool(x, kernel_size=k, stride=k, padding=0, count_include_pad=True), _mean
)
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = _adaptive_of(
    "max", "largest element", lambda x, k: max_pool(x, kernel_size=k, stride=k, padding=0, dilation=1), _largest
)

_MODES: Final = {"nearest": SPATIAL, "linear": (1,), "bilinear": (2,), "trilinear": (3,)}
"""The modes of interpolation, and the numbers of dimensions that each is for."""


@rules.on_tensor
def interpolate(
    x: Tensor,
    /,
    size: Numbers | None = None,
    scale_factor: float | tuple[float, ...] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """Compute the values between the elements of images, to change their size.

    Parameters
    ----------
    x : Tensor
        The input, of shape (batch, channels, 1 to 3 lengths).
    size : int or tuple of int, optional
        The new lengths.
    scale_factor : float or tuple of float, optional
        The new lengths by the old ones. One of `size` and `scale_factor` is given.
    mode : {"nearest", "linear", "bilinear", "trilinear"}
        "nearest" repeats elements. The others are linear in 1, 2 and 3 dimensions.
    align_corners : bool
        True: the outermost elements keep their places. It is for the linear modes.

    Returns
    -------
    Tensor
        A tensor of shape (batch, channels, new lengths).

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.interpolate(ys.asarray([[[1.0, 2.0]]]), 4)[0, 0].tolist()
    [1.0, 1.0, 2.0, 2.0]
    >>> ys.nn.interpolate(ys.asarray([[[1.0, 3.0]]]), 4, mode="linear")[0, 0].tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    rules.one_of("mode", mode, tuple(_MODES))
    rank = x.ndim - 2
    if rank not in _MODES[mode]:
        raise ShapeError(
            f"expected x of {' or '.join(str(r + 2) for r in _MODES[mode])} dimensions for {mode!r}, got {x.shape}"
        )
    if (size is None) == (scale_factor is None):
        raise ArgumentError(f"expected size or scale_factor, got {size} and {scale_factor}")
    lengths = x.shape[2:]
    if size is not None:
        sizes = numbers(size, rank, "size")
        steps = [n / s for n, s in zip(lengths, sizes, strict=True)]
    else:
        given = scale_factor if isinstance(scale_factor, tuple) else (scale_factor,) * rank
        factors = [rules.plain_float(f, "scale_factor") for f in given]
        sizes = tuple(floor(n * f) for n, f in zip(lengths, factors, strict=True))
        steps = [1 / f for f in factors]
    for axis, (count, step) in enumerate(zip(sizes, steps, strict=True), 2):
        x = _nearest(x, axis, count, step) if mode == "nearest" else _between(x, axis, count, step, align_corners)
    return x


def _nearest(x: Tensor, axis: int, count: int, step: float) -> Tensor:
    places = np.floor(np.arange(count, dtype=np.float32) * np.float32(step)).astype(np.int64)
    return take(x, from_array(np.minimum(places, x.shape[axis] - 1)), axis=axis)


def _between(x: Tensor, axis: int, count: int, step: float, aligned: bool) -> Tensor:
    length = x.shape[axis]
    if aligned:
        at = np.arange(count) * ((length - 1) / (count - 1) if count > 1 else 0.0)
    else:
        at = np.maximum((np.arange(count) + 0.5) * step - 0.5, 0)
    low = np.minimum(at.astype(np.int64), length - 1)
    part = from_array((at - low).astype(x.dtype.numpy).reshape(count, *[1] * (x.ndim - axis - 1)))
    first, second = (take(x, from_array(p), axis=axis) for p in (low, np.minimum(low + 1, length - 1)))
    return first + (second - first) * part


__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "interpolate",
]  # fmt: skip
