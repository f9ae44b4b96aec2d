"""Rows of the op table for ops on sliding windows: convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from ..._graph.graph import Graph
from ..._schedule.fuse import is_constant
from ..._tensor.node import Call
from ...ops.windows import Windows
from ..model.op_row import OpRow
from ..model.shapes import cropped, kept_by, windows_of
from .library import builder
from .movement import reshaped, sliced, whole
from .op_row import FLOATS

_SPATIAL: Final = 3
"""Dimensions that windows may have."""


def _convolved(o: Any, call: Call, args: Sequence[Any]) -> Any:
    windows = windows_of(call)
    if max(windows.spread) > 1:
        return _transposed(call, args, windows)
    x, w = args
    lengths = call.inputs[0].shape[2:]
    kept = kept_by(windows, lengths)
    if any(ends != (0, n) for ends, n in zip(kept, lengths, strict=True)):
        starts, stops = zip((0, x.shape[0]), (0, x.shape[1]), *kept, strict=True)
        x = sliced(x, starts, stops, [1] * x.rank)
    return builder().conv(
        x=x, weight=w, strides=whole(windows.stride), pad_type="custom", groups=call.attrs["groups"],
        pad=whole([max(0, p) for p in chain(*windows.padding)]), dilations=whole(windows.dilation),
    )  # fmt: skip


def _transposed(call: Call, args: Sequence[Any], windows: Windows) -> Any:
    """Over elements that stand apart it is the gradient of a convolution with a stride, by the reversed kernel."""
    (x, w), mb = args, builder()
    groups, rank = call.attrs["groups"], len(windows.kernel)
    outputs, channels, *kernel = call.inputs[1].shape
    w = mb.reverse(x=w, axes=whole(range(2, 2 + rank)))
    if groups == 1:
        w = mb.transpose(x=w, perm=whole([1, 0, *range(2, 2 + rank)]))
    else:
        w = reshaped(w, (groups, outputs // groups, channels, *kernel))
        w = mb.transpose(x=w, perm=whole([0, 2, 1, *range(3, 3 + rank)]))
        w = reshaped(w, (groups * channels, outputs // groups, *kernel))
    pads = [n for pair in zip(*cropped(windows), strict=True) for n in pair]
    return mb.conv_transpose(
        x=x, weight=w, strides=whole(windows.spread), pad_type="custom", pad=whole(pads), groups=groups,
        dilations=whole(windows.dilation),
    )  # fmt: skip


def _not_convolved(graph: Graph, entry: int) -> str | None:
    call = graph.calls[entry]
    windows = windows_of(call)
    if len(windows.kernel) > _SPATIAL:
        return f"its windows have at most {_SPATIAL} dimensions"
    if max(windows.spread) == 1:
        is_fixed = max(windows.dilation) == 1 or is_constant(graph, graph.args[entry][1])
        return None if is_fixed else "a dilated kernel has to be a constant"
    if max(windows.stride) > 1:
        return "it has no steps over elements that stand apart"
    if call.attrs["groups"] > 1 and len(windows.kernel) == _SPATIAL:
        return "it has at most 5 dimensions"
    lows, highs = cropped(windows)
    return None if min(*lows, *highs) >= 0 else "it has no such padding of elements that stand apart"


def _pooled(call: Call, args: Sequence[Any]) -> dict[str, Any]:
    """The inputs of a pool."""
    return {
        "x": args[0], "kernel_sizes": whole(call.attrs["kernel_size"]), "strides": whole(call.attrs["stride"]),
        "pad_type": "custom", "pad": whole(list(chain(*call.attrs["padding"]))),
    }  # fmt: skip


def _largest(o: Any, call: Call, args: Sequence[Any]) -> Any:
    return builder().max_pool(**_pooled(call, args))


def _mean(o: Any, call: Call, args: Sequence[Any]) -> Any:
    excluded = not call.attrs["count_include_pad"]
    return builder().avg_pool(**_pooled(call, args), exclude_padding_from_average=excluded)


def _not_pooled(graph: Graph, entry: int) -> str | None:
    attrs = graph.calls[entry].attrs
    if len(attrs["kernel_size"]) > _SPATIAL:
        return f"its windows have at most {_SPATIAL} dimensions"
    return "its pools have no dilation" if max(attrs.get("dilation", (1,))) > 1 else None


WINDOWS: Final[dict[str, OpRow]] = {
    "conv": OpRow(_convolved, FLOATS, _not_convolved, sums=True),
    "max_pool": OpRow(_largest, FLOATS, _not_pooled),
    "avg_pool": OpRow(_mean, FLOATS, _not_pooled, sums=True),
}
