"""Regions → plan: each region gets a device, and neighbours on one device become one step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from .device import Device, first_supporting
from .fuse import Region, fuse, join
from .graph import Graph
from .plan import Plan, Step

log = logging.getLogger("yosegi")

_STEP_LIMIT: Final = 256  # ops a step; keeps compile time linear, and lets long chains share compiled code


def place(graph: Graph, chain: Sequence[Device]) -> Plan:
    """The plan that runs every region on the first device of the chain that can."""
    regions = fuse(graph)
    last_use = _last_uses(graph, regions)
    choices = [first_supporting(region, chain) for region in regions]
    steps: list[Step] = []
    begin = 0
    for (device, refused), run in groupby(choices):
        end = begin + len(list(run))
        for start in range(begin, end, _STEP_LIMIT):
            stop = min(start + _STEP_LIMIT, end)
            group = regions[start:stop]
            unit = join(group, (n for r in group for n in r.nodes if last_use[n] >= stop))
            if stop - start == len(regions) and set(graph.outputs) <= set(unit.nodes):
                unit = replace(unit, inputs=graph.inputs, outputs=graph.outputs)
            touched = {*unit.inputs, *unit.outputs}
            frees = tuple(e for e in touched if last_use[e] < stop)
            steps.append(Step(unit, device.name, device.compile(unit), frees, refused))
            log.info("%s on %s", unit, device.name)
        begin = end
    return Plan(graph, steps)


def _last_uses(graph: Graph, regions: Sequence[Region]) -> list[int]:
    """For each entry the index of the last region that reads it; past the end for outputs."""
    last = [-1] * len(graph.calls)
    for i, region in enumerate(regions):
        for entry in region.inputs:
            last[entry] = i
    for entry in graph.outputs:
        last[entry] = len(regions)
    return last
