"""Random projections of products: the product times a few random vectors, without computing the product.

For C = A·B and a matrix R of random columns, C·R must equal A·(B·R), which takes few operations. The same holds for a
convolution and random combinations of its output channels, and for an `einsum` of two operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any, Final

from .._graph.graph import Graph
from .._schedule.fuse import Region, RegionKind
from .._tensor.dtype import float32
from .._tensor.node import Call, Shape, Spec, spec
from .._tensor.op import REGISTRY, leaf_call
from .._tensor.role import Contraction

Projected = Callable[..., "tuple[Any, Any] | None"]
"""A kernel of one product that gives the result, and an array of three numbers: the mean of the eigenvalues of the
differences' Gram matrix, the mean of their squares, and the sum of the result's squares. `None` if the product must be
left to other kernels."""
VECTORS: Final = 8
"""How many random vectors a product is projected on."""
_GAIN: Final = 4
"""How many times fewer operations than the product a projection must take to be worth it."""


class GraphWriter:
    """A graph that grows call by call."""

    def __init__(self, *inputs: Spec) -> None:
        self.calls: list[Call] = []
        self.args: list[tuple[int, ...]] = []
        self.inputs: list[int] = []
        for given in inputs:
            self.input(leaf_call(spec(given.shape, given.dtype)))

    def input(self, call: Call) -> int:
        """Add an input and return its entry."""
        self.inputs.append(self.append(call))
        return self.inputs[-1]

    def add(self, name: str, *args: int, **attrs: Any) -> int:
        """Add a call of the op with this name and return its entry."""
        return self.append(REGISTRY[name].call(tuple([self.calls[a].spec for a in args]), attrs), *args)

    def append(self, call: Call, *args: int) -> int:
        """Add a call and return its entry."""
        self.calls.append(call)
        self.args.append(args)
        return len(self.calls) - 1

    def copy(self, graph: Graph, entries: Iterable[int], new: dict[int, int]) -> None:
        """Add calls of another graph, and the constants that they read. `new` has the entry of each old one that is
        there, and gets the others."""
        for entry in entries:
            for arg in graph.args[entry]:
                if arg not in new:
                    new[arg] = self.append(graph.calls[arg])  # a constant
            new[entry] = self.append(graph.calls[entry], *[new[a] for a in graph.args[entry]])

    def shape(self, entry: int) -> Shape:
        """The shape of a value."""
        return self.calls[entry].spec.shape

    def graph(self, *outputs: int) -> Graph:
        """The graph as it is now."""
        return Graph(tuple(self.calls), tuple(self.args), outputs)


_Write = Callable[[GraphWriter, Call, int], tuple[int, int]]
"""Adds the projection of a product's result and that of its operands. Inputs 0 and 1 are the operands, 2 is the
result, 3 the random matrix. Both have the vectors along their last dimension."""


def projects(call: Call) -> bool:
    """True if a product can be projected, and projecting it takes far fewer operations than the product itself."""
    if width_of(call) is None or call.spec.dtype is not float32 or any(s.dtype is not float32 for s in call.inputs):
        return False
    return _GAIN * VECTORS * (sum(s.size for s in call.inputs) + call.spec.size) <= operations(call)


def operations(call: Call) -> int:
    """How many numbers a product multiplies."""
    if call.op.role is Contraction.MATRICES:
        return call.spec.size * call.inputs[0].shape[-1]
    if call.op.role is Contraction.WINDOWS:
        return call.spec.size * prod(call.inputs[1].shape[1:])
    sizes: dict[str, int] = {}
    for labels, given in zip(_terms(call)[0], call.inputs, strict=True):
        sizes.update(zip(labels, given.shape, strict=True))
    return prod(sizes.values())


def width_of(call: Call) -> int | None:
    """The length of the random vectors for a product; `None` if it has no such projection."""
    if call.op.role is Contraction.MATRICES:
        return call.inputs[1].shape[-1] if call.inputs[1].ndim > 1 else None
    if call.op.role is Contraction.WINDOWS:
        return call.inputs[1].shape[0] if call.attrs["groups"] == 1 else None
    free = _free(call)
    sizes = dict(zip(_terms(call)[0][-1], call.inputs[-1].shape, strict=True))
    return prod(sizes[label] for label in free) if free else None


def projection_of(call: Call, vectors: int) -> Region:
    """The region that compares a product with its projection.

    Its inputs are the two operands, the result, and a random matrix of shape (`width_of(call)`, `vectors`). Its output
    has the elements of the differences' Gram matrix, of shape (`vectors`, `vectors`), and behind them the sum of the
    result's squares.
    """
    width, role = width_of(call), call.op.role
    assert width is not None
    assert isinstance(role, Contraction)
    random = spec((width, vectors), call.spec.dtype)
    writer = GraphWriter(*call.inputs, call.spec, random)
    seen, wanted = _WRITES[role](writer, call, vectors)
    difference = writer.add("subtract", seen, wanted)
    difference = writer.add("reshape", difference, shape=(prod(writer.shape(difference)[:-1]), vectors), copy=None)
    transposed = writer.add("permute_dims", difference, axes=(1, 0))
    gram = writer.add("reshape", writer.add("matmul", transposed, difference), shape=(vectors * vectors,), copy=None)
    squares = writer.add("reshape", writer.add("sum", writer.add("square", 2), axis=None), shape=(1,), copy=None)
    graph = writer.graph(writer.add("concatenate", gram, squares, axis=0))
    nodes = tuple(range(len(writer.inputs), len(graph.calls)))
    return Region(graph, RegionKind.PROJECTION, nodes, tuple(writer.inputs), graph.outputs, True)


def _matmul(w: GraphWriter, call: Call, vectors: int) -> tuple[int, int]:
    return w.add("matmul", 2, 3), w.add("matmul", 0, w.add("matmul", 1, 3))


def _conv(w: GraphWriter, call: Call, vectors: int) -> tuple[int, int]:
    """The random matrix combines output channels: of the result, and of the weights."""
    batch, channels, *lengths = call.spec.shape
    mixing = w.add("permute_dims", 3, axes=(1, 0))
    flat = w.add("reshape", 2, shape=(batch, channels, prod(lengths)), copy=None)
    weights = w.add("reshape", 1, shape=(channels, prod(w.shape(1)[1:])), copy=None)
    weights = w.add("reshape", w.add("matmul", mixing, weights), shape=(vectors, *w.shape(1)[1:]), copy=None)
    made = w.add("conv", 0, weights, **call.attrs)
    made = w.add("reshape", made, shape=(batch, vectors, prod(lengths)), copy=None)
    return tuple([w.add("permute_dims", e, axes=(0, 2, 1)) for e in (w.add("matmul", mixing, flat), made)])  # type: ignore[return-value]


def _einsum(w: GraphWriter, call: Call, vectors: int) -> tuple[int, int]:
    """The random matrix replaces the dimensions that only the second operand and the result have."""
    (first, second), out = _terms(call)
    free = _free(call)
    new = next(c for c in _LABELS if c not in first + second + out)
    sizes = dict(zip(second, call.inputs[1].shape, strict=True))
    random = w.add("reshape", 3, shape=(*[sizes[c] for c in free], vectors), copy=None)
    left = "".join(c for c in second if c not in free) + new
    kept = "".join(c for c in out if c not in free) + new
    folded = w.add("einsum", 1, random, subscripts=f"{second},{free}{new}->{left}")
    seen = w.add("einsum", 2, random, subscripts=f"{out},{free}{new}->{kept}")
    return seen, w.add("einsum", 0, folded, subscripts=f"{first},{left}->{kept}")


_WRITES: Final[dict[Contraction, _Write]] = {
    Contraction.MATRICES: _matmul, Contraction.WINDOWS: _conv, Contraction.LABELS: _einsum,
}  # fmt: skip
_LABELS: Final = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _terms(call: Call) -> tuple[list[str], str]:
    given, _, out = call.attrs["subscripts"].partition("->")
    return given.split(","), out


def _free(call: Call) -> str:
    """The labels of an `einsum` that its last operand and its result have, and no other operand."""
    terms, out = _terms(call)
    if len(terms) != 2 or any(len(set(t)) != len(t) for t in terms):
        return ""
    return "".join(c for c in terms[1] if c in out and c not in terms[0])
