"""Rows of the op table for ops that move elements and compute nothing. They take every dtype that models may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._tensor.node import Call
from ..model.op_row import OpRow
from ..model.shapes import SliceBounds, diagonal_slice, shifts_of, too_large_a_mask, triangle, unknown_places
from .op_row import DTYPES, number, places


def _same(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return args[0]


def _reshaped(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.reshape(args[0], places(o, call.spec.shape), False)


def _broadcast(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.broadcast(args[0], places(o, call.spec.shape))


def _permuted(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.transpose(args[0], places(o, call.attrs["axes"]))


def _bounds(o: Any, window: SliceBounds) -> tuple[Any, Any, Any, Any]:
    """Starts, stops, steps and axes, as nodes."""
    axes = range(len(window.starts))
    return places(o, window.starts), places(o, window.stops), places(o, window.steps), places(o, axes)


def _viewed(o: Any, call: Call, args: Sequence[Any]) -> Any:
    if not call.inputs[0].ndim:
        return _reshaped(o, call, args)
    window = SliceBounds(call.attrs["key"], call.inputs[0].shape)
    made = o.slice(args[0], *_bounds(o, window))
    return made if tuple(window.kept) == call.spec.shape else _reshaped(o, call, [made])


def _written(o: Any, call: Call, args: Sequence[Any]) -> Any:
    x, value = args
    window = SliceBounds(call.attrs["key"], call.inputs[0].shape)
    shape = [1 if k is None else k[1] for k in call.attrs["key"] if not isinstance(k, int)]
    filled = o.reshape(o.broadcast(value, places(o, shape)), places(o, window.kept), False)
    return o.slice_scatter(x, filled, *_bounds(o, window))


def _flipped(o: Any, call: Call, args: Sequence[Any]) -> Any:
    axes = call.attrs["axis"]
    if not axes:
        return args[0]
    lengths = [call.spec.shape[a] for a in axes]
    starts, stops = places(o, [n - 1 for n in lengths]), places(o, [-n - 1 for n in lengths])
    return o.slice(args[0], starts, stops, places(o, [-1] * len(axes)), places(o, axes))


def _rolled(o: Any, call: Call, args: Sequence[Any]) -> Any:
    shifts = shifts_of(call)
    return o.roll(args[0], places(o, list(shifts.values())), places(o, list(shifts)))


def _diagonal(o: Any, call: Call, args: Sequence[Any]) -> Any:
    *batch, rows, columns = call.inputs[0].shape
    flat = o.reshape(args[0], places(o, [*batch, rows * columns]), False)
    return o.slice(flat, *[places(o, [bound]) for bound in diagonal_slice(call)], places(o, [len(batch)]))


def _triangle(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.select(o.constant(triangle(call)), args[0], number(o, 0, args[0]))


def _not_a_triangle(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    if call.spec.dtype.is_integer and call.spec.dtype.bits > 8:
        return f"it might select {call.spec.dtype.name} in float32"
    return too_large_a_mask(*call.spec.shape[-2:])


def _gathered(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.gather(args[0], args[1], o.constant(np.int64(call.attrs["at"])))


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
    "tril": OpRow(_triangle, DTYPES, _not_a_triangle),
    "triu": OpRow(_triangle, DTYPES, _not_a_triangle),
    "gather": OpRow(_gathered, DTYPES, unknown_places, takes_places=True),
}
