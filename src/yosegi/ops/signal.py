"""Samples of functions by NumPy's names: convolution, interpolation, differences, integrals and windows."""

from __future__ import annotations

from math import pi
from typing import Any, Final, Literal

from .._tensor.dtype import bool_
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .conv import conv
from .creation import arange, asarray, ones
from .decompositions import floating
from .elementwise import abs, clip, conj, cos, exp, logical_and, remainder, sqrt, where
from .index import gather
from .reduce import cumulative_sum, diff, sum
from .shape import Axes, concat, flip, moveaxis, reshape
from .sort import argsort, searchsorted
from .types import astype, result_type

Mode = Literal["full", "same", "valid"]

# Convolution


def _slid(x: Tensor, weights: Tensor, before: int, behind: int) -> Tensor:
    """The products with a window of weights that moves along a vector with zeros around it, each summed."""
    sums = conv(reshape(x, (1, 1, -1)), reshape(weights, (1, 1, -1)), padding=((before, behind),))
    return reshape(sums, (-1,))


def _widths(n: int, width: int, mode: str) -> tuple[int, int]:
    """How many zeros stand before and behind the longer vector."""
    if mode == "full":
        return width - 1, width - 1
    if mode == "same":
        return width // 2, width - 1 - width // 2
    return 0, 0


def _vectors(x: Any, y: Any, mode: str) -> tuple[Tensor, Tensor]:
    rules.one_of("mode", mode, ("full", "same", "valid"))
    first, second = (asarray(v) for v in (x, y))
    common = result_type(first, second)
    for t in (first, second):
        if t.ndim != 1 or not t.shape[0]:
            raise ShapeError(f"expected vectors of at least one element, got shape {t.shape}")
    common = asarray(0).dtype if common is bool_ else common
    return astype(first, common), astype(second, common)


@rules.named
def convolve(x: Tensor, y: Tensor, /, mode: Mode = "full") -> Tensor:
    """The discrete convolution of two vectors.

    - `mode`: "full" for every overlap, "same" for as many elements as the longer vector has, "valid" for the overlaps
      that are complete.

    >>> import yosegi as ys
    >>> ys.convolve(ys.asarray([1, 2, 3]), ys.asarray([0, 1, 2])).tolist()
    [0, 1, 4, 7, 6]
    """
    first, second = _vectors(x, y, mode)
    if first.shape[0] < second.shape[0]:
        first, second = second, first
    before, behind = _widths(first.shape[0], second.shape[0], mode)
    return _slid(first, flip(second), before, behind)


@rules.named
def correlate(x: Tensor, y: Tensor, /, mode: Mode = "valid") -> Tensor:
    """The cross-correlation of two vectors: the sum of x[n + k] * conj(y[n]) for each shift k.

    - `mode`: as in `convolve`.

    >>> import yosegi as ys
    >>> ys.correlate(ys.asarray([1, 2, 3]), ys.asarray([0, 1]), "same").tolist()
    [1, 2, 3]
    """
    first, second = _vectors(x, y, mode)
    if first.shape[0] >= second.shape[0]:
        before, behind = _widths(first.shape[0], second.shape[0], mode)
        return _slid(first, conj(second), before, behind)
    before, behind = _widths(second.shape[0], first.shape[0], mode)
    return flip(_slid(conj(second), first, before, behind))


# Interpolation


