"""Complex arithmetic and functions, written in the real primitives, part by part.

Formulas are Kahan's ("Branch cuts for complex elementary functions") where they are not the plain ones: they keep the
signs of zeros, and with them the sides of the branch cuts.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import TYPE_CHECKING, Final

from ..._tensor.dtype import real_of

if TYPE_CHECKING:
    from .primitives import Primitives
    from .value import Value

_LOG2_E: Final = 1.4426950408889634
_LOG10_E: Final = 0.4342944819032518


def _parts(k: Primitives, z: Value) -> tuple[Value, Value]:
    return k.real(z), k.imag(z)


def _infinite(k: Primitives, x: Value) -> Value:
    return k.const(float("inf"), x)


def _finite(k: Primitives, x: Value) -> Value:
    return k.lt(k.abs(x), _infinite(k, x))


def _times(k: Primitives, x: Value, number: float) -> Value:
    return k.mul(x, k.const(number, x))


def _turned(k: Primitives, z: Value, function: Callable[[Primitives, Value], Value]) -> Value:
    """-i f(iz): how the circular functions follow from the hyperbolic ones."""
    x, y = _parts(k, z)
    a, b = _parts(k, function(k, k.paired(z.dtype, k.neg(y), x)))
    return k.paired(z.dtype, b, k.neg(a))


# Arithmetic


def add(k: Primitives, a: Value, b: Value) -> Value:
    """a + b."""
    return k.paired(a.dtype, k.add(k.real(a), k.real(b)), k.add(k.imag(a), k.imag(b)))


def sub(k: Primitives, a: Value, b: Value) -> Value:
    """a - b."""
    return k.paired(a.dtype, k.sub(k.real(a), k.real(b)), k.sub(k.imag(a), k.imag(b)))


def mul(k: Primitives, a: Value, b: Value) -> Value:
    """a b, by the school's rule, as NumPy has it."""
    (ar, ai), (br, bi) = _parts(k, a), _parts(k, b)
    return k.paired(a.dtype, k.sub(k.mul(ar, br), k.mul(ai, bi)), k.add(k.mul(ar, bi), k.mul(ai, br)))


def div(k: Primitives, a: Value, b: Value) -> Value:
    """a / b, by Smith's method: no overflow on the way."""
    (ar, ai), (br, bi) = _parts(k, a), _parts(k, b)
    size_r, size_i = k.abs(br), k.abs(bi)
    wide = k.le(size_i, size_r)
    large, small = k.select(wide, br, bi), k.select(wide, bi, br)
    ratio = k.div(small, large)
    scale = k.div(k.const(1, br), k.add(large, k.mul(small, ratio)))
    real = k.select(wide, k.add(ar, k.mul(ai, ratio)), k.add(k.mul(ar, ratio), ai))
    imag = k.select(wide, k.sub(ai, k.mul(ar, ratio)), k.sub(k.mul(ai, ratio), ar))
    zero = k.const(0, br)
    nothing = k.and_(k.eq(br, zero), k.eq(bi, zero))
    return k.paired(
        a.dtype,
        k.select(nothing, k.div(ar, size_r), k.mul(real, scale)),
        k.select(nothing, k.div(ai, size_r), k.mul(imag, scale)),
    )


def sign(k: Primitives, z: Value) -> Value:
    """z / |z|, and 0 for 0."""
    x, y = _parts(k, z)
    size, zero = k.abs(z), k.const(0, x)
    far_x, far_y = k.isinf(x), k.isinf(y)
    nan = k.const(float("nan"), x)

    def part(own: Value, own_far: Value) -> Value:
        unit = k.select(k.eq(size, zero), zero, k.div(own, size))
        far = k.select(own_far, k.copysign(k.const(1, own), own), zero)
        return k.select(k.and_(far_x, far_y), nan, k.select(k.or_(far_x, far_y), far, unit))

    return k.paired(z.dtype, part(x, far_x), part(y, far_y))


