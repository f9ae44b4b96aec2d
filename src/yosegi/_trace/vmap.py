"""`vmap`: a function of one example as a function of many, computed at once.

The function runs once, on placeholders for one example. The expression that it builds is then computed for all examples
(see `batching`). What the function draws at random is drawn anew for each example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

import numpy as np

from .._tensor.batch import spread
from .._tensor.node import Node, spec
from .._tensor.op import leaf_call
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import children, flatten, paths, unflatten
from ..errors import ArgumentError, AxisError, ShapeError, UserError
from ..ops.creation import asarray
from ..ops.shape import moveaxis
from .batching import batched_outputs
from .objects import given
from .tracing import ActiveTrace, Print, fed, printed, tracing

Axes = Any
"""An axis, `None` for a value that all examples share, or a tree of these that begins like the tree that it is for."""


@short_tracebacks
def vmap(
    function: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0, axis_size: int | None = None
) -> Callable[..., Any]:
    """Return a function that applies a function to many examples at once.

    The result is that of a loop over the examples whose results are stacked, random draws included. The function runs
    only once, on placeholders for one example: it must not read values of arguments that have an axis.

    Parameters
    ----------
    function : callable
        A function of one example. It returns tensors, or nested tuples, lists and dicts of tensors.
    in_axes : int, None, or a tree of these
        The axis of each argument that counts the examples; `None` for an argument that all examples share. One number
        is for all arguments; a tuple has an entry for each. An entry is for all tensors of its argument, or a tree of
        entries for its parts. Keyword arguments have the examples along axis 0.
    out_axes : int, None, or a tree of these
        The axis of each result that counts the examples; `None` for a result that is the same for all examples.
    axis_size : int, optional
        The number of examples, if no argument has an axis.

    Returns
    -------
    callable
        A function with the arguments of `function`.

    Raises
    ------
    ShapeError
        If the arguments have different numbers of examples.
    ArgumentError
        If no argument has an axis and `axis_size` is left out, or if an axis is given for a value that is no tensor.
    TraceError
        If the function reads a value of an example.

    Examples
    --------
    >>> import yosegi as ys
    >>> rows = ys.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> ys.vmap(lambda row, scale: ys.sum(row) * scale, in_axes=(0, None))(rows, 10.0).tolist()
    [30.0, 70.0]
    >>> gradients = ys.vmap(ys.grad(lambda row: ys.sum(row**2)))(rows)
    >>> gradients.tolist()
    [[2.0, 4.0], [6.0, 8.0]]
    """

    def wrapped(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
            raise ArgumentError(f"[vmap] expected in_axes for {len(args)} arguments, got {in_axes}")
        leaves, structure = flatten((args, kwargs))
        named = (_prefixed("in_axes", in_axes, args), _prefixed("in_axes", 0, kwargs))
        axes = [axis for part in named for axis in part]
        where = [*paths(args, "argument "), *paths(kwargs, "argument ")]
        values = [_in_front(v, a, p) for v, a, p in zip(leaves, axes, where, strict=True)]
        size = _size(values, axes, where, axis_size)
        placeholders = [None if a is None else _placeholder(v) for v, a in zip(values, axes, strict=True)]
        call, keywords = unflatten(
            structure, [v if p is None else Tensor(p) for v, p in zip(values, placeholders, strict=True)]
        )
        with tracing("vmap") as trace:
            returned = function(*call, **keywords)
        examples = {p: v for p, v in zip(placeholders, values, strict=True) if p is not None}
        results, shape = flatten(returned)
        outputs = [_result(r) for r in results]
        shown = [node for line in trace.prints for node in line.nodes]
        roots = [*[o._node for o in outputs], *shown]
        made = batched_outputs(roots, {**examples, **_draws(trace, size)})
        _print(trace, dict(zip(shown, made[len(outputs) :], strict=True)), size)
        back = _prefixed("out_axes", out_axes, returned)
        moved = [_moved(m, o, a, size) for m, o, a in zip(made, outputs, back, strict=False)]
        return unflatten(shape, moved)

    return given("vmap", wrapped, function)


def _prefixed(name: str, axes: Axes, tree: Any) -> list[int | None]:
    """The axis of each leaf, from a tree of axes that begins like the tree."""
    if axes is None or type(axes) is int:
        return list(repeat(axes, len(flatten(tree)[0])))
    parts, entries = children(tree), children(axes)
    if parts is None or entries is None or parts.keys() != entries.keys():
        raise ArgumentError(
            f"[vmap] expected {name} as an int, None, or a tree that begins like the value, got {axes!r} for a "
            f"{type(tree).__name__}"
        )
    return [axis for key, part in parts.items() for axis in _prefixed(name, entries[key], part)]


def _in_front(value: Any, axis: int | None, where: str) -> Any:
    """An argument with the examples along axis 0; as it is, if all examples share it."""
    if axis is None:
        return value
    try:
        tensor = asarray(value)
    except UserError as error:
        raise ArgumentError(
            f"[vmap] expected a tensor for axis {axis}, got {type(value).__name__} at {where}; give it the axis None"
        ) from error
    if not -tensor.ndim <= axis < tensor.ndim:
        raise AxisError(
            f"[vmap] expected an axis of a tensor of shape {tensor.shape} at {where}, got {axis}; give it the axis None"
        )
    return moveaxis(tensor, axis, 0) if axis % tensor.ndim else tensor


def _size(values: Sequence[Any], axes: Sequence[int | None], where: Sequence[str], wanted: int | None) -> int:
    """The number of examples, which all arguments with an axis must have."""
    found = [(v.shape[0], w) for v, a, w in zip(values, axes, where, strict=True) if a is not None]
    size, place = found[0] if wanted is None and found else (wanted, "axis_size")
    if size is None:
        raise ArgumentError("[vmap] expected an argument with an axis, got none; give axis_size")
    for length, other in found:
        if length != size:
            raise ShapeError(f"[vmap] expected one number of examples, got {size} for {place} and {length} for {other}")
    return size


def _placeholder(values: Tensor) -> Node:
    return Node(leaf_call(spec(values.shape[1:], values.dtype)), ())


def _result(value: Any) -> Tensor:
    try:
        return asarray(value)
    except UserError as error:
        raise ArgumentError(
            f"[vmap] expected the function to return tensors, in tuples, lists and dicts, got {type(value).__name__}"
        ) from error


def _draws(trace: ActiveTrace, size: int) -> dict[Node, Tensor]:
    """Values for what was drawn for one example: one for each example, in the order in which a loop would draw."""
    if not trace.feeds:
        return {}
    nodes, makers = zip(*trace.feeds, strict=True)
    specs = {node.spec for node in nodes}
    assert len(specs) == 1, f"feeds of different specs: {specs}"
    (each,) = specs

    def make() -> Any:
        drawn = [[make() for make in makers] for _ in range(size)]
        return np.asarray(drawn, each.dtype.numpy).reshape(size, len(makers), *each.shape)

    drawn = fed(make, (size, len(makers), *each.shape), each.dtype)
    return {node: drawn[:, n] for n, node in enumerate(nodes)}


def _print(trace: ActiveTrace, made: dict[Node, Tensor], size: int) -> None:
    """Print all lines of an example, then those of the next, as a loop would."""
    for i in range(size if trace.prints else 0):
        for line in trace.prints:
            parts = [made[n][i] if made[n].ndim > n.spec.ndim else made[n] for n in line.nodes]
            printed(Print(tuple([p._node for p in parts]), line.show))


def _moved(made: Tensor, output: Tensor, axis: int | None, size: int) -> Tensor:
    """A result with the examples along its axis."""
    is_batched = made.ndim > output.ndim
    if axis is None:
        if is_batched:
            raise ArgumentError(
                "[vmap] expected a result that is the same for all examples where out_axes is None, got one that "
                "depends on the example; give it an axis"
            )
        return made
    whole = spread(made, is_batched, size)
    if not -whole.ndim <= axis < whole.ndim:
        raise AxisError(
            f"[vmap] expected out_axes from {-whole.ndim} to {whole.ndim - 1} for shape {whole.shape}, got {axis}"
        )
    return moveaxis(whole, 0, axis) if axis % whole.ndim else whole
