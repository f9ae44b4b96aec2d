"""Evaluation: nodes → plan (a known one, if the structure has been seen) → values."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from threading import Lock, RLock
from typing import Any, Final, final

from .._graph.expand import expand, is_whole_in_vain
from .._graph.graph import Graph, Key, capture, check, graph_of
from .._graph.simplify import simplify
from .._place.costs import costs
from .._place.explain import Explanation
from .._place.place import place, place_on
from .._place.plan import Plan, Schedule
from .._schedule.fuse import communicates
from .._tensor.environment import is_measuring, setting
from .._tensor.interchange import class_name
from .._tensor.node import Node, in_order, install_evaluator, kept_histories
from .._tensor.op import leaf as leaf_op
from .._tensor.op import leaf_call, pick
from .._tensor.options import Options, current
from .._tensor.precision import Policy
from .._tensor.tensor import HOOKS, OPERATORS, Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten, paths
from .._trace.reverse import variable
from .._trace.tracing import is_recorded, is_tracing
from .._tune.bodies import precise_bodies
from .._tune.learn import Alternatives, Watch, execute, is_worth_judging
from .._tune.records import confirm, noting
from ..errors import ArgumentError, DeviceFailure, DeviceLost, TraceError, Unsupported, ValuesLost
from ..ops.creation import asarray
from .background import background
from .device import Device, chain_named, device_named, host_device, owner_of, present
from .finite import check_finite
from .forks import in_forked_child
from .health import health
from .memory import HOST, Buffer
from .run import check_fallback, moved_to, run_short, to_host, transfers
from .snapshots import snapshots
from .trace import trace

CHECKED: Final = setting("YOSEGI_CHECK", False)
"""Check every graph at every stage, and every result against its spec. For tests."""

_BYTES_PER_ENTRY: Final = 64  # roughly what an entry of a key, with its share of the plan, takes
_CACHE_BYTES: Final = 64 << 20
_SHORT_HISTORY: Final = 4  # evaluations whose history is kept, to make values again that only a device had
_LONG_HISTORY: Final = 32
_LONGEST_HISTORY: Final = 128
_HISTORY_SHARE: Final = 8
"""The share of a device's memory that results in a history may take: one of so many."""
_BYTES_PER_EVALUATION: Final = 8 << 20
"""Bytes from the host that make a history longer by one more evaluation: it holds them."""


class PlanCache:
    """Plans by structural key. The oldest go when all together outgrow the limit."""

    def __init__(self, chain: tuple[Device, ...] = (), limit: int = _CACHE_BYTES) -> None:
        self.chain = chain
        """The devices over which the plans were made."""
        self._plans: dict[Key, Plan] = {}
        self._limit = limit
        self._size = 0
        self._lock = Lock()

    def get(self, key: Key) -> Plan | None:
        """The plan for this structure, if there is one."""
        return self._plans.get(key)

    def put(self, key: Key, plan: Plan) -> None:
        """Remember a plan."""
        with self._lock:
            if key in self._plans:
                return
            self._plans[key] = plan
            self._size += self._weight(key, plan)
            while self._size > self._limit and len(self._plans) > 1:
                oldest = next(iter(self._plans))
                self._size -= self._weight(oldest, self._plans.pop(oldest))

    def reset(self) -> None:
        """In a forked child: the lock may have been held by a thread that is not there."""
        self._lock = Lock()

    @staticmethod
    def _weight(key: Key, plan: Plan) -> int:
        return _BYTES_PER_ENTRY * len(key) + plan.nbytes

    def __len__(self) -> int:
        return len(self._plans)


_plans: Final[dict[Options, PlanCache]] = {}


class _Planned:
    """The number of plans that were made, alternatives to others included."""

    number = 0


def plan_for(key: Key) -> Plan:
    """The plan for a structure under the options in force: a known one, or a new one."""
    options = current()
    cache, chain = _plans.get(options), chain_named(options.device)
    if cache is None or cache.chain != chain:
        cache = _plans[options] = PlanCache(chain)
    plan = cache.get(key)
    if plan is None:
        plan = plan_of(graph_of(key))
        cache.put(key, plan)
    return plan


