"""`jit`: trace a function once per input signature, then replay its plan with almost no Python in the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from inspect import Parameter, signature
from types import MethodType
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload
from weakref import WeakSet

import numpy as np

from .._place.explain import counted
from .._place.plan import Plan
from .._run.device import Generation
from .._run.evaluate import replay as run_again
from .._run.memory import HOST, Buffer
from .._run.trace import trace
from .._tensor.dtype import on_new_default
from .._tensor.html import folded, heading
from .._tensor.node import Node, Spec, evaluate, kept_histories
from .._tensor.op import leaf_call
from .._tensor.options import current
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import hide_frames, short_tracebacks
from .._tensor.tree import Structure, flatten, unflatten
from ..errors import ArgumentError, OutOfMemory
from ..ops import rules
from ..ops.creation import asarray
from .arguments import WEAK, Arguments, Static, is_result, kinds_and_nodes, nodes_of, plain, static
from .objects import Copies, opens
from .objects import flatten as taken_apart
from .replayed import Replay, replay_of
from .tracing import is_recording, is_tracing, tracing

P = ParamSpec("P")
R = TypeVar("R")

_TRACE_LIMIT: Final = 256  # traces kept per function; with one more, the oldest goes

_JITTED: Final[WeakSet[Jitted[Any, Any]]] = WeakSet()


def _forget() -> None:
    """Drop every trace: they were made under another default dtype."""
    for jitted in list(_JITTED):
        jitted._replays.clear()


on_new_default(_forget)


class Jitted(Generic[P, R]):
    """A function that is traced once per signature of its arguments and replayed from then on.

    Tensors, arrays and Python numbers (except bools) are traced: their values may differ from call to call. All other
    arguments, and those named in `static_argnames`, belong to the signature and must be hashable. An object that is
    hashed by its identity, for example the `self` of a method, is replaced by its attributes: tensors and arrays are
    traced, all others belong to the signature. Tensors from an enclosing scope are constants of the trace. Random
    draws are made anew at every call.

    Parameters
    ----------
    function : callable
        The function to trace.
    static_argnames : str or iterable of str
        Names of arguments that belong to the signature by their value.
    static_argnums : int or iterable of int
        Positions of arguments that belong to the signature by their value.

    Examples
    --------
    >>> import yosegi as ys
    >>> double = ys.jit(lambda x: x * 2)
    >>> double(ys.asarray([1.0, 2.0])).tolist()
    [2.0, 4.0]
    """

    def __init__(
        self,
        function: Callable[P, R],
        static_argnames: str | Iterable[str] = (),
        static_argnums: int | Iterable[int] = (),
    ) -> None:
        rules.function("jit", function)
        self._bound: tuple[Any, ...] = (function,) if opens(function) else ()
        """A method with its object, or another callable with a state: it is an argument like others."""
        self._function: Callable[..., R] = _called if self._bound else function
        parameters = signature(function).parameters
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        named = [p.name for p in parameters.values() if p.kind in positional]
        self._names = (*[""] * len(self._bound), *named)
        by_name = {static_argnames} if isinstance(static_argnames, str) else set(static_argnames)
        by_place = rules.positions("jit", "static_argnums", static_argnums)
        self._static = frozenset(by_name | _named(by_place, named))
        unknown = self._static - {p.name for p in parameters.values() if p.kind is not p.VAR_POSITIONAL}
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ArgumentError(f"[jit] expected static_argnames among {list(parameters)}, got {sorted(unknown)}")
        self._is_direct = not self._static and not self._bound
        self._made_from = function, tuple(by_name), tuple(by_place)
        _JITTED.add(self)
        self._replays: dict[Any, Replay] = {}
        self._known: dict[Structure, Arguments] = {}
        self._last: Arguments | None = None
        """The structure of the last call's arguments, which nearly always is that of the next."""
        update_wrapper(self, function, updated=())

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of all traces so far: one for each signature under each set of options."""
        return tuple(replay.plan for replay in list(self._replays.values()))

    def __reduce__(self) -> str | tuple[Any, ...]:
        """The name of a decorated function, or the function to trace again: traces do not travel."""
        name: str = getattr(self, "__qualname__", "")
        place: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for part in name.split("."):
            place = getattr(place, part, None)
        return name if place is self else (Jitted, self._made_from)

    def __repr__(self) -> str:
        return f"<jit of {self.__name__}: {counted(len(self._replays), 'trace')}>"  # type: ignore[attr-defined]

    def _repr_html_(self) -> str:
        plans = "".join(folded(repr(plan), plan._repr_html_()) for plan in self.plans)
        return heading("jit", repr(self)[len("<jit of ") : -1]) + plans

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            # The common call, of computed tensors and numbers alone, is looked up by their specs and runs at once.
            if not kwargs and self._is_direct:
                key: list[Any] = [current()]
                data: list[Any] = []
                leaves: list[Node] = []
                space = HOST
                for a in args:
                    if type(a) is Tensor:
                        node = a._node
                        buffer = node.buffer
                        if buffer is None or (buffer.space is not space and data):
                            break
                        space = buffer.space
                        key.append(node.spec)
                        leaves.append(node)
                        data.append(buffer.data)
                    elif type(a) is float and space is HOST:
                        key.append(WEAK[float])
                        data.append(np.float64(a))
                    else:
                        break
                else:
                    replay = self._replays.get(tuple(key))
                    if replay is None or not replay.is_plain or kept_histories() is not None:
                        return self._call(args, kwargs)
                    if replay.generation != Generation.number or trace.profiles:
                        return self._call(args, kwargs)
                    watch, kernel = replay.plan.watch, replay.plan.host_kernel
                    if space is not HOST or kernel is None:
                        made = replay.at_once(leaves if len(leaves) == len(args) else nodes_of(args))
                        return self._run(replay, args) if made is None else made
                    if watch is not None and not watch.passes():
                        return self._run(replay, args)
                    try:
                        made = kernel(*data)
                    except OutOfMemory:
                        return self._run(replay, args)  # which has other devices
                    if replay.form is Tensor:
                        return Tensor(Node(replay.calls[0], (), Buffer(made[0])))  # type: ignore[return-value]
                    nodes = [Node(c, (), Buffer(m)) for c, m in zip(replay.calls, made, strict=True)]
                    return replay.rebuilt(nodes)  # type: ignore[no-any-return]
            return self._call(args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _run(self, replay: Replay, args: tuple[Any, ...]) -> R:
        """A plain replay for computed tensors and numbers, step by step, with the handling of failures."""
        if is_tracing() or is_recording():
            return self._function(*args)
        nodes = nodes_of(args)
        made = run_again(replay.plan, nodes, lambda buffers: replay.outputs(nodes, buffers))
        return replay.rebuilt(made)  # type: ignore[no-any-return]

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if is_tracing() or is_recording():
            return self._function(*self._bound, *args, **kwargs)  # becomes part of the enclosing trace or gradient
        given = self._marked_all((*self._bound, *args), kwargs)
        arguments = self._last
        leaves = None if arguments is None else arguments.leaves(given)
        if arguments is None or leaves is None:
            leaves, structure = taken_apart(given, static)
            arguments = self._last = self._arguments(structure)
        kinds, nodes = kinds_and_nodes(leaves)
        options = current()
        if options.check_nan:
            return self._checked(kinds, arguments.structure, nodes)
        is_plain = not kwargs and not self._static and all(type(a) in (Tensor, float) for a in args)
        key = (options, *kinds) if is_plain else (options, arguments, *kinds)
        replay = self._replays.get(key)
        if replay is None:
            replay = self._traced(kinds, arguments.structure)
            while len(self._replays) >= _TRACE_LIMIT:
                self._replays.pop(next(iter(list(self._replays))), None)
            self._replays[key] = replay
        elif replay.generation != Generation.number:
            replay = self._replays[key] = replay.renewed()
        if replay.feeds:
            nodes += [asarray(make())._node for make in replay.feeds]
        made = replay.at_once(nodes)
        if made is None:
            made = replay.rebuilt(run_again(replay.plan, nodes, lambda buffers: replay.outputs(nodes, buffers)))
        return made  # type: ignore[no-any-return]

    def _traced(self, kinds: Sequence[Spec | Static], structure: Structure) -> Replay:
        given = [Node(leaf_call(k), ()) for k in kinds if isinstance(k, Spec)]
        with tracing("jit") as traced:
            returned = self._called_with(kinds, structure, given)
        return replay_of(returned, given, traced)

    def _arguments(self, structure: Structure) -> Arguments:
        """The one object for this structure of arguments."""
        while len(self._known) >= _TRACE_LIMIT:
            self._known.pop(next(iter(list(self._known))), None)
        return self._known.setdefault(structure, Arguments(structure))

    def _marked_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments, with marks on those that belong to the signature by their value."""
        if not self._static:
            return args, kwargs
        marked = [self._marked(name, a) for name, a in zip((*self._names, *[""] * len(args)), args, strict=False)]
        return tuple(marked), {name: self._marked(name, v) for name, v in kwargs.items()}

    def _marked(self, name: str, value: Any) -> Any:
        return static(value) if name in self._static else value

    def _called_with(self, kinds: Sequence[Spec | Static], structure: Structure, given: Iterable[Node]) -> Any:
        """The function's result for these nodes in place of its tensors and numbers."""
        nodes = iter(given)
        copies = Copies(structure, [k.value if isinstance(k, Static) else Tensor(next(nodes)) for k in kinds])
        args, kwargs = copies.tree
        try:
            returned = self._function(*args, **kwargs)
        except AttributeError as error:
            copies.explain(error)
            raise
        copies.check()
        return returned

    def _checked(self, kinds: Sequence[Spec | Static], structure: Structure, given: Iterable[Node]) -> R:
        """The function's result, each op by itself, without a trace: see `options(check_nan=True)`."""
        values, shape = flatten(self._called_with(kinds, structure, given))
        results = [asarray(v) if is_result(v) else plain(v) for v in values]
        evaluate([r._node for r in results if isinstance(r, Tensor)])
        return unflatten(shape, results)  # type: ignore[no-any-return]


