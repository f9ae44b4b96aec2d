"""Elementwise ops: one output element from one element of each input, with broadcasting.

Gradients hold for complex inputs too: for a holomorphic f they give g * conj(f'(x)), so that the gradient of a real
loss is dL/d(Re x) + i dL/d(Im x), the direction of steepest ascent. `conj` of a real tensor is the tensor itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from math import log as _ln
from typing import Any

import numpy as np

from .._tensor.dtype import DType, bool_, int_info, number_type
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, Op, OpKind, convert, flat, op
from .._tensor.role import Arithmetic, Nonnegative, Power
from .._tensor.tensor import Operand, Tensor
from ..errors import ArgumentError
from . import rules

_op = partial(op, OpKind.ACTIVATION, promotes_from=0)
_math = partial(_op, infer=rules.floating, inexact=True)
_real_math = partial(_op, infer=rules.real_floating, inexact=True)

# Arithmetic


@_op(infer=rules.numeric, ufunc=np.add, operator="add", vjp=lambda g, out, a, b: (g, g),
     scalar=lambda k, a, b: k.add(a, b), role=Arithmetic.PLUS)  # fmt: skip
def add(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise sum."""


@_op(infer=rules.numeric, ufunc=np.subtract, operator="sub", vjp=lambda g, out, a, b: (g, -g),
     scalar=lambda k, a, b: k.sub(a, b), linear=((0, 1),))  # fmt: skip