def plan_of(graph: Graph, *, repeats: bool = False) -> Plan:
    """A new plan: the graph, expanded, simplified, cut into regions, placed. `repeats`: it will run many times."""
    options, graph = current(), HOOKS.lower(graph)
    chain, policy, is_named = chain_named(options.device), options.policy, options.device != "auto"
    placing = partial(place, chain=chain, policy=policy, is_named=is_named, repeats=repeats or policy.is_fixed)
    made = _placed(graph, chain, policy, placing)
    plan = Plan(made.graph, made.steps)
    if is_named:
        check_fallback(plan, chain[0])
    if policy.is_fixed or not is_measuring() or any(communicates(step.region) for step in plan.steps):
        return plan  # other ranks take no part in trials
    if not is_named and len(chain) > 1:
        if is_worth_judging(plan, chain):
            plan.watch = Watch(plan, _alternatives(graph, chain, policy))
    elif policy.precisions or (plan.host_kernel is None and len(chain) > 1):
        plan.watch = Watch(plan)
    return plan


def _placed(graph: Graph, takers: Sequence[Device], policy: Policy, placing: Callable[[Graph], Schedule]) -> Schedule:
    """The graph, placed with the composites native that one of the `takers` has; decomposed if none gets any."""
    _Planned.number += 1
    made = placing(_simplified(graph, takers, policy))
    is_in_vain = made.graph.has_composites and is_whole_in_vain(made)
    return placing(_simplified(graph, (), policy)) if is_in_vain else made


def _simplified(graph: Graph, takers: Sequence[Device], policy: Policy) -> Graph:
    expanded = expand(graph, takers, policy) if graph.has_composites else graph
    if policy.tolerance is not None:
        expanded = precise_bodies(expanded)
    smaller = simplify(expanded)
    if CHECKED:
        for stage in (graph, expanded, smaller):
            check(stage)
    return smaller


def _alternatives(graph: Graph, chain: tuple[Device, ...], policy: Policy) -> Alternatives:
    """The alternatives to the plan of a graph. Each single device gets the graph that naming it would give it."""

    def single(device: Device) -> Schedule:
        placing = partial(place_on, device, chain=chain, policy=policy, repeats=True)
        return _placed(graph, list(dict.fromkeys((device, chain[-1]))), policy, placing)

    def again(reused: Collection[int]) -> Schedule:
        placing = partial(place, chain=chain, policy=policy, repeats=True, reused=reused)
        return _placed(graph, chain, policy, placing)

    return Alternatives(chain, single, again, len(graph.calls))


def evaluate(nodes: Sequence[Node]) -> None:
    """Compute these nodes, and the nodes on their path that are still referenced. With `check_nan`, compute one node at
    a time."""
    if not current().check_nan:
        _evaluate(nodes)
        return
    for node in in_order(nodes, lambda n: n.inputs if n.buffer is None else ()):
        inputs = node.inputs  # before buffer: see Node
        if node.buffer is None:
            _evaluate((node,))
            check_finite(node, inputs)


def _evaluate(nodes: Sequence[Node]) -> None:
    while True:
        pending = [n for n in nodes if n.buffer is None]
        if not pending:
            return
        key, leaves, wanted = capture(pending)
        plan = plan_for(key)
        inputs = [leaf.buffer for leaf in leaves]
        if None in inputs:
            continue  # another thread has found it lost
        try:
            buffers = _results(plan, inputs)  # type: ignore[arg-type]
            if CHECKED:
                check_results(wanted, buffers)
            settle(wanted, buffers, leaves)
        except ValuesLost as gone:
            _forget(leaves, gone.space)
            continue
        return


def _results(plan: Plan, inputs: list[Buffer]) -> list[Buffer]:
    if plan.host_kernel is not None and (plan.watch is None or plan.watch.passes()):
        made = run_short(plan, inputs)
        if made is not None:
            return made
    return execute(plan, inputs)


