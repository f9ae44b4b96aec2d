"""Rows that are folded and used again, in one kernel: softmax, the norms, a loss for each row, in whatever ops.

A row is the last axis of a space. Each value of a row is a pass over it; what is elementwise is computed anew in each
pass, from memory that the first pass has brought near. On GPUs a team of items takes a row, and folds in a tree; on
targets with caches one item takes it, in vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from ..errors import Unsupported
from ..fuse import is_constant
from ..graph import Graph
from ..node import Shape
from .c import CBuilder
from .contractions import Output, Run, merged
from .dialect import Dialect, Target
from .expressions import Counted, Expression, Folded, Read, View, Walker, Word, parts_of
from .folds import folds
from .frames import Frame, inputs_of, splat
from .kernels import Kernel
from .value import Value


@dataclass(frozen=True, slots=True)
class Rows:
    """Values of rows and values along them."""

    outputs: tuple[Output, ...]
    values: tuple[Folded, ...]
    """What is folded, in an order in which it can be."""
    rows: tuple[Run, ...]
    length: int
    axis: int

    def is_whole(self, output: Output) -> bool:
        """Whether an output has a value for each element of a row."""
        return bool(output.strides[self.axis])


def rows_of(graph: Graph, needed: Sequence[int], known: frozenset[int]) -> Rows | None:
    """The entries of a graph that can be computed row by row; `None` if there is nothing to fold.

    `needed` are the entries that something asks for, in order; `known` are read from memory.
    """
    first = next((n for n in needed if n not in known and _closes_a_row(graph, n)), None)
    if first is None:
        return None
    shape = graph.calls[first].inputs[0].shape
    inside = _inside(graph, needed, known, shape)
    wanted = [n for n in needed if n in inside and
              (n in graph.outputs or any(n in graph.args[m] for m in needed if m not in inside))]  # fmt: skip
    return _rows(graph, wanted, known, shape)


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
    strides = [p.strides for o in outputs for p in parts_of(o.expression) if isinstance(p, (Read, Word, Counted))]
    strides += [o.strides for o in outputs]
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
    """What can be an output of the kernel: along rows or of rows, and made of nothing else."""
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
    writer = _InVectors if target.blocked else _InTeams
    return writer(graph, rows, dialect, target).written()


class _InVectors:
    """One item a row, in vectors."""

    def __init__(self, graph: Graph, rows: Rows, dialect: Dialect, target: Target) -> None:
        self.rows, self.target, self.dialect = rows, target, dialect
        inputs = inputs_of(graph, [o.expression for o in rows.outputs])
        count = prod(r.size for r in rows.rows)
        self.count = count
        self.frame = Frame(dialect, target, inputs, rows.outputs, count * rows.length + target.group)
        self.width = next((w for w in dialect.widths if w <= min(target.width, rows.length)), 1)

    def written(self) -> Kernel:
        """The whole kernel."""
        frame, k = self.frame, self.frame.k
        row = k.let(frame.ctype, f"({frame.ctype})({self.dialect.global_id})")
        k.lines.append(f"if ({row} >= {frame.size('rows', self.count)}) return;")
        self.at = frame.indices("rows", self.rows.rows, row)
        self.length = frame.size("length", self.rows.length)
        whole = k.let(frame.ctype, f"{self.length} / {self.width} * {self.width}")
        known: dict[int, Value] = {}
        for value in self.rows.values:
            known[id(value)] = self._folded(value, known, whole)
        for n, output in enumerate(self.rows.outputs):
            if not self.rows.is_whole(output):
                self._store(k, n, output, self.at, known)
                continue
            for head, width in ((f"for ({frame.ctype} c = 0; c < {whole}; c += {self.width})", self.width),
                                (f"for ({frame.ctype} c = {whole}; c < {self.length}; c++)", 1)):  # fmt: skip
                with k.block(head):
                    self._store(k.at_width(width), n, output, self.at | {self.rows.axis: "c"}, known)
        return frame.kernel(self.count, self.target.group)

    def _store(
        self, k: CBuilder, n: int, output: Output, at: dict[int, str], known: dict[int, Value]
    ) -> None:  # fmt: skip
        value = self._value(k, output.expression, at, known)
        self.frame.put(k, value, f"b{n}", self.frame.place(("b", n), output.strides, at))

    def _value(self, k: CBuilder, expression: Expression, at: dict[int, str], known: dict[int, Value]) -> Value:
        rows = {key: splat(k, value) for key, value in known.items()}
        return self.frame.value(k, expression, self.frame.reader(k, at, self.rows.axis, rows))

    def _folded(self, value: Folded, known: dict[int, Value], whole: str) -> Value:
        frame, k, fold = self.frame, self.frame.k, value.fold
        total = k.variable(k.literal(fold.start, fold.accumulated))
        if self.width > 1:
            outer = k.at_width(self.width)
            wide = outer.variable(outer.literal(fold.start, fold.accumulated))
            with k.block(f"for ({frame.ctype} c = 0; c < {whole}; c += {self.width})"):
                inner = k.at_width(self.width)
                element = self._value(inner, value.operand, self.at | {self.rows.axis: "c"}, known)
                inner.assign(wide, fold.combine(inner, wide, fold.begin(inner, element)))
            for lane in range(self.width):
                part = Value(fold.accumulated, self.dialect.lane.format(x=wide.text, i=f"{lane:x}"))
                k.assign(total, fold.combine(k, total, part))
        start = whole if self.width > 1 else "0"
        with k.block(f"for ({frame.ctype} c = {start}; c < {self.length}; c++)"):
            element = self._value(k, value.operand, self.at | {self.rows.axis: "c"}, known)
            k.assign(total, fold.combine(k, total, fold.begin(k, element)))
        return fold.end(k, total)


class _InTeams:
    """A group of items a row."""

    def __init__(self, graph: Graph, rows: Rows, dialect: Dialect, target: Target) -> None:
        self.rows, self.dialect = rows, dialect
        inputs = inputs_of(graph, [o.expression for o in rows.outputs])
        self.count = prod(r.size for r in rows.rows)
        self.frame = Frame(dialect, target, inputs, rows.outputs, self.count * rows.length + target.group)
        self.team = target.cooperating
        while self.team > 32 and self.team >= 2 * rows.length:
            self.team //= 2

    def written(self) -> Kernel:
        """The whole kernel."""
        frame, k = self.frame, self.frame.k
        row = k.let(frame.ctype, f"({frame.ctype})({self.dialect.group_id})")
        item = k.let("int", f"(int)({self.dialect.local_id})")
        at = frame.indices("rows", self.rows.rows, row)
        length = frame.size("length", self.rows.length)
        along = f"for ({frame.ctype} c = {item}; c < {length}; c += {self.team})"
        inside = at | {self.rows.axis: "c"}
        known: dict[int, Value] = {}
        for number, value in enumerate(self.rows.values):
            fold, name = value.fold, f"row_value{number}"
            scalar = self.dialect.types[fold.accumulated]
            frame.shared(scalar, name, self.team)
            total = k.variable(k.literal(fold.start, fold.accumulated))
            with k.block(along):
                element = frame.value(k, value.operand, frame.reader(k, inside, known=known))
                k.assign(total, fold.combine(k, total, fold.begin(k, element)))
            k.lines.append(f"{name}[{item}] = {total.text};")
            frame.barrier()
            with k.block(f"for (int span = {self.team // 2}; span > 0; span /= 2)"):
                with k.block(f"if ({item} < span)"):
                    pair = [Value(fold.accumulated, k.let(scalar, f"{name}[{p}]")) for p in (item, f"{item} + span")]
                    k.lines.append(f"{name}[{item}] = {fold.combine(k, *pair).text};")
                frame.barrier()
            known[id(value)] = fold.end(k, Value(fold.accumulated, k.let(scalar, f"{name}[0]")))
        for n, output in enumerate(self.rows.outputs):
            whole = self.rows.is_whole(output)
            with k.block(along if whole else f"if ({item} == 0)"):
                where = inside if whole else at
                result = frame.value(k, output.expression, frame.reader(k, where, known=known))
                frame.put(k, result, f"b{n}", frame.place(("b", n), output.strides, where))
        return frame.kernel(self.count * self.team, self.team)