def _named(places: Iterable[int], names: Sequence[str]) -> set[str]:
    """The names of the arguments at these positions."""
    for n in places:
        if not -len(names) <= n < len(names):
            raise ArgumentError(f"[jit] expected static_argnums among the positions of {list(names)}, got {n}")
    return {names[n] for n in places}


def _called(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@overload
def jit(
    function: Callable[P, R],
    *,
    static_argnames: str | Iterable[str] = (),
    static_argnums: int | Iterable[int] = (),
) -> Jitted[P, R]: ...


@overload
def jit(
    *, static_argnames: str | Iterable[str] = (), static_argnums: int | Iterable[int] = ()
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


@short_tracebacks
def jit(
    function: Any = None,
    *,
    static_argnames: str | Iterable[str] = (),
    static_argnums: int | Iterable[int] = (),
) -> Any:
    """Compile a function: trace it once per signature of its arguments, then replay its plan.

    The signature holds the shapes and dtypes of tensors and arrays, the kinds of Python numbers, and the values of all
    other arguments. Tensors that the function reads from an enclosing scope are constants of the trace. Random draws
    are made anew at every call. The function must not need the values of traced tensors: `if x > 0`, `float(x)` and
    `print(x)` raise `TraceError`.

    Parameters
    ----------
    function : callable
        The function to compile. It returns tensors, or nested tuples, lists and dicts of tensors. Without `function`,
        `jit` returns a decorator.
    static_argnames : str or iterable of str
        Names of arguments that belong to the signature by their value. A new value causes a new trace.
    static_argnums : int or iterable of int
        Positions of arguments that belong to the signature by their value.

    Returns
    -------
    Jitted
        A callable with the arguments and results of `function`. Its `plans` attribute holds one `Plan` per trace.

    Examples
    --------
    >>> import yosegi as ys
    >>> @ys.jit
    ... def norm(x):
    ...     return ys.sqrt(ys.sum(x * x))
    >>> float(norm(ys.asarray([3.0, 4.0])))
    5.0
    >>> len(norm.plans)
    1
    """
    if function is None:
        return lambda f: Jitted(f, static_argnames, static_argnums)
    return Jitted(function, static_argnames, static_argnums)
