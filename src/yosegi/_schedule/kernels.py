"""Unit → kernels: the fusion that depends on a device. A device's `compile` calls `kernels_of` with its predicates.

A unit is a joined region of regions that `fuse` has built. A device gives predicates (`Fusion`), and this pass cuts the
unit: regions over one index space become one kernel where the device passes over rows several times, and a product
takes its neighbours. A loop that reads a product's result, element by element, is its epilogue; a loop that makes an
operand is its prologue; an operand that is a view of an array is read in place. So `relu(x @ w.T + b)` is one kernel in
any spelling. Reductions along the last axis take the loops between them where the device has a kernel for rows. The
result is a list of regions, one for each kernel, which keep the regions that they are made of. Devices compile these
and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby

from .._tensor.node import Shape
from .._tensor.role import Reduction, View
from .fuse import Region, RegionKind, in_order_of_needs, is_composite, is_constant, join
from .groups import RowLimits, grouped

Joins = Callable[[Region, Region, Region], bool]
"""`joins(wider, base, neighbour)`: True if `wider`, which is `base` with the neighbour and with all that `base` has
taken before, takes no more kernels than `base`."""


def can_grow(part: Region) -> bool:
    """True for a product or a composite with one result."""
    return (part.kind is RegionKind.CONTRACTION or is_composite(part)) and len(part.outputs) == 1


@dataclass(frozen=True, slots=True)
class Fusion:
    """The fusion that a device's kernels allow."""

    joins: Joins
    grows: Callable[[Region], bool] = can_grow
    """True for a region that may take its neighbours."""
    rows: RowLimits | None = None
    """The limits of kernels with several passes over rows; `None` if each region is a kernel."""
    is_rowwise: Callable[[Region], bool] | None = None
    """True for regions that are one kernel over rows; `None` if there are no such kernels, or `rows` makes them."""
    only_first_reader: bool = False
    """True if only the first reader of a product's result may be its epilogue."""


def kernels_of(region: Region, fusion: Fusion, late: Set[int] = frozenset()) -> list[Region]:
    """The kernels of a unit, in an order in which they can run, without those that no other kernel needs any more. Row
    kernels that begin long before a `late` entry do not take it."""
    parts = region.parts if fusion.rows is None else grouped(region, fusion.rows, late)
    return _Kernels(parts, frozenset(region.outputs), fusion).made()


def stretches(region: Region, stands_alone: Callable[[Region], bool]) -> list[Region]:
    """A unit cut at the regions that stand alone: each of these, and the regions between them joined."""
    parts = region.parts
    if len(parts) == 1 or not any(map(stands_alone, parts)):
        return [region]
    groups: list[list[Region]] = []
    for is_alone, neighbours in groupby(parts, stands_alone):
        own = list(neighbours)
        groups += [[part] for part in own] if is_alone else [own]
    made = []
    for group in groups:
        inside = {n for part in group for n in part.nodes}
        read = {e for part in parts if not inside.intersection(part.nodes) for e in part.inputs}
        joined = join(group, read.union(region.outputs))
        made.append(replace(joined, repeats=region.repeats, precision=region.precision))
    return made


