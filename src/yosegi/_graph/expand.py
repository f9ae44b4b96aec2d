"""Graph → graph in which composites are decomposed; `_run/evaluate` calls it for graphs that have any.

A composite that a device of the chain runs natively stays. Simplification comes after: it folds and shares the parts,
so a value that a composite computes and that its gradient computes again is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .._place.candidates import refusal
from .._place.plan import Schedule
from .._run.device import Device
from .._schedule.fuse import Region, RegionKind, is_constant
from .._tensor.composite import decomposed
from .._tensor.node import Call
from .._tensor.op import leaf_call
from .._tensor.role import Control
from .graph import Graph, bodies_of
from .simplify import simplify


def expand(graph: Graph, chain: Sequence[Device]) -> Graph:
    """The graph with every composite decomposed that no device of the chain runs natively."""
    writer = _ExpandedGraph(chain)
    at: list[int] = []
    for call, args in zip(graph.calls, graph.args, strict=True):
        at.append(writer.put(call, tuple([at[a] for a in args])))
    outputs = tuple([at[o] for o in graph.outputs])
    return Graph(tuple(writer.calls), tuple(writer.args), outputs, tuple(writer.origins))


def _with_plain_bodies(call: Call) -> Call:
    """Control flow with the composites of its bodies decomposed: no device runs them natively there."""
    role = call.op.role
    if not isinstance(role, Control) or not any(body.has_composites for body in bodies_of(call)):
        return call
    bodies = {name: expand(call.attrs[name], ()) for name in role.bodies}
    return call.op.call(call.inputs, {**call.attrs, **{n: replace(g, origins=()) for n, g in bodies.items()}})


class _ExpandedGraph:
    """The graph being written."""

    def __init__(self, chain: Sequence[Device]) -> None:
        self.chain = chain
        self.calls: list[Call] = []
        self.args: list[tuple[int, ...]] = []
        self.origins: list[str] = []

    def put(self, call: Call, args: tuple[int, ...], origin: str = "") -> int:
        """The entry that has the value of this call."""
        if call.op.decomposition is None or is_taken_whole(call, self.chain):
            self.calls.append(_with_plain_bodies(call))
            self.args.append(args)
            self.origins.append(origin)
            return len(self.calls) - 1
        parts = decomposed(call)
        at = list(args)
        for inner, inputs in parts.steps:
            at.append(self.put(inner, tuple([at[i] for i in inputs]), origin or call.op.name))
        return at[parts.output]


def is_taken_whole(call: Call, chain: Sequence[Device]) -> bool:
    """True if a device of the chain runs this composite call natively."""
    having = [d for d in chain if call.op.name in d.limits.natives]
    if not having:
        return False
    inputs = tuple(range(len(call.inputs)))
    calls = (*[leaf_call(s) for s in call.inputs], call)
    last = len(inputs)
    alone = Graph(calls, (*[()] * last, inputs), (last,))
    region = Region(alone, RegionKind.OPAQUE, (last,), inputs, (last,))
    return any(refusal(device, region) is None for device in having)


def in_parts(region: Region) -> Region:
    """A region with its composites decomposed, in a graph of its own."""
    read = dict.fromkeys(a for n in region.nodes for a in region.graph.args[n])
    constants = [a for a in read if a not in region.inputs and a not in region.nodes and is_constant(region.graph, a)]
    entries = (*region.inputs, *constants, *region.nodes)
    at = {entry: n for n, entry in enumerate(entries)}
    calls = [leaf_call(region.graph.calls[e].spec) if e in region.inputs else region.graph.calls[e] for e in entries]
    args = [() if e in region.inputs else tuple([at[a] for a in region.graph.args[e]]) for e in entries]
    graph = simplify(expand(Graph(tuple(calls), tuple(args), tuple([at[o] for o in region.outputs])), ()))
    inputs = graph.inputs
    shown = {*graph.outputs}
    # Numbers of the graph's own are no work: as steps they would stand between ops that can be one kernel.
    nodes = tuple(n for n in range(len(graph.calls)) if n not in inputs and (n in shown or not is_constant(graph, n)))
    return Region(
        graph, RegionKind.SEQUENCE, nodes, inputs, graph.outputs, repeats=region.repeats, precision=region.precision
    )


def is_whole_in_vain(schedule: Schedule) -> bool:
    """Whether composites stayed whole for devices none of which got any in the end: in parts, others do them better."""
    homes = [(s.device, c.op) for s in schedule.steps for c in s.region.calls if c.op.decomposition is not None]
    return bool(homes) and not any(op.name in device.limits.natives for device, op in homes)
