"""`cond`: one of two functions, chosen by a scalar."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import interpreter
from ..._tensor.batch import Flags, aligned, size_of, spread
from ..._tensor.dtype import bool_
from ..._tensor.node import Spec, spec
from ..._tensor.op import Arr, OpKind, convert, op
from ..._tensor.role import Control, Flow
from ..._tensor.tensor import Tensor
from ..._tensor.tracebacks import short_tracebacks
from ..._tensor.tree import difference, paths, unflatten
from ...errors import ArgumentError, ShapeError, UserError
from ...ops.creation import asarray
from ...ops.elementwise import where
from ..reverse import pull_back, record, variable
from ..tracing import fed_outside
from .bodies import Body, Compiled, applied, leaves_of, traced
from .narrowing import narrowed_cond
from .transforms import batched_results, for_examples, spaced, spread_outputs, with_tangents


def plain(specs: Sequence[Spec]) -> list[Any]:
    """Shapes and dtypes, in a form that can be compared."""
    return [(s.shape, s.dtype) for s in specs]


def _cond_rule(pred: Spec, *inputs: Spec, true: Graph, false: Graph) -> tuple[Spec, ...]:
    if pred.shape or pred.dtype is not bool_:
        raise ArgumentError(f"expected a scalar of dtype bool, got {pred!r}")
    for graph in (true, false):
        wanted = [graph.calls[i].spec for i in graph.inputs]
        if graph.inputs != tuple(range(len(inputs))) or plain(wanted) != plain(inputs):
            raise ArgumentError(f"expected branches of {list(inputs)}, got one of {wanted}")
    made, others = ([graph.calls[o].spec for o in graph.outputs] for graph in (true, false))
    if not made or plain(made) != plain(others):
        raise ArgumentError(f"expected branches that give the same, got {made} and {others}")
    return tuple([spec(s.shape, s.dtype) for s in made])


def _cond_vjp(g: Any, out: Any, pred: Tensor, *inputs: Tensor, true: Graph, false: Graph) -> list[Tensor | None]:
    """The gradient of the branch that was taken, which is computed again."""
    gs = g if isinstance(g, tuple) else (g,)
    flows = [t.dtype.is_inexact for t in inputs]
    outputs = [n for n, t in enumerate(gs) if t.dtype.is_inexact]

    def backward(graph: Graph) -> Callable[..., Any]:
        def run(given: Any, cotangents: Any) -> Any:
            own = [variable(t)._node if f else t._node for t, f in zip(given, flows, strict=True)]
            variables = [n for n, f in zip(own, flows, strict=True) if f]
            results = applied(graph, own)
            ends = [results[n] for n in outputs]
            return pull_back(record(ends, variables), ends, cotangents, variables)

        return run

    made = iter(cond(pred, backward(true), backward(false), list(inputs), [gs[n] for n in outputs]))
    return [None, *[next(made) if f else None for f in flows]]


def _cond_jvp(
    tangents: Sequence[Tensor | None], out: Any, pred: Tensor, *inputs: Tensor, true: Graph, false: Graph
) -> tuple[Tensor | None, ...]:
    """The tangent of the branch that is taken."""
    moving = [t is not None for t in tangents[1:]]

    def forward(graph: Graph) -> Callable[..., Any]:
        def run(given: Any, of_given: Any) -> Any:
            left = iter(of_given)
            return with_tangents(graph, given, [next(left) if m else None for m in moving])[1]

        return run

    given = [t for t in tangents[1:] if t is not None]
    made = cond(pred, forward(true), forward(false), list(inputs), given)
    return tuple(spaced(made, out if isinstance(out, tuple) else (out,)))


def _cond_batch(
    op: Any, batched: Flags, pred: Tensor, *inputs: Tensor, true: Graph, false: Graph
) -> tuple[Tensor, ...]:
    """Both branches for all examples, each element of the branch of its example; one branch, if all take the same."""
    size = size_of(batched, (pred, *inputs))
    graphs = (true, false)
    differs = [any(flags) for flags in zip(*[batched_results(g, batched[1:], size) for g in graphs], strict=True)]
    if batched[0]:
        one, other = (spread_outputs(g, for_examples(g, batched[1:], inputs), differs, size) for g in graphs)
        pairs = [(spread(a, d, size), spread(b, d, size)) for a, b, d in zip(one, other, differs, strict=True)]
        return tuple([where(aligned(pred, True, a.ndim - 1), a, b) for a, b in pairs])

    def branch(graph: Graph) -> Callable[..., Any]:
        return lambda given: spread_outputs(graph, for_examples(graph, batched[1:], given), differs, size)

    return tuple(cond(pred, branch(true), branch(false), list(inputs)))


def _drive_cond(compiled: Compiled, pred: Arr, /, *inputs: Arr, true: Graph, false: Graph) -> Arr:
    made = tuple([np.array(m) for m in compiled(true if pred else false)(*inputs)])  # they may be views of inputs
    return made if len(made) > 1 else made[0]


@op(OpKind.CONTROL, infer=_cond_rule, vjp=_cond_vjp, jvp=_cond_jvp, batch=_cond_batch, computes_half=True,
    role=Control(Flow.BRANCH, ("true", "false"), _drive_cond, narrowed_cond))  # fmt: skip
def _cond(pred: Arr, /, *inputs: Arr, true: Graph, false: Graph) -> Arr:
    """One of two graphs of the same inputs."""
    return _drive_cond(interpreter, pred, *inputs, true=true, false=false)


@short_tracebacks
def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], *operands: Any) -> Any:
    """Compute one of two functions, chosen by a scalar.

    Both functions are traced, and only the chosen one is computed. A Python bool is known before: then only the chosen
    function is called.

    Parameters
    ----------
    pred : Tensor, number or bool
        A scalar. A number is true if it is not 0.
    true_fn, false_fn : callable
        Functions of the operands. They return trees of the same structure, with the same shapes and dtypes.
    *operands : Tensor, number, or tree of these
        The arguments of the functions.

    Returns
    -------
    tree of tensors
        The result of the chosen function.

    Raises
    ------
    ShapeError
        If `pred` is not a scalar.
    ArgumentError
        If the functions return different structures, shapes or dtypes. The text names the path of the leaf.
    TraceError
        If a function needs a value (`float(x)`, `if x > 0`).

    Examples
    --------
    >>> import yosegi as ys
    >>> x = ys.asarray([1.0, 4.0])
    >>> ys.cond(ys.sum(x) > 3, lambda x: ys.sqrt(x), lambda x: -x, x).tolist()
    [1.0, 2.0]
    """
    if isinstance(pred, (bool, np.bool_)):
        return (true_fn if pred else false_fn)(*operands)
    chosen = _scalar("cond", pred)
    given = [leaves_of("cond", tree, f"operand {n}") for n, tree in enumerate(operands)]
    shapes = [(leaves.structure, leaves.specs) for leaves in given]
    true = traced("cond", "true_fn", true_fn, *shapes)
    false = traced("cond", "false_fn", false_fn, *shapes)
    _expect_same(true, false)
    if not true.results:
        return unflatten(true.structure, [])
    for node, make in (*true.feeds, *false.feeds):
        fed_outside(node, make)
    closure = list(dict.fromkeys([*true.closure, *false.closure]))
    made = _cond.outputs(
        chosen, *[Tensor(n) for n in closure], *[t for leaves in given for t in leaves.tensors],
        true=true.graph(closure), false=false.graph(closure),
    )  # fmt: skip
    return unflatten(true.structure, made)


def _scalar(name: str, pred: Any) -> Tensor:
    """A predicate as a scalar bool."""
    try:
        made = asarray(pred)
    except UserError as error:
        raise ArgumentError(f"[{name}] expected a scalar predicate, got {type(pred).__name__}") from error
    if made.shape:
        raise ShapeError(
            f"[{name}] expected a scalar predicate, got {made._node.spec!r}; reduce it with ys.all or ys.any, or use "
            "ys.where to choose by element"
        )
    return truth(made)


def truth(t: Tensor) -> Tensor:
    """The tensor as bools: true where it is not 0."""
    return t if t.dtype is bool_ else Tensor(convert._node((t,), {"dtype": bool_}))


def _expect_same(true: Body, false: Body) -> None:
    """Raise unless two branches return the same structure, shapes and dtypes."""
    if true.structure != false.structure:
        raise ArgumentError(
            f"[cond] expected branches that return trees of one structure, got {difference(true.tree, false.tree)}; "
            "return the same containers with the same keys"
        )
    for path, one, other in zip(paths(true.tree, "the result"), true.results, false.results, strict=True):
        if plain([one.spec]) != plain([other.spec]):
            raise ArgumentError(
                f"[cond] expected branches that return the same shapes and dtypes, got {one.spec!r} of true_fn and "
                f"{other.spec!r} of false_fn at {path}; reshape or cast one of them"
            )
