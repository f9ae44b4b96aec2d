"""Graph → regions: the device-neutral units of placement. `_place/place.py` calls `fuse` for a simplified graph.

Elementwise ops of one shape that feed each other become one loop, which may end in a reduction: its intermediate values
are not written to memory. A product is a region, and so is every op that fuses with nothing. After placement,
`_place/partition.py` joins neighbours on one device by `join`; the joined region keeps the regions that it is made of,
and `_schedule/kernels.py` cuts it into kernels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from .._graph.graph import Graph
from .._tensor.dtype import float32
from .._tensor.node import Call, Shape
from .._tensor.op import OpKind, constant, convert, embedded, leaf, leaf_call, pick
from .._tensor.precision import Precision
from .._tensor.role import Attention, AttentionGradient, Contraction, Exchange, Reduction

_LOOP_LIMIT: Final = 64  # ops in a loop: beyond, registers run out before memory traffic matters
_SEARCH: Final = 64  # regions that are looked at to find out whether one needs another


class RegionKind(Enum):
    """How a region is compiled."""

    LOOP = "loop"
    """Elementwise work, generated from scalar rules."""
    REDUCTION = "reduction"
    """A reduction, with the elementwise work before it."""
    CONTRACTION = "contraction"
    """A product, of matrices or of windows."""
    OPAQUE = "opaque"
    """An op that fuses with nothing: a sort, a decomposition, a movement. A composite of several outputs has the ops
    behind it that pick them."""
    SEQUENCE = "sequence"
    """Neighbours on one device, compiled as one unit."""
    PROJECTION = "projection"
    """A joined region that `projection` builds: a device may have one kernel for all of it."""


JOINED: Final = frozenset({RegionKind.SEQUENCE, RegionKind.PROJECTION})
"""The kinds of regions that are made of others."""


@dataclass(frozen=True, slots=True)
class Region:
    """Entries of a graph that are placed together, with their inputs and outputs.

    Constants belong to every region that reads them.
    """

    graph: Graph
    kind: RegionKind
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    repeats: bool = False
    """True if the region will run many times, so that slow compilation pays off."""
    precision: Precision = Precision.FULL
    """The precision of its products."""
    regions: tuple[Region, ...] = ()
    """The regions that it was joined from, in an order in which they can run."""

    @property
    def parts(self) -> list[Region]:
        """The regions that it is made of; itself, unless it is joined. A joined region that comes from a file or a
        rewritten graph has no record of them, and is fused here. In one of full precision, parts keep their own."""
        if self.kind not in JOINED:
            return [self]
        own = self.regions or fuse(self.graph, self)
        is_full = self.precision is Precision.FULL
        return [replace(p, repeats=self.repeats, precision=p.precision if is_full else self.precision) for p in own]

    @property
    def calls(self) -> list[Call]:
        """The calls, in an order in which they can run."""
        return [self.graph.calls[n] for n in self.nodes]

    @property
    def origins(self) -> list[str]:
        """For each call the composite that it is a part of, "" for none."""
        return [self.graph.origins[n] if self.graph.origins else "" for n in self.nodes]

    @property
    def nbytes(self) -> int:
        """The bytes that go in and out."""
        return sum(s.nbytes for e in (*self.inputs, *self.outputs) for s in self.graph.calls[e].outputs)

    def key(self) -> tuple[Any, ...]:
        """The identity of a region's work: the calls, their wiring, and the precision."""
        at = {entry: n for n, entry in enumerate((*self.inputs, *self.nodes))}
        wiring = [tuple([at.get(a, self.graph.calls[a]) for a in self.graph.args[n]]) for n in self.nodes]
        return (self.precision, *self.calls, *wiring, *[at[o] for o in self.outputs])

    def __str__(self) -> str:
        names = [call.op.name for call in self.calls]
        return "+".join(names) if len(names) <= 8 else "+".join(names[:7]) + f"+… ({len(names)} ops)"


def multiplies(call: Call) -> bool:
    """True if the call is a product, of matrices or of windows."""
    return isinstance(call.op.role, Contraction)


def attends(call: Call) -> bool:
    """True for attention or its gradient, as a whole."""
    return isinstance(call.op.role, Attention | AttentionGradient)


