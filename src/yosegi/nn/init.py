"""Initial values of parameters, by PyTorch's formulas: `ys.nn.init`.

Each function takes a shape and returns a new tensor. In the shape of a weight the outputs stand first, then the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod, sqrt
from typing import Final

from .._tensor.dtype import float32
from .._tensor.tensor import Tensor
from ..errors import ShapeError
from ..ops import rules
from ..ops.creation import DTypeLike
from ..ops.decompositions import qr
from ..ops.elementwise import where
from ..ops.layout import diagonal
from ..ops.random import Generator, generator_of
from ..ops.shape import reshape

Rng = Generator | int | None
"""A generator, a seed, or `None` for the global generator."""

_PARAMETERS: Final = {
    "shape": ("sequence of int", "The shape of a weight: (outputs, inputs, …)."),
    "low, high": ("float", "The bounds."),
    "mean, std": ("float", "The mean and the standard deviation."),
    "bound": ("float", "The largest distance from the mean, in standard deviations."),
    "gain": ("float", "A factor: see `gain`."),
    "mode": ('{"fan_in", "fan_out"}', '"fan_out" takes the outputs in place of the inputs.'),
    "rng": ("Generator or int, optional", "A generator or a seed; the global generator by default."),
    "dtype": ("dtype", "The dtype."),
}
_initial = partial(rules.described, _PARAMETERS, ("Tensor", "A tensor of this shape."))
_GAINS: Final = {"linear": 1.0, "sigmoid": 1.0, "tanh": 5 / 3, "relu": sqrt(2.0), "selu": 0.75}


@rules.named
@_initial(shape="The shape.")
def uniform(
    shape: Sequence[int], low: float = 0.0, high: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = float32
) -> Tensor:
    """Return evenly distributed numbers.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.init.uniform((2, 3), -1.0, 1.0, rng=0).shape
    (2, 3)
    """
    return generator_of(rng).uniform(low, high, size=tuple(shape), dtype=dtype)


@rules.named
@_initial(shape="The shape.")
def normal(
    shape: Sequence[int], mean: float = 0.0, std: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = float32
) -> Tensor:
    """Return normally distributed numbers.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.init.normal((2, 3), std=0.02, rng=0).shape
    (2, 3)
    """
    return generator_of(rng).normal(mean, std, size=tuple(shape), dtype=dtype)


@rules.named
@_initial(shape="The shape.", **{"mean, std": "The mean and the standard deviation of the whole distribution."})
def truncated_normal(
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    *,
    bound: float = 2.0,
    rng: Rng = None,
    dtype: DTypeLike = float32,
) -> Tensor:
    """Return normally distributed numbers without those far from the mean.

    Examples
    --------
    >>> import yosegi as ys
    >>> bool(ys.all(abs(ys.nn.init.truncated_normal((100,), std=0.5, rng=0)) <= 1.0))
    True
    """
    return generator_of(rng).truncated_normal(-bound, bound, tuple(shape), dtype=dtype) * std + mean


@rules.named
@_initial()
def xavier_uniform(shape: Sequence[int], gain: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = float32) -> Tensor:
    """Return evenly distributed numbers of variance gain**2 * 2 / (inputs + outputs).

    Examples
    --------
    >>> import yosegi as ys
    >>> bool(ys.all(abs(ys.nn.init.xavier_uniform((3, 3), rng=0)) <= 1.0))
    True
    """
    bound = gain * sqrt(6.0 / sum(_fans(shape)))
    return uniform(shape, -bound, bound, rng=rng, dtype=dtype)


@rules.named
@_initial()
def xavier_normal(shape: Sequence[int], gain: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = float32) -> Tensor:
    """Return normally distributed numbers of variance gain**2 * 2 / (inputs + outputs).

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.init.xavier_normal((3, 4), rng=0).shape
    (3, 4)
    """
    return normal(shape, 0.0, gain * sqrt(2.0 / sum(_fans(shape))), rng=rng, dtype=dtype)


@rules.named
@_initial(gain="A factor: see `gain`. It is that of relu by default.")
def kaiming_uniform(
    shape: Sequence[int], gain: float = _GAINS["relu"], *, mode: str = "fan_in", rng: Rng = None,
    dtype: DTypeLike = float32,
) -> Tensor:  # fmt: skip
    """Return evenly distributed numbers of variance gain**2 / inputs.

    Examples
    --------
    >>> import yosegi as ys
    >>> bool(ys.all(abs(ys.nn.init.kaiming_uniform((5, 6), rng=0)) <= 1.0))
    True
    """
    bound = gain * sqrt(3.0 / _fan(shape, mode))
    return uniform(shape, -bound, bound, rng=rng, dtype=dtype)


@rules.named
@_initial(gain="A factor: see `gain`. It is that of relu by default.")
def kaiming_normal(
    shape: Sequence[int], gain: float = _GAINS["relu"], *, mode: str = "fan_in", rng: Rng = None,
    dtype: DTypeLike = float32,
) -> Tensor:  # fmt: skip
    """Return normally distributed numbers of variance gain**2 / inputs.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.init.kaiming_normal((5, 6), rng=0).shape
    (5, 6)
    """
    return normal(shape, 0.0, gain / sqrt(_fan(shape, mode)), rng=rng, dtype=dtype)


@rules.named
@_initial(gain="The length of the rows or columns.")
def orthogonal(shape: Sequence[int], gain: float = 1.0, *, rng: Rng = None, dtype: DTypeLike = float32) -> Tensor:
    """Return a weight with orthogonal rows or columns.

    Examples
    --------
    >>> import yosegi as ys
    >>> w = ys.nn.init.orthogonal((3, 8), rng=0)
    >>> bool(ys.allclose(w @ w.mT, ys.eye(3), atol=1e-5))
    True
    """
    outputs, inputs = shape[0], prod(shape[1:])
    q, r = qr(normal((max(outputs, inputs), min(outputs, inputs)), rng=rng, dtype=dtype))
    q = where(diagonal(r) < 0, -q, q) * gain  # without the choice of signs, q is not evenly distributed
    return reshape(q if outputs >= inputs else q.mT, tuple(shape))


@rules.named
def gain(name: str, slope: float = 0.01) -> float:
    """Return the factor by which a weight before an activation function is larger.

    Parameters
    ----------
    name : {"linear", "sigmoid", "tanh", "relu", "leaky_relu", "selu"}
        The activation function.
    slope : float
        The slope of "leaky_relu" below 0.

    Returns
    -------
    float
        The factor.

    Examples
    --------
    >>> import yosegi as ys
    >>> round(ys.nn.init.gain("relu"), 4)
    1.4142
    """
    rules.one_of("name", name, (*_GAINS, "leaky_relu"))
    return sqrt(2 / (1 + slope**2)) if name == "leaky_relu" else _GAINS[name]


def _fans(shape: Sequence[int]) -> tuple[int, int]:
    """The inputs and the outputs of a weight."""
    if len(shape) < 2:
        raise ShapeError(f"expected the shape of a weight, (outputs, inputs, …), got {tuple(shape)}")
    places = prod(shape[2:])
    return shape[1] * places, shape[0] * places


def _fan(shape: Sequence[int], mode: str) -> int:
    rules.one_of("mode", mode, ("fan_in", "fan_out"))
    return _fans(shape)[mode == "fan_out"]


__all__ = [
    "gain", "kaiming_normal", "kaiming_uniform", "normal", "orthogonal", "truncated_normal", "uniform",
    "xavier_normal", "xavier_uniform",
]  # fmt: skip
