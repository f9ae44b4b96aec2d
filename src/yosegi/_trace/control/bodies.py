"""Bodies: functions of trees, traced once into graphs that are attributes of an op.

A body is run on placeholders. Tensors that it reads from an enclosing scope, and numbers that are data, become inputs
of its graph: nothing of a graph but its structure is part of it, so that two traces of one function are equal. What
does not depend on the placeholders is computed before the loop, not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..._graph.graph import Graph
from ..._tensor.dtype import number_type
from ..._tensor.node import Node, Spec, in_order, spec
from ..._tensor.op import convert, leaf, leaf_call
from ..._tensor.tensor import Tensor
from ..._tensor.tree import Structure, difference, flatten, paths, unflatten
from ...errors import ArgumentError, DTypeError, TraceError, UserError
from ...ops import rules
from ...ops.creation import asarray
from ..tracing import Feed, tracing

Compiled = Callable[[Graph], Callable[..., list[Any]]]
"""Makes a function of arrays of a graph."""


@dataclass(frozen=True, slots=True)
class Leaves:
    """A tree of tensors, flat."""

    tree: Any
    tensors: list[Tensor]
    structure: Structure
    paths: list[str]
    """Where each tensor stands, as the user writes it."""
    is_number: list[bool]
    """Which of them were Python numbers: these take on the dtype that the body gives them."""

    @property
    def specs(self) -> list[Spec]:
        """Shapes and dtypes; those of numbers follow the tensors that they meet."""
        return [
            spec((), t.dtype, weak=True) if n else t._node.spec
            for t, n in zip(self.tensors, self.is_number, strict=True)
        ]

    def with_dtypes(self, results: Sequence[Node]) -> Leaves:
        """The arguments with tensors in place of numbers, in the dtypes that the body has given them."""
        tensors = [
            t.astype(r.spec.dtype) if n else t for t, r, n in zip(self.tensors, results, self.is_number, strict=False)
        ]
        return replace(self, tensors=tensors, is_number=[False] * len(tensors))


def leaves_of(name: str, tree: Any, root: str) -> Leaves:
    """The tensors of a tree. Raises `DTypeError` with the path of a leaf that is none."""
    values, structure = flatten(tree)
    where = paths(tree, root)
    tensors = []
    for value, path in zip(values, where, strict=True):
        try:
            tensors.append(_strong(asarray(value)))
        except UserError as error:
            raise DTypeError(
                f"[{name}] expected tensors and numbers, got {type(value).__name__} at {path}; close over it"
            ) from error
    return Leaves(tree, tensors, structure, where, [number_type(v) in (int, float, complex) for v in values])


def _strong(t: Tensor) -> Tensor:
    """The tensor with a dtype of its own: one that is a number of a trace would change it with its surroundings."""
    return Tensor(convert._node((t,), {"dtype": t.dtype})) if t._node.spec.weak else t


@dataclass(frozen=True, slots=True)
class Body:
    """A function as an expression of placeholders."""

    placeholders: list[Node]
    results: list[Node]
    tree: Any
    """The results of the function."""
    structure: Structure
    closure: list[Node]
    """The nodes that it reads beside the placeholders."""
    feeds: list[tuple[Node, Feed]]
    """Those of the closure that are made anew when a trace is replayed."""

    def graph(self, closure: Sequence[Node], results: Sequence[Node] | None = None) -> Graph:
        """The graph with the closure, then the placeholders as inputs."""
        return graph_from([*closure, *self.placeholders], self.results if results is None else results)


def traced(name: str, role: str, function: Callable[..., Any], *trees: tuple[Structure, Sequence[Spec]]) -> Body:
    """A function run on placeholders, one for each spec of its arguments.

    Raises `TraceError` if it asks for a value that a placeholder has not. `name` and `role` are the user's words for
    it: "scan" and "the function".
    """
    rules.function(name, function)
    given = [[Node(leaf_call(s), ()) for s in specs] for _, specs in trees]
    arguments = [unflatten(s, [Tensor(n) for n in nodes]) for (s, _), nodes in zip(trees, given, strict=True)]
    with tracing(name) as trace:
        tree = function(*arguments)
        results, structure = flatten(tree)
        tensors = [_result(name, role, value) for value in results]
    placeholders = [n for nodes in given for n in nodes]
    nodes = [t._node for t in tensors]
    return Body(placeholders, nodes, tree, structure, closure_of(nodes, placeholders), trace.feeds)


def _result(name: str, role: str, value: Any) -> Tensor:
    try:
        return _strong(asarray(value))
    except UserError as error:
        raise ArgumentError(
            f"[{name}] expected {role} to return tensors and numbers, in tuples, lists and dicts, got "
            f"{type(value).__name__}"
        ) from error


def closure_of(results: Sequence[Node], placeholders: Iterable[Node]) -> list[Node]:
    """The values from outside that the results need beside the placeholders: as much as possible of what depends on
    no placeholder is outside. Values made from nothing (zeros, ranges) stay inside."""
    own = set(placeholders)
    inside: dict[Node, bool] = {}
    outside: dict[Node, bool] = {}
    found: dict[Node, None] = {}
    for node in in_order(results, _pending_inputs):
        inputs = _pending_inputs(node)
        inside[node] = node in own or any(inside[i] for i in inputs)
        is_value = node.buffer is not None or node.call.op is leaf
        outside[node] = node not in own and (is_value or any(outside[i] for i in inputs))
        if inside[node]:
            found.update(dict.fromkeys(i for i in inputs if outside[i] and not inside[i]))
    found.update(dict.fromkeys(r for r in results if outside[r] and not inside[r]))
    return list(found)


def _pending_inputs(node: Node) -> tuple[Node, ...]:
    inputs = node.inputs  # before buffer: see Node
    return () if node.buffer is not None else inputs


def graph_from(inputs: Sequence[Node], results: Sequence[Node]) -> Graph:
    """The graph from some nodes, which are its inputs in this order, to others."""
    at = {node: n for n, node in enumerate(inputs)}
    calls = [leaf_call(n.spec) for n in inputs]
    args: list[tuple[int, ...]] = [()] * len(calls)
    for node in in_order(results, lambda n: () if n in at else n.inputs):
        if node not in at:
            calls.append(node.call)
            args.append(tuple([at[i] for i in node.inputs]))
            at[node] = len(calls) - 1
    return Graph(tuple(calls), tuple(args), tuple([at[r] for r in results]))


def applied(graph: Graph, inputs: Sequence[Node]) -> list[Node]:
    """The outputs of a graph as an expression of these nodes."""
    entries = iter(inputs)
    nodes: list[Node] = []
    for call, args in zip(graph.calls, graph.args, strict=True):
        nodes.append(next(entries) if call.op is leaf else Node(call, tuple([nodes[a] for a in args])))
    return [nodes[o] for o in graph.outputs]


def settled(
    name: str, role: str, carry: Leaves, trace: Callable[[Leaves], Body], part: Callable[[Body], tuple[Any, Structure]]
) -> tuple[Body, Leaves]:
    """A body that gives its carry anew, and the first carry in the dtypes that the body keeps: Python numbers take on
    those. `part` gives the carry among what the body returns, with its structure; its leaves come first.

    Raises `ArgumentError` if the body changes the structure, a shape or a dtype.
    """
    body = trace(carry)
    if body.feeds:
        raise _drawn(name, role)
    tree, structure = part(body)
    if structure != carry.structure:
        raise ArgumentError(
            f"[{name}] expected {role} to return a carry like the one it gets, got {difference(carry.tree, tree)}; "
            "return the same containers with the same keys"
        )
    if any(carry.is_number):
        return settled(name, role, carry.with_dtypes(body.results), trace, part)
    at = _first_mismatch(carry.specs, body.results)
    if at is None:
        return body, carry
    before, after = carry.specs[at], body.results[at].spec
    fix = "cast it, or begin with that dtype" if before.shape == after.shape else "keep its shape"
    raise ArgumentError(
        f"[{name}] expected {role} to return {before!r} at {carry.paths[at]}, as it gets it, got {after!r}; {fix}"
    )


def _first_mismatch(wanted: Sequence[Spec], results: Sequence[Node]) -> int | None:
    for n, (s, r) in enumerate(zip(wanted, results, strict=False)):
        if (s.shape, s.dtype) != (r.spec.shape, r.spec.dtype):
            return n
    return None


def without_draws(name: str, role: str, body: Body) -> Body:
    """The body. Raises `TraceError` if it draws random numbers."""
    if body.feeds:
        raise _drawn(name, role)
    return body


def _drawn(name: str, role: str) -> TraceError:
    return TraceError(
        f"[{name}] expected {role} to draw no random numbers, got a draw, which would be the same in every iteration; "
        "draw them before, and read one row in each iteration"
    )
