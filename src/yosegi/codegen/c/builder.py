"""Scalar rules as statements of a C-family language.

A value is the name of a variable that is assigned once, so that a text never grows beyond the number of primitives,
and equal expressions are written once. A truth value is the int 0 or 1. 16-bit floats are computed in float and
rounded where an op ends (`rounded`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

from ..._tensor.dtype import DType, bool_, float16, int32, int64, real_of, uint32, uint64
from ..scalar import formulas
from ..scalar.primitives import Primitives
from ..scalar.value import Value, spelled
from .dialect import Dialect

INT_LIMIT: Final = 2**30
"""Elements from which indices are 64-bit: an index may run some places beyond the end."""


class SizeParameters:
    """The sizes that a kernel takes as parameters, by the names it gives them."""

    def __init__(self, elements: int, dialect: Dialect) -> None:
        self.is_long = elements >= INT_LIMIT
        self.ctype = dialect.types[int64 if self.is_long else int32]
        self._table = dialect.size_table
        self.values: dict[str, int] = {}

    def __call__(self, value: int) -> str:
        """The text of a size: 0 and 1 as they are, any other as a parameter."""
        if value in (0, 1):
            return str(value)
        name = f"n{len(self.values)}"
        self.values[name] = value
        return name

    def parameters(self) -> list[str]:
        """Their declarations as parameters."""
        if self._table and self.values:
            return [self._table.format(type=self.ctype)]
        return [f"const {self.ctype} {name}" for name in self.values]

    def lines(self) -> list[str]:
        """The first lines of a body: the sizes by name, if they come in a table."""
        names = self.values if self._table else ()
        return [f"const {self.ctype} {name} = sizes[{n}];" for n, name in enumerate(names)]


class CBuilder(Primitives):
    """The text of one kernel, by the primitives of a dialect."""

    def __init__(self, dialect: Dialect, elements: int = 0) -> None:
        """`elements` is the number of elements of the largest array, which decides the type of indices."""
        self.dialect = dialect
        self.sizes = SizeParameters(elements, dialect)
        self.index = self.sizes.ctype
        """The type of indices."""
        self.lines: list[str] = []
        self.declarations: dict[str, str] = {}
        self.bounds = ""
        """The attribute of the kernel that limits its registers."""
        """Types that the program declares before its kernel, by name."""
        self.shared_arrays: list[str] = []
        self._known: dict[tuple[str, str], str] = {}
        self._bits: dict[str, str] = {}
        """Of variables that are rounded 16-bit floats: their bits, as an expression."""

    # Text

    def let(self, ctype: str, expression: str) -> str:
        """The name of a new variable, or of one that has this expression's value already."""
        name = self._known.get((ctype, expression))
        if name is None:
            name = self._known[ctype, expression] = f"t{len(self.lines)}"
            self.say(f"const {ctype} {name} = {expression}")
        return name

    def say(self, line: str) -> None:
        """A statement."""
        self.lines.append(f"{line};")

    def shared(self, ctype: str, name: str, size: int) -> None:
        """Declare an array that a block shares."""
        self.shared_arrays.append(self.dialect.local_array.format(type=ctype, name=name, size=size) + ";")

    def barrier(self) -> None:
        """All threads of a block wait for each other."""
        self.say(self.dialect.barrier)

    def variable(self, start: Value) -> Value:
        """A variable that `assign` can change: to be read and changed in one block only, then read outside."""
        name, ctype = f"v{len(self.lines)}", self.ctype(start.dtype)
        self.say(f"{ctype} {name} = {start.text}")
        if start.imag:
            self.say(f"{ctype} {name}i = {start.imag}")
        return replace(start, text=name, imag=f"{name}i" if start.imag else "")

    def assign(self, variable: Value, value: Value) -> None:
        """Change a variable."""
        self.say(f"{variable.text} = {value.text}")
        if variable.imag:
            self.say(f"{variable.imag} = {value.imag}")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines inside braces; what is computed there is not known outside."""
        self.lines.append(f"{head} {{")
        outside, self._known = self._known, {}
        yield
        self._known = outside
        self.lines.append("}")

    def each(self, name: str, count: int) -> AbstractContextManager[None]:
        """A loop over numbers below `count` that the compiler writes out."""
        return self.block(f"{self.dialect.unrolled_whole}\nfor (int {name} = 0; {name} < {count}; {name}++)")

    def repeat(self, times: int, values: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
        carried = [self.variable(v) for v in values]
        with self.block(f"for (int turn = 0; turn < {times}; turn++)"):
            for variable, value in zip(carried, body(*carried), strict=True):
                self.assign(variable, value)
        return carried

    def ctype(self, dtype: DType) -> str:
        """The type of a value of this dtype (of each part, if complex)."""
        return "int" if dtype is bool_ else self.dialect.types[dtype]

    def bits(self, dtype: DType) -> int:
        """The bits in which a value of this dtype is computed with (each part, if complex)."""
        return 32 if dtype.is_half else real_of(dtype).bits

    def rounded(self, x: Value) -> Value:
        d = self.dialect
        if x.exact or x.dtype not in d.half_bits:
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
        return d.convert.format(type=d.stored[x.dtype], x=f"({whole} >> 16)")

    def from_half_bits(self, dtype: DType, bits: str) -> Value:
        """The 16-bit float that memory has so."""
        d = self.dialect
        if dtype is float16:
            return self.number(dtype, d.from_half_bits.format(x=bits))
        return self.number(dtype, d.reinterpret.format(type=self.ctype(dtype), x=f"(({d.types[uint32]}){bits} << 16)"))

    def number(self, dtype: DType, text: str) -> Value:
        """A value of a real dtype from an expression."""
        return Value(dtype, self.let(self.ctype(dtype), text))

    def truth(self, text: str) -> Value:
        """A truth value from an expression that gives 0 or 1."""
        return Value(bool_, self.let("int", text))

    def reinterpreted(self, x: Value, dtype: DType) -> Value:
        return self.number(dtype, self.dialect.reinterpret.format(type=self.ctype(dtype), x=x.text))

    def function(self, name: str, *operands: Value) -> Value:
        if name in self.dialect.written_out and self.bits(operands[0].dtype) == 32:
            return formulas.WRITTEN_OUT[name](self, *operands)
        dtype = operands[0].dtype
        called = self.dialect.function(name, self.dialect.types[dtype])
        text = f"{called}({', '.join(o.text for o in operands)})"
        return Value(dtype, self.let(self.ctype(dtype), text), exact=False)

    def literal(self, value: Any, dtype: DType) -> Value:
        if dtype is bool_:
            return self.truth("1" if value else "0")
        if dtype.is_complex:
            part, number = real_of(dtype), complex(value)
            return self.paired(dtype, self.literal(number.real, part), self.literal(number.imag, part))
        return self.number(dtype, spelled(value, dtype, self.dialect.types[dtype]))

    def converted(self, x: Value, dtype: DType) -> Value:
        return self.number(dtype, self.dialect.convert.format(type=self.ctype(dtype), x=x.text))

    def zero_or_one(self, truth: Value) -> Value:
        return Value(int32, truth.text)

    def chosen(self, condition: Value, a: Value, b: Value) -> Value:
        text = f"{condition.text} ? {a.text} : {b.text}"
        return Value(a.dtype, self.let(self.ctype(a.dtype), text), exact=a.exact and b.exact)

    # Arithmetic

    def arithmetic(self, sign: str, a: Value, b: Value) -> Value:
        ctype = self.ctype(a.dtype)
        if a.dtype.is_float:
            return Value(a.dtype, self.let(ctype, f"{a.text} {sign} {b.text}"), exact=False)
        if sign == "/":
            return self._plain(sign, a, b)
        # Unsigned, because overflow of signed integers is not defined in C.
        wide = self.dialect.types[uint32 if a.dtype.bits <= 32 else uint64]
        return self.number(a.dtype, f"({ctype})(({wide}){a.text} {sign} ({wide}){b.text})")

    def negated(self, x: Value) -> Value:
        return Value(x.dtype, self.let(self.ctype(x.dtype), f"-{x.text}"), exact=x.exact)

    # Comparison and bits

    def compared(self, sign: str, a: Value, b: Value) -> Value:
        return self.truth(f"({a.text} {sign} {b.text})")

    def inverted(self, x: Value) -> Value:
        if x.dtype is bool_:
            return self.truth(f"!{x.text}")
        return self.number(x.dtype, f"({self.ctype(x.dtype)})(~{x.text})")

    def bitwise(self, sign: str, a: Value, b: Value) -> Value:
        return self.truth(f"{a.text} {sign} {b.text}") if a.dtype is bool_ else self._plain(sign, a, b)

    def _plain(self, sign: str, a: Value, b: Value) -> Value:
        """C's operator on integers."""
        return self.number(a.dtype, f"({self.ctype(a.dtype)})({a.text} {sign} {b.text})")
