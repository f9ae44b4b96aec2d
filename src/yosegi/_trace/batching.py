"""Expressions on many examples at once: the walk that applies the ops' batching rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._tensor.batch import Flags, applied, picked, rule_of, size_of
from .._tensor.composite import rebuilt
from .._tensor.node import Call, Node, in_order
from .._tensor.op import leaf_call, pick
from .._tensor.tensor import Tensor
from ..ops.creation import zeros
from ..ops.shape import stack


def batched_outputs(outputs: Sequence[Node], examples: Mapping[Node, Tensor]) -> list[Tensor]:
    """The values of an expression for all examples.

    - `outputs`: nodes of an expression that was built for one example.
    - `examples`: for each placeholder of that example, its values for all, along dimension 0.

    Returns the outputs for all examples, along dimension 0. An output that is the same for all comes without this
    dimension.
    """
    made: dict[Node, tuple[Tensor, ...]] = {node: (values,) for node, values in examples.items()}
    for node in in_order(outputs, lambda n: () if n in examples else _pending(n)):
        inputs = () if node in made else _pending(node)
        if any(i in made for i in inputs):
            made[node] = _value(node.call, inputs, made)
    return [made[o][0] if o in made else Tensor(o) for o in outputs]


def _pending(node: Node) -> tuple[Node, ...]:
    inputs = node.inputs  # before buffer: see Node
    return () if node.buffer is not None else inputs


def _value(call: Call, inputs: Sequence[Node], made: Mapping[Node, tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """The outputs of one call for all examples."""
    if call.op is pick:
        return (made[inputs[0]][call.attrs["index"]],)
    return batched_call(call, [made[i][0] if i in made else Tensor(i) for i in inputs])


def batched_call(call: Call, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of a call for all examples: by its rule, by its parts, or example by example.

    An input with one dimension more than the call was made for has the examples along dimension 0.
    """
    batched = tuple([x.ndim > s.ndim for x, s in zip(inputs, call.inputs, strict=True)])
    if not any(batched):
        return picked(Node(call, tuple([x._node for x in inputs])))
    rule = rule_of(call.op)
    made: Any = None if rule is None else rule(call.op, batched, *inputs, **call.attrs)
    if made is None:
        made = _by_parts(call, inputs) if call.op.decomposition is not None else one_by_one(call, batched, inputs)
    return _as_tuple(made)


def _as_tuple(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


def _by_parts(call: Call, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A composite for all examples, as an expression of its parts."""
    placeholders = [Node(leaf_call(s), ()) for s in call.inputs]
    given = dict(zip(placeholders, inputs, strict=True))
    return tuple(batched_outputs(rebuilt(call, placeholders), given))


def one_by_one(call: Call, batched: Flags, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs of calls for one example each, stacked: correct for every op, and as many nodes as examples."""
    columns = []
    for i in range(size_of(batched, inputs)):
        parts = [x[i] if is_batched else x for x, is_batched in zip(inputs, batched, strict=True)]
        columns.append(_as_tuple(applied(call.op, parts, call.attrs)))
    if not columns:
        return tuple([zeros((0, *s.shape), dtype=s.dtype) for s in call.outputs])
    return tuple([stack(column) for column in zip(*columns, strict=True)])
