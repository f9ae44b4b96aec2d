"""The graph of a traced function: its arguments are inputs, tensors from outside are constants."""

from __future__ import annotations

from typing import Any

from .._graph.graph import Graph, capture, graph_of
from .._run.memory import Buffer
from .._tensor.interchange import sealed
from .._tensor.node import Call, Node, evaluate, fetch, in_order
from .._tensor.op import embedded


def graph_of_trace(roots: list[Node], given: list[Node]) -> Graph:
    """The graph from the given nodes, which are its inputs in this order, to the roots.

    Values that come from outside the trace are constants of the graph.
    """
    _evaluate_outside(roots, set(given))
    for node in given:
        node.buffer = Buffer(None)  # for capture, it is a value that exists
    try:
        key, leaves, _ = capture(roots)
    finally:
        for node in given:
            node.buffer = None  # code that keeps it beyond the trace must not find a value
    graph = graph_of(key)
    calls = [node.call for node in given]
    args: list[tuple[int, ...]] = [()] * len(given)
    source_of = dict(zip(graph.inputs, leaves, strict=True))
    place_of = {node: i for i, node in enumerate(given)}
    new: list[int] = []
    for entry, call in enumerate(graph.calls):
        source = source_of.get(entry)
        if source in place_of:
            new.append(place_of[source])
            continue
        if source is not None:
            call = Call(embedded, {"array": _constant(source)}, (), call.outputs)
        new.append(len(calls))
        calls.append(call)
        args.append(tuple([new[a] for a in graph.args[entry]]))
    return Graph(tuple(calls), tuple(args), tuple(new[o] for o in graph.outputs[: len(roots)]))


def _constant(source: Node) -> Any:
    return source.buffer.data if len(source.call.outputs) > 1 else sealed(fetch(source))  # type: ignore[union-attr]


def _evaluate_outside(roots: list[Node], given: set[Node]) -> None:
    """Compute the values from outside that the trace reads, so that no replay computes them again.

    Values made from nothing (zeros, ranges) are left to the plan, which may never need them in memory.
    """
    traced: dict[Node, bool] = {}
    outside: dict[Node, bool] = {}
    frontier: set[Node] = set()
    for node in in_order(roots, _pending_inputs):
        inputs = _pending_inputs(node)
        traced[node] = node in given or any(traced[i] for i in inputs)
        outside[node] = node.buffer is not None or any(outside[i] for i in inputs)
        if traced[node]:
            frontier.update(i for i in inputs if outside[i] and not traced[i])
    frontier.update(r for r in roots if outside[r] and not traced[r])
    evaluate([n for n in frontier if n.buffer is None])


def _pending_inputs(node: Node) -> tuple[Node, ...]:
    inputs = node.inputs  # before buffer: see Node
    return () if node.buffer is not None else inputs
