"""Graph of whole values → graph of the parts that this rank has, with the communication between them.

Every value gets the shape of its part. Where a call needs an input in another layout than the input has, the conversion
is written out: an all-reduce, a gather, a cut. Values without a layout stay as they are.

All ranks must write the same communication in the same order. So all that decides about it, such as which values are
equal, is looked up in the graph of whole values; the parts of the ranks may differ in shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import nan, prod
from typing import Any

import numpy as np

from .._graph.graph import Graph, leaf_in
from .._run.memory import HOST
from .._tensor.composite import Decomposition, decomposed
from .._tensor.dtype import DType, bool_, float32
from .._tensor.node import Call, Spec, spec
from .._tensor.op import Op, OpKind, constant, convert, embedded, leaf, leaf_call, pick, pick_call
from .._tensor.options import current
from .._tensor.role import Reduction
from .._tensor.tensor import HOOKS
from ..errors import UserError
from ..ops.elementwise import multiply, where
from ..ops.index import slice_view
from ..ops.reduce import sum as reduce_sum
from ..ops.shape import concatenate
from . import communication
from .buckets import in_buckets
from .collectives import global_value, local_part, redistribute, replicated
from .communicator import Combine
from .dims import local_attrs
from .layout import REPLICATE, Layout, Mesh, Partial, Placement, Shard, bounds
from .links import link_of
from .propagate import propagate, reason
from .sequence import Ready, bucket_size, depths, in_sequence, uses


def lower(graph: Graph) -> Graph:
    """The graph on the parts of this rank; the graph itself if nothing in it is distributed."""
    if not any(call.op.kind is OpKind.DISTRIBUTED or _is_distributed(call) for call in graph.calls):
        return graph
    made = _Lowering(_unfolded(graph))
    return in_sequence(*in_buckets(made.local, made.reduced, made.ready))


def _is_distributed(call: Call) -> bool:
    return any(s.layout is not None for s in (*call.inputs, *call.outputs))


def _unfolded(graph: Graph) -> Graph:
    """The graph with composites decomposed that communicate inside. Equal values are one entry: none is sent twice."""
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []
    known: dict[tuple[Call, tuple[int, ...]], int] = {}

    def put(call: Call, given: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        if call.op is pick and len(given[0]) > 1:
            return (given[0][call.attrs["index"]],)
        if _converts_inside(call):
            parts, at = decomposed(call), list(given)
            for inner, read in parts.steps:
                at.append(put(inner, [at[a] for a in read]))
            return tuple([entry for o in parts.outputs for entry in at[o]])
        place, entries = len(calls), tuple([entry for (entry,) in given])
        found = place if call.op is leaf else known.setdefault((call, entries), place)
        if found == place:
            calls.append(call)
            args.append(entries)
        return (found,)

    at: list[tuple[int, ...]] = []
    for call, given in zip(graph.calls, graph.args, strict=True):
        at.append(put(call, [at[a] for a in given]))
    return Graph(tuple(calls), tuple(args), tuple([entry for o in graph.outputs for entry in at[o]]))


def _converts_inside(call: Call) -> bool:
    """True for a composite in whose decomposition a layout changes."""
    if call.op.decomposition is None or not _is_distributed(call):
        return False
    values = list(call.inputs)
    for inner, read in decomposed(call).steps:
        wanted = zip(inner.inputs, read, strict=True)
        if any(s.layout != values[a].layout for s, a in wanted) or _converts_inside(inner):
            return True
        values.append(inner.spec)
    return False


class _Lowering:
    """The local graph being written."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._calls: list[Call] = []
        self._args: list[tuple[int, ...]] = []
        self._converted: dict[tuple[int, Layout | None], tuple[int, int]] = {}
        """The local entries of values in other layouts, and the bytes gathered before each."""
        self._gathered = 0
        """The bytes gathered so far."""
        self._gathers: list[tuple[int, int]] = []
        """The gathers, each behind the depth at which its value is used."""
        self.reduced: dict[int, int] = {}
        """The all-reduces, with the bytes of the whole values."""
        self.ready: dict[int, Ready] = {}
        """All communications, with the moment at which they can begin."""
        self._depth = depths(graph)
        self._use = uses(graph, self._depth)
        self._at: list[int] = []
        """The local entry of each entry of the graph."""
        self._decomposed: dict[int, tuple[int, ...]] = {}
        """The local entries of the outputs of those that have several and are decomposed, by the first of them."""
        for entry in range(len(graph.calls)):
            self._at.append(self._lowered(entry))
        for (before, _), (_, gather) in pairwise(sorted(self._gathers)):  # a gather begins as the one before is used
            self.ready[gather] = max(self.ready[gather], (before, self.ready[gather][1]))
        outputs = [self._kept(self._at[o]) if graph.calls[o].op is redistribute else self._at[o] for o in graph.outputs]
        self.local = Graph(tuple(self._calls), tuple(self._args), tuple(outputs))

    def _put(self, call: Call, *args: int) -> int:
        self._calls.append(call)
        self._args.append(args)
        return len(self._calls) - 1

    def _apply(self, op: Op[Any], at: int, **attrs: Any) -> int:
        """An op on one local entry."""
        return self._put(op.call((self._calls[at].spec,), attrs), at)

    def _kept(self, at: int) -> int:
        """A part that the program keeps: not a view, which would keep the memory of the whole value."""
        is_view = self._calls[at].op is slice_view
        return self._put(concatenate.call((self._calls[at].spec,), {"axis": 0}), at) if is_view else at

    def _exchange(self, op: Op[Any], at: int, mesh: Mesh, *, why: str, **attrs: Any) -> int:
        """A communication of one local entry: over the connection of a device, or through the host."""
        link = link_of(communication.group_of(mesh, attrs.get("axis")))
        why = f"{why}{why and '; '}through the host: {link.reason}" if link.reason else why
        return self._apply(op, at, mesh=mesh, **attrs, via=link.connection, why=why)

    def _communicated(self, begin: int, entry: int, reader: int) -> None:
        """Note the communications among the local entries from `begin` on: they can begin once the graph's `entry` is
        computed, and `reader` needs them."""
        for at in range(begin, len(self._calls)):
            if self._calls[at].op.kind is OpKind.DISTRIBUTED:
                self.ready[at] = (self._depth[entry], len(self.ready))
            if self._calls[at].op is communication.all_gather:
                self._gathers.append((self._use[reader], at))
                self._gathered += self._calls[at].spec.nbytes

    def _lowered(self, entry: int) -> int:
        call, args = self._graph.calls[entry], self._graph.args[entry]
        op, attrs = call.op, call.attrs
        if not args:
            return self._put(_local_source(call))
        if op is pick:
            source, index = self._at[args[0]], attrs["index"]
            known = self._decomposed.get(source)
            return known[index] if known else self._put(pick_call(self._calls[source].outputs, index), source)
        if op is redistribute:
            return self._convert(args[0], call.spec.layout, entry)
        if op is global_value or op is local_part:
            return self._at[args[0]]
        inputs = [self._convert(a, s.layout, entry) for a, s in zip(args, call.inputs, strict=True)]
        if op is replicated:
            sent = self._exchange(communication.broadcast, inputs[0], attrs["mesh"], root=attrs["root"], why="")
            self._communicated(sent, args[0], entry)
            return sent
        if not _is_distributed(call):
            return self._put(call, *inputs)
        if op.decomposition is not None:
            return self._composite(call, inputs)
        if isinstance(op.role, Reduction) and op.role.averages:
            return self._mean(call, inputs[0])
        specs = tuple([s.local for s in call.inputs])
        own = op.call(specs, local_attrs(op, attrs, [s.shape for s in specs], call.spec.local.shape))
        assert [s.shape for s in own.outputs] == [s.local.shape for s in call.outputs], f"{call!r} has no local form"
        return self._put(own, *inputs)

    def _composite(self, call: Call, inputs: Sequence[int]) -> int:
        """A composite that does not communicate: as a whole if the op, called with this rank's parts, computes the same
        as its decomposition does on them; else decomposed."""
        parts = decomposed(call)
        count = len(call.inputs)
        sources = [leaf_call(s) for s in call.inputs]
        steps = (*[()] * count, *[read for _, read in parts.steps])
        local = _Lowering(Graph((*sources, *[inner for inner, _ in parts.steps]), steps, parts.outputs)).local
        try:
            own = call.op.call(tuple([s.local for s in call.inputs]), call.attrs)
            if _is_same(decomposed(own), local, count):
                return self._put(own, *inputs)
        except UserError:  # a part without elements
            pass
        at = list(inputs)
        for inner, args in zip(local.calls[count:], local.args[count:], strict=True):
            at.append(self._put(inner, *[at[a] for a in args]))
        made = tuple([at[o] for o in local.outputs])
        if len(made) > 1:
            self._decomposed[made[0]] = made
        return made[0]

    def _mean(self, call: Call, at: int) -> int:
        """A mean over parts of a dimension: their sum, over the number of all elements."""
        axes, wide = call.attrs["axis"], float32 if call.spec.dtype.is_half else call.spec.dtype
        length = prod([call.inputs[0].shape[a] for a in axes])
        layout = call.inputs[0].layout
        if layout is None or not any(isinstance(p, Shard) and p.dim in axes for p in layout.placements):
            return self._put(call.op.call((call.inputs[0].local,), call.attrs), at)
        total = self._apply(reduce_sum, self._cast(at, wide), **call.attrs, dtype=wide)
        share = self._constant(1 / length if length else nan, wide)
        mean = multiply.call((self._calls[total].spec, spec((), wide)), {})
        return self._cast(self._put(mean, total, share), call.spec.dtype)

    def _cast(self, at: int, dtype: DType) -> int:
        return at if self._calls[at].spec.dtype is dtype else self._apply(convert, at, dtype=dtype)

    # Conversions

    def _convert(self, entry: int, layout: Layout | None, reader: int) -> int:
        """The local entry of a value in the layout that an entry of the graph needs."""
        given, at = self._graph.calls[entry].spec, self._at[entry]
        old, new = given.layout and given.layout.of_parts(), layout and layout.of_parts()
        if old == new:
            return at
        mesh = (old or new).mesh  # type: ignore[union-attr]  # one of them is there
        made, before = self._converted.get((entry, new), (-1, 0))
        is_dropped = old != given.layout and self._gathered - before > bucket_size(mesh, 0)
        if made < 0 or is_dropped:
            call, begin, before = self._graph.calls[reader], len(self._calls), self._gathered
            read = tuple([self._graph.calls[a].spec for a in self._graph.args[reader]])
            why = "" if call.op is redistribute else reason(call.op, read, call.attrs, call.outputs, mesh)
            whole = (REPLICATE,) * len(mesh.shape)
            have, want = (whole if layout is None else layout.placements for layout in (old, new))
            made = self._steps(at, mesh, given, list(have), want, why)
            self._converted[entry, new] = made, before
            self._communicated(begin, entry, reader)
        return made

    def _steps(
        self, at: int, mesh: Mesh, given: Spec, have: list[Placement], want: Sequence[Placement], why: str
    ) -> int:
        exchanged = _exchange(have, want)
        if exchanged is not None:
            axis, dim, to = exchanged
            length = given.shape[dim]
            return self._exchange(communication.all_to_all, at, mesh, axis=axis, dim=dim, to=to, length=length, why=why)
        # Values are combined first, while they are small; then gathered, the innermost parts first; then split again.
        for axis, (old, new) in enumerate(zip(have, want, strict=True)):
            if isinstance(old, Partial) and not isinstance(new, Shard) and old != new:
                attrs = {"combine": old.combine, "fixed_order": current().deterministic}
                at = self._exchange(communication.all_reduce, at, mesh, axis=axis, **attrs, why=why)
                self.reduced[at] = given.nbytes
                have[axis] = REPLICATE
        for axis in reversed(_regrouped(have, want)):
            old = have[axis]
            assert isinstance(old, Shard)
            have[axis] = REPLICATE
            length = Layout(mesh, tuple(have)).local_shape(given.shape)[old.dim]
            at = self._exchange(communication.all_gather, at, mesh, axis=axis, dim=old.dim, length=length, why=why)
        for axis, (old, new) in enumerate(zip(have, want, strict=True)):
            if old != new:
                at = self._placed(at, mesh, axis, old, new, why)
        return at

    def _placed(self, at: int, mesh: Mesh, axis: int, old: Placement, new: Placement, why: str) -> int:
        """A value that is whole or partial along an axis, as a part of it, or as one of several parts of a sum."""
        if isinstance(new, Shard):
            if isinstance(old, Partial):
                attrs = {"combine": old.combine, "fixed_order": current().deterministic}
                return self._exchange(communication.reduce_scatter, at, mesh, axis=axis, dim=new.dim, **attrs, why=why)
            shape = self._calls[at].spec.shape
            first, length = bounds(shape[new.dim], mesh.shape[axis], mesh.coordinates[axis])
            key = [(first if length else 0, length, 1) if d == new.dim else (0, n, 1) for d, n in enumerate(shape)]
            return self._apply(slice_view, at, key=tuple(key))
        assert isinstance(new, Partial)
        if new.combine is not Combine.SUM:
            return at
        s = self._calls[at].spec
        is_first = self._constant(mesh.coordinates[axis] == 0, bool_)
        zero = self._constant(0, s.dtype)
        return self._put(where.call((spec((), bool_), s, spec((), s.dtype)), {}), is_first, at, zero)

    def _constant(self, value: Any, dtype: DType) -> int:
        return self._put(constant.call((), {"value": value, "dtype": dtype}))


