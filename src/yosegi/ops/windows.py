"""Sliding windows: their arithmetic, and what NumPy does with them.

Along each spatial dimension a window of `kernel` places, `dilation` apart, moves in steps of `stride` over the input,
whose elements stand `spread` apart with zeros between, after `padding` before and behind. With both a stride and a
spread, the sum over windows and its gradient are the same operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from .._tensor.node import Call, Shape
from .._tensor.tensor import Array
from ..errors import ArgumentError, ShapeError
from . import rules

Pads = tuple[tuple[int, int], ...]

_BUFFER: Final = 16 << 20  # bytes of windows that are written out at once
_FARTHEST: Final = 1 << 40  # places: no memory holds windows that are further apart
_FEW: Final = 128  # places of a kernel that are gone through one by one


@dataclass(frozen=True, slots=True)
class Windows:
    """How windows move: a number for each spatial dimension."""

    kernel: Shape
    stride: Shape
    padding: Pads
    dilation: Shape
    spread: Shape

    @property
    def extent(self) -> Shape:
        """From a window's first place to its last."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    def check_pool(self, rank: int) -> None:
        """Raise unless these are windows of a pool over so many dimensions, as `windowed` takes them."""
        sizes = (self.kernel, self.stride, self.dilation, self.spread)
        if any(len(each) != rank or min(each, default=0) < 1 for each in sizes) or max(self.spread) > 1:
            raise ArgumentError(f"expected numbers of at least 1 for {rank} dimensions, without spread, got {self}")
        if len(self.padding) != rank or any(p < 0 for pair in self.padding for p in pair):
            raise ArgumentError(f"expected {rank} pairs of padding of at least 0, got {self.padding}")

    def _spans(self, lengths: Shape) -> list[int]:
        """From the input's first element to its last."""
        return [(n - 1) * s + 1 for n, s in zip(lengths, self.spread, strict=True)]

    def counts(self, lengths: Shape) -> Shape:
        """How many windows there are over an input of these lengths."""
        found = []
        for n, span, (low, high), e, s in zip(
            lengths, self._spans(lengths), self.padding, self.extent, self.stride, strict=True
        ):
            if n < 1:
                raise ShapeError(f"expected spatial lengths of at least one element, got {lengths}")
            if span + low + high < e:
                raise ShapeError(
                    f"expected spatial lengths that hold a window of {self.extent} with the padding {self.padding}, "
                    f"got {lengths}; pad more, or take a smaller kernel"
                )
            found.append((span + low + high - e) // s + 1)
        return tuple(found)

    def backward(self, lengths: Shape, counts: Shape) -> Windows:
        """The windows by which what came out goes back to the input's places, over a reversed kernel."""
        pads = [
            (e - 1 - low, span - 1 - (o - 1) * s + low)
            for (low, _), e, s, span, o in zip(
                self.padding, self.extent, self.stride, self._spans(lengths), counts, strict=True
            )
        ]
        return Windows(self.kernel, self.spread, tuple(pads), self.dilation, self.stride)

    def to_kernel(self, lengths: Shape, counts: Shape) -> Windows:
        """The windows by which the input, under what came out as the kernel, gives the kernel's places."""
        pads = [
            (low, e + (o - 1) * s - span - low)
            for (low, _), e, s, span, o in zip(
                self.padding, self.extent, self.stride, self._spans(lengths), counts, strict=True
            )
        ]
        return Windows(counts, self.dilation, tuple(pads), self.stride, self.spread)

    def to_reversed_kernel(self, lengths: Shape, counts: Shape) -> Windows:
        """The windows by which what came out, under the input as the kernel, gives the kernel's places in reverse.
        Windows move by one place."""
        pads = [
            (e - 1 - low, span - o + low)
            for (low, _), e, span, o in zip(self.padding, self.extent, self._spans(lengths), counts, strict=True)
        ]
        return Windows(lengths, self.dilation, tuple(pads), self.spread, (1,) * len(lengths))

    def attrs(self) -> dict[str, Any]:
        """All but the kernel, as attributes of an op."""
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "spread": self.spread}


