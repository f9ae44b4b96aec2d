"""`custom_vjp`: a function with a gradient of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from inspect import signature
from typing import Any

from .._tensor.batch import applied
from .._tensor.op import Arr, OpKind, exact, op
from .._tensor.role import Passed
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import Structure, children, flatten, unflatten
from ..errors import ArgumentError, ShapeError, UserError
from ..ops import rules
from ..ops.creation import asarray
from . import guarded
from .guarded import Cotangents
from .tracing import is_recording


@op(OpKind.MOVEMENT, infer=guarded.infer, vjp=guarded.vjp, batch=guarded.batch, role=Passed(is_guarded=True))
def custom(*inputs: Arr, count: int, rule: Any) -> Arr:
    """Values whose gradient is the user's."""
    return guarded.body(*inputs, count=count, rule=rule)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A part of the residuals that is no tensor, as a part of the rule."""

    exact: Any
    value: Any


@dataclass(frozen=True, slots=True)
class _Backward:
    """The user's backward function on leaves: those of the arguments, then those of the residuals."""

    name: str
    function: Callable[..., Any]
    fixed: tuple[_Kept, ...]
    """The arguments of `nondiff_argnums`."""
    arguments: Structure
    count: int
    """The number of leaves of the arguments."""
    values: Structure
    residuals: Structure
    kept: tuple[_Kept | None, ...]
    """For each leaf of the residuals its value, `None` if it is a tensor."""

    def __call__(self, cotangents: tuple[Tensor, ...], inputs: tuple[Tensor, ...], /) -> Cotangents:
        tensors = iter(inputs[self.count :])
        leaves = [next(tensors) if k is None else k.value for k in self.kept]
        residuals, given = unflatten(self.residuals, leaves), unflatten(self.values, cotangents)
        made = self.function(*[f.value for f in self.fixed], residuals, given)
        arguments = unflatten(self.arguments, inputs[: self.count])
        if not isinstance(made, (tuple, list)) or len(made) != len(arguments):
            raise ArgumentError(
                f"[{self.name}] expected the backward function to return a tuple of {len(arguments)} cotangents, one "
                f"for each argument, got {made!r}"
            )
        found = [g for m, a in zip(made, arguments, strict=True) for g in self._leaves(m, a)]
        return (*found, *[None] * (len(inputs) - self.count))

    def _leaves(self, made: Any, argument: Any) -> list[Tensor | None]:
        """The cotangents of an argument's leaves; `None` stands for zeros of all leaves below it."""
        if made is None:
            return [None] * len(flatten(argument)[0])
        parts, inner = children(argument), children(made)
        if parts is None and inner is None and argument is not None:
            g = asarray(made)
            if g.shape != argument.shape:
                raise ShapeError(
                    f"[{self.name}] expected a cotangent of shape {argument.shape}, as its argument has, got {g.shape}"
                )
            return [g]
        if parts is None or inner is None or parts.keys() != inner.keys():
            raise ArgumentError(
                f"[{self.name}] expected cotangents of the structure of their arguments, got {type(made).__name__} for "
                f"a {type(argument).__name__}"
            )
        return [g for key, part in parts.items() for g in self._leaves(inner[key], part)]


class CustomVjp:
    """A function with a gradient of its own, made by `custom_vjp`."""

    def __init__(self, function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> None:
        rules.function("custom_vjp", function)
        self._function = function
        self._forward: Callable[..., Any] | None = None
        self._backward: Callable[..., Any] | None = None
        self._fixed = frozenset(rules.positions("custom_vjp", "nondiff_argnums", nondiff_argnums))
        self._signature = signature(function)
        self._name = getattr(function, "__name__", "custom_vjp")
        update_wrapper(self, function, updated=())

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Set the functions by which the gradient is computed.

        - `forward` takes the arguments of the function. It returns the pair (value, residuals); the residuals are a
          tree of all that `backward` needs.
        - `backward` takes the residuals and the cotangent of the value, after the arguments of `nondiff_argnums`. It
          returns a tuple with the cotangent of each other argument; `None` stands for zeros.
        """
        self._forward, self._backward = forward, backward

    @short_tracebacks
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward is None or self._backward is None:
            raise ArgumentError(f"[{self._name}] expected rules for the gradient, got none; call its defvjp first")
        if not is_recording():
            return self._function(*args, **kwargs)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if bound.kwargs:
            raise ArgumentError(f"[{self._name}] expected arguments that have a position, got {sorted(bound.kwargs)}")
        fixed = tuple([self._kept(a) for n, a in enumerate(bound.args) if n in self._fixed])
        leaves, arguments = flatten(tuple([a for n, a in enumerate(bound.args) if n not in self._fixed]))
        tensors = [self._tensor(leaf) for leaf in leaves]
        free = iter(unflatten(arguments, tensors))
        value, rest = self._forward(*[a if n in self._fixed else next(free) for n, a in enumerate(bound.args)])
        results, values = flatten(value)
        parts, residuals = flatten(rest)
        kept = tuple([None if isinstance(p, Tensor) else self._kept(p) for p in parts])
        saved = [p for p in parts if isinstance(p, Tensor)]
        rule = _Backward(self._name, self._backward, fixed, arguments, len(tensors), values, residuals, kept)
        inputs = [*[self._tensor(r) for r in results], *tensors, *saved]
        made = applied(custom, inputs, {"count": len(results), "rule": rule})
        return unflatten(values, made if isinstance(made, tuple) else [made])

    def _tensor(self, value: Any) -> Tensor:
        try:
            return asarray(value)
        except UserError as error:
            raise ArgumentError(
                f"[{self._name}] expected arguments and results that are tensors, got {type(value).__name__}; name its "
                "position in nondiff_argnums"
            ) from error

    def _kept(self, value: Any) -> _Kept:
        try:
            hash(value)
        except TypeError:
            raise ArgumentError(
                f"[{self._name}] expected residuals and arguments of nondiff_argnums that are tensors or hashable, got "
                f"{type(value).__name__}; make it a tuple"
            ) from None
        return _Kept(exact((value,)), value)


@short_tracebacks
def custom_vjp(function: Callable[..., Any], nondiff_argnums: Sequence[int] = ()) -> CustomVjp:
    """Give a function a gradient of its own.

    `defvjp(forward, backward)` of the result sets the rules, as in JAX. Outside of gradients the function itself runs.
    Inside, `forward` runs in its place, and the reverse pass calls `backward`. Second derivatives differentiate
    `backward`. `jvp` transposes it, so it must be linear in the cotangent there.

    Parameters
    ----------
    function : callable
        A function of tensors, or of trees of tensors.
    nondiff_argnums : sequence of int
        The positions of arguments without a gradient, such as functions and strings. They are passed to `backward`
        first.

    Returns
    -------
    CustomVjp
        A callable with the arguments of `function`.

    Examples
    --------
    >>> import yosegi as ys
    >>> @ys.custom_vjp
    ... def clipped(x):
    ...     return x
    >>> clipped.defvjp(lambda x: (x, None), lambda _, g: (ys.clip(g, -1.0, 1.0),))
    >>> float(ys.grad(lambda x: 100 * clipped(x))(ys.asarray(2.0)))
    1.0
    """
    return CustomVjp(function, nondiff_argnums)
