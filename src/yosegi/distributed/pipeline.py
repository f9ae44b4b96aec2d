"""Pipeline parallel training: each rank has some layers of a sequential module, and passes activations on.

The batch is cut into microbatches. Each rank begins with as many forward passes as there are ranks behind it, and then
alternates one forward and one backward pass (1F1B): it never keeps more activations than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

from .._tensor.op import from_array
from .._tensor.tensor import Tensor
from .._tensor.tree import tree_leaves, tree_map
from .._trace.grad import vjp
from .._trace.jit import jit
from ..errors import ArgumentError
from ..nn.layers.linear import Sequential
from ..nn.module import Module
from ..nn.training import combine, partition
from ..ops.creation import asarray
from .layout import Mesh, bounds


class Pass(Enum):
    """The direction of a pass of a microbatch through the layers of a rank."""

    FORWARD = "forward"
    BACKWARD = "backward"


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> Iterator[tuple[Pass, int]]:
    """The passes of a rank, in order, each with its microbatch."""
    ahead = min(stages - stage - 1, microbatches)
    for n in range(ahead):
        yield Pass.FORWARD, n
    for n in range(microbatches):
        if ahead + n < microbatches:
            yield Pass.FORWARD, ahead + n
        yield Pass.BACKWARD, n


def stage_of(model: Sequential, mesh: Mesh, *, axis: str = "stage") -> Sequential:
    """Return the layers of a sequential module that this rank runs.

    The layers are split in order, so that the ranks have about as many parameters each.

    Parameters
    ----------
    model : Sequential
        The whole module, the same on all ranks.
    mesh : Mesh
        The ranks.
    axis : str
        The axis of the mesh along which the layers are split.

    Returns
    -------
    Sequential
        The layers of this rank.

    Examples
    --------
    >>> import yosegi as ys
    >>> model = ys.nn.Sequential(ys.nn.Linear(2, 3), ys.nn.relu, ys.nn.Linear(3, 1))
    >>> len(ys.distributed.stage_of(model, ys.distributed.Mesh((1,), ("stage",))))
    3
    """
    place = mesh.axis(axis)
    count, own = mesh.shape[place], mesh.coordinates[place]
    if len(model) < count:
        raise ArgumentError(f"[stage_of] expected at least a layer for each of {count} ranks, got {len(model)}")
    weights = [1 + sum(p.size for p in tree_leaves(layer)) if isinstance(layer, Module) else 1 for layer in model]
    ends = _ends(weights, count)
    return Sequential(*model.layers[([0, *ends])[own] : ends[own]])


def _ends(weights: Sequence[int], count: int) -> list[int]:
    """The ends of consecutive parts of about equal weight, none of them empty."""
    ends: list[int] = []
    total, so_far = sum(weights), 0
    for n, weight in enumerate(weights, 1):
        so_far += weight
        parts = len(ends) + 1
        is_full = so_far * count >= total * parts or len(weights) - n == count - parts
        if parts < count and is_full and len(weights) - n >= count - parts:
            ends.append(n)
    return [*ends, len(weights)]


def pipeline(
    loss: Callable[[Tensor, Tensor], Tensor], mesh: Mesh, *, axis: str = "stage", microbatches: int = 4
) -> Callable[[Module, Any, Any], tuple[Tensor, Any]]:
    """Compute a loss and its gradients on layers that are split over ranks.

    Parameters
    ----------
    loss : callable
        A function of the outputs of the last layer and of the targets, that returns a mean over the batch.
    mesh : Mesh
        The ranks.
    axis : str
        The axis of the mesh along which the layers are split.
    microbatches : int
        The number of parts of the batch. More of them leave ranks idle for less time.

    Returns
    -------
    callable
        A function of the layers of this rank, as `stage_of` returns them, of the inputs and of the targets. It returns
        the loss, on all ranks, and the gradients of the layers of this rank.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("stage",))
    >>> stage = ys.distributed.stage_of(ys.nn.Sequential(ys.nn.Linear(2, 3), ys.nn.Linear(3, 1)), mesh)
    >>> value_and_grad = ys.distributed.pipeline(lambda y, t: ys.mean((y - t) ** 2), mesh, microbatches=2)
    >>> value, grads = value_and_grad(stage, ys.ones((4, 2)), ys.zeros((4, 1)))
    >>> grads[0].weight.shape
    (3, 2)
    """
    place = mesh.axis(axis)
    group, own, stages = mesh.groups[place], mesh.coordinates[place], mesh.shape[place]
    is_last = own == stages - 1

    def pulled(function: Callable[[Any, Tensor], Tensor], stage: Module, x: Tensor, g: Any) -> tuple[Any, ...]:
        """The value, and the gradients of the layers and, behind the first rank, of the input."""
        params, rest = partition(stage)
        inputs = (params, x) if own > 0 else (params,)
        value, back = vjp(lambda p, given=x: function(combine(p, rest), given), *inputs)
        return value, *back(g)

    @jit
    def forward(stage: Any, x: Tensor) -> Any:
        return stage(x)

    @jit
    def backward(stage: Module, x: Tensor, g: Tensor) -> tuple[Any, ...]:
        return pulled(lambda layers, given: layers(given), stage, x, g)

    @jit
    def last(stage: Module, x: Tensor, target: Tensor, share: float) -> tuple[Any, ...]:
        return pulled(lambda layers, given: loss(layers(given), target) * share, stage, x, 1.0)

    def value_and_grad(stage: Module, inputs: Any, targets: Any) -> tuple[Tensor, Any]:
        inputs, targets = asarray(inputs), asarray(targets)
        count = len(inputs)
        if count < microbatches:
            raise ArgumentError(f"[pipeline] expected a batch of at least {microbatches} examples, got {count}")
        kept: dict[int, Tensor] = {}
        values: list[Tensor] = []
        grads: Any = None
        for direction, n in one_forward_one_backward(own, stages, microbatches):
            first, length = bounds(count, microbatches, n)
            part = slice(first, first + length)
            if direction is Pass.FORWARD:
                kept[n] = inputs[part] if own == 0 else from_array(group.receive(own - 1, n))
                if not is_last:
                    group.send(forward(stage, kept[n]).numpy(), own + 1, n)
                continue
            x = kept.pop(n)
            if is_last:
                value, more, *to_input = last(stage, x, targets[part], length / count)
                values.append(value)
            else:
                _, more, *to_input = backward(stage, x, from_array(group.receive(own + 1, n)))
            grads = more if grads is None else tree_map(lambda a, b: a + b, grads, more)
            if own > 0:
                group.send(to_input[0].numpy(), own - 1, n)
        return from_array(group.broadcast(sum(values[1:], values[0]).numpy() if is_last else None, stages - 1)), grads

    return value_and_grad
