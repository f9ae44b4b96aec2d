"""Regions → groups: kernels that pass over rows several times.

`kernels_of` calls `grouped` for devices with `RowLimits`. A group runs over one space of indices. A whole value has an
element for every index, a row value one for every row, without the axes that the group reduces. A reduction makes a row
value of a whole one. A later pass over the row may make whole values of row values: so a softmax or a normalisation
becomes one kernel, whatever ops it is written in. One thread works on a row, which stays in its cache, so rows must be
many or short. A running total is a whole value that needs its row in order. `codegen/llvm/rows.py` writes the code of a
group.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from math import prod
from sys import maxsize
from typing import Final

from .._graph.graph import Graph
from .._tensor.dtype import bool_
from .._tensor.node import Call, Shape
from .._tensor.role import Extremum, Power, Reduction, Scan, View
from .fuse import Region, RegionKind, is_constant, multiplies
from .recompute import FAR


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The size of the groups that a device runs well."""

    ops: int = 64
    arrays: int = 16
    row_bytes: int = 1 << 18
    """The bytes of one array in a row, for a second pass to find it in a cache that is the core's own."""
    rows: int = 8
    """The least rows of a group with several passes."""
    elements_alone: int = 1 << 15
    """Elements up to which one thread does all work: there, rows may have any length."""
    rows_together: int = 64
    """Rows that are worked on together, where they lie side by side."""


_ANY: Final = RowLimits(maxsize, maxsize, maxsize, 0, maxsize)
"""Limits that every group keeps: it is formed already."""


def reduces(call: Call) -> bool:
    """True if the call is a reduction that a kernel can be generated for."""
    return isinstance(call.op.role, Reduction | Extremum)


def runs(call: Call) -> bool:
    """True if the call is a running total that a kernel can be generated for."""
    return isinstance(call.op.role, Scan) and not call.attrs["include_initial"] and call.spec.dtype is not bool_


def _axes(call: Call) -> tuple[int, ...]:
    """The dimensions of a reduction or of a running total."""
    axis = call.attrs["axis"]
    if isinstance(axis, tuple):
        return axis
    return tuple(range(call.inputs[0].ndim)) if axis is None else (axis,)


@dataclass(frozen=True, slots=True)
class Group:
    """Ops of one kernel, in an order in which they can run."""

    graph: Graph
    space: Shape
    axes: tuple[int, ...]
    """The reduced dimensions; none for a group without row values."""
    nodes: tuple[int, ...]
    passes: dict[int, int]
    """The pass in which a value is made; a row value is known when its pass is over."""
    inputs: tuple[int, ...]
    """The entries that it reads from memory, constants of several elements included."""
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, region: Region) -> Group:
        """The group that a kernel is, as `grouped` has formed it."""
        graph = region.graph
        growing = _GrowingGroup(graph, _space(graph.calls[region.nodes[0]]), _ANY)
        for entry in region.nodes:
            is_taken = growing.takes(entry)
            assert is_taken, f"{region} is no group"
        read = (a for n in region.nodes for a in graph.args[n] if a not in growing.passes and not _is_number(graph, a))
        inputs = tuple(dict.fromkeys(read))
        return cls(graph, growing.space, growing.axes or (), region.nodes, growing.passes, inputs, region.outputs)

    def __str__(self) -> str:
        return "+".join(self.graph.calls[n].op.name for n in self.nodes)

    def is_whole(self, entry: int) -> bool:
        """True if a value of the group has an element for every index."""
        return self.graph.calls[entry].spec.shape == self.space and not reduces(self.graph.calls[entry])

    def view(self, user: int, of: tuple[int, ...], fill: int) -> tuple[int, ...]:
        """A tuple with an item for each dimension of an operand, as one for each of the space; `fill` stands for those
        that the operand does not have."""
        made = self.graph.calls[user]
        if reduces(made) or made.spec.ndim == len(self.space):
            return _padded(of, len(self.space), fill)
        return self.row_view(_padded(of, made.spec.ndim, fill), fill)

    def row_view(self, of: tuple[int, ...], fill: int) -> tuple[int, ...]:
        """A tuple for the dimensions of a row value, which may lack the reduced ones, as one for those of the space."""
        left = iter(of)
        is_whole = len(of) == len(self.space)
        return of if is_whole else tuple(fill if a in self.axes else next(left) for a in range(len(self.space)))


def _padded(of: tuple[int, ...], ndim: int, fill: int = 1) -> tuple[int, ...]:
    return (fill,) * (ndim - len(of)) + of