def pow(k: Primitives, a: Value, b: Value) -> Value:
    """a**b: by repeated products for small whole b, as NumPy does, else by the logarithm."""
    (ar, ai), (br, bi) = _parts(k, a), _parts(k, b)
    zero, one = k.const(0, br), k.const(1, a)
    size = k.abs(br)
    whole = k.and_(k.and_(k.eq(bi, zero), k.eq(k.trunc(br), br)), k.lt(size, k.const(100, br)))

    def step(power: Value, base: Value, left: Value) -> tuple[Value, Value, Value]:
        half = k.floor(_times(k, left, 0.5))
        odd = k.lt(_times(k, half, 2), left)
        return k.select(odd, k.mul(power, base), power), k.mul(base, base), half

    power, _, _ = k.repeat(7, (one, a, k.select(whole, size, zero)), step)
    products = k.select(k.lt(br, zero), div(k, one, power), power)
    made = k.select(whole, products, exp(k, mul(k, b, log(k, a))))
    nan = k.const(complex("nan+nanj"), a)
    of_zero = k.select(k.lt(zero, br), k.const(0, a), nan)
    made = k.select(k.and_(k.eq(ar, zero), k.eq(ai, zero)), of_zero, made)
    return k.select(k.and_(k.eq(br, zero), k.eq(bi, zero)), one, made)


# Roots, exponentials, logarithms


def sqrt(k: Primitives, z: Value) -> Value:
    """The root with a positive real part."""
    x, y = _parts(k, z)
    zero, bits = k.const(0, x), real_of(z.dtype).bits
    largest = k.max(k.abs(x), k.abs(y))
    # Scaled by an even power of two, out of the reach of overflow and underflow.
    up, down = (2.0**40, 2.0**-20) if bits == 32 else (2.0**200, 2.0**-100)
    is_large = k.lt(k.const(2.0**120 if bits == 32 else 2.0**1000, x), largest)
    is_small = k.lt(largest, k.const(2.0**-80 if bits == 32 else 2.0**-900, x))
    scale = k.select(is_large, k.const(2.0**-8, x), k.select(is_small, k.const(up, x), k.const(1, x)))
    back = k.select(is_large, k.const(2.0**4, x), k.select(is_small, k.const(down, x), k.const(1, x)))
    sx, sy = k.mul(x, scale), k.mul(y, scale)
    root = k.sqrt(_times(k, k.add(k.abs(sx), k.hypot(sx, sy)), 0.5))
    other = k.div(k.abs(sy), _times(k, root, 2))
    left = k.lt(x, zero)
    real = k.mul(k.select(left, other, root), back)
    imag = k.copysign(k.mul(k.select(left, root, other), back), y)
    origin = k.eq(largest, zero)
    real, imag = k.select(origin, zero, real), k.select(origin, y, imag)
    # On the way to infinity: to the right along the axis, to the left upwards, else everywhere.
    infinity, nan = _infinite(k, x), k.const(float("nan"), x)
    known = k.eq(y, y)
    x_far = k.isinf(x)
    real = k.select(x_far, k.select(left, k.select(known, zero, nan), infinity), real)
    imag = k.select(
        x_far,
        k.select(left, k.copysign(infinity, y), k.select(known, k.copysign(zero, y), nan)),
        imag,
    )
    y_far = k.isinf(y)
    return k.paired(z.dtype, k.select(y_far, infinity, real), k.select(y_far, y, imag))


def exp(k: Primitives, z: Value) -> Value:
    """e**z."""
    x, y = _parts(k, z)
    zero = k.const(0, x)
    half = k.exp(_times(k, x, 0.5))
    large = k.lt(k.const(80 if real_of(z.dtype).bits == 32 else 700, x), x)
    size, rest = k.select(large, half, k.exp(x)), k.select(large, half, k.const(1, x))
    cosine, sine = k.cos(y), k.sin(y)
    real = k.mul(k.mul(size, cosine), rest)
    imag = k.mul(k.mul(size, sine), rest)
    gone = k.eq(x, k.neg(_infinite(k, x)))
    lost = k.and_(k.eq(x, _infinite(k, x)), k.not_(_finite(k, y)))
    real = k.select(gone, zero, k.select(lost, _infinite(k, x), real))
    level = k.eq(y, zero)
    real = k.select(level, k.exp(x), real)
    imag = k.select(level, y, k.select(k.and_(gone, k.not_(_finite(k, y))), zero, imag))
    return k.paired(z.dtype, real, imag)


