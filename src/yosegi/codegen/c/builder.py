"""Scalar rules as statements of a C-family language.

A value is the name of a variable that is assigned once, so that a text never grows beyond the number of primitives,
and equal expressions are written once. The same rule gives scalar code or code on vectors: `width` decides. A truth
value is 0 or 1 in scalar code; in vectors it is what a comparison gives there, an integer with all bits set or none,
as wide as what was compared. 16-bit floats are computed in float and rounded where an op ends (`rounded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ..._tensor.dtype import DType, bool_, float16, int8, int16, int32, int64, real_of, uint32, uint64
from ..scalar import formulas
from ..scalar.primitives import Primitives
from ..scalar.value import Value, spelled
from .dialect import Dialect

_SIGNED: Final = {8: int8, 16: int16, 32: int32, 64: int64}


class CBuilder(Primitives):
    """`codegen.scalar.builder.Builder` for one dialect and one width of vectors."""

    def __init__(self, dialect: Dialect, width: int = 1, lines: list[str] | None = None) -> None:
        self.dialect = dialect
        self.width = width
        self.lines: list[str] = [] if lines is None else lines
        self.declarations: dict[str, str] = {}
        """Types that the program declares before its kernel, by name."""
        self._known: dict[tuple[str, str], str] = {}
        self._bits: dict[str, str] = {}
        """Of variables that are rounded 16-bit floats: their bits, as an expression."""

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

    def repeat(self, times: int, values: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
        carried = [self.variable(v) for v in values]
        with self.block(f"for (int turn = 0; turn < {times}; turn++)"):
            for variable, value in zip(carried, body(*carried), strict=True):
                self.assign(variable, value)
        return carried

    def ctype(self, dtype: DType) -> str:
        """The type of a value of this dtype (of each part, if complex)."""
        return self.dialect.vector_type("int" if dtype is bool_ else self.dialect.types[dtype], self.width)

    def mask_type(self, bits: int) -> str:
        """The type of a truth value."""
        return "int" if self.width == 1 else self.dialect.vector_type(self.dialect.masks[bits], self.width)

    def bits(self, dtype: DType) -> int:
        """The bits in which a value of this dtype is computed with (each part, if complex)."""
        return 32 if dtype.is_half else real_of(dtype).bits

    def rounded(self, x: Value) -> Value:
        d = self.dialect
        if x.exact or self.width > 1 or x.dtype not in d.half_bits:
            return super().rounded(x)
        bits = d.half_bits[x.dtype].format(x=x.text)
        short = d.rounded.get(x.dtype)
        made = self.from_half_bits(x.dtype, bits) if short is None else self.number(x.dtype, short.format(x=x.text))
        self._bits[made.text] = bits  # what is only stored need not become a float again: the compiler drops that
        return made

    def half_bits(self, x: Value) -> str:
        """An expression for a 16-bit float as memory has it."""
        d = self.dialect
        if x.text in self._bits:
            return self._bits[x.text]
        if x.dtype in d.half_bits:
            return d.half_bits[x.dtype].format(x=x.text)
        whole = d.reinterpret.format(type=d.types[uint32], x=self.rounded(x).text)
        return d.convert.format(type=d.packed[x.dtype], x=f"({whole} >> 16)")

    def from_half_bits(self, dtype: DType, bits: str) -> Value:
        """The 16-bit float that memory has so."""
        d = self.dialect
        if dtype is float16:
            return self.number(dtype, d.from_half_bits.format(x=bits))
        return self.number(dtype, d.reinterpret.format(type=self.ctype(dtype), x=f"(({d.types[uint32]}){bits} << 16)"))

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
        return self.number(dtype, self.dialect.reinterpret.format(type=self.ctype(dtype), x=x.text))

    def function(self, name: str, *operands: Value) -> Value:
        if name in self.dialect.written_out and self.bits(operands[0].dtype) == 32:
            return formulas.WRITTEN_OUT[name](self, *operands)
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

    def converted(self, x: Value, dtype: DType) -> Value:
        return self.number(dtype, self.dialect.convert.format(type=self.ctype(dtype), x=x.text))

    def zero_or_one(self, truth: Value) -> Value:
        if self.width == 1:
            return Value(int32, truth.text)
        dtype = _SIGNED[truth.bits]
        return self.and_(Value(dtype, truth.text), self.literal(1, dtype))

    def chosen(self, condition: Value, a: Value, b: Value) -> Value:
        bits = self.bits(a.dtype)
        if self.width == 1:
            text = f"{condition.text} ? {a.text} : {b.text}"
        else:
            text = self.dialect.select.format(a=a.text, b=b.text, mask=self.with_bits(condition, bits))
        return Value(a.dtype, self.let(self.ctype(a.dtype), text), exact=a.exact and b.exact)

    # Arithmetic

    def arithmetic(self, sign: str, a: Value, b: Value) -> Value:
        ctype = self.ctype(a.dtype)
        if a.dtype.is_float:
            return Value(a.dtype, self.let(ctype, f"{a.text} {sign} {b.text}"), exact=False)
        if sign == "/":
            return self._plain(sign, a, b)
        # Unsigned, because overflow of signed integers is not defined in C.
        if self.width == 1:
            wide = self.dialect.types[uint32 if a.dtype.bits <= 32 else uint64]
            return self.number(a.dtype, f"({ctype})(({wide}){a.text} {sign} ({wide}){b.text})")
        unsigned = self.dialect.vector_type(self.dialect.unsigned[self.dialect.types[a.dtype]], self.width)
        x, y = (self.dialect.reinterpret.format(type=unsigned, x=v.text) for v in (a, b))
        return self.number(a.dtype, self.dialect.reinterpret.format(type=ctype, x=f"({x} {sign} {y})"))

    def negated(self, x: Value) -> Value:
        return Value(x.dtype, self.let(self.ctype(x.dtype), f"-{x.text}"), exact=x.exact)

    # Comparison and bits

    def compared(self, sign: str, a: Value, b: Value) -> Value:
        return self.truth(f"({a.text} {sign} {b.text})", self.bits(a.dtype))

    def inverted(self, x: Value) -> Value:
        if x.dtype is bool_:
            return self.truth(f"!{x.text}" if self.width == 1 else f"~{x.text}", x.bits)
        text = f"~{x.text}"
        return self.number(x.dtype, text if self.width > 1 else f"({self.ctype(x.dtype)})({text})")

    def bitwise(self, sign: str, a: Value, b: Value) -> Value:
        if a.dtype is bool_:
            bits = max(a.bits, b.bits)
            return self.truth(f"{self.with_bits(a, bits)} {sign} {self.with_bits(b, bits)}", bits)
        return self._plain(sign, a, b)

    def _plain(self, sign: str, a: Value, b: Value) -> Value:
        """C's operator on integers."""
        text = f"{a.text} {sign} {b.text}"
        return self.number(a.dtype, text if self.width > 1 else f"({self.ctype(a.dtype)})({text})")