def _kept(space: Shape, axes: Iterable[int]) -> Shape:
    return tuple(1 if a in axes else n for a, n in enumerate(space))


def _squeezed(space: Shape, axes: Iterable[int]) -> Shape:
    return tuple(n for a, n in enumerate(space) if a not in axes)


@dataclass(slots=True)
class _GrowingGroup:
    """A group that more ops may join."""

    graph: Graph
    space: Shape
    limits: RowLimits
    axes: tuple[int, ...] | None = None
    nodes: list[int] = field(default_factory=list)
    passes: dict[int, int] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)
    reads: set[int] = field(default_factory=set)
    in_order: bool = False
    """True if one thread has to do it all."""

    def takes(self, entry: int) -> bool:
        """Add an op, if it can be part of the group."""
        if len(self.nodes) >= self.limits.ops:
            return False
        call, args = self.graph.calls[entry], self.graph.args[entry]
        reads = {a for a in args if a not in self.passes and not _is_number(self.graph, a)}
        if len(self.reads | reads) > self.limits.arrays:
            return False
        if reduces(call) or runs(call):
            at = self._along_axes(call, args[0])
        elif _has_rule(call) and call.spec.shape == self.space:
            at = self._whole(args)
        elif _has_rule(call) or call.op.role is View.RESHAPED:
            at = self._row(call, args)
        else:
            at = None
        if at is None:
            return False
        if reduces(call) or runs(call):
            self.axes = _axes(call)
        if call.spec.shape == self.space and not reduces(call):
            self.whole.add(entry)
        self.nodes.append(entry)
        self.passes[entry] = at
        self.in_order |= runs(call) and not self._has_passes()
        self.reads |= reads
        return True

    def _along_axes(self, call: Call, arg: int) -> int | None:
        axes = _axes(call)
        if call.inputs[0].shape != self.space or self.axes not in (None, axes) or not axes:
            return None
        if runs(call) and self.nodes and not self._has_passes(axes):
            return None  # one thread would have to do all the rest, too
        return 0 if arg not in self.passes else self.passes[arg] if arg in self.whole else None

    def _whole(self, args: Sequence[int]) -> int | None:
        if self.in_order:
            return None
        at = 0
        for a in args:
            if a in self.whole:
                at = max(at, self.passes[a])
            elif a in self.passes:
                assert self.axes is not None
                if _padded(self.graph.calls[a].spec.shape, len(self.space)) != _kept(self.space, self.axes):
                    return None
                at = max(at, self.passes[a] + 1)
        return at if at == 0 or self._has_passes() else None

    def _row(self, call: Call, args: Sequence[int]) -> int | None:
        """A value of rows: one that is made of row values, in the same form."""
        mine = [a for a in args if a in self.passes]
        if self.axes is None or not mine or any(a in self.whole for a in mine):
            return None
        kept, squeezed, shape = _kept(self.space, self.axes), _squeezed(self.space, self.axes), call.spec.shape
        if shape not in (kept, squeezed) or shape == self.space:
            return None
        shapes = {self.graph.calls[a].spec.shape for a in mine}
        if call.op.role is not View.RESHAPED and shapes != {shape} and any(prod(s) > 1 for s in shapes):
            return None
        return max(self.passes[a] for a in mine)

    def _has_passes(self, axes: tuple[int, ...] | None = None) -> bool:
        """True if a row can be one thread's work, to be gone through again."""
        axes = axes or self.axes
        assert axes is not None
        total, length = prod(self.space), prod(self.space[a] for a in axes)
        limits = self.limits
        if total <= limits.elements_alone:
            return True
        inner = max(a for a, n in enumerate(self.space) if n > 1)
        beside = 1 if inner in axes else min(limits.rows_together, self.space[inner])
        size = max(self.graph.calls[n].spec.dtype.itemsize for n in self.nodes)
        return total // length // beside >= limits.rows and length * beside * size <= limits.row_bytes


def _is_number(graph: Graph, entry: int) -> bool:
    return is_constant(graph, entry) and graph.calls[entry].spec.size == 1


def _has_rule(call: Call) -> bool:
    """True if the call is elementwise, and its rule gives what the reference gives, infinities included."""
    return call.op.scalar is not None and not (isinstance(call.op.role, Power) and call.spec.dtype.is_complex)


def _space(call: Call) -> Shape:
    """The indices that a group runs over which begins with a call."""
    return call.spec.shape if _has_rule(call) else call.inputs[0].shape


