"""Convolutions of elements that stand apart, without the zeros between them.

The gradient of a strided convolution by its input is one. With elements two apart, say, an even place of the result
reads them by the even places of the kernel, and an odd one by the odd places. So each remainder is a convolution of the
elements as they are, by a part of the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as combinations
from typing import Any

import numpy as np

from ...ops.windows import Windows
from .results import Results

Convolve = Callable[[Any, Any], Any]


def is_spread(windows: Windows) -> bool:
    """True if elements stand apart, and windows move by one place."""
    return any(n > 1 for n in windows.spread) and all(n == 1 for n in windows.stride)


@dataclass(frozen=True, slots=True)
class _Remainder:
    """The places of a result with one remainder, along one dimension."""

    places: slice
    kernel: slice
    """The places of the kernel that read elements."""
    weights: int
    dilation: int
    padding: tuple[int, int]

    @classmethod
    def of(cls, windows: Windows, axis: int, size: int, count: int, remainder: int) -> _Remainder:
        """Of a dimension with so many elements, and so many places in the result."""
        apart, dilation, low = windows.spread[axis], windows.dilation[axis], windows.padding[axis][0]
        first = [n * dilation + remainder - low for n in range(windows.kernel[axis])]
        read = [n for n, at in enumerate(first) if at % apart == 0]
        elements = [first[n] // apart for n in read]
        places = slice(remainder, count, apart)
        if not read:
            return cls(places, slice(0, 0), 0, 1, (0, 0))
        step, further = (read[1] - read[0], elements[1] - elements[0]) if len(read) > 1 else (1, 1)
        before = -elements[0]
        behind = len(range(count)[places]) + elements[-1] - elements[0] - size - before
        return cls(places, slice(read[0], read[-1] + 1, step), len(read), further, (before, behind))


class SpreadConvolution:
    """A convolution of arrays of certain shapes and strides: `call(x, w)` gives the result."""

    def __init__(
        self, bound: Callable[[Any, Any, Windows], Convolve], results: Results, x: Any, w: Any, windows: Windows
    ) -> None:
        """`bound` makes convolutions of elements that do not stand apart. Raises `CompileFailure`."""
        counts = windows.counts(x.shape[2:])
        self._results, self._shape, self._dtype = results, (x.shape[0], w.shape[0], *counts), x.dtype
        axes = range(len(counts))
        self._parts: list[tuple[Any, Any, Convolve | None]] = []
        """Of each part, its places in the result, those of the kernel, and the function; `None` if all are 0."""
        for remainders in combinations(*[range(min(windows.spread[n], counts[n])) for n in axes]):
            along = [_Remainder.of(windows, n, x.shape[2 + n], counts[n], remainders[n]) for n in axes]
            places, kernel = ((slice(None), slice(None), *own) for own in
                              ([d.places for d in along], [d.kernel for d in along]))  # fmt: skip
            convolve = None
            if all(d.weights for d in along):
                one = (1,) * len(counts)
                own = Windows(
                    tuple(d.weights for d in along), one, tuple(d.padding for d in along),
                    tuple(d.dilation for d in along), one,
                )  # fmt: skip
                convolve = bound(x, np.ascontiguousarray(w[kernel]), own)
            self._parts.append((places, kernel, convolve))

    def __call__(self, x: Any, w: Any) -> Any:
        """The convolution of arrays of the shapes and strides that this was made for."""
        made = self._results.any(self._shape, self._dtype)
        for places, kernel, convolve in self._parts:
            made[places] = 0 if convolve is None else convolve(x, np.ascontiguousarray(w[kernel]))
        return made
