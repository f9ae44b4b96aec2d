"""A kernel over a space of indices while it is written: its parameters, and how expressions read their arrays."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import prod

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._schedule.fuse import is_constant
from ..._tensor.dtype import uint32, uint64
from ..scalar.value import Value
from .builder import CBuilder
from .contractions import MergedAxes, Output
from .dialect import Dialect
from .expressions import ElementReader, Expression, Read, Strides, Windowed, Word, emitted, parts_of
from .kernel_source import Inputs, Kernel, assembled
from .packets import element_at, put_element

Indices = Mapping[int, str]
"""The index along each axis, as text; axes that are not named have index 0."""


def inputs_of(graph: Graph, expressions: Sequence[Expression]) -> Inputs:
    """The arrays that expressions read, constants last."""
    read: dict[int, None] = {}
    for expression in expressions:
        for part in parts_of(expression):
            if isinstance(part, (Read, Windowed)):
                read[part.entry] = None
            elif isinstance(part, Word):
                read[part.state] = None
    entries = sorted(read, key=lambda e: is_constant(graph, e))
    specs = [graph.calls[e].spec for e in entries]
    constants = [np.asarray(bind(graph.calls[e])()) for e in entries if is_constant(graph, e)]
    return Inputs(tuple(entries), tuple(s.shape for s in specs), tuple(s.dtype for s in specs), tuple(constants))


class Frame:
    """The common part of kernels over a space of indices. Sizes and strides are parameters, each named once."""

    def __init__(self, dialect: Dialect, inputs: Inputs, outputs: Sequence[Output], elements: int) -> None:
        self.dialect, self.inputs, self.outputs = dialect, inputs, tuple(outputs)
        self.k = CBuilder(dialect, elements)
        self.ctype = self.k.index
        self._named: dict[Hashable, str] = {}

    # Parameters

    def size(self, key: Hashable, value: int) -> str:
        """The text of a size that the key stands for."""
        name = self._named.get(key)
        if name is None:
            name = self._named[key] = self.k.sizes(value)
        return name

    # Places

    def total(self, role: str, runs: Sequence[MergedAxes]) -> str:
        """How many indices the runs of a role have together."""
        count = prod(run.size for run in runs)
        return str(count) if all(run.is_fixed for run in runs) else self.size(role, count)

    def indices(self, role: str, runs: Sequence[MergedAxes], index: str) -> dict[int, str]:
        """The index along each axis, from the number of a place of these runs."""
        made: dict[int, str] = {}
        for place, run in reversed(list(enumerate(runs))):
            if place == 0:
                made[run.axis] = index
                break
            n = str(run.size) if run.is_fixed else self.size((role, run.axis, run.size), run.size)
            whole = self.k.let(self.ctype, f"({index}) / {n}")
            made[run.axis] = self.k.let(self.ctype, f"({index}) - {whole} * {n}")
            index = whole
        return made

    def place(self, owner: Hashable, strides: Strides, indices: Indices) -> str:
        """Where an element of an array lies."""
        terms = []
        for axis, index in indices.items():
            if strides[axis]:
                step = self.size((owner, axis), strides[axis])
                terms.append(index if step == "1" else f"({index}) * {step}")
        return " + ".join(terms) or "0"

    def window(self, k: CBuilder, part: Read | Windowed, indices: Indices) -> tuple[list[str], str]:
        """The condition for an element under an array's windows to exist, and its address."""
        inside, places = [], [self.place(id(part), part.strides, indices)]
        for number, (window, step) in enumerate(part.windows if isinstance(part, Windowed) else ()):
            terms = [f"({index}) * {window.strides[axis]}" for axis, index in indices.items() if window.strides[axis]]
            place = k.let(self.ctype, " + ".join([*terms, f"({-window.low})"]))
            if window.spread > 1:
                inside.append(f"({place} % {window.spread} == 0)")
                place = k.let(self.ctype, f"{place} / {window.spread}")
            length = self.size((id(part), number, "length"), window.length)
            inside += [f"({place} >= 0)", f"({place} < {length})"]
            if step:
                places.append(f"{place} * {self.size((id(part), number, 'step'), step)}")
        return inside, " + ".join(places)

    def guarded(self, k: CBuilder, part: Read | Windowed, indices: Indices, within: str = "1") -> tuple[Value, str]:
        """True if there is an element, and where it lies; where there is none, the place of the first one.

        `within` is a condition that has to hold beside those of windows. All of it is computed at any rate: a branch
        would keep what comes behind it from being read at the same time.
        """
        inside, place = self.window(k, part, indices)
        there = k.truth(" & ".join([within, *inside]))
        at = k.let(self.ctype, place)
        return there, k.let(self.ctype, f"{there.text} ? {at} : 0")

    # Elements

    def pointer(self, entry: int) -> str:
        """The parameter that points to an array."""
        return f"a{self.inputs.entries.index(entry)}"

    def guarded_element(self, k: CBuilder, part: Read | Windowed, indices: Indices, within: str = "1") -> Value:
        """An element, or what there is beyond the array. No thread branches differently from its neighbours, so
        that they all read at once, and several elements one behind the other."""
        there, at = self.guarded(k, part, indices, within)
        value = element_at(k, part.dtype, self.pointer(part.entry), at)
        return k.select(there, value, k.literal(part.beyond if isinstance(part, Windowed) else 0, part.dtype))

    def put(self, k: CBuilder, value: Value, pointer: str, at: str) -> None:
        """One value to memory."""
        put_element(k, value, pointer, k.let(self.ctype, at))

    def reader(
        self, k: CBuilder, indices: Indices, known: Mapping[int, Value] | None = None,
        packets: Mapping[int, Value] | None = None,
    ) -> ElementReader:  # fmt: skip
        """How expressions are read at a place. `packets` has the values of reads that were loaded before, by
        identity."""

        def read(part: Read | Windowed) -> Value:
            if packets is not None and id(part) in packets:
                return packets[id(part)]
            if isinstance(part, Windowed):
                return self.guarded_element(k, part, indices)
            pointer, at = self.pointer(part.entry), self.place(id(part), part.strides, indices)
            return element_at(k, part.dtype, pointer, k.let(self.ctype, at))

        def number(strides: Strides) -> Value:
            wide = k.dialect.types[uint64]
            return k.number(uint64, f"({wide})({self.place(('number', strides), strides, indices)})")

        def state(entry: int) -> tuple[Value, Value, Value, Value]:
            words = [element_at(k, uint32, self.pointer(entry), str(n)) for n in range(4)]
            return words[0], words[1], words[2], words[3]

        return ElementReader(read, number, state, known or {})

    def value(self, k: CBuilder, expression: Expression, places: ElementReader) -> Value:
        """The code of an expression."""
        return emitted(k, expression, places)

    # The end

    def kernel(self, items: int, group: int) -> Kernel:
        """The program, for so many threads in blocks."""
        return assembled(self.k, self.inputs.dtypes, [o.expression.dtype for o in self.outputs], items, group)


def multiplied(k: CBuilder, a: Value, b: Value, onto: Value) -> Value:
    """a * b + onto, rounded once where the language has a word for it."""
    if not onto.dtype.is_float:
        return k.add(k.mul(a, b), onto)
    scalar = k.dialect.types[onto.dtype]
    text = f"{k.dialect.function('fma', scalar)}({a.text}, {b.text}, {onto.text})"
    return Value(onto.dtype, k.let(k.ctype(onto.dtype), text))
