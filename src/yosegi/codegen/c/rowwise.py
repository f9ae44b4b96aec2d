"""Rows that are folded and used again, in one kernel: softmax, the norms, a loss for each row, in whatever ops.

A row is the last axis of a space. Each value of a row is a pass over it; what is elementwise is computed anew in each
pass, from registers or from memory that the first pass has brought near. A subgroup of threads takes a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from ..._graph.graph import Graph
from ..._schedule.fuse import is_constant
from ..._tensor.dtype import uint64
from ..._tensor.node import Shape
from ...errors import Unsupported
from ..scalar.folds import Fold, folds
from ..scalar.value import Value
from .contractions import MergedAxes, Output, merged
from .dialect import Dialect, Target
from .expressions import Expression, Folded, Read, View, Walker, Word, forms_in, parts_of
from .frames import Frame, inputs_of
from .kernel_source import Kernel
from .packets import LANE, drain, each_lane, fill, lane_of, packet_type, set_lane, widest
from .words import random_block

_LEAST_SUBGROUP: Final = 32
_BLOCK: Final = 4
"""Random words that are made at once."""
_MOST_PACKETS: Final = 8
"""That a thread keeps of a row: with more, it has no registers left to compute with."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Values of rows and values along them."""

    outputs: tuple[Output, ...]
    values: tuple[Folded, ...]
    """The reductions, in an order in which they can run."""
    rows: tuple[MergedAxes, ...]
    length: int
    axis: int

    def is_whole(self, output: Output) -> bool:
        """True if an output has a value for each element of a row."""
        return bool(output.strides[self.axis])


def rows_of(graph: Graph, needed: Sequence[int], known: frozenset[int]) -> Rows | None:
    """The entries of a graph that can be computed row by row; `None` if there is nothing to fold.

    `needed` are the entries that something asks for, in order; `known` are read from memory. The largest rows come
    first: what is folded of their results may then go together with other small things.
    """
    closing = [graph.calls[n].inputs[0] for n in needed if n not in known and _closes_a_row(graph, n)]
    for spec in sorted(dict.fromkeys(closing), key=lambda s: -s.size):
        inside = _inside(graph, needed, known, spec.shape)
        wanted = [n for n in needed if n in inside and
                  (n in graph.outputs or any(n in graph.args[m] for m in needed if m not in inside))]  # fmt: skip
        rows = _rows(graph, wanted, known, spec.shape)
        if rows.values:
            return rows
    return None


def elementwise_rows(graph: Graph, entry: int, known: frozenset[int]) -> Rows | None:
    """An entry whose random numbers are functions of an element's place, which no other kernel has; `None` for one
    without such."""
    shape = graph.calls[entry].spec.shape
    try:
        rows = _rows(graph, [entry], known, shape) if shape else None
    except Unsupported:
        return None
    return rows if rows and any(isinstance(p, Word) for p in parts_of(rows.outputs[0].expression)) else None


def _rows(graph: Graph, wanted: Sequence[int], known: frozenset[int], shape: Shape) -> Rows:
    walker = Walker(graph, shape, len(shape) - 1, known)
    outputs = []
    for entry in wanted:
        view = _view(graph.calls[entry].spec.shape, shape)
        assert view is not None
        expression = walker.at(entry, view)
        outputs.append(Output(entry, expression, walker.strides(graph.calls[entry].spec.shape, view)))
    values = dict.fromkeys(p for o in outputs for p in parts_of(o.expression) if isinstance(p, Folded))
    strides = [form for o in outputs for form in (o.strides, *forms_in(o.expression))]
    axes = merged(range(len(shape) - 1), shape, strides)
    return Rows(tuple(outputs), tuple(values), axes, shape[-1], len(shape) - 1)


def _closes_a_row(graph: Graph, entry: int) -> bool:
    call = graph.calls[entry]
    return folds(call) and call.attrs["axis"] == (call.inputs[0].ndim - 1,) and call.inputs[0].shape[-1] > 1


def _view(shape: Shape, whole: Shape) -> View | None:
    """How values of a shape look at the space: of all of it, or of its rows."""
    if shape in (whole, (*whole[:-1], 1)):
        return tuple(range(len(whole)))
    return tuple(range(len(whole) - 1)) if shape == whole[:-1] else None