def is_exact_conversion(call: Call) -> bool:
    """True for a conversion from a 16-bit float to float32."""
    return call.op is convert and call.inputs[0].dtype.is_half and call.spec.dtype is float32


def communicates(region: Region) -> bool:
    """True if the region exchanges values with other ranks: it must not run twice."""
    return any(region.graph.calls[n].op.kind is OpKind.DISTRIBUTED for n in region.nodes)


def connection_of(call: Call) -> Any:
    """The connection of the device in whose memory the call exchanges values; `None` if it is no such call."""
    return call.op.role.via(call) if isinstance(call.op.role, Exchange) else None


def is_composite(region: Region) -> bool:
    """True if the region is one composite op, as a whole."""
    return region.kind is RegionKind.OPAQUE and region.calls[0].op.decomposition is not None


def is_constant(graph: Graph, entry: int) -> bool:
    """True if the entry is a number or array of the graph's own."""
    return graph.calls[entry].op in (constant, embedded)


@dataclass(slots=True)
class _GrowingRegion:
    """A region that more ops may join."""

    kind: RegionKind
    shape: Shape
    nodes: list[int] = field(default_factory=list)
    is_composite: bool = False

    def takes(self, call: Call) -> bool:
        """True if the call, which reads a value of this region, can be part of it."""
        if call.op is pick:
            return self.is_composite
        if self.kind is not RegionKind.LOOP or len(self.nodes) >= _LOOP_LIMIT:
            return False
        if call.op.scalar is not None:
            return call.spec.shape == self.shape
        return isinstance(call.op.role, Reduction) and call.inputs[0].shape == self.shape


def fuse(graph: Graph, within: Region | None = None) -> list[Region]:
    """The regions of a graph, or of a part of it, in an order in which they can run."""
    return _Fusion(graph, within).regions()


class _Fusion:
    """The regions of a graph under construction, by number. Entries are added in the order of the graph."""

    def __init__(self, graph: Graph, within: Region | None) -> None:
        self._graph = graph
        self._entries = range(len(graph.calls)) if within is None else sorted(within.nodes)
        self._outputs = set(graph.outputs if within is None else within.outputs)
        self._growing: list[_GrowingRegion] = []
        self._home: dict[int, int] = {}
        """The region of each entry, when it was added."""
        self._needs: list[set[int]] = []
        """The regions whose values each region reads."""
        self._needed_by: list[set[int]] = []
        """The regions that read values of each region."""
        self._merged: dict[int, int] = {}
        """The regions that have become parts of others."""
        self._is_in_order = True
        """True if every region needs only regions with lower numbers."""

    def regions(self) -> list[Region]:
        """All of them, in an order in which they can run."""
        graph = self._graph
        for entry in self._entries:
            if graph.calls[entry].op is leaf or (is_constant(graph, entry) and entry not in self._outputs):
                continue
            self._add(entry)
        home = {entry: self._now(region) for entry, region in self._home.items()}
        readers: dict[int, set[int]] = {}
        for entry, region in home.items():
            for a in graph.args[entry]:
                readers.setdefault(a, set()).add(region)
        numbers = [n for n in range(len(self._growing)) if n not in self._merged]
        order = numbers if self._is_in_order else in_order_of_needs({n: self._needed(n) for n in numbers})
        return [_finished(graph, self._growing[n], n, readers, self._outputs) for n in order]

    def _add(self, entry: int) -> None:
        """Add an entry to the loops that it reads, which become one; else as a region of its own."""
        call = self._graph.calls[entry]
        feeding = {self._now(self._home[a]) for a in self._graph.args[entry] if a in self._home}
        takers = self._takers(call, feeding)
        if takers:
            number = takers[0]
            region = self._growing[number]
            for other in takers[1:]:
                region.nodes += self._growing[other].nodes
                self._needs[number] |= self._needs[other]
                self._needed_by[number] |= self._needed_by[other]
                self._merged[other] = number
            if len(takers) > 1:
                region.nodes.sort()
            region.nodes.append(entry)
            if isinstance(call.op.role, Reduction):
                region.kind = RegionKind.REDUCTION
            self._is_in_order &= len(takers) == 1 and number == max(feeding)
        else:
            number = len(self._growing)
            is_whole = call.op.decomposition is not None
            self._growing.append(_GrowingRegion(_kind(call), call.spec.shape, [entry], is_whole))
            self._needs.append(set())
            self._needed_by.append(set())
        self._home[entry] = number
        read = feeding - {number, *takers}
        self._needs[number] = self._needed(number) | read
        for other in read:
            self._needed_by[other].add(number)

    def _takers(self, call: Call, feeding: set[int]) -> list[int]:
        """The loops that a call joins: none of them may need another through a region that stays outside."""
        able = sorted([n for n in feeding if self._growing[n].takes(call)], reverse=True)
        if len(feeding) == 1:
            return able
        takers: list[int] = []
        size = 0
        for n in able:
            if takers and (call.op.scalar is None or size + len(self._growing[n].nodes) >= _LOOP_LIMIT):
                continue
            wider = {*takers, n}
            read = feeding.union(*[self._needed(w) for w in wider]) if takers else feeding
            if not any(self._may_need(other, w) for other in read - wider for w in wider):
                takers.append(n)
                size += len(self._growing[n].nodes)
        return takers

    def _may_need(self, region: int, other: int) -> bool:
        """True if a region needs another, through others too; or if that takes long to find out.

        The search follows the readers of the other one: those of a recent region are few.
        """
        seen = {other}
        waiting = [other]
        while waiting and len(seen) <= _SEARCH:
            here = waiting.pop()
            readers = {self._now(n) for n in self._needed_by[here]} - seen
            if region in readers:
                return True
            seen |= readers
            waiting += readers
        return bool(waiting)

    def _needed(self, region: int) -> set[int]:
        return {self._now(n) for n in self._needs[region]} - {region}

    def _now(self, region: int) -> int:
        """The region that a region is a part of by now."""
        while region in self._merged:
            region = self._merged[region]
        return region


