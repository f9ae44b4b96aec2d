"""Jacobians and Hessians: one pass through a function's expression for all directions at once.

`jacrev` pulls back a cotangent for each element of the result, `jacfwd` pushes forward a tangent for each element of
the arguments. Both do so by `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from .._tensor.node import Node
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten, unflatten
from ..errors import DTypeError
from ..ops.creation import eye
from ..ops.elementwise import conj
from ..ops.shape import reshape
from .forward import tangent_of
from .objects import given
from .recorded import Chosen, Recorded, recorded
from .vmap import vmap

Argnums = int | Sequence[int]
Rows = list[list[Tensor]]
"""For each leaf of the value, for each leaf of the arguments, the derivative, of the shapes of both joined."""


def _starts(nodes: Sequence[Node]) -> list[int]:
    """Where the elements of each leaf begin, if all leaves stand one after another; then where they end."""
    return [0, *accumulate([n.spec.size for n in nodes])]


def _basis(nodes: Sequence[Node]) -> list[Tensor]:
    """For each leaf, its part of the unit vectors of all leaves together, one vector along dimension 0."""
    starts = _starts(nodes)
    return [
        reshape(eye(starts[-1], n.spec.size, k=-start, dtype=n.spec.dtype), (starts[-1], *n.spec.shape))
        for n, start in zip(nodes, starts, strict=False)
    ]


def _reverse(made: Recorded, holomorphic: bool) -> Rows:
    cotangents = unflatten(made.shape, _basis(made.outputs))
    columns, _ = flatten(vmap(made.back)(cotangents))
    starts = _starts(made.outputs)
    return [
        [reshape(conj(c) if holomorphic else c, (starts[-1], *v.spec.shape))[start : start + o.spec.size].reshape(
            (*o.spec.shape, *v.spec.shape)) for c, v in zip(columns, made.variables, strict=True)]
        for o, start in zip(made.outputs, starts, strict=False)
    ]  # fmt: skip


def _forward(made: Recorded) -> Rows:
    tangents = unflatten(made.structure, _basis(made.variables))
    rows, _ = flatten(vmap(lambda *ts: tangent_of(made, ts), out_axes=-1)(*tangents))
    starts = _starts(made.variables)
    return [
        [r[..., start : start + v.spec.size].reshape((*o.spec.shape, *v.spec.shape))
         for v, start in zip(made.variables, starts, strict=False)]
        for r, o in zip(rows, made.outputs, strict=True)
    ]  # fmt: skip


def _check(name: str, made: Recorded, holomorphic: bool, *, reverse: bool) -> None:
    """Raise unless real unit vectors (complex ones, if `holomorphic`) span what the pass begins with."""
    nodes = made.outputs if reverse else made.variables
    side = "results" if reverse else "arguments"
    for node in (*made.outputs, *made.variables) if holomorphic else nodes:
        if node.spec.dtype.is_complex != holomorphic:
            kind, fix = (
                ("complex", "leave holomorphic out")
                if holomorphic
                else ("real", "take ys.real and ys.imag, or give holomorphic=True")
            )
            raise DTypeError(f"[{name}] expected {kind} {side}, got {node.spec.dtype.name}; {fix}")


def _chosen(name: str, made: Recorded, holomorphic: bool) -> Rows:
    """By the pass with fewer directions, among those that the dtypes allow."""
    is_complex = [any(n.spec.dtype.is_complex for n in nodes) for nodes in (made.variables, made.outputs)]
    forward = _starts(made.variables)[-1] <= _starts(made.outputs)[-1]
    if not holomorphic and is_complex[0] != is_complex[1]:
        forward = is_complex[1]
    _check(name, made, holomorphic, reverse=not forward)
    return _forward(made) if forward else _reverse(made, holomorphic)


def _jacobian(
    name: str,
    rows_of: Callable[[Recorded], Rows],
    function: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
) -> Callable[..., Any]:
    def wrapped(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        chosen = Chosen(name, function, argnums, args, kwargs, has_aux)
        made = recorded(name, chosen.call, chosen.primals, names=chosen.names)
        parts = [unflatten(made.structure, row) for row in rows_of(made)]
        result = unflatten(made.shape, [part[0] if isinstance(argnums, int) else part for part in parts])
        return (result, chosen.aux[0]) if has_aux else result

    return given(name, wrapped, function)


@short_tracebacks
def jacrev(
    function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of a function in reverse mode.

    The cost grows with the number of elements of the result: this is the mode for few results of many arguments.

    Parameters
    ----------
    function : callable
        A function that returns real floating-point tensors, or nested tuples, lists and dicts of tensors; with
        `has_aux`, the pair (result, anything).
    argnums : int or sequence of int
        The positions of the arguments to differentiate with respect to. They may be trees.
    has_aux : bool
        True if `function` returns a pair whose second part is passed through.
    holomorphic : bool
        True if arguments and results are complex and the function is holomorphic.

    Returns
    -------
    callable
        A function with the same arguments. It returns the Jacobian, or (Jacobian, aux) with `has_aux`. The Jacobian has
        the structure of the result; each leaf is a tree of the structure of the argument, whose leaves have the shape
        (*result, *argument). For several `argnums` each leaf of the result is a tuple.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.jacrev(lambda x: x**2)(ys.asarray([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """

    def rows(made: Recorded) -> Rows:
        _check("jacrev", made, holomorphic, reverse=True)
        return _reverse(made, holomorphic)

    return _jacobian("jacrev", rows, function, argnums, has_aux)


