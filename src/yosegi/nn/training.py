"""Gradients and state of modules: `value_and_grad`, `stateful`, `partition` and `combine`.

A module in training may have state: the running statistics of batch norm, the generator of dropout. A call cannot
change a module, so `stateful` collects the new states of a call, and returns a module with them beside the result.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from .._tensor.op import number
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks, user_level
from .._tensor.tree import Structure, flatten, rebuilt, tree_map, unflatten
from .._trace.recorded import recorded
from .._trace.reverse import cotangent_inputs
from ..errors import ArgumentError, ShapeError
from .module import UPDATES, M, Role, entries, mapped


def partition(model: M, /) -> tuple[M, M]:
    """Split a module into its parameters and the rest.

    Parameters
    ----------
    model : Module
        The module.

    Returns
    -------
    tuple of Module
        Two modules: one with the parameters, and `None` in place of all state, the other with the state, and `None` in
        place of the parameters. `combine` puts them together.

    Examples
    --------
    >>> import yosegi as ys
    >>> params, rest = ys.nn.partition(ys.nn.BatchNorm1d(3))
    >>> len(ys.tree_leaves(params)), len(ys.tree_leaves(rest))
    (2, 3)
    """
    leaves, structure = flatten(model)
    trained = [role is Role.PARAMETER for _, _, role in entries(model)]
    kept = [[leaf if t is want else None for leaf, t in zip(leaves, trained, strict=True)] for want in (True, False)]
    return unflatten(structure, kept[0]), unflatten(structure, kept[1])


def combine(first: M, second: M, /) -> M:
    """Put the two parts of a module together: each tensor from the part that has it.

    Parameters
    ----------
    first : Module
        A module with `None` in some places. Where both have a tensor, this one counts.
    second : Module
        A module of the same structure.

    Returns
    -------
    Module
        The whole module.

    Examples
    --------
    >>> import yosegi as ys
    >>> params, rest = ys.nn.partition(ys.nn.BatchNorm1d(3))
    >>> ys.nn.combine(ys.tree_map(lambda p: p * 2, params), rest).weight.tolist()
    [2.0, 2.0, 2.0]
    """
    (ours, structure), (theirs, other) = flatten(first), flatten(second)
    return _combined(structure, iter(ours), other, iter(theirs))  # type: ignore[no-any-return]


def _combined(structure: Structure, ours: Any, other: Structure, theirs: Any) -> Any:
    if structure is ... or structure is None or other is ... or other is None:
        own = next(ours) if structure is ... else None
        second = next(theirs) if other is ... else None
        return second if own is None else own
    if structure[:2] != other[:2] or len(structure[2]) != len(other[2]):
        raise ArgumentError(f"[combine] expected modules of one structure, got {structure[0]} and {other[0]}")
    parts = [_combined(a, ours, b, theirs) for a, b in zip(structure[2], other[2], strict=True)]
    return rebuilt(structure[0], structure[1], parts)


def stateful(model: M, function: Callable[..., Any] | None = None, /) -> Callable[..., tuple[Any, M]]:
    """Return a function that calls a module and returns the result, and the module with its new state.

    Parameters
    ----------
    model : Module
        The module, or a model of several.
    function : callable, optional
        A function of the module and further arguments; by default, a call of the module.

    Returns
    -------
    callable
        A function of the further arguments. It returns the result and a module: `model` with the running statistics and
        generators that the call has left behind.

    Examples
    --------
    >>> import yosegi as ys
    >>> norm = ys.nn.BatchNorm1d(1, momentum=0.5)
    >>> y, norm = ys.nn.stateful(norm)(ys.asarray([[1.0], [3.0]]))
    >>> norm.running_mean.tolist()
    [1.0]
    """

    @short_tracebacks
    def call(*args: Any, **kwargs: Any) -> tuple[Any, M]:
        updates: dict[int, dict[str, Tensor]] = {}
        token = UPDATES.set(updates)
        try:
            result = model(*args, **kwargs) if function is None else function(model, *args, **kwargs)
        finally:
            UPDATES.reset(token)
        made = mapped(lambda new, old: new.replace(**updates.pop(id(old))) if id(old) in updates else new, model)
        if updates:
            raise ArgumentError(
                f"[stateful] expected state of modules in {type(model).__name__}, got "
                f"{', '.join(sorted({name for values in updates.values() for name in values}))} of others; call "
                "stateful inside ys.scan, ys.checkpoint and ys.vmap, and return the module from there"
            )
        return result, made

    return call


def value_and_grad(
    model: M,
    loss: Callable[..., Any],
    /,
    *,
    has_aux: bool = False,
    has_state: bool = False,
    scale: Tensor | None = None,
) -> Callable[..., tuple[Any, M]]:
    """Return a function that computes a loss of a module and the gradient by its parameters.

    Parameters
    ----------
    model : Module
        The module, or a tree of modules and tensors.
    loss : callable
        A function of the module and further arguments that returns a real floating-point scalar, or, with `has_aux`,
        the pair (scalar, anything).
    has_aux : bool
        True if `loss` returns a pair whose second part is passed through.
    has_state : bool
        True: the new state of the module is returned, as `stateful` does.
    scale : tensor, optional
        A positive scalar by which all gradients are multiplied on the way through the loss, and divided at its end, so
        that small ones do not vanish in float16. The value is not scaled.

    Returns
    -------
    callable
        A function of the further arguments. It returns (value, gradient), where the value is that of `loss`, and with
        `has_state` the pair (value, new module). The gradient is a module with the gradients in place of the parameters
        and `None` in place of all state: it has the structure of the first part of `partition(model)`.

    Raises
    ------
    ShapeError
        If the loss is not a real floating-point scalar.

    Warns
    -----
    UserWarning
        If the loss does not depend on a parameter. Its gradient is zero.

    Examples
    --------
    >>> import yosegi as ys
    >>> model = ys.nn.Linear(2, 1)
    >>> loss, grads = ys.nn.value_and_grad(model, lambda m, x: ys.sum(m(x)))(ys.asarray([[1.0, 2.0]]))
    >>> grads.weight.tolist(), grads.bias.tolist()
    ([[1.0, 2.0]], [1.0])
    """

    @short_tracebacks
    def call(*args: Any, **kwargs: Any) -> tuple[Any, M]:
        params, rest = partition(model)
        kept: list[Any] = []

        def function(params: M) -> Any:
            whole = combine(params, rest)
            value, new = stateful(whole, loss)(*args, **kwargs) if has_state else (loss(whole, *args, **kwargs), whole)
            if has_aux:
                value, aux = value
                kept.append(aux)
            kept.append(partition(new)[1])
            return value

        made = recorded(
            "value_and_grad", function, [params], is_loss=True, names=lambda: ["model"], inputs_of=cotangent_inputs
        )
        value, *aux = made.value, *kept[:-1]
        if not isinstance(value, Tensor) or value.shape != () or not value.dtype.is_float:
            got = repr(value._node.spec) if isinstance(value, Tensor) else type(value).__name__
            raise ShapeError(
                f"[value_and_grad] expected the loss of {type(model).__name__} to be a real floating scalar, got "
                f"{got}; sum or mean it"
            )
        used = {*made.outputs, *[i for _, inputs in made.tape for i in inputs]}
        names = [name for name, _, _ in entries(params)]
        unused = [name for name, v in zip(names, made.variables, strict=True) if v not in used]
        if unused:
            warnings.warn(
                f"[value_and_grad] the loss of {type(model).__name__} does not depend on {', '.join(unused)}: the "
                "gradient is zero there",
                stacklevel=user_level(),
            )
        (grads,) = made.back(number(1, value.dtype) if scale is None else scale)
        if scale is not None:
            grads = tree_map(lambda g: g / scale.astype(g.dtype), grads)
        value = (value, *aux) if has_aux else value
        return (value, combine(params, kept[-1])) if has_state else value, grads

    return call
