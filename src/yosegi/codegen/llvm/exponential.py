"""exp, expm1, sinh, cosh, tanh, and erf.

x = n ln 2 + r with a whole n and |r| ≤ ln 2 / 2. Adding a large number rounds x / ln 2 to n, and leaves n in the low
bits of the sum, from where a shift makes 2**n of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..scalar.error_function import DOUBLE, SINGLE
from .number import Number, at_most, muladd, polynomial, select, within

_LOG2_E: Final = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class _ExponentialConstants:
    """Constants that depend on the float format. Polynomials are in order of rising powers."""

    fraction: int
    """The bits of a fraction."""
    bias: int
    ln2: tuple[float, float]
    """ln 2 as a sum of two parts: the first times n is exact."""
    low: float
    """The x below which e**x is 0."""
    high: float
    """The x above which e**x is infinite."""
    normal: float
    """The x above which e**x is no subnormal number."""
    lift: int
    """A power of two that lifts subnormal numbers up among the normal ones."""
    flat: float
    """The x above which tanh is 1."""
    bent: float
    """The x below which tanh has a polynomial."""
    exp: tuple[float, ...]
    """q in e**r = 1 + r + r² q(r)."""
    expm1: tuple[float, ...]
    """q in e**r = 1 + r + r² q(r), exact relative to e**r - 1."""
    sinh: tuple[float, ...]
    """q in sinh r = r + r³ q(r²)."""
    cosh: tuple[float, ...]
    """q in cosh r = 1 + r²/2 + r⁴ q(r²)."""
    tanh: tuple[float, ...]
    """q in tanh x = x + x³ q(x²)."""


_SINGLE: Final = _ExponentialConstants(
    fraction=23,
    bias=127,
    ln2=(0.693145751953125, 1.428606765330187e-06),
    low=-104.0,
    high=89.0,
    normal=-86.0,
    lift=64,
    flat=10.0,
    bent=0.6,
    exp=(0.5, 0.1666652262210846, 0.04166678339242935, 0.008368413895368576, 0.0013901537749916315),  # 2**-28.0
    expm1=(0.5, 0.1666666567325592, 0.04166649654507637, 0.008333530277013779, 0.0013932897709310055,
           0.0001977935608010739),  # 2**-30.4
    sinh=(0.1666666716337204, 0.00833317544311285, 0.00019974085444118828),  # 2**-34.3
    cosh=(0.041666459292173386, 0.0013935451861470938),  # 2**-33.3
    tanh=(-0.33333298563957214, 0.13331936299800873, -0.05378471687436104, 0.02079862542450428,
          -0.005897966679185629),  # 2**-28.4
)  # fmt: skip
_DOUBLE: Final = _ExponentialConstants(
    fraction=52,
    bias=1023,
    ln2=(0.6931471805598903, 5.497923018708371e-14),
    low=-746.0,
    high=710.0,
    normal=-706.0,
    lift=128,
    flat=20.0,
    bent=0.6,
    exp=(0.5000000000000011, 0.1666666666666647, 0.0416666666665297, 0.008333333333482087, 0.0013888888943489359,
         0.00019841269497994116, 2.4801493264385604e-05, 2.7557620001432394e-06, 2.7630219116402265e-07,
         2.4982064408081865e-08),  # 2**-57.2
    expm1=(0.5, 0.16666666666666677, 0.041666666666666685, 0.008333333333321756, 0.0013888888888890236,
           0.00019841269885392115, 2.4801587287236005e-05, 2.7557245160355632e-06, 2.755732299752106e-07,
           2.5108668861995768e-08, 2.089562690540874e-09),  # 2**-61.5
    sinh=(0.16666666666666666, 0.008333333333334428, 0.00019841269837066682, 2.7557326270285353e-06,
          2.5046737759595812e-08, 1.7592943415884156e-10),  # 2**-65.2
    cosh=(0.041666666666666685, 0.0013888888888873264, 2.4801587349281667e-05, 2.755725171838563e-07,
          2.0921810872560874e-09),  # 2**-70.0
    tanh=(-0.33333333333333326, 0.13333333333331865, -0.05396825396725824, 0.021869488502532584, -0.008863234866025504,
          0.003592119686956352, -0.0014557641716585426, 0.0005896223836788615, -0.0002375127749998604,
          9.248905581857108e-05, -3.1177932763608705e-05, 6.502998197325584e-06),  # 2**-62.6
)  # fmt: skip


def _format(x: Number) -> _ExponentialConstants:
    return _SINGLE if x.is_single else _DOUBLE


def _reduced(x: Number, shift: int, times: int = 1) -> tuple[Number, Number]:
    """r for so many times x, divided by as many; and 2**(n + shift) as bits, for as long as there is such a number."""
    f = _format(x)
    large = 1.5 * 2.0**f.fraction + f.bias + shift
    sum_ = muladd(x, times * _LOG2_E, large)
    n = sum_ - large
    r = muladd(n, -f.ln2[1] / times, muladd(n, -f.ln2[0] / times, x))
    return r, sum_.bits() << f.fraction


def scaled(x: Number, power: Number, is_low: Number) -> Number:
    """x times twice a power of two, given as bits, that may be too low to be a normal number where it is said to be."""
    f = _format(x)
    power = select(is_low, power + (f.lift << f.fraction), power)
    return x * power.as_float() * select(is_low, x.like(2.0 ** (1 - f.lift)), 2.0)


def exp(x: Number) -> Number:
    """e**x."""
    f = _format(x)
    # 2**n as twice 2**(n - 1), because for the largest results there is no 2**n.
    r, power = _reduced(within(x, f.low, f.high), -1)
    return scaled(polynomial(r, (1.0, 1.0, *f.exp)), power, x < f.normal)


def expm1(x: Number) -> Number:
    """e**x - 1, exact near 0."""
    f = _format(x)
    r, power = _reduced(within(x, f.low / 2, f.high), -1)
    half = power.as_float()
    little = muladd(r * r, polynomial(r, f.expm1), r)
    grown = muladd(little, half, half - 0.5) * 2.0
    return select(abs(x) < 0.3, little, grown).signed_as(x)


def tanh(x: Number) -> Number:
    """The hyperbolic tangent: 1 - 2 / (e**2|x| + 1), and near 0, where that would not be exact, a polynomial."""
    f = _format(x)
    size = abs(x)
    r, power = _reduced(at_most(size, f.flat), 0, 2)
    grown = polynomial(r, [c * 2.0**i for i, c in enumerate((1.0, 1.0, *f.exp))])
    far = muladd(1.0 / muladd(grown, power.as_float(), 1.0), -2.0, 1.0)
    square = x * x
    near = muladd(x * square, polynomial(square, f.tanh), x)
    return select(size < f.bent, near, far).signed_as(x)


def _grown(x: Number) -> tuple[Number, Number, Number, Number]:
    """sinh r, and cosh r - 1; and 2**(n - 3) and 2**(-n - 3), of which sinh and cosh of n ln 2 are made."""
    f = _format(x)
    r, power = _reduced(at_most(abs(x), f.high + 1), -3)
    square = r * r
    sine = muladd(r * square, polynomial(square, f.sinh), r)
    excess = square * polynomial(square, (0.5, *f.cosh))
    rising = power.as_float()
    # Nothing beside the other, long before it would be no normal number.
    inverse = (((2 * f.bias - 6) << f.fraction) - power).as_float()
    falling = select(rising < 2.0**f.fraction, inverse, 0.0)
    return sine, excess, rising, falling


def sinh(x: Number) -> Number:
    """The hyperbolic sine."""
    sine, excess, rising, falling = _grown(x)
    gap = rising - falling
    grown = (muladd(rising + falling, sine, gap * excess) + gap) * 4.0
    return select(abs(x) < 0.3, sine, grown).signed_as(x)


def cosh(x: Number) -> Number:
    """The hyperbolic cosine."""
    sine, excess, rising, falling = _grown(x)
    return (muladd(rising - falling, sine, muladd(rising + falling, excess, falling)) + rising) * 4.0


def erf(x: Number) -> Number:
    """2/√π times the integral of exp(-t**2) from 0 to x."""
    fit = SINGLE if x.is_single else DOUBLE
    size = at_most(abs(x), fit.end)
    square = size * size
    near = muladd(size, polynomial(square, fit.near), size)
    place = fit.scale / (size + 2.0) - fit.shift
    far = muladd(-exp(-square), polynomial(place, fit.far), 1.0)
    return select(size < 1.0, near, far).signed_as(x)
