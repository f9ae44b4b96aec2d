"""The ops that move elements, as strided copies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Final

from ..._tensor.node import Call, Shape
from ..._tensor.op import constant, embedded
from ..._tensor.role import View
from .copies import Copy, strides_of

Moves = list[tuple[int, Copy]]
"""Copies into one result, each from the input of that number, in order: a later one may overwrite an earlier one."""


def is_free(call: Call) -> bool:
    """True for a call that needs no kernel: a constant, or the same memory in another shape."""
    return call.op in (constant, embedded) or call.op.role is View.RESHAPED


def moves(call: Call) -> Moves | None:
    """The copies that make up a call; `None` if it is more than that."""
    written = _MOVES.get(call.op.name)
    return None if written is None else [(n, c) for n, c in written(call) if 0 not in c.shape]


def _window(key: Any, shape: Shape) -> tuple[int, Shape, tuple[int, ...]]:
    """Where a window of an array begins, its shape, and its strides in the array."""
    start, lengths, strides = 0, [], []
    own = iter(strides_of(shape))
    for item in key:
        if item is None:
            lengths.append(1)
            strides.append(0)
        elif isinstance(item, tuple):
            step = next(own)
            start += item[0] * step
            lengths.append(item[1])
            strides.append(item[2] * step)
        else:
            start += item * next(own)
    return start, tuple(lengths), tuple(strides)


def _permuted(call: Call) -> Moves:
    strides = strides_of(call.inputs[0].shape)
    turned = tuple(strides[a] for a in call.attrs["axes"])
    return [(0, Copy(call.spec.shape, turned, strides_of(call.spec.shape)))]


def _flipped(call: Call) -> Moves:
    shape, axes = call.spec.shape, call.attrs["axis"]
    strides = strides_of(shape)
    start = sum((shape[a] - 1) * strides[a] for a in axes)
    turned = tuple(-s if a in axes else s for a, s in enumerate(strides))
    return [(0, Copy(shape, turned, strides, source_start=start))]


def _viewed(call: Call) -> Moves:
    start, shape, strides = _window(call.attrs["key"], call.inputs[0].shape)
    return [(0, Copy(shape, strides, strides_of(shape), source_start=start))]


def _written(call: Call) -> Moves:
    whole, value = call.inputs
    start, shape, strides = _window(call.attrs["key"], whole.shape)
    own = (0,) * (len(shape) - value.ndim) + tuple(
        s if n > 1 else 0 for n, s in zip(value.shape, strides_of(value.shape), strict=True)
    )
    everything = strides_of(whole.shape)
    return [(0, Copy(whole.shape, everything, everything)), (1, Copy(shape, own, strides, target_start=start))]


def _joined(call: Call) -> Moves:
    strides, axis = strides_of(call.spec.shape), call.attrs["axis"]
    made: Moves = []
    at = 0
    for n, given in enumerate(call.inputs):
        made.append((n, Copy(given.shape, strides_of(given.shape), strides, target_start=at * strides[axis])))
        at += given.shape[axis]
    return made


def _rolled(call: Call) -> Moves:
    shape = call.spec.shape
    strides = strides_of(shape)
    shifts = [0] * len(shape)
    for axis, shift in zip(call.attrs["axis"], call.attrs["shift"], strict=True):
        shifts[axis] += shift
    parts = []
    for length, shift in zip(shape, shifts, strict=True):
        ahead = shift % length if length else 0
        # (from, to, how many) along this axis: what moves ahead, and what comes in at the front
        parts.append([(0, ahead, length - ahead), *([(length - ahead, 0, ahead)] if ahead else [])])
    made: Moves = []
    for part in product(*parts):
        source = sum(p[0] * s for p, s in zip(part, strides, strict=True))
        target = sum(p[1] * s for p, s in zip(part, strides, strict=True))
        made.append((0, Copy(tuple(p[2] for p in part), strides, strides, source, target)))
    return made


def _diagonal(call: Call) -> Moves:
    strides = strides_of(call.inputs[0].shape)
    offset, shape = call.attrs["offset"], call.spec.shape
    start = offset * strides[-1] if offset >= 0 else -offset * strides[-2]
    along = (*strides[:-2], strides[-2] + strides[-1])
    return [(0, Copy(shape, along, strides_of(shape), source_start=start))]


_MOVES: Final[dict[str, Callable[[Call], Moves]]] = {
    "permute_dims": _permuted, "flip": _flipped, "slice_view": _viewed, "slice_set": _written,
    "concatenate": _joined, "rolled": _rolled, "diagonal": _diagonal,
}  # fmt: skip