def _begun(graph: Graph, entry: int, limits: RowLimits) -> _GrowingGroup | None:
    """A new group for an op that a kernel can be generated for."""
    call = graph.calls[entry]
    if is_constant(graph, entry) or len(call.outputs) > 1 or not (_has_rule(call) or reduces(call) or runs(call)):
        return None
    group = _GrowingGroup(graph, _space(call), limits)
    return group if prod(group.space) and group.takes(entry) else None


def grouped(region: Region, limits: RowLimits, late: Set[int] = frozenset()) -> list[Region]:
    """A region as groups, which are loops and reductions, and single ops, in an order in which they can run. Groups
    that begin long before a `late` entry do not take it."""
    graph = region.graph
    made: list[_GrowingGroup | int | None] = []
    home: dict[int, int] = {}
    for entry in region.nodes:
        args = graph.args[entry]
        # A group can take an op if all that the op reads is made there or before.
        last = max((home[a] for a in args if a in home), default=-1)
        earliest = entry - FAR if entry in late else 0
        found = next((n for n in range(max(last, 0), len(made)) if _fits(made[n], entry, n == last, earliest)), None)
        if found is None:
            found = len(made)
            made.append(_begun(graph, entry, limits) or entry)
        home[entry] = found
    _join(graph, made, home, late)
    readers: dict[int, set[int]] = {}
    for entry, at in home.items():
        for a in graph.args[entry]:
            readers.setdefault(a, set()).add(at)
    shown = set(region.outputs)
    return [_finished(region, g, n, readers, shown) for n, g in enumerate(made) if g is not None]


def _join(graph: Graph, made: list[_GrowingGroup | int | None], home: dict[int, int], late: Set[int]) -> None:
    """Put plain loops into those that they feed: an op that reads values of several loops has joined only the last.

    Loops that read products stay apart: they may be fused with those. Late values that are computed again do not go
    through memory, whatever reads them.
    """

    def plain(number: int) -> _GrowingGroup | None:
        group = made[number]
        return group if isinstance(group, _GrowingGroup) and group.axes is None and not reads_product(group) else None

    def reads_product(group: _GrowingGroup) -> bool:
        return any(multiplies(graph.calls[a]) for a in group.reads)

    def is_read_before(group: _GrowingGroup, first: int, last: int) -> bool:
        parts = [[part] if isinstance(part, int) else part.nodes for part in made[first:last] if part is not None]
        return any(a in group.passes for nodes in parts for n in nodes for a in graph.args[n])

    for last in range(len(made)):
        later = made[last]
        if not isinstance(later, _GrowingGroup):
            continue
        for first in sorted({home[a] for a in later.reads if a in home}, reverse=True):
            group = plain(first)
            if group is None or group.space != later.space or is_read_before(group, first + 1, last):
                continue
            if group.nodes[0] not in late and plain(last) is None:
                continue
            joined = _GrowingGroup(graph, later.space, later.limits)
            if all(joined.takes(entry) for entry in sorted([*group.nodes, *later.nodes])):
                made[first], made[last], later = None, joined, joined
                home.update(dict.fromkeys(group.nodes, last))


def _fits(group: _GrowingGroup | int | None, entry: int, feeds: bool, earliest: int) -> bool:
    """True if a group takes an op: one that feeds it, or one that reads the same arrays anyway."""
    if not isinstance(group, _GrowingGroup) or group.nodes[0] < earliest:
        return False
    shares = feeds or any(a in group.reads and group.graph.calls[a].spec.size > 1 for a in group.graph.args[entry])
    return shares and group.takes(entry)


def _finished(
    region: Region, part: _GrowingGroup | int, number: int, readers: dict[int, set[int]], shown: set[int]
) -> Region:
    graph = region.graph
    if isinstance(part, int):
        nodes, kind = [part], RegionKind.CONTRACTION if multiplies(graph.calls[part]) else RegionKind.OPAQUE
    else:
        nodes, kind = part.nodes, RegionKind.LOOP if part.axes is None else RegionKind.REDUCTION
    read = (a for n in nodes for a in graph.args[n] if a not in nodes and not is_constant(graph, a))
    outputs = tuple(n for n in nodes if n in shown or readers.get(n, set()) - {number})
    return replace(
        region, kind=kind, nodes=tuple(nodes), inputs=tuple(dict.fromkeys(read)), outputs=outputs, regions=()
    )
