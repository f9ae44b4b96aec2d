"""A product's kernel: a group that makes its left operand, the product, and a group that reads its result.

`joins` is the predicate by which the fusion pass forms such kernels, and a `Cluster` describes one for the code
generator. Operands that are views of other arrays are read where those lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._schedule.fuse import Region, RegionKind, is_constant
from ..._schedule.groups import Group
from ..._tensor.dtype import DType, float32, float64
from ..._tensor.node import Call, Shape
from ..._tensor.op import OpKind
from ..._tensor.role import Contraction
from ..scalar.value import Value
from .builder import LlvmBuilder
from .passes import Passes
from .product import Elementwise, FusedStage, Product, Side
from .signature import elementwise_signature

_MOST_ARRAYS: Final = 8
"""Arrays that what comes before, or after, reads and writes."""
_DTYPES: Final = (float32, float64)


@dataclass(frozen=True, slots=True)
class OperandView:
    """An operand as it lies in the memory of an array that is in order."""

    entry: int
    """The array's."""
    offset: int
    """Bytes from the first element of the array to that of the operand."""
    shape: Shape
    strides: tuple[int, ...]
    """Bytes."""
    through: tuple[int, ...] = ()
    """The entries from the array to the operand, which are views of one another."""

    def of(self, graph: Graph, array: Any) -> Any:
        """The operand, from an array of any layout."""
        for entry in self.through:
            array = bind(graph.calls[entry])(array)
        return array


def view_of(graph: Graph, entry: int, *, in_rows: bool = False) -> OperandView:
    """An operand as a view of the array that it lies in, itself perhaps; with `in_rows`, only if the elements of its
    rows lie side by side there."""
    chain = [entry]
    while _moves(graph.calls[chain[0]]):
        chain.insert(0, graph.args[chain[0]][0])
    for number, base in enumerate(chain):
        spec = graph.calls[base].spec
        # Its elements do not matter, and the system gives no memory for what nobody writes.
        array = made = np.empty(spec.shape, spec.dtype.numpy)
        for step in chain[number + 1 :]:
            made = bind(graph.calls[step])(made)
        beside = not made.ndim or made.shape[-1] == 1 or made.strides[-1] == made.itemsize
        if number == len(chain) - 1 or (np.may_share_memory(array, made) and (beside or not in_rows)):
            offset = made.ctypes.data - array.ctypes.data
            return OperandView(base, offset, made.shape, made.strides, tuple(chain[number + 1 :]))
    raise AssertionError("an operand is a view of itself")


def _moves(call: Call) -> bool:
    """True if the result may be a view. Values in another dtype never are, and are not computed to find that out."""
    is_single = len(call.inputs) == 1 and len(call.outputs) == 1 and call.spec.size > 0
    return call.op.kind is OpKind.MOVEMENT and is_single and call.spec.dtype is call.inputs[0].dtype


