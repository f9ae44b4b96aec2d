"""Convolutions whose weights are larger than their result, as matrix products.

The gradient of a convolution by its weights is one: there are few places in its result, and each of them is a sum over
whole images. Both operands are copied into planes of one size, with zeros around them. A place of the result is then a
product of the flattened planes, of which the input's begin further on; no window is ever copied.

Numbers that are not finite would be multiplied by those zeros. A result that has any is computed by another function.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as combinations
from math import prod
from typing import Any

import numpy as np

from ..._tensor.dtype import as_dtype
from ...codegen.c.copies import strides_of
from ...codegen.llvm.product import Product
from ...ops.windows import Windows
from .callables import ALIGNED
from .operand_layout import Arrays
from .product_calls import GeneratedProducts
from .results import Results, lined_up
from .workspace import Spare


def is_gradient(x: Any, w: Any, windows: Windows, groups: int) -> bool:
    """True if a convolution has larger weights than its result has places."""
    is_dense = groups == 1 and all(spread == 1 for spread in windows.spread)
    return is_dense and prod(w.shape[2:]) > prod(windows.counts(x.shape[2:]))


class WeightGradient:
    """A convolution of arrays of certain shapes: `call(x, w)` gives the result."""

    def __init__(
        self, products: GeneratedProducts, results: Results, spare: Spare, x: Any, w: Any, windows: Windows,
        otherwise: Callable[[Any, Any], Any],
    ) -> None:  # fmt: skip
        """`otherwise` computes results that are not finite. Raises `CompileFailure`."""
        self._results, self._spare, self._otherwise = results, spare, otherwise
        counts, kernel = windows.counts(x.shape[2:]), w.shape[2:]
        self._plane = tuple(
            (count - 1) * stride + (size - 1) * dilation + 1
            for count, stride, size, dilation in zip(counts, windows.stride, kernel, windows.dilation, strict=True)
        )
        self._shape = (x.shape[0], w.shape[0], *counts)
        self._dtype = x.dtype
        steps = strides_of(self._plane)
        self._starts = [
            sum(n * stride * step for n, stride, step in zip(place, windows.stride, steps, strict=True))
            for place in combinations(*map(range, counts))
        ]
        self._read, self._written = zip(
            *[_overlap(low, size, length) for (low, _), size, length in
              zip(windows.padding, x.shape[2:], self._plane, strict=True)], strict=True,
        )  # fmt: skip
        self._spaced = tuple(
            slice(0, (size - 1) * dilation + 1, dilation)
            for size, dilation in zip(kernel, windows.dilation, strict=True)
        )
        self._images = x.shape[1]
        self._length = self._images * prod(self._plane) - self._starts[-1]
        """The numbers that are summed: as many as there are from the last start on."""
        image, weights = self._planes()
        arrays = Arrays(self._from(image, 0), self._from(weights, 0).T, (), (), (self._places()[0],))
        bound = products.bound(Product(as_dtype(x.dtype)), arrays, needs=ALIGNED, fallback=_refused)
        self._product, self._workspace = bound.call, bound.workspace

    def __call__(self, x: Any, w: Any) -> Any:
        """The convolution of arrays of the shapes that this was made for."""
        image, weights = self._planes()
        image[(slice(None), slice(None), *self._written)] = x[(slice(None), slice(None), *self._read)]
        weights[(slice(None), slice(None), *self._spaced)] = w
        right, places, workspace = self._from(weights, 0).T, self._places(), self._spare.take(self._workspace)
        for out, start in zip(places, self._starts, strict=True):
            self._product(self._from(image, start), right, out, workspace)
        self._spare.give_back(workspace)
        if not np.isfinite(places).all():
            return self._otherwise(x, w)
        made = self._results.any(self._shape, self._dtype)
        made.reshape(*self._shape[:2], -1)[...] = places.transpose(1, 2, 0)
        return made

    def _planes(self) -> list[Any]:
        """Planes of zeros for the input and for the weights."""
        return [np.zeros((count, self._images, *self._plane), self._dtype) for count in self._shape[:2]]

    def _from(self, planes: Any, start: int) -> Any:
        """Planes as a matrix, from a start on."""
        return planes.reshape(len(planes), -1)[:, start : start + self._length]

    def _places(self) -> Any:
        """Memory for a matrix of results for each place."""
        shape = len(self._starts), *self._shape[:2]
        return lined_up(prod(shape) * self._dtype.itemsize).view(self._dtype).reshape(shape)


def _overlap(low: int, size: int, length: int) -> tuple[slice, slice]:
    """The elements of a dimension that are read, and their places in a plane that begins `low` elements before it."""
    first, last = max(0, -low), min(size, length - low)
    return slice(first, max(first, last)), slice(first + low, max(first, last) + low)


def _refused(*arrays: Any) -> Any:
    raise AssertionError("the arrays are made here, and are aligned")