def expm1(k: Primitives, z: Value) -> Value:
    """e**z - 1, exact near 0."""
    x, y = _parts(k, z)
    sine = k.sin(_times(k, y, 0.5))
    near = k.sub(k.mul(k.expm1(x), k.cos(y)), _times(k, k.mul(sine, sine), 2))
    whole = exp(k, z)
    is_near = k.lt(k.abs(x), k.const(20, x))
    return k.paired(z.dtype, k.select(is_near, near, k.sub(k.real(whole), k.const(1, x))), k.imag(whole))


def _log_size(k: Primitives, x: Value, y: Value) -> Value:
    """log |z|, exact where |z| is near 1, without overflow where it is large."""
    a, b = k.abs(x), k.abs(y)
    large, small = k.max(a, b), k.min(a, b)
    one = k.const(1, x)
    excess = k.add(k.mul(k.sub(large, one), k.add(large, one)), k.mul(small, small))
    near = k.and_(k.lt(k.const(0.5, x), large), k.lt(k.add(large, small), k.const(3, x)))
    shrunk = k.lt(k.const(2.0**100, x), large)
    scale = k.select(shrunk, k.const(2.0**-4, x), one)
    grown = k.select(shrunk, k.const(4 / _LOG2_E, x), k.const(0, x))
    far = k.add(k.log(k.hypot(k.mul(x, scale), k.mul(y, scale))), grown)
    return k.select(near, _times(k, k.log1p(excess), 0.5), far)


def log(k: Primitives, z: Value) -> Value:
    """The logarithm with an imaginary part in [-π, π]."""
    x, y = _parts(k, z)
    return k.paired(z.dtype, _log_size(k, x, y), k.atan2(y, x))


def log1p(k: Primitives, z: Value) -> Value:
    """log(1 + z), exact near 0."""
    x, y = _parts(k, z)
    shifted = k.add(x, k.const(1, x))
    near = k.and_(k.lt(k.abs(x), k.const(0.5, x)), k.lt(k.abs(y), k.const(0.5, x)))
    excess = k.add(k.mul(x, k.add(x, k.const(2, x))), k.mul(y, y))
    real = k.select(near, _times(k, k.log1p(excess), 0.5), _log_size(k, shifted, y))
    return k.paired(z.dtype, real, k.atan2(y, shifted))


def _scaled_log(factor: float) -> Callable[[Primitives, Value], Value]:
    def scaled(k: Primitives, z: Value) -> Value:
        x, y = _parts(k, log(k, z))
        return k.paired(z.dtype, _times(k, x, factor), _times(k, y, factor))

    return scaled


# Hyperbolic and circular functions


def _grown(k: Primitives, x: Value) -> tuple[Value, Value, Value]:
    """sinh and cosh of x but for a factor, without overflow before the product has it; and the factor."""
    large = k.lt(k.const(80 if real_of(x.dtype).bits == 32 else 700, x), k.abs(x))
    half = k.exp(_times(k, k.abs(x), 0.5))
    rising = _times(k, half, 0.5)
    factor = k.select(large, half, k.const(1, x))
    return k.select(large, k.copysign(rising, x), k.sinh(x)), k.select(large, rising, k.cosh(x)), factor


