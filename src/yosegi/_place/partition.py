"""Placed regions → units: neighbours on one device that the device compiles and calls as one. `place` calls `units_of`.

Regions of one device are moved together. Communication overlaps with work: it starts as soon as its value is there,
then comes the work that the next communication needs, then other work, and only if nothing else is left, a wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush

from .._graph.graph import Graph
from .._schedule.fuse import Region, communicates, connection_of, join
from .._tensor.op import OpKind
from .._tensor.precision import Precision
from .._tensor.role import Wait
from .candidates import Candidate, Refusals
from .cost_model import Work


@dataclass(frozen=True, slots=True)
class Placed:
    """A region with the candidate that runs it, its work, and the devices that do not get it."""

    region: Region
    candidate: Candidate
    work: Work
    refused: Refusals = ()
    is_pinned: bool = False
    """True if it reads inputs that the user has put on this device. Its outputs are pinned there too."""
    is_alone: bool = False
    """True if its result has a certificate of its own: it cannot be part of a larger unit."""

    @property
    def precision(self) -> Precision | None:
        """The precision of its products; `None` for a region without products, which fits any."""
        return self.candidate.precision if self.work.operands else None


@dataclass(frozen=True, slots=True)
class Unit:
    """Regions that are compiled as one, and their candidate."""

    region: Region
    candidate: Candidate
    works: tuple[Work, ...]
    frees: tuple[int, ...]
    """The values that no later unit needs."""
    refused: Refusals = ()
    is_pinned: bool = False


def units_of(graph: Graph, placed: Sequence[Placed], *, repeats: bool = False) -> list[Unit]:
    """The units of a graph, in an order in which they can run."""
    ordered = _ordered(placed)
    last_use = _last_uses(graph, ordered)
    units: list[Unit] = []
    begin = 0
    for group in _groups(ordered):
        end = begin + len(group)
        own = [c.region for c in group]
        region = join(own, (n for r in own for n in r.nodes if last_use[n] >= end)) if len(own) > 1 else own[0]
        if len(group) == len(placed) and set(graph.outputs) <= set(region.nodes):
            region = replace(region, inputs=graph.inputs, outputs=tuple(dict.fromkeys(graph.outputs)))
        candidate = next((c.candidate for c in group if c.precision is not None), group[0].candidate)
        precision = candidate.precision
        if repeats or precision is not region.precision:
            region = replace(region, repeats=repeats, precision=precision)
        frees = tuple([e for e in (*region.inputs, *region.outputs) if last_use[e] < end])
        refused = group[0].refused if len(group) == 1 else tuple(dict.fromkeys(r for c in group for r in c.refused))
        works = tuple([c.work for c in group])
        units.append(Unit(region, candidate, works, frees, refused, any(c.is_pinned for c in group)))
        begin = end
    return units


def _ordered(placed: Sequence[Placed]) -> Sequence[Placed]:
    """The regions in an order in which communication overlaps with work. Between two communications, as everywhere in
    graphs without waits, those of one device stand together."""
    if not any(_waits(c.region) for c in placed):
        return _together(placed)
    order: list[Placed] = []
    between: list[Placed] = []
    for each in [placed[n] for n in _overlapping([c.region for c in placed])]:
        if communicates(each.region):
            order += [*_together(between), each]
            between = []
        else:
            between.append(each)
    return [*order, *_together(between)]


def _together(placed: Sequence[Placed]) -> Sequence[Placed]:
    """The regions in an order in which those of one device stand together as far as their inputs allow."""
    if all(c.candidate.device is placed[0].candidate.device for c in placed):
        return placed
    missing, readers = _dependencies([c.region for c in placed])
    names = [c.candidate.device.name for c in placed]
    ready: dict[str, list[int]] = {name: [] for name in names}
    for i, count in enumerate(missing):
        if not count:
            heappush(ready[names[i]], i)
    order: list[Placed] = []
    current = names[0]
    while len(order) < len(placed):
        if not ready[current]:  # continue with the next device in order
            current = min((name for name in ready if ready[name]), key=lambda name: ready[name][0])
        i = heappop(ready[current])
        order.append(placed[i])
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready[names[reader]], reader)
    return order


def _dependencies(regions: Sequence[Region]) -> tuple[list[int], list[list[int]]]:
    """For each region how many others it needs, and the numbers of those that need it."""
    maker = {entry: n for n, region in enumerate(regions) for entry in region.nodes}
    needs = [{maker[entry] for entry in region.inputs if entry in maker} for region in regions]
    readers: list[list[int]] = [[] for _ in regions]
    for n, needed in enumerate(needs):
        for other in needed:
            readers[other].append(n)
    return [len(needed) for needed in needs], readers


def _groups(placed: Sequence[Placed]) -> Iterator[list[Placed]]:
    """Neighbours on one device that coalesces, up to its number of ops, with products in one precision."""
    group: list[Placed] = []
    size = 0
    precision: Precision | None = None
    for each in placed:
        ops, most = len(each.region.nodes), each.candidate.device.limits.unit
        if (
            group
            and (most is None or size + ops <= most)
            and each.candidate.device is group[0].candidate.device
            and each.candidate.device.coalesces
            and not (_is_step(each) or _is_step(group[0]))
            and (each.precision is None or precision is None or each.precision is precision)
        ):
            group.append(each)
            size += ops
            precision = precision or each.precision
        else:
            if group:
                yield group
            group, size, precision = [each], ops, each.precision
    if group:
        yield group


def _is_step(placed: Placed) -> bool:
    """True if a region is a step of its own: communication of the host has other work beside it."""
    first = placed.region.graph.calls[placed.region.nodes[0]]
    return placed.is_alone or (first.op.kind is OpKind.DISTRIBUTED and connection_of(first) is None)


def _last_uses(graph: Graph, placed: Sequence[Placed]) -> list[int]:
    """For each entry the index of the last region that reads it; past the end for outputs."""
    last = [-1] * len(graph.calls)
    for i, each in enumerate(placed):
        for entry in each.region.inputs:
            last[entry] = i
    for entry in graph.outputs:
        last[entry] = len(placed)
    return last


def _waits(region: Region) -> bool:
    """True if the region is a wait for a communication that was started before."""
    return isinstance(region.graph.calls[region.nodes[0]].op.role, Wait)


def _overlapping(regions: Sequence[Region]) -> list[int]:
    """The numbers of regions in an order in which communication and work overlap. `order` is an order that can run."""
    missing, readers = _dependencies(regions)
    keys = _keys(regions, readers)
    ready = [keys[n] for n, count in enumerate(missing) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        n = heappop(ready)[-1]
        order.append(n)
        for reader in readers[n]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, keys[reader])
    return order


def _keys(regions: Sequence[Region], readers: Sequence[Sequence[int]]) -> list[tuple[int, int, int]]:
    """The priority of each region: a start, then work, then a wait; of several, the one that the next communication
    needs."""
    end = len(regions)
    first = [end] * end
    for n in reversed(range(end)):
        starts = communicates(regions[n]) and not _waits(regions[n])
        first[n] = n if starts else min([first[r] for r in readers[n]], default=end)
    return [
        (2 if _waits(region) else 0 if communicates(region) else 1, first[n], n) for n, region in enumerate(regions)
    ]