def replay(plan: Plan, leaves: Sequence[Node], nodes_for: Callable[[Sequence[Buffer]], list[Node]]) -> list[Node]:
    """The outputs of a plan for the values of these leaves, which are computed first, or again, where they must be.

    `nodes_for` makes the nodes that get the outputs' values: leaves, or outputs of one node.
    """
    while True:
        evaluate(leaves)
        inputs = [leaf.buffer for leaf in leaves]
        if None in inputs:
            continue
        try:
            buffers = execute(plan, inputs)  # type: ignore[arg-type]
            made = nodes_for(buffers)
            if CHECKED:
                check_results(made, buffers)
            settle(made, buffers, leaves, made[0].inputs[0] if made and made[0].inputs else None)
            return made
        except ValuesLost as gone:
            _forget(leaves, gone.space)


def settle(
    nodes: Sequence[Node], buffers: Sequence[Buffer], leaves: Sequence[Node], source: Node | None = None
) -> None:
    """Give the nodes their values. What they were made of is let go of, unless it may be needed to make them again.

    `source` is the node of which all nodes are outputs, if there is one.
    """
    depth = 0
    for node, buffer in zip(nodes, buffers, strict=True):
        if buffer.space is HOST:
            node.buffer = buffer
            if node.inputs:
                _let_go(node)
            continue
        depth = depth or depth_after([leaf.buffer for leaf in leaves])
        buffer.depth = depth
        if node.buffer is None:
            node.buffer = buffer
        if len(node.inputs) != len(node.call.inputs) and node.call.op is not pick:
            to_host(buffer)  # another thread was faster, and has let go of the history
    shorten(nodes, buffers, depth, source)


def _let_go(node: Node) -> None:
    """Let go of the history of a value that the host has; while a gradient is recorded, when that is done."""
    keep = kept_histories()
    if keep is None:
        node.inputs = ()
    else:
        keep.append(node)


def depth_after(buffers: Iterable[Buffer | None], moved: int = 0) -> int:
    """The length of the history of values made of these, for which so many bytes came from the host."""
    return 1 + max([b.depth for b in buffers if b is not None], default=0) + moved // _BYTES_PER_EVALUATION


def shorten(
    nodes: Sequence[Node], buffers: Sequence[Buffer], depth: int, source: Node | None, *, holds: bool = True
) -> None:
    """End the history of values that only a device has, if it has become long: the host gets the values.

    The history is needed until then: the device may be lost, or may yet say that the work has failed. Nothing waits
    for the copies, unless the history has become very long. `source`, the node of which all nodes are outputs, has the
    values in their place. `holds` is False if the history holds nothing in the device's memory.
    """
    if depth < _SHORT_HISTORY:
        return
    space = next(b.space for b in buffers if b.space is not HOST)
    device = owner_of(space)
    if device is None or not device.is_volatile:  # bringing values to the host costs nothing
        for node, buffer in zip(nodes, buffers, strict=True):
            if buffer.space is not HOST:
                to_host(buffer)
                buffer.depth = 0
                _keep_values([node], [buffer], [buffer.on(HOST)])
        return
    few, most = _history_limits(space, sum(n.spec.nbytes for n in nodes) if holds else 0)
    if depth >= most:
        snapshots.wait()
    elif depth < few or not snapshots.is_due:
        return
    keep = partial(_keep_values, nodes, buffers) if source is None else partial(_keep_outputs, source)
    if snapshots.begin(buffers, sum(n.spec.nbytes for n in nodes), keep):
        for buffer in buffers:
            buffer.depth = 0


@lru_cache(1024)  # a memory's size does not change; when it is lost, it gets a new name
def _history_limits(space: str, nbytes: int) -> tuple[int, int]:
    """The evaluations of history from which a snapshot is taken if one is due, and from which it is taken in any case:
    none may hold more than a share of the device's memory."""
    device = owner_of(space)
    room = _LONGEST_HISTORY if device is None else device.memory()[1] // _HISTORY_SHARE // max(1, nbytes)
    return max(2, min(_LONG_HISTORY, room)), max(2, min(_LONGEST_HISTORY, room))


_cutting: Final = RLock()
"""Held while the history of a value ends, or the value is found to be lost."""


