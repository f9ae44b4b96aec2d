"""Depthwise convolutions as calls for arrays of certain shapes and strides."""

from __future__ import annotations

from math import prod
from typing import Any

from ..._tensor.dtype import as_dtype
from ...codegen.llvm.depthwise import DEPTHWISE_SIZES, depthwise_source
from ...ops.windows import Windows
from .callables import ALIGNED, RELEASING_PRODUCTS, Runtime
from .compiler import Code
from .results import Results

_PLACES = 25
"""Places of a kernel, whose weights should stay in registers."""


def is_depthwise(x: Any, w: Any, windows: Windows, groups: int) -> bool:
    """True if each channel has one kernel of its own, with few places, and steps of 1 or 2 over rows that lie in one
    piece."""
    if x.ndim != 4 or not w.shape[0] == groups == x.shape[1]:
        return False
    is_plain = windows.spread == (1, 1) == windows.dilation and max(windows.stride) <= 2
    return is_plain and prod(windows.kernel) <= _PLACES and x.strides[-1] == x.itemsize


class Depthwise:
    """A convolution of arrays of certain shapes and strides: `call(x, w)` gives the result. The elements of each
    kernel lie one behind the other."""

    def __init__(self, runtime: Runtime, results: Results, x: Any, w: Any, windows: Windows) -> None:
        """Raises `CompileFailure`."""
        self._results = results
        batch, channels, high, wide = x.shape
        counts, dtype = windows.counts(x.shape[2:]), as_dtype(x.dtype)
        self._shape, self._dtype = (batch, channels, *counts), x.dtype
        source = depthwise_source(
            dtype, (w.shape[2], w.shape[3]), (windows.stride[0], windows.stride[1]), runtime.compiler.machine.target
        )
        code = runtime.compiler.load(source, ("convolve",))
        sizes = {
            "channels": channels, "x_image": x.strides[0], "x_channel": x.strides[1], "x_row": x.strides[2],
            "w_channel": w.strides[0], "top": windows.padding[0][0], "left": windows.padding[1][0],
            "high": high, "wide": wide, "out_high": counts[0], "out_wide": counts[1],
            "out_plane": prod(counts) * x.itemsize, "out_row": counts[1] * x.itemsize,
        }  # fmt: skip
        planes = batch * channels
        work = planes * prod(counts) * prod(windows.kernel)
        threads = runtime.threads if work >= RELEASING_PRODUCTS else 1
        self._convolve = runtime.call(
            Code({"kernel": code["convolve"]}, code), 3, [sizes[name] for name in DEPTHWISE_SIZES], count=planes,
            chunk=max(1, planes // (8 * threads)) if threads > 1 else planes, lets_go=work >= RELEASING_PRODUCTS,
            needs=ALIGNED,
        )  # fmt: skip

    def __call__(self, x: Any, w: Any) -> Any:
        """The convolution of arrays of the shapes and strides that this was made for."""
        out = self._results.any(self._shape, self._dtype)
        self._convolve(x, w, out)
        return out