class _Kernels:
    """The parts of a unit, and the kernels that they have become."""

    def __init__(self, parts: Sequence[Region], shown: frozenset[int], fusion: Fusion) -> None:
        self._parts, self._shown, self._fusion = parts, shown, fusion
        self._now: list[Region | None] = list(parts)
        """The kernel in the place of each part: itself, more than it, or nothing."""
        self._home = {entry: place for place, part in enumerate(parts) for entry in part.outputs}
        self._readers: dict[int, set[int]] = {}
        for place, part in enumerate(parts):
            for entry in part.inputs:
                self._readers.setdefault(entry, set()).add(place)
        self._ready = dict(self._home)
        """The place at which each entry is computed."""
        self._runs_at = list(range(len(parts)))
        """The place at which each part runs."""
        self._members = [[n] for n in range(len(parts))]
        """The parts that run at each place."""

    def made(self) -> list[Region]:
        """All kernels."""
        for place, part in enumerate(self._parts):
            if self._now[place] is part and self._fusion.grows(part):
                self._grow(place)
        for place, part in enumerate(self._parts) if self._fusion.is_rowwise is not None else ():
            if self._now[place] is part and (space := _rows(part)) is not None:
                self._grow_rows(place, space)
        regions = [region for region in self._now if region is not None]
        makers = {e: n for n, region in enumerate(regions) for e in region.outputs}
        order = in_order_of_needs(
            {n: {makers[e] for e in region.inputs if e in makers} for n, region in enumerate(regions)}
        )
        needed, kept = set(self._shown), []
        for region in [regions[n] for n in reversed(order)]:
            if needed.intersection(region.outputs):
                needed.update(region.inputs)
                kept.append(region)
        return kept[::-1]

    def _grow(self, place: int) -> None:
        base = region = self._parts[place]
        for operand in base.inputs:
            region = self._with_views(region, base, operand)
        for operand in base.inputs:
            region = self._with_prologue(region, place, operand)
        for behind in sorted(self._readers.get(base.nodes[-1], ())):
            at = self._meeting(place, behind)
            if at is None:
                continue
            wider = self._with_epilogue(region, place, behind)
            if self._fusion.joins(wider, base, self._parts[behind]):
                self._now[place] = self._now[behind] = None
                self._now[at] = wider
                self._ready |= dict.fromkeys(wider.outputs, at)
                self._run_at(at, {place, behind})
                return
        self._now[place] = region

    def _meeting(self, place: int, behind: int) -> int | None:
        """The place where a part and a loop over the elements of its result can run as one, or `None`."""
        base, loop = self._parts[place], self._parts[behind]
        if not self._is_loop(behind) or loop.calls[-1].spec.shape != base.calls[-1].spec.shape:
            return None
        if behind == min(self._readers[base.nodes[-1]]):
            return behind  # no kernel before reads the result
        if self._fusion.only_first_reader:
            return None
        others = [e for e in loop.inputs if e not in base.outputs]
        return place if all(self._ready.get(e, -1) < place for e in others) else None

    def _with_views(self, region: Region, base: Region, operand: int) -> Region:
        """The region with the views that an operand is of another array. Other regions may still read the views."""
        home = self._home.get(operand)
        while home is not None and isinstance(self._parts[home].calls[-1].op.role, View):
            view = self._parts[home]
            wider = _joined(region, (view,), region.outputs)
            if not self._fusion.joins(wider, base, view):
                break
            region = wider
            home = self._home.get(view.inputs[0]) if view.inputs else None
        return region

    def _with_prologue(self, region: Region, place: int, operand: int) -> Region:
        """The region with a loop whose only result is an operand of it."""
        home = self._home.get(operand)
        is_private = self._readers[operand] == {place} and operand not in self._shown
        if home is None or not is_private or not self._is_loop(home) or self._parts[home].outputs != (operand,):
            return region
        wider = _joined(region, (self._parts[home],), region.outputs)
        if not self._fusion.joins(wider, self._parts[place], self._parts[home]):
            return region
        self._now[home] = None
        self._run_at(place, {home})
        return wider

    def _with_epilogue(self, region: Region, place: int, behind: int) -> Region:
        """The region with a loop that reads its result."""
        return self._shown_of(_joined(region, (self._parts[behind],), ()), {place, behind})

    def _as_one(self, places: set[int]) -> Region:
        """Join the parts at these places to a region."""
        first, *others = [self._parts[p] for p in sorted(places)]
        return self._shown_of(_joined(first, others, ()), places)

    def _shown_of(self, wider: Region, places: set[int]) -> Region:
        """A region that has the parts at some places, with the outputs that other parts read."""
        own = {n for p in places for n in self._parts[p].outputs}
        shown = (n for n in wider.nodes if n in own and (n in self._shown or self._readers.get(n, set()) - places))
        return replace(wider, outputs=tuple(shown))

    def _grow_rows(self, place: int, space: Shape) -> None:
        """Give the loops and reductions around a reduction along rows to it, one after the other, while they are one
        kernel."""
        is_rowwise = self._fusion.is_rowwise
        assert is_rowwise is not None
        places = {place}
        made: Region | None = None
        waiting = self._around(place)
        refused: list[int] = []
        while waiting:
            n = waiting.pop(0)
            wider = places | {n}
            if self._now[n] is not self._parts[n] or not _fits(self._parts[n], space):
                continue
            region = self._as_one(wider)
            if not self._can_run(wider) or not is_rowwise(region):
                refused.append(n)
                continue
            places, made = wider, region
            waiting = list(dict.fromkeys([*waiting, *refused, *[p for p in self._around(n) if p not in places]]))
            refused = []
        if made is not None:
            at = max(places)
            for p in places:
                self._now[p] = None
            self._now[at] = made
            self._run_at(at, places)

    def _run_at(self, at: int, places: set[int]) -> None:
        """Note that parts, and those that run with them, run at a place."""
        for place in places - {at}:
            for member in self._members[place]:
                self._runs_at[member] = at
            self._members[at] += self._members[place]
            self._members[place] = []

    def _around(self, place: int) -> list[int]:
        """The parts that make what a part reads, and those that read what it makes."""
        part = self._parts[place]
        makers = [self._home[e] for e in part.inputs if e in self._home]
        readers = [n for e in part.outputs for n in sorted(self._readers.get(e, ()))]
        return list(dict.fromkeys([*readers, *makers]))

    def _can_run(self, places: set[int]) -> bool:
        """True if parts can run as one: none of them needs another through a part that stays outside."""
        last = max(places)
        waiting = list({n for p in places for n in self._readers_of(p)} - places)
        seen = set(waiting)
        while waiting:
            place = waiting.pop()
            if min(self._members[place]) > last:
                continue  # nothing that it leads to comes before
            found = {n for member in self._members[place] for n in self._readers_of(member)}
            if found & places:
                return False
            waiting += found - seen
            seen |= found
        return True

    def _readers_of(self, part: int) -> set[int]:
        """The places at which the values of a part are read."""
        return {self._runs_at[n] for e in self._parts[part].outputs for n in self._readers.get(e, ())}

    def _is_loop(self, place: int) -> bool:
        """True for a loop that no kernel has taken."""
        return self._now[place] is self._parts[place] and self._parts[place].kind is RegionKind.LOOP


