"""asin, acos, atan, atan2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .number import Number, muladd, polynomial, select

_EIGHTH: Final = 0.41421356237309503
"""The tangent of π/8."""
_THREE_EIGHTHS: Final = 2.414213562373095


@dataclass(frozen=True, slots=True)
class _InverseConstants:
    """Constants that depend on the float format. Polynomials are in order of rising powers."""

    half_pi: tuple[float, float]
    """pi / 2 as a sum of two parts with twice the format's digits."""
    reach: float
    """Numbers within this factor of 1 have sums and products that are normal numbers."""
    asin: tuple[float, ...]
    """q in asin x = x + x³ q(x²) for x up to 1/2."""
    atan: tuple[float, ...]
    """q in atan x = x + x³ q(x²) for x up to the tangent of π/8."""


_SINGLE: Final = _InverseConstants(
    half_pi=(1.5707963705062866, -4.371138828673793e-08),
    reach=2.0**60,
    asin=(0.16666752099990845, 0.07495306432247162, 0.045469772070646286, 0.02418077364563942,
          0.04216641187667847),  # 2**-27.6
    atan=(-0.33333316445350647, 0.19998526573181152, -0.14244344830513, 0.10598728060722351,
          -0.060887355357408524),  # 2**-30.4
)  # fmt: skip
_DOUBLE: Final = _InverseConstants(
    half_pi=(1.5707963267948966, 6.123233995736766e-17),
    reach=2.0**500,
    asin=(0.1666666666666676, 0.0749999999997081, 0.04464285717464569, 0.030381942704721516, 0.022372215104408052,
          0.01735160947738144, 0.013980855361835758, 0.011398596102388194, 0.010782180414000692,
          0.0036985945611944953, 0.021727652183165573, -0.021029225828006367, 0.03264840915998295),  # 2**-59.8
    atan=(-0.3333333333333319, 0.19999999999952184, -0.14285714280054126, 0.11111110776302616, -0.090908975510682,
          0.07692056524668714, -0.06663061934753908, 0.05847581564087181, -0.05037911863006434, 0.038029010143264104,
          -0.017868096574036055),  # 2**-59.4
)  # fmt: skip


def _format(x: Number) -> _InverseConstants:
    return _SINGLE if x.is_single else _DOUBLE


def _small_arc(x: Number) -> tuple[Number, Number, Number]:
    """Whether |x| is above 1/2; then the root of (1 - |x|) / 2, else |x|; and how much more its inverse sine is."""
    size = abs(x)
    is_large = size > 0.5
    square = select(is_large, (1.0 - size) * 0.5, x * x)
    sine = select(is_large, square.sqrt(), size)
    return is_large, sine, sine * square * polynomial(square, _format(x).asin)


def asin(x: Number) -> Number:
    """The inverse sine."""
    is_large, sine, more = _small_arc(x)
    high, low = _format(x).half_pi
    half = high / 2 - sine
    rest = (half - (more - (((high / 2 - half) - sine) + low / 2))) * 2.0
    return select(is_large, rest, sine + more).signed_as(x)


def acos(x: Number) -> Number:
    """The inverse cosine: from the right end twice the arc, from the left end π less that, between them π/2 less it."""
    is_large, sine, more = _small_arc(x)
    high, low = _format(x).half_pi
    signed, more_signed = select(is_large, sine, x), select(is_large, more, more.signed_as(x))
    less = high - (signed + (more_signed - low))
    end = select(x < 0.0, less, sine + more) * 2.0
    return select(is_large, end, less)


def _angle(y: Number, x: Number) -> Number:
    """The angle of a point in the first quadrant: the rest of it to the nearest of 0, π/4 and π/2 is small."""
    f = _format(x)
    high, low = f.half_pi
    is_low, is_high = y <= x * _EIGHTH, y > x * _THREE_EIGHTHS
    above = select(is_low, y, select(is_high, -x, y - x))
    below = select(is_low, x, select(is_high, y, y + x))
    turn = select(is_low, 0.0, select(is_high, x.like(high), high / 2))
    more = select(is_low, 0.0, select(is_high, x.like(low), low / 2))
    ratio = above / below
    square = ratio * ratio
    return turn + (ratio + muladd(ratio * square, polynomial(square, f.atan), more))


def atan(x: Number) -> Number:
    """The inverse tangent."""
    return _angle(abs(x), x.like(1.0)).signed_as(x)


def atan2(y: Number, x: Number) -> Number:
    """The angle of the point (x, y)."""
    f = _format(x)
    up, along = abs(y), abs(x)
    size = select(up < along, along, up)
    scale = select(size > f.reach, 1 / f.reach, select(size < 1 / f.reach, x.like(f.reach), 1.0))
    infinity = float("inf")
    is_diagonal = up.equals(infinity) & along.equals(infinity)
    first = _angle(select(is_diagonal, 1.0, up * scale), select(is_diagonal, 1.0, along * scale))
    first = select(up.equals(0.0) & along.equals(along), 0.0, first)
    is_left = _is_negative(x)
    high, low = f.half_pi
    upright = first.equals(high)  # then so is the angle from the other side
    return select(upright, first, select(is_left, 2 * high - (first - 2 * low), first)).signed_as(y)


def _is_negative(x: Number) -> Number:
    """Whether the sign bit is set."""
    return x.like(1.0).signed_as(x) < 0.0
