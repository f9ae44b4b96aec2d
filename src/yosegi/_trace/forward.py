"""Forward mode: tangents through an expression, from its arguments to its results.

An op's vjp is linear in the cotangent, and its transpose is the map of tangents. So forward mode needs no rules of its
own: the vjp is built for a placeholder, and the reverse pass goes through it. An elementwise op of real numbers is a
diagonal map, which is its own transpose, and a view of the tangent is the tangent of a view.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._tensor.batch import applied, picked
from .._tensor.composite import rebuilt
from .._tensor.node import Node, Spec, in_order
from .._tensor.op import leaf_call, pick
from .._tensor.role import View
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten, unflatten
from ..errors import ArgumentError, DTypeError, ShapeError
from ..ops.creation import asarray, zeros
from ..ops.shape import broadcast_to
from .recorded import Recorded, recorded
from .reverse import Tape, fitted_to, pull_back, record, variable

Tangents = tuple[Tensor | None, ...]
"""One for each input or output of an op; `None` is zero."""


def push_forward(tape: Tape, outputs: Sequence[Node], tangents: Mapping[Node, Tensor]) -> list[Tensor | None]:
    """The tangents of the outputs, given those of the variables; `None` for one that is zero."""
    known: dict[Node, Tangents] = {node: (tangent,) for node, tangent in tangents.items()}
    for node, inputs in tape:
        if node.call.op is pick:
            if inputs[0] in known:
                known[node] = (known[inputs[0]][node.call.attrs["index"]],)
            continue
        given = tuple([known[i][0] if i in known else None for i in inputs])
        if any(t is not None for t in given):
            known[node] = _through(node, inputs, given)
    return [known[o][0] if o in known else None for o in outputs]


def _through(node: Node, inputs: Sequence[Node], tangents: Tangents) -> Tangents:
    """The tangents of one op's outputs, given those of its inputs."""
    call = node.call
    op = call.op
    if not any(s.dtype.is_inexact for s in call.outputs):
        return (None,) * len(call.outputs)
    handles = [Tensor(i) for i in inputs]
    if op.jvp is not None:
        made = op.jvp(tangents, _out(node), *handles, **call.attrs)
        return made if isinstance(made, tuple) else (made,)
    if op.vjp is None and op.decomposition is not None:
        own = [variable(h)._node for h in handles]
        outputs = rebuilt(call, own)
        moving = {o: t for o, t in zip(own, tangents, strict=True) if t is not None}
        return tuple(push_forward(record(outputs, own), outputs, moving))
    if op.vjp is None:
        raise ArgumentError(
            f"[jvp] expected ops that have a gradient, got {op.name}; declare its vjp (flat, if it is a step)"
        )
    if isinstance(op.role, View):
        (tangent,) = tangents
        assert tangent is not None
        made = applied(op, [tangent], call.attrs)
        assert isinstance(made, Tensor)
        return (made,)
    is_real = not any(s.dtype.is_complex for s in (*call.inputs, *call.outputs))
    return (
        _diagonal(node, handles, tangents) if op.scalar is not None and is_real else _transposed(node, inputs, tangents)
    )


def _out(node: Node) -> Any:
    """The output of a node, or a tuple of its outputs, as a vjp takes it."""
    made = picked(node)
    return made if len(made) > 1 else made[0]


def _diagonal(node: Node, handles: Sequence[Tensor], tangents: Tangents) -> Tangents:
    """The tangent of an elementwise op of real numbers: its vjp, applied to the tangents."""
    op, attrs, out = node.call.op, node.call.attrs, node.spec
    assert op.vjp is not None
    total: Tensor | None = None
    for n, tangent in enumerate(tangents):
        if tangent is not None:
            given = broadcast_to(tangent.astype(out.dtype, copy=False), out.shape)
            part = op.vjp(given, Tensor(node), *handles, **attrs)[n]
            if part is not None:
                total = part if total is None else total + part
    return (None if total is None else broadcast_to(total.astype(out.dtype, copy=False), out.shape),)


def _transposed(node: Node, inputs: Sequence[Node], tangents: Tangents) -> Tangents:
    """The tangents of an op's outputs by the transpose of its vjp."""
    op, attrs, outputs = node.call.op, node.call.attrs, node.call.outputs
    assert op.vjp is not None
    unknown = [Node(leaf_call(s), ()) if s.dtype.is_inexact else zeros(s.shape, dtype=s.dtype)._node for s in outputs]
    cotangents = [Tensor(n) for n in unknown]
    made = op.vjp(
        tuple(cotangents) if len(outputs) > 1 else cotangents[0], _out(node), *[Tensor(i) for i in inputs], **attrs
    )
    paired = [
        (fitted_to(g, i.spec), t)
        for g, i, t in zip(made, inputs, tangents, strict=True)
        if g is not None and t is not None
    ]
    back = [g._node for g, _ in paired]
    given = [t for _, t in paired]
    ends = [node, *inputs]
    found = pull_back(record(back, unknown, ends), back, given, unknown)
    behind = {*ends, *[t._node for t in given]}
    reached = in_order([f._node for f in found], lambda n: () if n in behind else n.inputs)
    if not set(reached).isdisjoint(unknown):
        raise ArgumentError(
            f"[jvp] expected backward rules that are linear in the cotangent, got that of {op.name}; use grad or vjp"
        )
    return tuple([f if s.dtype.is_inexact else None for f, s in zip(found, outputs, strict=True)])


