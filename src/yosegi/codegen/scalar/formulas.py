"""Primitives on real numbers that languages lack, written in the primitives that they have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..._tensor.dtype import DType, int32, int64

if TYPE_CHECKING:
    from .primitives import Primitives
    from .value import Value

_LN2: Final = 0.6931471805599453


def divided(k: Primitives, a: Value, b: Value) -> tuple[Value, Value]:
    """The quotient, rounded down, and the remainder, with the sign of `b`."""
    return _floats_divided(k, a, b) if a.dtype.is_float else _integers_divided(k, a, b)


def _integers_divided(k: Primitives, a: Value, b: Value) -> tuple[Value, Value]:
    """Zeros for a division by zero. Neither that nor the overflowing x / -1 is ever computed: they stop a processor."""
    zero, one = k.const(0, a), k.const(1, a)
    by_zero = k.eq(b, zero)
    signed = a.dtype.kind == "signed integer"
    by_minus = k.eq(b, k.const(-1, b)) if signed else by_zero
    safe = k.select(k.or_(by_zero, by_minus), one, b)
    quotient = k.arithmetic("/", a, safe)
    remainder = k.sub(a, k.mul(quotient, safe))
    if signed:
        opposed = k.xor(k.lt(remainder, zero), k.lt(safe, zero))
        down = k.and_(opposed, k.not_(k.eq(remainder, zero)))
        quotient = k.select(by_minus, k.neg(a), k.select(down, k.sub(quotient, one), quotient))
        remainder = k.select(by_minus, zero, k.select(down, k.add(remainder, safe), remainder))
    return k.select(by_zero, zero, quotient), k.select(by_zero, zero, remainder)


def _floats_divided(k: Primitives, a: Value, b: Value) -> tuple[Value, Value]:
    """NumPy's `divmod`, step by step; the quotient stays where an infinity takes part."""
    zero, one = k.const(0, a), k.const(1, a)
    quotient = k.div(a, b)
    rest = k.function("fmod", a, b)
    exact = k.eq(rest, zero)
    opposed = k.and_(k.xor(k.lt(rest, zero), k.lt(b, zero)), k.not_(exact))
    whole = k.div(k.sub(a, rest), b)
    whole = k.select(opposed, k.sub(whole, one), whole)
    down = k.floor(whole)
    down = k.select(k.lt(k.const(0.5, a), k.sub(whole, down)), k.add(down, one), down)
    down = k.select(k.eq(whole, zero), k.copysign(zero, quotient), down)
    infinity = k.const(float("inf"), a)
    finite = k.and_(k.lt(k.abs(quotient), infinity), k.lt(k.abs(b), infinity))
    remainder = k.select(exact, k.copysign(zero, b), k.select(opposed, k.add(rest, b), rest))
    return k.select(finite, down, quotient), remainder


def integer_power(k: Primitives, a: Value, b: Value) -> Value:
    """a**b by squaring; 1/a rounded towards 0 for -1, and its powers, for negative b."""
    zero, one = k.const(0, a), k.const(1, a)

    def step(power: Value, base: Value, left: Value) -> tuple[Value, Value, Value]:
        odd = k.not_(k.eq(k.and_(left, one), zero))
        return k.select(odd, k.mul(power, base), power), k.mul(base, base), k.shr(left, one)

    power, _, _ = k.repeat(a.dtype.bits, (one, a, b), step)
    if a.dtype.kind == "unsigned integer":
        return power
    odd = k.not_(k.eq(k.and_(b, one), zero))
    minus = k.const(-1, a)
    unit = k.select(k.eq(a, minus), k.select(odd, minus, one), zero)
    return k.select(k.lt(b, zero), k.select(k.eq(a, one), one, unit), power)


def tanh(k: Primitives, x: Value) -> Value:
    """The hyperbolic tangent in float, from exp: a third of the time that libraries take."""
    size = k.abs(x)
    square = k.mul(x, x)
    series = k.const(-5.70498872745e-3, x)  # near 0, of Cephes
    for c in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        series = k.add(k.mul(series, square), k.const(c, x))
    near = k.add(size, k.mul(k.mul(size, square), series))
    one, two = k.const(1, x), k.const(2, x)
    far = k.sub(one, k.div(two, k.add(k.exp(k.mul(size, two)), one)))
    return k.copysign(k.select(k.lt(size, k.const(0.625, x)), near, far), x)


def logaddexp(k: Primitives, a: Value, b: Value) -> Value:
    """log(e**a + e**b), without overflow on the way."""
    apart = k.add(k.max(a, b), k.log1p(k.exp(k.neg(k.abs(k.sub(a, b))))))
    return k.select(k.eq(a, b), k.add(a, k.const(_LN2, a)), apart)


def truncated(k: Primitives, x: Value, dtype: DType) -> Value:
    """A float as an integer: through a wider signed one, so that negative numbers wrap as NumPy's do."""
    if dtype.bits < 32:
        return k.converted(k.converted(x, int32), dtype)
    if dtype.kind == "signed integer":
        return k.converted(x, dtype)
    signed = k.converted(k.converted(x, int64), dtype)
    if dtype.bits < 64:
        return signed
    half = k.const(2.0**63, x)
    upper = k.converted(k.converted(k.sub(x, half), int64), dtype)
    return k.select(k.lt(x, half), signed, k.add(upper, k.const(1 << 63, upper)))


WRITTEN_OUT: Final[dict[str, Callable[..., Value]]] = {"tanh": tanh}
"""Functions of floats that a dialect may have computed by formulas."""
