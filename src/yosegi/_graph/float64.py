"""A region in float64: the reference for other precisions, and the last candidate when all of them miss the tolerance.

By reference bodies, inputs may be slices of what the region was made for: every call is made anew for its arguments.
One that names its shape does not take them, and raises `UserError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from .._schedule.fuse import Region, RegionKind, is_constant
from .._tensor.dtype import DType, as_dtype, complex64, complex128, float32, float64
from .._tensor.node import Call, spec
from .._tensor.op import constant, convert, embedded, leaf_call, pick, pick_call
from .graph import Graph
from .reference import bind, outputs_of

WIDER: Final[dict[DType, DType]] = {float32: float64, complex64: complex128}
"""Dtypes of twice the bits. A program that names a 16-bit dtype gets it."""


def float64_outputs(region: Region, arrays: Sequence[Any]) -> list[Any]:
    """The region's outputs for these inputs, computed and left in float64 (complex128) where they had half as much."""
    return outputs_of(region, [_widened(a) for a in arrays], _called)


def widened(region: Region) -> Region:
    """The region with its arithmetic in float64 (complex128) and its inputs and outputs as they are: one that any
    device can run that has float64."""
    graph = region.graph
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []

    def add(call: Call, *given: int) -> int:
        calls.append(call)
        args.append(given)
        return len(calls) - 1

    def wide(entry: int) -> int:
        own = calls[entry].spec
        wider = WIDER.get(own.dtype)
        return entry if wider is None else add(convert.call((own,), {"dtype": wider}), entry)

    inputs = tuple([add(leaf_call(spec(graph.calls[i].spec.shape, graph.calls[i].spec.dtype))) for i in region.inputs])
    new = {old: wide(entry) for old, entry in zip(region.inputs, inputs, strict=True)}
    for entry in region.nodes:
        for arg in graph.args[entry]:
            if arg not in new:
                new[arg] = wide(add(graph.calls[arg]))
        if entry not in new:
            given = [new[a] for a in graph.args[entry]]
            new[entry] = add(in_float64(graph.calls[entry], [calls[g] for g in given]), *given)
    outputs = []
    for old in region.outputs:
        own, made = graph.calls[old].spec, calls[new[old]].spec
        same = made.dtype is own.dtype
        outputs.append(new[old] if same else add(convert.call((made,), {"dtype": own.dtype}), new[old]))
    made_graph = Graph(tuple(calls), tuple(args), tuple(outputs))
    nodes = tuple([n for n in range(len(calls)) if n not in inputs and not is_constant(made_graph, n)])
    return Region(made_graph, RegionKind.SEQUENCE, nodes, inputs, tuple(outputs), region.repeats)


def in_float64(call: Call, given: Sequence[Call]) -> Call:
    """The call, made anew for arguments in float64."""
    if call.op is pick:
        return pick_call(given[0].outputs, call.attrs["index"])
    return call.op.call(tuple([spec(g.spec.shape, g.spec.dtype) for g in given]), _wide_attrs(call))


def _wide_attrs(call: Call) -> dict[str, Any]:
    return {name: WIDER.get(v, v) if isinstance(v, DType) else v for name, v in call.attrs.items()}


def _widened(array: Any) -> Any:
    wider = WIDER.get(as_dtype(array.dtype))
    return array if wider is None else array.astype(wider.numpy)


def _called(call: Call, args: Sequence[Any]) -> Any:
    if call.op in (constant, embedded):
        return _widened(np.asarray(bind(call)()))
    if call.op is pick:
        return args[0][call.attrs["index"]]
    specs = tuple([spec(a.shape, as_dtype(a.dtype)) for a in args])
    made = bind(call.op.call(specs, _wide_attrs(call)))(*args)
    return made if len(call.outputs) > 1 else np.asarray(made)
