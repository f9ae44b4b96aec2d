"""Expressions: the elementwise work of a kernel at one index, on elements of arrays with any strides.

A kernel goes through a space of indices, its axes. An entry of a graph is looked at through a view: for each of its
dimensions the axis that runs along it, or none where it has a single element. Transposes and repetitions change the
view and cost nothing; elementwise ops become applications of their scalar rules; an array is left as strides, one for
each axis. Several axes may share a dimension: one after the other, or as a window that slides over it. Reductions along
one axis are values of a row, and random words are functions of an element's number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._schedule.fuse import is_constant, is_exact_conversion
from ..._tensor.dtype import DType, uint32
from ..._tensor.node import Call, Shape
from ..._tensor.role import RandomWords
from ..._tensor.role import View as ViewRole
from ...errors import Unsupported
from ..scalar.folds import Fold, folds
from ..scalar.primitives import Primitives
from ..scalar.value import Value
from .op_programs import counts
from .words import random_word

_NEAR: Final = 1 << 31

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Places of a dimension that several axes lead to: those where windows stand, and those inside of a window.

    Elements stand `spread` apart. There are none between them, before the first and behind the last.
    """

    strides: Strides
    """Places from one index to the next, for each axis of the space."""
    low: int
    """Places before the first element."""
    spread: int
    length: int

    def stays_inside(self, sizes: Shape) -> bool:
        """True if every place has an element, in a space of these sizes; the first place the first one."""
        last = sum(s * (n - 1) for s, n in zip(self.strides, sizes, strict=True))
        return self.spread == 1 and self.low == 0 and min(self.strides) >= 0 and last < self.length


