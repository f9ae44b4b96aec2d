"""Gradients of convolutions by their 3 × 3 weights with few products, as calls for arrays of certain shapes and
strides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..._tensor.dtype import as_dtype
from ...codegen.llvm.register_tiles import LINE
from ...codegen.llvm.winograd_gradients import (
    FILTERINGS,
    GRADIENT_SIZES,
    KERNEL,
    PADDING,
    SIDE,
    gradient_shape,
    gradient_source,
)
from ...ops.windows import Windows
from .callables import ALIGNED, RELEASING_PRODUCTS, Runtime
from .compiler import Code
from .results import Results
from .workspace import Spare


@dataclass(frozen=True, slots=True)
class GradientPolicy:
    """How the work is cut."""

    channels: int = 64
    """Channels, and outputs, of a block: with more, sums do not stay in a second cache; with fewer, operands are
    transformed more often."""
    tiles: int = 32
    """Tiles of a chunk, about: with fewer, sums are read and written more often."""


_POLICY: Final = GradientPolicy()


def can_be_filtered(x: Any, w: Any, windows: Windows, groups: int) -> bool:
    """True if a convolution is the gradient of one by 3 × 3 weights, whose windows are one or two elements apart."""
    is_dense = groups == 1 and windows.stride == windows.spread == (1, 1)
    is_gradient = is_dense and windows.counts(x.shape[2:]) == (KERNEL, KERNEL)
    return (
        is_gradient
        and windows.dilation[0] == windows.dilation[1]
        and windows.dilation[0] in FILTERINGS
        and all(a.strides[2:] == (a.shape[3] * a.itemsize, a.itemsize) for a in (x, w))
    )


class WinogradGradient:
    """A convolution of arrays of certain shapes and strides: `call(x, w)` gives the result, a view of what has the
    order of the weights.

    If its numbers are not all finite, they are those of `direct`.
    """

    def __init__(
        self, runtime: Runtime, results: Results, spare: Spare, x: Any, w: Any, windows: Windows,
        direct: Callable[[Any, Any], Any], policy: GradientPolicy = _POLICY,
    ) -> None:  # fmt: skip
        """Raises `CompileFailure`."""
        self._results, self._spare, self._direct = results, spare, direct
        dtype, item, target = as_dtype(x.dtype), x.itemsize, runtime.compiler.machine.target
        filtering = FILTERINGS[windows.dilation[0]]
        channels, images, *_ = x.shape
        outputs = len(w)
        shape = gradient_shape(target, dtype, channels)
        source = gradient_source(dtype, shape, filtering, target)
        code = runtime.compiler.load(source, ("gradients",))
        down, across = (-(-n // SIDE) for n in w.shape[2:])
        rows, group = _cut(down, across, images, policy.tiles)
        bands = -(-down // rows)
        chunks = -(-images // group) * bands
        x_block = _block(channels, shape.columns, policy.channels)
        y_block = _block(outputs, shape.lanes, policy.channels)
        x_blocks, y_blocks = -(-channels // x_block), -(-outputs // y_block)
        blocks = x_blocks * y_blocks
        work = w.size * channels * KERNEL * KERNEL
        threads = runtime.threads if work >= RELEASING_PRODUCTS else 1
        parts = 1 if blocks % threads == 0 else min(threads, chunks)
        self._shape, self._dtype = (parts, outputs, channels, KERNEL, KERNEL), x.dtype
        tiles, step, (top, left) = group * rows * across, SIDE * filtering.step, (low for low, _ in windows.padding)
        elements = {
            "count": channels, "image": x.strides[1], "channel": x.strides[0], "block": x_block, "high": x.shape[2],
            "wide": x.shape[3], "top": top, "step": step * rows, "rows": step * (rows - 1) + filtering.reach,
            "pitch": (step * (across - 1) + filtering.reach) * x_block * item,
            "matrix": tiles * x_block * item + PADDING,
        }  # fmt: skip
        gradients = {
            "count": outputs, "image": w.strides[1], "channel": w.strides[0], "block": y_block, "high": w.shape[2],
            "wide": w.shape[3], "top": 0, "step": SIDE * rows, "rows": SIDE * rows,
            "pitch": SIDE * across * y_block * item, "matrix": tiles * y_block * item + PADDING,
        }  # fmt: skip
        for side in (elements, gradients):
            side["staged"] = side["rows"] * side["pitch"]
        self._places = [_places(elements, item, left, shape.lanes), _places(gradients, item, 0, shape.lanes)]
        sums_matrix = -(-y_block // shape.rows) * shape.rows * x_block * item + PADDING
        each = (s["staged"] + s["block"] * item + filtering.matrices * s["matrix"] for s in (elements, gradients))
        room = -(-(sum(each) + filtering.matrices * sums_matrix) // LINE) * LINE
        sizes = {f"x_{name}": size for name, size in elements.items()}
        sizes |= {f"y_{name}": size for name, size in gradients.items()}
        sizes |= {
            "parts": parts, "chunks": chunks, "bands": bands, "group": group, "images": images, "down": rows,
            "across": across, "x_blocks": x_blocks, "blocks": blocks, "sums_matrix": sums_matrix,
            "out_part": outputs * channels * KERNEL * KERNEL * item, "out_output": channels * KERNEL * KERNEL * item,
            "slots": threads, "room": room,
        }  # fmt: skip
        self._zeros = LINE * (1 + threads)
        self._bytes = self._zeros + threads * room
        units = blocks * parts
        self._call = runtime.call(
            Code({"kernel": code["gradients"]}, code), 6, [sizes[name] for name in GRADIENT_SIZES], count=units,
            chunk=1 if threads > 1 else units, lets_go=work >= RELEASING_PRODUCTS, needs=ALIGNED,
        )  # fmt: skip

    def __call__(self, x: Any, w: Any) -> Any:
        """The convolution of arrays of the shapes and strides that this was made for."""
        work = self._spare.take(self._bytes)
        work[: self._zeros] = 0
        parts = self._results.any(self._shape, self._dtype)
        self._call(x, w, *self._places, parts, work)
        is_finite = not work[0]
        self._spare.give_back(work)
        if not is_finite:
            return self._direct(x, w)
        return (parts[0] if len(parts) == 1 else parts.sum(axis=0)).swapaxes(0, 1)


def _cut(down: int, across: int, images: int, tiles: int) -> tuple[int, int]:
    """How many rows of tiles of an image, and how many images, are a chunk of about so many tiles."""
    if down * across >= tiles:
        rows = max(1, tiles // across)
        return -(-down // -(-down // rows)), 1
    group = tiles // (down * across)
    return down, -(-images // -(-images // group))


def _block(count: int, unit: int, most: int) -> int:
    """Channels of a block: whole units, not many more than `most`, and as many in each block as can be."""
    units = -(-count // unit)
    blocks = -(-units // max(1, most // unit))
    return -(-units // blocks) * unit


def _places(side: dict[str, int], item: int, left: int, lanes: int) -> Any:
    """Where the elements of a band's rows go, in bytes; those that no tile reads go behind all others."""
    pixel = side["block"] * item
    columns = np.arange(side["wide"]) + left
    is_read = (columns >= 0) & (columns < side["pitch"] // pixel)
    rows = np.arange(side["rows"])[:, None] * side["pitch"]
    places = np.where(is_read, rows + columns * pixel, side["staged"])
    return np.append(places, [side["staged"]] * lanes).astype(np.int64)
