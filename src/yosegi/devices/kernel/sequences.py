"""Several regions that a kernel device runs as one unit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from ..._run.background import side_by_side
from ..._run.device import Kernel
from ..._schedule.fuse import JOINED, Region, RegionKind, fuse, join
from .clusters import clustered
from .fused import Fused


def parts_of(region: Region) -> list[Region]:
    """The regions that a sequence is made of, in an order in which they can run; of another region, itself."""
    if region.kind not in JOINED:
        return [region]
    return [replace(part, repeats=region.repeats, precision=region.precision) for part in fuse(region.graph, region)]


def stretches(region: Region, stands_alone: Callable[[Region], bool]) -> list[Region]:
    """A region cut at the parts that stand alone: each of these, and the parts between them joined."""
    parts = parts_of(region)
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


def compiled_parts(region: Region, fused: Fused) -> list[Region]:
    """The parts of a region as they are compiled: products and rows with what they take of their neighbours."""
    return clustered(parts_of(region), region.outputs, fused)


def sequence(region: Region, fused: Fused, compile_part: Callable[[Region], Kernel]) -> Kernel:
    """The parts one after the other."""
    parts = compiled_parts(region, fused)
    makers = [partial(fused.compiled if p.kind is RegionKind.SEQUENCE else compile_part, p) for p in parts]
    return in_order(region, parts, side_by_side(makers, fused.compilers))


def in_order(region: Region, parts: Sequence[Region], kernels: Sequence[Kernel]) -> Kernel:
    """The kernels of a region's parts, one after the other. A value that no later part reads is let go of, so that its
    memory serves again."""
    last = {e: n for n, part in enumerate(parts) for e in part.inputs}
    kept = set(region.outputs)
    drops = [[e for e in (*p.inputs, *p.outputs) if last.get(e, n) == n and e not in kept] for n, p in enumerate(parts)]

    def kernel(*data: Any) -> tuple[Any, ...]:
        values = dict(zip(region.inputs, data, strict=True))
        for part, run, dropped in zip(parts, kernels, drops, strict=True):
            values.update(zip(part.outputs, run(*[values[i] for i in part.inputs]), strict=True))
            for entry in dropped:
                values.pop(entry, None)
        return tuple([values[o] for o in region.outputs])

    return kernel