def _keep_values(nodes: Sequence[Node], buffers: Sequence[Buffer], arrays: Sequence[Any]) -> None:
    """Give nodes their values on the host, and end their history."""
    with _cutting:
        for node, buffer, array in zip(nodes, buffers, arrays, strict=True):
            if node.buffer is buffer and buffer.space is not HOST:  # neither lost nor made again meanwhile
                kept = Buffer(buffer.data, buffer.space, buffer.is_pinned)
                kept.add(HOST, array)
                node.buffer = kept
                _let_go(node)


def _keep_outputs(source: Node, arrays: Sequence[Any]) -> None:
    """Give a node the values of its outputs on the host, and end its history."""
    with _cutting:
        if source.buffer is None:
            source.buffer = Buffer(tuple(arrays) if len(arrays) > 1 else arrays[0])
        _let_go(source)


def _forget(leaves: Sequence[Node], space: str) -> None:
    """Leaves whose only values were in a memory that is gone are leaves no more: they are computed again."""
    for leaf in leaves:
        with _cutting:
            inputs = leaf.inputs  # before buffer: see Node
            buffer = leaf.buffer
            if buffer is None or space not in buffer.spaces():
                continue
            left = buffer.without(space)
            if left is None and not inputs and (leaf.call.inputs or leaf.call.op is leaf_op):
                raise DeviceLost(f"a tensor of {leaf.spec!r} that only {space} had cannot be made again")
            leaf.buffer = left


def fetch(node: Node) -> Any:
    """The node's value as a host array, computed if it was not yet, or again if it was lost."""
    while True:
        evaluate((node,))
        buffer = node.buffer
        if buffer is None:
            continue
        try:
            array = to_host(buffer)
        except ValuesLost as gone:
            _forget((node,), gone.space)
            continue
        if node.inputs:
            with _cutting:
                if node.buffer is buffer:
                    _let_go(node)
        return array


def check_results(nodes: Sequence[Node], buffers: Sequence[Buffer]) -> None:
    """Raise unless each result has the shape and dtype its node promised."""
    for node, buffer in zip(nodes, buffers, strict=True):
        parts = buffer.data if len(node.call.outputs) > 1 else (buffer.data,)
        for spec, part in zip(node.call.outputs, parts, strict=True):
            got = (part.shape, part.dtype)
            assert got == (spec.local.shape, spec.dtype.numpy), f"{node.call!r} promised {spec!r}, gave {got}"


install_evaluator(evaluate, fetch)


# What users call


@short_tracebacks
def eval(*tensors: Any) -> None:
    """Compute tensors now, together, and leave their values on their devices.

    Parameters
    ----------
    *tensors : Tensor, or nested tuples, lists and dicts of tensors
        The tensors to compute.

    Examples
    --------
    >>> import yosegi as ys
    >>> x = ys.asarray([1.0, 2.0])
    >>> ys.eval({"doubled": x * 2, "more": [x + 1, x + 2]})
    """
    nodes = _nodes("eval", tensors)
    for node in nodes:
        if node.buffer is None:
            evaluate(nodes)
            return


def synchronize() -> None:
    """Wait until all devices have done the work that was given to them.

    `eval` and jitted functions may return before a GPU is done. A mistake that only the device could find, such as an
    index out of range, is raised here. Tensors that are not computed yet are not computed.

    Examples
    --------
    >>> import yosegi as ys
    >>> y = ys.asarray([1.0, 2.0]) * 2
    >>> ys.eval(y)
    >>> ys.synchronize()
    """
    for device in present():
        with suppress(DeviceFailure):  # a value that is lost with a device is computed again when it is read
            device.synchronize()


def block_until_ready(x: Tensor) -> Tensor:
    """Compute a tensor and wait until its value is there."""
    evaluate((x._node,))
    buffer = x._node.buffer
    device = None if buffer is None else owner_of(buffer.space)
    try:
        if device is None:
            raise DeviceLost("its memory is gone")
        device.synchronize()
    except DeviceFailure:
        fetch(x._node)  # computes the value again, elsewhere
    return x