@rules.on_tensor
def interp(
    x: Tensor, xp: Tensor, fp: Tensor, /, left: Any = None, right: Any = None, period: float | None = None
) -> Tensor:
    """The piecewise linear function through given points, at `x`.

    - `xp`, `fp`: where the points are, in ascending order, and their values.
    - `left`, `right`: the values beyond the first and the last point; by default theirs.
    - `period`: the period of the function, whose points need not be in order then.

    >>> import yosegi as ys
    >>> ys.interp(ys.asarray([0.5, 9.0]), ys.asarray([0.0, 1.0]), ys.asarray([10.0, 20.0])).tolist()
    [15.0, 20.0]
    """
    places, values = floating(asarray(xp)), floating(asarray(fp))
    x = floating(x)
    if places.ndim != 1 or places.shape != values.shape or not places.shape[0]:
        raise ShapeError(f"expected points as vectors of one length, got shapes {places.shape} and {values.shape}")
    if period is not None:
        places, values, x = _periodic(places, values, x, period)
        left = right = None
    n = places.shape[0]
    if n == 1:
        made = values[0] + x * 0
    else:
        upper = clip(searchsorted(places, x, side="right"), 1, n - 1)
        x0, x1 = _at(places, upper - 1), _at(places, upper)
        y0, y1 = _at(values, upper - 1), _at(values, upper)
        gap = where(x1 == x0, 1, x1 - x0)
        made = y0 + (y1 - y0) * ((x - x0) / gap)
    made = where(x >= places[-1], values[-1], where(x < places[0], values[0], made))
    made = made if left is None else where(x < places[0], left, made)
    made = made if right is None else where(x > places[-1], right, made)
    return where(x != x, x.astype(made.dtype), made)


def _at(x: Tensor, places: Tensor) -> Tensor:
    return gather(x, places, axes=(0,), at=0, of="interp")


def _periodic(places: Tensor, values: Tensor, x: Tensor, period: float) -> tuple[Tensor, Tensor, Tensor]:
    """The points of one period in order, with one of the next period at either end; and x in that period."""
    length = rules.plain_float(period, "period")
    if length == 0:
        raise ArgumentError("expected a period other than 0, got 0")
    length = length if length > 0 else -length
    places, x = remainder(places, length), remainder(x, length)
    order = argsort(places)
    places, values = _at(places, order), _at(values, order)
    around = concat([places[-1:] - length, places, places[:1] + length])
    return around, concat([values[-1:], values, values[:1]]), x


@rules.on_tensor
def unwrap(x: Tensor, /, discont: float | None = None, axis: int = -1, *, period: float = 2 * pi) -> Tensor:
    """The elements with multiples of the period added so that neighbours are at most half a period apart.

    - `discont`: leave steps that are smaller than this; half a period by default.

    >>> import yosegi as ys
    >>> ys.unwrap(ys.asarray([0.0, 3.0, 6.0]), period=4.0).tolist()
    [0.0, -1.0, -2.0]
    """
    x = floating(x)
    axis = rules.normal_axis(axis, x.ndim)
    steps = diff(x, axis=axis)
    half = period / 2
    inside = remainder(steps + half, period) - half
    inside = where(logical_and(inside == -half, steps > 0), half, inside)
    change = where(abs(steps) < (half if discont is None else discont), 0, inside - steps)
    first = x[(slice(None),) * axis + (slice(0, 1),)]
    rest = x[(slice(None),) * axis + (slice(1, None),)]
    return concat([first, rest + cumulative_sum(change, axis=axis)], axis=axis)


# Differences and integrals


@rules.on_tensor
def ediff1d(x: Tensor, /, to_end: Any = None, to_begin: Any = None) -> Tensor:
    """The differences between neighbours of the flattened tensor, with values put before or behind them.

    >>> import yosegi as ys
    >>> ys.ediff1d(ys.asarray([1, 4, 9]), to_begin=0).tolist()
    [0, 3, 5]
    """
    steps = diff(reshape(x, (-1,)))
    sides = [None if s is None else reshape(asarray(s).astype(x.dtype), (-1,)) for s in (to_begin, to_end)]
    return concat([part for part in (sides[0], steps, sides[1]) if part is not None])


@rules.on_tensor
def gradient(x: Tensor, /, *spacing: Any, axis: Axes | None = None, edge_order: int = 1) -> Any:
    """The derivative of samples along some axes (all by default): central differences inside, one-sided at the ends.

    - `spacing`: the distance between samples, or where they were taken; one for all axes or one for each. 1 by default.
    - `edge_order`: the order of the differences at the ends, 1 or 2.

    Returns a tensor for one axis, a tuple for several.

    >>> import yosegi as ys
    >>> ys.gradient(ys.asarray([1.0, 2.0, 4.0, 7.0])).tolist()
    [1.0, 1.5, 2.5, 3.0]
    """
    rules.one_of("edge_order", edge_order, (1, 2))
    axes = rules.normal_axes(axis, x.ndim)
    steps = spacing * len(axes) if len(spacing) == 1 else spacing or (1.0,) * len(axes)
    if len(steps) != len(axes):
        raise ArgumentError(f"expected one spacing, or one for each of {len(axes)} axes, got {len(steps)}")
    made = tuple(_derivative(floating(x), a, step, edge_order) for a, step in zip(axes, steps, strict=True))
    return made[0] if len(made) == 1 else made


