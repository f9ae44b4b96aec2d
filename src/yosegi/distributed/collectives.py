"""Layouts of tensors and their changes: `shard`, `gather`, `all_reduce` and the others.

All of them keep the value of a tensor and change only its layout. So their gradient is the identity, and the gradient
of a distributed program is that of the same program in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._tensor.node import Shape, Spec, spec
from .._tensor.op import Arr, OpKind, from_array, op
from .._tensor.tensor import HOOKS, Tensor
from .._trace.tracing import is_tracing, tracing_transform
from ..errors import ArgumentError, ShapeError
from ..ops.creation import asarray
from ..ops.rules import named
from .communicator import Combine
from .layout import REPLICATE, Layout, Mesh, Partial, Placement, Replicate, Shard, layout_of
from .runtime import current

AxisName = str | None


@op(OpKind.DISTRIBUTED, infer=lambda x, *, layout: spec(x.shape, x.dtype, layout=layout), computes_half=True,
    vjp=lambda g, out, x, *, layout: (g,))  # fmt: skip
def redistribute(x: Arr, /, *, layout: Any) -> Arr:
    """The value in another layout. `lower` replaces it by communication, but for bodies of loops, which get whole
    values."""
    return x


def _global_rule(x: Spec, *, layout: Layout, shape: Shape) -> Spec:
    whole = spec(shape, x.dtype, layout=layout)
    if whole.local.shape != x.shape:
        raise ShapeError(
            f"expected a part of shape {whole.local.shape} on this rank, got {x.shape}; pass shape=, the shape of the "
            "whole value"
        )
    return whole


def _global_vjp(g: Tensor, out: Tensor, x: Tensor, *, layout: Layout, shape: Shape) -> tuple[Tensor]:
    whole = _cotangent_layout(layout)
    share = local(with_layout(g, whole))
    combines = [p.combine for p in layout.placements if isinstance(p, Partial)]
    for count, placement in zip(layout.mesh.shape, layout.placements, strict=True):
        share = share / count if placement == Partial(Combine.MEAN) else share
    if Combine.MAX in combines or Combine.MIN in combines:  # ties share the gradient
        best = (x == local(with_layout(out, whole))).astype(x.dtype)
        summed = _changed(layout, lambda p: Partial() if isinstance(p, Partial) else p)
        share = share * best / local(with_layout(global_value(best, layout=summed, shape=shape), whole))
    return (share,)


@op(OpKind.DISTRIBUTED, infer=_global_rule, vjp=_global_vjp, computes_half=True)
def global_value(x: Arr, /, *, layout: Any, shape: Shape) -> Arr:
    """The value whose part on this rank is given. `lower` leaves it out."""
    raise AssertionError("lowering leaves it out")


def _local_vjp(g: Tensor, out: Tensor, x: Tensor) -> tuple[Tensor]:
    layout = _cotangent_layout(x.layout)
    return (g if layout is None else global_value(g, layout=layout, shape=x.shape),)


@op(OpKind.DISTRIBUTED, infer=lambda x: x.local, vjp=_local_vjp, computes_half=True)
def local_part(x: Arr, /) -> Arr:
    """The part that this rank has. `lower` leaves it out."""
    raise AssertionError("lowering leaves it out")


def with_layout(x: Tensor, layout: Layout | None) -> Tensor:
    """The tensor in a layout."""
    return x if x.layout == layout else redistribute(x, layout=layout)


def before_change(x: Tensor) -> Tensor:
    """The tensor in the layout that it had before its last change, if that is known: the same value."""
    node = x._node
    return Tensor(node.inputs[0]) if node.call.op is redistribute and node.inputs else x


def _cotangent_layout(layout: Layout | None) -> Layout | None:
    """The layout of the gradient of a value: the same, but whole where the value is partial."""
    return _changed(layout, lambda p: REPLICATE if isinstance(p, Partial) else p)


def _changed(layout: Layout | None, change: Callable[[Placement], Placement], axis: AxisName = None) -> Layout | None:
    """A layout with some placements changed: those along an axis, or all."""
    if layout is None:
        return None
    mesh = layout.mesh
    only = None if axis is None else mesh.axis(axis)
    made = [change(p) if only in (None, n) else p for n, p in enumerate(layout.placements)]
    return None if all(p == REPLICATE for p in made) else Layout(mesh, tuple(made))


def with_layout_of(x: Tensor, of: Spec) -> Tensor:
    """A value in the layout of another, and whole where that is partial: its gradient, or one shaped like it."""
    return with_layout(x, _cotangent_layout(of.layout))


def _placements(mesh: Mesh, axes: dict[str, int | Placement]) -> list[Placement]:
    made: list[Placement] = [REPLICATE] * len(mesh.shape)
    for name, placement in axes.items():
        made[mesh.axis(name)] = Shard(placement) if isinstance(placement, int) else placement
        if not isinstance(made[mesh.axis(name)], Shard | Replicate | Partial):
            raise ArgumentError(f"expected a dimension, Shard, Replicate or Partial for {name}, got {placement!r}")
    return made


@named
def shard(x: Any, mesh: Mesh, /, **axes: int | Placement) -> Tensor:
    """Split a tensor over the ranks of a mesh.

    Every rank gives the whole value, and keeps its part.

    Parameters
    ----------
    x : Tensor
        The whole value.
    mesh : Mesh
        The ranks.
    **axes : int or Shard
        For axes of the mesh, by name, the dimension of the tensor that is split along them.

    Returns
    -------
    Tensor
        A tensor with a layout. Its shape is that of the whole value.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1, 1), ("data", "model"))
    >>> ys.distributed.shard(ys.ones((4, 6)), mesh, data=0, model=1).shape
    (4, 6)
    """
    tensor = asarray(x)
    return with_layout(tensor, layout_of(mesh, _placements(mesh, axes), tensor.shape))


@named
def from_local(x: Any, mesh: Mesh, /, *, shape: Shape | None = None, **axes: int | Placement) -> Tensor:
    """Make one distributed tensor of the parts that the ranks have.

    Parameters
    ----------
    x : Tensor
        The part of this rank.
    mesh : Mesh
        The ranks.
    shape : tuple of int, optional
        The shape of the whole value. By default, all parts have the same shape.
    **axes : int, Shard or Partial
        The placement along axes of the mesh, by name. An integer is a dimension that is split.

    Returns
    -------
    Tensor
        A tensor with a layout.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> ys.distributed.from_local(ys.ones((2, 3)), mesh, data=0).shape
    (2, 3)
    """
    tensor = asarray(x)
    placements = _placements(mesh, axes)
    if shape is None:
        lengths = list(tensor.shape)
        for placement, count in zip(placements, mesh.shape, strict=True):
            if isinstance(placement, Shard):
                lengths[placement.dim] *= count
        shape = tuple(lengths)
    layout = layout_of(mesh, placements, shape)
    return tensor if layout is None else global_value(tensor, layout=layout, shape=shape)


@named
def local(x: Tensor, /) -> Tensor:
    """Return the part of a distributed tensor that this rank has.

    Parameters
    ----------
    x : Tensor
        A tensor with a layout, or a whole one.

    Returns
    -------
    Tensor
        A tensor without a layout.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> ys.distributed.local(ys.distributed.shard(ys.ones(4), mesh, data=0)).shape
    (4,)
    """
    return x if x.layout is None else local_part(x)


@op(OpKind.DISTRIBUTED, infer=lambda x, *, mesh, root: x, computes_half=True, vjp=lambda g, out, x, *, mesh, root: (g,))
def replicated(x: Arr, /, *, mesh: Mesh, root: int) -> Arr:
    """The value of one rank. `lower` replaces it by communication, but for bodies of loops, which get whole values."""
    return x


@named
def replicate(x: Any, mesh: Mesh, /, *, root: int = 0) -> Tensor:
    """Give every rank the value of one rank.

    Parameters
    ----------
    x : Tensor
        The value; that of the root counts. All ranks give the same shape and dtype.
    mesh : Mesh
        The ranks.
    root : int
        The rank whose value is sent.

    Returns
    -------
    Tensor
        A tensor without a layout, the same on all ranks.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> ys.distributed.replicate(ys.asarray([1.0, 2.0]), mesh).tolist()
    [1.0, 2.0]
    """
    tensor = gather(asarray(x))
    return tensor if mesh.size == 1 else replicated(tensor, mesh=mesh, root=root)


broadcast = replicate


def gather(x: Tensor, /) -> Tensor:
    """Give every rank the whole value of a distributed tensor.

    Parameters
    ----------
    x : Tensor
        A tensor with any layout.

    Returns
    -------
    Tensor
        A tensor without a layout.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> ys.distributed.gather(ys.distributed.shard(ys.asarray([1, 2]), mesh, data=0)).tolist()
    [1, 2]
    """
    return with_layout(x, None)


@named
def all_reduce(x: Tensor, /, axis: AxisName = None) -> Tensor:
    """Combine the parts of a partial tensor, on all ranks.

    Parameters
    ----------
    x : Tensor
        A tensor that is `Partial`, as a sum over a sharded dimension is.
    axis : str, optional
        The axis of the mesh; by default, every axis along which the tensor is partial.

    Returns
    -------
    Tensor
        The same value. It is replicated where it was partial, and otherwise as before.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> x = ys.distributed.shard(ys.asarray([1.0, 2.0]), mesh, data=0)
    >>> float(ys.distributed.all_reduce(ys.sum(x)))
    3.0
    """
    return with_layout(x, _changed(x.layout, lambda p: REPLICATE if isinstance(p, Partial) else p, axis))


@named
def all_gather(x: Tensor, /, axis: AxisName = None) -> Tensor:
    """Put the parts of a sharded tensor together, on all ranks.

    Parameters
    ----------
    x : Tensor
        A tensor with `Shard` dimensions.
    axis : str, optional
        The axis of the mesh; by default, every axis along which the tensor is sharded.

    Returns
    -------
    Tensor
        The same value. It is replicated where it was sharded, and otherwise as before.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> ys.distributed.all_gather(ys.distributed.shard(ys.asarray([1, 2]), mesh, data=0)).tolist()
    [1, 2]
    """
    return with_layout(x, _changed(x.layout, lambda p: REPLICATE if isinstance(p, Shard) else p, axis))


@named
def reduce_scatter(x: Tensor, /, dim: int, axis: AxisName = None) -> Tensor:
    """Combine the parts of a partial tensor, and split the result over the ranks.

    Parameters
    ----------
    x : Tensor
        A tensor that is `Partial`.
    dim : int
        The dimension that is split.
    axis : str, optional
        The axis of the mesh; by default, every axis along which the tensor is partial.

    Returns
    -------
    Tensor
        The same value. It is sharded where it was partial, and otherwise as before.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> x = ys.distributed.shard(ys.ones((2, 3)), mesh, data=0)
    >>> ys.distributed.reduce_scatter(ys.sum(x, axis=0), 0).shape
    (3,)
    """
    return with_layout(x, _split(x, dim, Partial, axis))


@named
def all_to_all(x: Tensor, /, dim: int, axis: AxisName = None) -> Tensor:
    """Split a sharded tensor along another dimension.

    Parameters
    ----------
    x : Tensor
        A tensor with a `Shard` dimension.
    dim : int
        The dimension that is split in the result.
    axis : str, optional
        The axis of the mesh; by default, every axis along which the tensor is sharded.

    Returns
    -------
    Tensor
        The same value, sharded along `dim`.

    Examples
    --------
    >>> import yosegi as ys
    >>> mesh = ys.distributed.Mesh((1,), ("data",))
    >>> ys.distributed.all_to_all(ys.distributed.shard(ys.ones((2, 3)), mesh, data=0), 1).shape
    (2, 3)
    """
    return with_layout(x, _split(x, dim, Shard, axis))


def _split(x: Tensor, dim: int, kind: type, axis: AxisName) -> Layout | None:
    if not -x.ndim <= dim < x.ndim:
        raise ShapeError(f"expected a dimension of shape {x.shape}, got {dim}")
    return _changed(x.layout, lambda p: Shard(dim % x.ndim) if isinstance(p, kind) else p, axis)


def _outside_of_traces(name: str) -> None:
    if is_tracing():
        raise ArgumentError(
            f"[{name}] expected a call outside of traced functions, got one inside {tracing_transform()}, which would "
            "run it once; return the value, and exchange it outside"
        )


def send(x: Any, to: int, /, *, tag: int = 0) -> None:
    """Send the value of a tensor to one rank, now, without waiting for it.

    Parameters
    ----------
    x : Tensor
        The value, computed if it was not yet.
    to : int
        The rank that receives it.
    tag : int
        A number that the receiver asks for.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.send(ys.asarray([1.0, 2.0]), 0)
    >>> ys.distributed.recv(0).tolist()
    [1.0, 2.0]
    """
    _outside_of_traces("send")
    current().send(asarray(x).numpy(), to, tag)


def recv(source: int, /, *, tag: int = 0) -> Tensor:
    """Wait for the next tensor that a rank has sent to this one.

    Parameters
    ----------
    source : int
        The rank that sends it.
    tag : int
        The number that it was sent with.

    Returns
    -------
    Tensor
        The value, without a layout.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.send(3.0, 0, tag=7)
    >>> float(ys.distributed.recv(0, tag=7))
    3.0
    """
    _outside_of_traces("recv")
    return from_array(current().receive(source, tag))


def barrier() -> None:
    """Wait until all ranks have come here.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.distributed.barrier()
    """
    _outside_of_traces("barrier")
    current().barrier()


def sum_of_layouts(a: Tensor, b: Tensor) -> Tensor:
    """The sum of two cotangents of a value, which may be partial in different ways."""
    return all_reduce(a) + all_reduce(b)


HOOKS.with_layout_of = with_layout_of
HOOKS.sum_of_layouts = sum_of_layouts
