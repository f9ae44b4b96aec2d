"""Units on a kernel device: their kernels, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..._run.background import side_by_side
from ..._run.device import Kernel
from ..._schedule.fuse import Region, RegionKind
from ..._schedule.kernels import kernels_of
from .fused import Fused


def sequence(region: Region, fused: Fused, compile_part: Callable[[Region], Kernel]) -> Kernel:
    """A unit as its kernels, in order."""
    parts = kernels_of(region, fused.fusion)
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