def _local_source(call: Call) -> Call:
    """A value from outside, or one that is made of nothing, on this rank."""
    if not _is_distributed(call):
        return call
    specs = tuple([s.local for s in call.outputs])
    if call.op is leaf:
        return leaf_in(call.attrs.get("space", HOST), specs, is_pinned=call.attrs.get("pinned", False))
    return Call(call.op, call.attrs, (), specs)


def _exchange(have: Sequence[Placement], want: Sequence[Placement]) -> tuple[int, int, int] | None:
    """The axis and the two dimensions, if one axis alone has to shard another dimension, and no other shards these."""
    changed = [n for n, (old, new) in enumerate(zip(have, want, strict=True)) if old != new]
    if len(changed) != 1:
        return None
    axis, old, new = changed[0], have[changed[0]], want[changed[0]]
    if not isinstance(old, Shard) or not isinstance(new, Shard):
        return None
    others = [p for n, p in enumerate(have) if n != axis]
    return None if old in others or new in others else (axis, old.dim, new.dim)


def _regrouped(have: Sequence[Placement], want: Sequence[Placement]) -> list[int]:
    """The axes whose parts have to be gathered: they are to be split otherwise, or parts of parts that are."""
    found: list[int] = []
    for axis, (old, new) in enumerate(zip(have, want, strict=True)):
        if isinstance(old, Shard):
            outer = [n for n in range(axis) if old in (have[n], want[n]) and (n in found or have[n] != want[n])]
            if old != new or outer:
                found.append(axis)
    return found


def _is_same(parts: Decomposition, local: Graph, count: int) -> bool:
    """True if a decomposition is a local graph, whose first entries are its inputs."""
    calls, args = [call for call, _ in parts.steps], tuple([a for _, a in parts.steps])
    if args != local.args[count:] or parts.outputs != local.outputs:
        return False
    return all(a is b or _is_same_constant(a, b) for a, b in zip(calls, local.calls[count:], strict=True))


def _is_same_constant(one: Call, other: Call) -> bool:
    return one.op is embedded and other.op is embedded and np.array_equal(one.attrs["array"], other.attrs["array"])


HOOKS.propagate = propagate
HOOKS.lower = lower
