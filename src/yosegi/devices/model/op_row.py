"""A compiler's table of ops: a row for each op that it has, and the reasons why it does not have others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, final

from ..._graph.graph import Graph
from ..._schedule.fuse import Region
from ..._tensor.dtype import DType
from ..._tensor.node import Call
from ..._tensor.op import REGISTRY, OpKind

_CONSTANT_LIMIT: Final = 1 << 28  # bytes of a tensor made from nothing, which a model would hold

Builder = Callable[[Any, Call, Sequence[Any]], Any]
"""The nodes for a call, from the opset, the call, and the nodes of its inputs."""


def _no_reason(graph: Graph, entry: int) -> str | None:
    return None


@final
@dataclass(frozen=True, slots=True)
class OpRow:
    """How one of our ops becomes a compiler's."""

    build: Builder
    dtypes: frozenset[DType]
    """The dtypes of inputs for which the result is the reference's."""
    check: Callable[[Graph, int], str | None] = _no_reason
    """Why this call of the op cannot be had, if it cannot."""
    takes_places: bool = False
    """True if its inputs after the first are positions, in a dtype of their own."""
    gives_places: bool = False
    """True if its result is positions."""
    sums: bool = False
    """True if it adds values up, so that its error is relative to the largest of its results, not to each."""


def as_it_is(name: str) -> Builder:
    """The opset's function of this name, on the same inputs."""
    return lambda o, call, args: getattr(o, name)(*args)


def each(function: Callable[..., Any]) -> Builder:
    """A builder from a function of the opset and the inputs."""
    return lambda o, call, args: function(o, *args)


@final
@dataclass(frozen=True, slots=True)
class OpTable:
    """The ops of one compiler."""

    compiler: str
    rows: Mapping[str, OpRow]
    left_out: Mapping[str, str]
    """The ops that it accepts but computes incorrectly, and how."""
    unary: frozenset[str]
    """The rows of elementwise ops of one array."""
    binary: frozenset[str]
    """The rows of elementwise ops of two arrays."""
    dtypes: frozenset[DType]
    against: Callable[[DType, str | None], str]
    """The reason against a dtype: for the op of this name, or for any."""
    dimensions: int
    fewer: Mapping[OpKind, int] = field(default_factory=dict)
    """Operation classes that take arrays of fewer dimensions."""

    @property
    def natives(self) -> frozenset[str]:
        """The composites that it takes whole."""
        return frozenset(name for name in self.rows if REGISTRY[name].decomposition is not None)

    @property
    def kinds(self) -> frozenset[OpKind]:
        """The operation classes of its rows."""
        return frozenset({OpKind.SOURCE, *[REGISTRY[name].kind for name in self.rows]})

    def why_not(self, region: Region) -> str | None:
        """Why a region cannot be translated, or `None` if it can."""
        reasons = (self._refusal(region.graph, entry) for entry in region.nodes)
        return next((reason for reason in reasons if reason is not None), None)

    def _refusal(self, graph: Graph, entry: int) -> str | None:
        call = graph.calls[entry]
        if not call.inputs:
            is_held = call.spec.dtype in self.dtypes and call.spec.size and call.spec.nbytes <= _CONSTANT_LIMIT
            return None if is_held else f"it cannot hold {call.spec!r}"
        row = self.rows.get(call.op.name)
        if row is None:
            return self.left_out.get(call.op.name) or f"no {self.compiler} op for {call.op.name}"
        inputs = call.inputs[:1] if row.takes_places else call.inputs
        most = self.fewer.get(call.op.kind, self.dimensions)
        for s in (*inputs, *(() if row.gives_places else call.outputs)):
            if s.dtype not in self.dtypes:
                return self.against(s.dtype, None)
            if not s.size:
                return "it has no arrays without elements"
            if s.ndim > most:
                return f"it has at most {most} dimensions"
        for s in inputs:
            if s.dtype not in row.dtypes:
                return self.against(s.dtype, call.op.name)
        return row.check(graph, entry)
