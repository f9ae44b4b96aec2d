"""Convolutions by 3 × 3 kernels with Winograd's algorithm, as calls for arrays of certain shapes and strides."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..._tensor.dtype import as_dtype
from ...codegen.llvm.minimal_filters import FILTERS, KERNEL
from ...codegen.llvm.register_tiles import LINE
from ...codegen.llvm.winograd import CONVOLVE_SIZES, KERNELS_SIZES, room, winograd_shape, winograd_source
from ...ops.windows import Windows
from .callables import ALIGNED, RELEASING_PRODUCTS, Call, Runtime
from .compiler import Code
from .results import Results, lined_up
from .workspace import Spare


def can_be_squared(x: Any, windows: Windows, groups: int) -> bool:
    """Whether windows over an input can be computed by Winograd: neighbours must have elements in common."""
    steps = (windows.stride, windows.dilation, windows.spread)
    is_dense = windows.kernel == (KERNEL, KERNEL) and all(step == (1, 1) for step in steps) and groups == 1
    return is_dense and x.strides[-1] == x.itemsize


class Winograd:
    """A convolution of arrays of certain shapes and strides: `call(x, w)` gives the result.

    If its numbers are not all finite, they are those of `direct`. With `kept` weights, `w` is always the same. Windows
    go in squares of `side`.
    """

    def __init__(
        self, runtime: Runtime, results: Results, spare: Spare, x: Any, w: Any, windows: Windows,
        direct: Callable[[Any, Any], Any], *, kept: bool, side: int,
    ) -> None:  # fmt: skip
        """Raises `CompileFailure`."""
        self._results, self._spare, self._direct = results, spare, direct
        dtype, item, target = as_dtype(x.dtype), x.itemsize, runtime.compiler.machine.target
        batch, channels, high, wide = x.shape
        outputs = w.shape[0]
        counts = windows.counts(x.shape[2:])
        self._shape, self._dtype = (batch, outputs, *counts), x.dtype
        shape = winograd_shape(target, dtype, outputs)
        of = FILTERS[side]
        source = winograd_source(dtype, shape, of, target)
        code = runtime.compiler.load(source, ("kernels", "convolve"))
        down, across = (-(-n // side) for n in counts)
        squares = batch * down * across
        vectors = -(-squares // shape.lanes)
        work = squares * of.matrices * channels * outputs
        threads = runtime.threads if work >= RELEASING_PRODUCTS else 1
        blocks = _blocks(vectors, shape.vectors, threads)
        panels = -(-outputs // shape.rows)
        parts = min(panels, max(1, threads // blocks))  # few squares are dealt out by outputs
        slots, each = threads, room(dtype, shape, of.matrices, channels)
        matrix = channels * shape.rows * item
        seen = [max(0, min(n, count + KERNEL - 1 - low)) for n, count, (low, _) in
                zip((high, wide), counts, windows.padding, strict=True)]  # fmt: skip
        self._zeros = LINE * (1 + slots)
        self._before = self._zeros + slots * each
        kernels = panels * of.matrices * matrix
        self._bytes = self._before + (0 if kept else kernels)
        sizes = {
            "channels": channels, "outputs": outputs, "kernel_panel": of.matrices * matrix, "kernel_matrix": matrix,
            "w_output": w.strides[0] // item, "w_channel": w.strides[1],
            "w_row": w.strides[2], "w_column": w.strides[3],
            "panels": panels, "parts": parts, "blocks": blocks, "vectors": vectors, "squares": squares,
            "images": batch, "down": down,
            "strips": across // shape.lanes, "rest": across % shape.lanes or 1,
            "top": windows.padding[0][0], "left": windows.padding[1][0], "high": seen[0], "wide": seen[1],
            "x_image": x.strides[0], "x_channel": x.strides[1], "x_row": x.strides[2],
            "out_high": counts[0], "out_wide": counts[1], "out_image": outputs * prod(counts) * item,
            "out_output": prod(counts) * item, "out_row": counts[1] * item, "slots": slots, "room": each,
        }  # fmt: skip

        def call(function: str, arrays: int, names: tuple[str, ...], units: int) -> Call:
            return runtime.call(
                Code({"kernel": code[function]}, code), arrays, [sizes[name] for name in names], count=units,
                chunk=1 if threads > 1 else units, lets_go=work >= RELEASING_PRODUCTS, needs=ALIGNED,
            )  # fmt: skip

        self._transform = call("kernels", 2, KERNELS_SIZES, panels)
        self._convolve = call("convolve", 4, CONVOLVE_SIZES, blocks * parts)
        self._kept: Any = None
        if kept:
            self._kept = lined_up(kernels)
            self._transform(w, self._kept)

    def __call__(self, x: Any, w: Any) -> Any:
        """Of arrays of the shapes and strides that this was made for."""
        work = self._spare.take(self._bytes)
        work[: self._zeros] = 0
        kernels = self._kept
        if kernels is None:
            kernels = work[self._before :]
            self._transform(w, kernels)
        out = self._results.any(self._shape, self._dtype)
        self._convolve(x, kernels, out, work)
        is_finite = not work[0]
        self._spare.give_back(work)
        return out if is_finite else self._direct(x, w)


def _blocks(vectors: int, most: int, threads: int) -> int:
    """Into how many blocks of so many vectors at most the work is cut: as many for each thread, if it is enough."""
    return min(vectors, -(-vectors // (most * threads)) * threads)
