"""Control flow without the outputs that nothing reads, and without what only these need.

The gradient of a loop has a sum for every tensor that the loop closes over, numbers included. Most of them are read by
nobody, and need not be computed in every iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from ..._graph.graph import Graph
from ..._tensor.node import Call

Narrowed = tuple[list[int], list[int], dict[str, Any]]
"""The inputs and the outputs that are left, by position, and the new attributes."""


def needed(graph: Graph, outputs: Iterable[int]) -> set[int]:
    """The inputs, by position, that some outputs, by position, depend on."""
    alive = {graph.outputs[o] for o in outputs}
    for entry in range(len(graph.calls) - 1, -1, -1):
        if entry in alive:
            alive.update(graph.args[entry])
    return {n for n, entry in enumerate(graph.inputs) if entry in alive}


def restricted(graph: Graph, inputs: Iterable[int], outputs: Iterable[int]) -> Graph:
    """The graph with some of its inputs and outputs, by position."""
    given = [graph.inputs[n] for n in inputs]
    wanted = [graph.outputs[n] for n in outputs]
    alive = set(wanted)
    for entry in range(len(graph.calls) - 1, -1, -1):
        if entry in alive:
            alive.update(graph.args[entry])
    kept = [*given, *sorted(alive - set(given))]
    new = {old: n for n, old in enumerate(kept)}
    return Graph(
        tuple([graph.calls[e] for e in kept]),
        tuple([tuple([new[a] for a in graph.args[e]]) for e in kept]),
        tuple([new[o] for o in wanted]),
    )


def narrowed_scan(call: Call, read: Collection[int]) -> Narrowed:
    """A scan: carries are left as long as an output that is read, or another carry that is left, depends on them."""
    body, carries, rows = call.attrs["body"], call.attrs["carries"], call.attrs["rows"]
    first = len(call.inputs) - rows - carries
    outputs = set(read)
    while True:
        inputs = needed(body, outputs)
        more = outputs | {n - first for n in inputs if first <= n < first + carries}
        if more == outputs:
            break
        outputs = more
    carry = [n for n in range(carries) if n in outputs]
    left_in = sorted(inputs | {first + n for n in carry})
    left_out = sorted(outputs)
    attrs = {
        **call.attrs, "body": restricted(body, left_in, left_out), "carries": len(carry),
        "rows": sum(n >= first + carries for n in left_in),
    }  # fmt: skip
    return left_in, left_out, attrs


def narrowed_while(call: Call, read: Collection[int]) -> Narrowed:
    """A while loop: carries are left as long as the condition, or a carry that is left, depends on them."""
    condition, body = call.attrs["condition"], call.attrs["body"]
    first = len(call.inputs) - len(call.outputs)
    tested = needed(condition, [0])
    outputs = set(read) | {n - first for n in tested if n >= first}
    while True:
        inputs = needed(body, outputs) | tested
        more = outputs | {n - first for n in inputs if n >= first}
        if more == outputs:
            break
        outputs = more
    left_out = sorted(outputs)
    left_in = sorted(inputs | {first + n for n in outputs})
    graphs = {"condition": restricted(condition, left_in, [0]), "body": restricted(body, left_in, left_out)}
    return left_in, left_out, graphs


def narrowed_cond(call: Call, read: Collection[int]) -> Narrowed:
    """A branch: the inputs that an output that is read depends on in one of the branches."""
    graphs = {name: call.attrs[name] for name in ("true", "false")}
    left_out = sorted(read)
    inside = sorted(set().union(*[needed(graph, left_out) for graph in graphs.values()]))
    attrs = {name: restricted(graph, inside, left_out) for name, graph in graphs.items()}
    return [0, *[n + 1 for n in inside]], left_out, attrs
