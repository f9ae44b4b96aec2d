"""The reference: the meaning of a call in NumPy, and the interpreter of graphs.

`bind` returns a NumPy function for a call. The CPU's kernels call it for ops without native code, `simplify` for
constant folding, and every test compares with it. `interpret` computes a whole graph by these functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .._tensor.composite import decomposed
from .._tensor.node import Call

if TYPE_CHECKING:
    from .._schedule.fuse import Region
    from .graph import Graph


def bind(call: Call) -> Callable[..., Any]:
    """The call's body as a function of arrays alone.

    16-bit floats are computed in float32 and rounded once, for every op that does not say it handles them itself.
    """
    op = call.op
    if op.decomposition is not None:
        return _in_parts(call)
    real = op.real_ufunc is not None and not call.inputs[0].dtype.is_complex
    body = op.real_ufunc if real else partial(op.body, **call.attrs) if call.attrs else op.body
    assert body is not None
    if op.computes_half or not any(s.dtype.is_half for s in (*call.inputs, *call.outputs)):
        return body
    widened = [s.dtype.is_half for s in call.inputs]
    results = [s.dtype.numpy for s in call.outputs]

    def in_single(*arrays: Any) -> Any:
        made = body(*[a.astype(np.float32) if wide else a for a, wide in zip(arrays, widened, strict=True)])
        if len(results) > 1:
            return tuple([np.asarray(m).astype(d, copy=False) for m, d in zip(made, results, strict=True)])
        return np.asarray(made).astype(results[0], copy=False)

    return in_single


def computed(call: Call, arguments: Sequence[Any]) -> Any:
    """The value of a call by its body: an array of its dtype, or several."""
    made = bind(call)(*arguments)
    return made if len(call.outputs) > 1 else np.asarray(made).astype(call.spec.dtype.numpy, copy=False)


def interpret(
    calls: Sequence[Call] | Mapping[int, Call],
    args: Sequence[tuple[int, ...]] | Mapping[int, tuple[int, ...]],
    entries: Iterable[int],
    values: dict[int, Any],
    compute: Callable[[Call, Sequence[Any]], Any] = computed,
) -> dict[int, Any]:
    """Compute entries of a graph, one after the other, with the constants that they read. `values` has the inputs and
    gets all results."""
    for entry in entries:
        for a in args[entry]:
            if a not in values:
                values[a] = compute(calls[a], ())
        if entry not in values:
            values[entry] = compute(calls[entry], [values[a] for a in args[entry]])
    return values


def outputs_of(
    region: Region, arrays: Sequence[Any], compute: Callable[[Call, Sequence[Any]], Any] = computed
) -> list[Any]:
    """A region's outputs for its inputs' arrays, by the bodies of its calls."""
    graph = region.graph
    values = dict(zip(region.inputs, arrays, strict=True))
    with np.errstate(all="ignore"):
        interpret(graph.calls, graph.args, region.nodes, values, compute)
    return [values[o] for o in region.outputs]


def interpreter(graph: Graph) -> Callable[..., list[Any]]:
    """A graph as a function of its inputs' arrays, by the bodies of its calls. It gives the outputs' arrays."""
    inputs = graph.inputs
    made_here = sorted(set(range(len(graph.calls))) - set(inputs))
    steps = [(n, bind(graph.calls[n]), graph.args[n], graph.calls[n].outputs) for n in made_here]

    def run(*arrays: Any) -> list[Any]:
        values: dict[int, Any] = dict(zip(inputs, arrays, strict=True))
        for entry, body, args, outputs in steps:
            made = body(*[values[a] for a in args])
            if len(outputs) == 1:
                made = np.asarray(made).astype(outputs[0].dtype.numpy, copy=False)
            values[entry] = made
        return [values[o] for o in graph.outputs]

    return run


def of_nothing(call: Call) -> Any:
    """The value of a call whose first input has no elements: none either, or what it makes of that input alone."""
    result = call.spec.dtype.numpy
    if not call.spec.size:
        return np.empty(call.spec.shape, result)
    with np.errstate(all="ignore"):
        return np.asarray(bind(call)(np.empty(call.inputs[0].shape, call.inputs[0].dtype.numpy))).astype(result)


def _in_parts(call: Call) -> Callable[..., Any]:
    """The value of a composite by the bodies of its decomposition; a tuple for several outputs."""
    parts = decomposed(call)
    calls = dict(enumerate([inner for inner, _ in parts.steps], len(call.inputs)))
    args = dict(enumerate([read for _, read in parts.steps], len(call.inputs)))

    def run(*arrays: Any) -> Any:
        values = interpret(calls, args, calls, dict(enumerate(arrays)))
        made = tuple([values[o] for o in parts.outputs])
        return made if len(made) > 1 else made[0]

    return run


class _ErrorState:
    """`np.errstate` in the form of a context variable."""

    def set(self, value: str) -> Any:
        state = np.errstate(all=value)
        state.__enter__()
        return state

    def reset(self, token: Any) -> None:
        token.__exit__(None, None, None)


def _error_state() -> tuple[ContextVar[Any] | _ErrorState, Any]:
    """NumPy's own context variable for floating-point errors, and its value for "ignore them all".

    `np.errstate` costs over a microsecond a use, a fifth of a ten-op program on small arrays. Setting the variable
    it sets costs a quarter of that. It is found by what `np.seterr` changes in a context, not by its private name;
    where nothing is found, `np.errstate` itself serves.
    """
    context = copy_context()
    context.run(lambda: np.seterr(all="warn"))
    before = dict(context)
    context.run(lambda: np.seterr(all="ignore"))
    changed = [(var, value) for var, value in context.items() if before.get(var) is not value]
    return changed[0] if len(changed) == 1 else (_ErrorState(), "ignore")


ERROR_STATE: Final = _error_state()
"""A variable and a value: set to it, NumPy is quiet, for infinities and NaN are values here like any other."""
