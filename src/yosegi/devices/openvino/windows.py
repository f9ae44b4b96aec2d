"""Rows of the op table for ops on sliding windows: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from ..._graph.graph import Graph
from ..._tensor.node import Call, Shape
from ...ops.windows import Windows
from ..model.op_row import OpRow
from ..model.shapes import cropped, kept_by, windows_of
from .op_row import SINGLE, places
from .reductions import LONG_ELSEWHERE, infinite, restored, too_many

# Convolutions


def _convolved(o: Any, call: Call, args: Sequence[Any]) -> Any:
    windows = windows_of(call)
    if max(windows.spread) > 1:
        return _transposed(o, call, args, windows)
    x, w = args
    lengths = call.inputs[0].shape[2:]
    kept = kept_by(windows, lengths)
    if any(ends != (0, n) for ends, n in zip(kept, lengths, strict=True)):  # padding below 0 takes away
        axes = range(2, 2 + len(lengths))
        starts, stops = (places(o, side) for side in zip(*kept, strict=True))
        x = o.slice(x, starts, stops, places(o, [1] * len(lengths)), places(o, axes))
    lows, highs = ([max(0, p) for p in side] for side in zip(*windows.padding, strict=True))
    steps = (list(windows.stride), lows, highs, list(windows.dilation))
    groups = call.attrs["groups"]
    if groups == 1:
        return o.convolution(x, w, *steps)
    outputs, channels, *kernel = call.inputs[1].shape
    return o.group_convolution(x, _reshaped(o, w, (groups, outputs // groups, channels, *kernel)), *steps)


def _transposed(o: Any, call: Call, args: Sequence[Any], windows: Windows) -> Any:
    """Over elements that stand apart it is the way back of a convolution with a stride, by the kernel turned around."""
    x, w = args
    groups, rank = call.attrs["groups"], len(windows.kernel)
    outputs, channels, *kernel = call.inputs[1].shape
    axes = places(o, range(2, 2 + rank))
    starts, stops = places(o, [k - 1 for k in kernel]), places(o, [-k - 1 for k in kernel])
    turned = o.slice(w, starts, stops, places(o, [-1] * rank), axes)
    split = _reshaped(o, turned, (groups, outputs // groups, channels, *kernel))
    turned = o.transpose(split, places(o, (0, 2, 1, *range(3, 3 + rank))))
    lows, highs = cropped(windows)
    function: Any = o.group_convolution_backprop_data
    if groups == 1:
        turned = _reshaped(o, turned, (channels, outputs, *kernel))
        function = o.convolution_backprop_data
    crop = {"pads_begin": lows, "pads_end": [max(0, n) for n in highs], "output_padding": [max(0, -n) for n in highs]}
    return function(x, turned, list(windows.spread), dilations=list(windows.dilation), **crop)


def _reshaped(o: Any, x: Any, shape: Shape) -> Any:
    return o.reshape(x, places(o, shape), False)


def _not_convolved(graph: Graph, entry: int) -> str | None:
    windows = windows_of(graph.calls[entry])
    if max(windows.spread) == 1:
        return None
    if max(windows.stride) > 1:
        return "it has no steps over elements that stand apart"
    lows, highs = cropped(windows)
    fits = min(lows) >= 0 and all(-n < s for n, s in zip(highs, windows.spread, strict=True))
    return None if fits else "it has no such padding of elements that stand apart"


# Pooling


def _edges(call: Call) -> tuple[list[int], list[int]]:
    return [low for low, _ in call.attrs["padding"]], [high for _, high in call.attrs["padding"]]


def _largest(o: Any, call: Call, args: Sequence[Any]) -> Any:
    (x,) = args
    lows, highs = _edges(call)
    steps = (list(call.attrs["stride"]), list(call.attrs["dilation"]), lows, highs, list(call.attrs["kernel_size"]))
    lost = infinite(o, x, call.spec.dtype, is_least=False)
    made, most = (o.max_pool(values, *steps).output(0) for values in (x, lost))
    return restored(o, made, most, is_least=False)


def _mean(o: Any, call: Call, args: Sequence[Any]) -> Any:
    lows, highs = _edges(call)
    strides, kernel = list(call.attrs["stride"]), list(call.attrs["kernel_size"])
    return o.avg_pool(args[0], strides, lows, highs, kernel, not call.attrs["count_include_pad"])


def _too_wide(graph: Graph, entry: int) -> str | None:
    return too_many(prod(graph.calls[entry].attrs["kernel_size"]), LONG_ELSEWHERE)


WINDOWS: Final[dict[str, OpRow]] = {
    "conv": OpRow(_convolved, SINGLE, _not_convolved, sums=True),
    "max_pool": OpRow(_largest, SINGLE),
    "avg_pool": OpRow(_mean, SINGLE, _too_wide, sums=True),
}