def sinh(k: Primitives, z: Value) -> Value:
    """sinh x cos y + i cosh x sin y."""
    x, y = _parts(k, z)
    s, c, factor = _grown(k, x)
    real, imag = k.mul(k.mul(s, k.cos(y)), factor), k.mul(k.mul(c, k.sin(y)), factor)
    zero = k.const(0, y)
    # With no direction y: an x of 0 or infinity is still known.
    kept = k.and_(k.not_(_finite(k, y)), k.or_(k.eq(x, zero), k.isinf(x)))
    level = k.eq(y, zero)
    return k.paired(z.dtype, k.select(level, k.sinh(x), k.select(kept, x, real)), k.select(level, y, imag))


def cosh(k: Primitives, z: Value) -> Value:
    """cosh x cos y + i sinh x sin y."""
    x, y = _parts(k, z)
    s, c, factor = _grown(k, x)
    real, imag = k.mul(k.mul(c, k.cos(y)), factor), k.mul(k.mul(s, k.sin(y)), factor)
    zero, lost = k.const(0, y), k.not_(_finite(k, y))
    real = k.select(k.and_(lost, k.isinf(x)), _infinite(k, x), real)
    imag = k.select(k.and_(lost, k.eq(x, zero)), zero, imag)
    level = k.eq(y, zero)
    flat = k.select(k.eq(x, x), k.mul(y, k.copysign(k.const(1, x), x)), y)
    return k.paired(z.dtype, k.select(level, k.cosh(x), real), k.select(level, flat, imag))


def tanh(k: Primitives, z: Value) -> Value:
    """The hyperbolic tangent."""
    x, y = _parts(k, z)
    zero, one = k.const(0, x), k.const(1, x)
    tangent, s = k.tan(y), k.sinh(x)
    beta = k.add(one, k.mul(tangent, tangent))
    rho = k.sqrt(k.add(one, k.mul(s, s)))
    below = k.add(one, k.mul(beta, k.mul(s, s)))
    real, imag = k.div(k.mul(k.mul(beta, rho), s), below), k.div(tangent, below)
    real = k.select(k.and_(k.eq(x, zero), k.not_(_finite(k, y))), x, real)
    imag = k.select(k.eq(y, zero), y, imag)
    far = k.lt(k.const(11 if real_of(z.dtype).bits == 32 else 22, x), k.abs(x))
    fading = _times(k, k.mul(k.sin(y), k.cos(y)), 4)
    faded = k.mul(fading, k.exp(_times(k, k.abs(x), -2)))
    faded = k.select(k.isinf(x), k.copysign(zero, y), faded)
    return k.paired(z.dtype, k.select(far, k.copysign(one, x), real), k.select(far, faded, imag))


def cos(k: Primitives, z: Value) -> Value:
    """cos z = cosh iz."""
    x, y = _parts(k, z)
    return cosh(k, k.paired(z.dtype, k.neg(y), x))


# Inverses


def _roots(k: Primitives, z: Value) -> tuple[Value, Value]:
    """The roots of 1 - z and of 1 + z. The zero of a real z keeps its sign in both."""
    x, y = _parts(k, z)
    one = k.const(1, x)
    minus = sqrt(k, k.paired(z.dtype, k.sub(one, x), k.neg(y)))
    return minus, sqrt(k, k.paired(z.dtype, k.add(one, x), y))


def _cross(k: Primitives, a: Value, b: Value) -> Value:
    """The imaginary part of conj(a) b."""
    return k.sub(k.mul(k.real(a), k.imag(b)), k.mul(k.imag(a), k.real(b)))


def _unknown(k: Primitives, x: Value, y: Value) -> Value:
    return k.not_(k.and_(k.eq(x, x), k.eq(y, y)))


def asin(k: Primitives, z: Value) -> Value:
    """The inverse sine."""
    x, y = _parts(k, z)
    minus, plus = _roots(k, z)
    below = k.sub(k.mul(k.real(minus), k.real(plus)), k.mul(k.imag(minus), k.imag(plus)))
    far = k.or_(k.isinf(x), k.isinf(y))
    below = k.select(far, k.select(k.isinf(y), _infinite(k, y), k.sub(y, y)), below)
    real = k.select(k.eq(x, k.const(0, x)), x, k.atan2(x, below))
    imag = k.select(far, k.copysign(_infinite(k, y), y), k.asinh(_cross(k, minus, plus)))
    return k.paired(z.dtype, real, imag)


