"""Regions → regions, in which products have taken what is elementwise around them.

A kernel device computes a product, or a composite, with more around it at little extra cost: a loop that reads its
result, element by element, goes behind it; one that makes an operand goes before it; an operand that is a view of an
array is read where that lies. So `relu(x @ w.T + b)` is one kernel, in whatever words it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ..._schedule.fuse import Region, RegionKind, is_composite, is_constant
from ..._tensor.role import View

Joins = Callable[[Region, Region], bool]
"""Whether the first region, which is the second and neighbours of it, takes no kernel more than the second alone."""


def clustered(parts: Sequence[Region], outputs: Iterable[int], joins: Joins) -> list[Region]:
    """The parts of a program, of which some have taken others; in an order in which they can run, without those that
    nobody needs any more."""
    return _Clusters(parts, frozenset(outputs), joins).made()


class _Clusters:
    """The parts, and what has become of them."""

    def __init__(self, parts: Sequence[Region], shown: frozenset[int], joins: Joins) -> None:
        self._parts, self._shown, self._joins = parts, shown, joins
        self._now: list[Region | None] = list(parts)
        """What is in the place of each part: itself, more than it, or nothing."""
        self._home = {entry: place for place, part in enumerate(parts) for entry in part.outputs}
        self._readers: dict[int, set[int]] = {}
        for place, part in enumerate(parts):
            for entry in part.inputs:
                self._readers.setdefault(entry, set()).add(place)
        self._ready = dict(self._home)
        """The place at which each entry is computed."""

    def made(self) -> list[Region]:
        """All of them."""
        for place, part in enumerate(self._parts):
            if self._now[place] is part and _can_grow(part):
                self._grow(place)
        needed, kept = set(self._shown), []
        for region in reversed(self._now):
            if region is not None and needed.intersection(region.outputs):
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
        return wider

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


def _region(entries: Iterable[int], outputs: tuple[int, ...], like: Region) -> Region:
    """Entries as one region, each once, in the graph's order: operands may share a view, which may be a loop that is
    taken, too, and what was taken before may be read by what is taken now."""
    graph, inside = like.graph, set(entries)
    nodes = tuple(sorted(inside))
    read = (a for n in nodes for a in graph.args[n] if a not in inside and not is_constant(graph, a))
    return replace(like, kind=RegionKind.SEQUENCE, nodes=nodes, inputs=tuple(dict.fromkeys(read)), outputs=outputs)
