"""`jit`: trace a function once per input signature, then replay its plan with almost no Python in the way."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import update_wrapper
from inspect import Parameter, signature
from types import MethodType
from typing import Any, Final, Generic, ParamSpec, TypeVar, overload
from weakref import WeakSet

import numpy as np

from .._graph.graph import Graph, capture, graph_of
from .._graph.reference import interpret
from .._place.explain import counted
from .._place.plan import Plan
from .._run.device import Device, Generation, chain_named
from .._run.evaluate import CHECKED, check_results, depth_after, plan_of, shorten
from .._run.evaluate import replay as run_again
from .._run.health import health
from .._run.memory import HOST, Buffer
from .._run.run import gathered
from .._run.trace import trace
from .._tensor.dtype import DType, as_dtype, number_type, on_new_default
from .._tensor.html import folded, heading
from .._tensor.interchange import class_name, is_array, sealed
from .._tensor.node import Call, Node, Spec, evaluate, fetch, in_order, kept_histories, spec
from .._tensor.op import Arr, OpKind, embedded, exact, leaf_call, op, pick, pick_call
from .._tensor.options import current
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import hide_frames, short_tracebacks
from .._tensor.tree import Structure, flatten, unflatten
from .._tensor.tree_code import builder, reader
from ..errors import ArgumentError, DeviceFailure, DTypeError, OutOfMemory, ValuesLost, YosegiError
from ..ops import rules
from ..ops.creation import asarray
from .objects import Copies, is_comparable, opens
from .objects import flatten as taken_apart
from .reverse import variable
from .tracing import Feed, is_recording, is_tracing, tracing

P = ParamSpec("P")
R = TypeVar("R")

_TRACE_LIMIT: Final = 256  # traces kept per function; with one more, the oldest goes
_WEAK: Final = {kind: spec((), as_dtype(kind), weak=True) for kind in (int, float, complex)}


@op(OpKind.SOURCE, infer=lambda *inputs, graph: tuple(graph.calls[o].spec for o in graph.outputs))
def replayed(*inputs: Arr, graph: Graph) -> Arr:
    """A traced function, computed again by the reference: only for values that a device has lost."""
    values = interpret(graph.calls, graph.args, range(len(graph.calls)), dict(zip(graph.inputs, inputs, strict=True)))
    made = tuple(np.asarray(values[o]) for o in graph.outputs)
    return made if len(made) > 1 else made[0]


@dataclass(frozen=True, slots=True)
class _Static:
    """An argument that belongs to the signature: its value may decide what the function does."""

    exact: Any
    value: Any


@dataclass(frozen=True, slots=True)
class _Output:
    index: int


_LEAVES: Final = frozenset({
    Tensor, _Static, float, int, complex, bool, str, type(None), np.ndarray, np.float32, np.float64, np.int32, np.int64,
})  # fmt: skip
"""Types that are leaves of arguments, whatever their values."""
_TENSORS: Final = {Tensor}
_OUTPUTS: Final = (pick, variable)
"""Ops of nodes whose inputs hold no values in a device's memory: outputs of replays, and values brought to a device."""


class _Arguments:
    """The structure of arguments, as part of a signature: one object for each structure of a function."""

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self._read: Callable[[Any], Sequence[Any] | None] | None = None
        self._is_new = True

    def leaves(self, given: Any) -> Sequence[Any] | None:
        """The leaves of arguments, if they have this structure and their leaves are known to be leaves."""
        if self._is_new:  # a function that is called once needs no generated code
            self._read, self._is_new = reader(self.structure), False
        leaves = None if self._read is None else self._read(given)
        return leaves if leaves is not None and _LEAVES.issuperset(map(type, leaves)) else None