def acos(k: Primitives, z: Value) -> Value:
    """The inverse cosine."""
    x, y = _parts(k, z)
    minus, plus = _roots(k, z)
    real = _times(k, k.atan2(k.real(minus), k.real(plus)), 2)
    on_axis = k.select(k.eq(x, k.const(0, x)), k.const(pi / 2, x), k.const(float("nan"), x))
    far = k.or_(k.isinf(x), k.isinf(y))
    real = k.select(far, k.atan2(k.abs(y), x), real)
    imag = k.select(far, k.neg(k.copysign(_infinite(k, y), y)), k.asinh(_cross(k, plus, minus)))
    return k.paired(z.dtype, k.select(_unknown(k, x, y), on_axis, real), imag)


def acosh(k: Primitives, z: Value) -> Value:
    """The inverse hyperbolic cosine."""
    x, y = _parts(k, z)
    one = k.const(1, x)
    minus = sqrt(k, k.paired(z.dtype, k.sub(x, one), y))
    plus = sqrt(k, k.paired(z.dtype, k.add(x, one), y))
    along = k.add(k.mul(k.real(minus), k.real(plus)), k.mul(k.imag(minus), k.imag(plus)))
    far = k.or_(k.isinf(x), k.isinf(y))
    on_axis = k.select(k.eq(x, k.const(0, x)), k.const(pi / 2, x), k.const(float("nan"), x))
    imag = k.select(far, k.atan2(y, x), _times(k, k.atan2(k.imag(minus), k.real(plus)), 2))
    imag = k.select(_unknown(k, x, y), on_axis, imag)
    return k.paired(z.dtype, k.select(far, _infinite(k, x), k.asinh(along)), imag)


def atanh(k: Primitives, z: Value) -> Value:
    """The inverse hyperbolic tangent."""
    x, y = _parts(k, z)
    zero, one, size = k.const(0, x), k.const(1, x), k.abs(x)
    gap = k.sub(one, size)
    squares = k.add(k.mul(gap, gap), k.mul(y, y))
    real = _times(k, k.log1p(k.div(_times(k, size, 4), squares)), 0.25)
    # At 1 the square of a small y may vanish.
    close = k.and_(k.eq(gap, zero), k.lt(k.abs(y), k.const(2.0**-40, y)))
    real = k.select(close, _times(k, k.log(k.div(k.const(2, y), k.abs(y))), 0.5), real)
    below = k.sub(k.mul(gap, k.add(one, size)), k.mul(y, y))
    imag = _times(k, k.atan2(_times(k, y, 2), below), 0.5)
    bound = k.const(2.0**60, x)
    far = k.or_(k.lt(bound, size), k.lt(bound, k.abs(y)))
    real = k.copysign(k.select(far, zero, real), x)
    imag = k.select(far, k.select(k.eq(y, y), k.copysign(k.const(pi / 2, y), y), y), imag)
    return k.paired(z.dtype, k.select(k.eq(x, zero), x, real), imag)


FUNCTIONS: Final[dict[str, Callable[[Primitives, Value], Value]]] = {
    "sqrt": sqrt, "exp": exp, "expm1": expm1,
    "log": log, "log1p": log1p, "log2": _scaled_log(_LOG2_E), "log10": _scaled_log(_LOG10_E),
    "sinh": sinh, "cosh": cosh, "tanh": tanh, "asinh": lambda k, z: _turned(k, z, asin),
    "sin": lambda k, z: _turned(k, z, sinh), "cos": cos, "tan": lambda k, z: _turned(k, z, tanh),
    "asin": asin, "acos": acos, "atan": lambda k, z: _turned(k, z, atanh), "acosh": acosh, "atanh": atanh,
}  # fmt: skip
"""The complex forms of the primitives of one argument."""
