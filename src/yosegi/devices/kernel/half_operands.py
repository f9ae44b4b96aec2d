"""Half-precision products and attention of a unit, with their operands in 16 bits in memory.

A product in half precision rounds its float32 operands to 16 bits. A product of matrices that is alone does so before
each run. In a unit, the loop that computes an operand stores it in 16 bits, once for all products that read it: the
forward pass, the gradient of the weights and that of the inputs share operands. The product itself is written as one of
float32 numbers that are converted from 16 bits. That conversion is exact, so the graph says what is computed, and a
library or a matrix unit that multiplies 16-bit operands and sums in float32 has the product as a whole. Attention and
its gradient in half precision are those of 16-bit operands; their results are stored in 16 bits too, and converted for
readers that want float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ..._schedule.fuse import Region, RegionKind, attends, is_constant, is_exact_conversion, multiplies
from ..._tensor.dtype import DType, bfloat16, float16, float32
from ..._tensor.node import Call, spec
from ..._tensor.op import convert, leaf_call, pick_call
from ..._tensor.precision import Precision
from ..._tensor.role import Contraction, Cut, View
from ..._tune.projection import GraphWriter

HALVES: Final = {Precision.F16: float16, Precision.BF16: bfloat16}
"""The dtype of the operands, by the precision of the product."""


def in_halves(call: Call, dtype: DType) -> Call:
    """Attention, or its gradient, of float32 operands as that of operands in 16 bits. A mask stays as it is."""
    first = len(call.inputs) - len(call.attrs["given"])
    operands = [spec(s.shape, dtype) for s in call.inputs[:first]]
    return call.op.call((*operands, *call.inputs[first:]), call.attrs)


def reads_halves(region: Region) -> bool:
    """True for a product that converts its operands from 16 bits."""
    return any(map(is_exact_conversion, region.calls)) and any(map(multiplies, region.calls))


def with_half_operands(region: Region, takes: Callable[[Region], bool]) -> Region:
    """The unit with 16-bit operands for the products and attention in half precision. `takes` is True for a product
    that the device computes from 16-bit operands as one kernel; others stay as they are."""
    parts = region.parts
    is_whole = any(map(_attends_in_halves, parts))
    is_alone = len(parts) == 1 and region.calls[-1].op.role is not Contraction.WINDOWS
    if not is_whole and (is_alone or not any(map(_is_in_halves, parts))):
        return region
    rewriting = _Rewriting(region, parts, takes)
    return rewriting.made() if is_whole or rewriting.products else region


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
            for operand in self._halved(part):
                self._stored.setdefault(self._chain(operand)[-1], {})[HALVES[part.precision]] = None

    def made(self) -> Region:
        """The whole unit."""
        region, writer = self._region, self._writer
        for entry in region.inputs:
            self._new[entry] = writer.input(leaf_call(self._graph.calls[entry].spec))
        for part in self._parts:
            if part.nodes[0] in self.products:
                self._add_product(part)
            elif _attends_in_halves(part):
                self._add_attention(part)
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

    def _add_attention(self, part: Region) -> None:
        """Add attention of 16-bit operands, and its results in float32."""
        entry, *picks = part.nodes
        dtype, writer = HALVES[part.precision], self._writer
        halves = {operand: self._half(operand, part) for operand in self._halved(part)}
        masks = [a for a in self._graph.args[entry] if a not in halves]
        inputs = [*halves.values(), *[new for a in masks for new in self._read(a)]]
        call = in_halves(part.calls[0], dtype)
        made = writer.append(call, *[halves.get(a, self._new.get(a, -1)) for a in self._graph.args[entry]])
        results = {entry: made} if not picks else {
            p: writer.append(pick_call(call.outputs, self._graph.calls[p].attrs["index"]), made) for p in picks
        }  # fmt: skip
        self._halves |= {(old, dtype): new for old, new in results.items()}
        whole = replace(part, precision=Precision.FULL)
        nodes = list(dict.fromkeys([made, *results.values()]))
        self._append(whole, nodes, inputs, [results[o] for o in part.outputs])
        for old in part.outputs:
            new = results[old]
            self._new[old] = writer.append(convert.call((writer.calls[new].spec,), {"dtype": float32}), new)
            self._append(replace(whole, kind=RegionKind.LOOP), [self._new[old]], [new], [self._new[old]])

    def _halved(self, part: Region) -> list[int]:
        """The arrays of a part that are read in 16 bits."""
        if part.nodes[0] in self.products:
            return self._operands(part)
        if not _attends_in_halves(part):
            return []
        args, call = self._graph.args[part.nodes[0]], part.calls[0]
        return list(dict.fromkeys(args[: len(args) - len(call.attrs["given"])]))

    def _append(self, part: Region, nodes: list[int], inputs: list[int], outputs: list[int]) -> None:
        self._made.append(replace(part, nodes=tuple(nodes), inputs=tuple(inputs), outputs=tuple(outputs), regions=()))

    def _read(self, entry: int) -> list[int]:
        """The new entries that a part has as inputs to read an old one: none for a constant."""
        if not is_constant(self._graph, entry):
            return [self._new[entry]]
        if entry not in self._new:
            self._new[entry] = self._writer.append(self._graph.calls[entry])
        return []

    def _half(self, entry: int, product: Region) -> int:
        """The new entry of an array in 16 bits; of a view, the view of the array in 16 bits."""
        dtype = HALVES[product.precision]
        if (entry, dtype) not in self._halves:
            view = self._views.get(entry)
            if view is None:
                made = self._rounded(entry, dtype)
                self._append(replace(product, kind=RegionKind.LOOP), [made], self._read(entry), [made])
            else:
                source = self._half(self._graph.args[entry][0], product)
                call = view.calls[0]
                made = self._writer.append(call.op.call((self._writer.calls[source].spec,), call.attrs), source)
                self._append(view, [made], [source], [made])
            self._halves[entry, dtype] = made
        return self._halves[entry, dtype]

    def _rounded(self, entry: int, dtype: DType) -> int:
        """Add the conversion of an array to 16 bits."""
        self._read(entry)
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


def _attends_in_halves(part: Region) -> bool:
    """True for attention of float32 arrays, or its gradient, in half precision."""
    call = part.calls[0]
    return attends(call) and part.precision in HALVES and call.spec.dtype is float32


def _keeps_elements(call: Call) -> bool:
    """True for a view with each element of its array at most once."""
    return isinstance(call.op.role, Cut) or any(call.op.role is placing for placing in (View.PERMUTED, View.RESHAPED))


def _needed(parts: Sequence[Region], outputs: Iterable[int]) -> list[Region]:
    """The parts that are needed for some entries, without the results that no part reads."""
    needed, kept = set(outputs), []
    for part in reversed(parts):
        shown = tuple(o for o in part.outputs if o in needed)
        if shown:
            needed.update(part.inputs)
            kept.append(replace(part, outputs=shown))
    return kept[::-1]