def tangent_of(made: Recorded, tangents: Sequence[Any]) -> Any:
    """The tangent of a recorded function's value, given those of its arguments."""
    leaves, structure = flatten(tuple(tangents))
    if structure != made.structure:
        raise ArgumentError(f"[jvp] expected tangents of the arguments' structure, {made.structure}, got {structure}")
    given = {v: _fitting(t, v.spec) for v, t in zip(made.variables, leaves, strict=True)}
    found = push_forward(made.tape, made.outputs, given)
    zero = [
        zeros(o.spec.shape, dtype=o.spec.dtype) if f is None else f for f, o in zip(found, made.outputs, strict=True)
    ]
    return unflatten(made.shape, zero)


def _fitting(value: Any, wanted: Spec) -> Tensor:
    """A tangent in the dtype of its argument."""
    tangent = asarray(value)
    if tangent.shape != wanted.shape:
        raise ShapeError(f"[jvp] expected a tangent of shape {wanted.shape}, as its argument has, got {tangent.shape}")
    if tangent.dtype.is_complex and not wanted.dtype.is_complex:
        raise DTypeError(f"[jvp] expected a real tangent for a {wanted.dtype.name} argument, got {tangent.dtype.name}")
    return tangent.astype(wanted.dtype, copy=False)


@short_tracebacks
def jvp(
    function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, has_aux: bool = False
) -> tuple[Any, ...]:
    """Compute a function's value and its Jacobian-vector product: the derivative in one direction.

    The cost is a small multiple of that of the function, however many results it has. `jvp` of a `grad` is the product
    of the Hessian with a vector. For a complex argument the tangent is the change of the result for a change of the
    argument by the given tangent.

    Parameters
    ----------
    function : callable
        A function that returns tensors, or nested tuples, lists and dicts of tensors; with `has_aux`, the pair
        (result, anything).
    primals : sequence
        The arguments, which may be trees of floating-point tensors.
    tangents : sequence
        The direction: for each argument a tree of the same structure and shapes.
    has_aux : bool
        True if `function` returns a pair whose second part is passed through.

    Returns
    -------
    tuple
        The value and its tangent, and with `has_aux` the second part of the pair.

    Raises
    ------
    ArgumentError, ShapeError, DTypeError
        If the tangents do not fit the arguments, or a result is not a tensor.

    Examples
    --------
    >>> import yosegi as ys
    >>> value, tangent = ys.jvp(lambda x: x**2, (ys.asarray(3.0),), (ys.asarray(1.0),))
    >>> float(value), float(tangent)
    (9.0, 6.0)
    """
    if not isinstance(primals, (tuple, list)) or not isinstance(tangents, (tuple, list)):
        raise ArgumentError("[jvp] expected primals and tangents as tuples, one entry for each argument")
    aux: list[Any] = []
    made = recorded("jvp", _without_aux(function, aux) if has_aux else function, primals)
    return made.value, tangent_of(made, tangents), *aux


def _without_aux(function: Callable[..., Any], aux: list[Any]) -> Callable[..., Any]:
    """The first part of what a function returns; the second goes to a list."""

    def first(*args: Any) -> Any:
        result, rest = function(*args)
        aux.append(rest)
        return result

    return first


@short_tracebacks
def linearize(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Compute a function's value and its derivative as a linear function.

    Parameters
    ----------
    function : callable
        A function that returns tensors, or nested tuples, lists and dicts of tensors.
    *primals : Tensor, array, or tree of these
        The arguments.

    Returns
    -------
    value : Tensor or tree of tensors
        The value of the function.
    forward : callable
        A function from tangents of the arguments to the tangent of the value. The function itself does not run again.

    Examples
    --------
    >>> import yosegi as ys
    >>> value, forward = ys.linearize(lambda x: x**2, ys.asarray(3.0))
    >>> float(forward(1.0)), float(forward(10.0))
    (6.0, 60.0)
    """
    made = recorded("linearize", function, primals)
    return made.value, lambda *tangents: tangent_of(made, tangents)
