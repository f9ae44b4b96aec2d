"""Rows of the op table for ops that move elements and compute nothing. They take every dtype that models may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._schedule.fuse import is_constant
from ..._tensor.node import Call
from ..._tensor.role import Triangle
from .op_row import DTYPES, OpRow, number, places

_MASK_LIMIT: Final = 1 << 24  # elements of a triangle's mask, which the model holds


def _same(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return args[0]


def _reshaped(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.reshape(args[0], places(o, call.spec.shape), False)


def _broadcast(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.broadcast(args[0], places(o, call.spec.shape))


def _permuted(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.transpose(args[0], places(o, call.attrs["axes"]))


class SliceBounds:
    """A window in the normal form of `ops.index_key`, in the terms of OpenVINO's slices."""

    def __init__(self, key: Sequence[Any], shape: Sequence[int]) -> None:
        bounds = [
            (k, k + 1, 1) if isinstance(k, int) else (k[0], k[0] + k[1] * k[2], k[2]) for k in key if k is not None
        ]
        # Before the first element is position -1, which would mean the last.
        self.starts = [start for start, _, _ in bounds]
        self.stops = [stop if stop >= 0 else -n - 1 for (_, stop, _), n in zip(bounds, shape, strict=True)]
        self.steps = [step for _, _, step in bounds]
        self.kept = [1 if isinstance(k, int) else k[1] for k in key if k is not None]
        """The lengths, with the dimensions that an index drops and without those that `None` adds."""

    def bounds(self, o: Any) -> tuple[Any, Any, Any, Any]:
        """Starts, stops, steps and axes, as nodes."""
        axes = range(len(self.starts))
        return places(o, self.starts), places(o, self.stops), places(o, self.steps), places(o, axes)


def _viewed(o: Any, call: Call, args: Sequence[Any]) -> Any:
    if not call.inputs[0].ndim:
        return _reshaped(o, call, args)
    window = SliceBounds(call.attrs["key"], call.inputs[0].shape)
    made = o.slice(args[0], *window.bounds(o))
    return made if tuple(window.kept) == call.spec.shape else _reshaped(o, call, [made])


def _written(o: Any, call: Call, args: Sequence[Any]) -> Any:
    x, value = args
    window = SliceBounds(call.attrs["key"], call.inputs[0].shape)
    shape = [1 if k is None else k[1] for k in call.attrs["key"] if not isinstance(k, int)]
    filled = o.reshape(o.broadcast(value, places(o, shape)), places(o, window.kept), False)
    return o.slice_scatter(x, filled, *window.bounds(o))


def _flipped(o: Any, call: Call, args: Sequence[Any]) -> Any:
    axes = call.attrs["axis"]
    if not axes:
        return args[0]
    lengths = [call.spec.shape[a] for a in axes]
    starts, stops = places(o, [n - 1 for n in lengths]), places(o, [-n - 1 for n in lengths])
    return o.slice(args[0], starts, stops, places(o, [-1] * len(axes)), places(o, axes))


def _rolled(o: Any, call: Call, args: Sequence[Any]) -> Any:
    shifts: dict[int, int] = {}
    for axis, shift in zip(call.attrs["axis"], call.attrs["shift"], strict=True):
        shifts[axis] = (shifts.get(axis, 0) + shift) % call.spec.shape[axis]
    return o.roll(args[0], places(o, list(shifts.values())), places(o, list(shifts)))


def _diagonal(o: Any, call: Call, args: Sequence[Any]) -> Any:
    *batch, rows, columns = call.inputs[0].shape
    offset = call.attrs["offset"]
    start = offset if offset >= 0 else -offset * columns
    flat = o.reshape(args[0], places(o, [*batch, rows * columns]), False)
    stop = start + (call.spec.shape[-1] - 1) * (columns + 1) + 1
    return o.slice(flat, places(o, [start]), places(o, [stop]), places(o, [columns + 1]), places(o, [len(batch)]))


def _triangle(o: Any, call: Call, args: Sequence[Any]) -> Any:
    rows, columns = call.spec.shape[-2:]
    k = call.attrs["k"]
    is_lower = call.op.role == Triangle(is_lower=True)
    below = np.arange(columns) - np.arange(rows)[:, None] <= k - (not is_lower)
    mask = o.constant(below if is_lower else ~below)
    return o.select(mask, args[0], number(o, 0, args[0]))


def _too_large_a_triangle(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    if call.spec.dtype.is_integer and call.spec.dtype.bits > 8:
        return f"it might select {call.spec.dtype.name} in float32"
    rows, columns = call.spec.shape[-2:]
    return "its mask would be too large" if rows * columns > _MASK_LIMIT else None


def _gathered(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.gather(args[0], args[1], o.constant(np.int64(call.attrs["at"])))


def _unknown_places(graph: Graph, entry: int) -> str | None:
    """An index that is out of range is the user's mistake, which OpenVINO would not tell."""
    call, args = graph.calls[entry], graph.args[entry]
    if call.attrs["axes"] != (call.attrs["at"],):
        return "it gathers along one axis only"
    if not is_constant(graph, args[1]):
        return "it would not tell of an index out of range"
    indices = np.asarray(bind(graph.calls[args[1]])())
    inside = indices.size and indices.min() >= 0 and indices.max() < call.inputs[0].shape[call.attrs["at"]]
    return None if inside else "it would not tell of an index out of range"


MOVEMENT: Final[dict[str, OpRow]] = {
    "positive": OpRow(_same, DTYPES),
    "variable": OpRow(_same, DTYPES),
    "barrier": OpRow(_same, DTYPES),
    "reshape": OpRow(_reshaped, DTYPES),
    "broadcast_to": OpRow(_broadcast, DTYPES),
    "permute_dims": OpRow(_permuted, DTYPES),
    "slice_view": OpRow(_viewed, DTYPES),
    "slice_set": OpRow(_written, DTYPES),
    "flip": OpRow(_flipped, DTYPES),
    "rolled": OpRow(_rolled, DTYPES),
    "concatenate": OpRow(lambda o, call, args: o.concat(list(args), call.attrs["axis"]), DTYPES),
    "diagonal": OpRow(_diagonal, DTYPES),
    "tril": OpRow(_triangle, DTYPES, _too_large_a_triangle),
    "triu": OpRow(_triangle, DTYPES, _too_large_a_triangle),
    "gather": OpRow(_gathered, DTYPES, _unknown_places, takes_places=True),
}
