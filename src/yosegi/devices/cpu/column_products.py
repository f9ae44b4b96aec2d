"""Convolutions as one matrix product, of copied windows.

The windows of all images are copied into one matrix, padding included, and multiplied by all kernels at once. That
takes memory, and pays where the windows of one image are too few for the loops over them: kernels are then read once
for all images. The gradient by the weights of such a convolution has few places, and larger windows: there, the roles
of places and windows are exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as combinations
from math import prod
from typing import Any, Final, Protocol

from ..._tensor.dtype import as_dtype
from ..._tensor.node import Shape
from ...codegen.llvm.product import Product
from ...ops.windows import Windows
from .operand_layout import Arrays, layout_like
from .product_calls import GeneratedProducts
from .results import Results
from .workspace import Spare

_MOST: Final = 32 << 20
"""Bytes of the copied windows."""

Copy = Callable[[Any, Any], None]
"""Copies an array into planes: `copy(array, planes)`."""


class MakesCopies(Protocol):
    """The native copies into planes."""

    def __call__(self, array: Any, lengths: Shape, runs: list[list[int]], apart: int | None = None) -> Copy:
        """A copy of arrays like this one. Their last dimensions go into planes of these lengths, by a run for each
        dimension: see `convolution.RUN`. Planes of one index of the first dimension follow each other; `apart` is the
        elements from those of one index to those of the next."""


def fits(x: Any, w: Any, windows: Windows, groups: int) -> bool:
    """True if the copied windows take little enough memory."""
    is_dense = groups == 1 and all(spread == 1 for spread in windows.spread)
    return is_dense and prod(w.shape[1:]) * x.shape[0] * prod(windows.counts(x.shape[2:])) * x.itemsize <= _MOST


class ColumnProduct:
    """A convolution of arrays of certain shapes and strides: `call(x, w)` gives the result. The elements of each
    output's kernel lie one behind the other."""

    def __init__(
        self, products: GeneratedProducts, copies: MakesCopies, results: Results, spare: Spare, x: Any, w: Any,
        windows: Windows,
    ) -> None:  # fmt: skip
        """Raises `CompileFailure`."""
        self._results, self._spare = results, spare
        counts, kernel = windows.counts(x.shape[2:]), w.shape[2:]
        self._exchanged = prod(kernel) > prod(counts)
        inner, outer = (kernel, counts) if self._exchanged else (counts, kernel)
        steps, skips = windows.stride, windows.dilation
        if self._exchanged:
            steps, skips = skips, steps
        given = self._given(x)
        row = given.shape[1] * prod(inner)
        self._copies = []
        """Of each place, where its rows begin, and the copy."""
        for number, place in enumerate(combinations(*map(range, outer))):
            runs = [
                _run(size, count, step, n * skip - low)
                for size, count, step, n, skip, (low, _) in
                zip(x.shape[2:], inner, steps, place, skips, windows.padding, strict=True)
            ]  # fmt: skip
            self._copies.append((number * row, copies(given, inner, runs, apart=prod(outer) * row)))
        self._shape, self._dtype = (x.shape[0], w.shape[0], *counts), x.dtype
        self._matrix = (given.shape[0] * prod(outer), row)
        left, right = w.reshape(len(w), -1), self._right(layout_like(self._matrix, (row, 1), x.dtype))
        out = layout_like((len(w), right.shape[1]), (right.shape[1], 1), x.dtype)
        bound = products.bound(Product(as_dtype(x.dtype)), Arrays(left, right, (), (), (out,)))
        self._product, self._workspace = bound.call, bound.workspace

    def __call__(self, x: Any, w: Any) -> Any:
        """The convolution of arrays of the shapes and strides that this was made for."""
        given, size = self._given(x), prod(self._matrix)
        blocks = [self._spare.take(size * self._dtype.itemsize), self._spare.take(self._workspace)]
        columns = blocks[0].view(self._dtype)[:size]
        for start, copy in self._copies:
            copy(given, columns[start:])
        right = self._right(columns.reshape(self._matrix))
        images, kernels, *places = self._shape
        out = self._results.any((kernels, images * prod(places)), self._dtype)
        self._product(w.reshape(kernels, -1), right, out, blocks[1])
        for block in blocks:
            self._spare.give_back(block)
        if images == 1:
            return out.reshape(self._shape)
        swapped = out.reshape(kernels, images, *places).swapaxes(0, 1)
        if self._exchanged:
            return swapped  # the gradient has the order that it is in, and is a view of it
        made = self._results.any(self._shape, self._dtype)
        made[...] = swapped
        return made

    def _given(self, x: Any) -> Any:
        """The input with the dimension first that belongs to the rows of the matrix."""
        return x if self._exchanged else x.swapaxes(0, 1)

    def _right(self, columns: Any) -> Any:
        return columns.T if self._exchanged else columns


def _run(size: int, count: int, step: int, first: int) -> list[int]:
    """Of so many places, which are a step apart from a first one on, those that are inside a dimension."""
    begin = max(0, -(first // step))
    end = min(count, (size - 1 - first) // step + 1)
    return [end - begin, first + begin * step, step, begin, 1] if end > begin else [0] * 5