Axis = int | tuple[int, ...] | Window | None
"""The index along a dimension: an axis, several axes of which the last runs fastest, a window, or nothing."""
View = tuple[Axis, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Read:
    """An element of an array."""

    entry: int
    dtype: DType
    strides: Strides
    """Elements from one index to the next, for each axis of the space."""


@dataclass(frozen=True, slots=True, eq=False)
class Windowed:
    """An element of an array under windows that reach beyond it."""

    entry: int
    dtype: DType
    strides: Strides
    """As a read's, without the dimensions under windows."""
    windows: tuple[tuple[Window, int], ...]
    """Each with the elements from one index of its dimension to the next."""
    beyond: Any = 0
    """The value of an element outside of the array."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstantNumber:
    """A number that is the same at every index."""

    value: Any
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Apply:
    """An op's scalar rule on operands."""

    call: Call
    operands: tuple[Expression, ...]

    @property
    def dtype(self) -> DType:
        """The op's."""
        return self.call.spec.dtype


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """A random word of an element, under a state of four words in memory."""

    state: int
    strides: Strides
    """Of the element's number."""
    dtype: DType = uint32


@dataclass(frozen=True, slots=True, eq=False)
class Counted:
    """Whole numbers, evenly spaced."""

    start: int
    step: int
    strides: Strides
    """Of the number of an element."""
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """A reduction along the space's last axis: one value for a row."""

    fold: Fold
    operand: Expression

    @property
    def dtype(self) -> DType:
        """The result's."""
        return self.fold.result


@dataclass(frozen=True, slots=True, eq=False)
class Sum:
    """The result of a matrix product at this index."""

    dtype: DType


Expression = Read | Windowed | ConstantNumber | Apply | Word | Counted | Folded | Sum


def parts_of(expression: Expression) -> Iterator[Expression]:
    """An expression and all that it is made of, each once, operands first."""
    return _missing(expression, {})


def forms_in(expression: Expression) -> list[Strides]:
    """Everything linear in the indices that an expression asks for: places of elements, their numbers, of windows."""
    made: list[Strides] = []
    for part in parts_of(expression):
        if isinstance(part, (Read, Windowed, Word, Counted)):
            made.append(part.strides)
        if isinstance(part, Windowed):
            made += [window.strides for window, _ in part.windows]
    return made


def _operands(expression: Expression) -> tuple[Expression, ...]:
    if isinstance(expression, Apply):
        return expression.operands
    return (expression.operand,) if isinstance(expression, Folded) else ()


@dataclass(slots=True)
class Walker:
    """Turns entries of a graph into expressions over one space."""

    graph: Graph
    sizes: Shape
    """Of the space's axes."""
    along: int | None = None
    """The axis that reductions may run along."""
    known: frozenset[int] = frozenset()
    """Entries that are read from memory, beside the graph's inputs."""
    total: int | None = None
    """The entry that is the product."""
    total_view: View = ()
    beyond: Any = 0
    """The value of elements where windows reach beyond an array."""
    converts: bool = False
    """True if an array under windows may be converted from 16 bits."""
    _made: dict[tuple[int, View], Expression] = field(default_factory=dict)

    def at(self, entry: int, view: View) -> Expression:
        """An entry as an expression. Raises `Unsupported` if it is more than that."""
        view = self._normal(view, self.graph.calls[entry].spec.shape)
        made = self._made.get((entry, view))
        if made is None:
            made = self._made[entry, view] = self._new(entry, view)
        return made

    def _normal(self, view: View, shape: Shape) -> View:
        """The view without axes of length one."""
        return tuple(None if n == 1 and not self._is_beyond(a) else a for a, n in zip(view, shape, strict=True))

    def _is_beyond(self, axis: Axis) -> bool:
        """True if this is a window with places that have no element."""
        return isinstance(axis, Window) and not axis.stays_inside(self.sizes)

    def _new(self, entry: int, view: View) -> Expression:
        graph, call = self.graph, self.graph.calls[entry]
        spec, args = call.spec, graph.args[entry]
        if any(map(self._is_beyond, view)):
            return self._windowed(entry, view)
        if entry == self.total:
            if view != self._normal(self.total_view, spec.shape):
                raise Unsupported("the product in another order")
            return Sum(spec.dtype)
        if is_constant(graph, entry) and spec.size == 1:
            return ConstantNumber(np.asarray(bind(call)()).reshape(()).item(), spec.dtype)
        counted = self._counted(call, view) if is_constant(graph, entry) and spec.dtype.is_integer else None
        if counted is not None:
            return counted
        if entry in self.known or entry in graph.inputs or is_constant(graph, entry):
            return Read(entry, spec.dtype, self.strides(spec.shape, view))
        if call.op.scalar is not None:
            return Apply(call, tuple([self.at(a, self._broadcast(graph.calls[a], view)) for a in args]))
        if folds(call) and self.along is not None:
            return self._folded(call, args[0], view)
        if counts(call):
            return Counted(call.attrs["start"], call.attrs["step"], self.strides(spec.shape, view), spec.dtype)
        if isinstance(call.op.role, RandomWords):
            return Word(args[0], self.strides(spec.shape, view))
        inner = self._moved(call, view)
        if inner is None:
            raise Unsupported(f"{call.op.name} is not elementwise")
        return self.at(args[0], inner)

    def strides(self, shape: Shape, view: View) -> Strides:
        """Where the elements of a contiguous array lie, through a view."""
        strides = [0] * len(self.sizes)
        step = 1
        for axis, n in zip(reversed(view), reversed(shape), strict=True):
            for one, far in self._steps(axis) if n != 1 else ():
                strides[one] += far * step
            step *= n
        return tuple(strides)

    def _steps(self, axis: Axis) -> list[tuple[int, int]]:
        """The axes that run along a dimension, each with the indices of it from one of its own to the next."""
        if axis is None or self._is_beyond(axis):
            return []
        if isinstance(axis, int):
            return [(axis, 1)]
        if isinstance(axis, Window):
            return list(enumerate(axis.strides))
        inner = [self.sizes[a] for a in axis]
        return [(a, prod(inner[n + 1 :])) for n, a in enumerate(axis) if inner[n] != 1]

    def _windowed(self, entry: int, view: View) -> Expression:
        """An array under windows; in another order of its dimensions too, or repeated, but nothing else."""
        call, args = self.graph.calls[entry], self.graph.args[entry]
        if entry in self.known or entry in self.graph.inputs or is_constant(self.graph, entry):
            shape = call.spec.shape
            windows = [(axis, 0 if n == 1 else prod(shape[place + 1 :]))
                       for place, (axis, n) in enumerate(zip(view, shape, strict=True))
                       if isinstance(axis, Window) and self._is_beyond(axis)]  # fmt: skip
            return Windowed(entry, call.spec.dtype, self.strides(shape, view), tuple(windows), self.beyond)
        if self.converts and is_exact_conversion(call):
            return Apply(call, (self.at(args[0], view),))
        inner = None if call.op.role is ViewRole.RESHAPED else self._moved(call, view)
        if inner is None or sum(map(self._is_beyond, inner)) < sum(map(self._is_beyond, view)):
            # A repetition may have a dimension under a window that its operand does not have.
            raise Unsupported(f"{call.op.name} under windows that reach beyond it")
        return self.at(args[0], inner)

    def _broadcast(self, operand: Call, view: View) -> View:
        return view[len(view) - operand.spec.ndim :]

    def _moved(self, call: Call, view: View) -> View | None:
        """The view of the operand of a movement that changes nothing but the view."""
        shape = call.inputs[0].shape
        if call.op.role is ViewRole.PERMUTED:
            inner: list[Axis] = [None] * len(shape)
            for place, axis in enumerate(call.attrs["axes"]):
                inner[axis] = view[place]
            return tuple(inner)
        if call.op.role is ViewRole.BROADCAST:
            return view[len(view) - len(shape) :]
        if call.op.role is ViewRole.RESHAPED:
            longer = [(n, a) for n, a in zip(call.spec.shape, view, strict=True) if n != 1]
            if [n for n, _ in longer] == [n for n in shape if n != 1]:
                left = iter(longer)
                return tuple(None if n == 1 else next(left)[1] for n in shape)
        return None

    def _folded(self, call: Call, operand: int, view: View) -> Expression:
        assert self.along is not None
        axes, shape = call.attrs["axis"], call.inputs[0].shape
        wide = [a for a in axes if shape[a] != 1]
        if len(wide) > 1:
            raise Unsupported(f"{call.op.name} over several axes")
        if not (call.spec.dtype.is_float or call.spec.dtype.is_integer):
            raise Unsupported(f"{call.op.name} of {call.spec.dtype.name} in a row")
        outer = iter(view)
        inner: list[Axis] = []
        for place in range(len(shape)):
            if place not in axes:
                inner.append(next(outer))
                continue
            if call.attrs["keepdims"]:
                next(outer)
            inner.append(self.along if place in wide else None)
        if self.along in [a for p, a in enumerate(inner) if p not in axes]:
            raise Unsupported(f"{call.op.name} of what runs along the same axis")
        if any(shape[a] != self.sizes[self.along] for a in wide) or (not wide and self.sizes[self.along] != 1):
            raise Unsupported(f"{call.op.name} along an axis of its own")
        return Folded(Fold.of(call), self.at(operand, tuple(inner)))

    def _counted(self, call: Call, view: View) -> Counted | None:
        """A constant of evenly spaced numbers: to count takes less than to read."""
        numbers = np.asarray(bind(call)()).reshape(-1)
        if numbers.size < 2:
            return None
        start, step = int(numbers[0]), int(numbers[1]) - int(numbers[0])
        is_near = max(abs(start), abs(step)) < _NEAR  # so that counting does not go beyond 64 bits
        is_even = is_near and bool(np.all(numbers == start + step * np.arange(numbers.size)))
        return Counted(start, step, self.strides(call.spec.shape, view), call.spec.dtype) if is_even else None


@dataclass(frozen=True, slots=True)
class ElementReader:
    """How a kernel reads what an expression is made of."""

    read: Callable[[Read | Windowed], Value]
    number: Callable[[Strides], Value]
    """An element's number, as uint64, from its strides."""
    state: Callable[[int], tuple[Value, Value, Value, Value]]
    known: Mapping[int, Value] = field(default_factory=dict)
    """Values of parts that are there already, by identity: row values, the product."""


def emitted(k: Primitives, expression: Expression, places: ElementReader) -> Value:
    """The code of an expression at one place."""
    values = dict(places.known)
    for part in _missing(expression, values):
        values[id(part)] = _emitted(k, part, places, values)
    return values[id(expression)]


def _missing(expression: Expression, values: Mapping[int, Value]) -> Iterator[Expression]:
    """Parts that have no value yet, operands first; not those of parts that have one."""
    seen = set(values)
    waiting: list[tuple[Expression, bool]] = [(expression, False)]
    while waiting:
        here, ready = waiting.pop()
        if ready:
            yield here
        elif id(here) not in seen:
            seen.add(id(here))
            waiting.append((here, True))
            waiting += [(o, False) for o in reversed(_operands(here))]


def _emitted(k: Primitives, part: Expression, places: ElementReader, values: Mapping[int, Value]) -> Value:
    if isinstance(part, (Read, Windowed)):
        return places.read(part)
    if isinstance(part, ConstantNumber):
        return k.literal(part.value, part.dtype)
    if isinstance(part, Word):
        return random_word(k, places.number(part.strides), places.state(part.state))
    if isinstance(part, Counted):
        number = k.convert(places.number(part.strides), part.dtype)
        return k.add(k.mul(number, k.literal(part.step, part.dtype)), k.literal(part.start, part.dtype))
    assert isinstance(part, Apply), "row values and the product are known before"
    assert part.call.op.scalar is not None
    return k.rounded(part.call.op.scalar(k, *[values[id(o)] for o in part.operands], **part.call.attrs))
