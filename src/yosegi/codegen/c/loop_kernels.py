"""Loop regions as kernels: each thread reads packets, computes their elements one by one, and writes packets.

Neighbouring threads take neighbouring packets. Where there is enough work for it, a thread takes several, a block's
width apart, and reads all of them before it computes with the first: that many reads are under way at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Final

from ..._schedule.fuse import Region
from ..scalar.access import Dimension, dimensions
from ..scalar.value import Value
from .builder import CBuilder
from .dialect import Dialect, Target
from .kernel_source import Inputs, Kernel, assembled, decomposed, evaluated, offsets
from .packets import drain, each_lane, element_at, fill, lane_of, lanes, packet_type, set_lane

_TURNS: Final = 2
_LEAST_LANES: Final = 2
_FEW: Final = 8
"""Below one in so many of the threads that a device runs at a time, packets are halved: it has threads enough to wait
for, and each is done sooner."""
_MANY_OPS: Final = 16
"""Ops beyond which computing takes longer than reading: then a thread takes one packet, and compiling less time."""


def loop(region: Region, inputs: Inputs, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of a loop region of at least one element."""
    shape = region.graph.calls[region.nodes[0]].spec.shape
    total = prod(shape)
    dims = dimensions(shape, inputs.shapes) or [Dimension(1, (0,) * len(inputs.shapes), 1)]
    outputs = [region.graph.calls[e].spec.dtype for e in region.outputs]
    count = lanes(dims, (*inputs.dtypes, *outputs))
    while count > _LEAST_LANES and total // count < target.units * target.group // _FEW:
        count //= 2
    items = -(-total // count)
    plenty = items >= 4 * target.units * target.group and len(region.nodes) <= _MANY_OPS
    turns = _TURNS if plenty else 1
    k = CBuilder(dialect, total + count)
    _LoopKernel(inputs, dims, k, count, turns).write(region, items, total, target.group)
    started = -(-items // (target.group * turns)) * target.group
    return assembled(k, inputs.dtypes, outputs, started, target.group)


class _LoopKernel:
    """Writes one loop."""

    def __init__(self, inputs: Inputs, dims: list[Dimension], k: CBuilder, count: int, turns: int) -> None:
        self.inputs, self.dims, self.k, self.sizes, self.count, self.turns = inputs, dims, k, k.sizes, count, turns
        self.inner = dims[-1]
        self.numbers = [n for n in range(len(inputs.entries)) if not any(d.strides[n] for d in dims)]
        """The inputs that are the same everywhere."""
        self.moving = [n for n in range(len(inputs.entries)) if self.inner.strides[n]]
        """The inputs that packets are read of; those in neither list have one element for a whole packet."""

    def write(self, region: Region, items: int, total: int, group: int) -> None:
        """The body of the kernel."""
        k, count, d, ctype = self.k, self.count, self.k.dialect, self.sizes.ctype
        most = self.sizes(items)
        end = self.sizes(total) if total % count else None
        start = k.let(ctype, f"({ctype})({d.group_id}) * {group * self.turns} + {d.local_id}")
        fixed = {n: element_at(k, self.inputs.dtypes[n], f"a{n}", "0") for n in self.numbers}
        for n, dtype in enumerate(self.inputs.dtypes):
            if n not in fixed:
                k.say(f"{packet_type(k, dtype, self._width(n))} p{n}[{self.turns}]")
        with k.each("turn", self.turns):
            item = k.let(ctype, f"{start} + turn * {group}")
            with k.block(f"if ({item} < {most})"):
                places = self._places(item)
                for n, dtype in enumerate(self.inputs.dtypes):
                    if n not in fixed:
                        partly = end if n in self.moving else None
                        fill(k, dtype, self._width(n), f"p{n}[turn]", f"a{n}", places[n], partly)
        with k.each("turn", self.turns):
            item = k.let(ctype, f"{start} + turn * {group}")
            with k.block(f"if ({item} < {most})"):
                at = k.let(ctype, f"{item} * {count}")
                self._compute(region, lambda n: fixed.get(n) or self._read(n), at, end)

    def _compute(self, region: Region, read: Callable[[int], Value], at: str, end: str | None) -> None:
        k, count = self.k, self.count
        dtypes = [region.graph.calls[e].spec.dtype for e in region.outputs]
        for n, dtype in enumerate(dtypes):
            k.say(f"{packet_type(k, dtype, count)} q{n}")
        with each_lane(k, count):
            values = evaluated(region, region.nodes, k, lambda e: read(self.inputs.entries.index(e)))
            for n, entry in enumerate(region.outputs):
                set_lane(k, f"q{n}", values[entry])
        for n, dtype in enumerate(dtypes):
            drain(k, dtype, count, f"q{n}", f"b{n}", at, end)

    def _width(self, n: int) -> int:
        return self.count if n in self.moving else 1

    def _read(self, n: int) -> Value:
        dtype, packet = self.inputs.dtypes[n], f"p{n}[turn]"
        if n in self.moving:
            return lane_of(self.k, dtype, packet)
        return element_at(self.k, dtype, f"{packet}.lane", "0")

    def _places(self, item: str) -> list[str]:
        """Where a thread's elements begin, per input."""
        k, sizes, ctype = self.k, self.sizes, self.sizes.ctype
        if len(self.dims) == 1:
            return [k.let(ctype, f"{item} * {self.count}")] * len(self.inputs.entries)
        per_row = sizes(self.inner.size // self.count)
        row = k.let(ctype, f"{item} / {per_row}")
        at = k.let(ctype, f"({item} - {row} * {per_row}) * {self.count}")
        outer = self.dims[:-1]
        starts = offsets(decomposed(k, ctype, row, outer, sizes), outer, len(self.inner.strides), sizes)
        pairs = zip(starts, self.inner.strides, strict=False)
        return [k.let(ctype, f"{start} + {at}" if stride else start) for start, stride in pairs]
