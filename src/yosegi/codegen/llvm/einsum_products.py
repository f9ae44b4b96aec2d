"""Sums of products by named indices, written out as products of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ..._graph.graph import Graph
from ..._graph.simplify import GraphRewriter
from ..._schedule.fuse import Region, is_constant
from ..._tensor.dtype import float32, float64
from ..._tensor.node import Call
from ..._tensor.op import REGISTRY, leaf_call
from ..._tensor.role import Contraction


def expanded(region: Region) -> Region:
    """The region with products by named indices written out; itself if it has none that can be."""
    graph = region.graph
    if not any(_expands(graph.calls[n]) for n in region.nodes):
        return region
    program = GraphRewriter()
    new: dict[int, int] = {}

    def put(entry: int) -> int:
        if entry not in new:
            new[entry] = program.put(graph.calls[entry], tuple(map(put, graph.args[entry])))
        return new[entry]

    for entry in region.inputs:  # as leaves: rules must not look at what they are made of, which is not in the region
        new[entry] = program.added(leaf_call(graph.calls[entry].spec), ())
    first = len(program.calls)
    for entry in region.nodes:
        call = graph.calls[entry]
        if _expands(call):
            new[entry] = _matrices(program, call, *tuple(map(put, graph.args[entry])))
        else:
            for a in graph.args[entry]:
                assert a in new or is_constant(graph, a)
            put(entry)
    outputs = tuple(new[o] for o in region.outputs)
    made = Graph(tuple(program.calls), tuple(program.args), outputs)
    nodes = _alive(made, range(first, len(program.calls)))
    inputs = tuple(new[i] for i in region.inputs)
    return replace(region, graph=made, nodes=nodes, inputs=inputs, outputs=outputs, regions=())


def _alive(graph: Graph, entries: Sequence[int]) -> tuple[int, ...]:
    """The entries that an output needs, without constants that are no outputs."""
    needed = set(graph.outputs)
    for entry in reversed(entries):
        if entry in needed:
            needed.update(graph.args[entry])
    outputs = set(graph.outputs)
    return tuple(e for e in entries if e in needed and (e in outputs or not is_constant(graph, e)))


def _expands(call: Call) -> bool:
    """True for an einsum that is a product of matrices."""
    return call.op.role is Contraction.LABELS and _labels(call) is not None


def _put(program: GraphRewriter, name: str, *args: int, **attrs: Any) -> int:
    return program.put(REGISTRY[name].call(tuple(program.calls[a].spec for a in args), attrs), args)


def _labels(call: Call) -> tuple[str, str, str] | None:
    """The indices of two operands and of the result, if this is a product of matrices, or of stacks of them: each index
    is in two of the three, or in all, and none is repeated along a dimension of length 1."""
    if len(call.inputs) != 2 or call.spec.dtype not in (float32, float64):
        return None
    left, _, output = call.attrs["subscripts"].partition("->")
    a, b = left.split(",")
    sizes = dict(zip(a, call.inputs[0].shape, strict=True)) | dict(zip(b, call.inputs[1].shape, strict=True))
    is_plain = all(len(set(term)) == len(term) for term in (a, b))
    is_whole = [sizes[c] for c in a] == [*call.inputs[0].shape] and [sizes[c] for c in b] == [*call.inputs[1].shape]
    in_two = all((c in a) + (c in b) + (c in output) >= 2 for c in sizes)
    sums = any(c not in output for c in sizes)
    return (a, b, output) if is_plain and is_whole and in_two and sums else None


def _matrices(program: GraphRewriter, call: Call, x: int, y: int) -> int:
    """The product of matrices that an einsum is, with the operands in the order in which the result has their indices;
    if they have no others than the sum and the stack, the sum of their elements' products."""
    labels = _labels(call)
    assert labels is not None
    (a, b, output), operands = labels, (x, y)
    sizes = {c: n for term, s in zip((a, b), call.inputs, strict=True) for c, n in zip(term, s.shape, strict=True)}
    if output and output[-1] in a and output[-1] not in b:
        (a, b), operands = (b, a), (y, x)
    stack = [c for c in output if c in a and c in b]
    summed = [c for c in a if c not in output]
    rows, columns = [c for c in output if c not in b], [c for c in output if c not in a]
    if not rows and not columns:
        ordered = [_put(program, "permute_dims", e, axes=tuple(term.index(c) for c in [*output, *summed]))
                   for e, term in zip(operands, (a, b), strict=True)]  # fmt: skip
        axes = tuple(range(len(output), len(output) + len(summed)))
        return _put(program, "sum", _put(program, "multiply", *ordered), axis=axes)

    def arranged(operand: int, term: str, outer: list[str], inner: list[str]) -> int:
        permuted = _put(program, "permute_dims", operand, axes=tuple(term.index(c) for c in [*stack, *outer, *inner]))
        shape = [*[sizes[c] for c in stack], prod(sizes[c] for c in outer), prod(sizes[c] for c in inner)]
        return _put(program, "reshape", permuted, shape=tuple(shape))

    left, right = arranged(operands[0], a, rows, summed), arranged(operands[1], b, summed, columns)
    made = [*stack, *rows, *columns]
    product = _put(program, "reshape", _put(program, "matmul", left, right), shape=tuple(sizes[c] for c in made))
    return _put(program, "permute_dims", product, axes=tuple(made.index(c) for c in output))
