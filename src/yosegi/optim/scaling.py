"""Loss scaling: a scale with which gradients do not vanish in float16. Steps that overflow are skipped."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from .._tensor.dtype import float32, int32
from .._tensor.tensor import Tensor
from .._tensor.tree import tree_map
from .._trace.tracing import Print, printed
from ..ops.creation import full, zeros
from ..ops.elementwise import isfinite, logical_not, maximum, where
from .pieces import select, total
from .transform import Transform, Tree


def scale_loss(transform: Transform, initial: float = 2.0**15, factor: float = 2.0, every: int = 2000) -> Transform:
    """Adapt the scale of a loss to float16, and skip steps whose gradients overflow.

    `ys.nn.value_and_grad(…, scale=state["scale"])` computes gradients with the scale, and returns those of the loss
    itself. After an overflow the parameters and the state of `transform` stay as they are, the scale is divided by
    `factor`, and a `RuntimeWarning` names the new scale. After `every` steps without overflow the scale is multiplied
    by `factor`. The classes, such as `ys.optim.AdamW`, do all this if they are made under
    `ys.options(precision="f16")`.

    Parameters
    ----------
    transform : Transform
        The optimiser.
    initial : float
        The first scale.
    factor : float
        The factor by which the scale changes.
    every : int
        The steps without overflow after which the scale grows.

    Returns
    -------
    Transform
        Its state has the `scale`, the number of `skipped` steps, and the state of `transform` as `inner`.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.optim.scale_loss(ys.optim.sgd(0.5))
    >>> model = {"p": ys.asarray(2.0, ys.float32)}
    >>> state = rule.init(model)
    >>> loss, grads = ys.nn.value_and_grad(model, lambda m: m["p"] ** 2, scale=state["scale"])()
    >>> float(loss), float(rule.update(grads, state, model)[0]["p"])
    (4.0, -2.0)
    """

    def init(params: Tree) -> dict[str, Any]:
        count = zeros((), dtype=int32)
        return {"scale": full((), initial, dtype=float32), "good": count, "skipped": count,
                "inner": transform.init(params)}  # fmt: skip

    def update(grads: Tree, state: dict[str, Any], params: Tree, value: Tensor | None) -> tuple[Tree, dict[str, Any]]:
        scale = state["scale"]
        fits = total(lambda g: where(isfinite(g), 0, 1).astype(float32), grads) == 0
        made, inner = transform.rule(grads, state["inner"], params, value)
        good = where(fits, state["good"] + 1, 0)
        grows = good == every
        new = where(fits, where(grows, scale * factor, scale), maximum(scale / factor, 1.0))
        printed(Print((fits._node, new._node), _report))
        return tree_map(lambda u: where(fits, u, 0), made), {
            "scale": new.astype(float32),
            "good": where(grows, 0, good).astype(int32),
            "skipped": (state["skipped"] + logical_not(fits)).astype(int32),
            "inner": select(fits, inner, state["inner"]),
        }

    return Transform(init, update, lambda state: state["scale"])


def _report(values: Sequence[Tensor]) -> None:
    fits, scale = values
    if not bool(fits):
        text = f"[scale_loss] a gradient overflowed: the step was skipped, the loss scale is now {float(scale):g}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
