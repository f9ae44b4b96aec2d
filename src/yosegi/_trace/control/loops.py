"""`while_loop` and `fori_loop`: a body repeated until a condition fails, or a number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import interpreter
from ..._tensor.batch import Flags, aligned, size_of, spread
from ..._tensor.dtype import bool_
from ..._tensor.node import Spec, spec
from ..._tensor.op import Arr, OpKind, op
from ..._tensor.role import Control, Flow
from ..._tensor.tensor import Tensor
from ..._tensor.tracebacks import short_tracebacks
from ..._tensor.tree import unflatten
from ...errors import ArgumentError, ShapeError, UserError
from ...ops import rules
from ...ops.creation import asarray
from ...ops.elementwise import where
from ...ops.reduce import any as reduce_any
from .bodies import Body, Compiled, Leaves, applied, leaves_of, settled, traced, without_draws
from .branches import plain, truth
from .narrowing import narrowed_while
from .scans import repeated
from .transforms import (
    batched_results,
    for_examples,
    settled_flags,
    spaced,
    spread_outputs,
    with_tangents,
    written_out,
)


def _while_rule(*inputs: Spec, condition: Graph, body: Graph) -> tuple[Spec, ...]:
    for graph in (condition, body):
        wanted = [graph.calls[i].spec for i in graph.inputs]
        if graph.inputs != tuple(range(len(inputs))) or plain(wanted) != plain(inputs):
            raise ArgumentError(f"expected graphs of {list(inputs)}, got one of {wanted}")
    tests, made = ([graph.calls[o].spec for o in graph.outputs] for graph in (condition, body))
    if plain(tests) != plain([spec((), bool_)]):
        raise ArgumentError(f"expected a condition that gives a bool, got {tests}")
    if not made or len(made) > len(inputs) or plain(made) != plain(inputs[len(inputs) - len(made) :]):
        raise ArgumentError(f"expected a body that gives its last inputs anew, got {made}")
    return tuple([spec(s.shape, s.dtype) for s in made])


def _while_vjp(g: Any, out: Any, *inputs: Tensor, condition: Graph, body: Graph) -> NoReturn:
    raise ArgumentError(
        "[while_loop] expected a loop whose number of iterations is known, for a gradient in reverse mode, got "
        "while_loop, or fori_loop with a tensor as a bound; use scan, or fori_loop with integers"
    )


def _while_jvp(
    tangents: Sequence[Tensor | None], out: Any, *inputs: Tensor, condition: Graph, body: Graph
) -> tuple[Tensor | None, ...]:
    """A loop whose carry has the tangents beside it."""
    closed = len(inputs) - len(body.outputs)
    closure, carry = inputs[:closed], inputs[closed:]

    def goes_on(state: Any) -> Tensor:
        return Tensor(applied(condition, [t._node for t in (*closure, *state[0])])[0])

    def forward(state: Any) -> Any:
        now, of_now = state
        return with_tangents(body, [*closure, *now], [*tangents[:closed], *spaced(of_now, now)])

    _, made = while_loop(goes_on, forward, (list(carry), written_out(carry, tangents[closed:])))
    return tuple(spaced(made, out if isinstance(out, tuple) else (out,)))


def _while_batch(op: Any, batched: Flags, *inputs: Tensor, condition: Graph, body: Graph) -> tuple[Tensor, ...]:
    """One loop for all examples. If the condition differs between examples, it runs until the last one is done, and the
    others keep their values."""
    closed = len(inputs) - len(body.outputs)
    closure, size = inputs[:closed], size_of(batched, inputs)
    flags, made_flags = settled_flags(body, batched, slice(closed, None), size)
    (differs,) = batched_results(condition, flags, size)
    if differs:
        flags[closed:] = made_flags = (True,) * len(body.outputs)

    def goes_on(now: Any) -> Tensor:
        return for_examples(condition, flags, [*closure, *now])[0]

    def step(now: Any) -> Any:
        made = spread_outputs(body, for_examples(body, flags, [*closure, *now]), made_flags, size)
        if not differs:
            return made
        left = goes_on(now)
        return [where(aligned(left, True, a.ndim - 1), a, b) for a, b in zip(made, now, strict=True)]

    start = [spread(t, b, size) if f else t for t, b, f in zip(inputs, batched, flags, strict=True)][closed:]
    return tuple(while_loop(lambda now: reduce_any(goes_on(now)) if differs else goes_on(now), step, start))


def _drive_while(compiled: Compiled, *inputs: Arr, condition: Graph, body: Graph) -> Arr:
    closed = len(inputs) - len(body.outputs)
    closure, carry = inputs[:closed], list(inputs[closed:])
    goes_on, run = compiled(condition), compiled(body)
    while goes_on(*closure, *carry)[0]:
        carry = run(*closure, *carry)
    made = tuple([np.array(c) for c in carry])  # they may be views of inputs
    return made if len(made) > 1 else made[0]


@op(OpKind.CONTROL, infer=_while_rule, vjp=_while_vjp, jvp=_while_jvp, batch=_while_batch, computes_half=True,
    role=Control(Flow.WHILE, ("condition", "body"), _drive_while, narrowed_while))  # fmt: skip
def _while_loop(*inputs: Arr, condition: Graph, body: Graph) -> Arr:
    """A body, repeated as long as a condition holds. The inputs are the closure of both, then the carry."""
    return _drive_while(interpreter, *inputs, condition=condition, body=body)


@short_tracebacks
def while_loop(cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init_val: Any) -> Any:
    """Repeat a function as long as a condition holds.

    Both functions are traced once. The loop is one operation of the graph and runs without Python where a device can.
    It is equal to::

        value = init_val
        while cond_fn(value):
            value = body_fn(value)
        return value

    A gradient in reverse mode needs the number of iterations: use `scan` or `fori_loop` for it.

    Parameters
    ----------
    cond_fn : callable
        A function of the value that returns a scalar. A number is true if it is not 0.
    body_fn : callable
        A function of the value that returns a new value with the same structure, shapes and dtypes.
    init_val : Tensor, number, or tree of these
        The first value. A Python number takes the dtype that `body_fn` gives it.

    Returns
    -------
    tree of tensors
        The first value for which the condition fails.

    Raises
    ------
    ArgumentError
        If `body_fn` changes the structure, a shape or a dtype. The text names the path of the leaf.
    ShapeError
        If `cond_fn` does not return a scalar.
    TraceError
        If a function needs a value (`float(x)`, `if x > 0`) or draws random numbers.

    Examples
    --------
    >>> import yosegi as ys
    >>> float(ys.while_loop(lambda x: x < 100, lambda x: x * 2, 1.0))
    128.0
    """
    return _repeated(
        "while_loop", ("cond_fn", "body_fn"), cond_fn, body_fn, leaves_of("while_loop", init_val, "init_val")
    )


def _repeated(
    name: str, roles: tuple[str, str], cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], carry: Leaves
) -> Any:
    body, carry = _settled_value(name, roles[1], body_fn, carry)
    condition = without_draws(name, roles[0], traced(name, roles[0], cond_fn, (carry.structure, carry.specs)))
    if len(condition.results) != 1 or condition.structure is not ...:
        raise ArgumentError(f"[{name}] expected {roles[0]} to return one scalar, got {type(condition.tree).__name__}")
    test = Tensor(condition.results[0])
    if test.shape:
        raise ShapeError(
            f"[{name}] expected {roles[0]} to return a scalar, got {test._node.spec!r}; reduce it with ys.all or ys.any"
        )
    if not carry.tensors:
        raise ArgumentError(f"[{name}] expected a value with at least one tensor, got none")
    closure = list(dict.fromkeys([*condition.closure, *body.closure]))
    made = _while_loop.outputs(
        *[Tensor(n) for n in closure], *carry.tensors,
        condition=condition.graph(closure, [truth(test)._node]), body=body.graph(closure),
    )  # fmt: skip
    return unflatten(carry.structure, made)


def _settled_value(name: str, role: str, body_fn: Callable[[Any], Any], carry: Leaves) -> tuple[Body, Leaves]:
    """The body of a function that returns the next value and nothing else, and the first value."""
    return settled(
        name, role, carry, lambda c: traced(name, role, body_fn, (c.structure, c.specs)),
        lambda body: (body.tree, body.structure),
    )  # fmt: skip


@short_tracebacks
def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any) -> Any:
    """Repeat a function for the integers of a range.

    The function is traced once, with a tensor as its index. It is equal to::

        value = init_val
        for i in range(lower, upper):
            value = body_fun(i, value)
        return value

    With integers as bounds it is a `scan` and has a gradient. With a tensor as a bound it is a `while_loop`.

    Parameters
    ----------
    lower, upper : int or integer scalar Tensor
        The bounds of the range.
    body_fun : callable
        A function of the index and the value that returns a new value with the same structure, shapes and dtypes.
    init_val : Tensor, number, or tree of these
        The first value. A Python number takes the dtype that `body_fun` gives it.

    Returns
    -------
    tree of tensors
        The last value.

    Raises
    ------
    ArgumentError
        If a bound is not an integer scalar, or `body_fun` changes the structure, a shape or a dtype.
    TraceError
        If `body_fun` needs a value (`float(x)`, `if x > 0`) or draws random numbers.

    Examples
    --------
    >>> import yosegi as ys
    >>> int(ys.fori_loop(1, 5, lambda i, product: product * i, 1))
    24
    """
    first, last = _bound("lower", lower), _bound("upper", upper)
    start = asarray(first)
    given = leaves_of("fori_loop", (start, init_val), "init_val")
    names = ["lower", *[path.replace("init_val[1]", "init_val", 1) for path in given.paths[1:]]]
    carry = Leaves(given.tree, given.tensors, given.structure, names, given.is_number)
    rules.function("fori_loop", body_fun)
    step = _with_next(body_fun)
    if isinstance(first, Tensor) or isinstance(last, Tensor):
        made: Any = _repeated("fori_loop", ("the bounds", "body_fun"), lambda state: state[0] < last, step, carry)
        return made[1]
    body, carry = _settled_value("fori_loop", "body_fun", step, carry)
    return unflatten(carry.structure, repeated(body, carry.tensors, (), max(0, last - first)))[1]


def _with_next(body_fun: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """The body as a function of the index and the value that gives the next ones."""
    return lambda state: (state[0] + 1, body_fun(state[0], state[1]))


def _bound(name: str, value: Any) -> int | Tensor:
    if hasattr(type(value), "__index__") and not isinstance(value, (bool, Tensor)):
        return int(value)
    try:
        made = asarray(value)
    except UserError as error:
        raise ArgumentError(f"[fori_loop] expected an integer as {name}, got {type(value).__name__}") from error
    if made.shape or not made.dtype.is_integer:
        raise ArgumentError(f"[fori_loop] expected an integer scalar as {name}, got {made._node.spec!r}; cast it")
    return made
