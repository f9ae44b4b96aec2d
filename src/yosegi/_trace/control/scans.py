"""`scan`: a body repeated along the rows of tensors, with a carry from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import interpreter
from ..._tensor.batch import Flags, size_of, spread
from ..._tensor.node import Spec, spec
from ..._tensor.op import Arr, OpKind, constant, op
from ..._tensor.role import Control, Flow
from ..._tensor.tensor import Tensor
from ..._tensor.tracebacks import short_tracebacks
from ..._tensor.tree import Structure, unflatten
from ...errors import ArgumentError, ShapeError
from ...ops.creation import zeros
from ...ops.shape import moveaxis
from ..reverse import pull_back, record, variable
from ..tracing import is_recording
from .bodies import Body, Compiled, Leaves, applied, leaves_of, settled, traced
from .narrowing import narrowed_scan
from .transforms import for_examples, settled_flags, spaced, spread_outputs, with_tangents, written_out


def _scan_rule(*inputs: Spec, body: Graph, carries: int, rows: int, length: int, reverse: bool) -> tuple[Spec, ...]:
    fixed = len(inputs) - rows
    if min(carries, rows, length, fixed - carries) < 0:
        raise ArgumentError(f"expected counts of inputs that fit, got {carries} and {rows} of {len(inputs)}")
    if any(s.ndim == 0 or s.shape[0] != length for s in inputs[fixed:]):
        raise ShapeError(f"expected {length} rows, got {list(inputs[fixed:])}")
    given = [*inputs[:fixed], *[spec(s.shape[1:], s.dtype) for s in inputs[fixed:]]]
    wanted = [body.calls[i].spec for i in body.inputs]
    made = [body.calls[o].spec for o in body.outputs]
    carry = inputs[fixed - carries : fixed]
    if body.inputs != tuple(range(len(inputs))) or _plain(given) != _plain(wanted):
        raise ArgumentError(f"expected a body of {given}, got one of {wanted}")
    if not made or _plain(made[:carries]) != _plain(carry):
        raise ArgumentError(f"expected a body that gives {list(carry)} first, got {made}")
    return (
        *[spec(s.shape, s.dtype) for s in carry],
        *[spec((length, *s.shape), s.dtype) for s in made[carries:]],
    )


def _plain(specs: Sequence[Spec]) -> list[Any]:
    return [(s.shape, s.dtype) for s in specs]


def _scan_vjp(
    g: Any, out: Any, *inputs: Tensor, body: Graph, carries: int, rows: int, length: int, reverse: bool
) -> list[Tensor | None]:
    """A scan in the other direction: each iteration computes its body again, from the carry that it began with."""
    gs, outs = (list(x) if isinstance(x, tuple) else [x] for x in (g, out))
    fixed = len(inputs) - rows
    closure, columns = inputs[: fixed - carries], inputs[fixed:]
    begun = _begun_with(outs, inputs, body, carries, rows, length, reverse)
    flows = [t.dtype.is_inexact for t in inputs]
    outputs = [n for n, t in enumerate(gs) if t.dtype.is_inexact]
    states = [n for n in outputs if n < carries]
    emitted = [n for n in outputs if n >= carries and not _is_zero(gs[n])]

    def backward(state: Any, row: Any) -> Any:
        after, totals = state
        before, given, made = row
        own = [variable(t)._node if f else t._node for t, f in zip((*closure, *before, *given), flows, strict=True)]
        variables = [n for n, f in zip(own, flows, strict=True) if f]
        results = applied(body, own)
        ends = [results[n] for n in (*states, *emitted)]
        cotangents = pull_back(record(ends, variables), ends, [*after, *made], variables)
        kinds = [0 if n < len(closure) else 1 if n < fixed else 2 for n, f in enumerate(flows) if f]
        parts: list[list[Tensor]] = [[], [], []]
        for kind, cotangent in zip(kinds, cotangents, strict=True):
            parts[kind].append(cotangent)
        return (parts[1], [a + b for a, b in zip(totals, parts[0], strict=True)]), parts[2]

    nothing = [zeros(t.shape, dtype=t.dtype) for t, f in zip(closure, flows, strict=False) if f]
    start = [gs[n] for n in states], nothing
    (of_carry, of_closure), of_columns = scan(
        backward, start, (begun, list(columns), [gs[n] for n in emitted]), length, not reverse
    )
    found = iter([*of_closure, *of_carry, *of_columns])
    return [next(found) if f else None for f in flows]


def _begun_with(
    outs: Sequence[Tensor], inputs: Sequence[Tensor], body: Graph, carries: int, rows: int, length: int, reverse: bool
) -> list[Tensor]:
    """The carry that each iteration began with: outputs of the scan, where it has them, or of a second one."""
    first = len(inputs) - rows - carries
    wanted = range(first, first + carries)
    known = {entry: outs[n] for n, entry in enumerate(body.outputs) if n >= carries}
    if not all(entry in known for entry in wanted):
        more = Graph(body.calls, body.args, (*body.outputs[:carries], *wanted), body.origins)
        made = _scan.outputs(*inputs, body=more, carries=carries, rows=rows, length=length, reverse=reverse)
        known = dict(zip(wanted, made[carries:], strict=True))
    return [known[entry] for entry in wanted]


def _is_zero(t: Tensor) -> bool:
    """True for zeros that a pass back has made for an output that nothing depends on."""
    node = t._node.inputs[0] if t._node.inputs else t._node
    return node.call.op is constant and node.call.attrs["value"] == 0


def _scan_jvp(
    tangents: Sequence[Tensor | None],
    out: Any,
    *inputs: Tensor,
    body: Graph,
    carries: int,
    rows: int,
    length: int,
    reverse: bool,
) -> tuple[Tensor | None, ...]:
    """A scan whose carry has the tangents beside it."""
    fixed = len(inputs) - rows
    first = fixed - carries
    closure, carry, columns = inputs[:first], inputs[first:fixed], inputs[fixed:]
    moving = [t is not None for t in tangents[fixed:]]

    def forward(state: Any, row: Any) -> Any:
        now, of_now = state
        given, of_given = row
        left = iter(of_given)
        of_row = [next(left) if m else None for m in moving]
        all_of = [*tangents[:first], *spaced(of_now, now), *of_row]
        results, made = with_tangents(body, [*closure, *now, *given], all_of)
        kept = sum(r.dtype.is_inexact for r in results[:carries])
        return (results[:carries], made[:kept]), made[kept:]

    start = list(carry), written_out(carry, tangents[first:fixed])
    of_columns = [t for t in tangents[fixed:] if t is not None]
    (_, last), made = scan(forward, start, (list(columns), of_columns), length, reverse)
    outs = out if isinstance(out, tuple) else (out,)
    return tuple(spaced([*last, *made], outs))


def _scan_batch(
    op: Any,
    batched: Flags,
    *inputs: Tensor,
    body: Graph,
    carries: int,
    rows: int,
    length: int,
    reverse: bool,
) -> tuple[Tensor, ...]:
    """One scan for all examples: their rows stand side by side."""
    fixed = len(inputs) - rows
    first = fixed - carries
    size = size_of(batched, inputs)
    flags, made_flags = settled_flags(body, batched, slice(first, fixed), size)
    carry = [spread(t, b, size) if f else t for t, b, f in zip(inputs, batched, flags, strict=True)][first:fixed]
    columns = [moveaxis(t, 0, 1) if b else t for t, b in zip(inputs[fixed:], batched[fixed:], strict=True)]

    def step(now: Any, row: Any) -> Any:
        made = for_examples(body, flags, [*inputs[:first], *now, *row])
        made = spread_outputs(body, made, made_flags, size)
        return made[:carries], made[carries:]

    last, stacked = scan(step, carry, columns, length, reverse)
    behind = [moveaxis(t, 1, 0) if f else t for t, f in zip(stacked, made_flags[carries:], strict=True)]
    return (*last, *behind)


def _drive_scan(
    compiled: Compiled, *inputs: Arr, body: Graph, carries: int, rows: int, length: int, reverse: bool
) -> Arr:
    fixed = len(inputs) - rows
    closure, carry, columns = inputs[: fixed - carries], list(inputs[fixed - carries : fixed]), inputs[fixed:]
    made = [body.calls[o].spec for o in body.outputs[carries:]]
    stacked = [np.empty((length, *s.shape), s.dtype.numpy) for s in made]
    run = compiled(body)
    for n in range(length - 1, -1, -1) if reverse else range(length):
        results = run(*closure, *carry, *[np.asarray(c[n]) for c in columns])
        carry = results[:carries]
        for rows_made, result in zip(stacked, results[carries:], strict=True):
            rows_made[n] = result
    outputs = (*[np.array(c) for c in carry], *stacked)  # a carry may be a view of an input
    return outputs if len(outputs) > 1 else outputs[0]


@op(OpKind.CONTROL, infer=_scan_rule, vjp=_scan_vjp, jvp=_scan_jvp, batch=_scan_batch, computes_half=True,
    role=Control(Flow.REPEAT, ("body",), _drive_scan, narrowed_scan))  # fmt: skip
def _scan(*inputs: Arr, body: Graph, carries: int, rows: int, length: int, reverse: bool) -> Arr:
    """A repeated body. The inputs are its closure, its first carry, and tensors whose rows it gets one after the other.
    The outputs are its last carry, and its other results, one row for each iteration."""
    return _drive_scan(interpreter, *inputs, body=body, carries=carries, rows=rows, length=length, reverse=reverse)


@short_tracebacks
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Repeat a function along the rows of tensors, with a carry from one iteration to the next.

    The function is traced once and is one operation of the graph, whatever the length. It is equal to::

        carry, ys = init, []
        for x in xs:
            carry, y = f(carry, x)
            ys.append(y)
        return carry, stack(ys)

    Parameters
    ----------
    f : callable
        A function of the carry and a row of `xs`. It returns the pair of the new carry, with the structure, shapes and
        dtypes of `init`, and a tree of tensors, which become a row of `ys`. It must not read values of tensors.
    init : Tensor, number, or tree of these
        The first carry. A Python number takes the dtype that `f` gives it.
    xs : Tensor, or tree of tensors, optional
        Tensors with the same number of rows (the length of their first axis). Without `xs`, `f` gets `None`.
    length : int, optional
        The number of iterations. It is needed without `xs`.
    reverse : bool
        True to begin with the last row. The rows of `ys` stay in the order of `xs`.

    Returns
    -------
    carry : tree of tensors
        The last carry.
    ys : tree of tensors
        The second results of `f`, stacked along a new first axis.

    Raises
    ------
    ArgumentError
        If `f` does not return a pair, or changes the structure, a shape or a dtype of the carry. The text names the
        path of the leaf.
    ShapeError
        If the numbers of rows differ from each other or from `length`.
    TraceError
        If `f` needs a value (`float(x)`, `if x > 0`) or draws random numbers.

    Examples
    --------
    >>> import yosegi as ys
    >>> total, totals = ys.scan(lambda total, x: (total + x, total + x), 0.0, ys.asarray([1.0, 2.0, 3.0]))
    >>> float(total), totals.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    carry, columns = leaves_of("scan", init, "init"), leaves_of("scan", xs, "xs")
    role = "the function"
    rows = [spec(s.shape[1:], s.dtype) for s in columns.specs]
    count = _length(columns, length)
    body, carry = settled(
        "scan", role, carry, lambda c: traced("scan", role, f, (c.structure, c.specs), (columns.structure, rows)), _pair
    )
    made = repeated(body, carry.tensors, columns.tensors, count, reverse=bool(reverse))
    pair = unflatten(body.structure, made)
    return pair[0], pair[1]


def repeated(
    body: Body, carry: Sequence[Tensor], columns: Sequence[Tensor], count: int, *, reverse: bool = False
) -> Sequence[Tensor]:
    """A body of a carry and a row of each column, `count` times: the last carry, and the rows of its other results."""
    results = list(body.results)
    if is_recording():  # a pass back begins each iteration where it began
        results += body.placeholders[: len(carry)]
    if not results:
        return ()
    made = _scan.outputs(
        *[Tensor(n) for n in body.closure], *carry, *columns, body=body.graph(body.closure, results),
        carries=len(carry), rows=len(columns), length=count, reverse=reverse,
    )  # fmt: skip
    return made[: len(body.results)]


def _pair(body: Body) -> tuple[Any, Structure]:
    """The carry that a body returns, which is the first of two results."""
    if not isinstance(body.tree, (tuple, list)) or len(body.tree) != 2:
        raise ArgumentError(
            f"[scan] expected the function to return a pair (carry, y), got {type(body.tree).__name__}; return None as "
            "y if there is none"
        )
    return body.tree[0], body.structure[2][0]


def _length(columns: Leaves, length: int | None) -> int:
    """The number of iterations."""
    for t, path in zip(columns.tensors, columns.paths, strict=True):
        if t.ndim == 0:
            raise ShapeError(f"[scan] expected tensors with rows, got {t._node.spec!r} at {path}; close over it")
    if length is not None and (type(length) is bool or not hasattr(type(length), "__index__") or int(length) < 0):
        raise ArgumentError(f"[scan] expected a length of 0 or more, got {length!r}; give an integer")
    if not columns.tensors:
        if length is None:
            raise ArgumentError("[scan] expected xs or a length, got neither; give length=")
        return int(length)
    first = columns.tensors[0].shape[0] if length is None else int(length)
    for t, path in zip(columns.tensors, columns.paths, strict=True):
        if t.shape[0] != first:
            wanted = f"{first} rows, the length" if length is not None else f"{first} rows as at {columns.paths[0]}"
            raise ShapeError(f"[scan] expected {wanted}, got {t.shape[0]} at {path}; cut or pad it")
    return first
