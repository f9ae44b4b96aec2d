"""Control flow under a tolerance: products and sums in the bodies of loops and branches are computed in float64.

A loop or branch is one region. A product inside it is not a step, so no certificate can be read after it, and nothing
could be computed again. In float64, rounded in the end, its error is the least there is.
"""

from __future__ import annotations

from dataclasses import replace

from .._graph.float64 import WIDER, in_float64
from .._graph.graph import Graph
from .._schedule.fuse import Region, RegionKind, multiplies
from .._tensor.node import Call
from .._tensor.op import convert, leaf
from .._tensor.role import Control
from .certificate import delicate_sums


def precise_bodies(graph: Graph) -> Graph:
    """The graph with the float32 products and sums of its control flow in float64."""
    if not any(isinstance(call.op.role, Control) for call in graph.calls):
        return graph
    return replace(graph, calls=tuple(map(_precise, graph.calls)))


def _precise(call: Call) -> Call:
    role = call.op.role
    if not isinstance(role, Control):
        return call
    bodies = {name: _precise_body(call.attrs[name]) for name in role.bodies}
    return call.op.call(call.inputs, {**call.attrs, **bodies})


def _precise_body(body: Graph) -> Graph:
    body = precise_bodies(body)
    nodes = tuple([n for n, call in enumerate(body.calls) if call.op is not leaf])
    products = [n for n in nodes if multiplies(body.calls[n]) and body.calls[n].spec.dtype in WIDER]
    widened = {*products, *delicate_sums(Region(body, RegionKind.SEQUENCE, nodes, body.inputs, body.outputs))}
    if not widened:
        return body
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []

    def put(call: Call, *given: int) -> int:
        calls.append(call)
        args.append(given)
        return len(calls) - 1

    def converted(entry: int) -> int:
        own = calls[entry].spec
        return put(convert.call((own,), {"dtype": WIDER[own.dtype]}), entry) if own.dtype in WIDER else entry

    at: list[int] = []
    for n, call in enumerate(body.calls):
        given = [at[a] for a in body.args[n]]
        if n in widened:
            given = [converted(g) for g in given]
            made = put(in_float64(call, [calls[g] for g in given]), *given)
            at.append(put(convert.call((calls[made].spec,), {"dtype": call.spec.dtype}), made))
        else:
            at.append(put(call, *given))
    return Graph(tuple(calls), tuple(args), tuple([at[o] for o in body.outputs]))
