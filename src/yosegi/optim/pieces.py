"""The pieces around a rule: clipping, weight decay, momentum, the learning rate, and wrappers of whole optimisers."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from .._tensor.dtype import float32, int32
from .._tensor.tensor import HOOKS, Tensor
from .._tensor.tree import tree_leaves, tree_map
from ..errors import ArgumentError
from ..ops.creation import asarray, full, zeros, zeros_like
from ..ops.elementwise import clip, maximum, minimum, sqrt, where
from ..ops.reduce import sum
from .schedules import Rate, rate_at
from .transform import Transform, Tree, counted, groups, per_parameter, stateless

Mask = Callable[[str, Tensor], bool]


def select(condition: Tensor, yes: Tree, no: Tree) -> Tree:
    """The tree `yes` where the condition is true, else `no`."""
    return tree_map(lambda a, b: where(condition, a, b), yes, no)


def global_norm(tree: Tree) -> Tensor:
    """Return the Euclidean norm of all numbers of a tree.

    Parameters
    ----------
    tree : tree of tensors
        The tensors, which must be floating-point.

    Returns
    -------
    Tensor
        A scalar.

    Examples
    --------
    >>> import yosegi as ys
    >>> float(ys.optim.global_norm({"a": ys.asarray([3.0]), "b": ys.asarray([4.0])}))
    5.0
    """
    return sqrt(total(lambda leaf: (leaf * leaf).astype(float32), tree))


def total(function: Callable[[Tensor], Tensor], tree: Tree) -> Tensor:
    """The sum of a function of all numbers of a tree, in float32."""
    sums = [sum(function(leaf)) for leaf in tree_leaves(tree)]
    return reduce(_sum, sums) if sums else zeros((), dtype=float32)


def _sum(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two values, of which one may be a sum over ranks."""
    return a + b if a.layout == b.layout else HOOKS.sum_of_layouts(a, b)


def clip_by_norm(limit: float) -> Transform:
    """Scale gradients down so that the norm of all of them is at most a limit.

    Parameters
    ----------
    limit : float
        The highest norm, as of PyTorch's `clip_grad_norm_`.

    Returns
    -------
    Transform
        A transform without state.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.clip_by_norm(1.0)
    >>> updates, _ = rule.update(ys.asarray([3.0, 4.0]), (), ys.zeros((2,)))
    >>> [round(u, 4) for u in updates.tolist()]
    [0.6, 0.8]
    """

    def clipped(grads: Tree, params: Tree) -> Tree:
        factor = minimum(limit / (global_norm(grads) + 1e-6), 1.0)
        return tree_map(lambda g: g * factor.astype(g.dtype), grads)

    return stateless(clipped)


def clip_by_value(limit: float) -> Transform:
    """Limit every number of the gradients.

    Parameters
    ----------
    limit : float
        The largest absolute value.

    Returns
    -------
    Transform
        A transform without state.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.optim.clip_by_value(1.0).update(ys.asarray([0.5, -4.0]), (), ys.zeros((2,)))[0].tolist()
    [0.5, -1.0]
    """
    return stateless(lambda grads, params: tree_map(lambda g: clip(g, -limit, limit), grads))


def decay_weights(factor: float, mask: Mask | None = None) -> Transform:
    """Add the parameters times a factor to the gradients.

    Parameters
    ----------
    factor : float
        The weight decay.
    mask : callable, optional
        A function of the path of a parameter and the parameter that returns True for those that decay. By default all
        do.

    Returns
    -------
    Transform
        A transform without tensors in its state.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.decay_weights(0.1, mask=lambda path, p: p.ndim > 1)
    >>> params = {"weight": ys.ones((1, 1)), "bias": ys.ones((1,))}
    >>> updates, _ = rule.update(ys.tree_map(ys.zeros_like, params), rule.init(params), params)
    >>> updates["weight"].tolist(), updates["bias"].tolist()
    ([[0.1]], [0.0])
    """
    if mask is None:
        return stateless(lambda grads, params: tree_map(lambda g, p: g + factor * p, grads, params))
    return groups(
        {"decayed": decay_weights(factor), "kept": stateless(lambda grads, params: grads)},
        lambda path, p: "decayed" if mask(path, p) else "kept",
    )


