"""Reductions of a pass: a state that each element changes, and the combination of two states."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..._tensor.dtype import DType, bool_, float32, float64, int32, int64, uint8
from ..._tensor.node import Call
from ..._tensor.role import Extremum, Scan
from ..scalar.folds import Fold
from ..scalar.value import Value
from .builder import LlvmBuilder
from .lanes import halved, shuffled, spread

State = list[Value]
Place = Callable[[DType], Value]
"""The number of an element in its row, as an integer of a dtype."""


class Folding(Protocol):
    """The state of a reduction and its operations."""

    @property
    def adds(self) -> bool:
        """Whether rounding errors grow with the number of elements."""

    @property
    def state(self) -> tuple[DType, ...]:
        """The dtypes of its state."""

    def start(self, k: LlvmBuilder) -> State:
        """The state that changes nothing."""

    def step(self, k: LlvmBuilder, state: State, x: Value, place: Place, had: Value | None) -> State:
        """The state with an element added. `place` gives its number in the row; lanes in `had` do not count."""

    def combine(self, k: LlvmBuilder, a: State, b: State) -> State:
        """The state of the elements of two states."""

    def end(self, k: LlvmBuilder, state: State) -> Value:
        """The result."""


def folding_of(call: Call, elements: int) -> Folding:
    """The folding of a reduction's call, of so many elements a row."""
    role = call.op.role
    return _ExtremeIndex(role, call, elements) if isinstance(role, Extremum) else _Total(Fold.of(call))


class _Total:
    """A reduction to one number: the sum, the product, the largest or the smallest element."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self.adds = fold.name in ("sum", "prod") and fold.accumulated.is_inexact
        self.state = (fold.accumulated,)

    def start(self, k: LlvmBuilder) -> State:
        return [k.literal(self._fold.start, self._fold.accumulated)]

    def step(self, k: LlvmBuilder, state: State, x: Value, place: Place, had: Value | None) -> State:
        element = self._fold.begin(k, x)
        if had is not None:
            element = k.select(had, self.start(k)[0], element)
        return [self._fold.combine(k, state[0], element)]

    def combine(self, k: LlvmBuilder, a: State, b: State) -> State:
        return [self._fold.combine(k, a[0], b[0])]

    def end(self, k: LlvmBuilder, state: State) -> Value:
        return self._fold.end(k, state[0])


class _ExtremeIndex:
    """The number of the first extreme element, of the first NaN if there is one. The state: the element, its number."""

    adds = False

    def __init__(self, role: Extremum, call: Call, elements: int) -> None:
        self._largest = role.is_largest
        given = call.inputs[0].dtype
        self._dtype = uint8 if given is bool_ else float32 if given.is_half else given
        self._number = int32 if elements < 2**31 else int64
        self._nowhere = np.iinfo(self._number.numpy).max
        self.state = (self._dtype, self._number)

    def start(self, k: LlvmBuilder) -> State:
        if self._dtype.is_integer:
            info = np.iinfo(self._dtype.numpy)
            least: Any = info.min if self._largest else info.max
        else:
            least = float("-inf") if self._largest else float("inf")
        return [k.literal(least, self._dtype), k.literal(self._nowhere, self._number)]

    def step(self, k: LlvmBuilder, state: State, x: Value, place: Place, had: Value | None) -> State:
        element = k.convert(x, self._dtype)
        if had is not None:
            element = k.select(had, self.start(k)[0], element)
        wins = self._beats(k, element, state[0])
        return [k.select(wins, element, state[0]), k.select(wins, place(self._number), state[1])]

    def combine(self, k: LlvmBuilder, a: State, b: State) -> State:
        earlier = k.and_(self._equals(k, a[0], b[0]), k.lt(b[1], a[1]))
        wins = k.or_(self._beats(k, b[0], a[0]), earlier)
        return [k.select(wins, b[0], a[0]), k.select(wins, b[1], a[1])]

    def end(self, k: LlvmBuilder, state: State) -> Value:
        # Where nothing beat the least number there is, all elements are that number, and the first is the first.
        nowhere = k.eq(state[1], k.literal(self._nowhere, self._number))
        return k.convert(k.select(nowhere, k.literal(0, self._number), state[1]), int64)

    def _beats(self, k: LlvmBuilder, a: Value, b: Value) -> Value:
        """Whether a is more extreme than b; NaN is the most extreme."""
        if self._dtype.is_integer:
            return k.lt(b, a) if self._largest else k.lt(a, b)
        not_behind = k.le(a, b) if self._largest else k.le(b, a)
        return k.and_(k.not_(not_behind), k.eq(b, b))

    def _equals(self, k: LlvmBuilder, a: Value, b: Value) -> Value:
        same = k.eq(a, b)
        if self._dtype.is_integer:
            return same
        return k.or_(same, k.not_(k.or_(k.eq(a, a), k.eq(b, b))))


def folded_to(k: LlvmBuilder, folding: Folding, state: State, width: int) -> State:
    """The lanes folded until so many are left."""
    while k.width > width:
        halves = [halved(k, v) for v in state]
        k = k.at_width(k.width // 2)
        state = folding.combine(k, [low for low, _ in halves], [high for _, high in halves])
    return state


class Running:
    """A running total. Its state is what all elements before have come to: a scalar where lanes are neighbours."""

    def __init__(self, call: Call) -> None:
        role, given, result = call.op.role, call.inputs[0].dtype, call.spec.dtype
        assert isinstance(role, Scan)
        self.result = result
        self.accumulated = result if not result.is_half else float32 if given.bits < 64 else float64
        self._fold = Fold(role.combine, False, self.accumulated, result, 0)

    def start(self, k: LlvmBuilder) -> Value:
        """Nothing yet."""
        return k.literal(self._fold.start, self.accumulated)

    def along(self, k: LlvmBuilder, total: Value, x: Value) -> tuple[Value, Value]:
        """The totals up to each lane, lanes being neighbours; and the total of all."""
        value = k.convert(x, self.accumulated)
        start, reach = self.start(k), 1
        while reach < k.width:
            order = [n - reach if n >= reach else k.width for n in range(k.width)]
            value = self._fold.combine(k, value, shuffled(k, value, order, start))
            reach *= 2
        value = self._fold.combine(k, spread(k, total), value)
        return self._shown(k, value), k.lane(value, k.width - 1)

    def across(self, k: LlvmBuilder, total: Value, x: Value) -> tuple[Value, Value]:
        """The totals with one more element in each lane, lanes being rows of their own."""
        value = self._fold.combine(k, total, k.convert(x, self.accumulated))
        return self._shown(k, value), value

    def _shown(self, k: LlvmBuilder, value: Value) -> Value:
        return k.rounded(k.convert(value, self.result))
