"""Elementwise functions of NumPy's main namespace that the Array API standard does not have.

Each is written in other ops, so it runs on every device, under `jit`, and has their gradients.
"""

from __future__ import annotations

from math import inf, log, pi
from typing import Any, Final

from .._tensor.dtype import bool_, float_info, int32, int64, uint8, uint64
from .._tensor.tensor import Operand, Tensor
from . import rules
from .creation import zeros
from .decompositions import floating
from .elementwise import (
    abs,
    atan2,
    bitwise_right_shift,
    copysign,
    floor,
    floor_divide,
    imag,
    isfinite,
    isinf,
    isnan,
    log2,
    logaddexp,
    logical_and,
    logical_not,
    maximum,
    minimum,
    nextafter,
    pow,
    real,
    remainder,
    sign,
    signbit,
    sin,
    trunc,
    where,
)
from .types import astype, result_type

_EUCLID_STEPS: Final = {8: 14, 16: 25, 32: 48, 64: 95}
"""Divisions that Euclid's algorithm needs at most, by bits: the worst case are neighbours in Fibonacci's sequence."""


def _pair(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    """Two operands in their common dtype."""
    first, second = rules.as_tensors((x1, x2))
    common = result_type(first, second)
    return astype(first, common), astype(second, common)


# Angles


@rules.on_tensor
def deg2rad(x: Tensor, /) -> Tensor:
    """Element-wise angle in radians, of an angle in degrees.

    >>> import yosegi as ys
    >>> ys.deg2rad(ys.asarray([0.0, 180.0])).tolist()
    [0.0, 3.141592653589793]
    """
    return floating(x) * (pi / 180)


@rules.on_tensor
def rad2deg(x: Tensor, /) -> Tensor:
    """Element-wise angle in degrees, of an angle in radians.

    >>> import yosegi as ys
    >>> ys.rad2deg(ys.asarray(ys.pi)).tolist()
    180.0
    """
    return floating(x) * (180 / pi)


@rules.on_tensor
def angle(x: Tensor, /, deg: bool = False) -> Tensor:
    """Element-wise angle of complex numbers, in radians, or in degrees with `deg`.

    >>> import yosegi as ys
    >>> ys.angle(ys.asarray([1.0, 1j]), deg=True).tolist()
    [0.0, 90.0]
    """
    x = floating(x)
    angles = atan2(imag(x), real(x)) if x.dtype.is_complex else where(isnan(x), x, where(signbit(x), pi, 0))
    return rad2deg(angles) if deg else angles


@rules.on_tensor
def sinc(x: Tensor, /) -> Tensor:
    """Element-wise sin(πx) / (πx), which is 1 at 0.

    >>> import yosegi as ys
    >>> [round(v, 6) for v in ys.sinc(ys.asarray([0.0, 0.5])).tolist()]
    [1.0, 0.63662]
    """
    x = floating(x) * pi
    at_zero = x == 0
    safe = where(at_zero, 1, x)
    return where(at_zero, 1, sin(safe) / safe)


# Powers, roots and parts of floats


@rules.on_tensor
def exp2(x: Tensor, /) -> Tensor:
    """Element-wise 2**x.

    >>> import yosegi as ys
    >>> ys.exp2(ys.asarray([3, -1])).tolist()
    [8.0, 0.5]
    """
    return pow(2.0, floating(x))


@rules.named
def logaddexp2(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise log2(2**x1 + 2**x2), without overflow on the way.

    >>> import yosegi as ys
    >>> ys.logaddexp2(ys.asarray(3.0), ys.asarray(3.0)).tolist()
    4.0
    """
    first, second = _pair(x1, x2)
    return logaddexp(floating(first) * log(2), floating(second) * log(2)) * (1 / log(2))


@rules.on_tensor
def cbrt(x: Tensor, /) -> Tensor:
    """Element-wise cube root; that of a negative number is negative.

    >>> import yosegi as ys
    >>> ys.cbrt(ys.asarray([27.0, -8.0])).tolist()
    [3.0, -2.0]
    """
    x = floating(x)
    size = abs(x)
    ordinary = logical_and(size > 0, isfinite(size))
    safe = where(ordinary, size, 1)
    root = pow(safe, 1 / 3)
    root = root - (root - safe / (root * root)) / 3  # a step of Newton's: 1/3 is no float
    return where(ordinary, sign(x) * root, x)


@rules.named
def float_power(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise x1**x2 in float64, or in complex128 for complex operands.

    >>> import yosegi as ys
    >>> ys.float_power(ys.asarray([2, 3]), -1).tolist()
    [0.5, 0.3333333333333333]
    """
    first, second = _pair(x1, x2)
    wide = "complex128" if first.dtype.is_complex else "float64"
    return pow(astype(first, wide), astype(second, wide))


@rules.on_tensor
def fabs(x: Tensor, /) -> Tensor:
    """Element-wise magnitude of real numbers, as floats.

    >>> import yosegi as ys
    >>> ys.fabs(ys.asarray([-1, 2])).tolist()
    [1.0, 2.0]
    """
    rules.expect(x.dtype, "a real dtype", lambda d: not d.is_complex)
    return abs(floating(x))


@rules.on_tensor
def modf(x: Tensor, /) -> tuple[Tensor, Tensor]:
    """The fractional and the integral part of each element, both with its sign.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.modf(ys.asarray([1.5, -2.25]))]
    [[0.5, -0.25], [1.0, -2.0]]
    """
    x = floating(x)
    whole = trunc(x)
    return copysign(where(isinf(x), 0, x - whole), x), whole


@rules.named
def ldexp(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise x1 * 2**x2, of integers x2.

    >>> import yosegi as ys
    >>> ys.ldexp(ys.asarray([1.5, 3.0]), ys.asarray([2, -1])).tolist()
    [6.0, 1.5]
    """
    x, exponent = floating(rules.as_tensor(x1)), rules.as_tensor(x2)
    rules.expect(exponent.dtype, "an integer exponent", lambda d: d.is_integer)
    # Three powers of two, normal numbers each, lead from the smallest subnormal number to the largest number.
    limit = round(-log(float_info(x.dtype).smallest_normal, 2))
    rest = astype(exponent, x.dtype)
    for _ in range(3):
        step = minimum(maximum(rest, -limit), limit)
        x, rest = x * pow(2.0, step), rest - step
    return x


@rules.on_tensor
def frexp(x: Tensor, /) -> tuple[Tensor, Tensor]:
    """The mantissa, from 0.5 to below 1 in magnitude, and the int32 exponent of each element: x = m * 2**e.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.frexp(ys.asarray([8.0, -0.75]))]
    [[0.5, -0.75], [4, 0]]
    """
    x = floating(x)
    ordinary = logical_and(isfinite(x), x != 0)
    size = where(ordinary, abs(x), 1)
    exponent = astype(floor(log2(size)), int32) + 1
    mantissa = ldexp(size, -exponent)
    high, low = mantissa >= 1, mantissa < 0.5  # a logarithm may be rounded across a power of two
    mantissa = where(high, mantissa * 0.5, where(low, mantissa * 2, mantissa))
    exponent = where(high, exponent + 1, where(low, exponent - 1, exponent))
    return where(ordinary, copysign(mantissa, x), x), where(ordinary, exponent, 0)


@rules.on_tensor
def spacing(x: Tensor, /) -> Tensor:
    """Element-wise distance to the next float away from 0, with the sign of the element.

    >>> import yosegi as ys
    >>> ys.spacing(ys.asarray([1.0, -1.0])).tolist()
    [2.220446049250313e-16, -2.220446049250313e-16]
    """
    x = floating(x)
    size = abs(x)
    return copysign(nextafter(size, inf) - size, x)


# Comparisons and selections


@rules.named
def heaviside(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise step function: 0 below 0, x2 at 0, 1 above.

    >>> import yosegi as ys
    >>> ys.heaviside(ys.asarray([-1.0, 0.0, 2.0]), 0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    first, second = (floating(t) for t in _pair(x1, x2))
    return where(isnan(first), first, where(first < 0, 0, where(first > 0, 1, second)))


@rules.named
def fmax(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise larger of two numbers; a number wins over a NaN.

    >>> import yosegi as ys
    >>> ys.fmax(ys.asarray([1.0, ys.nan]), 0.0).tolist()
    [1.0, 0.0]
    """
    first, second = _pair(x1, x2)
    if not first.dtype.is_inexact:
        return maximum(first, second)
    return where(isnan(first), second, where(isnan(second), first, maximum(first, second)))


@rules.named
def fmin(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise smaller of two numbers; a number wins over a NaN.

    >>> import yosegi as ys
    >>> ys.fmin(ys.asarray([1.0, ys.nan]), 2.0).tolist()
    [1.0, 2.0]
    """
    first, second = _pair(x1, x2)
    if not first.dtype.is_inexact:
        return minimum(first, second)
    return where(isnan(first), second, where(isnan(second), first, minimum(first, second)))


@rules.on_tensor
def isposinf(x: Tensor, /) -> Tensor:
    """Element-wise: is it positive infinity?

    >>> import yosegi as ys
    >>> ys.isposinf(ys.asarray([ys.inf, -ys.inf, 0.0])).tolist()
    [True, False, False]
    """
    return logical_and(isinf(x), x > 0)


@rules.on_tensor
def isneginf(x: Tensor, /) -> Tensor:
    """Element-wise: is it negative infinity?

    >>> import yosegi as ys
    >>> ys.isneginf(ys.asarray([ys.inf, -ys.inf, 0.0])).tolist()
    [False, True, False]
    """
    return logical_and(isinf(x), x < 0)


@rules.on_tensor
def isreal(x: Tensor, /) -> Tensor:
    """Element-wise: is the imaginary part 0?

    >>> import yosegi as ys
    >>> ys.isreal(ys.asarray([1.0, 1j])).tolist()
    [True, False]
    """
    return logical_not(iscomplex(x))


@rules.on_tensor
def iscomplex(x: Tensor, /) -> Tensor:
    """Element-wise: is the imaginary part other than 0?

    >>> import yosegi as ys
    >>> ys.iscomplex(ys.asarray([1.0, 1j])).tolist()
    [False, True]
    """
    return imag(x) != 0 if x.dtype.is_complex else zeros(x.shape, bool_)


@rules.on_tensor
def nan_to_num(
    x: Tensor, /, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """The elements with NaN and infinities replaced by numbers.

    - `copy`: changes nothing here; tensors are values.
    - `nan`: what replaces NaN.
    - `posinf`, `neginf`: what replace the infinities; by default the largest and the smallest number of the dtype.

    >>> import yosegi as ys
    >>> ys.nan_to_num(ys.asarray([ys.nan, ys.inf, 1.0]), posinf=9.0).tolist()
    [0.0, 9.0, 1.0]
    """
    if not x.dtype.is_inexact:
        return x
    if x.dtype.is_complex:
        return nan_to_num(real(x), copy, nan, posinf, neginf) + 1j * nan_to_num(imag(x), copy, nan, posinf, neginf)
    info = float_info(x.dtype)
    upper, lower = info.max if posinf is None else posinf, info.min if neginf is None else neginf
    return where(isnan(x), nan, where(x == inf, upper, where(x == -inf, lower, x)))


# Division and integers


@rules.named
def fmod(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise remainder with the sign of the dividend x1, as in C; `remainder` has that of the divisor.

    >>> import yosegi as ys
    >>> ys.fmod(ys.asarray([-7, 7]), 3).tolist()
    [-1, 1]
    """
    first, second = _pair(x1, x2)
    if first.dtype.kind == "unsigned integer":
        return remainder(first, second)
    if first.dtype.is_float:
        return copysign(remainder(abs(first), abs(second)), first)
    rest = remainder(first, second)  # not of magnitudes: that of the smallest integer does not fit
    return where(logical_and(rest != 0, (first < 0) != (second < 0)), rest - second, rest)


@rules.named
def divmod(x1: Operand, x2: Operand, /) -> tuple[Tensor, Tensor]:
    """Element-wise quotient, rounded down, and remainder.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.divmod(ys.asarray([7, -7]), 3)]
    [[2, -3], [1, 2]]
    """
    first, second = _pair(x1, x2)
    return floor_divide(first, second), remainder(first, second)


@rules.named
def gcd(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise greatest common divisor of integers.

    >>> import yosegi as ys
    >>> ys.gcd(ys.asarray([12, -8, 0]), 20).tolist()
    [4, 4, 20]
    """
    first, second = _pair(x1, x2)
    rules.expect(first.dtype, "an integer dtype", lambda d: d.is_integer)
    a, b = first, second
    for _ in range(_EUCLID_STEPS[first.dtype.bits]):
        a, b = where(b == 0, a, b), remainder(a, b)  # by 0 it is 0
    return abs(a)


@rules.named
def lcm(x1: Operand, x2: Operand, /) -> Tensor:
    """Element-wise least common multiple of integers.

    >>> import yosegi as ys
    >>> ys.lcm(ys.asarray([4, 6]), 10).tolist()
    [20, 30]
    """
    first, second = _pair(x1, x2)
    return abs(floor_divide(first, gcd(first, second))) * abs(second)


@rules.on_tensor
def bitwise_count(x: Tensor, /) -> Tensor:
    """Element-wise number of ones among the bits of the magnitude of integers, as uint8.

    >>> import yosegi as ys
    >>> ys.bitwise_count(ys.asarray([0, 7, -8])).tolist()
    [0, 3, 1]
    """
    rules.expect(x.dtype, "an integer or bool dtype", lambda d: d.is_integer or d is bool_)
    bits = astype(x if x.dtype is bool_ or x.dtype.kind == "unsigned integer" else abs(astype(x, int64)), uint64)
    bits = bits - ((bits >> 1) & 0x5555555555555555)
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    return astype(bitwise_right_shift(bits * 0x0101010101010101, 56), uint8)


__all__ = [
    "angle", "bitwise_count", "cbrt", "deg2rad", "divmod", "exp2", "fabs", "float_power", "fmax", "fmin", "fmod",
    "frexp", "gcd", "heaviside", "iscomplex", "isneginf", "isposinf", "isreal", "lcm", "ldexp", "logaddexp2", "modf",
    "nan_to_num", "rad2deg", "sinc", "spacing",
]  # fmt: skip