def _inside(graph: Graph, needed: Sequence[int], known: frozenset[int], shape: Shape) -> set[int]:
    """The possible outputs of the kernel: values along rows or of rows, and made of nothing else."""
    inside: set[int] = set()
    walker = Walker(graph, shape, len(shape) - 1, known)
    for entry in needed:
        call = graph.calls[entry]
        view = _view(call.spec.shape, shape)
        if view is None or entry in known or is_constant(graph, entry) or entry in graph.inputs:
            continue
        try:
            walker.at(entry, view)
        except Unsupported:
            continue
        inside.add(entry)
    return inside


def rowwise(graph: Graph, rows: Rows, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of rows that have elements."""
    return _SubgroupRows(graph, rows, dialect, target).written()


class _SubgroupRows:
    """A block of threads a row, each with packets of it. Of a row that is not too long they stay in registers."""

    def __init__(self, graph: Graph, rows: Rows, dialect: Dialect, target: Target) -> None:
        self.rows, self.dialect = rows, dialect
        inputs = inputs_of(graph, [o.expression for o in rows.outputs])
        self.count = prod(r.size for r in rows.rows)
        self.frame = Frame(dialect, inputs, rows.outputs, self.count * rows.length + target.group)
        parts = dict.fromkeys(p for o in rows.outputs for p in parts_of(o.expression))
        self.reads = [p for p in parts if isinstance(p, Read) and p.strides[rows.axis] == 1]
        self.lanes = _lanes(rows, self.reads)
        blocks = self.lanes % _BLOCK == 0
        self.words = [p for p in parts if isinstance(p, Word) and blocks and _begins_blocks(p, rows)]
        """Random words that come four at a time."""
        self.subgroup = target.cooperating
        while self.subgroup > _LEAST_SUBGROUP and self.subgroup * self.lanes >= 2 * rows.length:
            self.subgroup //= 2
        steps = -(-rows.length // (self.subgroup * self.lanes))
        self.steps = steps if steps * (len(self.reads) + len(self.words)) <= _MOST_PACKETS else 0
        """Packets of each array that a thread keeps; 0 if they are read again in every pass."""

    def written(self) -> Kernel:
        """The whole kernel."""
        frame, k = self.frame, self.frame.k
        row = k.let(frame.ctype, f"({frame.ctype})({self.dialect.group_id})")
        self.item = k.let("int", f"(int)({self.dialect.local_id})")
        self.at = frame.indices("rows", self.rows.rows, row)
        self.length = frame.size("length", self.rows.length)
        self.kept: list[tuple[str, dict[int, str]]] = []
        for step in range(self.steps):
            place = k.let(frame.ctype, f"({self.item} + {step * self.subgroup}) * {self.lanes}")
            names = self._declared()
            with k.block(f"if ({place} < {self.length})"):
                self._fill(names, place)
            self.kept.append((place, names))
        self.known: dict[int, Value] = {}
        for number, value in enumerate(self.rows.values):
            self.known[id(value)] = self._folded(f"row_value{number}", value)
        for n, output in enumerate(self.rows.outputs):
            if self.rows.is_whole(output):
                for place, names in self._packets():
                    self._store(n, output, place, names)
                continue
            with k.block(f"if ({self.item} == 0)"):
                result = frame.value(k, output.expression, frame.reader(k, self.at, known=self.known))
                frame.put(k, result, f"b{n}", frame.place(("b", n), output.strides, self.at))
        return frame.kernel(self.count * self.subgroup, self.subgroup)

    def _packets(self) -> Iterator[tuple[str, dict[int, str]]]:
        """Where a thread's packets begin, and what they are called; what is written meanwhile is done for each."""
        frame, k = self.frame, self.frame.k
        for place, names in self.kept:
            with k.block(f"if ({place} < {self.length})"):
                yield place, names
        if not self.kept:
            whole = self.subgroup * self.lanes
            with k.block(f"for ({frame.ctype} c = {self.item} * {self.lanes}; c < {self.length}; c += {whole})"):
                names = self._declared()
                self._fill(names, "c")
                yield "c", names

    def _declared(self) -> dict[int, str]:
        """A variable for a packet of each array."""
        k = self.frame.k
        names = {}
        parts: list[Read | Word] = [*self.reads, *self.words] if self.lanes > 1 or self.steps else []
        for part in parts:
            names[id(part)] = name = f"q{len(k.lines)}"
            k.say(f"{packet_type(k, part.dtype, self.lanes)} {name}")
        return names

    def _fill(self, names: dict[int, str], place: str) -> None:
        frame, k = self.frame, self.frame.k
        for read in self.reads if names else ():
            at = k.let(frame.ctype, frame.place(id(read), read.strides, self.at | {self.rows.axis: place}))
            fill(k, read.dtype, self.lanes, names[id(read)], frame.pointer(read.entry), at, None)
        places = frame.reader(k, self.at | {self.rows.axis: place})
        for part in self.words:
            first = k.bitwise(">>", places.number(part.strides), k.literal(2, uint64))
            for block in range(self.lanes // _BLOCK):
                made = random_block(k, k.add(first, k.literal(block, uint64)), places.state(part.state))
                for n, word in enumerate(made):
                    k.say(f"{names[id(part)]}.lane[{_BLOCK * block + n}] = {word.text}")

    def _value(self, expression: Expression, place: str, names: dict[int, str]) -> Value:
        """An expression at the current lane."""
        frame, k = self.frame, self.frame.k
        used = {id(p) for p in parts_of(expression)}
        packets = {id(r): lane_of(k, r.dtype, names[id(r)]) for r in self.reads if id(r) in names and id(r) in used}
        words = {id(w): lane_of(k, w.dtype, names[id(w)]) for w in self.words if id(w) in used}
        at = self.at | {self.rows.axis: f"({place} + {LANE})"}
        return frame.value(k, expression, frame.reader(k, at, known=self.known | words, packets=packets))

    def _store(self, n: int, output: Output, place: str, names: dict[int, str]) -> None:
        frame, k, dtype = self.frame, self.frame.k, output.expression.dtype
        made = f"q{len(k.lines)}"
        k.say(f"{packet_type(k, dtype, self.lanes)} {made}")
        with each_lane(k, self.lanes):
            set_lane(k, made, self._value(output.expression, place, names))
        at = k.let(frame.ctype, frame.place(("b", n), output.strides, self.at | {self.rows.axis: place}))
        drain(k, dtype, self.lanes, made, f"b{n}", at, None)

    def _folded(self, name: str, value: Folded) -> Value:
        """The value of a row, for every thread: each folds its own elements, some of them fold what these found, and
        then each folds what is left. Two barriers do, where a tree has one for each doubling."""
        k, fold = self.frame.k, value.fold
        scalar = self.dialect.types[fold.accumulated]
        total = k.variable(k.literal(fold.start, fold.accumulated))
        for place, names in self._packets():
            with each_lane(k, self.lanes):
                element = self._value(value.operand, place, names)
                k.assign(total, fold.combine(k, total, fold.begin(k, element)))
        few = 1 << (self.subgroup.bit_length() - 1) // 2
        k.shared(scalar, name, self.subgroup)
        k.shared(scalar, f"{name}_few", few)
        k.say(f"{name}[{self.item}] = {total.text}")
        k.barrier()
        with k.block(f"if ({self.item} < {few})"):
            k.say(f"{name}_few[{self.item}] = {self._sum(fold, name, self.item, few, self.subgroup).text}")
        k.barrier()
        return fold.end(k, self._sum(fold, f"{name}_few", "0", 1, few))

    def _sum(self, fold: Fold, name: str, first: str, step: int, end: int) -> Value:
        """The values in shared memory at every `step` from the first, reduced."""
        k, scalar = self.frame.k, self.dialect.types[fold.accumulated]
        total = k.variable(Value(fold.accumulated, f"{name}[{first}]"))
        with k.block(f"{self.dialect.unrolled_whole}\nfor (int n = {step}; n < {end}; n += {step})"):
            other = Value(fold.accumulated, k.let(scalar, f"{name}[{first} + n]"))
            k.assign(total, fold.combine(k, total, other))
        return total


def _begins_blocks(word: Word, rows: Rows) -> bool:
    """True if every row begins with a block of random words."""
    return word.strides[rows.axis] == 1 and not any(s % _BLOCK for a, s in enumerate(word.strides) if a != rows.axis)


def _lanes(rows: Rows, reads: Sequence[Read]) -> int:
    """Elements of a packet: as many as fit all arrays, begin where packets of memory do in every row, and leave work
    for a subgroup."""
    whole = [o for o in rows.outputs if rows.is_whole(o)]
    dtypes = [r.dtype for r in reads] + [o.expression.dtype for o in whole]
    count = widest(dtypes)
    strides = [*[r.strides for r in reads], *[o.strides for o in whole]]
    steps = [step for own in strides for axis, step in enumerate(own) if axis != rows.axis]
    if any(o.strides[rows.axis] != 1 for o in whole):
        return 1
    while count > 1 and (rows.length < _LEAST_SUBGROUP * count or any(n % count for n in (rows.length, *steps))):
        count //= 2
    return count
