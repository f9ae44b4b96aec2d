"""`@composite`: an operation made of others that keeps its name in the graph.

    @composite(OpKind.ACTIVATION, promotes_from=0, inexact=True)
    def silu(x: Arr, /) -> Arr:
        \"\"\"Element-wise x * sigmoid(x).\"\"\"
        return x * sigmoid(x)

The function is written in tensor operations and is all there is: run on placeholders it tells the output's spec, it is
differentiated for the gradient, and its ops' reference bodies are the reference. A device that has the operation itself
takes it whole; for all others `expand` puts the parts in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, ParamSpec
from weakref import WeakKeyDictionary

from ..errors import UserError
from .dtype import DType, float32, promote
from .node import Call, Node, Spec, in_order, spec
from .op import IN_COMPOSITE, Normal, Op, OpKind, Tolerance, cast, embedded, leaf, leaf_call, op
from .role import Role
from .tensor import Tensor

P = ParamSpec("P")


def composite(
    kind: OpKind,
    *,
    normal: Callable[..., dict[str, Any]] | None = None,
    vjp: Callable[..., Any] | None = None,
    batch: Callable[..., Any] | None = None,
    promotes_from: int | None = None,
    inexact: bool = False,
    computes_half: bool = False,
    tolerance: Tolerance = Tolerance(),  # noqa: B008 (frozen)
    operator: str | None = None,
    role: Role | None = None,
) -> Callable[[Callable[P, Any]], Op[P]]:
    """Declare the decorated function, of tensors and of attributes, an op that is made of what the function calls. The
    function returns a tensor, or a tuple of the op's outputs.

    - Tensor parameters at the end may have the default `None`, and may then be left out.
    - `normal` is called like the function, with specs for tensors. It gives the attributes in their normal form, and
      raises on misuse that the ops inside would not tell as well.
    - `vjp`: a gradient better than that of the parts; as for `op`.
    - `batch`: the op on many examples at once, where it can stay whole; as for `op`.
    - `computes_half`: 16-bit floats reach the function as they are. Otherwise it gets them as float32, and its result
      is rounded once.
    - The rest is as for `op`.
    """

    def declare(function: Callable[P, Any]) -> Op[P]:
        def infer(*specs: Spec, **attrs: Any) -> Normal:
            given = {"given": attrs["given"]} if "given" in attrs else {}
            try:
                own = attrs if normal is None else {**_with_optional(normal, made)(*specs, **attrs), **given}
                results = [n.spec for n in _traced(made, specs, own)[1]]
            except UserError as error:
                raise error.retold(made.name) from None
            return Normal(tuple([spec(r.shape, r.dtype, layout=r.layout) for r in results]), own)

        made: Op[P] = op(
            kind, infer=infer, vjp=vjp if vjp is None or computes_half else _in_single(vjp),
            promotes_from=promotes_from, inexact=inexact, computes_half=computes_half, tolerance=tolerance,
            decomposition=function, operator=operator, role=role, batch=batch,
        )(function)  # fmt: skip
        return made

    return declare


def _in_single(vjp: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient with 16-bit floats as float32; the pass back rounds what it gives."""

    def rule(*tensors: Tensor, **attrs: Any) -> Any:
        return vjp(*[Tensor(_widened(t._node)) for t in tensors], **attrs)

    return rule


def _widened(node: Node) -> Node:
    return cast(node, float32) if node.spec.dtype.is_half else node


def _with_optional(function: Callable[..., Any], op: Op[Any]) -> Callable[..., Any]:
    """The function, called with those of the op's optional tensors that the attribute `given` names at the end."""
    if not op.optional:
        return function

    def call(*inputs: Any, given: tuple[str, ...], **attrs: Any) -> Any:
        first = len(inputs) - len(given)
        there = dict(zip(given, inputs[first:], strict=True))
        return function(*inputs[:first], **{name: there.get(name) for name in op.optional}, **attrs)

    return call


class Decomposition(NamedTuple):
    """A composite call as a program: each step is a call on inputs and earlier steps, counted in this order."""

    steps: tuple[tuple[Call, tuple[int, ...]], ...]
    outputs: tuple[int, ...]


_KNOWN: Final[WeakKeyDictionary[Call, Decomposition]] = WeakKeyDictionary()


def decomposed(call: Call) -> Decomposition:
    """The decomposition of a composite call: always the same calls, so that two uses of it are seen to be one value."""
    known = _KNOWN.get(call)
    if known is None:
        inputs, outputs = _traced(call.op, call.inputs, call.attrs)
        at = {node: n for n, node in enumerate(inputs)}
        steps = []
        for node in in_order(outputs, lambda n: n.inputs):
            if node not in at:
                steps.append((_without_value(node), tuple([at[i] for i in node.inputs])))
                at[node] = len(at)
        known = _KNOWN.setdefault(call, Decomposition(tuple(steps), tuple([at[o] for o in outputs])))
    return known


def rebuilt(call: Call, inputs: Sequence[Node]) -> list[Node]:
    """A composite call's outputs as expressions of its parts."""
    parts = decomposed(call)
    nodes = list(inputs)
    for inner, args in parts.steps:
        nodes.append(Node(inner, tuple([nodes[a] for a in args])))
    return [nodes[o] for o in parts.outputs]


def _traced(op: Op[Any], specs: Sequence[Spec], attrs: dict[str, Any]) -> tuple[list[Node], list[Node]]:
    """Placeholders for the inputs, and the expressions that the op's function makes of them."""
    assert op.decomposition is not None
    function = _with_optional(op.decomposition, op)
    inputs = [Node(leaf_call(s), ()) for s in specs]
    token = IN_COMPOSITE.set(True)
    try:
        return inputs, _outputs(op, function, inputs, attrs)
    finally:
        IN_COMPOSITE.reset(token)


def _outputs(op: Op[Any], function: Callable[..., Any], inputs: Sequence[Node], attrs: dict[str, Any]) -> list[Node]:
    specs = [n.spec for n in inputs]
    is_widened = not op.computes_half and any(s.dtype.is_half for s in specs)
    made = function(*[Tensor(_widened(n) if is_widened else n) for n in inputs], **attrs)
    nodes = [t._node for t in (made if isinstance(made, tuple) else (made,))]
    return [cast(n, _floating(specs)) if is_widened and n.spec.dtype is float32 else n for n in nodes]


def _floating(specs: Sequence[Spec]) -> DType:
    """The common dtype of the floats."""
    first, *others = [s.dtype for s in specs if s.dtype.is_inexact]
    for other in others:
        first = promote(first, other)
    return first


def _without_value(node: Node) -> Call:
    """The call of a node, or, for a number that is data in an expression, that of a constant of the program."""
    if node.call.op is not leaf:
        return node.call
    assert node.buffer is not None
    return Call(embedded, {"array": node.buffer.data}, (), node.call.outputs)