@short_tracebacks
def jacfwd(
    function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of a function in forward mode.

    The cost grows with the number of elements of the arguments: this is the mode for many results of few arguments.

    Parameters
    ----------
    function : callable
        A function that returns tensors, or nested tuples, lists and dicts of tensors; with `has_aux`, the pair
        (result, anything).
    argnums : int or sequence of int
        The positions of the arguments to differentiate with respect to, which are real unless `holomorphic`.
    has_aux : bool
        True if `function` returns a pair whose second part is passed through.
    holomorphic : bool
        True if arguments and results are complex and the function is holomorphic.

    Returns
    -------
    callable
        A function with the same arguments and the result of `jacrev`.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.jacfwd(lambda x: ys.concat([x, 2 * x]))(ys.asarray([1.0])).tolist()
    [[1.0], [2.0]]
    """

    def rows(made: Recorded) -> Rows:
        _check("jacfwd", made, holomorphic, reverse=False)
        return _forward(made)

    return _jacobian("jacfwd", rows, function, argnums, has_aux)


@short_tracebacks
def jacobian(
    function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the Jacobian of a function.

    Forward mode is used if the chosen arguments have at most as many elements as the result, otherwise reverse mode.

    Parameters
    ----------
    function : callable
        A function that returns tensors, or nested tuples, lists and dicts of tensors; with `has_aux`, the pair
        (result, anything).
    argnums : int or sequence of int
        The positions of the arguments to differentiate with respect to. They may be trees.
    has_aux : bool
        True if `function` returns a pair whose second part is passed through.
    holomorphic : bool
        True if arguments and results are complex and the function is holomorphic.

    Returns
    -------
    callable
        A function with the same arguments and the result of `jacrev`.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.jacobian(lambda x, y: x * y, argnums=(0, 1))(ys.asarray([1.0, 2.0]), 3.0)[1].tolist()
    [1.0, 2.0]
    """
    return _jacobian("jacobian", lambda made: _chosen("jacobian", made, holomorphic), function, argnums, has_aux)


@short_tracebacks
def hessian(
    function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """Return a function that computes the matrix of second derivatives of a function.

    It is `jacfwd` of `jacrev`. For the product of the Hessian with a vector, `jvp` of `grad` costs far less.

    Parameters
    ----------
    function : callable
        A function that returns a real floating-point tensor, most often a scalar; with `has_aux`, the pair (result,
        anything).
    argnums : int or sequence of int
        The positions of the arguments to differentiate with respect to. They may be trees.
    has_aux : bool
        True if `function` returns a pair whose second part is passed through.
    holomorphic : bool
        True if arguments and results are complex and the function is holomorphic.

    Returns
    -------
    callable
        A function with the same arguments. It returns the Hessian, or (Hessian, aux) with `has_aux`. For an argument of
        shape s its leaves have the shape (*result, *s, *s); for trees it is a tree of trees.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.hessian(lambda x: ys.sum(x**3))(ys.asarray([1.0, 2.0])).tolist()
    [[6.0, 0.0], [0.0, 12.0]]
    """
    inner = jacrev(function, argnums, has_aux=has_aux, holomorphic=holomorphic)
    return jacfwd(inner, argnums, has_aux=has_aux, holomorphic=holomorphic)
