"""Ops that are short for several others, written out, so that they can be part of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ...composite import decomposed
from ...dtype import float32
from ...fuse import Region, is_constant
from ...graph import Graph
from ...node import Call
from ...op import REGISTRY, constant
from ...simplify import Program

_SPREADS = ("var", "std")


def expanded(region: Region) -> Region:
    """The region with its variances written out; the region itself if it has none that can be."""
    return _rewritten(region, expands, lambda program, call, args: _spread(program, call, args[0]))


def in_parts(region: Region) -> Region:
    """The region with its composites written out, which were left whole for another device; itself if it has none."""
    return _rewritten(region, lambda call: call.op.decomposition is not None, _parts)


def _rewritten(
    region: Region, is_short: Callable[[Call], bool], write: Callable[[Program, Call, tuple[int, ...]], int]
) -> Region:
    graph = region.graph
    if not any(is_short(graph.calls[n]) for n in region.nodes):
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
        if is_short(call):
            new[entry] = write(program, call, tuple(map(put, graph.args[entry])))
        else:
            for a in graph.args[entry]:
                assert a in new or is_constant(graph, a)
            put(entry)
    outputs = tuple(new[o] for o in region.outputs)
    made = Graph(tuple(program.calls), tuple(program.args), outputs)
    nodes = _alive(made, range(first, len(program.calls)))
    return replace(region, graph=made, nodes=nodes, inputs=tuple(new[i] for i in region.inputs), outputs=outputs)


def _parts(program: Program, call: Call, args: tuple[int, ...]) -> int:
    """What a composite is made of, and what its parts are made of."""
    if call.op.decomposition is None:
        return program.put(call, args)
    parts = decomposed(call)
    at = list(args)
    for inner, inputs in parts.steps:
        at.append(_parts(program, inner, tuple([at[i] for i in inputs])))
    return at[parts.output]


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
