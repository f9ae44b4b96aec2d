"""Public functions on tensors, plans and devices: `eval`, `plan`, `explain`, `memory_stats`, `to_device`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, final

from .._graph.graph import capture
from .._place.explain import Explanation
from .._place.plan import Plan
from .._tensor.interchange import class_name
from .._tensor.node import Node
from .._tensor.op import leaf_call
from .._tensor.options import current
from .._tensor.tensor import HOOKS, OPERATORS, Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten, paths
from .._trace.reverse import variable
from .._trace.tracing import is_recorded, is_tracing
from .._tune.records import confirm, noting
from ..errors import ArgumentError, DeviceFailure, DeviceLost, TraceError, ValuesLost
from ..ops.creation import asarray
from .device import Device, chain_named, device_named, host_device, owner_of, present
from .evaluate import PlanCount, evaluate, fetch, forget, plan_for, replay
from .memory import HOST
from .run import moved_to, transfers
from .snapshots import snapshots


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
    return {"devices": held_by, "transfers": moved, "snapshots": taken, "plans": PlanCount.number}


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
            forget((x._node,), gone.space)
            continue
        if moved is buffer:
            return Tensor(x._node)
        # Its input is the node that it was moved from: its history, which gradients follow too.
        return Tensor(Node(variable.call((x._node.spec,), {}), (x._node,), moved))


HOOKS.device_of = device_of
OPERATORS["to_device"] = to_device
OPERATORS["block_until_ready"] = block_until_ready