def _derivative(x: Tensor, axis: int, step: Any, order: int) -> Tensor:
    f = moveaxis(x, axis, -1)
    n = f.shape[-1]
    if n < order + 1:
        raise ShapeError(f"expected at least {order + 1} samples along axis {axis}, got {n}")
    places = asarray(step)
    if places.ndim > 1 or (places.ndim and places.shape[0] != n):
        raise ShapeError(f"expected a distance or {n} places along axis {axis}, got shape {places.shape}")
    h = astype(diff(places), f.dtype) if places.ndim else astype(places, f.dtype) * ones((n - 1,), dtype=f.dtype)
    slope = diff(f) / h  # between neighbours
    lower, upper = h[:-1], h[1:]
    inner = (lower * slope[..., 1:] + upper * slope[..., :-1]) / (lower + upper)
    first, last = slope[..., :1], slope[..., -1:]
    if order == 2:
        first = first - h[0] * (slope[..., 1:2] - slope[..., :1]) / (h[0] + h[1])
        last = last + h[-1] * (slope[..., -1:] - slope[..., -2:-1]) / (h[-1] + h[-2])
    return moveaxis(concat([first, inner, last], axis=-1), -1, axis)


@rules.on_tensor
def trapezoid(y: Tensor, /, x: Tensor | None = None, dx: float = 1.0, axis: int = -1) -> Tensor:
    """The integral of samples along an axis by the trapezoidal rule.

    - `x`: where the samples were taken; at distance `dx` by default.

    >>> import yosegi as ys
    >>> ys.trapezoid(ys.asarray([1.0, 2.0, 3.0])).tolist()
    4.0
    """
    f = moveaxis(floating(y), axis, -1)
    if x is None:
        gaps: Any = dx
    else:
        places = asarray(x)
        gaps = diff(places if places.ndim == 1 else moveaxis(places, axis, -1))
    return sum((f[..., 1:] + f[..., :-1]) * 0.5 * gaps, axis=-1)


# Windows

_SHORT: Final = {0: (), 1: (1.0,)}


def _window(count: int, weights: tuple[float, ...]) -> Tensor:
    """A sum of cosines over `count` samples, from -π to π."""
    n = rules.as_index(count, "a count")
    if n <= 1:
        return asarray(_SHORT[max(0, n)], dtype="float64")
    phase = (arange(1 - n, n, 2).astype("float64")) * (pi / (n - 1))
    total: Tensor = asarray(weights[0]) + phase * 0
    for k, weight in enumerate(weights[1:], start=1):
        total = total + cos(phase * k) * weight
    return total


@rules.named
def hanning(count: int, /) -> Tensor:
    """The Hann window of so many samples.

    >>> import yosegi as ys
    >>> [round(v, 6) for v in ys.hanning(3).tolist()]
    [0.0, 1.0, 0.0]
    """
    return _window(count, (0.5, 0.5))


@rules.named
def hamming(count: int, /) -> Tensor:
    """The Hamming window of so many samples.

    >>> import yosegi as ys
    >>> [round(v, 6) for v in ys.hamming(3).tolist()]
    [0.08, 1.0, 0.08]
    """
    return _window(count, (0.54, 0.46))


@rules.named
def blackman(count: int, /) -> Tensor:
    """The Blackman window of so many samples.

    >>> import yosegi as ys
    >>> [round(v, 6) + 0.0 for v in ys.blackman(5).tolist()]
    [0.0, 0.34, 1.0, 0.34, 0.0]
    """
    return _window(count, (0.42, 0.5, 0.08))