@short_tracebacks
def plan(*tensors: Any) -> Plan:
    """Return the plan that computes tensors.

    Parameters
    ----------
    *tensors : Tensor, or nested tuples, lists and dicts of tensors
        The tensors to plan. Tensors that are already computed are left out.

    Returns
    -------
    Plan
        The steps, each with its device and precision. It can be explained and saved.

    Examples
    --------
    >>> import yosegi as ys
    >>> plan = ys.plan(ys.exp(ys.asarray([1.0, 2.0])) + 1)
    >>> len(plan.steps)
    1
    """
    return _plan("plan", tensors)


def _plan(op: str, tensors: tuple[Any, ...]) -> Plan:
    return plan_for(capture([node for node in _nodes(op, tensors) if node.buffer is None])[0])


def _nodes(op: str, tensors: tuple[Any, ...]) -> list[Node]:
    try:
        return [t._node for t in tensors]
    except AttributeError:  # not tensors alone
        leaves, _ = flatten(tensors)
    for n, leaf in enumerate(leaves):
        if not isinstance(leaf, Tensor):
            where = [path for i, t in enumerate(tensors) for path in paths(t, f"argument {i}")][n]
            raise ArgumentError(f"[{op}] expected tensors, got {class_name(leaf)} at {where}; make it one with asarray")
    return [t._node for t in leaves]


@final
class LoadedPlan:
    """A plan read from a file, called with its inputs.

    The inputs come in the order in which the program reads them. For a jitted function this is the order of its
    arguments. The results come to the host. A device that fails is not replaced by another: its failure is raised.
    `PlanRefused` is raised if a kernel of the file could not be used.

    Examples
    --------
    See `load_plan`.
    """

    def __init__(self, plan: Plan, kernels: Mapping[str, str]) -> None:
        self._plan, self._kernels = plan, kernels
        self.inputs = tuple([plan.graph.calls[i].spec for i in plan.inputs])
        """The shapes and dtypes that it takes."""

    @short_tracebacks
    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        plan, specs = self._plan, self.inputs
        given = [asarray(value) for value in inputs]
        if [(t.shape, t.dtype) for t in given] != [(s.shape, s.dtype) for s in specs]:
            raise ArgumentError(f"[plan] expected inputs {list(specs)}, got {[t._node.spec for t in given]}")
        leaves = [t._node for t in given]
        if is_recorded(leaves):
            raise TraceError(
                "[plan] expected inputs that no gradient is taken by, got one: a plan has no gradient; call the "
                "function that it was made from"
            )
        calls = [leaf_call(plan.graph.calls[o].spec) for o in plan.graph.outputs]
        with noting() as chosen:  # some kernels are made when they first run
            made = replay(plan, leaves, lambda buffers: [Node(call, ()) for call in calls])
            for node in made:
                fetch(node)
        confirm(self._kernels, chosen)
        return tuple([Tensor(node) for node in made])

    def explain(self) -> Explanation:
        """Return an explanation of the plan: the device of each step, and its last run."""
        return self._plan.explain()


@short_tracebacks
def load_plan(path: str | os.PathLike[str]) -> LoadedPlan:
    """Read a plan from a file that `Plan.save` has written.

    The plan runs on the same devices, in the same precisions and with the same kernels, and gives the same bits.

    Parameters
    ----------
    path : str or path-like
        The file.

    Returns
    -------
    LoadedPlan
        A callable: it takes the inputs of the plan and returns a tuple of tensors.

    Raises
    ------
    PlanRefused
        If the plan would not run as it did. The text names the change: the processor, a driver, a library, this
        package, a kernel, or the file itself.

    Examples
    --------
    >>> import os, tempfile
    >>> import yosegi as ys
    >>> f = ys.jit(lambda x: x * 2)
    >>> f(ys.asarray([1.0, 2.0])).tolist()
    [2.0, 4.0]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     f.plans[0].save(os.path.join(folder, "plan.json"))
    ...     again = ys.load_plan(os.path.join(folder, "plan.json"))
    >>> again(ys.asarray([3.0, 4.0]))[0].tolist()
    [6.0, 8.0]
    """
    return LoadedPlan(*Plan.load(path))


