"""Data parallel training: each rank has a part of the batch and, with `sharded_state`, of the optimiser's state."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from .._tensor.tensor import Tensor
from .._tensor.tree import tree_map
from .._trace.jit import jit
from ..ops.creation import asarray
from ..optim.transform import Transform, Tree
from .collectives import all_reduce, before_change, gather, shard
from .layout import Mesh
from .runtime import current


def data_parallel(step: Callable[..., Any], mesh: Mesh | None = None, *, axis: str = "data") -> Callable[..., Any]:
    """Compile a training step for ranks that share the batch.

    The losses and the new state are those of one process with the whole batch, up to rounding: each rank computes the
    gradients of its part, and their sums go to all ranks in buckets.

    Parameters
    ----------
    step : callable
        A function of the state, such as an optimiser, and of tensors whose first dimension is the batch. It returns a
        tree of tensors.
    mesh : Mesh, optional
        The ranks; by default all of them along one axis.
    axis : str
        The axis of the mesh along which the batch is split.

    Returns
    -------
    callable
        A jitted function with the same arguments. Every rank gives the whole batch, or a tensor of `from_local`.

    Examples
    --------
    >>> import yosegi as ys
    >>> def step(optimizer, x):
    ...     loss, grads = ys.value_and_grad(lambda p: ys.mean((p - x) ** 2))(optimizer.params)
    ...     return optimizer.step(grads), loss
    >>> optimizer, loss = ys.distributed.data_parallel(step)(ys.optim.SGD(ys.zeros(()), lr=0.1), ys.ones((4,)))
    >>> float(loss), round(float(optimizer.params), 3)
    (1.0, 0.2)
    """
    ranks = Mesh((current().size,), (axis,)) if mesh is None else mesh

    def part(x: Any) -> Any:
        tensor = asarray(x)
        return shard(tensor, ranks, **{axis: 0}) if tensor.ndim and tensor.layout is None else tensor

    @wraps(step)
    def distributed(state: Any, *batch: Any) -> Any:
        made = step(state, *[tree_map(part, b) for b in batch])
        return tree_map(lambda x: all_reduce(x) if isinstance(x, Tensor) else x, made)

    return jit(distributed)


def sharded_state(rule: Transform, mesh: Mesh | None = None, *, axis: str = "data") -> Transform:
    """Split the state of an optimiser over the ranks (ZeRO-1).

    Each rank keeps its part of the state, computes its part of the updates from its part of the gradients, and gets the
    parts of the others. The gradients are reduced and split in one communication.

    Parameters
    ----------
    rule : Transform
        The optimiser, such as `ys.optim.adam(1e-3)`.
    mesh : Mesh, optional
        The ranks; by default all of them along one axis.
    axis : str
        The axis of the mesh along which the state is split.

    Returns
    -------
    Transform
        An optimiser with the same updates.

    Examples
    --------
    >>> import yosegi as ys
    >>> rule = ys.distributed.sharded_state(ys.optim.sgd(0.5, momentum=0.9))
    >>> updates, state = rule.update(ys.ones((4,)), rule.init(ys.zeros((4,))), ys.zeros((4,)))
    >>> updates.tolist()
    [-0.5, -0.5, -0.5, -0.5]
    """
    ranks = Mesh((current().size,), (axis,)) if mesh is None else mesh

    def parts(tree: Tree) -> Tree:
        return tree_map(lambda x: shard(x, ranks, **{axis: 0}) if x.ndim else x, tree)

    def update(grads: Tree, state: Any, params: Tree, value: Tensor | None) -> tuple[Tree, Any]:
        updates, new = rule.update(parts(tree_map(before_change, grads)), state, parts(params), value)
        return tree_map(gather, updates), parts(new)

    return Transform(lambda params: parts(rule.init(params)), update)
