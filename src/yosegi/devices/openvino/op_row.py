"""A row of the op table, and the dtypes that OpenVINO computes correctly.

Inside a model OpenVINO computes in fewer types than it takes. With its precision set to f32 (`library.settings`):

- float64 becomes float32, 64-bit integers become 32-bit ones, in silence: none of them is given to it.
- 16-bit floats become float32 and are not rounded between ops. Ops whose result is exact in 16 bits may have them.
- A division becomes a product by the reciprocal: a divisor below the smallest normal number counts as zero. (It can be
  configured not to do that, but then its division by a constant, fused with a reduction, gives wrong results.)
- Results below the smallest normal number may be zero, and a zero that is added to -0.0 may leave it negative.
- Kernels that it fuses may compute any integers in float32. 32-bit ones are only moved and converted to float32; of
  8-bit ones float32 holds all, so they are also compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._tensor.dtype import DType, bfloat16, bool_, float16, float32, int8, int32, uint8
from ..._tensor.node import Call
from .library import openvino

SINGLE: Final = frozenset({float32})
FLOATS: Final = frozenset({float32, float16, bfloat16})
BOOL: Final = frozenset({bool_})
COMPARED: Final = FLOATS | {bool_, int8, uint8}
DTYPES: Final = COMPARED | {int32}

_DIMENSIONS: Final = 8

Builder = Callable[[Any, Call, Sequence[Any]], Any]
"""The nodes for a call, from the opset, the call, and the nodes of its inputs."""


def _no_reason(graph: Graph, entry: int) -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class OpRow:
    """How one of our ops becomes OpenVINO's."""

    build: Builder
    dtypes: frozenset[DType]
    """The dtypes of inputs for which the result is the reference's."""
    check: Callable[[Graph, int], str | None] = _no_reason
    """Why this call of the op cannot be had, if it cannot."""
    takes_places: bool = False
    """Whether its inputs after the first are positions, in a dtype of their own."""
    gives_places: bool = False
    """Whether its result is positions."""
    sums: bool = False
    """Whether it adds values up, so that its error is relative to the largest of its results, not to each."""


def refusal(row: OpRow, graph: Graph, entry: int) -> str | None:
    """Why a call cannot be had through its row."""
    call = graph.calls[entry]
    inputs = call.inputs[:1] if row.takes_places else call.inputs
    for s in (*inputs, *(() if row.gives_places else call.outputs)):
        if s.dtype not in DTYPES:
            return _UNKNOWN.get(s.dtype.kind, "") or f"it would keep {s.dtype.name} in another integer type"
        if not s.size:
            return "it has no arrays without elements"
        if s.ndim > _DIMENSIONS:
            return f"it has at most {_DIMENSIONS} dimensions"
    for s in inputs:
        if s.dtype not in row.dtypes:
            return _reason_against(s.dtype, call.op.name)
    return row.check(graph, entry)


_UNKNOWN: Final = {
    "real floating": "it would compute float64 in float32",
    "complex floating": "it has no complex numbers",
}


def _reason_against(dtype: DType, name: str) -> str:
    if dtype.is_half:
        return f"it would not round the {dtype.name} result of {name}"
    return f"it might compute {name} of {dtype.name} in float32" if dtype.is_integer else f"no {name} of {dtype.name}"


# Building blocks that several rows use


def number(o: Any, value: float, like: Any) -> Any:
    """A number of another node's type."""
    return o.convert(o.constant(np.float32(value)), like.get_element_type())  # constants of 16 bits cannot be NaN


def places(o: Any, values: Sequence[int]) -> Any:
    """Axes, lengths or positions."""
    ov = openvino()
    return ov.op.Constant(ov.Type.i64, ov.Shape([len(values)]), list(values))


def is_nan(o: Any, x: Any) -> Any:
    """Where a number is none."""
    return o.not_equal(x, x)
