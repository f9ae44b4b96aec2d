"""A region as a model of OpenVINO, by the op table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._schedule.fuse import Region, is_constant
from .library import openvino, opset
from .op_row import DTYPES, refusal
from .ops import LEFT_OUT, ROWS
from .ports import Port

_CONSTANT_LIMIT: Final = 1 << 28  # bytes of a tensor made from nothing, which a model would hold


@dataclass(frozen=True, slots=True)
class Translation:
    """How a model stands for a region."""

    model: Any
    """`None` when there is nothing to compute."""
    inputs: tuple[tuple[int, Port], ...]
    """Which of the region's inputs the model takes, in order."""
    outputs: tuple[tuple[int, Port | None], ...]
    """For each of the region's outputs: the model's output of that number; without a port, the region's input."""
    keeps: tuple[Any, ...]
    """The arrays whose memory the model's constants are."""


def why_not(region: Region) -> str | None:
    """Why a region cannot be translated, or `None` if it can."""
    graph = region.graph
    for entry in region.nodes:
        call = graph.calls[entry]
        row = ROWS.get(call.op.name)
        if not call.inputs:
            if call.spec.dtype not in DTYPES or not call.spec.size or call.spec.nbytes > _CONSTANT_LIMIT:
                return f"it cannot hold {call.spec!r}"
        elif row is None:
            return LEFT_OUT.get(call.op.name) or f"no OpenVINO op for {call.op.name}"
        else:
            reason = refusal(row, graph, entry)
            if reason is not None:
                return reason
    return None


def translate(region: Region) -> Translation:
    """The model of a region that `why_not` has nothing against."""
    return _Translator(region).translated()


class _Translator:
    def __init__(self, region: Region) -> None:
        self._region = region
        self._graph: Graph = region.graph
        self._nodes: dict[int, Any] = {}
        self._ports: dict[int, Port] = {}
        self._parameters: dict[int, Any] = {}
        self._keeps: list[Any] = []

    def translated(self) -> Translation:
        """Node by node."""
        o, region = opset(), self._region
        for entry in region.nodes:
            call = self._graph.calls[entry]
            if call.inputs:
                args = [self._node(a) for a in self._graph.args[entry]]
                self._nodes[entry] = ROWS[call.op.name].build(o, call, args)
            else:
                self._nodes[entry] = self._constant(entry)
        wanted = [self._node(entry) for entry in region.outputs]
        given = {id(node): entry for entry, node in self._parameters.items()}
        results: list[Any] = []
        outputs: list[tuple[int, Port | None]] = []
        for entry, node in zip(region.outputs, wanted, strict=True):
            if id(node) in given:  # OpenVINO does not write an output that is an input as it is
                outputs.append((region.inputs.index(given[id(node)]), None))
            else:
                outputs.append((len(results), Port(self._graph.calls[entry].spec)))
                results.append(o.result(node))
        model = openvino().Model(results, list(self._parameters.values()), "region") if results else None
        inputs = tuple((region.inputs.index(entry), port) for entry, port in self._ports.items())
        return Translation(model, inputs, tuple(outputs), tuple(self._keeps))

    def _node(self, entry: int) -> Any:
        node = self._nodes.get(entry)
        if node is None:
            node = self._nodes[entry] = (
                self._constant(entry) if is_constant(self._graph, entry) else self._parameter(entry)
            )
        return node

    def _parameter(self, entry: int) -> Any:
        port = self._ports[entry] = Port(self._graph.calls[entry].spec)
        node = self._parameters[entry] = port.parameter()
        return node

    def _constant(self, entry: int) -> Any:
        array = np.asarray(bind(self._graph.calls[entry])(), order="C")
        self._keeps.append(array)
        return openvino().op.Constant(Port(self._graph.calls[entry].spec).tensor_on(array), shared_memory=True)


def signature(region: Region) -> list[str | bytes]:
    """All that makes a region what it is, in a form that the next process has too."""
    graph = region.graph
    at = {entry: n for n, entry in enumerate((*region.inputs, *region.nodes))}
    parts: list[str | bytes] = [
        repr([graph.calls[i].spec for i in region.inputs]),
        repr([at[o] for o in region.outputs]),
    ]
    for entry in region.nodes:
        parts += _signature_of(graph, entry)
        for a in graph.args[entry]:
            parts += [f"%{at[a]}"] if a in at else _signature_of(graph, a)
    return parts


def _signature_of(graph: Graph, entry: int) -> Sequence[str | bytes]:
    call = graph.calls[entry]
    attrs = {k: v for k, v in call.attrs.items() if not isinstance(v, np.ndarray)}
    arrays = [np.asarray(v, order="C").tobytes() for v in call.attrs.values() if isinstance(v, np.ndarray)]
    return [f"{call.op.name} {attrs!r} {call.outputs!r}", *arrays]
