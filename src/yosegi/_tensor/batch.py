"""Batching rules: an op on many examples at once.

`vmap` runs a function on one example and then computes its expression for all examples. For this, each op has a rule:
`batch(op, batched, *inputs, **attrs)`. An input that is `batched` has the examples along dimension 0, in front of the
dimensions that the op was called with; any other input is the same for all examples. The rule gives the output with the
examples along dimension 0, or without this dimension if it is the same for all. It gives a tuple for several outputs,
and `None` for a case that it does not know.

Most rules follow from the role of an op. The others are named in the op's block, from the functions below or its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .node import Node
from .op import Op, pick_call
from .role import Extremum, Reduction, Scan, View
from .tensor import OPERATORS, Tensor

Rule = Callable[..., "Tensor | tuple[Tensor, ...] | None"]
Flags = tuple[bool, ...]


def applied(op: Op[Any], inputs: Sequence[Tensor], attrs: dict[str, Any]) -> Tensor | tuple[Tensor, ...]:
    """The op's output, or a tuple of its outputs, for attributes in their normal form."""
    nodes = tuple([x._node for x in inputs])
    made = picked(Node(op.call(tuple([n.spec for n in nodes]), attrs), nodes))
    return made if len(made) > 1 else made[0]


def picked(node: Node) -> tuple[Tensor, ...]:
    """The outputs of a node."""
    outputs = node.call.outputs
    if len(outputs) == 1:
        return (Tensor(node),)
    return tuple([Tensor(Node(pick_call(outputs, i), (node,))) for i in range(len(outputs))])


def size_of(batched: Flags, inputs: Sequence[Tensor]) -> int:
    """The number of examples."""
    return next(x.shape[0] for x, is_batched in zip(inputs, batched, strict=True) if is_batched)


def spread(x: Tensor, is_batched: bool, size: int) -> Tensor:
    """The input with the examples along dimension 0; one that is the same for all is repeated."""
    return x if is_batched else OPERATORS["broadcast_to"](x, (size, *x.shape))


def aligned(x: Tensor, is_batched: bool, ndim: int) -> Tensor:
    """The input with dimensions of length 1 behind the examples, so that each example has `ndim` dimensions."""
    if not is_batched or x.ndim > ndim:
        return x
    return x.reshape((x.shape[0], *[1] * (ndim + 1 - x.ndim), *x.shape[1:]))


def _dims(batched: Flags, inputs: Sequence[Tensor]) -> list[int]:
    """The number of dimensions that an example of each input has."""
    return [x.ndim - is_batched for x, is_batched in zip(inputs, batched, strict=True)]


def elementwise(op: Op[Any], batched: Flags, *inputs: Tensor, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
    """The rule of ops whose inputs broadcast."""
    ndim = max(_dims(batched, inputs))
    return applied(op, [aligned(x, b, ndim) for x, b in zip(inputs, batched, strict=True)], attrs)


def stacked(op: Op[Any], batched: Flags, *inputs: Tensor, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
    """The rule of ops that take any dimensions in front for a stack, the same for all inputs."""
    size = size_of(batched, inputs)
    return applied(op, [spread(x, b, size) for x, b in zip(inputs, batched, strict=True)], attrs)


def merged(op: Op[Any], batched: Flags, *inputs: Tensor, **attrs: Any) -> Tensor | None:
    """The rule of ops whose inputs, and output, have a batch along their first dimension: one larger batch."""
    size = size_of(batched, inputs)
    whole = [spread(x, b, size) for x, b in zip(inputs, batched, strict=True)]
    made = applied(op, [x.reshape((size * x.shape[1], *x.shape[2:])) for x in whole], attrs)
    assert isinstance(made, Tensor)
    return made.reshape((*whole[0].shape[:2], *made.shape[1:]))


@dataclass(frozen=True, slots=True)
class Along:
    """The rule of ops whose attributes of these names count dimensions: they count one more."""

    names: tuple[str, ...]

    def __call__(self, op: Op[Any], batched: Flags, *inputs: Tensor, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
        moved = {name: _next(attrs[name]) for name in self.names}
        return stacked(op, batched, *inputs, **{**attrs, **moved})


def along(*names: str) -> Along:
    """The rule of ops that work along the dimensions in these attributes, and are independent along all others."""
    return Along(names)


def along_first(*names: str) -> Rule:
    """The rule of ops whose first input alone has the dimensions that these attributes count, and any others in front.
    It does not know other inputs that are batched."""

    def rule(op: Op[Any], batched: Flags, *inputs: Tensor, **attrs: Any) -> Tensor | tuple[Tensor, ...] | None:
        if any(batched[1:]):
            return None
        return applied(op, inputs, {**attrs, **{name: _next(attrs[name]) for name in names}})

    return rule


def _next(axis: int | tuple[int, ...]) -> int | tuple[int, ...]:
    return tuple([a + 1 for a in axis]) if isinstance(axis, tuple) else axis + 1


def _viewed(view: View) -> Rule:
    def rule(op: Op[Any], batched: Flags, x: Tensor, /, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
        if view is View.PERMUTED:
            return applied(op, [x], {**attrs, "axes": (0, *[a + 1 for a in attrs["axes"]])})
        shape = (x.shape[0], *attrs["shape"])
        given = aligned(x, True, len(attrs["shape"])) if view is View.BROADCAST else x
        return applied(op, [given], {**attrs, "shape": shape})

    return rule


def _extremum(op: Op[Any], batched: Flags, x: Tensor, /, *, axis: int | None, keepdims: bool) -> Tensor:
    if axis is not None:
        made = applied(op, [x], {"axis": axis + 1, "keepdims": keepdims})
        assert isinstance(made, Tensor)
        return made
    flat = applied(op, [x.reshape((x.shape[0], -1))], {"axis": 1, "keepdims": False})
    assert isinstance(flat, Tensor)
    return flat.reshape((x.shape[0], *[1] * (x.ndim - 1))) if keepdims else flat


def rule_of(op: Op[Any]) -> Rule | None:
    """The rule that an op states, or the one that its role implies."""
    if op.batch is not None:
        return op.batch
    if isinstance(op.role, View):
        return _viewed(op.role)
    if op.scalar is not None:
        return elementwise
    if isinstance(op.role, (Reduction, Scan)):
        return along("axis")
    return _extremum if isinstance(op.role, Extremum) else None
