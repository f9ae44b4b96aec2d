"""Rows of the op table for ops that move elements and compute nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._tensor.node import Call
from ..model.op_row import OpRow
from ..model.shapes import SliceBounds, diagonal_slice, shifts_of, too_large_a_mask, triangle, unknown_places
from .library import broadcast, builder
from .op_row import DTYPES, FLOATS, number


def whole(values: Sequence[int]) -> Any:
    """Axes, lengths or positions."""
    return np.array(values, np.int32)


def reshaped(x: Any, shape: Sequence[int]) -> Any:
    """A node with another shape."""
    if tuple(shape) == tuple(x.shape):
        return x
    if shape:
        return builder().reshape(x=x, shape=whole(shape))
    return builder().squeeze(x=x)  # MIL has no reshape to no dimensions


def sliced(x: Any, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Any:
    """A window of a node; its steps are positive."""
    return builder().slice_by_index(x=x, begin=whole(starts), end=whole(stops), stride=whole(steps))


def sliced_along(x: Any, axis: int, start: int, stop: int, step: int = 1) -> Any:
    """A part of a node along one axis."""
    bounds = [(start, stop, step) if i == axis else (0, n, 1) for i, n in enumerate(x.shape)]
    return sliced(x, *zip(*bounds, strict=True))


def _viewed(o: Any, call: Call, args: Sequence[Any]) -> Any:
    (x,), lengths = args, call.inputs[0].shape
    if not lengths:
        return reshaped(x, call.spec.shape)
    window = SliceBounds(call.attrs["key"], lengths)
    backwards = [i for i, step in enumerate(window.steps) if step < 0]
    x = builder().reverse(x=x, axes=whole(backwards)) if backwards else x
    starts = [n - 1 - s if step < 0 else s for n, s, step in zip(lengths, window.starts, window.steps, strict=True)]
    steps = [abs(step) for step in window.steps]
    stops = [s + (kept - 1) * step + 1 for s, kept, step in zip(starts, window.kept, steps, strict=True)]
    return reshaped(sliced(x, starts, stops, steps), call.spec.shape)


def _flipped(o: Any, call: Call, args: Sequence[Any]) -> Any:
    axes = call.attrs["axis"]
    return builder().reverse(x=args[0], axes=whole(axes)) if axes else args[0]


def _rolled(o: Any, call: Call, args: Sequence[Any]) -> Any:
    (x,) = args
    for axis, shift in shifts_of(call).items():
        n = call.spec.shape[axis]
        if shift:
            parts = sliced_along(x, axis, n - shift, n), sliced_along(x, axis, 0, n - shift)
            x = builder().concat(values=parts, axis=axis)
    return x


def _diagonal(o: Any, call: Call, args: Sequence[Any]) -> Any:
    *batch, rows, columns = call.inputs[0].shape
    return sliced_along(reshaped(args[0], (*batch, rows * columns)), len(batch), *diagonal_slice(call))


def _triangle(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return o.select(builder().const(val=triangle(call)), args[0], number(o, 0, args[0]))


def _too_large_a_triangle(graph: Graph, entry: int) -> str | None:
    return too_large_a_mask(*graph.calls[entry].spec.shape[-2:])


def _gathered(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return builder().gather(x=args[0], indices=args[1], axis=call.attrs["at"])


def _same(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return args[0]


MOVEMENT: Final[dict[str, OpRow]] = {
    "positive": OpRow(_same, FLOATS),
    "variable": OpRow(_same, DTYPES),
    "barrier": OpRow(_same, DTYPES),
    "reshape": OpRow(lambda o, call, args: reshaped(args[0], call.spec.shape), DTYPES),
    "broadcast_to": OpRow(lambda o, call, args: broadcast(args[0], call.spec.shape), DTYPES),
    "permute_dims": OpRow(lambda o, call, args: builder().transpose(x=args[0], perm=whole(call.attrs["axes"])), DTYPES),
    "slice_view": OpRow(_viewed, DTYPES),
    "flip": OpRow(_flipped, DTYPES),
    "rolled": OpRow(_rolled, DTYPES),
    "concatenate": OpRow(lambda o, call, args: builder().concat(values=args, axis=call.attrs["axis"]), DTYPES),
    "diagonal": OpRow(_diagonal, DTYPES),
    "tril": OpRow(_triangle, DTYPES, _too_large_a_triangle),
    "triu": OpRow(_triangle, DTYPES, _too_large_a_triangle),
    "gather": OpRow(_gathered, FLOATS, unknown_places, takes_places=True),
}
