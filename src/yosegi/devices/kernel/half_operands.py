"""Half-precision products of a unit, with their operands in 16 bits in memory.

A product in half precision rounds its float32 operands to 16 bits. Alone, it does so before each run. In a unit, the
loop that computes an operand stores it in 16 bits, once for all products that read it: the forward pass, the gradient
of the weights and that of the inputs share operands. The product itself is written as one of float32 numbers that are
converted from 16 bits. That conversion is exact, so the graph says what is computed, and a library that multiplies
16-bit operands and sums in float32 has the product as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..._schedule.fuse import Region, RegionKind, is_constant, is_exact_conversion, multiplies
from ..._tensor.dtype import DType, bfloat16, float16, float32
from ..._tensor.node import Call, spec
from ..._tensor.op import convert, leaf_call
from ..._tensor.precision import Precision
from ..._tensor.role import View
from ..._tune.projection import GraphWriter

HALVES: Final = {Precision.F16: float16, Precision.BF16: bfloat16}
"""The dtype of the operands, by the precision of the product."""


def reads_halves(region: Region) -> bool:
    """True for a product that converts its operands from 16 bits."""
    return any(map(is_exact_conversion, region.calls)) and any(map(multiplies, region.calls))


def with_half_operands(region: Region, takes: Callable[[Region], bool]) -> Region:
    """The unit with 16-bit operands for the products in half precision. `takes` is True for a product that the device
    computes from 16-bit operands as one kernel; others stay as they are."""
    parts = region.parts
    if len(parts) == 1 or not any(p.kind is RegionKind.CONTRACTION and p.precision in HALVES for p in parts):
        return region
    rewriting = _Rewriting(region, parts, takes)
    return rewriting.made() if rewriting.products else region


class _Rewriting:
    """A unit that is written again, part by part."""

    def __init__(self, region: Region, parts: Sequence[Region], takes: Callable[[Region], bool]) -> None:
        self._region, self._graph, self._parts = region, region.graph, parts
        self._writer = GraphWriter()
        self._views = {part.nodes[0]: part for part in parts if len(part.nodes) == 1 and _keeps_elements(part.calls[0])}
        self._new: dict[int, int] = {}
        """The entry of the new graph for each old one."""
        self._halves: dict[tuple[int, DType], int] = {}
        """The new entries in 16 bits, by the old entry and the dtype."""
        self._made: list[Region] = []
        """The new parts, whose graph is not finished yet."""
        self.products = {part.nodes[0] for part in parts if self._is_taken(part, takes)}
        """The products that get 16-bit operands."""
        self._stored: dict[int, dict[DType, None]] = {}
        """The arrays that are stored in 16 bits, each with the dtypes."""
        for part in parts:
            for operand in self._operands(part) if part.nodes[0] in self.products else ():
                self._stored.setdefault(self._chain(operand)[-1], {})[HALVES[part.precision]] = None

    def made(self) -> Region:
        """The whole unit."""
        region, writer = self._region, self._writer
        for entry in region.inputs:
            self._new[entry] = writer.input(leaf_call(self._graph.calls[entry].spec))
        for part in self._parts:
            if part.nodes[0] in self.products:
                self._add_product(part)
            else:
                self._add_part(part)
        outputs = tuple([self._new[o] for o in region.outputs])
        graph = writer.graph(*outputs)
        parts = tuple(replace(part, graph=graph) for part in _needed(self._made, outputs))
        nodes = tuple(n for part in parts for n in part.nodes)
        return Region(graph, RegionKind.SEQUENCE, nodes, tuple(writer.inputs), outputs, region.repeats, regions=parts)

    def _add_part(self, part: Region) -> None:
        """Add a part as it is; a loop also stores its results in 16 bits, for the products that read them."""
        self._writer.copy(self._graph, part.nodes, self._new)
        nodes, inputs, outputs = ([self._new[e] for e in own] for own in (part.nodes, part.inputs, part.outputs))
        if part.kind is RegionKind.LOOP:
            for o in part.outputs:
                for dtype in self._stored.get(o, ()):
                    self._halves[o, dtype] = self._rounded(o, dtype)
                    nodes.append(self._halves[o, dtype])
                    outputs.append(self._halves[o, dtype])
        self._append(part, nodes, inputs, outputs)

    def _add_product(self, part: Region) -> None:
        """Add a product of 16-bit operands, behind the parts that make those."""
        given = {operand: self._half(operand, part) for operand in self._operands(part)}
        nodes = self._multiply(part, self._writer, given)
        self._new[part.nodes[0]] = nodes[-1]
        self._append(part, nodes, list(given.values()), nodes[-1:])

    def _append(self, part: Region, nodes: list[int], inputs: list[int], outputs: list[int]) -> None:
        self._made.append(replace(part, nodes=tuple(nodes), inputs=tuple(inputs), outputs=tuple(outputs), regions=()))

    def _half(self, entry: int, product: Region) -> int:
        """The new entry of an array in 16 bits; of a view, the view of the array in 16 bits."""
        dtype = HALVES[product.precision]
        if (entry, dtype) not in self._halves:
            view = self._views.get(entry)
            if view is None:
                source, made = self._new[entry], self._rounded(entry, dtype)
                self._append(replace(product, kind=RegionKind.LOOP), [made], [source], [made])
            else:
                source = self._half(self._graph.args[entry][0], product)
                call = view.calls[0]
                made = self._writer.append(call.op.call((self._writer.calls[source].spec,), call.attrs), source)
                self._append(view, [made], [source], [made])
            self._halves[entry, dtype] = made
        return self._halves[entry, dtype]

    def _rounded(self, entry: int, dtype: DType) -> int:
        """Add the conversion of an array to 16 bits."""
        source = self._new[entry]
        return self._writer.append(convert.call((self._writer.calls[source].spec,), {"dtype": dtype}), source)

    def _is_taken(self, part: Region, takes: Callable[[Region], bool]) -> bool:
        """True if a part is a product that gets 16-bit operands."""
        if not _is_in_halves(part):
            return False
        if any(is_constant(self._graph, self._chain(operand)[-1]) for operand in self._operands(part)):
            return False
        return takes(self._alone(part))

    def _alone(self, part: Region) -> Region:
        """A product of 16-bit operands in a graph of its own."""
        operands = self._operands(part)
        writer = GraphWriter(*[spec(self._graph.calls[o].spec.shape, HALVES[part.precision]) for o in operands])
        nodes = tuple(self._multiply(part, writer, dict(zip(operands, writer.inputs, strict=True))))
        outputs = nodes[-1:]
        return replace(part, graph=writer.graph(*outputs), nodes=nodes, inputs=tuple(writer.inputs), outputs=outputs)

    def _multiply(self, part: Region, writer: GraphWriter, given: Mapping[int, int]) -> list[int]:
        """Add a product of 16-bit operands, by their old entries; the new entries."""
        first, (product,) = len(writer.calls), part.nodes
        new = {o: writer.append(convert.call((writer.calls[e].spec,), {"dtype": float32}), e) for o, e in given.items()}
        for arg in self._graph.args[product]:
            chain = self._chain(arg, _is_permutation)
            writer.copy(self._graph, [e for e in reversed(chain) if e not in new], new)
        writer.copy(self._graph, [product], new)
        return list(range(first, len(writer.calls)))

    def _operands(self, part: Region) -> list[int]:
        """The arrays that a product reads, without their permutations of axes: it reads those in place."""
        return list(dict.fromkeys(self._chain(a, _is_permutation)[-1] for a in self._graph.args[part.nodes[0]]))

    def _chain(self, entry: int, follows: Callable[[Call], bool] = lambda call: True) -> list[int]:
        """An entry, the array that it is a view of, and so on; of views that are to be followed."""
        chain = [entry]
        while chain[-1] in self._views and follows(self._graph.calls[chain[-1]]):
            chain.append(self._graph.args[chain[-1]][0])
        return chain


def _is_permutation(call: Call) -> bool:
    """True for a view with its axes in another order."""
    return call.op.role is View.PERMUTED


def _is_in_halves(part: Region) -> bool:
    """True for a product of two float32 arrays in half precision."""
    if part.kind is not RegionKind.CONTRACTION or part.precision not in HALVES or len(part.nodes) > 1:
        return False
    (call,) = part.calls
    return all(s.dtype is float32 for s in (call.spec, *call.inputs))


def _keeps_elements(call: Call) -> bool:
    """True for a view with each element of its array once."""
    return any(call.op.role is placing for placing in (View.PERMUTED, View.RESHAPED))


def _needed(parts: Sequence[Region], outputs: Iterable[int]) -> list[Region]:
    """The parts that are needed for some entries, without the results that no part reads."""
    needed, kept = set(outputs), []
    for part in reversed(parts):
        shown = tuple(o for o in part.outputs if o in needed)
        if shown:
            needed.update(part.inputs)
            kept.append(replace(part, outputs=shown))
    return kept[::-1]
