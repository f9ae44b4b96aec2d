"""Ops that are short for several others, written out, so that they can be part of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ...dtype import float32
from ...fuse import Region, is_constant
from ...graph import Graph
from ...node import Call
from ...op import REGISTRY, constant
from ...simplify import Program

_SPREADS = ("var", "std")


def expanded(region: Region) -> Region:
    """The region with its variances written out; the region itself if it has none that can be."""
    graph = region.graph
    if not any(expands(graph.calls[n]) for n in region.nodes):
        return region
    program = Program()
    new: dict[int, int] = {}

    def put(entry: int) -> int:
        if entry not in new:
            new[entry] = program.put(graph.calls[entry], tuple(map(put, graph.args[entry])))
        return new[entry]

    # Inputs first: what they are made of is not this region's.
    for entry in region.inputs:
        new[entry] = len(program.calls)
        program.calls.append(graph.calls[entry])
        program.args.append(())
    first = len(program.calls)
    for entry in region.nodes:
        call = graph.calls[entry]
        if expands(call):
            new[entry] = _spread(program, call, put(graph.args[entry][0]))
        else:
            for a in graph.args[entry]:
                assert a in new or is_constant(graph, a)
            put(entry)
    outputs = tuple(new[o] for o in region.outputs)
    made = Graph(tuple(program.calls), tuple(program.args), outputs)
    nodes = _alive(made, range(first, len(program.calls)))
    return replace(region, graph=made, nodes=nodes, inputs=tuple(new[i] for i in region.inputs), outputs=outputs)


def _alive(graph: Graph, entries: Sequence[int]) -> tuple[int, ...]:
    """The entries that an output needs, without constants that are no outputs."""
    needed = set(graph.outputs)
    for entry in reversed(entries):
        if entry in needed:
            needed.update(graph.args[entry])
    outputs = set(graph.outputs)
    return tuple(e for e in entries if e in needed and (e in outputs or not is_constant(graph, e)))


def expands(call: Call) -> bool:
    """Whether it is short for ops that can be part of a group."""
    if call.op.name not in _SPREADS or not call.inputs[0].dtype.is_float or not call.inputs[0].size:
        return False
    n = prod(call.inputs[0].shape[a] for a in call.attrs["axis"])
    return bool(call.attrs["axis"]) and n > call.attrs["correction"]


def _spread(program: Program, call: Call, x: int) -> int:
    """The mean of the squares of what is left when the mean is taken away. 16-bit floats are rounded in the end."""
    given, axes = call.inputs[0], call.attrs["axis"]
    dtype = float32 if given.dtype.is_half else given.dtype

    def op(name: str, *args: int, **attrs: Any) -> int:
        return program.put(REGISTRY[name].call(tuple(program.calls[a].spec for a in args), attrs), args)

    wide = op("convert", x, dtype=dtype)
    mean = op("mean", wide, axis=axes, keepdims=True)
    total = op("sum", op("square", op("subtract", wide, mean)), axis=axes, keepdims=call.attrs["keepdims"])
    count = prod(given.shape[a] for a in axes) - call.attrs["correction"]
    made = op("divide", total, program.put(constant.call((), {"value": count, "dtype": dtype}), ()))
    if call.op.name == "std":
        made = op("sqrt", made)
    return op("convert", made, dtype=call.spec.dtype)
