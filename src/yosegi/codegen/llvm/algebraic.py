"""hypot, fmod, nextafter: what floats can do without a polynomial."""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import float32, float64
from .number import Number, fma, muladd, select
from .slow_paths import library, where_seldom

_INFINITY: Final = float("inf")


def hypot(a: Number, b: Number) -> Number:
    """The root of a² + b², without overflow on the way."""
    if a.is_single:
        x, y = a.to(float64), b.to(float64)
        made = muladd(x, x, y * y).sqrt().to(float32)
    else:
        x, y = abs(a), abs(b)
        bound = 2.0**500
        is_large = (x > bound) | (y > bound)
        is_small = (x < 1 / bound) & (y < 1 / bound)
        scale = select(is_large, 2.0**-600, select(is_small, a.like(2.0**600), 1.0))
        back = select(is_large, 2.0**600, select(is_small, a.like(2.0**-600), 1.0))
        x, y = x * scale, y * scale
        made = muladd(x, x, y * y).sqrt() * back
    return select(abs(a).equals(_INFINITY) | abs(b).equals(_INFINITY), _INFINITY, made)


def fmod(a: Number, b: Number) -> Number:
    """The remainder of a division, with the sign of a. Quotients with more digits than a float are the C library's."""
    size, by = abs(a), abs(b)
    ratio = size / by
    rest = fma(-ratio.trunc(), by, size)  # exact, and by less than 0 where the ratio was rounded up
    rest = select(rest < 0.0, rest + by, rest)
    rest = select(size < by, size, rest).signed_as(a)
    is_far = (ratio >= 2.0 ** (24 if a.is_single else 53)) & (size < _INFINITY) & (by > 0.0)
    return where_seldom(is_far, [rest], [a, b], library("fmod"), 1)[0]


def nextafter(a: Number, b: Number) -> Number:
    """The float next to a on the way to b."""
    bits = a.bits()
    away = (a < b) ^ (a < 0.0)
    moved = select(away, bits + 1, bits - 1).as_float()
    smallest = a.like(5e-324 if a.dtype is float64 else 1e-45)
    moved = select(a.equals(0.0), smallest.signed_as(b), moved)
    made = select(a.equals(b), b, moved)
    return select(a.equals(a), select(b.equals(b), made, b), a)