class _Source(Node):
    """A replay as one call on its inputs, from which values are made again that a device has lost.

    It holds how inputs are made, and the values of those that the host has: where inputs begin that are made of the
    same, as all results of a replay are, and what it keeps of the others. What a device has is lost with the device:
    if a history held it, a loop would keep the results of all its last runs in the device's memory. The inputs become
    nodes when somebody asks for them, which for nearly all replays nobody does: what is held until then is little.
    """

    __slots__ = ("_calls", "_inputs", "_kept", "_runs", "holds")

    def __init__(self, call: Call, nodes: Sequence[Node], space: str, calls: tuple[Call, ...]) -> None:
        """`calls` are those of the inputs."""
        self.call, self.spec, self.buffer = call, call.spec, None
        self._inputs: tuple[Node, ...] | None = None
        self._calls = calls
        runs: list[tuple[int, tuple[Node, ...]]] = []
        kept: dict[int, Any] = {}
        self._runs, self._kept = runs, kept
        last = None
        for n, node in enumerate(nodes):
            source = node.inputs  # before buffer: see Node
            if source is not last:
                runs.append((n, source))
                last = source
            buffer = node.buffer
            if not source or node.call.op not in _OUTPUTS or (buffer is not None and buffer.space is not space):
                kept[n] = _kept(node)
        self.holds = bool(kept) and any(isinstance(k, Node) for k in kept.values())
        """Whether it may hold values in a device's memory."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs, without values in a device's memory where there is another way to make them."""
        made = self._inputs
        if made is None:
            kept, starts = self._kept, dict(self._runs)
            source: tuple[Node, ...] = ()
            nodes = []
            for n, call in enumerate(self._calls):
                source = starts.get(n, source)
                nodes.append(_again(call, kept[n]) if n in kept else Node(call, source))
            made = self._inputs = tuple(nodes)
        return made

    @inputs.setter
    def inputs(self, nodes: tuple[Node, ...]) -> None:
        self._inputs = nodes
        self._calls, self._runs, self._kept = (), [], {}


def _kept(node: Node) -> Any:
    """The part of an input that a history holds: the values on the host, or else the input itself."""
    buffer = node.buffer
    array = None if buffer is None else buffer.on(HOST)
    return node if array is None else array


def _again(call: Call, kept: Any) -> Node:
    """An input of a replay, as a part of its history."""
    return kept if isinstance(kept, Node) else Node(call, (), Buffer(kept))


