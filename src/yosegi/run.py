"""Evaluation: nodes → plan (a known one, if the structure has been seen) → values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from .device import Device, device_named, devices
from .errors import ArgumentError
from .grad import held
from .graph import Graph, Key, capture, check, graph_of
from .memory import Buffer
from .node import Node, install_evaluator
from .options import Options, current
from .place import place
from .plan import Explanation, Plan
from .simplify import simplify
from .tensor import OPERATORS, Tensor

CHECKED: Final = os.environ.get("YOSEGI_CHECK") == "1"
"""Check every graph at every stage, and every result against its spec. For tests."""


class PlanCache:
    """Plans by structural key. The oldest go when all keys together outgrow the limit."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self._plans: dict[Key, Plan] = {}
        self._limit = limit
        self._size = 0

    def get(self, key: Key) -> Plan | None:
        """The plan for this structure, if there is one."""
        return self._plans.get(key)

    def put(self, key: Key, plan: Plan) -> None:
        """Remember a plan."""
        self._plans[key] = plan
        self._size += len(key)
        while self._size > self._limit and len(self._plans) > 1:
            oldest = next(iter(self._plans))
            if self._plans.pop(oldest, None) is not None:
                self._size -= len(oldest)

    def __len__(self) -> int:
        return len(self._plans)


_plans: Final[dict[Options, PlanCache]] = {}


def plan_for(key: Key) -> Plan:
    """The plan for a structure under the options in force: a known one, or a new one."""
    options = current()
    cache = _plans.get(options)
    if cache is None:
        cache = _plans.setdefault(options, PlanCache())
    plan = cache.get(key)
    if plan is None:
        plan = plan_of(graph_of(key))
        cache.put(key, plan)
    return plan


def plan_of(graph: Graph) -> Plan:
    """A new plan: the graph, simplified, cut into regions, placed, compiled."""
    smaller = simplify(graph)
    if CHECKED:
        check(graph)
        check(smaller)
    return place(smaller, chain())


def chain() -> tuple[Device, ...]:
    """The devices that the options in force allow, in order."""
    wanted = current().device
    return devices() if wanted == "auto" else (device_named(wanted),)


def evaluate(nodes: Sequence[Node]) -> None:
    """Compute these nodes, and with them whatever on their way somebody still holds."""
    pending = [n for n in nodes if n.buffer is None]
    if not pending:
        return
    key, leaves, wanted = capture(pending)
    results = plan_for(key).kernel(*[leaf.buffer.data for leaf in leaves])  # type: ignore[union-attr]
    if CHECKED:
        check_results(wanted, results)
    keep = held()
    for node, result in zip(wanted, results, strict=True):
        node.buffer = Buffer(result)
        if keep is None:
            node.inputs = ()
        else:
            keep.append(node)


def check_results(nodes: Sequence[Node], results: Sequence[Any]) -> None:
    """Raise unless each result has the shape and dtype its node promised."""
    for node, result in zip(nodes, results, strict=True):
        parts = result if len(node.call.outputs) > 1 else (result,)
        for spec, part in zip(node.call.outputs, parts, strict=True):
            got = (part.shape, part.dtype)
            assert got == (spec.shape, spec.dtype.numpy), f"{node.call!r} promised {spec!r}, gave {got}"


install_evaluator(evaluate)


# What users call


def eval(*tensors: Tensor) -> None:
    """Make these tensors real now, together, and leave them where they are."""
    evaluate([t._node for t in tensors])


def plan(*tensors: Tensor) -> Plan:
    """The plan by which these tensors will be computed."""
    return plan_for(capture([t._node for t in tensors if t._node.buffer is None])[0])


def explain(*tensors: Tensor) -> Explanation:
    """What runs where for these tensors, and why not elsewhere.

    >>> import yosegi as ys
    >>> x = ys.asarray([1.0, 2.0])
    >>> print(ys.explain(ys.exp(x * 3)))
    step 0 on cpu: multiply exp
      float64[2], float64[] → float64[2]
    """
    return plan(*tensors).explain()


def device_of(x: Tensor) -> Device:
    """Where the tensor's value lives, or, for one not computed yet, the first device of the chain."""
    return chain()[0] if x._node.buffer is None else next(d for d in devices() if d.space == x._node.buffer.space)


def to_device(x: Tensor, device: Any, stream: Any = None) -> Tensor:
    """The same value on another device."""
    if stream is not None:
        raise ArgumentError(f"[to_device] expected stream=None, got {stream!r}")
    device_named(device)
    return Tensor(x._node)


OPERATORS["device_of"] = device_of
OPERATORS["to_device"] = to_device
