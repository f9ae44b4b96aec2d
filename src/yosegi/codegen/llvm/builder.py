"""Scalar rules as LLVM IR, on vectors of any width.

A value is the name of an instruction's result, or a constant. Equal instructions are written once, and what is known
while writing is folded, because nobody optimises the text afterwards. Truth values are i1. Basic arithmetic is never
contracted: fusing ops does not change their bits; the functions use fused products where they mean to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np

from ..._tensor.dtype import DType, bool_, float16, float32, float64, int32, real_of
from ..scalar import halves
from ..scalar.primitives import Primitives
from ..scalar.value import Value, like, texts
from . import ir
from .functions import FUNCTIONS
from .number import Number

_SUFFIXES: Final = {"float": "f32", "double": "f64"}
_OF_FLOATS: Final = {"+": "fadd", "-": "fsub", "*": "fmul", "/": "fdiv", "==": "fcmp oeq", "<": "fcmp olt",
                     "<=": "fcmp ole"}  # fmt: skip
_OF_UNSIGNED: Final = {"+": "add", "-": "sub", "*": "mul", "/": "udiv", "<<": "shl", ">>": "lshr", "&": "and",
                       "|": "or", "^": "xor", "==": "icmp eq", "<": "icmp ult", "<=": "icmp ule"}  # fmt: skip
_OF_SIGNED: Final = _OF_UNSIGNED | {"/": "sdiv", ">>": "ashr", "<": "icmp slt", "<=": "icmp sle"}
_FOLDED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "<<": np.left_shift, ">>": np.right_shift,
    "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "==": np.equal, "<": np.less, "<=": np.less_equal,
}  # fmt: skip
_INTRINSICS: Final = {"fabs", "sqrt", "floor", "ceil", "trunc", "rint", "copysign"}


class LlvmBuilder(Primitives):
    """The primitives as LLVM IR: writes to a function, on values of `width` lanes."""

    def __init__(self, code: ir.Function, width: int) -> None:
        self.code = code
        self.width = width
        self._numbers: dict[tuple[DType, str], Any] = {}

    def at_width(self, width: int) -> LlvmBuilder:
        """A builder that writes to the same function at another width."""
        return LlvmBuilder(self.code, width)

    # Types

    def element(self, dtype: DType) -> str:
        """The type of one lane (of each part, if complex)."""
        if dtype is bool_:
            return "i1"
        if dtype.is_integer:
            return f"i{dtype.bits}"
        return "double" if real_of(dtype) is float64 else "float"

    def vector(self, element: str) -> str:
        """The type of all lanes."""
        return element if self.width == 1 else f"<{self.width} x {element}>"

    def type(self, dtype: DType) -> str:
        """The type of a value of this dtype (of each part, if complex)."""
        return self.vector(self.element(dtype))

    # Text

    def value(self, dtype: DType, instruction: str, *, exact: bool = True) -> Value:
        """A real value from an instruction without side effects."""
        return Value(dtype, self.code.pure(instruction), exact=exact)

    def intrinsic(self, name: str, *operands: Value) -> Value:
        """One of LLVM's functions that take and give values of one type."""
        dtype = operands[0].dtype
        element = self.element(dtype)
        suffix = _SUFFIXES.get(element, element)
        full = f"llvm.{name}.{suffix if self.width == 1 else f'v{self.width}{suffix}'}"
        kind = self.vector(element)
        return Value(dtype, self.code.pure_call(kind, full, [kind] * len(operands), [o.text for o in operands]))

    def splat(self, dtype: DType, text: str) -> Value:
        """A scalar of this dtype in every lane."""
        if self.width == 1:
            return Value(dtype, text)
        element, kind = self.element(dtype), self.type(dtype)
        first = self.code.pure(f"insertelement {kind} poison, {element} {text}, i64 0")
        lanes = f"<{self.width} x i32> zeroinitializer"
        return self.value(dtype, f"shufflevector {kind} {first}, {kind} poison, {lanes}")

    def lane(self, x: Value, at: int) -> Value:
        """A lane of a vector as a scalar."""
        if self.width == 1:
            return x
        return like([x], [self.code.pure(f"extractelement {self.type(x.dtype)} {t}, i64 {at}") for t in texts([x])])[0]

    def literal(self, value: Any, dtype: DType) -> Value:
        if dtype.is_complex:
            part, number = real_of(dtype), complex(value)
            return self.paired(dtype, self.literal(number.real, part), self.literal(number.imag, part))
        number = (np.dtype(np.float32) if dtype.is_half else dtype.numpy).type(value)
        element = self.element(dtype)
        text = spelled(number)
        made = Value(dtype, text if self.width == 1 else f"splat ({element} {text})")
        self._numbers[dtype, made.text] = number
        return made

    def number(self, x: Value) -> Any:
        """The number that a value is known to be in every lane, or None."""
        return self._numbers.get((x.dtype, x.text))

    # Conversion, choice

    def converted(self, x: Value, dtype: DType) -> Value:
        number = self.number(x)
        if number is not None and not (x.dtype.is_float and dtype.is_integer):
            return self.literal(number.astype(dtype.numpy), dtype)
        word = _conversion(x.dtype, dtype)
        if not word:
            return Value(dtype, x.text)
        return self.value(dtype, f"{word} {self.type(x.dtype)} {x.text} to {self.type(dtype)}")

    def reinterpreted(self, x: Value, dtype: DType) -> Value:
        if self.type(x.dtype) == self.type(dtype):
            return Value(dtype, x.text)
        return self.value(dtype, f"bitcast {self.type(x.dtype)} {x.text} to {self.type(dtype)}")

    def zero_or_one(self, truth: Value) -> Value:
        return self.value(int32, f"zext {self.type(bool_)} {truth.text} to {self.type(int32)}")

    def chosen(self, condition: Value, a: Value, b: Value) -> Value:
        known = self.number(condition)
        if known is not None:
            return a if known else b
        if a.text == b.text:
            return a
        kind = self.type(a.dtype)
        text = f"select {self.type(bool_)} {condition.text}, {kind} {a.text}, {kind} {b.text}"
        return self.value(a.dtype, text, exact=a.exact and b.exact)

    # Arithmetic

    def _both(self, sign: str, a: Value, b: Value, dtype: DType, *, exact: bool = True) -> Value:
        """An instruction on two values, or its result where both are known."""
        known, other = self.number(a), self.number(b)
        if known is not None and other is not None:
            with np.errstate(all="ignore"):
                return self.literal(_FOLDED[sign](known, other), dtype)
        kind = a.dtype.kind
        words = _OF_FLOATS if a.dtype.is_float else _OF_SIGNED if kind == "signed integer" else _OF_UNSIGNED
        return self.value(dtype, f"{words[sign]} {self.type(a.dtype)} {a.text}, {b.text}", exact=exact)

    def arithmetic(self, sign: str, a: Value, b: Value) -> Value:
        if sign == "/" and a.dtype.is_integer:
            return self._quotient(a, b)
        return self._both(sign, a, b, a.dtype, exact=not a.dtype.is_float)

    def _quotient(self, a: Value, b: Value) -> Value:
        """The quotient of integers, computed in floats of more digits if there are such: these have vectors."""
        if a.dtype.bits == 64:
            word = "sdiv" if a.dtype.kind == "signed integer" else "udiv"
            return self.value(a.dtype, f"{word} {self.type(a.dtype)} {a.text}, {b.text}")
        wide = float64 if a.dtype.bits == 32 else float32
        ratio = self.arithmetic("/", self.converted(a, wide), self.converted(b, wide))
        return self.converted(ratio, a.dtype)

    def negated(self, x: Value) -> Value:
        return self.value(x.dtype, f"fneg {self.type(x.dtype)} {x.text}", exact=x.exact)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", a, b, c)

    def muladd(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the target does it as fast as a product."""
        return self.intrinsic("fmuladd", a, b, c)

    # Comparison and bits

    def compared(self, sign: str, a: Value, b: Value) -> Value:
        return self._both(sign, a, b, bool_)

    def bitwise(self, sign: str, a: Value, b: Value) -> Value:
        for known, other in ((self.number(a), b), (self.number(b), a)):
            if a.dtype is bool_ and known is not None and sign in "&|":
                return other if bool(known) == (sign == "&") else self.literal(known, bool_)
        return self._both(sign, a, b, a.dtype)

    def inverted(self, x: Value) -> Value:
        return self.bitwise("^", x, self.literal(True, bool_) if x.dtype is bool_ else self._ones(x.dtype))

    def _ones(self, dtype: DType) -> Value:
        return self.literal(np.invert(np.zeros((), dtype.numpy)), dtype)

    # Rounding, functions, loops

    def rounded(self, x: Value) -> Value:
        if x.exact or x.dtype is not float16 or not self.code.module.converts_halves:
            return x if x.exact or not x.dtype.is_half else halves.rounded(self, x)
        half = self.code.pure(f"fptrunc {self.type(float32)} {x.text} to {self.vector('half')}")
        return self.value(float16, f"fpext {self.vector('half')} {half} to {self.type(float32)}")

    def function(self, name: str, *operands: Value) -> Value:
        dtype = operands[0].dtype
        singles = [replace(o, dtype=float32) if dtype.is_half else o for o in operands]
        key = (name, self.type(dtype), *[o.text for o in singles])
        made: Value | None = self.code.known.get(key)
        if made is None:
            if name in _INTRINSICS:
                made = self.intrinsic(name, *singles)
            else:
                made = FUNCTIONS[name](*[Number(self, o) for o in singles]).value
            self.code.known[key] = made
        return replace(made, dtype=dtype, exact=False)

    def library(self, name: str, *operands: Value) -> Value:
        """A function of the C library, on one lane."""
        assert self.width == 1
        element = self.element(operands[0].dtype)
        called = f"{name}f" if element == "float" else name
        given = texts(operands)
        return Value(operands[0].dtype, self.code.pure_call(element, called, [element] * len(given), given))

    def looked_up(self, name: str, numbers: Sequence[float], index: Value) -> Value:
        """Doubles from a table of constants."""
        if name not in self.code.module.tables:
            self.code.module.table(name, "double", _doubles(tuple(numbers)))
        at = self.code.pure(f"getelementptr double, ptr @{name}, {self.type(index.dtype)} {index.text}")
        if self.width == 1:
            return self.value(float64, f"load double, ptr {at}")
        pointers, mask, kind = self.vector("ptr"), self.type(bool_), self.type(float64)
        called = f"llvm.masked.gather.v{self.width}f64.v{self.width}p0"
        self.code.module.declarations.add(f"declare {kind} @{called}({pointers}, i32 immarg, {mask}, {kind})")
        arguments = f"{pointers} {at}, i32 8, {mask} splat (i1 true), {kind} poison"
        return self.value(float64, f"call {kind} @{called}({arguments})")

    def carried(self, values: Sequence[Value]) -> list[tuple[str, str]]:
        """Values as a loop carries them: the type and the text of each part."""
        return [(self.type(v.dtype), t) for v in values for t in texts([v])]

    def repeat(self, times: int, values: Sequence[Value], body: Callable[..., Sequence[Value]]) -> list[Value]:
        with self.code.loop(0, times, carried=self.carried(values)) as loop:
            loop.carry(*texts(body(*like(values, loop.values))))
        return like(values, loop.values)


@cache
def _doubles(numbers: tuple[float, ...]) -> list[str]:
    """The doubles of a table as LLVM writes them."""
    return [spelled(np.float64(n)) for n in numbers]


def spelled(number: Any) -> str:
    """A NumPy scalar as LLVM writes it, to the last bit."""
    if number.dtype.kind == "b":
        return "true" if number else "false"
    if number.dtype.kind in "iu":
        return str(int(number))
    return f"0x{int(np.float64(number).view(np.uint64)):016X}"  # floats too are written as the double they are


def _conversion(source: DType, target: DType) -> str:
    """The word for a conversion between real numbers; nothing where the bits stay."""
    if source.is_integer and target.is_integer:
        if source.bits == target.bits:
            return ""
        return "trunc" if source.bits > target.bits else "sext" if source.kind == "signed integer" else "zext"
    if source.is_integer:
        return "sitofp" if source.kind == "signed integer" else "uitofp"
    if target.is_integer:
        return "fptosi" if target.kind == "signed integer" else "fptoui"
    return "fpext" if target.bits > source.bits else "fptrunc"
