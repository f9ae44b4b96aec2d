"""sin, cos, tan.

|x| = n π/2 + r with a whole n and |r| ≤ π/4. Near 0, n π/2 is taken away in three parts, each fused, so that nothing is
lost. Further out, where some lane is there, float takes the last bits of x 2/π from a table, exactly; double calls the
C library, lane by lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import float32, float64, uint32
from .number import Number, fma, muladd, polynomial, select
from .slow_paths import library, where_seldom

_TWO_OVER_PI: Final = 0.6366197723675814
_HALF_PI: Final = 1.5707963267948966
_LARGE: Final = 1.5 * 2.0**52


@dataclass(frozen=True, slots=True)
class _TrigonometricConstants:
    """Constants that depend on the float format. Polynomials are in order of rising powers."""

    fraction: int
    """The bits of a fraction."""
    half_pi: tuple[float, float, float]
    near: float
    """Up to where the three parts are enough."""
    sin: tuple[float, ...]
    """q in sin r = r + r³ q(r²)."""
    cos: tuple[float, ...]
    """q in cos r = 1 - r²/2 + r⁴ q(r²)."""
    tan: tuple[float, ...]
    """q in tan r = r + r³ q(r²)."""


_SINGLE: Final = _TrigonometricConstants(
    fraction=23,
    half_pi=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    near=2.0**16,
    sin=(-0.16666655242443085, 0.008332188241183758, -0.0001951809535967186),  # 2**-27.9
    cos=(0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05),  # 2**-33.0
    tan=(0.33333349227905273, 0.13332673907279968, 0.05405917763710022, 0.02128450758755207, 0.010832507163286209,
         9.115448483498767e-05, 0.004376476164907217),  # 2**-29.5
)  # fmt: skip
_DOUBLE: Final = _TrigonometricConstants(
    fraction=52,
    half_pi=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
    near=2.0**29,
    sin=(-0.16666666666666666, 0.008333333333333042, -0.00019841269840962473, 2.755731907398519e-06,
         -2.505207092363549e-08, 1.6054311689827313e-10, -7.389470922522264e-13),  # 2**-63.2
    cos=(0.041666666666666595, -0.0013888888888873325, 2.480158728898367e-05, -2.7557314210069585e-07,
         2.0875704269857945e-09, -1.1358683254220142e-11),  # 2**-63.9
    tan=(0.3333333333333338, 0.13333333333325342, 0.05396825397287502, 0.0218694884011561, 0.008863237873808908,
         0.0035921015816722376, 0.0014560392985107507, 0.0005889013777906037, 0.0002436027536875008,
         8.397555229272728e-05, 6.640622099551402e-05, -2.454186085725622e-05, 4.7682706413949257e-05,
         -2.378477865677362e-05, 9.687096981888e-06),  # 2**-59.5
)  # fmt: skip

_LOOKED_UP: Final = 8
"""Lanes that are looked up at a time."""
_FIRST: Final = 127 + 16
"""The exponent, biased, of the first floats that are looked up."""
_DIGITS: Final = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561
"""256 bits of 2/π behind the point."""


def _table() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """2/π times a float's last place, modulo 4, by the float's exponent: 29 bits of it, and 53 more."""
    high, low = [], []
    for exponent in range(_FIRST, 255):
        places = 256 - (exponent - 150)
        turns = _DIGITS & ((1 << places + 2) - 1)
        first = turns >> places - 27
        high.append(first / 2**27)
        low.append((turns - (first << places - 27)) / 2**places)
    return tuple(high), tuple(low)


_TABLE: Final = _table()


def _format(x: Number) -> _TrigonometricConstants:
    return _SINGLE if x.is_single else _DOUBLE


def _is_far(size: Number) -> Number:
    return (size > _format(size).near) & (size < float("inf"))


def _reduced(size: Number) -> tuple[Number, Number, Number]:
    """r, what its rounding left, and n in the last two bits of an integer. In double only if not far."""
    k = size.k
    key = ("reduced", k.type(size.dtype), size.value.text)
    if key not in k.code.known:
        f = _format(size)
        large = 1.5 * 2.0**f.fraction
        total = muladd(size, _TWO_OVER_PI, large)
        n = total - large
        first = fma(n, -f.half_pi[0], size)  # exact
        second = n * f.half_pi[1]
        r = first - second
        rest = ((first - r) - second) - fma(n, f.half_pi[1], -second)
        rest = muladd(n, -f.half_pi[2], rest)
        made = r, rest, total.bits()
        if size.is_single:
            r, rest, turns = where_seldom(_is_far(size), made, [size], _looked_up, _LOOKED_UP)
            made = r, rest, turns
        k.code.known[key] = made
    known: tuple[Number, Number, Number] = k.code.known[key]
    return known


def _looked_up(size: Number) -> tuple[Number, Number, Number]:
    """The reduction of large floats: x 2/π to 80 bits; the first product is exact and loses its whole turns."""
    k, bits = size.k, size.bits()
    index = (bits >> 23) - _FIRST
    index = select(index < 255 - _FIRST, index, 0)
    digits = ((bits & 0x7FFFFF) | 0x800000).to(float64)
    high, low = (Number(k, k.looked_up(f"two_over_pi_{n}", column, index.value)) for n, column in enumerate(_TABLE))
    first = digits * high
    total = first + _LARGE
    rest = muladd(digits, low, first - (total - _LARGE))
    more = rest + _LARGE
    whole = (rest - (more - _LARGE)) * _HALF_PI
    r = whole.to(float32)
    return r, (whole - r.to(float64)).to(float32), (total.bits() + more.bits()).to(uint32)


def _sine(r: Number, rest: Number) -> Number:
    square = r * r
    return r + muladd(r * square, polynomial(square, _format(r).sin), rest)


def _cosine(r: Number, rest: Number) -> Number:
    square = muladd(rest + rest, r, r * r)
    return polynomial(square, (1.0, -0.5, *_format(r).cos))


def _flipped(x: Number, sign: Number) -> Number:
    """The number, negated where the first bit of an integer is set."""
    return (x.bits() ^ sign).as_float()


def _sign(x: Number) -> Number:
    return x.bits() & (1 << (31 if x.is_single else 63))


def _turned(turns: Number) -> Number:
    """The second bit of an integer as a float's sign."""
    return (turns & 2) << (30 if turns.dtype is uint32 else 62)


