"""Unit → kernels: the fusion that depends on a device.

A unit is made of regions that `fuse` has built. A device gives predicates (`Fusion`), and this pass cuts the unit:
regions over one index space become one kernel where the device passes over rows several times, and a product takes its
neighbours. A loop that reads a product's result, element by element, is its epilogue; a loop that makes an operand is
its prologue; an operand that is a view of an array is read in place. So `relu(x @ w.T + b)` is one kernel in any
spelling. A kernel of several regions keeps them as its `regions`; devices compile what stands here and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from .._tensor.role import View
from .fuse import Region, RegionKind, is_composite, is_constant, join
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
    only_first_reader: bool = False
    """True if only the first reader of a product's result may be its epilogue."""


def kernels_of(region: Region, fusion: Fusion) -> list[Region]:
    """The kernels of a unit, in an order in which they can run, without those that no other kernel needs any more."""
    parts = region.parts if fusion.rows is None else grouped(region, fusion.rows)
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

    def made(self) -> list[Region]:
        """All kernels."""
        for place, part in enumerate(self._parts):
            if self._now[place] is part and self._fusion.grows(part):
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
        return wider

    def _with_epilogue(self, region: Region, place: int, behind: int) -> Region:
        """The region with a loop that reads its result."""
        places = {place, behind}
        own = {n for p in places for n in self._parts[p].outputs}
        wider = _joined(region, (self._parts[behind],), ())
        shown = (n for n in wider.nodes if n in own and (n in self._shown or self._readers.get(n, set()) - places))
        return replace(wider, outputs=tuple(shown))

    def _is_loop(self, place: int) -> bool:
        """True for a loop that no kernel has taken."""
        return self._now[place] is self._parts[place] and self._parts[place].kind is RegionKind.LOOP


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
