"""log, log1p, log2, log10, asinh, acosh, atanh.

x = 2**e (1 + f) with a whole e and 1 + f from 2/3 to 4/3, and log(1 + f) = f - f²/2 + f³ q(f): all terms but the
largest are small beside the result, and the largest are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .number import Number, fma, muladd, polynomial, select

_INFINITY: Final = float("inf")
_NAN: Final = float("nan")


@dataclass(frozen=True, slots=True)
class _LogarithmConstants:
    """Constants that depend on the float format. Polynomials are in order of rising powers."""

    fraction: int
    """The bits of a fraction."""
    bias: int
    two_thirds: int
    """The bits of 2/3."""
    log: tuple[float, ...]
    """q in log(1 + f) = f - f²/2 + f³ q(f)."""
    asinh: tuple[float, ...]
    """q in asinh x = x + x³ q(x²) for x up to 1/2."""
    atanh: tuple[float, ...]
    """q in atanh x = x + x³ q(x²) for x up to 1/2."""
    bases: dict[str, _Base]


@dataclass(frozen=True, slots=True)
class _Base:
    """The base of a logarithm, by numbers of two parts each: their sum is exact."""

    two: tuple[float, float]
    """The logarithm of 2; the first part times e is exact."""
    unit: tuple[float, float]
    """The logarithm of Euler's number."""


_SINGLE: Final = _LogarithmConstants(
    fraction=23,
    bias=127,
    two_thirds=0x3F2AAAAB,
    log=(0.3333321511745453, -0.24999810755252838, 0.20010456442832947, -0.16680468618869781, 0.14005400240421295,
         -0.12182170152664185, 0.13988357782363892, -0.12904095649719238),  # 2**-26.9
    asinh=(-0.1666664332151413, 0.07498640567064285, -0.04438306763768196, 0.02816213294863701,
           -0.013225925154983997),  # 2**-29.6
    atanh=(0.33333298563957214, 0.20002615451812744, 0.14220759272575378, 0.11841527372598648, 0.05064738541841507,
           0.17773886024951935),  # 2**-29.4
    bases={
        "e": _Base((0.693145751953125, 1.428606765330187e-06), (1.0, 0.0)),
        "2": _Base((1.0, 0.0), (1.4426950216293335, 1.925963033500011e-08)),
        "10": _Base((0.301025390625, 4.605039066518657e-06), (0.4342944920063019, -1.0103049952192578e-08)),
    },
)  # fmt: skip
_DOUBLE: Final = _LogarithmConstants(
    fraction=52,
    bias=1023,
    two_thirds=0x3FE5555555555555,
    log=(0.3333333333333317, -0.24999999999999473, 0.20000000000073187, -0.1666666666684228, 0.14285714274444558,
         -0.12499999978479456, 0.11111111961760119, -0.10000001366636471, 0.09090872494858937, -0.08333281868449777,
         0.07693274032792649, -0.07144081748808019, 0.06650499685380798, -0.06231126232022633, 0.06053414029351974,
         -0.05742704085799571, 0.041665196874210594, -0.03860485293971291, 0.08519117785124772,
         -0.08290546040722453),  # 2**-58.6
    asinh=(-0.1666666666666661, 0.07499999999984397, -0.04464285712780504, 0.03038194371502004, -0.022372138320276454,
           0.017352386322541918, -0.013960225518565945, 0.01151293704639124, -0.009533928200362156,
           0.007464985466115179, -0.0047465076706226265, 0.001717368976266874),  # 2**-60.4
    atanh=(0.3333333333333328, 0.20000000000018558, 0.14285714283388198, 0.11111111258246646, 0.09090903583951158,
           0.0769244073512797, 0.06664482070433392, 0.05907482918389175, 0.05057624583085622, 0.059584253817748616,
           -0.005399637318576365, 0.17508052031153315, -0.19629842833523198, 0.24123067575156013),  # 2**-60.9
    bases={
        "e": _Base((0.6931471805598903, 5.497923018708371e-14), (1.0, 0.0)),
        "2": _Base((1.0, 0.0), (1.4426950408889634, 2.0355273740931033e-17)),
        "10": _Base((0.30102999566383914, 1.42050232272661e-13), (0.4342944819032518, 1.098319650216765e-17)),
    },
)  # fmt: skip


def _format(x: Number) -> _LogarithmConstants:
    return _SINGLE if x.is_single else _DOUBLE


def taken_apart(x: Number) -> tuple[Number, Number, Number]:
    """Split a positive normal number into e, f, and e + bias at the exponent's bits."""
    f = _format(x)
    shifted = x.bits() + ((f.bias << f.fraction) - f.two_thirds)
    exponent = shifted >> f.fraction
    # A whole number in the low bits of 2**fraction is that float's excess.
    e = (exponent | (f.bias + f.fraction << f.fraction)).as_float() - (2.0**f.fraction + f.bias)
    scaled = ((shifted & ((1 << f.fraction) - 1)) + f.two_thirds).as_float()
    return e, scaled - 1.0, exponent << f.fraction


