"""A region as a model, by a table of ops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

import numpy as np

from ..._graph.reference import bind
from ..._schedule.fuse import Region, is_constant
from ..._tensor.node import Call, Spec
from .ports import Port

P = TypeVar("P", bound=Port)


@final
@dataclass(frozen=True, slots=True)
class Translation(Generic[P]):
    """How a model stands for a region."""

    model: Any
    """`None` when there is nothing to compute."""
    inputs: tuple[tuple[int, P], ...]
    """Which of the region's inputs the model takes, in order."""
    outputs: tuple[tuple[int, P | None], ...]
    """For each of the region's outputs: the model's output of that number; without a port, the region's input."""
    keeps: tuple[Any, ...]
    """The arrays whose memory the model's constants are."""


class Translator(ABC, Generic[P]):
    """Builds one model."""

    def __init__(self) -> None:
        self.keeps: list[Any] = []

    @abstractmethod
    def port(self, spec: Spec) -> P:
        """An input or an output."""

    @abstractmethod
    def parameters(self, ports: Sequence[P]) -> list[Any]:
        """Begin a model, and give the nodes of its inputs."""

    @abstractmethod
    def constant(self, spec: Spec, array: Any) -> Any:
        """The node of a constant."""

    @abstractmethod
    def built(self, call: Call, args: Sequence[Any]) -> Any:
        """The node of a call."""

    @abstractmethod
    def model(self, results: Sequence[tuple[Any, P]]) -> Any:
        """The model, from the nodes of its outputs."""

    def translated(self, region: Region) -> Translation[P]:
        """The model of a region that the table has nothing against, node by node."""
        graph, inside = region.graph, set(region.nodes)
        read = dict.fromkeys([*[a for entry in region.nodes for a in graph.args[entry]], *region.outputs])
        outside = [entry for entry in read if entry not in inside]
        given = {e: self.port(graph.calls[e].spec) for e in outside if not is_constant(graph, e)}
        parameters = dict(zip(given, self.parameters(list(given.values())), strict=True))
        nodes: dict[int, Any] = dict(parameters)
        for entry in (*[e for e in outside if e not in given], *region.nodes):
            call = graph.calls[entry]
            if call.inputs:
                nodes[entry] = self.built(call, [nodes[a] for a in graph.args[entry]])
            else:
                array = np.asarray(bind(call)(), order="C")
                self.keeps.append(array)
                nodes[entry] = self.constant(call.spec, array)
        passed = {id(node): entry for entry, node in parameters.items()}
        results: list[tuple[Any, P]] = []
        outputs: list[tuple[int, P | None]] = []
        for entry in region.outputs:
            source = passed.get(id(nodes[entry]))
            if source is not None and graph.calls[source].spec == graph.calls[entry].spec:
                outputs.append((region.inputs.index(source), None))  # compilers do not write an input as an output
            else:
                port = self.port(graph.calls[entry].spec)
                outputs.append((len(results), port))
                results.append((nodes[entry], port))
        made = self.model(results) if results else None
        inputs = tuple((region.inputs.index(entry), port) for entry, port in given.items())
        return Translation(made, inputs, tuple(outputs), tuple(self.keeps))


def signature(region: Region) -> list[str | bytes]:
    """All that makes a region what it is, in a form that the next process has too."""
    graph = region.graph
    at = {entry: n for n, entry in enumerate((*region.inputs, *region.nodes))}
    parts: list[str | bytes] = [
        repr([graph.calls[i].spec for i in region.inputs]),
        repr([at[o] for o in region.outputs]),
    ]
    for entry in region.nodes:
        parts += _signature_of(graph.calls[entry])
        for a in graph.args[entry]:
            parts += [f"%{at[a]}"] if a in at else _signature_of(graph.calls[a])
    return parts


def _signature_of(call: Call) -> Sequence[str | bytes]:
    attrs = {k: v for k, v in call.attrs.items() if not isinstance(v, np.ndarray)}
    arrays = [np.asarray(v, order="C").tobytes() for v in call.attrs.values() if isinstance(v, np.ndarray)]
    return [f"{call.op.name} {attrs!r} {call.outputs!r}", *arrays]
