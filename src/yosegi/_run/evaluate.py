"""Evaluation: nodes → plan → values. The plan is looked up by the structure of the graph, or made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import Lock
from typing import Any, Final

from .._graph.expand import expand, is_whole_in_vain
from .._graph.graph import Graph, Key, capture, check, graph_of
from .._graph.simplify import simplify
from .._place.costs import costs
from .._place.place import place, place_on
from .._place.plan import Plan, Schedule
from .._schedule.fuse import communicates
from .._tensor.environment import is_measuring, setting
from .._tensor.node import Node, drop_history, in_order, install_evaluator
from .._tensor.op import leaf as leaf_op
from .._tensor.op import pick
from .._tensor.options import Options, current
from .._tensor.precision import Policy
from .._tensor.tensor import HOOKS
from .._tune.bodies import precise_bodies
from .._tune.learn import Alternatives, Watch, execute, is_worth_judging
from ..errors import DeviceLost, Unsupported, ValuesLost
from .background import background
from .device import Device, chain_named, host_device, present
from .finite import check_finite
from .forks import in_forked_child
from .health import health
from .memory import HOST, Buffer
from .run import check_fallback, run_short, to_host
from .snapshots import HISTORY_LOCK, depth_after, shorten
from .trace import trace

CHECKED: Final = setting("YOSEGI_CHECK", False)
"""Check every graph at every stage, and every result against its spec. For tests."""

_BYTES_PER_ENTRY: Final = 64  # roughly what an entry of a key, with its share of the plan, takes
_CACHE_BYTES: Final = 64 << 20


class PlanCache:
    """Plans by structural key. The oldest are dropped when all together outgrow the limit."""

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
        """Replace the lock in a forked child: a thread that does not exist there may hold it."""
        self._lock = Lock()

    @staticmethod
    def _weight(key: Key, plan: Plan) -> int:
        return _BYTES_PER_ENTRY * len(key) + plan.nbytes

    def __len__(self) -> int:
        return len(self._plans)


_plans: Final[dict[Options, PlanCache]] = {}


class PlanCount:
    """The number of plans that were made, alternatives included."""

    number = 0


def plan_for(key: Key) -> Plan:
    """The plan for a structure under the options in force, from the cache if it is there."""
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
    """A new plan: the graph is expanded, simplified, fused and placed. `repeats` is True if it will run many times."""
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
    """The placed graph. Composites that one of the `takers` has stay native; if none gets any, all are decomposed."""
    PlanCount.number += 1
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
    """The alternatives to the plan of a graph. A single device gets the graph that it gets when the user names it."""

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
            forget(leaves, gone.space)
            continue
        return


def _results(plan: Plan, inputs: list[Buffer]) -> list[Buffer]:
    if plan.host_kernel is not None and (plan.watch is None or plan.watch.passes()):
        made = run_short(plan, inputs)
        if made is not None:
            return made
    return execute(plan, inputs)


def replay(plan: Plan, leaves: Sequence[Node], nodes_for: Callable[[Sequence[Buffer]], list[Node]]) -> list[Node]:
    """The outputs of a plan for the values of these leaves. Leaves that have no value are computed first.

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
            forget(leaves, gone.space)


def settle(
    nodes: Sequence[Node], buffers: Sequence[Buffer], leaves: Sequence[Node], source: Node | None = None
) -> None:
    """Give nodes their values, and drop the histories that are not needed to compute the values again.

    `source` is the node whose outputs all nodes are, if there is one.
    """
    depth = 0
    for node, buffer in zip(nodes, buffers, strict=True):
        if buffer.space is HOST:
            node.buffer = buffer
            if node.inputs:
                drop_history(node)
            continue
        depth = depth or depth_after([leaf.buffer for leaf in leaves])
        buffer.depth = depth
        if node.buffer is None:
            node.buffer = buffer
        if len(node.inputs) != len(node.call.inputs) and node.call.op is not pick:
            to_host(buffer)  # another thread was faster, and has dropped the history
    if depth:
        shorten(nodes, buffers, depth, source)


def forget(leaves: Sequence[Node], space: str) -> None:
    """Remove a lost memory from the buffers of leaves. A leaf without another replica is computed again."""
    for leaf in leaves:
        with HISTORY_LOCK:
            inputs = leaf.inputs  # before buffer: see Node
            buffer = leaf.buffer
            if buffer is None or space not in buffer.spaces():
                continue
            left = buffer.without(space)
            if left is None and not inputs and (leaf.call.inputs or leaf.call.op is leaf_op):
                raise DeviceLost(f"a tensor of {leaf.spec!r} that only {space} had cannot be made again")
            leaf.buffer = left


def fetch(node: Node) -> Any:
    """The node's value as a host array. It is computed if it is not there, or was lost."""
    while True:
        evaluate((node,))
        buffer = node.buffer
        if buffer is None:
            continue
        try:
            array = to_host(buffer)
        except ValuesLost as gone:
            forget((node,), gone.space)
            continue
        if node.inputs:
            with HISTORY_LOCK:
                if node.buffer is buffer:
                    drop_history(node)
        return array


def check_results(nodes: Sequence[Node], buffers: Sequence[Buffer]) -> None:
    """Raise `AssertionError` unless each result has the shape and dtype of its node's spec."""
    for node, buffer in zip(nodes, buffers, strict=True):
        parts = buffer.data if len(node.call.outputs) > 1 else (buffer.data,)
        for spec, part in zip(node.call.outputs, parts, strict=True):
            got = (part.shape, part.dtype)
            assert got == (spec.local.shape, spec.dtype.numpy), f"{node.call!r} promised {spec!r}, gave {got}"


install_evaluator(evaluate, fetch)


def _after_fork() -> None:
    """Exclude devices from a forked child: drivers do not survive a fork. Values of devices are computed again."""
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
