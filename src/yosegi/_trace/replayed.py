"""Traced functions: the plan that runs one again, and the history of its results.

A `Replay` is a function traced for one signature. Its results on a volatile device keep one `ReplaySource` as history,
from which they are computed again if the device is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from .._graph.graph import Graph
from .._graph.reference import interpret
from .._place.plan import Plan
from .._run.device import Device, Generation, chain_named
from .._run.evaluate import CHECKED, check_results, plan_of
from .._run.health import health
from .._run.memory import HOST, Buffer
from .._run.run import gathered
from .._run.snapshots import depth_after, shorten
from .._run.trace import trace
from .._tensor.node import Call, Node, spec
from .._tensor.op import Arr, OpKind, leaf_call, op, pick, pick_call
from .._tensor.options import current
from .._tensor.tensor import Tensor
from .._tensor.tree import flatten
from .._tensor.tree_code import builder
from ..errors import DeviceFailure, ValuesLost, YosegiError
from ..ops.creation import asarray
from .arguments import is_result, plain
from .reverse import variable
from .traced_graph import graph_of_trace
from .tracing import ActiveTrace, Feed


@op(OpKind.SOURCE, infer=lambda *inputs, graph: tuple(graph.calls[o].spec for o in graph.outputs))
def replayed(*inputs: Arr, graph: Graph) -> Arr:
    """A traced function, computed by the reference bodies. It runs only for values that a device has lost."""
    values = interpret(graph.calls, graph.args, range(len(graph.calls)), dict(zip(graph.inputs, inputs, strict=True)))
    made = tuple(np.asarray(values[o]) for o in graph.outputs)
    return made if len(made) > 1 else made[0]


@dataclass(frozen=True, slots=True)
class _Output:
    index: int


_OUTPUTS: Final = (pick, variable)
"""Ops of nodes whose inputs hold no values in a device's memory: outputs of replays, and values brought to a device."""


class ReplaySource(Node):
    """A replay as one call on its inputs. Values that a device has lost are computed again from it.

    For each input it holds its value, if the host has it, or else its own history. It does not hold values in a
    device's memory: they are lost with the device, and a loop would keep the results of all its last runs there.
    Inputs with one history in common, such as the results of one replay, share an entry. The input nodes are made
    when they are read, which is rare.
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
        """True if it may hold values in a device's memory."""

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The inputs. Values in a device's memory are replaced by the nodes that compute them."""
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
    """The part of an input that a history holds: the value on the host, or else the input itself."""
    buffer = node.buffer
    array = None if buffer is None else buffer.on(HOST)
    return node if array is None else array


def _again(call: Call, kept: Any) -> Node:
    """An input of a replay, as a part of its history."""
    return kept if isinstance(kept, Node) else Node(call, (), Buffer(kept))


