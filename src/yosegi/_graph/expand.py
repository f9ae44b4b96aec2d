"""Graph → graph in which composites are decomposed; `_run/evaluate` calls it for graphs that have any.

A composite that a device of the chain runs natively stays. Simplification comes after: it folds and shares the parts,
so a value that a composite computes and that its gradient computes again is computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .._place.candidates import candidates_for, refusal
from .._place.plan import Schedule
from .._run.device import Device
from .._schedule.fuse import Region, RegionKind, attends, is_constant
from .._tensor.composite import decomposed
from .._tensor.node import Call
from .._tensor.op import leaf_call, pick
from .._tensor.precision import IN_FULL, Policy, Precision
from .._tensor.role import Control, Passed
from .graph import Graph, bodies_of
from .simplify import simplify


def expand(graph: Graph, chain: Sequence[Device], policy: Policy = IN_FULL) -> Graph:
    """The graph with every composite decomposed that no device of the chain runs natively."""
    return _ExpandedGraph(chain, policy).expanded(graph)


def _with_plain_bodies(call: Call) -> Call:
    """Control flow with the composites of its bodies decomposed: no device runs them natively there."""
    role = call.op.role
    if not isinstance(role, Control) or not any(body.has_composites for body in bodies_of(call)):
        return call
    bodies = {name: expand(call.attrs[name], ()) for name in role.bodies}
    return call.op.call(call.inputs, {**call.attrs, **{n: replace(g, origins=()) for n, g in bodies.items()}})


class _ExpandedGraph:
    """The graph being written."""

    def __init__(self, chain: Sequence[Device], policy: Policy) -> None:
        self.chain, self.policy = chain, policy
        self.calls: list[Call] = []
        self.args: list[tuple[int, ...]] = []
        self.origins: list[str] = []

    def expanded(self, graph: Graph) -> Graph:
        """A graph, expanded. Of a composite with several outputs that is an output, each is one."""
        at: list[tuple[int, ...]] = []
        whole = [c.op.decomposition is not None and is_taken_whole(c, self.chain, self.policy) for c in graph.calls]
        computed = {part for n in range(len(whole)) if not whole[n] for part in _composite_parts(graph, n)}
        for n, (call, args) in enumerate(zip(graph.calls, graph.args, strict=True)):
            is_whole = whole[n] and computed.isdisjoint(_composite_parts(graph, n))
            at.append(self._put(call, [at[a] for a in args], is_whole=is_whole))
        outputs = tuple([entry for o in graph.outputs for entry in at[o]])
        return Graph(tuple(self.calls), tuple(self.args), outputs, tuple(self.origins))

    def _put(
        self, call: Call, args: Sequence[tuple[int, ...]], origin: str = "", *, is_whole: bool | None = None
    ) -> tuple[int, ...]:
        """The entry that has the value of this call, or the entries of a decomposition's outputs."""
        if call.op is pick and len(args[0]) > 1:
            return (args[0][call.attrs["index"]],)
        if is_whole is None:
            is_whole = is_taken_whole(call, self.chain, self.policy)
        if call.op.decomposition is None or is_whole:
            self.calls.append(_with_plain_bodies(call))
            self.args.append(tuple([entry for (entry,) in args]))
            self.origins.append(origin)
            return (len(self.calls) - 1,)
        parts = decomposed(call)
        at = list(args)
        for inner, inputs in parts.steps:
            at.append(self._put(inner, [at[i] for i in inputs], origin or call.op.name))
        return tuple([entry for o in parts.outputs for entry in at[o]])


def _composite_parts(graph: Graph, entry: int) -> Iterator[tuple[Call, tuple[int, ...]]]:
    """The composites in the decomposition of a composite that read its inputs alone, and the entries that they read.
    Where one of them is computed anyway, as attention's scores are for its gradient, the rest costs less than a second
    computation."""
    call, args = graph.calls[entry], graph.args[entry]
    if call.op.decomposition is None:
        return
    for inner, inputs in decomposed(call).steps:
        if inner.op.decomposition is not None and all(i < len(args) for i in inputs):
            yield inner, tuple([_source(graph, args[i]) for i in inputs])


def _source(graph: Graph, entry: int) -> int:
    """The entry whose value an entry passes on."""
    while isinstance(graph.calls[entry].op.role, Passed):
        (entry,) = graph.args[entry]
    return entry


def is_taken_whole(call: Call, chain: Sequence[Device], policy: Policy = IN_FULL) -> bool:
    """True if a device of the chain runs this composite call natively: in fewer bits, where these are admitted, because
    the products of its decomposition can. Under a tolerance none does, for only products are certified."""
    if policy.tolerance is not None or (policy.precisions and not attends(call)):
        return False
    having = [d for d in chain if call.op.name in d.limits.natives]
    if not having:
        return False
    inputs = tuple(range(len(call.inputs)))
    calls = (*[leaf_call(s) for s in call.inputs], call)
    last = len(inputs)
    alone = Graph(calls, (*[()] * last, inputs), (last,))
    region = Region(alone, RegionKind.OPAQUE, (last,), inputs, (last,))
    if policy.precisions:
        return any(c.precision is not Precision.FULL for c in candidates_for(region, having, policy)[0])
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
    """True if composites were kept for devices that received none of them. Other devices compute them decomposed."""
    homes = [(s.device, c.op) for s in schedule.steps for c in s.region.calls if c.op.decomposition is not None]
    return bool(homes) and not any(op.name in device.limits.natives for device, op in homes)