def _rows(part: Region) -> Shape | None:
    """The space of a region that ends in a reduction along its last axis; `None` for any other."""
    call = part.calls[-1]
    if part.kind is not RegionKind.REDUCTION or not isinstance(call.op.role, Reduction):
        return None
    shape = call.inputs[0].shape
    return shape if call.attrs["axis"] == (len(shape) - 1,) and shape[-1] > 1 else None


def _fits(part: Region, space: Shape) -> bool:
    """True if a region may be part of a kernel that goes through the rows of a space."""
    is_reshape = part.kind is RegionKind.OPAQUE and part.calls[-1].op.role is View.RESHAPED
    if not is_reshape and part.kind is not RegionKind.LOOP and _rows(part) != space:
        return False
    return all(part.graph.calls[e].spec.shape in (space, space[:-1], (*space[:-1], 1)) for e in part.outputs)


def _joined(region: Region, others: Iterable[Region], outputs: tuple[int, ...]) -> Region:
    """Regions as one, with each entry once in the graph's order: operands may share a view, a view may be part of a
    loop that is taken too, and a region that was taken before may be read by one that is taken now."""
    regions = (*(region.regions or (region,)), *others)
    graph, inside = region.graph, {n for r in regions for n in r.nodes}
    nodes = tuple(sorted(inside))
    read = (a for n in nodes for a in graph.args[n] if a not in inside and not is_constant(graph, a))
    return replace(
        region, kind=RegionKind.SEQUENCE, nodes=nodes, inputs=tuple(dict.fromkeys(read)), outputs=outputs,
        regions=regions,
    )  # fmt: skip