@rules.named
def bartlett(count: int, /) -> Tensor:
    """The triangular window of so many samples.

    >>> import yosegi as ys
    >>> ys.bartlett(3).tolist()
    [0.0, 1.0, 0.0]
    """
    n = rules.as_index(count, "a count")
    if n <= 1:
        return asarray(_SHORT[max(0, n)], dtype="float64")
    return 1 - abs(arange(1 - n, n, 2).astype("float64")) / (n - 1)


@rules.named
def kaiser(count: int, beta: float, /) -> Tensor:
    """The Kaiser window of so many samples, narrower for a larger `beta`.

    >>> import yosegi as ys
    >>> [round(v, 6) for v in ys.kaiser(3, 2.0).tolist()]
    [0.438676, 1.0, 0.438676]
    """
    n = rules.as_index(count, "a count")
    if n <= 1:
        return asarray(_SHORT[max(0, n)], dtype="float64")
    place = arange(1 - n, n, 2).astype("float64") / (n - 1)
    return i0(sqrt(clip(1 - place * place, 0)) * beta) / i0(asarray(float(beta)))


# Coefficients of Chebyshev series (Cephes): e**-x I0(x) on [0, 8], and e**-x sqrt(x) I0(x) beyond.
_NEAR: Final = (
    -4.4153416464793395e-18,
    3.3307945188222384e-17,
    -2.431279846547955e-16,
    1.715391285555133e-15,
    -1.1685332877993451e-14,
    7.676185498604936e-14,
    -4.856446783111929e-13,
    2.95505266312964e-12,
    -1.726826291441556e-11,
    9.675809035373237e-11,
    -5.189795601635263e-10,
    2.6598237246823866e-09,
    -1.300025009986248e-08,
    6.046995022541919e-08,
    -2.670793853940612e-07,
    1.1173875391201037e-06,
    -4.4167383584587505e-06,
    1.6448448070728896e-05,
    -5.754195010082104e-05,
    0.00018850288509584165,
    -0.0005763755745385824,
    0.0016394756169413357,
    -0.004324309995050576,
    0.010546460394594998,
    -0.02373741480589947,
    0.04930528423967071,
    -0.09490109704804764,
    0.17162090152220877,
    -0.3046826723431984,
    0.6767952744094761,
)
_FAR: Final = (
    -7.233180487874754e-18,
    -4.830504485944182e-18,
    4.46562142029676e-17,
    3.461222867697461e-17,
    -2.8276239805165836e-16,
    -3.425485619677219e-16,
    1.7725601330565263e-15,
    3.8116806693526224e-15,
    -9.554846698828307e-15,
    -4.150569347287222e-14,
    1.54008621752141e-14,
    3.8527783827421426e-13,
    7.180124451383666e-13,
    -1.7941785315068062e-12,
    -1.3215811840447713e-11,
    -3.1499165279632416e-11,
    1.1889147107846439e-11,
    4.94060238822497e-10,
    3.3962320257083865e-09,
    2.266668990498178e-08,
    2.0489185894690638e-07,
    2.8913705208347567e-06,
    6.889758346916825e-05,
    0.0033691164782556943,
    0.8044904110141088,
)


@rules.on_tensor
def i0(x: Tensor, /) -> Tensor:
    """Element-wise modified Bessel function of the first kind, of order 0.

    >>> import yosegi as ys
    >>> round(float(ys.i0(ys.asarray(1.0))), 6)
    1.266066
    """
    x = abs(floating(x))
    near = x <= 8
    small, large = where(near, x, 0), where(near, 8, x)
    return where(
        near, exp(small) * _chebyshev(small / 2 - 2, _NEAR), exp(large) * _chebyshev(32 / large - 2, _FAR) / sqrt(large)
    )


def _chebyshev(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """A series of Chebyshev polynomials, by Clenshaw's recurrence."""
    first, second, third = coefficients[0] + x * 0, x * 0, x * 0
    for c in coefficients[1:]:
        first, second, third = x * first - second + c, first, second
    return 0.5 * (first - third)


__all__ = [
    "bartlett", "blackman", "convolve", "correlate", "ediff1d", "gradient", "hamming", "hanning", "i0",
    "interp", "kaiser", "trapezoid", "unwrap",
]  # fmt: skip
