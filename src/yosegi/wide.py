"""A region in float64, by reference bodies: what other precisions are compared with, and what is left when all miss.

Inputs may be slices of what the region was made for: every call is made anew for its arguments. One that names its
shape does not take them, and raises `UserError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .dtype import DType, as_dtype, complex64, complex128, float32, float64
from .fuse import Region, is_constant
from .node import Call, spec
from .op import pick
from .reference import bind

_WIDER: Final[dict[DType, DType]] = {float32: float64, complex64: complex128}
"""Of the dtypes below 32 bits a program asks by name, and gets them."""


def wide_outputs(region: Region, arrays: Sequence[Any]) -> list[Any]:
    """The region's outputs for these inputs, computed and left in float64 (complex128) where they had half as much."""
    graph = region.graph
    values: dict[int, Any] = {e: _widened(a) for e, a in zip(region.inputs, arrays, strict=True)}

    def value(entry: int) -> Any:
        if entry not in values:
            assert is_constant(graph, entry)
            values[entry] = _widened(np.asarray(bind(graph.calls[entry])()))
        return values[entry]

    with np.errstate(all="ignore"):
        for entry in region.nodes:
            if not is_constant(graph, entry):
                values[entry] = _called(graph.calls[entry], [value(a) for a in graph.args[entry]])
    return [value(o) for o in region.outputs]


def wide_kernel(region: Region) -> Any:
    """The region as a kernel on host arrays: computed in float64, rounded in the end."""
    dtypes = [region.graph.calls[o].spec.dtype.numpy for o in region.outputs]

    def kernel(*arrays: Any) -> tuple[Any, ...]:
        with np.errstate(all="ignore"):
            made = wide_outputs(region, arrays)
            return tuple([m.astype(d, copy=False) for m, d in zip(made, dtypes, strict=True)])

    return kernel


def _widened(array: Any) -> Any:
    wider = _WIDER.get(as_dtype(array.dtype))
    return array if wider is None else array.astype(wider.numpy)


def _called(call: Call, args: Sequence[Any]) -> Any:
    if call.op is pick:
        return args[0][call.attrs["index"]]
    specs = tuple([spec(a.shape, as_dtype(a.dtype)) for a in args])
    attrs = {name: _WIDER.get(v, v) if isinstance(v, DType) else v for name, v in call.attrs.items()}
    made = bind(call.op.call(specs, attrs))(*args)
    return made if len(call.outputs) > 1 else np.asarray(made)
