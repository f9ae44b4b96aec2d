"""Data parallel training: each rank has a part of the batch and, where they are sharded, of parameters and state."""

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
from .layout import Mesh, Shard
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


def sharded_parameters(tree: Tree, mesh: Mesh | None = None, *, axis: str = "data") -> Tree:
    """Split parameters over the ranks, and gather each whenever it is used (FSDP).

    Each rank keeps its part of every parameter, of its gradient and of the optimiser's state. A layer's parameters are
    gathered while the layer before it computes, and dropped behind it; the backward pass gathers them again.

    Parameters
    ----------
    tree : tree of Tensor
        The parameters, such as a module.
    mesh : Mesh, optional
        The ranks; by default all of them along one axis.
    axis : str
        The axis of the mesh along which the parameters are split.

    Returns
    -------
    tree of Tensor
        The same values. Each is split along its first dimension that the number of ranks divides, else along its first.

    Examples
    --------
    >>> import yosegi as ys
    >>> model = ys.nn.Linear(4, 2, rng=ys.random.default_rng(0))
    >>> model = ys.distributed.sharded_parameters(model)
    >>> optimizer = ys.optim.SGD(model, lr=0.1)
    >>> optimizer.params.weight.shape
    (2, 4)
    """
    ranks = Mesh((current().size,), (axis,)) if mesh is None else mesh
    count = ranks.shape[ranks.axis(axis)]

    def part(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.ndim:
            return x
        kept = {} if x.layout is None else dict(zip(ranks.names, x.layout.placements, strict=True))
        taken = {p.dim for p in kept.values() if isinstance(p, Shard)}
        dim = next((d for d, n in enumerate(x.shape) if n % count == 0 and d not in taken), 0)
        return shard(x, ranks, **{**kept, axis: Shard(dim, on_use=True)})

    return tree_map(part, tree)
