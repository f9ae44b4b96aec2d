"""The primitives in which scalar rules are written, from the few that a language has words for.

A scalar rule is the operation on one element: `scalar=lambda k, x, y: k.add(x, y)`. A language implements `Primitives`
once, and every op that has a scalar rule can be generated for it. Operands of one primitive have the same dtype unless
said otherwise. Complex numbers go part by part, and 16-bit floats are computed in float and rounded where an op ends
(`rounded`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ..._tensor.dtype import DType, bool_, float32, float64, real_of
from . import complexes, formulas, halves
from .complexes import FUNCTIONS as COMPLEX
from .value import Value


def _function(name: str) -> Callable[[Primitives, Value], Value]:
    """A primitive that the language has a function for, and complex numbers a formula."""

    def primitive(self: Primitives, x: Value) -> Value:
        return COMPLEX[name](self, x) if x.dtype.is_complex else self.function(name, x)

    return primitive


class Primitives(ABC):
    """The primitives of a language. Integer arithmetic wraps; floating arithmetic is IEEE's, with NaN and infinities.

    The abstract methods are for this class alone, and take real operands; scalar rules use the others.
    """

    width: int
    """The lanes of a value."""

    # What a language says

    @abstractmethod
    def literal(self, value: Any, dtype: DType) -> Value:
        """A number of this dtype."""

    @abstractmethod
    def converted(self, x: Value, dtype: DType) -> Value:
        """A number by the language's own conversion; neither dtype is bool or a 16-bit float."""

    @abstractmethod
    def reinterpreted(self, x: Value, dtype: DType) -> Value:
        """The bits of a value as another dtype of the same size."""

    @abstractmethod
    def zero_or_one(self, truth: Value) -> Value:
        """A truth value as some integer."""

    @abstractmethod
    def chosen(self, condition: Value, a: Value, b: Value) -> Value:
        """`a` where the condition is true, else `b`."""

    @abstractmethod
    def arithmetic(self, sign: str, a: Value, b: Value) -> Value:
        """`+ - * / <<`. Integers wrap; they are divided towards 0, not by 0 or -1, moved by less than their bits."""

    @abstractmethod
    def compared(self, sign: str, a: Value, b: Value) -> Value:
        """`== < <=`: false if either is NaN."""

    @abstractmethod
    def bitwise(self, sign: str, a: Value, b: Value) -> Value:
        """`& | ^` of integers or truth values, and `>>` of integers by fewer places than they have bits."""

    @abstractmethod
    def inverted(self, x: Value) -> Value:
        """All bits the other way round; the other truth value."""

    @abstractmethod
    def negated(self, x: Value) -> Value:
        """A float with the other sign."""

    @abstractmethod
    def function(self, name: str, *operands: Value) -> Value:
        """A function of floats, by its name in C."""

    @abstractmethod
    def repeat(self, times: int, values: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
        """`body` on values again and again, each time on what it gave the time before."""

    # Complex values

    def paired(self, dtype: DType, real: Value, imag: Value) -> Value:
        """A complex value from its parts."""
        return Value(dtype, real.text, imag.text)

    def real(self, x: Value) -> Value:
        return Value(real_of(x.dtype), x.text) if x.dtype.is_complex else x

    def imag(self, x: Value) -> Value:
        return Value(real_of(x.dtype), x.imag) if x.dtype.is_complex else self.const(0, x)

    def conj(self, x: Value) -> Value:
        return x if not x.dtype.is_complex else self.paired(x.dtype, self.real(x), self.neg(self.imag(x)))

    # Constants, conversion, choice

    def const(self, value: complex, like: Value) -> Value:
        """A number of the dtype of `like`."""
        return self.literal(value, like.dtype)

    def convert(self, x: Value, dtype: DType) -> Value:
        """C's conversion; anything but zero is true."""
        source = x.dtype
        if source is dtype:
            return x
        if dtype is bool_:
            return self.not_(self.eq(x, self.const(0, x)))
        if dtype.is_complex:
            part = real_of(dtype)
            imag = self.convert(self.imag(x), part) if source.is_complex else self.literal(0, part)
            return self.paired(dtype, self.convert(self.real(x), part), imag)
        if source.is_complex:
            return self.convert(self.real(x), dtype)
        if source is bool_:
            return self.convert(self.zero_or_one(x), dtype)
        single = replace(x, dtype=float32) if source.is_half else x
        if source.is_float and dtype.is_integer:
            return formulas.truncated(self, single, dtype)
        if dtype.is_half:
            narrow = halves.narrowed(self, single) if source is float64 else self._single(single)
            return replace(narrow, dtype=dtype, exact=False)
        return self._single(single) if dtype is float32 else self.converted(single, dtype)

    def _single(self, x: Value) -> Value:
        return replace(x, exact=True) if x.dtype is float32 else self.converted(x, float32)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if a.dtype.is_complex:
            real = self.select(condition, self.real(a), self.real(b))
            return self.paired(a.dtype, real, self.select(condition, self.imag(a), self.imag(b)))
        if a.dtype is bool_:
            return self.or_(self.and_(condition, a), self.and_(self.not_(condition), b))
        return self.chosen(condition, a, b)

    # Arithmetic

    def add(self, a: Value, b: Value) -> Value:
        return complexes.add(self, a, b) if a.dtype.is_complex else self.arithmetic("+", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return complexes.sub(self, a, b) if a.dtype.is_complex else self.arithmetic("-", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return complexes.mul(self, a, b) if a.dtype.is_complex else self.arithmetic("*", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return complexes.div(self, a, b) if a.dtype.is_complex else self.arithmetic("/", a, b)

    def neg(self, x: Value) -> Value:
        if x.dtype.is_complex:
            return self.paired(x.dtype, self.neg(self.real(x)), self.neg(self.imag(x)))
        return self.negated(x) if x.dtype.is_float else self.sub(self.const(0, x), x)

    def abs(self, x: Value) -> Value:
        """The absolute value, real for complex x."""
        if x.dtype.is_complex:
            return self.hypot(self.real(x), self.imag(x))
        if x.dtype.is_float:
            return replace(self.function("fabs", x), exact=x.exact)
        return x if x.dtype.kind == "unsigned integer" else self.select(self.lt(x, self.const(0, x)), self.neg(x), x)

    def sign(self, x: Value) -> Value:
        """The sign; x / |x| for complex x."""
        if x.dtype.is_complex:
            return complexes.sign(self, x)
        zero, one = self.const(0, x), self.const(1, x)
        rest = self.select(self.eq(x, zero), zero, x)
        if x.dtype.kind != "unsigned integer":
            rest = self.select(self.lt(x, zero), self.const(-1, x), rest)
        return self.select(self.lt(zero, x), one, rest)

    def min(self, a: Value, b: Value) -> Value:
        """The smaller of two; NaN if either is."""
        return self._or_nan(a, self.select(self.lt(a, b), a, b))

    def max(self, a: Value, b: Value) -> Value:
        """The larger of two; NaN if either is."""
        return self._or_nan(a, self.select(self.lt(b, a), a, b))

    def _or_nan(self, x: Value, otherwise: Value) -> Value:
        return self.select(self.eq(x, x), otherwise, x) if x.dtype.is_float else otherwise

    def floordiv(self, a: Value, b: Value) -> Value:
        """The quotient, rounded down; an integer by zero is 0."""
        return formulas.divided(self, a, b)[0]

    def mod(self, a: Value, b: Value) -> Value:
        """a - b * floordiv(a, b), with the sign of b."""
        return formulas.divided(self, a, b)[1]

    def pow(self, a: Value, b: Value) -> Value:
        """A power; of integers to a negative one, 1/a rounded towards 0, and 0 for a = 0."""
        if a.dtype.is_complex:
            return complexes.pow(self, a, b)
        return self.function("pow", a, b) if a.dtype.is_float else formulas.integer_power(self, a, b)

    def hypot(self, a: Value, b: Value) -> Value:
        return self.function("hypot", a, b)

    def copysign(self, a: Value, b: Value) -> Value:
        return replace(self.function("copysign", a, b), exact=a.exact)

    def nextafter(self, a: Value, b: Value) -> Value:
        return halves.nextafter(self, a, b) if a.dtype.is_half else self.function("nextafter", a, b)

    # Rounding

    def rounded(self, x: Value) -> Value:
        """The value as its dtype holds it: what an op ends with."""
        return x if x.exact or not x.dtype.is_half else halves.rounded(self, x)

    def _whole(self, name: str, x: Value) -> Value:
        """A rounded float; an integer is itself."""
        return replace(self.function(name, x), exact=x.exact) if x.dtype.is_float else x

    def floor(self, x: Value) -> Value:
        return self._whole("floor", x)

    def ceil(self, x: Value) -> Value:
        return self._whole("ceil", x)

    def trunc(self, x: Value) -> Value:
        return self._whole("trunc", x)

    def rint(self, x: Value) -> Value:
        """The nearest whole number, halves to even."""
        if x.dtype.is_complex:
            return self.paired(x.dtype, self.rint(self.real(x)), self.rint(self.imag(x)))
        return self._whole("rint", x)

    # Comparison and bits

    def eq(self, a: Value, b: Value) -> Value:
        if a.dtype.is_complex:
            return self.and_(self.eq(self.real(a), self.real(b)), self.eq(self.imag(a), self.imag(b)))
        return self.not_(self.xor(a, b)) if a.dtype is bool_ else self.compared("==", a, b)

    def lt(self, a: Value, b: Value) -> Value:
        return self.and_(self.not_(a), b) if a.dtype is bool_ else self.compared("<", a, b)

    def le(self, a: Value, b: Value) -> Value:
        return self.or_(self.not_(a), b) if a.dtype is bool_ else self.compared("<=", a, b)

    def isinf(self, x: Value) -> Value:
        if x.dtype.is_complex:
            return self.or_(self.isinf(self.real(x)), self.isinf(self.imag(x)))
        if not x.dtype.is_float:
            return self.literal(False, bool_)
        return self.eq(self.abs(x), self.const(float("inf"), x))

    def not_(self, x: Value) -> Value:
        """All bits inverted; the other truth value."""
        return self.inverted(x)

    def and_(self, a: Value, b: Value) -> Value:
        return self.bitwise("&", a, b)

    def or_(self, a: Value, b: Value) -> Value:
        return self.bitwise("|", a, b)

    def xor(self, a: Value, b: Value) -> Value:
        return self.bitwise("^", a, b)

    def shl(self, a: Value, b: Value) -> Value:
        """Bits moved up; 0 when b is the number of bits or more."""
        fits, places = self._shift(a, b)
        return self.select(fits, self.arithmetic("<<", a, places), self.const(0, a))

    def shr(self, a: Value, b: Value) -> Value:
        """Bits moved down, with the sign of signed dtypes."""
        fits, places = self._shift(a, b)
        moved = self.bitwise(">>", a, places)
        if a.dtype.kind == "unsigned integer":
            return self.select(fits, moved, self.const(0, a))
        gone = self.select(self.lt(a, self.const(0, a)), self.const(-1, a), self.const(0, a))
        return self.select(fits, moved, gone)

    def _shift(self, a: Value, b: Value) -> tuple[Value, Value]:
        """True if so many places are fewer than there are bits, and a number of places that certainly is."""
        fits = self.and_(self.lt(b, self.const(a.dtype.bits, b)), self.le(self.const(0, b), b))
        return fits, self.select(fits, b, self.const(0, b))

    # Functions

    def logaddexp(self, a: Value, b: Value) -> Value:
        return formulas.logaddexp(self, a, b)

    def atan2(self, a: Value, b: Value) -> Value:
        return self.function("atan2", a, b)

    sqrt = _function("sqrt")
    exp = _function("exp")
    expm1 = _function("expm1")
    log = _function("log")
    log1p = _function("log1p")
    log2 = _function("log2")
    log10 = _function("log10")
    sin = _function("sin")
    cos = _function("cos")
    tan = _function("tan")
    asin = _function("asin")
    acos = _function("acos")
    atan = _function("atan")
    sinh = _function("sinh")
    cosh = _function("cosh")
    tanh = _function("tanh")
    asinh = _function("asinh")
    acosh = _function("acosh")
    atanh = _function("atanh")
    erf = _function("erf")
