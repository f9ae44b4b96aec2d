"""The ops by which the parts of a value are exchanged, on the parts that one rank has.

`lower` writes them. Each reads, beside its value, the result of the one before it: so they run in the same order on all
ranks, wherever the work between them is placed. They run on the host, or on the device whose connection is their
attribute `via`. They are not tried again when they fail.

Their attribute `why` is the reason for a communication, for `explain`.

A communication beside which other work can run is written as two ops. The first, such as `all_reduce_start`, gives a
ticket; `wait` gives the value for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

import numpy as np

from .._place.cost_model import TransferCost
from .._tensor.dtype import int64
from .._tensor.node import Call, Shape, Spec, spec
from .._tensor.op import Arr, Op, OpKind, op
from .._tensor.role import Exchange, Lengths, Pattern, Traffic, Wait
from ..errors import ShapeError, YosegiError
from .channel import channel
from .communicator import Combine, Communicator, check_combine
from .layout import Mesh, bounds


class CommunicationError(YosegiError):
    """A collective failed on this rank, for another reason than a lost rank. Other ranks may wait for this one."""


_op = partial(op, OpKind.DISTRIBUTED, computes_half=True)

STARTS: Final[dict[Op[Any], Op[Any]]] = {}
"""The op that starts each communication."""


def _communication(infer: Callable[..., Spec]) -> Callable[[Callable[..., Any]], Op[Any]]:
    """The op of a communication, and the op that starts it."""

    def ops(body: Callable[..., Any]) -> Op[Any]:
        name = body.__name__

        def once(x: Arr, **attrs: Any) -> Any:
            assert attrs["via"] is None, "the device of the connection runs it"
            try:
                return body(x, **attrs)
            except MemoryError as error:  # nothing tries it again: other ranks have not come back to it
                raise CommunicationError(f"[{name}] expected memory for the results, got none") from error

        @wraps(body)
        def now(x: Arr, *after: Arr, **attrs: Any) -> Any:
            return channel().run(name, partial(once, x, **attrs))

        @wraps(body)
        def start(x: Arr, *after: Arr, **attrs: Any) -> Any:
            return np.asarray(channel().start(name, partial(once, x, **attrs), is_first=not after))

        start.__name__ = f"{name}_start"
        start.__doc__ = f"The ticket of an `{name}` that runs in the background."
        role = Exchange(partial(_cost, name), partial(_traffic, Pattern(name)))
        made: Op[Any] = _op(infer=infer, role=role)(now)
        STARTS[made] = _op(infer=lambda *inputs, **attrs: spec((), int64), role=role)(start)
        return made

    return ops


def _cost(name: str, call: Call) -> tuple[float, str]:
    """The predicted seconds of a communication, and the cost models and the reason in words.

    One that has no axis goes along all axes of its mesh.
    """
    mesh, why = call.attrs["mesh"], call.attrs["why"]
    via = call.attrs["via"]
    axes = [call.attrs["axis"]] if "axis" in call.attrs else range(len(mesh.shape))
    models = [
        (mesh.costs[axis].get(name, TransferCost()), f"{mesh.shape[axis]} ranks along {mesh.names[axis]}")
        for axis in axes
    ]
    seconds = sum([model.seconds(call.inputs[0].nbytes) for model, _ in models])
    shown = ", ".join([f"{along}: {model}" for model, along in models])
    by = "" if via is None else f"by {via}, "
    return seconds, f"{by}predicted {seconds * 1e3:.3f} ms ({shown}){why and f'; {why}'}"


def group_of(mesh: Mesh, axis: int | None) -> Communicator:
    """The ranks of a communication along an axis, or of one that goes along all axes."""
    return mesh.groups[axis or 0] if axis is not None or len(mesh.shape) == 1 else mesh.communicator


def _traffic(pattern: Pattern, call: Call) -> Traffic:
    """The collective of a communication. Raises `DTypeError` if there is none for its dtype."""
    attrs, x = call.attrs, call.inputs[0]
    mesh, axis = attrs["mesh"], attrs.get("axis")
    group = group_of(mesh, axis)
    if "combine" in attrs:
        check_combine(pattern.value, x.dtype.numpy, attrs["combine"])

    def lengths(dim: int, whole: int) -> Lengths:
        return Lengths(dim, tuple([bounds(whole, group.size, rank)[1] for rank in range(group.size)]))

    gathered = lengths(attrs["dim"], attrs["length"]) if pattern in (Pattern.GATHER, Pattern.SWAP) else None
    split = attrs["dim"] if pattern is Pattern.SCATTER else attrs["to"] if pattern is Pattern.SWAP else None
    return Traffic(
        pattern, group.rank, group.size, attrs["combine"].value if "combine" in attrs else "",
        attrs.get("fixed_order", False), gathered, None if split is None else lengths(split, x.shape[split]),
        attrs.get("root", 0),
    )  # fmt: skip


@_op(infer=lambda ticket, *, made: made, role=Wait())
def wait(ticket: Arr, /, *, made: Any) -> Arr:
    """The value of the communication that has this ticket: a value like `made`."""
    return channel().wait(int(ticket))


def _with_length(shape: Shape, dim: int, length: int) -> Shape:
    return (*shape[:dim], length, *shape[dim + 1 :])


@_communication(lambda x, *after, mesh, axis, combine, fixed_order, via, why: x)
def all_reduce(
    x: Arr, /, *after: Arr, mesh: Mesh, axis: int, combine: Combine, fixed_order: bool, via: Any, why: str
) -> Arr:
    """The values of the ranks along an axis, combined."""
    return mesh.groups[axis].all_reduce(np.asarray(x, order="C"), combine, fixed_order=fixed_order)


@_communication(lambda x, *after, mesh, axis, dim, length, via, why: spec(_with_length(x.shape, dim, length), x.dtype))
def all_gather(x: Arr, /, *after: Arr, mesh: Mesh, axis: int, dim: int, length: int, via: Any, why: str) -> Arr:
    """The parts of the ranks along an axis, one after another along a dimension."""
    return _joined("all_gather", mesh.groups[axis].all_gather(np.asarray(x, order="C")), mesh, axis, dim, length)


def _joined(name: str, parts: list[Arr], mesh: Mesh, axis: int, dim: int, length: int) -> Arr:
    """Parts one after another, if they are those of a value with this length. Programs may make unequal parts."""
    own, count = parts[mesh.coordinates[axis]].shape, mesh.shape[axis]
    wanted = [_with_length(own, dim, bounds(length, count, n)[1]) for n in range(count)]
    found = [part.shape for part in parts]
    if found != wanted:
        shown = [", ".join(map(str, shapes)) for shapes in (wanted, found)]
        raise ShapeError(f"[{name}] expected parts of {shown[0]}, got {shown[1]}; pass shape= to from_local")
    return np.concatenate(parts, dim)


def _parts(x: Arr, mesh: Mesh, axis: int, dim: int) -> list[Arr]:
    """The parts of a dimension for the ranks along an axis."""
    count = mesh.shape[axis]
    ends = [bounds(x.shape[dim], count, n)[0] for n in range(1, count)]
    return [np.asarray(part, order="C") for part in np.split(x, ends, dim)]


def _scattered(x: Spec, *after: Spec, mesh: Mesh, axis: int, dim: int, **attrs: Any) -> Spec:
    own = bounds(x.shape[dim], mesh.shape[axis], mesh.coordinates[axis])[1]
    return spec(_with_length(x.shape, dim, own), x.dtype)


@_communication(_scattered)
def reduce_scatter(
    x: Arr, /, *after: Arr, mesh: Mesh, axis: int, dim: int, combine: Combine, fixed_order: bool, via: Any, why: str
) -> Arr:
    """This rank's part, along a dimension, of the combined values of the ranks along an axis."""
    return mesh.groups[axis].reduce_scatter(_parts(x, mesh, axis, dim), combine, fixed_order=fixed_order)


def _exchanged(
    x: Spec, *after: Spec, mesh: Mesh, axis: int, dim: int, to: int, length: int, via: Any, why: str
) -> Spec:
    own = bounds(x.shape[to], mesh.shape[axis], mesh.coordinates[axis])[1]
    return spec(_with_length(_with_length(x.shape, to, own), dim, length), x.dtype)


@_communication(_exchanged)
def all_to_all(
    x: Arr, /, *after: Arr, mesh: Mesh, axis: int, dim: int, to: int, length: int, via: Any, why: str
) -> Arr:
    """A value that was split along `dim`, split along `to`."""
    return _joined("all_to_all", mesh.groups[axis].all_to_all(_parts(x, mesh, axis, to)), mesh, axis, dim, length)


@_communication(lambda x, *after, mesh, root, via, why: x)
def broadcast(x: Arr, /, *after: Arr, mesh: Mesh, root: int, via: Any, why: str) -> Arr:
    """The value of one rank, on all ranks of the mesh."""
    group = group_of(mesh, None)
    return group.broadcast(np.asarray(x, order="C") if group.rank == root else None, root)
