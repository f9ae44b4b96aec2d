"""The order of regions in which communication runs beside other work.

A communication starts as soon as its value is there. The work that the next one needs comes first, then other work, and
only if nothing else is left to do, a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from .._tensor.role import Wait
from .fuse import Region, communicates


def waits(region: Region) -> bool:
    """True if the region is a wait for a communication that was started before."""
    return isinstance(region.graph.calls[region.nodes[0]].op.role, Wait)


def overlapping(regions: Sequence[Region]) -> list[int]:
    """The numbers of regions, which can run in the order that is given, in the order in which they overlap."""
    maker = {entry: n for n, region in enumerate(regions) for entry in region.nodes}
    needs = [{maker[entry] for entry in region.inputs if entry in maker} for region in regions]
    readers: list[list[int]] = [[] for _ in regions]
    for n, needed in enumerate(needs):
        for other in needed:
            readers[other].append(n)
    keys = _keys(regions, readers)
    missing = [len(needed) for needed in needs]
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
        starts = communicates(regions[n]) and not waits(regions[n])
        first[n] = n if starts else min([first[r] for r in readers[n]], default=end)
    return [(2 if waits(region) else 0 if communicates(region) else 1, first[n], n) for n, region in enumerate(regions)]