@dataclass(frozen=True, slots=True)
class Replay:
    """A function traced for one signature. The inputs of its plan are the traced arguments, then the feeds."""

    plan: Plan
    feeds: tuple[Feed, ...]
    calls: tuple[Call, ...]
    """Calls of leaves with the specs of the outputs."""
    results: tuple[Any, ...]
    """The leaves of what the function returned: an `_Output`, or a value that is not a tensor."""
    returns_outputs: bool
    """True if the results are all outputs, and the outputs all results."""
    build: Callable[[Sequence[Any]], Any]
    """Makes the returned structure of its leaves."""
    form: type | None
    """`Tensor` or `tuple` if the function returned one output, or a flat tuple of all outputs."""
    history: Call | None
    """The whole replay as one call, for `ReplaySource`; `None` without outputs."""
    picks: tuple[Call, ...]
    """The call that selects each output of `history`."""
    is_plain: bool
    """True if there are no feeds, and the results are a tensor or a flat tuple of tensors."""
    prints: tuple[tuple[Callable[[Sequence[Tensor]], None], tuple[int, ...]], ...]
    """The functions that print after each run, each with the positions of the outputs that it prints. These outputs
    come after the returned ones."""
    graph: Graph
    """The traced program."""
    input_calls: list[tuple[Call, ...]]
    """One element: the calls of the inputs of the last run. In a loop they repeat, and all histories share them."""
    chain: tuple[Device, ...]
    generation: int
    """The generation of devices in which `chain`, the devices of the plan, was last looked up."""

    def renewed(self) -> Replay:
        """This replay with a plan for the devices that are ready now."""
        generation, chain = Generation.number, chain_named(current().device)
        if chain == self.chain:
            return replace(self, generation=generation)
        plan = plan_of(self.graph, repeats=True)
        return replace(self, plan=plan, history=self._history_by(plan), chain=chain, generation=generation)

    def _history_by(self, plan: Plan) -> Call | None:
        old = self.history
        return None if old is None else Call(old.op, {"graph": plan.graph}, old.inputs, old.outputs)

    def rebuilt(self, nodes: Sequence[Node]) -> Any:
        """The function's result from its outputs. Runs the function's prints."""
        made = [Tensor(n) for n in nodes]
        for show, places in self.prints:
            show([made[n] for n in places])
        if self.form is not None:
            return made[0] if self.form is Tensor else tuple(made)
        if self.returns_outputs:
            return self.build(made)
        return self.build([made[r.index] if isinstance(r, _Output) else r for r in self.results])

    def outputs(self, inputs: Sequence[Node], buffers: Sequence[Buffer]) -> list[Node]:
        """Nodes for the outputs: leaves if all values are on the host, else nodes with a history."""
        space = next((b.space for b in buffers if b.space is not HOST), None)
        if space is None:
            return [Node(call, ()) for call in self.calls]
        source = (self._source(inputs, space),)
        return [Node(call, source) for call in self.picks]

    def _source(self, nodes: Sequence[Node], space: str) -> ReplaySource:
        """The replay on these inputs as one call."""
        assert self.history is not None
        calls, known = tuple([n.call for n in nodes]), self.input_calls[0]
        if calls == known:
            calls = known
        else:
            self.input_calls[0] = calls  # other threads do so too: read once
        return ReplaySource(self.history, nodes, space, calls)

    def _volatile(
        self, nodes: Sequence[Node], inputs: Sequence[Any], outputs: Sequence[Any], space: str, is_pinned: bool,
        moved: int,
    ) -> list[Node]:  # fmt: skip
        """Nodes with a history, for outputs in a device's memory."""
        depth, source = depth_after(inputs, moved), self._source(nodes, space)
        above = (source,)
        buffers = [Buffer(data, space, is_pinned, depth) for data in outputs]
        made = [Node(call, above, buffer) for call, buffer in zip(self.picks, buffers, strict=True)]
        shorten(made, buffers, depth, source, holds=source.holds)
        return made

    def at_once(self, nodes: Sequence[Node]) -> Any | None:
        """The result, if the plan is one compiled step and all inputs are computed; else `None`.

        `None` also after a failure: the caller then runs the plan step by step, which handles failures.
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


def replay_of(returned: Any, given: list[Node], traced: ActiveTrace) -> Replay:
    """The replay of a function that was traced on the given nodes and returned `returned`."""
    values, shape = flatten(returned)
    is_output = [is_result(v) for v in values]
    tensors = [asarray(v) for v, out in zip(values, is_output, strict=True) if out]
    indices = iter(range(len(tensors)))
    results = tuple(_Output(next(indices)) if out else plain(v) for v, out in zip(values, is_output, strict=True))
    prints = []
    for line in traced.prints:
        prints.append((line.show, tuple(range(len(tensors), len(tensors) + len(line.nodes)))))
        tensors += [Tensor(node) for node in line.nodes]
    graph = graph_of_trace([t._node for t in tensors], given + [node for node, _ in traced.feeds])
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
    return Replay(
        plan, feeds, calls, results, returns_outputs, builder(shape), form, history, picks, is_plain,
        tuple(prints), graph, [()], chain, generation,
    )  # fmt: skip