@dataclass(frozen=True)
class Cluster:
    """A product with what comes before and after it."""

    graph: Graph
    entry: int
    """The product."""
    before: Group | None
    after: Group | None
    outputs: tuple[int, ...]
    """The entries that others read."""

    @classmethod
    def of(cls, kernel: Region) -> Cluster:
        """The cluster that a kernel is: a product, with the regions that were joined with it."""
        entry, before, after = -1, None, None
        for region in kernel.regions or (kernel,):
            if region.kind is RegionKind.CONTRACTION:
                entry = region.nodes[0]
        for region in kernel.regions:
            if entry in region.inputs:
                after = Group.of(region)
            elif entry not in region.nodes:
                before = Group.of(region)
        results = after.outputs if after is not None else ()
        own = (entry,) if entry in kernel.outputs else ()
        return cls(kernel.graph, entry, before, after, (*results, *own))

    def __str__(self) -> str:
        return "+".join(self.graph.calls[n].op.name for n in self.nodes)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The entries that it computes, in order."""
        groups = [g.nodes if g is not None else () for g in (self.before, self.after)]
        return (*groups[0], self.entry, *groups[1])

    @property
    def inputs(self) -> tuple[int, ...]:
        """The entries that it reads, constants included."""
        inside = set(self.nodes)
        read = (a for n in self.nodes for a in self.graph.args[n] if a not in inside)
        return tuple(dict.fromkeys(read))

    @property
    def dtype(self) -> DType:
        """The dtype of the product."""
        return self.graph.calls[self.entry].spec.dtype

    @property
    def depth(self) -> int:
        """The terms of each sum."""
        return self.graph.calls[self.entry].inputs[0].shape[-1]

    @cached_property
    def left(self) -> int:
        """The array that the left operand is, or is made of: of several, one that has all of its elements."""
        operand = self.graph.args[self.entry][0]
        if self.before is None:
            return operand
        shape = self.graph.calls[operand].spec.shape
        return next(e for e in self.before.inputs if self.graph.calls[e].spec.shape == shape)

    @property
    def right(self) -> int:
        """The right operand."""
        return self.graph.args[self.entry][1]

    @property
    def fed(self) -> tuple[int, ...]:
        """The other arrays that the left operand is made of."""
        return () if self.before is None else tuple(e for e in self.before.inputs if e != self.left)

    @property
    def sides(self) -> tuple[int, ...]:
        """The arrays that what comes after reads, beside the product."""
        return () if self.after is None else tuple(e for e in self.after.inputs if e != self.entry)

    @cached_property
    def product(self) -> Product:
        """The computation of the kernel."""
        calls = self.graph.calls
        before = after = None
        if self.before is not None:
            before = self._stage(self.before, (self.left, *self.fed), self.before.outputs)
        if self.after is not None:
            after = self._stage(self.after, (self.entry, *self.sides), self.outputs)
        return Product(self.dtype, before, after, tuple(calls[o].spec.dtype for o in self.outputs))

    def _stage(self, group: Group, reads: Sequence[int], outputs: Sequence[int]) -> FusedStage:
        specs = [self.graph.calls[e].spec for e in reads]
        sides = tuple(Side(s.dtype, s.ndim > 0 and s.shape[-1] > 1) for s in specs[1:])
        words = elementwise_signature(group, reads, outputs)
        return FusedStage(_elementwise(group, reads, outputs), specs[0].dtype, sides, words)


def _elementwise(group: Group, reads: Sequence[int], outputs: Sequence[int]) -> Elementwise:
    """The function that a group applies to its inputs' elements."""
    passes = Passes(group)

    def function(k: LlvmBuilder, *given: Value) -> list[Value]:
        values = dict(zip(reads, given, strict=True))

        def read(user: int, entry: int) -> Value:
            known = values.get(entry) or passes.number(k, entry)
            assert known is not None
            return known

        for node in group.nodes:
            values[node] = passes.computed(k, node, read)
        return [values[o] for o in outputs]

    return function


def joins(_: Region, base: Region, neighbour: Region) -> bool:
    """True if a loop can be part of a product's kernel: as its epilogue, or as the prologue of its left operand."""
    graph, product = base.graph, base.nodes[0]
    left, right = graph.args[product]
    if neighbour.kind is not RegionKind.LOOP or any(s.ndim < 2 for s in graph.calls[product].inputs):
        return False
    group = Group.of(neighbour)
    if product in neighbour.inputs:
        return _is_elementwise(graph, group) and group.space == graph.calls[product].spec.shape
    return left != right and _comes_before(graph, group, left)


def is_product(call: Call) -> bool:
    """Whether the call is a product of matrices, or of stacks of them, or of vectors, that a kernel can be made for."""
    return call.op.role is Contraction.MATRICES and call.spec.dtype in _DTYPES and all(s.size > 0 for s in call.inputs)


def work(call: Call) -> int:
    """Products of elements."""
    return call.spec.size * call.inputs[0].shape[-1]


def _is_elementwise(graph: Graph, group: Group) -> bool:
    """True if a group works on single elements and has a signature."""
    dtypes = [s.dtype for n in group.nodes for s in (*graph.calls[n].inputs, *graph.calls[n].outputs)]
    if group.axes or any(d.is_complex for d in dtypes) or len(group.inputs) + len(group.outputs) > _MOST_ARRAYS:
        return False
    return elementwise_signature(group, group.inputs, group.outputs) is not None


def _comes_before(graph: Graph, group: Group, left: int) -> bool:
    """Whether a group makes nothing but the left operand, from an array of the same shape."""
    shape = graph.calls[left].spec.shape
    makes_left = group.outputs == (left,) and group.space == shape and _is_elementwise(graph, group)
    return makes_left and any(graph.calls[e].spec.shape == shape and not is_constant(graph, e) for e in group.inputs)