def subtract(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise difference."""


@_op(infer=rules.numeric, ufunc=np.multiply, operator="mul", vjp=lambda g, out, a, b: (g * conj(b), g * conj(a)),
     scalar=lambda k, a, b: k.mul(a, b), role=Arithmetic.TIMES)  # fmt: skip
def multiply(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise product."""


@_math(ufunc=np.true_divide, operator="truediv", vjp=lambda g, out, a, b: (g / conj(b), -g * conj(out / b)),
       scalar=lambda k, a, b: k.div(a, b), linear=((0,),))  # fmt: skip
def divide(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise quotient. Integers are divided as floats."""


@_op(infer=rules.real, operator="floordiv", vjp=flat, scalar=lambda k, a, b: k.floordiv(a, b))
def floor_divide(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise quotient, rounded down. An integer divided by zero is 0."""
    if x1.dtype.kind != "f":
        return np.floor_divide(x1, x2)
    # With an infinity on either side the standard keeps the quotient, where NumPy gives NaN or -1.
    quotient = np.true_divide(x1, x2)
    return np.where(np.isfinite(quotient) & np.isfinite(x2), np.floor_divide(x1, x2), quotient)


@_op(infer=rules.real, operator="mod", ufunc=np.remainder, scalar=lambda k, a, b: k.mod(a, b),
     vjp=lambda g, out, a, b: (g, -g * floor_divide(a, b)))  # fmt: skip
def remainder(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise remainder of `floor_divide`, with the sign of `x2`."""


@_op(infer=rules.numeric, operator="pow", scalar=lambda k, a, b: k.pow(a, b), role=Power(),
     vjp=lambda g, out, a, b: (g * conj(_power_slope(a, b)), g * conj(out * _safe_log(a))))  # fmt: skip
def pow(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise power. An integer to a negative power is its reciprocal's integer part: 0, but for 1 and -1."""
    if x2.dtype.kind != "i":
        return np.power(x1, x2)
    inverse = np.where(np.abs(x1) == 1, np.power(x1, x2 % 2), 0)
    return np.where(x2 < 0, inverse, np.power(x1, np.maximum(x2, 0)))


def _power_slope(a: Tensor, b: Tensor) -> Tensor:
    """b * a**(b - 1), and 0 for b = 0, whatever a."""
    return where(b == 0, 0, b * a ** where(b == 0, 1, b - 1))


def _safe_log(x: Tensor) -> Tensor:
    """log(x), and 0 where a power's gradient to its exponent is 0 by continuity: 0**b and powers of negatives."""
    if x.dtype.is_complex:
        return where(x == 0, 0, log(where(x == 0, 1, x)))
    return where(x > 0, log(where(x > 0, x, 1)), 0)


@_op(infer=rules.numeric, ufunc=np.negative, operator="neg", vjp=lambda g, out, x: (-g,), scalar=lambda k, x: k.neg(x),
     linear=((0,),))  # fmt: skip
def negative(x: Arr, /) -> Arr:
    """Element-wise -x."""


@_op(infer=rules.numeric, ufunc=np.positive, operator="pos", vjp=lambda g, out, x: (g,), scalar=lambda k, x: x,
     linear=((0,),))  # fmt: skip
def positive(x: Arr, /) -> Arr:
    """Element-wise +x."""


@_op(infer=rules.magnitude, ufunc=np.absolute, operator="abs", vjp=lambda g, out, x: (g * sign(x),),
     scalar=lambda k, x: k.abs(x), role=Nonnegative())  # fmt: skip
def abs(x: Arr, /) -> Arr:
    """Element-wise magnitude; real for complex input."""


@_op(infer=rules.numeric, ufunc=np.sign, vjp=lambda g, out, x: (_sign_vjp(g, out, x),), scalar=lambda k, x: k.sign(x))
def sign(x: Arr, /) -> Arr:
    """Element-wise sign: -1, 0 or 1; x / |x| for complex input."""


def _sign_vjp(g: Tensor, out: Tensor, x: Tensor) -> Tensor | None:
    if not x.dtype.is_complex:
        return None
    size = abs(x)
    return where(size == 0, 0, (g - out * real(conj(out) * g)) / where(size == 0, 1, size))


@_math(real_ufunc=np.reciprocal, vjp=lambda g, out, x: (-g * conj(out * out),),
       scalar=lambda k, x: k.div(k.const(1, x), x))  # fmt: skip
def reciprocal(x: Arr, /) -> Arr:
    """Element-wise 1/x."""
    return np.true_divide(1, x)  # NumPy's complex reciprocal knows no infinity at 0


@_op(infer=rules.numeric, ufunc=np.square, vjp=lambda g, out, x: (2 * g * conj(x),), scalar=lambda k, x: k.mul(x, x),
     role=Nonnegative())  # fmt: skip
def square(x: Arr, /) -> Arr:
    """Element-wise x*x."""


@_math(ufunc=np.sqrt, vjp=lambda g, out, x: (g / conj(2 * out),), scalar=lambda k, x: k.sqrt(x))
def sqrt(x: Arr, /) -> Arr:
    """Element-wise square root."""


@_real_math(ufunc=np.hypot, vjp=lambda g, out, a, b: (g * a / out, g * b / out), scalar=lambda k, a, b: k.hypot(a, b))
def hypot(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise sqrt(x1**2 + x2**2), without overflow on the way."""


@_op(infer=rules.real, ufunc=np.maximum, scalar=lambda k, a, b: k.max(a, b),
     vjp=lambda g, out, a, b: (g * _share(a, b), g * _share(b, a)))  # fmt: skip
def maximum(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise larger of two; NaN if either is."""


@_op(infer=rules.real, ufunc=np.minimum, scalar=lambda k, a, b: k.min(a, b),
     vjp=lambda g, out, a, b: (g * _share(b, a), g * _share(a, b)))  # fmt: skip
def minimum(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise smaller of two; NaN if either is."""


def _share(a: Tensor, b: Tensor) -> Tensor:
    """1 where a is the larger, 0 where it is not, 1/2 on a tie: the share of the gradient that goes to a."""
    return where(a > b, 1, where(a == b, 0.5, 0)).astype(a.dtype)


@_real_math(ufunc=np.copysign, vjp=lambda g, out, a, b: (g * sign(a) * sign(out), None),
            scalar=lambda k, a, b: k.copysign(a, b))  # fmt: skip
def copysign(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise magnitude of `x1` with the sign of `x2`."""


@_real_math(computes_half=True, vjp=lambda g, out, a, b: (g, None), scalar=lambda k, a, b: k.nextafter(a, b))
def nextafter(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise next representable number from `x1` towards `x2`."""
    return np.where(x1 == x2, x2, np.nextafter(x1, x2))  # of two zeros NumPy's float16 keeps the wrong one


# Rounding


@_op(infer=rules.real, vjp=flat, scalar=lambda k, x: k.floor(x))
def floor(x: Arr, /) -> Arr:
    """Element-wise largest integer not above x."""
    return np.floor(x) if x.dtype.kind == "f" else x


@_op(infer=rules.real, vjp=flat, scalar=lambda k, x: k.ceil(x))
def ceil(x: Arr, /) -> Arr:
    """Element-wise smallest integer not below x."""
    return np.ceil(x) if x.dtype.kind == "f" else x


@_op(infer=rules.real, vjp=flat, scalar=lambda k, x: k.trunc(x))
def trunc(x: Arr, /) -> Arr:
    """Element-wise integer part of x."""
    return np.trunc(x) if x.dtype.kind == "f" else x


@_op(infer=rules.numeric, vjp=flat, scalar=lambda k, x: k.rint(x))
def round_(x: Arr, /) -> Arr:
    """Element-wise nearest integer; halves go to the even one."""
    return np.rint(x) if x.dtype.kind in "fc" else x


@rules.on_tensor
def round(x: Tensor, /, decimals: int = 0) -> Tensor:
    """Element-wise nearest number of so many decimals, by default the nearest integer; halves go to the even one.

    - `decimals`: the digits behind the point; negative ones are before it.

    >>> import yosegi as ys
    >>> ys.round(ys.asarray([2.5, -1.25]), 1).tolist(), ys.round(ys.asarray([2.5, -1.25])).tolist()
    ([2.5, -1.2], [2.0, -1.0])
    """
    places = rules.as_index(decimals, "decimals")
    if places == 0 or (places > 0 and x.dtype.is_integer):
        return round_(x)
    unit = 10 ** math.fabs(places)
    if x.dtype.is_integer:
        return convert(round_(divide(x, unit)) * unit, dtype=x.dtype)
    return round_(x * unit) / unit if places > 0 else round_(x / unit) * unit


# Exponentials and logarithms


@_math(ufunc=np.exp, vjp=lambda g, out, x: (g * conj(out),), scalar=lambda k, x: k.exp(x), role=Nonnegative())
def exp(x: Arr, /) -> Arr:
    """Element-wise e**x."""


@_math(real_ufunc=np.expm1, vjp=lambda g, out, x: (g * conj(out + 1),), scalar=lambda k, x: k.expm1(x))
def expm1(x: Arr, /) -> Arr:
    """Element-wise e**x - 1, exact near 0."""
    # NumPy's complex expm1 knows no infinities, and gives -0 for -0+0j.
    return np.where(np.isfinite(x), np.expm1(x) + 0, np.exp(x) - 1).astype(x.dtype, copy=False)


@_math(ufunc=np.log, vjp=lambda g, out, x: (g / conj(x),), scalar=lambda k, x: k.log(x))
def log(x: Arr, /) -> Arr:
    """Element-wise natural logarithm."""


@_math(ufunc=np.log1p, vjp=lambda g, out, x: (g / conj(x + 1),), scalar=lambda k, x: k.log1p(x))
def log1p(x: Arr, /) -> Arr:
    """Element-wise log(1 + x), exact near 0."""


@_math(ufunc=np.log2, vjp=lambda g, out, x: (g / conj(x * _ln(2)),), scalar=lambda k, x: k.log2(x))
def log2(x: Arr, /) -> Arr:
    """Element-wise base-2 logarithm."""


@_math(ufunc=np.log10, vjp=lambda g, out, x: (g / conj(x * _ln(10)),), scalar=lambda k, x: k.log10(x))
def log10(x: Arr, /) -> Arr:
    """Element-wise base-10 logarithm."""


@_real_math(ufunc=np.logaddexp, vjp=lambda g, out, a, b: (g * exp(a - out), g * exp(b - out)),
            scalar=lambda k, a, b: k.logaddexp(a, b))  # fmt: skip
def logaddexp(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise log(e**x1 + e**x2), without overflow on the way."""


# Trigonometry


@_math(ufunc=np.sin, vjp=lambda g, out, x: (g * conj(cos(x)),), scalar=lambda k, x: k.sin(x))
def sin(x: Arr, /) -> Arr:
    """Element-wise sine."""


@_math(ufunc=np.cos, vjp=lambda g, out, x: (-g * conj(sin(x)),), scalar=lambda k, x: k.cos(x))
def cos(x: Arr, /) -> Arr:
    """Element-wise cosine."""


@_math(ufunc=np.tan, vjp=lambda g, out, x: (g * conj(1 + out * out),), scalar=lambda k, x: k.tan(x))
def tan(x: Arr, /) -> Arr:
    """Element-wise tangent."""


@_math(ufunc=np.arcsin, vjp=lambda g, out, x: (g / conj(sqrt(1 - x * x)),), scalar=lambda k, x: k.asin(x))
def asin(x: Arr, /) -> Arr:
    """Element-wise inverse sine."""


@_math(ufunc=np.arccos, vjp=lambda g, out, x: (-g / conj(sqrt(1 - x * x)),), scalar=lambda k, x: k.acos(x))
def acos(x: Arr, /) -> Arr:
    """Element-wise inverse cosine."""


@_math(ufunc=np.arctan, vjp=lambda g, out, x: (g / conj(1 + x * x),), scalar=lambda k, x: k.atan(x))
def atan(x: Arr, /) -> Arr:
    """Element-wise inverse tangent."""


@_real_math(ufunc=np.arctan2, scalar=lambda k, a, b: k.atan2(a, b),
            vjp=lambda g, out, a, b: (g * b / (a * a + b * b), -g * a / (a * a + b * b)))  # fmt: skip
def atan2(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise angle of the point (x2, x1)."""


@_math(ufunc=np.sinh, vjp=lambda g, out, x: (g * conj(cosh(x)),), scalar=lambda k, x: k.sinh(x))
def sinh(x: Arr, /) -> Arr:
    """Element-wise hyperbolic sine."""


@_math(ufunc=np.cosh, vjp=lambda g, out, x: (g * conj(sinh(x)),), scalar=lambda k, x: k.cosh(x))
def cosh(x: Arr, /) -> Arr:
    """Element-wise hyperbolic cosine."""


@_math(real_ufunc=np.tanh, vjp=lambda g, out, x: (g * conj(1 - out * out),), scalar=lambda k, x: k.tanh(x))
def tanh(x: Arr, /) -> Arr:
    """Element-wise hyperbolic tangent."""
    out = np.tanh(x)  # at a real infinity the imaginary part is 0 with the sign of x's, where NumPy has sin(2x)'s
    far = np.isinf(x.real) & np.isfinite(x.imag)
    return np.where(far, out.real + 1j * np.copysign(0, x.imag), out).astype(x.dtype, copy=False)


@_math(ufunc=np.arcsinh, vjp=lambda g, out, x: (g / conj(sqrt(x * x + 1)),), scalar=lambda k, x: k.asinh(x))
def asinh(x: Arr, /) -> Arr:
    """Element-wise inverse hyperbolic sine."""


@_math(ufunc=np.arccosh, vjp=lambda g, out, x: (g / conj(sqrt(x - 1) * sqrt(x + 1)),), scalar=lambda k, x: k.acosh(x))
def acosh(x: Arr, /) -> Arr:
    """Element-wise inverse hyperbolic cosine."""


@_math(ufunc=np.arctanh, vjp=lambda g, out, x: (g / conj(1 - x * x),), scalar=lambda k, x: k.atanh(x))
def atanh(x: Arr, /) -> Arr:
    """Element-wise inverse hyperbolic tangent."""


# Complex numbers

_complex = partial(op, OpKind.COMPLEX, promotes_from=0)


@_complex(infer=rules.complex_part, vjp=lambda g, out, x: (g,), scalar=lambda k, x: k.real(x), linear=((0,),))
def real_part(x: Arr, /) -> Arr:
    """Element-wise real part of a complex tensor."""
    return np.real(x)


@_complex(infer=rules.complex_part, vjp=lambda g, out, x: (g * 1j,), scalar=lambda k, x: k.imag(x), linear=((0,),))
def imag_part(x: Arr, /) -> Arr:
    """Element-wise imaginary part of a complex tensor."""
    return np.imag(x)


@_complex(infer=rules.floating, ufunc=np.conjugate, vjp=lambda g, out, x: (conj(g),), scalar=lambda k, x: k.conj(x),
          linear=((0,),))  # fmt: skip
def conjugate(x: Arr, /) -> Arr:
    """Element-wise complex conjugate of a complex tensor."""


@rules.on_tensor
def real(x: Tensor, /) -> Tensor:
    """Element-wise real part; a real tensor is its own."""
    return real_part(x) if x.dtype.is_complex else Tensor(x._node)


@rules.on_tensor
def imag(x: Tensor, /) -> Tensor:
    """Element-wise imaginary part; 0 for a real tensor."""
    return imag_part(x) if x.dtype.is_complex else where(True, False, x)


@rules.on_tensor
def conj(x: Tensor, /) -> Tensor:
    """Element-wise complex conjugate; a real tensor is its own."""
    return conjugate(x) if x.dtype.is_complex else Tensor(x._node)


# Comparison and logic


@_op(infer=rules.compare, ufunc=np.equal, operator="eq", scalar=lambda k, a, b: k.eq(a, b))
def equal(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 == x2."""


@_op(infer=rules.compare, ufunc=np.not_equal, operator="ne", scalar=lambda k, a, b: k.not_(k.eq(a, b)))
def not_equal(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 != x2."""


@_op(infer=rules.compare_real, ufunc=np.less, operator="lt", scalar=lambda k, a, b: k.lt(a, b))
def less(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 < x2."""


@_op(infer=rules.compare_real, ufunc=np.less_equal, operator="le", scalar=lambda k, a, b: k.le(a, b))
def less_equal(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 <= x2."""


@_op(infer=rules.compare_real, ufunc=np.greater, operator="gt", scalar=lambda k, a, b: k.lt(b, a))
def greater(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 > x2."""


@_op(infer=rules.compare_real, ufunc=np.greater_equal, operator="ge", scalar=lambda k, a, b: k.le(b, a))
def greater_equal(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 >= x2."""


@_op(infer=rules.test_numeric, ufunc=np.isnan, scalar=lambda k, x: k.not_(k.eq(x, x)))
def isnan(x: Arr, /) -> Arr:
    """Element-wise test for NaN."""


@_op(infer=rules.test_numeric, ufunc=np.isinf, scalar=lambda k, x: k.isinf(x))
def isinf(x: Arr, /) -> Arr:
    """Element-wise test for an infinity."""


@_op(infer=rules.test_numeric, ufunc=np.isfinite,
     scalar=lambda k, x: k.and_(k.eq(x, x), k.not_(k.isinf(x))))  # fmt: skip
def isfinite(x: Arr, /) -> Arr:
    """Element-wise test for a number that is neither infinite nor NaN."""


@_op(infer=rules.test_float, ufunc=np.signbit, scalar=lambda k, x: k.lt(k.copysign(k.const(1, x), x), k.const(0, x)))
def signbit(x: Arr, /) -> Arr:
    """Element-wise test of the sign bit: true for -0.0 too."""


@_op(infer=rules.boolean, ufunc=np.logical_and, scalar=lambda k, a, b: k.and_(a, b))
def logical_and(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 and x2."""


@_op(infer=rules.boolean, ufunc=np.logical_or, scalar=lambda k, a, b: k.or_(a, b))
def logical_or(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 or x2."""


@_op(infer=rules.boolean, ufunc=np.logical_xor, scalar=lambda k, a, b: k.xor(a, b))
def logical_xor(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise: exactly one of x1, x2."""


@_op(infer=rules.boolean, ufunc=np.logical_not, scalar=lambda k, x: k.not_(x))
def logical_not(x: Arr, /) -> Arr:
    """Element-wise not x."""


# Bits


@_op(infer=rules.integer_or_bool, ufunc=np.bitwise_and, operator="and", scalar=lambda k, a, b: k.and_(a, b))
def bitwise_and(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 & x2."""


@_op(infer=rules.integer_or_bool, ufunc=np.bitwise_or, operator="or", scalar=lambda k, a, b: k.or_(a, b))
def bitwise_or(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 | x2."""


@_op(infer=rules.integer_or_bool, ufunc=np.bitwise_xor, operator="xor", scalar=lambda k, a, b: k.xor(a, b))
def bitwise_xor(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 ^ x2."""


@_op(infer=rules.integer_or_bool, ufunc=np.invert, operator="invert", scalar=lambda k, x: k.not_(x))
def bitwise_invert(x: Arr, /) -> Arr:
    """Element-wise ~x."""


@_op(infer=rules.integer, ufunc=np.left_shift, operator="lshift", scalar=lambda k, a, b: k.shl(a, b))
def bitwise_left_shift(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 << x2; bits shifted out are gone, however many."""


@_op(infer=rules.integer, ufunc=np.right_shift, operator="rshift", scalar=lambda k, a, b: k.shr(a, b))
def bitwise_right_shift(x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise x1 >> x2, keeping the sign."""


# Selection


def _where_rule(condition: Spec, x1: Spec, x2: Spec) -> Spec:
    rules.expect(condition.dtype, "a bool condition", lambda d: d is bool_)
    return spec(rules.broadcast_shapes(condition.shape, x1.shape, x2.shape), x1.dtype)


@op(OpKind.ACTIVATION, infer=_where_rule, promotes_from=1, computes_half=True,
    scalar=lambda k, c, a, b: k.select(c, a, b), linear=((1, 2),),
    vjp=lambda g, out, c, a, b: (None, where(c, g, 0), where(c, 0, g)))  # fmt: skip
def where(condition: Arr, x1: Arr, x2: Arr, /) -> Arr:
    """Element-wise `x1` where the condition holds, `x2` elsewhere."""
    return np.where(condition, x1, x2)


@rules.on_tensor
def clip(x: Tensor, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """Element-wise nearest value in [min, max]; either bound may be left out. Keeps the dtype of `x`."""
    if x.dtype.is_integer:
        min, max = _whole_bound(min, x.dtype, math.ceil, ceil), _whole_bound(max, x.dtype, math.floor, floor)
    clipped = x if min is None else maximum(x, min)
    clipped = clipped if max is None else minimum(clipped, max)
    return clipped.astype(x.dtype)


def _whole_bound(bound: Any, dtype: DType, of_number: Callable[[float], int], of_tensor: Op[[Any]]) -> Any:
    """A bound of integers, if it is a float: the outermost integer within it that the dtype has."""
    least, most = int_info(dtype).min, int_info(dtype).max
    if isinstance(bound, (float, np.floating)):
        if math.isnan(bound):
            raise ArgumentError(f"expected bounds that are numbers, got {bound}")
        return of_number(max(least, min(float(bound), most)))
    if bound is None or number_type(bound) is not None or not rules.as_tensor(bound).dtype.is_float:
        return bound
    whole = of_tensor(rules.as_tensor(bound))
    inside = where(whole <= float(least), least, where(whole >= float(most), most, convert(whole, dtype=dtype)))
    return where(isnan(whole), least if of_tensor is ceil else most, inside)  # NaN in a tensor bounds nothing
