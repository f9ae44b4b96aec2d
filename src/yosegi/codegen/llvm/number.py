"""Values with Python's operators, in which the elementary functions are written.

A Python number among them is a constant of the dtype it meets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ..._tensor.dtype import DType, float32, float64, uint32, uint64
from ..scalar.value import Value

if TYPE_CHECKING:
    from .builder import LlvmBuilder

_BITS: Final = {float32: uint32, float64: uint64}
_FLOAT: Final = {uint32: float32, uint64: float64}


class Number:
    """A float, the bits of one or a truth value in every lane."""

    __slots__ = ("k", "value")

    def __init__(self, k: LlvmBuilder, value: Value) -> None:
        self.k = k
        self.value = value

    @property
    def dtype(self) -> DType:
        """The dtype of the value."""
        return self.value.dtype

    @property
    def is_single(self) -> bool:
        """Whether it is a float32, not a float64."""
        return self.dtype is float32

    def like(self, number: float | int) -> Number:
        """A constant of the same dtype."""
        return Number(self.k, self.k.literal(number, self.dtype))

    def _of(self, other: Number | float) -> Number:
        return other if isinstance(other, Number) else self.like(other)

    def _with(self, sign: str, other: Number | float) -> Number:
        return Number(self.k, self.k.arithmetic(sign, self.value, self._of(other).value))

    def _bitwise(self, sign: str, other: Number | float) -> Number:
        return Number(self.k, self.k.bitwise(sign, self.value, self._of(other).value))

    def _compared(self, sign: str, other: Number | float) -> Number:
        return Number(self.k, self.k.compared(sign, self.value, self._of(other).value))

    def _made(self, name: str, *others: Number) -> Number:
        return Number(self.k, self.k.intrinsic(name, self.value, *[o.value for o in others]))

    def __add__(self, other: Number | float) -> Number:
        return self._with("+", other)

    def __radd__(self, other: float) -> Number:
        return self.like(other) + self

    def __sub__(self, other: Number | float) -> Number:
        return self._with("-", other)

    def __rsub__(self, other: float) -> Number:
        return self.like(other) - self

    def __mul__(self, other: Number | float) -> Number:
        return self._with("*", other)

    def __rmul__(self, other: float) -> Number:
        return self.like(other) * self

    def __truediv__(self, other: Number | float) -> Number:
        return self._with("/", other)

    def __rtruediv__(self, other: float) -> Number:
        return self.like(other) / self

    def __neg__(self) -> Number:
        return Number(self.k, self.k.neg(self.value))

    def __abs__(self) -> Number:
        return self._made("fabs")

    def __lshift__(self, places: int) -> Number:
        return self._with("<<", places)

    def __rshift__(self, places: int) -> Number:
        return self._bitwise(">>", places)

    def __and__(self, other: Number | int) -> Number:
        return self._bitwise("&", other)

    def __or__(self, other: Number | int) -> Number:
        return self._bitwise("|", other)

    def __xor__(self, other: Number | int) -> Number:
        return self._bitwise("^", other)

    def __invert__(self) -> Number:
        return Number(self.k, self.k.inverted(self.value))

    def __lt__(self, other: Number | float) -> Number:
        return self._compared("<", other)

    def __le__(self, other: Number | float) -> Number:
        return self._compared("<=", other)

    def __gt__(self, other: Number | float) -> Number:
        return self._of(other) < self

    def __ge__(self, other: Number | float) -> Number:
        return self._of(other) <= self

    def equals(self, other: Number | float) -> Number:
        """Whether they are equal: `==` is Python's own."""
        return self._compared("==", other)

    def bits(self) -> Number:
        """The bits of a float as an unsigned integer of its size."""
        return Number(self.k, self.k.reinterpreted(self.value, _BITS[self.dtype]))

    def as_float(self) -> Number:
        """The float of these bits."""
        return Number(self.k, self.k.reinterpreted(self.value, _FLOAT[self.dtype]))

    def to(self, dtype: DType) -> Number:
        """The number converted to another dtype."""
        return self if self.dtype is dtype else Number(self.k, self.k.converted(self.value, dtype))

    def signed_as(self, other: Number) -> Number:
        """The magnitude of this number with the sign of another."""
        return self._made("copysign", other)

    def sqrt(self) -> Number:
        """The square root."""
        return self._made("sqrt")

    def trunc(self) -> Number:
        """The whole number next to it towards 0."""
        return self._made("trunc")


def fma(a: Number, b: Number | float, c: Number | float) -> Number:
    """a * b + c, rounded once: for formulas that would be wrong otherwise."""
    return Number(a.k, a.k.fma(a.value, a._of(b).value, a._of(c).value))


def muladd(a: Number, b: Number | float, c: Number | float) -> Number:
    """a * b + c, rounded once where that costs nothing."""
    return Number(a.k, a.k.muladd(a.value, a._of(b).value, a._of(c).value))


def polynomial(x: Number, coefficients: Sequence[float]) -> Number:
    """c0 + c1 x + c2 x² + …"""
    made = x.like(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        made = muladd(made, x, c)
    return made


def select(condition: Number, a: Number | float, b: Number | float) -> Number:
    """`a` where the condition is true, else `b`. At least one of them is a `Number`."""
    kind = a if isinstance(a, Number) else b
    assert isinstance(kind, Number)
    return Number(kind.k, kind.k.chosen(condition.value, kind._of(a).value, kind._of(b).value))


def within(x: Number, low: float, high: float) -> Number:
    """The number, no less and no more than two others; NaN stays NaN."""
    below = select(x < low, low, x)
    return select(below > high, high, below)


def at_most(x: Number, high: float) -> Number:
    """The number, no more than another; NaN stays NaN."""
    return select(x > high, high, x)
