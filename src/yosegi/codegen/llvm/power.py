"""pow: 2**(y log2 x).

The exponent's error becomes the result's, times up to a thousand: the logarithm needs more digits than the result. For
float it is a double, for double a sum of two.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import float32, float64
from .exponential import scaled
from .logarithm import taken_apart
from .number import Number, fma, muladd, polynomial, select, within

_INFINITY: Final = float("inf")
_NAN: Final = float("nan")
_LARGE: Final = 1.5 * 2.0**52 + 1023

_LOG2: Final = (
    1.44269504089257, -0.721347520469099, 0.4808983438071181, -0.36067375190574036, 0.2885394579074125,
    -0.24044998146225752, 0.20607535378005387, -0.18030249214903638, 0.16090196527223305, -0.14501408159874327,
    0.1234770322195424, -0.1117273655216951, 0.15779881782850247, -0.15057679364264315,
)  # fmt: skip
"""q in log2(1 + f) = f q(f), from -1/3 to 1/3, to 2**-38.5."""
_ATANH: Final = (
    0.19999999999999998, 0.1428571428571853, 0.11111111109016188, 0.09090909495266226, 0.07692269078358643,
    0.06668671440700642, 0.058249044658793755, 0.061089022360129225,
)  # fmt: skip
"""q in atanh s = s + s³/3 + s⁵ q(s²), up to 1/5, to 2**-53.5."""
_THIRD: Final = (0.3333333333333333, 1.850371707708594e-17)
_TWO_LOG2_E: Final = (2.8853900817779268, 4.0710547481862066e-17)
_EXP2_SHORT: Final = (
    0.6931471807047704, 0.24022651059190206, 0.05550410356718188, 0.00961804404781275, 0.00133339751898527,
    0.00015464832142800597, 1.518372675897981e-05,
)  # fmt: skip
"""q in 2**r = 1 + r q(r), from -1/2 to 1/2, to 2**-33.1."""
_EXP2: Final = (
    0.6931471805599453, 0.2402265069591007, 0.055504108664823505, 0.009618129107630168, 0.0013333558146013476,
    0.00015403530389571405, 1.5252734167242993e-05, 1.3215490132981425e-06, 1.01779404304603e-07,
    7.053649572477186e-09, 4.470931736619897e-10, 2.7417871065642384e-11,
)  # fmt: skip
"""q in 2**r = 1 + r q(r), from -1/2 to 1/2, to 2**-58.9."""


def pow(x: Number, y: Number) -> Number:
    """x**y."""
    size = abs(x)
    made = _of_single(size, y) if x.is_single else _of_double(size, y)
    is_whole, half = y.trunc().equals(y), y * 0.5
    made = select(is_whole & ~half.trunc().equals(half), made.signed_as(x), made)
    made = select((x < 0.0) & (size < _INFINITY) & ~is_whole, _NAN, made)
    is_one = x.equals(1.0) | y.equals(0.0) | (size.equals(1.0) & abs(y).equals(_INFINITY))
    return select(is_one, 1.0, made)


def _at_ends(size: Number, logarithm: Number) -> Number:
    """The logarithm, with those of 0, infinity and NaN."""
    return select(size.equals(0.0), -_INFINITY, select(size < _INFINITY, logarithm, size))


def _of_single(size: Number, y: Number) -> Number:
    x = size.to(float64)
    e, f, _ = taken_apart(x)
    exponent = within(y.to(float64) * _at_ends(x, muladd(f, polynomial(f, _LOG2), e)), -200.0, 200.0)
    total = exponent + _LARGE
    rest = exponent - (total - _LARGE)
    grown = muladd(rest, polynomial(rest, _EXP2_SHORT), 1.0)
    return (grown * (total.bits() << 52).as_float()).to(float32)


def _of_double(size: Number, y: Number) -> Number:
    is_small = size < 2.0**-1022
    e, f, _ = taken_apart(select(is_small, size * 2.0**54, size))
    high, low = _log2(select(is_small, e - 54.0, e), f)
    high = _at_ends(size, high)
    first = y * high
    more = muladd(y, low, fma(y, high, -first))
    more = select(abs(first) < 2000.0, more, 0.0)
    first = within(first, -1080.0, 1024.5)
    large = _LARGE - 1
    total = first + large
    rest = (first - (total - large)) + more
    return scaled(muladd(rest, polynomial(rest, _EXP2), 1.0), total.bits() << 52, first < -1020.0)


def _log2(e: Number, f: Number) -> tuple[Number, Number]:
    """log2 of 2**e (1 + f) as a sum of two, by way of the inverse hyperbolic tangent of s = f / (2 + f)."""
    below = f + 2.0
    inverse = 1.0 / below
    s = f * inverse
    s_more = (fma(-s, below, f) - s * (f - (below - 2.0))) * inverse
    square = s * s
    square_more = muladd(s * 2.0, s_more, fma(s, s, -square))
    little = square * polynomial(square, _ATANH)
    series = little + _THIRD[0]
    series_more = (little - (series - _THIRD[0])) + _THIRD[1]
    part = square * series
    part_more = fma(square, series, -part) + muladd(square, series_more, square_more * series)
    added = s * part
    added_more = fma(s, part, -added) + muladd(s, part_more, s_more * part)
    arc = s + added
    arc_more = (added - (arc - s)) + (s_more + added_more)
    whole = arc * _TWO_LOG2_E[0]
    whole_more = fma(arc, _TWO_LOG2_E[0], -whole) + muladd(arc, _TWO_LOG2_E[1], arc_more * _TWO_LOG2_E[0])
    high = e + whole
    return high, (whole - (high - e)) + whole_more