def _anywhere(name: str, x: Number, near: Number) -> Number:
    """A function whose value is known near 0, everywhere."""
    if x.is_single:
        return near
    return where_seldom(_is_far(abs(x)), [near], [x], library(name), 1)[0]


def sin(x: Number) -> Number:
    """The sine."""
    r, rest, turns = _reduced(abs(x))
    made = select((turns & 1).equals(0), _sine(r, rest), _cosine(r, rest))
    return _anywhere("sin", x, _flipped(made, _turned(turns) ^ _sign(x)))


def cos(x: Number) -> Number:
    """The cosine."""
    r, rest, turns = _reduced(abs(x))
    made = select((turns & 1).equals(0), _cosine(r, rest), _sine(r, rest))
    return _anywhere("cos", x, _flipped(made, _turned(turns + 1)))


def tan(x: Number) -> Number:
    """The tangent."""
    r, rest, turns = _reduced(abs(x))
    square = r * r
    little = muladd(rest, 1.0 + square, r * square * polynomial(square, _format(r).tan))
    made = r + little
    # The inverse, by a quotient that its own remainder corrects.
    over = -1.0 / made
    inverse = muladd(over, muladd(over, little - (made - r), fma(over, made, 1.0)), over)
    made = select((turns & 1).equals(0), made, inverse)
    return _anywhere("tan", x, _flipped(made, _sign(x)))
