"""The reverse pass: cotangents through an expression, from its results to its arguments.

A function runs on marked inputs and builds a graph. The pass walks that graph backwards. The rules are written in
tensor operations, so a gradient is itself a graph and can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from .._tensor.composite import rebuilt
from .._tensor.node import Call, Node, Spec, in_order
from .._tensor.op import Arr, OpKind, number, op, pick, pick_call
from .._tensor.options import current
from .._tensor.origins import BACKWARD, backward_origin
from .._tensor.role import Passed
from .._tensor.tensor import HOOKS, Tensor
from ..errors import ArgumentError
from ..ops.elementwise import real
from ..ops.reduce import sum as reduce_sum
from ..ops.shape import broadcast_to, reshape


@op(OpKind.MOVEMENT, infer=lambda x: x, vjp=lambda g, out, x: (g,), scalar=lambda k, x: x, role=Passed())
def variable(x: Arr, /) -> Arr:
    """The value as a node of its own, where the reverse pass stops."""
    return x


Tape = list[tuple[Node, tuple[Node, ...]]]
"""Nodes with their inputs, inputs before their users. Later evaluation does not change it."""


def record(
    outputs: Sequence[Node],
    variables: Sequence[Node],
    ends: Iterable[Node] = (),
    inputs_of: Callable[[Node], Sequence[Node]] = lambda node: node.inputs,
) -> Tape:
    """The nodes on paths from the variables to the outputs. Paths stop at `ends`."""
    depends = {**dict.fromkeys(ends, False), **dict.fromkeys(variables, True)}
    tape: Tape = []
    for node in in_order(outputs, lambda n: () if n in depends else inputs_of(n)):
        if node not in depends:
            depends[node] = any(depends[i] for i in inputs_of(node))
            if depends[node]:
                tape.append((node, node.inputs))
    return tape


def cotangent_inputs(node: Node) -> Sequence[Node]:
    """The inputs of a node to which a cotangent may flow. A tape of these alone does not keep the values that
    `checkpoint` computes again."""
    role = node.call.op.role
    is_guarded = isinstance(role, Passed) and role.is_guarded
    return node.inputs[len(node.call.outputs) :] if is_guarded else node.inputs


def pull_back(tape: Tape, outputs: Sequence[Node], gs: Sequence[Tensor], variables: Sequence[Node]) -> list[Tensor]:
    """The cotangents of the variables, given those of the outputs."""
    work = partial(_pulled_back, tape, outputs, gs, variables)
    # In a context of its own, the origin that it sets ends with it.
    return copy_context().run(work, True) if current().check_nan else work(False)


def _pulled_back(
    tape: Tape, outputs: Sequence[Node], gs: Sequence[Tensor], variables: Sequence[Node], has_origins: bool
) -> list[Tensor]:
    sums: dict[Node, list[Tensor | None]] = {}
    for output, g in zip(outputs, gs, strict=True):
        _accumulate(sums, output, 0, g)
    for node, inputs in reversed(tape):
        parts = sums.pop(node, None)
        if parts is None:
            continue
        call = node.call
        if has_origins:
            BACKWARD.set(backward_origin(node))
        if call.op is pick:
            assert parts[0] is not None
            _accumulate(sums, inputs[0], call.attrs["index"], parts[0])
            continue
        if call.op.vjp is None and call.op.decomposition is not None:
            for input, g in zip(inputs, _through_parts(call, inputs, parts), strict=True):
                if input.spec.dtype.is_inexact:
                    _accumulate(sums, input, 0, g)
            continue
        if call.op.vjp is None:
            raise ArgumentError(
                f"[grad] expected ops that have a gradient, got {call.op.name}; declare its vjp (flat, if it is a step)"
            )
        out: Any = Tensor(node)
        cotangent: Any = parts[0]
        if len(parts) > 1:
            out = tuple(Tensor(Node(pick_call(call.outputs, i), (node,))) for i in range(len(parts)))
            cotangent = tuple(_zeros(s) if g is None else g for s, g in zip(call.outputs, parts, strict=True))
        handles = [Tensor(i) for i in inputs]
        for input, g in zip(inputs, call.op.vjp(cotangent, out, *handles, **call.attrs), strict=True):
            if g is not None and input.spec.dtype.is_inexact:
                _accumulate(sums, input, 0, fitted_to(g, input.spec))
    return [_total(sums, v) for v in variables]


def _through_parts(call: Call, inputs: Sequence[Node], gs: Sequence[Tensor | None]) -> list[Tensor]:
    """The cotangents of a composite's inputs, by its decomposition.

    The ops of the decomposition are then in the graph twice; `simplify` merges them.
    """
    own = [variable(Tensor(i))._node for i in inputs]  # one per input, though two may be the same node
    pairs = [(output, g) for output, g in zip(rebuilt(call, own), gs, strict=True) if g is not None]
    outputs = [output for output, _ in pairs]
    return pull_back(record(outputs, own), outputs, [g for _, g in pairs], own)


def _zeros(s: Spec) -> Tensor:
    return broadcast_to(number(0, s.dtype), s.shape)


def _total(sums: dict[Node, list[Tensor | None]], variable: Node) -> Tensor:
    found = sums.get(variable, [None])[0]
    return _zeros(variable.spec) if found is None else found


def _accumulate(sums: dict[Node, list[Tensor | None]], node: Node, index: int, g: Tensor) -> None:
    parts = sums.setdefault(node, [None] * len(node.call.outputs))
    known = parts[index]
    if known is not None:
        g = known + g if known.layout == g.layout else HOOKS.sum_of_layouts(known, g)
    parts[index] = g


def fitted_to(g: Tensor, wanted: Spec) -> Tensor:
    """A cotangent in the shape and dtype of its input: broadcast dimensions summed, the imaginary part of a real
    input's dropped."""
    if g.shape != wanted.shape:
        lead = g.ndim - wanted.ndim
        wide = tuple(i for i in range(g.ndim) if i < lead or (wanted.shape[i - lead] == 1 and g.shape[i] != 1))
        g = reshape(reduce_sum(g, axis=wide), wanted.shape) if lead else reduce_sum(g, axis=wide, keepdims=True)
    if g.dtype is not wanted.dtype:
        g = (g if wanted.dtype.is_complex else real(g)).astype(wanted.dtype)
    return g
