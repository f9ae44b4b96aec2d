"""Regions → regions, in which products and rows have taken what is around them.

A kernel device computes a product, or a composite, with more around it at little extra cost: a loop that reads its
result, element by element, goes behind it; one that makes an operand goes before it; an operand that is a view of an
array is read where that lies. So `relu(x @ w.T + b)` is one kernel, in whatever words it was written. Reductions along
the last axis, with the loops between them, are one kernel that keeps a row near: so is the gradient of a layer norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from ..._schedule.fuse import Region, RegionKind, in_order_of_needs, is_composite, is_constant
from ..._tensor.node import Shape
from ..._tensor.role import Placing, View, is_view
from ...codegen.scalar.folds import folds


class Predicates(Protocol):
    """The kernels that a device has."""

    def joins(self, region: Region, base: Region) -> bool:
        """True if a region, which is another one and neighbours of it, takes no more kernels than that one alone."""

    def is_rowwise(self, region: Region) -> bool:
        """True if a region is one kernel that goes row by row."""


def clustered(parts: Sequence[Region], outputs: Iterable[int], device: Predicates) -> list[Region]:
    """The parts of a program, of which some have taken others; in an order in which they can run, without those that
    nobody needs any more."""
    return _Clusters(parts, frozenset(outputs), device).made()


class _Clusters:
    """The parts, and what has become of them."""

    def __init__(self, parts: Sequence[Region], shown: frozenset[int], device: Predicates) -> None:
        self._parts, self._shown, self._joins, self._is_rowwise = parts, shown, device.joins, device.is_rowwise
        self._now: list[Region | None] = list(parts)
        """What is in the place of each part: itself, more than it, or nothing."""
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
        """All of them."""
        for place, part in enumerate(self._parts):
            if self._now[place] is part and _can_grow(part):
                self._grow(place)
        for place, part in enumerate(self._parts):
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
            region = self._with_loop_before(region, place, operand)
        for behind in sorted(self._readers.get(base.nodes[-1], ())):
            at = self._meeting(place, behind)
            if at is None:
                continue
            wider = self._joined((*region.nodes, *self._parts[behind].nodes), {place, behind}, region)
            if self._joins(wider, base):
                self._now[place] = self._now[behind] = None
                self._now[at] = wider
                self._ready |= dict.fromkeys(wider.outputs, at)
                self._run_at(at, {place, behind})
                return
        self._now[place] = region

    def _meeting(self, place: int, behind: int) -> int | None:
        """Where a part and a loop over the elements of its result can run as one, or `None`."""
        base, loop = self._parts[place], self._parts[behind]
        if not self._is_loop(behind) or loop.calls[-1].spec.shape != base.calls[-1].spec.shape:
            return None
        if behind == min(self._readers[base.nodes[-1]]):
            return behind  # nobody misses the result before
        others = [e for e in loop.inputs if e not in base.outputs]
        return place if all(self._ready.get(e, -1) < place for e in others) else None

    def _with_views(self, region: Region, base: Region, operand: int) -> Region:
        """The region with the views that an operand is of another array: others that read them may still do so."""
        home = self._home.get(operand)
        while home is not None and isinstance(self._parts[home].calls[-1].op.role, View):
            view = self._parts[home]
            wider = _region((*view.nodes, *region.nodes), region.outputs, region)
            if not self._joins(wider, base):
                break
            region = wider
            home = self._home.get(view.inputs[0]) if view.inputs else None
        return region

    def _with_loop_before(self, region: Region, place: int, operand: int) -> Region:
        """The region with a loop that does nothing but make an operand of it."""
        home = self._home.get(operand)
        is_private = self._readers[operand] == {place} and operand not in self._shown
        if home is None or not is_private or not self._is_loop(home) or self._parts[home].outputs != (operand,):
            return region
        wider = _region((*self._parts[home].nodes, *region.nodes), region.outputs, region)
        if not self._joins(wider, self._parts[place]):
            return region
        self._now[home] = None
        self._run_at(place, {home})
        return wider

    def _grow_rows(self, place: int, space: Shape) -> None:
        """Give the loops and reductions around a reduction along rows to it, one after the other, while they are one
        kernel."""
        places = {place}
        made: Region | None = None
        waiting = self._around(place)
        refused: list[int] = []
        while waiting:
            n = waiting.pop(0)
            wider = places | {n}
            if self._now[n] is not self._parts[n] or not _fits(self._parts[n], space):
                continue
            region = self._joined(tuple(e for p in wider for e in self._parts[p].nodes), wider, self._parts[place])
            if not self._can_run(wider) or not self._is_rowwise(region):
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
        """Whether a part is a loop that nobody has taken."""
        return self._now[place] is self._parts[place] and self._parts[place].kind is RegionKind.LOOP

    def _joined(self, nodes: tuple[int, ...], places: set[int], like: Region) -> Region:
        """Entries that are the parts in some places, and what these have taken."""
        own = {n for place in places for n in self._parts[place].outputs}
        shown = (n for n in nodes if n in own and (n in self._shown or self._readers.get(n, set()) - places))
        return _region(nodes, tuple(shown), like)


def _can_grow(part: Region) -> bool:
    return (part.kind is RegionKind.CONTRACTION or is_composite(part)) and len(part.outputs) == 1


def _rows(part: Region) -> Shape | None:
    """The space of a region that ends in a reduction along its last axis; `None` for any other."""
    call = part.calls[-1]
    if part.kind is not RegionKind.REDUCTION or not folds(call):
        return None
    shape = call.inputs[0].shape
    return shape if call.attrs["axis"] == (len(shape) - 1,) and shape[-1] > 1 else None


def _fits(part: Region, space: Shape) -> bool:
    """True if a region may be part of a kernel that goes through the rows of a space."""
    is_reshape = part.kind is RegionKind.OPAQUE and is_view(part.calls[-1].op.role, Placing.RESHAPED)
    if not is_reshape and part.kind is not RegionKind.LOOP and _rows(part) != space:
        return False
    return all(part.graph.calls[e].spec.shape in (space, space[:-1], (*space[:-1], 1)) for e in part.outputs)


def _region(entries: Iterable[int], outputs: tuple[int, ...], like: Region) -> Region:
    """Entries as one region, each once, in the graph's order: operands may share a view, which may be a loop that is
    taken, too, and what was taken before may be read by what is taken now."""
    graph, inside = like.graph, set(entries)
    nodes = tuple(sorted(inside))
    read = (a for n in nodes for a in graph.args[n] if a not in inside and not is_constant(graph, a))
    return replace(like, kind=RegionKind.SEQUENCE, nodes=nodes, inputs=tuple(dict.fromkeys(read)), outputs=outputs)
