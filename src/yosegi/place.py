"""Regions → plan: each region gets a device, and neighbours on one device become one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .device import Device
from .fuse import Region, fuse, join
from .graph import Graph
from .memory import HOST
from .plan import Plan, Step
from .trace import log

_STEP_LIMIT: Final = 256  # ops a step; keeps compile time linear, and lets long chains share compiled code
_SMALL: Final = 1 << 20  # bytes; below, launches and transfers cost more than any device saves (a prior, not measured)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a region may run, best first, and which devices were asked before and refused."""

    region: Region
    candidates: tuple[Device, ...]
    refused: tuple[tuple[str, str], ...]


def place(graph: Graph, chain: Sequence[Device], *, prefer_host_below: int = _SMALL) -> Plan:
    """The plan that runs every region on the first device of the chain that can.

    A region of little data goes to the host first, unless its data is in another memory: then it stays there.
    """
    lives: dict[int, str] = {e: graph.calls[e].attrs.get("space", HOST) for e in graph.inputs}
    choices = []
    for region in fuse(graph):
        near = {lives[i] for i in region.inputs} - {HOST}
        choice = choose(region, chain, near, prefer_host_below)
        lives.update(dict.fromkeys(region.outputs, choice.candidates[0].space))
        choices.append(choice)
    last_use = _last_uses(graph, choices)
    steps: list[Step] = []
    begin = 0
    for group in _groups(choices):
        end = begin + len(group)
        regions = [c.region for c in group]
        unit = join(regions, (n for r in regions for n in r.nodes if last_use[n] >= end))
        if len(group) == len(choices) and set(graph.outputs) <= set(unit.nodes):
            unit = replace(unit, inputs=graph.inputs, outputs=graph.outputs)
        frees = tuple(e for e in {*unit.inputs, *unit.outputs} if last_use[e] < end)
        refused = tuple(dict.fromkeys(r for c in group for r in c.refused))
        candidates = group[0].candidates
        if len(group) > 1:  # what ran the parts one by one need not run them as one
            candidates = tuple(d for d in candidates if d is candidates[0] or refusal(d, unit) is None)
        steps.append(Step(unit, candidates, refused, frees))
        log.info("%s on %s", str(unit), group[0].candidates[0].name)
        begin = end
    return Plan(graph, steps)


def choose(region: Region, chain: Sequence[Device], near: set[str], prefer_host_below: int) -> Choice:
    """The devices of the chain that can run a region, in order; `near`: where its data is, if not on the host."""
    if near:
        order: Sequence[Device] = sorted(chain, key=lambda d: d.space not in near)
    else:
        order = sorted(chain, key=lambda d: d.space != HOST) if region.nbytes < prefer_host_below else chain
    candidates: list[Device] = []
    refused: list[tuple[str, str]] = []
    for device in order:
        reason = refusal(device, region)
        if reason is None:
            candidates.append(device)
        elif not candidates:
            refused.append((device.name, reason))
    return Choice(region, tuple(candidates), tuple(refused))


def refusal(device: Device, region: Region) -> str | None:
    """Why a device cannot have a region: its capabilities, or its own word.

    What failed before plays no part here: that passes, and plans are kept. A step that runs looks at it.
    """
    if device.space != HOST:
        for call in region.calls:
            if call.op.decomposition is not None and call.op.name not in device.limits.natives:
                return f"it has no {call.op.name} of its own"
            if call.op.kind not in device.limits.kinds:
                return f"it has no {call.op.kind.value}"
            for s in (*call.inputs, *call.outputs):
                if s.dtype not in device.limits.dtypes:
                    return f"it has no {s.dtype.name}"
    return device.supports(region)


def _groups(choices: Sequence[Choice]) -> Iterator[list[Choice]]:
    """Neighbours to be compiled as one unit: on one device that wants it so, up to a number of ops."""
    group: list[Choice] = []
    size = 0
    for choice in choices:
        ops = len(choice.region.nodes)
        fits = group and group[0].candidates[0] is choice.candidates[0] and size + ops <= _STEP_LIMIT
        if fits and choice.candidates[0].coalesces:
            group.append(choice)
            size += ops
        else:
            if group:
                yield group
            group, size = [choice], ops
    if group:
        yield group


def _last_uses(graph: Graph, choices: Sequence[Choice]) -> list[int]:
    """For each entry the index of the last region that reads it; past the end for outputs."""
    last = [-1] * len(graph.calls)
    for i, choice in enumerate(choices):
        for entry in choice.region.inputs:
            last[entry] = i
    for entry in graph.outputs:
        last[entry] = len(choices)
    return last
