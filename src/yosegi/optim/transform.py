"""Transforms of gradients: the pieces that optimisers are made of, and the functions that combine them.

A transform keeps no state of its own. `init` makes the state for a tree of parameters; `update` takes gradients and a
state, and returns updates and the next state. Updates are added to the parameters. The number of a step is a tensor in
the state, so that a jitted step has one plan for all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .._tensor.dtype import int32
from .._tensor.tensor import Tensor
from .._tensor.tracebacks import short_tracebacks
from .._tensor.tree import flatten, paths, tree_map, unflatten
from ..errors import ArgumentError
from ..ops.creation import zeros

Tree = Any
"""A tree of tensors."""
Init = Callable[[Tree], Any]
Rule = Callable[[Tree, Any, Tree, Tensor | None], tuple[Tree, Any]]
Label = Callable[[str, Tensor], str]


@dataclass(frozen=True, slots=True)
class Transform:
    """A step of an optimiser: gradients go in, updates come out.

    Parameters
    ----------
    init : callable
        A function of the parameters that returns the first state, a tree of tensors.
    rule : callable
        A function of gradients, state, parameters and loss that returns updates and the next state. The loss may be
        `None`.
    scale : callable, optional
        A function of the state that returns the scale for `ys.nn.value_and_grad`, of a transform that adapts one: see
        `scale_loss`.

    Examples
    --------
    >>> import yosegi as ys
    >>> halve = ys.optim.Transform(lambda params: (), lambda grads, state, params, value: (grads / 2, state))
    >>> float(halve.update(ys.asarray(4.0), (), ys.asarray(1.0))[0])
    2.0
    """

    init: Init
    rule: Rule
    scale: Callable[[Any], Tensor] | None = None

    @short_tracebacks
    def update(self, grads: Tree, state: Any, params: Tree, value: Tensor | None = None) -> tuple[Tree, Any]:
        """Return the updates for gradients, and the next state.

        Parameters
        ----------
        grads : tree of tensors
            The gradients, in the structure of `params`.
        state : tree of tensors
            The state that `init` or the last `update` returned.
        params : tree of tensors
            The parameters.
        value : tensor, optional
            The loss, for the transforms that follow it, such as `reduce_on_plateau`.

        Returns
        -------
        tuple
            The updates, to be added to the parameters by `apply_updates`, and the next state.
        """
        fits: list[bool] = []
        tree_map(lambda p, g: fits.append(p.shape == g.shape), params, grads)
        if not all(fits):
            raise ArgumentError(
                f"[update] expected gradients of the parameters' shapes, got {_differing(params, grads)}"
            )
        return self.rule(grads, state, params, value)


def _differing(params: Tree, grads: Tree) -> str:
    """The gradients of other shapes than their parameters, with their paths."""
    rows = zip(paths(params), flatten(params)[0], flatten(grads)[0], strict=True)
    return "; ".join(f"{g.shape} for {path} of shape {p.shape}" for path, p, g in rows if p.shape != g.shape)


def stateless(function: Callable[[Tree, Tree], Tree]) -> Transform:
    """A transform that is a function of gradients and parameters."""
    return Transform(lambda params: (), lambda grads, state, params, value: (function(grads, params), state))


def counted(rule: Callable[[Tensor, Tree], Tree]) -> Transform:
    """A transform that is a function of the number of the step, from 0 on, and the gradients."""
    return Transform(
        lambda params: {"count": zeros((), dtype=int32)},
        lambda grads, state, params, value: (rule(state["count"], grads), {"count": state["count"] + 1}),
    )


def per_parameter(rule: Callable[..., tuple[Tensor, ...]], **slots: Callable[[Tensor], Tensor]) -> Transform:
    """A transform that treats each parameter by itself, with tensors in its state.

    Parameters
    ----------
    rule : callable
        A function of the number of the step, from 1 on, of a gradient, and of the slots. It returns the update and the
        new slots.
    **slots : callable
        The slots by name: functions that make the first value for a parameter, such as `ys.zeros_like`.

    Returns
    -------
    Transform
        Its state is a dict of the count of steps and one tree per slot.

    Examples
    --------
    >>> import yosegi as ys
    >>> def total(step, g, s):
    ...     return s + g, s + g
    >>> sums = ys.optim.per_parameter(total, sum=ys.zeros_like)
    >>> state = sums.init({"w": ys.zeros((2,))})
    >>> for _ in range(3):
    ...     updates, state = sums.update({"w": ys.ones((2,))}, state, {"w": ys.zeros((2,))})
    >>> updates["w"].tolist(), int(state["count"])
    ([3.0, 3.0], 3)
    """

    def init(params: Tree) -> dict[str, Any]:
        return {"count": zeros((), dtype=int32), **{name: tree_map(make, params) for name, make in slots.items()}}

    def update(grads: Tree, state: dict[str, Any], params: Tree, value: Tensor | None) -> tuple[Tree, dict[str, Any]]:
        count = state["count"] + 1
        leaves, structure = flatten(grads)
        old = [flatten(state[name])[0] for name in slots]
        made = [rule(count, *row) for row in zip(leaves, *old, strict=True)]
        updates, *new = [unflatten(structure, column) for column in zip(*made, strict=True)] or [grads, *old]
        return updates, {"count": count, **dict(zip(slots, new, strict=True))}

    return Transform(init, update)


def chain(*transforms: Transform) -> Transform:
    """Apply transforms one after another: each takes the updates of the one before it as gradients.

    Parameters
    ----------
    *transforms : Transform
        The transforms, first one first.

    Returns
    -------
    Transform
        Its state is a tuple of the states.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.chain(ys.optim.clip_by_norm(1.0), ys.optim.sgd(0.5))
    >>> params = ys.asarray([3.0, 4.0])
    >>> updates, state = rule.update(params, rule.init(params), params)
    >>> [round(u, 4) for u in updates.tolist()]
    [-0.3, -0.4]
    """

    def update(grads: Tree, state: Any, params: Tree, value: Tensor | None) -> tuple[Tree, Any]:
        states = []
        for transform, old in zip(transforms, state, strict=True):
            grads, new = transform.rule(grads, old, params, value)
            states.append(new)
        return grads, tuple(states)

    scaled = next((n for n, t in enumerate(transforms) if t.scale is not None), None)
    scale = None if scaled is None else transforms[scaled].scale
    return Transform(
        lambda params: tuple([t.init(params) for t in transforms]), update,
        None if scale is None else lambda state: scale(state[scaled]),
    )  # fmt: skip


def groups(transforms: Mapping[str, Transform], label: Label) -> Transform:
    """Apply a transform of its own to each group of parameters.

    Parameters
    ----------
    transforms : mapping
        The transforms by the names of the groups.
    label : callable
        A function of the path of a parameter, such as `['layers'][3].weight`, and the parameter. It returns the name
        of the group. Parameters of a group without a transform are not changed.

    Returns
    -------
    Transform
        Its state is a dict of the states by group.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.groups({"head": ys.optim.sgd(1.0)}, lambda path, p: "head" if "head" in path else "frozen")
    >>> params = {"head": ys.ones((1,)), "body": ys.ones((1,))}
    >>> updates, state = rule.update(params, rule.init(params), params)
    >>> updates["head"].tolist(), updates["body"].tolist()
    ([-1.0], [0.0])
    """

    def labels(params: Tree) -> list[str]:
        return [label(path, p) for path, p in zip(paths(params), flatten(params)[0], strict=True)]

    def part(tree: Tree, names: list[str], name: str) -> Tree:
        """The tree with `None` for the leaves of other groups."""
        leaves, structure = flatten(tree)
        return unflatten(structure, [leaf if n == name else None for leaf, n in zip(leaves, names, strict=True)])

    def init(params: Tree) -> dict[str, Any]:
        names = labels(params)
        return {name: t.init(part(params, names, name)) for name, t in transforms.items()}

    def update(grads: Tree, state: dict[str, Any], params: Tree, value: Tensor | None) -> tuple[Tree, dict[str, Any]]:
        names, states, made = labels(params), {}, {}
        for name, transform in transforms.items():
            own, states[name] = transform.rule(part(grads, names, name), state[name], part(params, names, name), value)
            made[name] = iter(flatten(own)[0])
        leaves, structure = flatten(grads)
        updates = [next(made[n]) if n in made else g * 0 for g, n in zip(leaves, names, strict=True)]
        return unflatten(structure, updates), states

    return Transform(init, update)


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Add updates to parameters.

    Parameters
    ----------
    params : tree of tensors
        The parameters. The results have their dtypes.
    updates : tree of tensors
        The updates, in the same structure.

    Returns
    -------
    tree of tensors
        The new parameters.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.optim.apply_updates({"w": ys.asarray([1.0])}, {"w": ys.asarray([0.5])})["w"].tolist()
    [1.5]
    """
    return tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)