@short_tracebacks
def explain(*tensors: Any) -> Explanation:
    """Explain where tensors are, or were, computed.

    Parameters
    ----------
    *tensors : Tensor, or nested tuples, lists and dicts of tensors
        The tensors to explain.

    Returns
    -------
    Explanation
        The steps of the plan. Each step has its device, its precision, the predicted and measured times of all
        candidates, and the reason against each device that was not chosen. `print` shows it as text, a notebook as a
        table, and `to_json()` returns it as plain data.

    Examples
    --------
    >>> import yosegi as ys
    >>> x = ys.asarray([1.0, 2.0])
    >>> print(ys.explain(ys.exp(x * 3)))  # doctest: +ELLIPSIS
    step 0 on cpu: multiply exp
      float64[2], float64[] → float64[2]...
    """
    return _plan("explain", tensors).explain()


def memory_stats() -> dict[str, Any]:
    """Return the memory of each device, and the transfers and plans since the process started.

    Returns
    -------
    dict
        `devices` maps the name of each device to its bytes: `free`, `total`, and the counters of its pool.
        `transfers` maps each route between memories to its `count` and `bytes`. `snapshots` has the `count`, `bytes`
        and `seconds` of the copies that survive a lost device, which are taken beside the program's work. `plans` is
        the number of plans that were made: in a loop it stays the same after the first steps.

    Examples
    --------
    >>> import yosegi as ys
    >>> sorted(ys.memory_stats())
    ['devices', 'plans', 'snapshots', 'transfers']
    """
    held_by = {}
    for device in present():
        free, total = device.memory()
        held_by[device.name] = {"free": free, "total": total, **device.statistics()}
    traffic = transfers.traffic
    moved = {m.value: {"count": traffic.count[m], "bytes": traffic.nbytes[m]} for m in traffic.count}
    taken = snapshots.statistics()
    return {"devices": held_by, "transfers": moved, "snapshots": taken, "plans": _Planned.number}


def device_of(x: Tensor) -> Device:
    """Where the tensor's value lives; for one not computed yet, the device named in the options, or the host's."""
    if x._node.buffer is None:
        wanted = current().device
        home = HOST if wanted == "auto" else chain_named(wanted)[0].space
    else:
        home = x._node.buffer.space
    return next((d for d in (host_device(), *present()) if d.space == home), host_device())


def holds_data(device: Device) -> bool:
    """True if tensors can be on a device: on the host's, and on every device with a memory of its own."""
    return device.space != HOST or device is host_device()


def to_device(x: Tensor, device: Any, stream: Any = None) -> Tensor:
    """The value in the memory of a device. Operations on the result run there too, if the device supports them."""
    if stream is not None:
        raise ArgumentError(f"[to_device] expected stream=None, got {stream!r}")
    target = device_named(device)
    if not holds_data(target):
        raise ArgumentError(
            f"[to_device] expected a device with a memory of its own, got {target.name}, which computes in the host's "
            f"memory; to compute there, use options(device={target.name!r})"
        )
    if is_tracing():
        return Tensor(x._node)  # a trace is placed as a whole
    while True:
        evaluate((x._node,))
        buffer = x._node.buffer
        if buffer is None:
            continue
        try:
            moved = buffer if buffer.space == target.space else moved_to(buffer, target, x.nbytes)
        except ValuesLost as gone:
            _forget((x._node,), gone.space)
            continue
        if moved is buffer:
            return Tensor(x._node)
        # The node it came from is its history, and the way back for gradients.
        return Tensor(Node(variable.call((x._node.spec,), {}), (x._node,), moved))


HOOKS.device_of = device_of
OPERATORS["to_device"] = to_device
OPERATORS["block_until_ready"] = block_until_ready


def _after_fork() -> None:
    """Drivers do not survive a fork: in the child their devices are left alone, and what they had is made again."""
    health.reset()
    trace.reset()
    background.reset()
    costs.reset()
    for cache in _plans.values():
        cache.reset()
    for device in present():
        if device is not host_device():
            health.note(device.name, None, Unsupported("its driver was loaded before this process was forked"))
        if device.space != HOST:
            device.space = f"{device.name}/forked"


in_forked_child(_after_fork)
