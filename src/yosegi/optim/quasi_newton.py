"""L-BFGS: steps along the gradient times an approximate inverse of the Hessian, from the last steps."""

from __future__ import annotations

from math import prod
from typing import Any

from .._tensor.dtype import int32
from .._tensor.tensor import Tensor
from .._tensor.tree import flatten, unflatten
from ..ops.creation import asarray, ones, zeros, zeros_like
from ..ops.elementwise import abs, minimum, where
from ..ops.linalg import vecdot
from ..ops.reduce import sum
from ..ops.shape import concat, reshape, stack
from .schedules import Rate, rate_at
from .transform import Transform, Tree

_CURVATURE = 1e-10
"""The smallest product of a step and the change of the gradient along it that is remembered."""


def lbfgs(lr: Rate = 1.0, history_size: int = 10) -> Transform:
    """L-BFGS without line search, for gradients of the whole data.

    Parameters
    ----------
    lr : float, tensor or schedule
        The length of the steps. The first one is at most this long.
    history_size : int
        The number of steps that are remembered. Each costs two vectors of the size of all parameters.

    Returns
    -------
    Transform
        The optimiser.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.lbfgs()
    >>> p = ys.asarray([3.0, -2.0])
    >>> state = rule.init(p)
    >>> for _ in range(8):
    ...     updates, state = rule.update(ys.asarray([2.0, 20.0]) * p, state, p)
    ...     p = p + updates
    >>> bool(ys.all(abs(p) < 1e-3))
    True
    """

    def init(params: Tree) -> dict[str, Any]:
        flat = zeros_like(_flat(params))
        history = zeros((history_size, flat.shape[0]), dtype=flat.dtype)
        weights = zeros((history_size,), dtype=flat.dtype)
        return {"count": zeros((), dtype=int32), "grad": flat, "step": flat, "changes": history, "steps": history,
                "weights": weights, "scale": ones((), dtype=flat.dtype)}  # fmt: skip

    def update(grads: Tree, state: dict[str, Any], params: Tree, value: Tensor | None) -> tuple[Tree, dict[str, Any]]:
        g = _flat(grads)
        change, step = g - state["grad"], state["step"]
        product = vecdot(change, step)
        is_new = product > _CURVATURE  # in the first update the step is zero
        new = {"changes": change, "steps": step, "weights": 1 / where(is_new, product, 1)}
        memory = {name: where(is_new, _appended(state[name], row), state[name]) for name, row in new.items()}
        scale = where(is_new, product / where(is_new, vecdot(change, change), 1), state["scale"])
        direction = _direction(-g, memory["changes"], memory["steps"], memory["weights"], scale)
        first = where(state["count"] == 0, minimum(1 / sum(abs(g)), 1), 1)
        step = direction * (first * asarray(rate_at(lr, state["count"]))).astype(g.dtype)
        return _like(step, grads), {"count": state["count"] + 1, "grad": g, "step": step, **memory, "scale": scale}

    return Transform(init, update)


def _direction(q: Tensor, changes: Tensor, steps: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """The approximate inverse of the Hessian times a vector. The last step stands last; empty rows have weight 0."""
    parts = {}
    for i in reversed(range(weights.shape[0])):
        parts[i] = vecdot(steps[i], q) * weights[i]
        q = q - changes[i] * parts[i]
    q = q * scale
    for i, part in sorted(parts.items()):
        q = q + steps[i] * (part - vecdot(changes[i], q) * weights[i])
    return q


def _appended(rows: Tensor, row: Tensor) -> Tensor:
    """The rows without the first, and with a new one."""
    return concat([rows[1:], stack([row])])


def _flat(tree: Tree) -> Tensor:
    """All numbers of a tree as one vector."""
    return concat([reshape(leaf, (-1,)) for leaf in flatten(tree)[0]])


def _like(flat: Tensor, tree: Tree) -> Tree:
    """A vector in the shapes of a tree."""
    leaves, structure = flatten(tree)
    made, start = [], 0
    for leaf in leaves:
        end = start + prod(leaf.shape)
        made.append(reshape(flat[start:end], leaf.shape).astype(leaf.dtype))
        start = end
    return unflatten(structure, made)