@dataclass(frozen=True, slots=True)
class _Replay:
    """A function traced for one signature: a plan of the traced arguments, then the feeds."""

    plan: Plan
    feeds: tuple[Feed, ...]
    calls: tuple[Call, ...]
    """Of leaves like the outputs."""
    results: tuple[Any, ...]
    """The leaves of what the function returned: an `_Output`, or a value that is not a tensor."""
    returns_outputs: bool
    """Whether the results are all outputs, and the outputs all results."""
    build: Callable[[Sequence[Any]], Any]
    """Makes what the function returned of such leaves."""
    form: type | None
    """`Tensor` or `tuple`, when the outputs are simply all that the function returned."""
    history: Call | None
    """The whole replay as one call, to make values again that a device has lost; `None` without outputs."""
    picks: tuple[Call, ...]
    """How each output comes out of that call."""
    is_plain: bool
    """Whether the plan is all of it: nothing is fed, and nothing returned but a tensor or some."""
    prints: tuple[tuple[Callable[[Sequence[Tensor]], None], tuple[int, ...]], ...]
    """The functions that print after each run, each with the positions of the outputs that it prints. These outputs
    follow the ones that the function returned."""
    graph: Graph
    """The traced program."""
    input_calls: list[tuple[Call, ...]]
    """The calls of the inputs of the last run, alone: in a loop they are the same, and all histories share them."""
    chain: tuple[Device, ...]
    generation: int
    """The devices that the plan was made for, and when these were last looked at."""

    def renewed(self) -> _Replay:
        """The program with a plan for the present devices: some may have become ready since it was made."""
        generation, chain = Generation.number, chain_named(current().device)
        if chain == self.chain:
            return replace(self, generation=generation)
        plan = plan_of(self.graph, repeats=True)
        return replace(self, plan=plan, history=self._history_by(plan), chain=chain, generation=generation)

    def _history_by(self, plan: Plan) -> Call | None:
        old = self.history
        return None if old is None else Call(old.op, {"graph": plan.graph}, old.inputs, old.outputs)

    def rebuilt(self, nodes: Sequence[Node]) -> Any:
        """The function's result, made of these outputs. The function's prints are printed."""
        made = [Tensor(n) for n in nodes]
        for show, places in self.prints:
            show([made[n] for n in places])
        if self.form is not None:
            return made[0] if self.form is Tensor else tuple(made)
        if self.returns_outputs:
            return self.build(made)
        return self.build([made[r.index] if isinstance(r, _Output) else r for r in self.results])

    def outputs(self, inputs: Sequence[Node], buffers: Sequence[Buffer]) -> list[Node]:
        """Nodes for the outputs: leaves, or, if a device may yet lose them, nodes that know how they were made."""
        space = next((b.space for b in buffers if b.space is not HOST), None)
        if space is None:
            return [Node(call, ()) for call in self.calls]
        source = (self._source(inputs, space),)
        return [Node(call, source) for call in self.picks]

    def _source(self, nodes: Sequence[Node], space: str) -> _Source:
        """The replay on these inputs as one call."""
        assert self.history is not None
        calls, known = tuple([n.call for n in nodes]), self.input_calls[0]
        if calls == known:
            calls = known
        else:
            self.input_calls[0] = calls  # other threads do so too: read once
        return _Source(self.history, nodes, space, calls)

    def _volatile(
        self, nodes: Sequence[Node], inputs: Sequence[Any], outputs: Sequence[Any], space: str, is_pinned: bool,
        moved: int,
    ) -> list[Node]:  # fmt: skip
        """Nodes for outputs that a device may yet lose."""
        depth, source = depth_after(inputs, moved), self._source(nodes, space)
        above = (source,)
        buffers = [Buffer(data, space, is_pinned, depth) for data in outputs]
        made = [Node(call, above, buffer) for call, buffer in zip(self.picks, buffers, strict=True)]
        shorten(made, buffers, depth, source, holds=source.holds)
        return made

    def at_once(self, nodes: Sequence[Node]) -> Any | None:
        """The result, if the whole plan is one compiled step and all inputs are computed, else `None`.

        `None` also after a failure: the long way knows what follows.
        """
        plan = self.plan
        step = plan.sole_step
        if step is None or step.missed or trace.profiles:
            return None
        candidate = step.candidate
        device = candidate.device
        space, kernel = device.space, step.kernels.get(candidate)
        if kernel is None or health.reason_against(device.name, step.region) is not None:
            return None
        buffers = [n.buffer for n in nodes]
        data, moved = [b.data for b in buffers if b is not None and b.space is space], 0
        is_elsewhere = len(data) < len(buffers)
        if (is_elsewhere and None in buffers) or (plan.watch is not None and not plan.watch.passes()):
            return None
        try:
            if is_elsewhere:
                data, moved = gathered(step.region, buffers, space)  # type: ignore[arg-type]
            outputs = kernel(*data)
            if space is HOST:
                results = [Node(call, (), Buffer(data)) for call, data in zip(self.calls, outputs, strict=True)]
            else:
                results = self._volatile(nodes, buffers, outputs, space, step.is_pinned, moved)
            if CHECKED:
                check_results(results, [n.buffer for n in results if n.buffer is not None])
        except (DeviceFailure, ValuesLost):
            return None
        except YosegiError:
            raise
        except Exception:
            if kernel is plan.host_kernel:
                raise
            return None
        return self.rebuilt(results)


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
        self._replays: dict[Any, _Replay] = {}
        self._known: dict[Structure, _Arguments] = {}
        self._last: _Arguments | None = None
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
                        key.append(_WEAK[float])
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
                        made = replay.at_once(leaves if len(leaves) == len(args) else _nodes_of(args))
                        return self._run(replay, args) if made is None else made
                    if watch is not None and not watch.passes():
                        return self._run(replay, args)
                    try:
                        made = kernel(*data)
                    except OutOfMemory:
                        return self._run(replay, args)  # the long way has other devices
                    if replay.form is Tensor:
                        return Tensor(Node(replay.calls[0], (), Buffer(made[0])))  # type: ignore[return-value]
                    nodes = [Node(c, (), Buffer(m)) for c, m in zip(replay.calls, made, strict=True)]
                    return replay.rebuilt(nodes)  # type: ignore[no-any-return]
            return self._call(args, kwargs)
        except Exception as error:
            hide_frames(error)
            raise

    def _run(self, replay: _Replay, args: tuple[Any, ...]) -> R:
        """A plain replay for computed tensors and numbers, with the whole runtime around it."""
        if is_tracing() or is_recording():
            return self._function(*args)
        nodes = _nodes_of(args)
        made = run_again(replay.plan, nodes, lambda buffers: replay.outputs(nodes, buffers))
        return replay.rebuilt(made)  # type: ignore[no-any-return]

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> R:
        if is_tracing() or is_recording():
            return self._function(*self._bound, *args, **kwargs)  # part of that other trace's, or gradient's, graph
        given = self._marked_all((*self._bound, *args), kwargs)
        arguments = self._last
        leaves = None if arguments is None else arguments.leaves(given)
        if arguments is None or leaves is None:
            leaves, structure = taken_apart(given, _static)
            arguments = self._last = self._arguments(structure)
        kinds: list[Spec | _Static] = []
        nodes: list[Node] = []
        if set(map(type, leaves)) == _TENSORS:
            nodes = [t._node for t in leaves]
            kinds = [n.spec for n in nodes]
        else:
            for value in leaves:
                if type(value) is not Tensor:
                    value = _as_input(value)
                    if isinstance(value, _Static):
                        kinds.append(value)
                        continue
                    if not isinstance(value, Tensor):
                        kinds.append(_weak(value))
                        nodes.append(_number(value))
                        continue
                node = value._node
                kinds.append(node.spec)
                nodes.append(node)
        options = current()
        if options.check_nan:
            return self._checked(kinds, arguments.structure, nodes)
        plain = not kwargs and not self._static and all(type(a) in (Tensor, float) for a in args)
        key = (options, *kinds) if plain else (options, arguments, *kinds)
        replay = self._replays.get(key)
        if replay is None:
            replay = self._trace(kinds, arguments.structure)
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

    def _arguments(self, structure: Structure) -> _Arguments:
        """The one object for this structure of arguments."""
        while len(self._known) >= _TRACE_LIMIT:
            self._known.pop(next(iter(list(self._known))), None)
        return self._known.setdefault(structure, _Arguments(structure))

    def _marked_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments, with marks on those that belong to the signature by their value."""
        if not self._static:
            return args, kwargs
        marked = [self._marked(name, a) for name, a in zip((*self._names, *[""] * len(args)), args, strict=False)]
        return tuple(marked), {name: self._marked(name, v) for name, v in kwargs.items()}

    def _marked(self, name: str, value: Any) -> Any:
        return _static(value) if name in self._static else value

    def _called_with(self, kinds: Sequence[Spec | _Static], structure: Structure, given: Iterable[Node]) -> Any:
        """The function's result for these nodes in place of its tensors and numbers."""
        nodes = iter(given)
        copies = Copies(structure, [k.value if isinstance(k, _Static) else Tensor(next(nodes)) for k in kinds])
        args, kwargs = copies.tree
        try:
            returned = self._function(*args, **kwargs)
        except AttributeError as error:
            copies.explain(error)
            raise
        copies.check()
        return returned

    def _checked(self, kinds: Sequence[Spec | _Static], structure: Structure, given: Iterable[Node]) -> R:
        """The function's result, each op by itself, without a trace: see `options(check_nan=True)`."""
        values, shape = flatten(self._called_with(kinds, structure, given))
        results = [asarray(v) if _is_array(v) else _plain(v) for v in values]
        evaluate([r._node for r in results if isinstance(r, Tensor)])
        return unflatten(shape, results)  # type: ignore[no-any-return]

    def _trace(self, kinds: Sequence[Spec | _Static], structure: Structure) -> _Replay:
        given = [Node(leaf_call(k), ()) for k in kinds if isinstance(k, Spec)]
        with tracing("jit") as traced:
            returned = self._called_with(kinds, structure, given)
        values, shape = flatten(returned)
        is_output = [_is_array(v) for v in values]
        tensors = [asarray(v) for v, out in zip(values, is_output, strict=True) if out]
        indices = iter(range(len(tensors)))
        results = tuple(_Output(next(indices)) if out else _plain(v) for v, out in zip(values, is_output, strict=True))
        prints = []
        for line in traced.prints:
            prints.append((line.show, tuple(range(len(tensors), len(tensors) + len(line.nodes)))))
            tensors += [Tensor(node) for node in line.nodes]
        graph = _graph_of_trace([t._node for t in tensors], given + [node for node, _ in traced.feeds])
        generation, chain = Generation.number, chain_named(current().device)
        plan = plan_of(graph, repeats=True)
        returns_outputs = all(is_output) and not prints
        form = None
        if returns_outputs:
            form = Tensor if shape is ... else tuple if shape == (tuple, None, (...,) * len(values)) else None
        calls = tuple(leaf_call(spec(t.shape, t.dtype, layout=t.layout)) for t in tensors)
        fed = [node for node, _ in traced.feeds]
        specs = tuple(n.spec for n in (*given, *fed))
        outputs = tuple(c.spec for c in calls)
        history = Call(replayed, {"graph": plan.graph}, specs, outputs) if outputs else None
        picks = tuple(pick_call(outputs, i) for i in range(len(outputs))) if len(outputs) > 1 else ()
        if len(outputs) == 1:
            picks = (variable.call(outputs, {}),)
        feeds = tuple(make for _, make in traced.feeds)
        is_plain = form is not None and not feeds
        return _Replay(
            plan, feeds, calls, results, returns_outputs, builder(shape), form, history, picks, is_plain,
            tuple(prints), graph, [()], chain, generation,
        )  # fmt: skip


