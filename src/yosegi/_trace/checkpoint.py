"""`stop_gradient`, and `checkpoint`: intermediate values that the backward pass computes again.

A checkpointed function is computed as always. Its backward pass does not read the intermediate values: it computes them
again from the arguments. Two things keep this apart from the first computation. The arguments go through `barrier`, so
that simplification does not find the same expression; and `barrier` waits for the cotangent, so that the values are not
computed again before they are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .._graph.graph import Graph
from .._tensor.batch import Flags, applied
from .._tensor.node import Call, Node, spec
from .._tensor.op import Arr, Op, OpKind, flat, leaf, leaf_call, number, op
from .._tensor.role import Passed
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten, tree_map, unflatten
from ..ops.creation import asarray
from ..ops.shape import reshape
from . import guarded
from .guarded import Cotangents
from .objects import given
from .reverse import pull_back, record, variable
from .tracing import is_recording


@op(OpKind.MOVEMENT, infer=lambda x: x, vjp=flat, scalar=lambda k, x: x, role=Passed())
def stopped(x: Arr, /) -> Arr:
    """The value itself; no gradient flows through it."""
    return x


def stop_gradient(x: Any, /) -> Any:
    """Return a value through which no gradient flows.

    Parameters
    ----------
    x : Tensor, array, number, or tree of these
        The value.

    Returns
    -------
    Tensor or tree of tensors
        The same value. Transforms take it for a constant.

    Examples
    --------
    >>> import yosegi as ys
    >>> float(ys.grad(lambda x: x * ys.stop_gradient(x))(ys.asarray(3.0)))
    3.0
    """
    return tree_map(lambda leaf: stopped(asarray(leaf)), x)


def _barrier_batch(op: Op[Any], batched: Flags, x: Tensor, after: Tensor) -> Any:
    """Any example's `after` is as good as all: what all examples share is not repeated for it."""
    return applied(op, [x, after[0] if batched[1] else after], {})


@op(OpKind.MOVEMENT, infer=lambda x, after: spec(x.shape, x.dtype), vjp=lambda g, out, x, after: (g, None),
    scalar=lambda k, x, after: x, batch=_barrier_batch)  # fmt: skip
def barrier(x: Arr, after: Arr, /) -> Arr:
    """The value itself, which is not computed before `after`, a number."""
    return x


@op(OpKind.MOVEMENT, infer=guarded.infer, vjp=guarded.vjp, batch=guarded.batch, role=Passed(is_guarded=True),
    jvp=lambda tangents, out, *inputs, count, rule: tangents[:count])  # fmt: skip
def recomputed(*inputs: Arr, count: int, rule: Any) -> Arr:
    """Values that the backward pass computes again."""
    return guarded.body(*inputs, count=count, rule=rule)


@dataclass(frozen=True, slots=True)
class _Again:
    """The backward rule of a function that is computed again."""

    graph: Graph
    """The function: of its arguments, then of the values from outside that it uses."""
    arguments: int

    def __call__(self, cotangents: tuple[Tensor, ...], inputs: tuple[Tensor, ...], /) -> Cotangents:
        after = _first_element(cotangents)
        late = [barrier(x, after) for x in inputs[: self.arguments]]
        own = [variable(x)._node for x in (*late, *inputs[self.arguments :])]
        outputs = _computed(self.graph, own)
        flowing = [(o, g) for o, g in zip(outputs, cotangents, strict=True) if o.spec.dtype.is_inexact]
        nodes, gs = [o for o, _ in flowing], [g for _, g in flowing]
        return tuple(pull_back(record(nodes, own), nodes, gs, own))


def _first_element(tensors: Sequence[Tensor]) -> Tensor:
    for t in tensors:
        if t.size:
            return reshape(t, (-1,))[0]
    return number(0, tensors[0].dtype)


def _computed(graph: Graph, inputs: Sequence[Node]) -> list[Node]:
    """The outputs of a graph as an expression of its inputs."""
    given = iter(inputs)
    nodes: list[Node] = []
    for call, args in zip(graph.calls, graph.args, strict=True):
        nodes.append(next(given) if call.op is leaf else Node(call, tuple([nodes[a] for a in args])))
    return [nodes[o] for o in graph.outputs]


def _graph_from(variables: Sequence[Node], outputs: Sequence[Node]) -> tuple[Graph, list[Node]]:
    """The graph from the variables to the outputs, and the values from outside that are its further inputs."""
    tape = record(outputs, variables)
    inside = {*variables, *[node for node, _ in tape]}
    outside = dict.fromkeys(i for i in (*[i for _, inputs in tape for i in inputs], *outputs) if i not in inside)
    at: dict[Node, int] = {node: n for n, node in enumerate((*variables, *outside))}
    calls: list[Call] = [leaf_call(node.spec) for node in at]
    args: list[tuple[int, ...]] = [()] * len(calls)
    for node, inputs in tape:
        at[node] = len(calls)
        calls.append(node.call)
        args.append(tuple([at[i] for i in inputs]))
    return Graph(tuple(calls), tuple(args), tuple([at[o] for o in outputs])), list(outside)


@short_tracebacks
def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose intermediate values are not kept for the backward pass, which computes them again.

    This saves memory for time. Values and gradients do not change. Tensors that the function reads from an enclosing
    scope get their gradients, too. Random draws are the same in both computations.

    Parameters
    ----------
    function : callable
        A function that returns tensors, or nested tuples, lists and dicts of tensors.

    Returns
    -------
    callable
        A function with the same arguments and results.

    Examples
    --------
    >>> import yosegi as ys
    >>> layer = ys.checkpoint(lambda x: ys.tanh(ys.sin(x) ** 2))
    >>> round(float(ys.grad(lambda x: layer(layer(x)))(ys.asarray(1.0))), 4)
    0.4828
    """

    def wrapped(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if not is_recording():
            return function(*args, **kwargs)
        leaves, structure = flatten((args, kwargs))
        places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[n]._node for n in places]
        variables = [variable(Tensor(t))._node for t in tensors]
        for n, v in zip(places, variables, strict=True):
            leaves[n] = Tensor(v)
        inner, keywords = unflatten(structure, leaves)
        results, shape = flatten(function(*inner, **keywords))
        found = [n for n, result in enumerate(results) if isinstance(result, Tensor)]
        outputs = [results[n]._node for n in found]
        if not outputs or not variables:
            return unflatten(shape, results)
        graph, outside = _graph_from(variables, outputs)
        inputs = [Tensor(n) for n in (*outputs, *tensors, *outside)]
        made = applied(recomputed, inputs, {"count": len(outputs), "rule": _Again(graph, len(tensors))})
        for n, result in zip(found, made if isinstance(made, tuple) else (made,), strict=True):
            results[n] = result
        return unflatten(shape, results)

    return given("checkpoint", wrapped, function)
