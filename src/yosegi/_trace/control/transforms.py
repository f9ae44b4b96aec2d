"""Bodies under transforms: for many examples at once, and with tangents."""

from __future__ import annotations

from collections.abc import Sequence

from ..._graph.graph import Graph
from ..._tensor.batch import Flags, spread
from ..._tensor.node import Node, spec
from ..._tensor.op import leaf_call
from ..._tensor.tensor import Tensor
from ...ops.creation import zeros
from ..batching import batched_outputs
from ..forward import push_forward
from ..reverse import record, variable
from .bodies import applied


def for_examples(graph: Graph, batched: Sequence[bool], inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a graph for all examples; inputs that are `batched` have the examples along dimension 0. An output
    that is the same for all comes without this dimension."""
    examples: dict[Node, Tensor] = {}
    nodes: list[Node] = []
    for entry, is_batched, value in zip(graph.inputs, batched, inputs, strict=True):
        nodes.append(Node(leaf_call(graph.calls[entry].spec), ()) if is_batched else value._node)
        if is_batched:
            examples[nodes[-1]] = value
    return batched_outputs(applied(graph, nodes), examples)


def spread_outputs(graph: Graph, made: Sequence[Tensor], wanted: Sequence[bool], size: int) -> list[Tensor]:
    """The outputs of a graph with the examples along dimension 0 where this is wanted."""
    return [
        spread(m, m.ndim > graph.calls[o].spec.ndim, size) if w else m
        for o, m, w in zip(graph.outputs, made, wanted, strict=True)
    ]


def batched_results(graph: Graph, batched: Sequence[bool], size: int) -> Flags:
    """Which outputs of a graph differ between examples, if these inputs do."""
    if not any(batched):
        return (False,) * len(graph.outputs)
    specs = [graph.calls[i].spec for i in graph.inputs]
    shapes = [(size, *s.shape) if b else s.shape for s, b in zip(specs, batched, strict=True)]
    given = [Tensor(Node(leaf_call(spec(n, s.dtype)), ())) for n, s in zip(shapes, specs, strict=True)]
    made = for_examples(graph, batched, given)
    return tuple([m.ndim > graph.calls[o].spec.ndim for o, m in zip(graph.outputs, made, strict=True)])


def settled_flags(graph: Graph, batched: Sequence[bool], carry: slice, size: int) -> tuple[list[bool], Flags]:
    """Which inputs and outputs of a body differ between examples, when its first outputs are its next carry: one that
    comes back different is so from the beginning."""
    flags = list(batched)
    while True:
        made = batched_results(graph, flags, size)
        grown = [a or b for a, b in zip(flags[carry], made, strict=False)]
        if grown == flags[carry]:
            return flags, (*grown, *made[len(grown) :])
        flags[carry] = grown


def with_tangents(
    graph: Graph, inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]
) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs of a graph, and the tangents of those of them that are inexact, zeros written out."""
    own = [i._node if t is None else variable(i)._node for i, t in zip(inputs, tangents, strict=True)]
    moving = {n: t for n, t in zip(own, tangents, strict=True) if t is not None}
    results = applied(graph, own)
    found = push_forward(record(results, list(moving)), results, moving)
    made = [
        zeros(r.spec.shape, dtype=r.spec.dtype) if t is None else t
        for r, t in zip(results, found, strict=True)
        if r.spec.dtype.is_inexact
    ]
    return [Tensor(r) for r in results], made


def written_out(inputs: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor]:
    """The tangents of inexact inputs, zeros written out."""
    return [
        zeros(i.shape, dtype=i.dtype) if t is None else t
        for i, t in zip(inputs, tangents, strict=True)
        if i.dtype.is_inexact
    ]


def spaced(values: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor | None]:
    """One value for each inexact tensor, `None` for each other one."""
    left = iter(values)
    return [next(left) if t.dtype.is_inexact else None for t in like]