def _named(places: Iterable[int], names: Sequence[str]) -> set[str]:
    """The names of the arguments at these positions."""
    for n in places:
        if not -len(names) <= n < len(names):
            raise ArgumentError(f"[jit] expected static_argnums among the positions of {list(names)}, got {n}")
    return {names[n] for n in places}


def _as_input(value: Any) -> Tensor | _Static | int | float | complex:
    if isinstance(value, (Tensor, _Static)):
        return value
    if is_array(value):
        return asarray(value)
    if number_type(value) in _WEAK:
        return value  # type: ignore[no-any-return]
    made = _static(value)
    if not is_comparable(value):
        raise ArgumentError(
            f"[jit] expected arguments whose changes show, got {type(value).__name__}, which equals only itself and "
            "has no attributes; pass what the function needs of it, or close over it"
        )
    return made


def _is_array(value: Any) -> bool:
    return isinstance(value, (Tensor, np.ndarray, np.generic))


def _called(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _static(value: Any) -> _Static:
    try:
        hash(value)
    except (TypeError, ValueError):  # a memoryview raises the second
        raise ArgumentError(
            f"[jit] expected arguments that are tensors, numbers or hashable, got {class_name(value)}; pass it as a "
            "tuple, or close over it"
        ) from None
    return _Static(exact((value,)), value)


def _plain(value: Any) -> Any:
    """A result that is not a tensor, if it cannot hide one."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Enum, DType)):
        return value
    raise ArgumentError(
        f"[jit] expected the function to return tensors, numbers, strings or None, in tuples, lists and dicts, got "
        f"{class_name(value)}"
    )


def _weak(value: complex) -> Spec:
    return _WEAK[number_type(value)]  # type: ignore[index]


def _nodes_of(args: Sequence[Any]) -> list[Node]:
    """The nodes of tensors and numbers."""
    return [a._node if type(a) is Tensor else _number(a) for a in args]


def _number(value: complex) -> Node:
    """A Python number that is given to a trace, as a value."""
    kind = _weak(value)
    try:
        return Node(leaf_call(kind), (), Buffer(np.asarray(value, kind.dtype.numpy)))
    except OverflowError:
        raise DTypeError(
            f"[jit] expected a number that fits {kind.dtype.name}, got {value}; pass it as a float"
        ) from None


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
            node.buffer = None  # code that kept it beyond the trace must not take it for one
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
