"""`jit`: trace a function once per input signature, then replay its plan with almost no Python in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from inspect import Parameter, signature
from types import MethodType
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload

import numpy as np

from .dtype import as_dtype
from .errors import ArgumentError
from .grad import held
from .graph import Graph, capture, graph_of
from .memory import Buffer
from .node import Call, Node, Spec, evaluate, in_order, spec
from .op import embedded, leaf_call
from .ops.creation import asarray
from .options import current
from .run import CHECKED, check_results, plan_of
from .tensor import Tensor
from .tracing import Feed, is_tracing, tracing
from .tree import Structure, flatten, unflatten

P = ParamSpec("P")
R = TypeVar("R")

_TRACE_LIMIT: Final = 256  # traces kept per function; with one more, the oldest goes


@dataclass(frozen=True, slots=True)
class _Static:
    """An argument that belongs to the signature: its value may decide what the function does."""

    type: type
    value: Any


@dataclass(frozen=True, slots=True)
class _Replay:
    """A function traced for one signature."""

    run: Callable[..., Sequence[Any]]
    """The plan, as a function of the data of the traced arguments, then the feeds."""
    feeds: tuple[Feed, ...]
    outputs: tuple[Call, ...]
    results: tuple[Any, ...]
    """The leaves of what the function returned: an `_Output`, or a value that is not a tensor."""
    structure: Structure
    only: Call | None
    """The output, when that is all the function returned: the common case, which is kept short."""


@dataclass(frozen=True, slots=True)
class _Output:
    index: int


class Jitted(Generic[P, R]):
    """A function that is traced once per signature of its arguments and replayed from then on.

    Tensors, arrays and Python numbers (but not bools) are traced: their values may differ from call to call. Anything
    else, and the arguments named in `static_argnames`, belongs to the signature and must be hashable. Tensors that
    the function reaches from outside are constants of the trace; random draws are made anew at every call.
    """

    def __init__(self, function: Callable[P, R], static_argnames: str | Iterable[str] = ()) -> None:
        self._function = function
        self._static = frozenset([static_argnames] if isinstance(static_argnames, str) else static_argnames)
        parameters = signature(function).parameters
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        self._names = tuple(p.name for p in parameters.values() if p.kind in positional)
        unknown = self._static - parameters.keys()
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ArgumentError(f"[jit] expected static_argnames among {list(parameters)}, got {sorted(unknown)}")
        self._replays: dict[Any, _Replay] = {}
        update_wrapper(self, function)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        # The common call, of computed tensors and nothing else, is looked up by their specs and runs at once.
        if not kwargs:
            key: list[Any] = [current()]
            data = []
            for a in args:
                if type(a) is not Tensor:
                    break
                node = a._node
                if node.buffer is None:
                    break
                key.append(node.spec)
                data.append(node.buffer.data)
            else:
                replay = self._replays.get(tuple(key))
                if replay is not None and replay.only is not None and held() is None:
                    return Tensor(Node(replay.only, (), Buffer(replay.run(*data)[0])))  # type: ignore[return-value]
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if is_tracing() or held() is not None:
            return self._function(*args, **kwargs)  # inside another trace, or a gradient: part of that graph
        marked = [self._marked(name, a) for name, a in zip((*self._names, *[""] * len(args)), args, strict=False)]
        leaves, structure = flatten((marked, {name: self._marked(name, v) for name, v in kwargs.items()}))
        inputs = [_as_input(value) for value in leaves]
        evaluate([i._node for i in inputs if isinstance(i, Tensor)])
        kinds = [i if isinstance(i, _Static) else _spec_of(i) for i in inputs]
        plain = not kwargs and all(isinstance(a, Tensor) for a in args)
        key = (current(), *kinds) if plain else (current(), structure, *kinds)
        replay = self._replays.get(key)
        if replay is None:
            replay = self._trace(kinds, structure)
            while len(self._replays) >= _TRACE_LIMIT:
                self._replays.pop(next(iter(self._replays)), None)
            self._replays[key] = replay
        data = [_data_of(i) for i in inputs if not isinstance(i, _Static)]
        return self._run(replay, data)  # type: ignore[no-any-return]

    def _marked(self, name: str, value: Any) -> Any:
        return _Static(type(value), value) if name in self._static else value

    def _trace(self, kinds: Sequence[Spec | _Static], structure: Structure) -> _Replay:
        arguments = [k.value if isinstance(k, _Static) else Tensor(Node(leaf_call(k), ())) for k in kinds]
        args, kwargs = unflatten(structure, arguments)
        with tracing() as trace:
            returned = self._function(*args, **kwargs)
        given = [a._node for a, k in zip(arguments, kinds, strict=True) if isinstance(k, Spec)]
        given += [node for node, _ in trace.feeds]
        values, shape = flatten(returned)
        tensors = [asarray(v) for v in values if isinstance(v, (Tensor, np.ndarray, np.generic))]
        count = iter(range(len(tensors)))
        results = tuple(_Output(next(count)) if isinstance(v, (Tensor, np.ndarray, np.generic)) else v for v in values)
        plan = plan_of(_graph_of_trace([t._node for t in tensors], given))
        outputs = tuple(leaf_call(spec(t.shape, t.dtype)) for t in tensors)
        only = outputs[0] if shape is ... and len(outputs) == 1 and not trace.feeds else None
        feeds = tuple(make for _, make in trace.feeds)
        return _Replay(plan.kernel, feeds, outputs, results, shape, only)

    def _run(self, replay: _Replay, data: list[Any]) -> Any:
        made = replay.run(*data, *[make() for make in replay.feeds])
        nodes = [Node(call, (), Buffer(d)) for call, d in zip(replay.outputs, made, strict=True)]
        if CHECKED:
            check_results(nodes, made)
        leaves = [Tensor(nodes[r.index]) if isinstance(r, _Output) else r for r in replay.results]
        return unflatten(replay.structure, leaves)


def _as_input(value: Any) -> Tensor | _Static | int | float | complex:
    if isinstance(value, (Tensor, _Static)):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return asarray(value, copy=False)
    if isinstance(value, (int, float, complex)) and not isinstance(value, bool):
        return value
    try:
        hash(value)
    except TypeError:
        raise ArgumentError(
            f"[jit] expected arguments that are tensors, numbers or hashable, got {type(value).__name__}; pass it as a "
            "tuple, or close over it"
        ) from None
    return _Static(type(value), value)


def _number_type(value: complex) -> type:
    return int if isinstance(value, int) else float if isinstance(value, float) else complex


def _spec_of(value: Any) -> Spec:
    return value._node.spec if isinstance(value, Tensor) else spec((), as_dtype(_number_type(value)), weak=True)


def _data_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value._node.buffer.data  # type: ignore[union-attr]
    return np.asarray(value, as_dtype(_number_type(value)).numpy)


def _graph_of_trace(roots: list[Node], given: list[Node]) -> Graph:
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
            node.buffer = None  # whoever kept it beyond the trace must not take it for one
    graph = graph_of(key)
    calls = [node.call for node in given]
    args: list[tuple[int, ...]] = [()] * len(given)
    at = dict(zip(graph.inputs, leaves, strict=True))
    place_of = {node: i for i, node in enumerate(given)}
    new: list[int] = []
    for entry, call in enumerate(graph.calls):
        source = at.get(entry)
        if source in place_of:
            new.append(place_of[source])
            continue
        if source is not None:
            call = Call(embedded, {"array": source.buffer.data}, (), call.outputs)  # type: ignore[union-attr]
        new.append(len(calls))
        calls.append(call)
        args.append(tuple([new[a] for a in graph.args[entry]]))
    return Graph(tuple(calls), tuple(args), tuple(new[o] for o in graph.outputs[: len(roots)]))


def _evaluate_outside(roots: list[Node], given: set[Node]) -> None:
    """Compute what the trace needs of values from outside that were not computed yet, so that no replay does it again.

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


@overload
def jit(function: Callable[P, R], *, static_argnames: str | Iterable[str] = ()) -> Jitted[P, R]: ...


@overload
def jit(*, static_argnames: str | Iterable[str] = ()) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def jit(function: Any = None, *, static_argnames: str | Iterable[str] = ()) -> Any:
    """Trace the function once per signature of its arguments; replay the plan from then on.

    >>> import yosegi as ys
    >>> @ys.jit
    ... def norm(x):
    ...     return ys.sqrt(ys.sum(x * x))
    >>> float(norm(ys.asarray([3.0, 4.0])))
    5.0
    """
    if function is None:
        return lambda f: Jitted(f, static_argnames)
    return Jitted(function, static_argnames)