def in_order_of_needs(needs: Mapping[int, set[int]]) -> list[int]:
    """Numbers of regions, each behind those that it needs, otherwise as they were."""
    order: dict[int, None] = {}
    for region in needs:
        waiting = [region]
        while waiting:
            here = waiting[-1]
            missing = [] if here in order else sorted([n for n in needs[here] if n not in order], reverse=True)
            if missing:
                waiting += missing
            else:
                order[waiting.pop()] = None
    return list(order)


def _kind(call: Call) -> RegionKind:
    if call.op.scalar is not None:
        return RegionKind.LOOP
    if isinstance(call.op.role, Reduction):
        return RegionKind.REDUCTION
    if multiplies(call):
        return RegionKind.CONTRACTION
    return RegionKind.OPAQUE


def _finished(graph: Graph, g: _GrowingRegion, number: int, readers: dict[int, set[int]], outputs: set[int]) -> Region:
    inside = set(g.nodes)
    read = (a for n in g.nodes for a in graph.args[n] if a not in inside and not is_constant(graph, a))
    shown = tuple(n for n in g.nodes if n in outputs or readers.get(n, set()) - {number})
    return Region(graph, g.kind, tuple(g.nodes), tuple(dict.fromkeys(read)), shown)


def detached(region: Region) -> Region:
    """The region with its inputs as leaves of its graph: nothing can look at what they are made of."""
    graph, inputs = region.graph, set(region.inputs)
    if all(graph.calls[i].op is leaf for i in inputs):
        return region
    calls = [leaf_call(c.spec) if n in inputs and c.op is not leaf else c for n, c in enumerate(graph.calls)]
    args = [() if n in inputs else a for n, a in enumerate(graph.args)]
    return replace(region, graph=replace(graph, calls=tuple(calls), args=tuple(args)), regions=())


def join(regions: Sequence[Region], needed_later: Iterable[int]) -> Region:
    """Neighbouring regions as one. Its outputs are those of its entries that are `needed_later`."""
    if len(regions) == 1:
        return regions[0]
    nodes = tuple(n for r in regions for n in r.nodes)
    inside = set(nodes)
    inputs = tuple(dict.fromkeys(i for r in regions for i in r.inputs if i not in inside))
    later = set(needed_later)
    outputs = tuple(n for n in nodes if n in later)
    return Region(regions[0].graph, RegionKind.SEQUENCE, nodes, inputs, outputs, regions=tuple(regions))