def momentum(factor: float, nesterov: bool = False) -> Transform:
    """Replace gradients by their decaying sum.

    Parameters
    ----------
    factor : float
        The part of the sum that stays at each step.
    nesterov : bool
        True: look one step ahead, as Nesterov's method does.

    Returns
    -------
    Transform
        Its state has the sum.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.momentum(0.5)
    >>> g = ys.ones(())
    >>> _, state = rule.update(g, rule.init(g), g)
    >>> float(rule.update(g, state, g)[0])
    1.5
    """

    def rule(t: Tensor, g: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total = factor * total + g
        return g + factor * total if nesterov else total, total

    return per_parameter(rule, sum=zeros_like)


def scale_by_learning_rate(lr: Rate) -> Transform:
    """Multiply by the negative learning rate: the last piece of most optimisers.

    Parameters
    ----------
    lr : float, tensor or schedule
        The learning rate. A schedule is a function of the number of the step, which is a tensor.

    Returns
    -------
    Transform
        Its state has the number of the step.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.scale_by_learning_rate(ys.optim.step_decay(1.0, every=1, factor=0.5))
    >>> g = ys.ones(())
    >>> first, state = rule.update(g, rule.init(g), g)
    >>> float(first), float(rule.update(g, state, g)[0])
    (-1.0, -0.5)
    """

    def scaled(count: Tensor, grads: Tree) -> Tree:
        rate = asarray(rate_at(lr, count))
        return tree_map(lambda g: g * (-rate).astype(g.dtype), grads)

    return counted(scaled)


def reduce_on_plateau(
    factor: float = 0.1, patience: int = 10, threshold: float = 1e-4, cooldown: int = 0, minimum: float = 0.0
) -> Transform:
    """Multiply updates by a factor that falls when the loss no longer does: PyTorch's `ReduceLROnPlateau`.

    The loss is the `value` of each `update`. A new factor holds from the next update on.

    Parameters
    ----------
    factor : float
        The number that the factor is multiplied by.
    patience : int
        The updates without a lower loss that are accepted.
    threshold : float
        The relative difference to the lowest loss that counts.
    cooldown : int
        The updates after a reduction that are not counted.
    minimum : float
        The lowest factor.

    Returns
    -------
    Transform
        Its state has the factor as `scale`.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.chain(ys.optim.sgd(1.0), ys.optim.reduce_on_plateau(0.5, patience=0))
    >>> p = ys.zeros(())
    >>> state = rule.init(p)
    >>> for loss in (3.0, 2.0, 2.0):
    ...     _, state = rule.update(p, state, p, value=ys.asarray(loss))
    >>> float(state[1]["scale"])
    0.5
    """

    def init(params: Tree) -> dict[str, Tensor]:
        count = zeros((), dtype=int32)
        return {"scale": full((), 1.0, dtype=float32), "best": full((), float("inf"), dtype=float32),
                "bad": count, "wait": count}  # fmt: skip

    def update(grads: Tree, state: dict[str, Tensor], params: Tree, value: Tensor | None) -> tuple[Tree, Any]:
        if value is None:
            raise ArgumentError("[reduce_on_plateau] expected the loss, got none; pass it: update(…, value=loss)")
        loss, scale = value.astype(float32), state["scale"]
        better = loss < state["best"] * (1 - threshold)
        waits = state["wait"] > 0
        bad = where(better, 0, state["bad"] + 1) * where(waits, 0, 1)
        falls = bad > patience
        new = {
            "scale": where(falls, maximum(scale * factor, minimum), scale),
            "best": where(better, loss, state["best"]),
            "bad": where(falls, 0, bad),
            "wait": where(falls, cooldown, maximum(state["wait"] - 1, 0)),
        }
        new = {name: v.astype(state[name].dtype) for name, v in new.items()}
        return tree_map(lambda g: g * scale.astype(g.dtype), grads), new

    return Transform(init, update)


def accumulate(transform: Transform, every: int) -> Transform:
    """Take a step with the mean gradient of every so many updates, and none in between.

    Parameters
    ----------
    transform : Transform
        The optimiser.
    every : int
        The updates of one step.

    Returns
    -------
    Transform
        Its state has the sum of the gradients and the state of `transform`.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.accumulate(ys.optim.sgd(1.0), every=2)
    >>> p = ys.zeros(())
    >>> first, state = rule.update(ys.asarray(1.0), rule.init(p), p)
    >>> float(first), float(rule.update(ys.asarray(3.0), state, p)[0])
    (0.0, -2.0)
    """

    def init(params: Tree) -> dict[str, Any]:
        return {"count": zeros((), dtype=int32), "sum": tree_map(zeros_like, params), "inner": transform.init(params)}

    def update(grads: Tree, state: dict[str, Any], params: Tree, value: Tensor | None) -> tuple[Tree, dict[str, Any]]:
        total = tree_map(lambda s, g: s + g, state["sum"], grads)
        count = state["count"] + 1
        steps = count == every
        made, inner = transform.rule(tree_map(lambda s: s / every, total), state["inner"], params, value)
        return tree_map(lambda u: where(steps, u, 0), made), {
            "count": where(steps, 0, count).astype(int32),
            "sum": tree_map(lambda s: where(steps, 0, s), total),
            "inner": select(steps, inner, state["inner"]),
        }

    return Transform(init, update)


def average_weights(decay: float) -> Transform:
    """Keep an exponential moving average of the parameters; updates pass unchanged. It is the last piece of a chain.

    Parameters
    ----------
    decay : float
        The part of the average that stays at each step.

    Returns
    -------
    Transform
        Its state has the average as `average`.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.chain(ys.optim.sgd(1.0), ys.optim.average_weights(0.5))
    >>> p = ys.zeros(())
    >>> state = rule.init(p)
    >>> for _ in range(2):
    ...     updates, state = rule.update(ys.ones(()), state, p)
    ...     p = ys.optim.apply_updates(p, updates)
    >>> float(p), float(state[-1]["average"])
    (-2.0, -1.5)
    """

    def init(params: Tree) -> dict[str, Any]:
        return {"count": zeros((), dtype=int32), "average": tree_map(zeros_like, params)}

    def update(updates: Tree, state: dict[str, Any], params: Tree, value: Tensor | None) -> tuple[Tree, dict[str, Any]]:
        kept = where(state["count"] == 0, 0.0, decay)  # the first average is the parameters themselves

        def mixed(a: Tensor, p: Tensor, u: Tensor) -> Tensor:
            return a + (1 - kept).astype(a.dtype) * (p + u - a)

        return updates, {"count": state["count"] + 1, "average": tree_map(mixed, state["average"], params, updates)}

    return Transform(init, update)
