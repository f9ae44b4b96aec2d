"""Regions → plan: each region gets a device, and neighbours on one device become one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from .device import Device
from .dtype import float32
from .fuse import Region, fuse, join, multiplies
from .graph import Graph
from .memory import HOST
from .partition import Choice, groups, not_worth_a_call, products_with_constants, together
from .plan import Plan, Step
from .precision import STRATEGIES, Precision
from .trace import log

_SMALL: Final = 1 << 20  # bytes; below, launches and transfers cost more than any device saves (a prior, not measured)


def place(
    graph: Graph, chain: Sequence[Device], *, prefer_host_below: int = _SMALL, repeats: bool = False,
    strategy: str = "f32",
) -> Plan:  # fmt: skip
    """The plan that runs every region on the first device of the chain that can.

    A region of little data goes to the host first, unless its data is in another memory: then it stays there. Devices
    that compile subgraphs get pieces that are worth it; of such, a device that was named gets more. `repeats` says that
    the plan will run many times, `strategy` which precisions the user allows.
    """
    regions = fuse(graph)
    named = not prefer_host_below
    products = products_with_constants(graph, regions)
    asked = [
        d for d in chain if (worth := d.limits.partitions) is None or named or len(products) >= worth.least_products
    ]
    against: dict[int, dict[str, str]] = {}
    while True:
        choices = together(_chosen(graph, regions, asked, against, prefer_host_below))
        found = not_worth_a_call(choices, products, named=named)
        if not found:
            break
        for region, device, reason in found:
            against.setdefault(region.nodes[0], {})[device.name] = reason
    last_use = _last_uses(graph, choices)
    steps: list[Step] = []
    begin = 0
    for group in groups(choices):
        end = begin + len(group)
        own = [c.region for c in group]
        unit = join(own, (n for r in own for n in r.nodes if last_use[n] >= end))
        if len(group) == len(choices) and set(graph.outputs) <= set(unit.nodes):
            unit = replace(unit, inputs=graph.inputs, outputs=tuple(dict.fromkeys(graph.outputs)))
        unit = replace(unit, repeats=repeats)
        frees = tuple(e for e in {*unit.inputs, *unit.outputs} if last_use[e] < end)
        refused = tuple(dict.fromkeys(r for c in group for r in c.refused))
        candidates = group[0].candidates
        if len(group) > 1:  # what ran the parts one by one need not run them as one
            candidates = tuple(d for d in candidates if d is candidates[0] or refusal(d, unit) is None)
        unit = replace(unit, precision=precision_on(candidates[0], unit, strategy))
        steps.append(Step(unit, candidates, refused, frees))
        log.info("%s on %s", str(unit), group[0].device.name)
        begin = end
    return Plan(graph, steps)


def _chosen(
    graph: Graph,
    regions: Sequence[Region],
    chain: Sequence[Device],
    against: Mapping[int, Mapping[str, str]],
    prefer_host_below: int,
) -> list[Choice]:
    """A choice for each region, which follows its data; `against`: devices it should not have, by its first entry."""
    lives: dict[int, str] = {e: graph.calls[e].attrs.get("space", HOST) for e in graph.inputs}
    choices = []
    for region in regions:
        near = {lives[i] for i in region.inputs} - {HOST}
        choice = choose(region, chain, near, prefer_host_below, against.get(region.nodes[0], {}))
        lives.update(dict.fromkeys(region.outputs, choice.device.space))
        choices.append(choice)
    return choices


def choose(
    region: Region, chain: Sequence[Device], near: set[str], prefer_host_below: int, against: Mapping[str, str]
) -> Choice:
    """The devices of the chain that can run a region, in order; `near`: where its data is, if not on the host."""
    host = chain[-1]
    if near:
        order: Sequence[Device] = sorted(chain, key=lambda d: d.space not in near)
    elif region.nbytes < prefer_host_below:  # what compiles subgraphs is judged by the whole piece, not by a region
        order = sorted(chain, key=lambda d: (d.limits.partitions is None, d is not host))
    else:
        order = chain
    candidates: list[Device] = []
    refused: list[tuple[str, str]] = []
    for device in order:
        reason = against.get(device.name) or refusal(device, region)
        if reason is None:
            candidates.append(device)
        elif not candidates:
            refused.append((device.name, reason))
    return Choice(region, tuple(candidates), tuple(refused))


def precision_on(device: Device, region: Region, strategy: str) -> Precision:
    """In which numbers a device computes the products of a region: the best reduced ones that the user allows and the
    device has, if it has any."""
    if STRATEGIES[strategy] and any(multiplies(c) and c.spec.dtype is float32 for c in region.calls):
        for precision in STRATEGIES[strategy]:
            if precision in device.limits.precisions and not device.supports(replace(region, precision=precision)):
                return precision
    return Precision.FULL


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


def _last_uses(graph: Graph, choices: Sequence[Choice]) -> list[int]:
    """For each entry the index of the last region that reads it; past the end for outputs."""
    last = [-1] * len(graph.calls)
    for i, choice in enumerate(choices):
        for entry in choice.region.inputs:
            last[entry] = i
    for entry in graph.outputs:
        last[entry] = len(choices)
    return last
