"""Minimal filtering in one dimension: sums over windows of three elements, by few products.

A filter of some windows side by side has two products more than windows. Each is a sum of the elements that the windows
have in common, times a sum of the three weights; the windows are sums of the products. In two dimensions a square of
elements is taken by rows and then by columns:

| windows | products | products of plain sums |
|---|---|---|
| 2 × 2 | 16 | 36 |
| 4 × 4 | 36 | 144 |

The factors follow from points at which polynomials are evaluated. Small filters have 0, 1, -1 and infinity, and no
factor but a half. Filters of four windows need two points more. With 1 and 2, as in Winograd's papers, errors are four
times those of plain sums; with 11/16 and 3/2 they are twice those, and all factors are numbers of few bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..scalar.value import Value
from .builder import LlvmBuilder

KERNEL: Final = 3
"""Weights in each dimension."""

Line = Sequence[Value]
Combined = Callable[[LlvmBuilder, Line], list[Value]]
"""Sums and differences of the values of a line."""


@dataclass(frozen=True, slots=True)
class Filter:
    """An algorithm for one dimension."""

    side: int
    """Windows, a power of two."""
    elements: Combined
    """Factors of the products, from the elements."""
    kernels: Combined
    """Factors of the products, from the weights."""
    sums: Combined
    """Windows, from the products."""

    @property
    def reach(self) -> int:
        """Elements, and products."""
        return self.side + KERNEL - 1

    @property
    def matrices(self) -> int:
        """Products in two dimensions."""
        return self.reach * self.reach


def by_rows_and_columns(k: LlvmBuilder, square: Sequence[Line], combined: Combined) -> list[Value]:
    """A square after a function is applied to its rows, and then to the columns of the result; row by row."""
    columns = zip(*[combined(k, row) for row in square], strict=True)
    return [value for row in zip(*[combined(k, column) for column in columns], strict=True) for value in row]


# Two windows


def _two_elements(k: LlvmBuilder, line: Line) -> list[Value]:
    a, b, c, d = line
    return [k.arithmetic("-", a, c), k.arithmetic("+", b, c), k.arithmetic("-", c, b), k.arithmetic("-", b, d)]


def _two_kernels(k: LlvmBuilder, line: Line) -> list[Value]:
    a, b, c = line
    half = k.literal(0.5, a.dtype)
    outer, inner = k.arithmetic("*", k.arithmetic("+", a, c), half), k.arithmetic("*", b, half)
    return [a, k.arithmetic("+", outer, inner), k.arithmetic("-", outer, inner), c]


def _two_sums(k: LlvmBuilder, line: Line) -> list[Value]:
    a, b, c, d = line
    first, second = k.arithmetic("+", b, c), k.arithmetic("-", b, c)
    return [k.arithmetic("+", a, first), k.arithmetic("-", second, d)]


# Four windows: the points are 0, ±P, ±Q and infinity

_P, _Q = 11 / 16, 3 / 2
_A, _B = _P * _P, _Q * _Q


def _added(k: LlvmBuilder, factor: float, x: Value, y: Value) -> Value:
    """factor * x + y."""
    return k.muladd(k.literal(factor, x.dtype), x, y)


def _four_elements(k: LlvmBuilder, line: Line) -> list[Value]:
    a, b, c, d, e, f = line
    made = [_added(k, _A * _B, a, _added(k, -_A - _B, c, e))]
    for point, other in ((_P, _B), (_Q, _A)):
        even, odd = _added(k, -other, c, e), _added(k, -other, b, d)
        made += [_added(k, point, odd, even), _added(k, -point, odd, even)]
    return [*made, _added(k, _A * _B, b, _added(k, -_A - _B, d, f))]


def _four_kernels(k: LlvmBuilder, line: Line) -> list[Value]:
    a, b, c = line
    made = [k.arithmetic("*", a, k.literal(1 / (_A * _B), a.dtype))]
    for point, square, other in ((_P, _A, _B), (_Q, _B, _A)):
        even, scale = _added(k, square, c, a), k.literal(1 / (2 * square * (square - other)), a.dtype)
        made += [k.arithmetic("*", _added(k, sign * point, b, even), scale) for sign in (1, -1)]
    return [*made, c]


def _four_sums(k: LlvmBuilder, line: Line) -> list[Value]:
    a, b, c, d, e, f = line
    even, odd = ([k.arithmetic(sign, *pair) for pair in ((b, c), (d, e))] for sign in "+-")
    return [
        k.arithmetic("+", a, k.arithmetic("+", *even)),
        _added(k, _P, odd[0], k.arithmetic("*", odd[1], k.literal(_Q, f.dtype))),
        _added(k, _A, even[0], k.arithmetic("*", even[1], k.literal(_B, f.dtype))),
        _added(k, _P * _A, odd[0], _added(k, _Q * _B, odd[1], f)),
    ]


FILTERS: Final = {
    2: Filter(2, _two_elements, _two_kernels, _two_sums),
    4: Filter(4, _four_elements, _four_kernels, _four_sums),
}
"""By the windows of a square in each dimension."""