# Arguments


def numbers(value: Any, rank: int, what: str, least: int = 1) -> Shape:
    """One number for all spatial dimensions, or one for each."""
    given = value if isinstance(value, (tuple, list)) else (value,) * rank
    made = tuple(rules.as_index(v, what) for v in given)
    if len(made) != rank or any(not least <= v <= _FARTHEST for v in made):
        raise ArgumentError(
            f"expected {what} as a number of at least {least} and at most {_FARTHEST}, or {rank} of them, got {value}"
        )
    return made


def pads(value: Any, lengths: Shape, windows: Windows) -> Pads:
    """Padding as pairs: from a number, a number or a pair for each dimension, "valid" (none) or "same" (as many
    windows as strides fit into the input)."""
    rank = len(lengths)
    if isinstance(value, str):
        rules.one_of("padding", value, ("valid", "same"))
        whole = [
            0 if value == "valid" else max(0, (-(-n // s) - 1) * s + e - n)
            for n, s, e in zip(lengths, windows.stride, windows.extent, strict=True)
        ]
        return tuple((p // 2, p - p // 2) for p in whole)
    if isinstance(value, (tuple, list)) and any(isinstance(v, (tuple, list)) for v in value):
        if len(value) != rank or not all(isinstance(v, (tuple, list)) and len(v) == 2 for v in value):
            raise ArgumentError(f"expected padding as {rank} pairs, got {value}")
        sides = numbers([v for pair in value for v in pair], 2 * rank, "padding", least=-_FARTHEST)
        return tuple(zip(sides[::2], sides[1::2], strict=True))
    return tuple((p, p) for p in numbers(value, rank, "padding", least=0))


def padded_nbytes(call: Call) -> int:
    """The bytes of a call's input with the padding of its windows; 0 for a call without windows."""
    attrs = call.attrs
    windows = attrs.get("windows")
    padding = attrs.get("padding", ()) if windows is None else windows.padding
    around = call.spec if "lengths" in attrs else call.inputs[0] if padding else call.spec
    spread = attrs.get("spread", (1,) * len(padding))
    lengths = zip(around.shape[2:], spread, padding, strict=False)
    sizes = [max(0, (n - 1) * s + 1 + low + high) for n, s, (low, high) in lengths]
    return prod((*around.shape[:2], *sizes)) * around.dtype.itemsize if padding else 0


# NumPy


def padded(x: Array, windows: Windows, fill: Any = 0) -> Array:
    """The input, spread and padded; padding below 0 takes away."""
    rank = len(windows.kernel)
    if any(s > 1 for s in windows.spread):
        apart = np.zeros((*x.shape[:-rank], *windows._spans(x.shape[-rank:])), x.dtype)
        apart[(..., *[slice(None, None, s) for s in windows.spread])] = x
        x = apart
    lengths = x.shape[-rank:]
    ends = [(max(0, -a), max(0, -a, min(n, n + b))) for n, (a, b) in zip(lengths, windows.padding, strict=True)]
    kept = x[(..., *[slice(*e) for e in ends])]
    if all(a <= 0 and b <= 0 for a, b in windows.padding):
        return kept
    sizes = [n + a + b for n, (a, b) in zip(lengths, windows.padding, strict=True)]
    wide = np.full((*x.shape[:-rank], *sizes), fill, x.dtype)
    if kept.size:
        wide[(..., *[slice(e[0] + a, e[1] + a) for e, (a, _) in zip(ends, windows.padding, strict=True)])] = kept
    return wide


def views(wide: Array, windows: Windows) -> Array:
    """The windows over a padded input as a view, of shape (…, windows, kernel)."""
    rank = len(windows.kernel)
    all_of_them = np.lib.stride_tricks.sliding_window_view(wide, windows.extent, axis=tuple(range(-rank, 0)))
    strides = [slice(None, None, s) for s in windows.stride]
    return all_of_them[(..., *strides, *[slice(None, None, d) for d in windows.dilation])]


def places(windows: Windows, counts: Shape) -> Iterator[tuple[Shape, tuple[slice, ...]]]:
    """For each place of the kernel, where in the padded input the windows have it."""
    for place in product(*map(range, windows.kernel)):
        starts = [k * d for k, d in zip(place, windows.dilation, strict=True)]
        yield (
            place,
            tuple(slice(a, a + (o - 1) * s + 1, s) for a, o, s in zip(starts, counts, windows.stride, strict=True)),
        )


def convolved(x: Array, w: Array, windows: Windows, groups: int) -> Array:
    """The sums over windows of (batch, channels, …), weighted by a kernel (outputs, channels of a group, …)."""
    counts = windows.counts(x.shape[2:])
    out = np.zeros((x.shape[0], w.shape[0], *counts), x.dtype)
    if not out.size or not x.size:
        return out
    grouped = out.reshape(x.shape[0], groups, w.shape[0] // groups, *counts)
    x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])
    if max(windows.spread) > 1 and max(windows.stride) == 1 and prod(windows.kernel) <= _FEW:
        _scatter(x, w, grouped, windows)
    else:
        _gather(padded(x, windows), w, grouped, windows)
    return out


def _gather(wide: Array, w: Array, out: Array, windows: Windows) -> None:
    """Products with windows written out side by side, some of the batch and of the channels at a time."""
    n, groups, channels = wide.shape[:3]
    rank, counts = len(windows.kernel), out.shape[3:]
    each = groups * prod(counts) * prod(windows.kernel) * wide.itemsize
    at_once = max(1, min(channels, _BUFFER // max(1, each)))
    rows = max(1, _BUFFER // max(1, each * at_once))
    # The longer of the two runs of neighbouring elements goes last: it is what the copy runs along.
    along_counts = counts[-1] >= windows.kernel[-1]
    window, kernel = tuple(range(3, 3 + rank)), tuple(range(3 + rank, 3 + 2 * rank))
    order = (1, 2, *kernel, 0, *window) if along_counts else (1, 0, *window, 2, *kernel)
    for first in range(0, n, rows):
        for channel in range(0, channels, at_once):
            part = wide[first : first + rows, :, channel : channel + at_once]
            inner = part.shape[2] * prod(windows.kernel)
            weights = w[:, :, channel : channel + at_once].reshape(groups, -1, inner)
            lined = views(part, windows).transpose(order)
            columns = lined.reshape((groups, inner, -1) if along_counts else (groups, -1, inner))
            made = weights @ (columns if along_counts else columns.swapaxes(1, 2))
            made = made.reshape(groups, w.shape[1], part.shape[0], *counts)
            out[first : first + rows] += np.moveaxis(made, 2, 0)


def _scatter(x: Array, w: Array, out: Array, windows: Windows) -> None:
    """Products with the elements themselves, added up where the windows that have them end: nothing is multiplied
    with the zeros between elements that are spread."""
    lengths, counts = x.shape[3:], out.shape[3:]
    lined = np.moveaxis(x, 0, 2)
    lined = lined.reshape(*lined.shape[:2], -1)
    for place in product(*map(range, windows.kernel)):
        sources, targets = [], []
        for k, d, s, (low, _), n, o in zip(
            place, windows.dilation, windows.spread, windows.padding, lengths, counts, strict=True
        ):
            shift = low - k * d  # element q ends at q * s + shift
            first = max(0, -(shift // s))
            last = min(n - 1, (o - 1 - shift) // s)
            sources.append(slice(first, last + 1))
            targets.append(slice(first * s + shift, last * s + shift + 1, s))
            if last < first:
                break
        else:
            made = (w[(..., *place)] @ lined).reshape(*w.shape[:2], x.shape[0], *lengths)
            out[(..., *targets)] += np.moveaxis(made[(..., *sources)], 2, 0)
