"""Calls in terms that compilers share: slices, windows, masks, optional inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._schedule.fuse import is_constant
from ..._tensor.node import Call
from ..._tensor.role import Triangle
from ...ops.windows import Windows

_MASK_LIMIT: Final = 1 << 24  # elements of a mask that a model holds


class SliceBounds:
    """A window in the normal form of `ops.index_key`: starts, stops and steps for each dimension of an array."""

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


def windows_of(call: Call) -> Windows:
    """How the windows of a convolution move."""
    attrs = {name: call.attrs[name] for name in ("stride", "padding", "dilation", "spread")}
    return Windows(call.inputs[1].shape[2:], **attrs)


def kept_by(windows: Windows, lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Where each dimension begins and ends after padding below 0, which takes elements away."""
    return [(max(0, -low), n - max(0, -high)) for n, (low, high) in zip(lengths, windows.padding, strict=True)]


def cropped(windows: Windows) -> tuple[list[int], list[int]]:
    """The padding that the transposed convolution leaves out before and behind; below 0, the padding that is added."""
    pairs = zip(windows.extent, windows.padding, strict=True)
    sides = [(e - 1 - low, e - 1 - high) for e, (low, high) in pairs]
    return [low for low, _ in sides], [high for _, high in sides]


def shifts_of(call: Call) -> dict[int, int]:
    """How far each axis is rolled."""
    shifts: dict[int, int] = {}
    for axis, shift in zip(call.attrs["axis"], call.attrs["shift"], strict=True):
        shifts[axis] = (shifts.get(axis, 0) + shift) % call.spec.shape[axis]
    return shifts


def diagonal_slice(call: Call) -> tuple[int, int, int]:
    """Start, stop and step of a diagonal in a matrix whose rows stand in one line."""
    columns, offset = call.inputs[0].shape[-1], call.attrs["offset"]
    start = offset if offset >= 0 else -offset * columns
    return start, start + (call.spec.shape[-1] - 1) * (columns + 1) + 1, columns + 1


def triangle(call: Call) -> Any:
    """The mask of the elements that a triangle keeps."""
    rows, columns = call.spec.shape[-2:]
    is_lower = call.op.role == Triangle(is_lower=True)
    below = np.arange(columns) - np.arange(rows)[:, None] <= call.attrs["k"] - (not is_lower)
    return below if is_lower else ~below


def too_large_a_mask(rows: int, columns: int) -> str | None:
    """The reason against a mask of this size."""
    return "its mask would be too large" if rows * columns > _MASK_LIMIT else None


def causal(call: Call) -> Any:
    """The mask of a causal attention."""
    rows, columns = call.inputs[0].shape[-2], call.inputs[1].shape[-2]
    return np.arange(rows)[:, None] >= np.arange(columns)


def too_large_a_causal_mask(call: Call) -> str | None:
    """The reason against the mask of an attention, if it has one of its own."""
    rows, columns = call.inputs[0].shape[-2], call.inputs[1].shape[-2]
    return too_large_a_mask(rows, columns) if call.attrs["is_causal"] else None


def optional_input(call: Call, args: Sequence[Any], name: str) -> Any | None:
    """One of a composite's optional inputs, if it was given."""
    given = call.attrs["given"]
    return args[len(args) - len(given) + given.index(name)] if name in given else None


def unknown_places(graph: Graph, entry: int) -> str | None:
    """The reason against a gather: an index that is out of range is the user's mistake, which a model does not
    report."""
    call, args = graph.calls[entry], graph.args[entry]
    if call.attrs["axes"] != (call.attrs["at"],):
        return "it gathers along one axis only"
    if not is_constant(graph, args[1]):
        return "it would not tell of an index out of range"
    indices = np.asarray(bind(graph.calls[args[1]])())
    inside = indices.size and indices.min() >= 0 and indices.max() < call.inputs[0].shape[call.attrs["at"]]
    return None if inside else "it would not tell of an index out of range"
