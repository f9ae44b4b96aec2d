"""Scalar rules as statements of a C-family language.

A value is the name of a variable that is assigned once, so that a text never grows beyond the number of primitives,
and equal expressions are written once. The same rule gives scalar code or code on vectors: `width` decides. A truth
value is 0 or 1 in scalar code; in vectors it is what a comparison gives there, an integer with all bits set or none,
as wide as what was compared. 16-bit floats are computed in float and rounded where an op ends (`rounded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ..dtype import DType, bool_, float32, int8, int16, int32, int64, real_of
from . import complexes, formulas, halves
from .complexes import FUNCTIONS as COMPLEX
from .dialect import Dialect
from .value import Value, spelled

_SIGNED: Final = {8: int8, 16: int16, 32: int32, 64: int64}


def _function(name: str) -> Callable[[CBuilder, Value], Value]:
    """A primitive that the language has a function for, and complex numbers a formula."""

    def primitive(self: CBuilder, x: Value) -> Value:
        return COMPLEX[name](self, x) if x.dtype.is_complex else self.function(name, x)

    return primitive


class CBuilder:
    """`codegen.builder.Builder` for one dialect and one width of vectors."""

    def __init__(self, dialect: Dialect, width: int = 1, lines: list[str] | None = None) -> None:
        self.dialect = dialect
        self.width = width
        self.lines: list[str] = [] if lines is None else lines
        self._known: dict[tuple[str, str], str] = {}

    # Text

    def at_width(self, width: int) -> CBuilder:
        """A builder that writes to the same lines at another width."""
        return CBuilder(self.dialect, width, self.lines)

    def let(self, ctype: str, expression: str) -> str:
        """The name of a new variable, or of one that has this expression's value already."""
        name = self._known.get((ctype, expression))
        if name is None:
            name = self._known[ctype, expression] = f"t{len(self.lines)}"
            self.lines.append(f"const {ctype} {name} = {expression};")
        return name

    def variable(self, start: Value) -> Value:
        """A variable that `assign` can change: to be read and changed in one block only, then read outside."""
        name, ctype = f"v{len(self.lines)}", self.ctype(start.dtype)
        self.lines.append(f"{ctype} {name} = {start.text};")
        if start.imag:
            self.lines.append(f"{ctype} {name}i = {start.imag};")
        return replace(start, text=name, imag=f"{name}i" if start.imag else "")

    def assign(self, variable: Value, value: Value) -> None:
        """Change a variable."""
        self.lines.append(f"{variable.text} = {value.text};")
        if variable.imag:
            self.lines.append(f"{variable.imag} = {value.imag};")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines inside braces; what is computed there is not known outside."""
        self.lines.append(f"{head} {{")
        outside, self._known = self._known, {}
        yield
        self._known = outside
        self.lines.append("}")

    def ctype(self, dtype: DType) -> str:
        """The type of a value of this dtype (of each part, if complex)."""
        return self.dialect.vector_type("int" if dtype is bool_ else self.dialect.types[dtype], self.width)

    def mask_type(self, bits: int) -> str:
        """The type of a truth value."""
        return "int" if self.width == 1 else self.dialect.vector_type(self.dialect.masks[bits], self.width)

    def bits(self, dtype: DType) -> int:
        """The bits in which a value of this dtype is computed with (each part, if complex)."""
        return 32 if dtype.is_half else real_of(dtype).bits

    def number(self, dtype: DType, text: str) -> Value:
        """A value of a real dtype from an expression."""
        return Value(dtype, self.let(self.ctype(dtype), text))

    def truth(self, text: str, bits: int) -> Value:
        """A truth value from an expression that gives one with lanes of so many bits."""
        return Value(bool_, self.let(self.mask_type(bits), text), bits=bits)

    def with_bits(self, truth: Value, bits: int) -> str:
        """A truth value with lanes of so many bits."""
        if self.width == 1 or truth.bits == bits:
            return truth.text
        ctype = self.mask_type(bits)
        return self.let(ctype, self.dialect.convert.format(type=ctype, x=truth.text))

    def reinterpreted(self, x: Value, dtype: DType) -> Value:
        """The same bits as another dtype of the same size."""
        return self.number(dtype, self.dialect.reinterpret.format(type=self.ctype(dtype), x=x.text))

    def function(self, name: str, *operands: Value) -> Value:
        """A function of the language's library."""
        dtype, texts = operands[0].dtype, [o.text for o in operands]
        scalar = self.dialect.types[dtype]
        called = self.dialect.function(name, scalar)
        whole = f"{called}({', '.join(texts)})"
        bound = None if self.width == 1 else self.dialect.bounded.get((name, scalar))
        if bound is None:
            return Value(dtype, self.let(self.ctype(dtype), whole), exact=False)
        digits = [f"{i:x}" for i in range(self.width)]
        calls = [f"{called}({', '.join(self.dialect.lane.format(x=t, i=i) for t in texts)})" for i in digits]
        lanes = self.dialect.splat.format(type=self.ctype(dtype), items=", ".join(calls))
        if not bound:
            return Value(dtype, self.let(self.ctype(dtype), lanes), exact=False)
        within = self.lt(self.abs(operands[0]), self.const(bound, operands[0]))
        test = self.dialect.all_lanes.format(mask=within.text)
        return Value(dtype, self.let(self.ctype(dtype), f"{test} ? {whole} : {lanes}"), exact=False)

    def literal(self, value: Any, dtype: DType) -> Value:
        """A number of this dtype."""
        if dtype is bool_:
            true = "1" if self.width == 1 else "-1"
            return self.truth(self._splat("int", true if value else "0"), 32)
        if dtype.is_complex:
            part, number = real_of(dtype), complex(value)
            return self.paired(dtype, self.literal(number.real, part), self.literal(number.imag, part))
        scalar = self.dialect.types[dtype]
        return self.number(dtype, self._splat(scalar, spelled(value, dtype, scalar)))

    def _splat(self, scalar: str, text: str) -> str:
        if self.width == 1:
            return text
        return self.dialect.splat.format(type=self.dialect.vector_type(scalar, self.width), items=text)

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
        return self.literal(value, like.dtype)

    def convert(self, x: Value, dtype: DType) -> Value:
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
            return self.convert(self._zero_or_one(x), dtype)
        if source.is_float and dtype.is_integer:
            return formulas.truncated(self, x, dtype)
        if dtype.is_half:
            single = x.text if source.is_half or source is float32 else self.converted(x, float32).text
            return Value(dtype, single, exact=False)
        return Value(dtype, x.text) if source.is_half and dtype is float32 else self.converted(x, dtype)

    def converted(self, x: Value, dtype: DType) -> Value:
        """A real number by the language's own conversion."""
        return self.number(dtype, self.dialect.convert.format(type=self.ctype(dtype), x=x.text))

    def _zero_or_one(self, truth: Value) -> Value:
        if self.width == 1:
            return Value(int32, truth.text)
        dtype = _SIGNED[truth.bits]
        return self.and_(Value(dtype, truth.text), self.literal(1, dtype))

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        if a.dtype.is_complex:
            real = self.select(condition, self.real(a), self.real(b))
            return self.paired(a.dtype, real, self.select(condition, self.imag(a), self.imag(b)))
        if a.dtype is bool_:
            return self.or_(self.and_(condition, a), self.and_(self.not_(condition), b))
        bits = self.bits(a.dtype)
        if self.width == 1:
            text = f"{condition.text} ? {a.text} : {b.text}"
        else:
            text = self.dialect.select.format(a=a.text, b=b.text, mask=self.with_bits(condition, bits))
        return Value(a.dtype, self.let(self.ctype(a.dtype), text), exact=a.exact and b.exact)

    # Arithmetic

    def _arithmetic(self, sign: str, a: Value, b: Value) -> Value:
        ctype = self.ctype(a.dtype)
        if a.dtype.is_float:
            return Value(a.dtype, self.let(ctype, f"{a.text} {sign} {b.text}"), exact=False)
        # Unsigned, because overflow of signed integers is not defined in C.
        if self.width == 1:
            wide = "uint" if a.dtype.bits <= 32 else "ulong"
            return self.number(a.dtype, f"({ctype})(({wide}){a.text} {sign} ({wide}){b.text})")
        unsigned = self.dialect.vector_type(self.dialect.unsigned[self.dialect.types[a.dtype]], self.width)
        x, y = (self.dialect.reinterpret.format(type=unsigned, x=v.text) for v in (a, b))
        return self.number(a.dtype, self.dialect.reinterpret.format(type=ctype, x=f"({x} {sign} {y})"))

    def add(self, a: Value, b: Value) -> Value:
        return complexes.add(self, a, b) if a.dtype.is_complex else self._arithmetic("+", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return complexes.sub(self, a, b) if a.dtype.is_complex else self._arithmetic("-", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return complexes.mul(self, a, b) if a.dtype.is_complex else self._arithmetic("*", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return complexes.div(self, a, b) if a.dtype.is_complex else self._arithmetic("/", a, b)

    def neg(self, x: Value) -> Value:
        if x.dtype.is_complex:
            return self.paired(x.dtype, self.neg(self.real(x)), self.neg(self.imag(x)))
        if x.dtype.is_float:
            return Value(x.dtype, self.let(self.ctype(x.dtype), f"-{x.text}"), exact=x.exact)
        return self.sub(self.const(0, x), x)

    def abs(self, x: Value) -> Value:
        if x.dtype.is_complex:
            return self.hypot(self.real(x), self.imag(x))
        if x.dtype.is_float:
            return replace(self.function("fabs", x), exact=x.exact)
        return x if x.dtype.kind == "unsigned integer" else self.select(self.lt(x, self.const(0, x)), self.neg(x), x)

    def sign(self, x: Value) -> Value:
        if x.dtype.is_complex:
            return complexes.sign(self, x)
        zero, one = self.const(0, x), self.const(1, x)
        rest = self.select(self.eq(x, zero), zero, x)
        if x.dtype.kind != "unsigned integer":
            rest = self.select(self.lt(x, zero), self.const(-1, x), rest)
        return self.select(self.lt(zero, x), one, rest)

    def min(self, a: Value, b: Value) -> Value:
        return self.select(self._or_nan(a, self.lt(a, b)), a, b)

    def max(self, a: Value, b: Value) -> Value:
        return self.select(self._or_nan(a, self.lt(b, a)), a, b)

    def _or_nan(self, x: Value, condition: Value) -> Value:
        return self.or_(condition, self.not_(self.eq(x, x))) if x.dtype.is_float else condition

    def floordiv(self, a: Value, b: Value) -> Value:
        return formulas.divided(self, a, b)[0]

    def mod(self, a: Value, b: Value) -> Value:
        return formulas.divided(self, a, b)[1]

    def pow(self, a: Value, b: Value) -> Value:
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
        return replace(self.function(name, x), exact=x.exact) if x.dtype.is_float else x

    def floor(self, x: Value) -> Value:
        return self._whole("floor", x)

    def ceil(self, x: Value) -> Value:
        return self._whole("ceil", x)

    def trunc(self, x: Value) -> Value:
        return self._whole("trunc", x)

    def rint(self, x: Value) -> Value:
        if x.dtype.is_complex:
            return self.paired(x.dtype, self.rint(self.real(x)), self.rint(self.imag(x)))
        return self._whole("rint", x)

    # Comparison and bits

    def _compared(self, sign: str, a: Value, b: Value) -> Value:
        return self.truth(f"({a.text} {sign} {b.text})", self.bits(a.dtype))

    def eq(self, a: Value, b: Value) -> Value:
        if a.dtype.is_complex:
            return self.and_(self.eq(self.real(a), self.real(b)), self.eq(self.imag(a), self.imag(b)))
        return self.not_(self.xor(a, b)) if a.dtype is bool_ else self._compared("==", a, b)

    def lt(self, a: Value, b: Value) -> Value:
        return self.and_(self.not_(a), b) if a.dtype is bool_ else self._compared("<", a, b)

    def le(self, a: Value, b: Value) -> Value:
        return self.or_(self.not_(a), b) if a.dtype is bool_ else self._compared("<=", a, b)

    def isinf(self, x: Value) -> Value:
        if x.dtype.is_complex:
            return self.or_(self.isinf(self.real(x)), self.isinf(self.imag(x)))
        if not x.dtype.is_float:
            return self.literal(False, bool_)
        return self.eq(self.abs(x), self.const(float("inf"), x))

    def not_(self, x: Value) -> Value:
        if x.dtype is bool_:
            return self.truth(f"!{x.text}" if self.width == 1 else f"~{x.text}", x.bits)
        text = f"~{x.text}"
        return self.number(x.dtype, text if self.width > 1 else f"({self.ctype(x.dtype)})({text})")

    def _bitwise(self, sign: str, a: Value, b: Value) -> Value:
        if a.dtype is bool_:
            bits = max(a.bits, b.bits)
            return self.truth(f"{self.with_bits(a, bits)} {sign} {self.with_bits(b, bits)}", bits)
        text = f"{a.text} {sign} {b.text}"
        return self.number(a.dtype, text if self.width > 1 else f"({self.ctype(a.dtype)})({text})")

    def and_(self, a: Value, b: Value) -> Value:
        return self._bitwise("&", a, b)

    def or_(self, a: Value, b: Value) -> Value:
        return self._bitwise("|", a, b)

    def xor(self, a: Value, b: Value) -> Value:
        return self._bitwise("^", a, b)

    def shl(self, a: Value, b: Value) -> Value:
        fits, places = self._shift(a, b)
        return self.select(fits, self._arithmetic("<<", a, places), self.const(0, a))

    def shr(self, a: Value, b: Value) -> Value:
        fits, places = self._shift(a, b)
        moved = self._bitwise(">>", a, places)
        if a.dtype.kind == "unsigned integer":
            return self.select(fits, moved, self.const(0, a))
        gone = self.select(self.lt(a, self.const(0, a)), self.const(-1, a), self.const(0, a))
        return self.select(fits, moved, gone)

    def _shift(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Whether so many places are fewer than there are bits, and a number of places that certainly is."""
        fits = self.and_(self.lt(b, self.const(a.dtype.bits, b)), self.le(self.const(0, b), b))
        return fits, self.select(fits, b, self.const(0, b))

    # Functions

    def tanh(self, x: Value) -> Value:
        return COMPLEX["tanh"](self, x) if x.dtype.is_complex else formulas.tanh(self, x)

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
    asinh = _function("asinh")
    acosh = _function("acosh")
    atanh = _function("atanh")
    erf = _function("erf")
