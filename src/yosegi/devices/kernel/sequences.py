"""Several regions that a kernel device runs as one unit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..._run.device import Kernel
from ..._schedule.fuse import JOINED, Region, RegionKind, fuse
from .clusters import clustered
from .fused import Fused


def parts_of(region: Region) -> list[Region]:
    """The regions that a sequence is made of, in an order in which they can run; of another region, itself."""
    if region.kind not in JOINED:
        return [region]
    return [replace(part, repeats=region.repeats, precision=region.precision) for part in fuse(region.graph, region)]


def compiled_parts(region: Region, fused: Fused) -> list[Region]:
    """The parts of a region as they are compiled: products with what they take of their neighbours."""
    return clustered(parts_of(region), region.outputs, fused.joins)


def sequence(region: Region, fused: Fused, compile_part: Callable[[Region], Kernel]) -> Kernel:
    """The parts one after the other. What no later part reads is let go of, so that its memory serves again."""
    parts = compiled_parts(region, fused)
    kernels = [fused.compiled(p) if p.kind is RegionKind.SEQUENCE else compile_part(p) for p in parts]
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