def _summed(e: Number, f: Number, base: str) -> Number:
    """The logarithm of 2**e (1 + f)."""
    form = _format(f)
    b = form.bases[base]
    square = f * f
    small = muladd(f * square, polynomial(f, form.log), square * -0.5)
    main = f
    if b.unit[1]:
        main = f * b.unit[0]
        small = muladd(small, b.unit[0], muladd(f, b.unit[1], fma(f, b.unit[0], -main)))
    return muladd(e, b.two[0], main + (muladd(e, b.two[1], small) if b.two[1] else small))


def _log(x: Number, base: str) -> Number:
    f = _format(x)
    smallest = 2.0 ** (1 - f.bias)
    is_small = x < smallest
    up = f.fraction + 2
    e, rest, _ = taken_apart(select(is_small, x * 2.0**up, x))
    made = _summed(select(is_small, e - up, e), rest, base)
    made = select(x < _INFINITY, made, x)
    made = select(x.equals(0.0), -_INFINITY, made)
    return select(x < 0.0, _NAN, made)


def log(x: Number) -> Number:
    """The natural logarithm."""
    return _log(x, "e")


def log2(x: Number) -> Number:
    """The logarithm to base 2."""
    return _log(x, "2")


def log10(x: Number) -> Number:
    """The logarithm to base 10."""
    return _log(x, "10")


def _log_of_sum(x: Number, rest: Number, doublings: Number | None = None) -> Number:
    """log(x + rest) for x from 1/2 up to where its inverse is no normal number, and a rest that is small beside it."""
    f = _format(x)
    e, main, exponent = taken_apart(x)
    inverse = ((2 * f.bias << f.fraction) - exponent).as_float()
    return _summed(e if doublings is None else e + doublings, muladd(rest, inverse, main), "e")


def log1p(x: Number) -> Number:
    """log(1 + x), exact near 0."""
    f = _format(x)
    # Far out the 1 is nothing, and what is needed near it may overflow.
    is_far = x > 2.0 ** (f.bias - 3)
    near = select(is_far, 1.0, x)
    total = near + 1.0
    rest = select(near < 1.0, near - (total - 1.0), 1.0 - (total - near))
    e, main, exponent = taken_apart(select(is_far, x, total))
    inverse = ((2 * f.bias << f.fraction) - exponent).as_float()
    made = _summed(e, select(is_far, main, muladd(rest, inverse, main)), "e").signed_as(x)
    made = select(x < _INFINITY, made, x)
    made = select(x.equals(-1.0), -_INFINITY, made)
    return select(x < -1.0, _NAN, made)


def _root(square: Number, rest: Number) -> tuple[Number, Number]:
    """The root of square + rest, and what its rounding left."""
    root = square.sqrt()
    tiny = 2.0 ** (2 - _format(square).bias)
    return root, (fma(-root, root, square) + rest) / (root + root + tiny)


def asinh(x: Number) -> Number:
    """The inverse hyperbolic sine."""
    f = _format(x)
    size, own = abs(x), x * x
    near = muladd(size * own, polynomial(own, f.asinh), size)
    # From far out on, log 2x.
    is_far = size > 2.0 ** (f.fraction / 2 + 2)
    bounded = select(is_far, 1.0, size)
    square = fma(bounded, bounded, 1.0)
    root, rest = _root(square, fma(bounded, bounded, 1.0 - square))
    total = bounded + root
    rest = (bounded - (total - root)) + rest
    made = _log_of_sum(select(is_far, size * 0.5, total), select(is_far, 0.0, rest), select(is_far, x.like(2.0), 0.0))
    made = select(size < 0.5, near, made)
    return select(size < _INFINITY, made, size).signed_as(x)


def acosh(x: Number) -> Number:
    """The inverse hyperbolic cosine."""
    f = _format(x)
    is_far = x > 2.0 ** (f.fraction / 2 + 2)
    above = select(is_far, 1.0, x - 1.0)
    double = above + above
    square = fma(above, above, double)
    root, rest = _root(square, fma(above, above, double - square))
    grown = above + root
    rest = select(above < root, above - (grown - root), root - (grown - above)) + rest
    total = grown + 1.0
    rest = select(grown < 1.0, grown - (total - 1.0), 1.0 - (total - grown)) + rest
    made = _log_of_sum(select(is_far, x * 0.5, total), select(is_far, 0.0, rest), select(is_far, x.like(2.0), 0.0))
    return select(x < 1.0, _NAN, select(x < _INFINITY, made, x))


def atanh(x: Number) -> Number:
    """The inverse hyperbolic tangent."""
    size, own = abs(x), x * x
    near = muladd(size * own, polynomial(own, _format(x).atanh), size)
    far = log((1.0 + size) / (1.0 - size)) * 0.5
    return select(size < 0.5, near, far).signed_as(x)
