"""Graph → regions: the device-neutral pieces that are placed and compiled.

A region is one op here; `join` makes one region of several neighbours when placement has put them on one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from .graph import Graph
from .op import OpKind, constant, embedded, leaf


class RegionKind(Enum):
    """How a region is compiled."""

    LOOP = "loop"
    """Elementwise work: generated from scalar rules."""
    CONTRACTION = "contraction"
    """A product."""
    OPAQUE = "opaque"
    """One op that is a piece of its own: a sort, a decomposition, a movement."""
    SEQUENCE = "sequence"
    """Neighbours on one device, compiled as one unit."""


@dataclass(frozen=True, slots=True)
class Region:
    """Some entries of a graph, with what goes in and what comes out. Constants belong to every region that has them."""

    graph: Graph
    kind: RegionKind
    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        names = [self.graph.calls[n].op.name for n in self.nodes]
        return "+".join(names) if len(names) <= 8 else "+".join(names[:7]) + f"+… ({len(names)} ops)"


def is_constant(graph: Graph, entry: int) -> bool:
    """Whether the entry is a number or array of the graph's own."""
    return graph.calls[entry].op in (constant, embedded)


def fuse(graph: Graph) -> list[Region]:
    """The regions of a graph, in an order in which they can run."""
    regions = []
    outputs = set(graph.outputs)
    for i, call in enumerate(graph.calls):
        if call.op is leaf or (is_constant(graph, i) and i not in outputs):
            continue
        if call.op.scalar is not None:
            kind = RegionKind.LOOP
        elif call.op.kind is OpKind.LINEAR_ALGEBRA and call.op.name in ("matmul", "einsum"):
            kind = RegionKind.CONTRACTION
        else:
            kind = RegionKind.OPAQUE
        inputs = tuple(dict.fromkeys(a for a in graph.args[i] if not is_constant(graph, a)))
        regions.append(Region(graph, kind, (i,), inputs, (i,)))
    return regions


def join(regions: Sequence[Region], needed_later: Iterable[int]) -> Region:
    """Neighbouring regions as one. Its outputs are those of its entries that are `needed_later`."""
    if len(regions) == 1:
        return regions[0]
    nodes = tuple(n for r in regions for n in r.nodes)
    inside = set(nodes)
    inputs = tuple(dict.fromkeys(i for r in regions for i in r.inputs if i not in inside))
    later = set(needed_later)
    return Region(regions[0].graph, RegionKind.SEQUENCE, nodes, inputs, tuple(n for n in nodes if n in later))
