"""Convolutions by kernels of one place, as products of matrices: all channels of a place at once.

A window is an element, so the planes of an image are the right operand as they lie, and the result is in its order.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..._tensor.dtype import as_dtype
from ...codegen.llvm.product import Product
from ...ops.windows import Windows
from .operand_layout import Arrays, layout_like
from .product_calls import GeneratedProducts
from .results import Results
from .workspace import Spare


def is_pointwise(x: Any, windows: Windows, groups: int) -> bool:
    """True if every window is an element, and planes lie in one piece."""
    ones = (1,) * len(windows.kernel)
    is_one = groups == 1 and all(of == ones for of in (windows.kernel, windows.stride, windows.spread))
    return is_one and not any(map(any, windows.padding)) and x[0, 0].flags.c_contiguous


class PointConvolution:
    """A convolution of arrays of certain shapes and strides: `call(x, w)` gives the result."""

    def __init__(self, products: GeneratedProducts, results: Results, spare: Spare, x: Any, w: Any) -> None:
        """Raises `CompileFailure`."""
        self._results, self._spare = results, spare
        self._shape, self._dtype = (x.shape[0], w.shape[0], *x.shape[2:]), x.dtype
        left, right = _matrices(x, w)
        size = prod(x.shape[2:])
        out = layout_like((x.shape[0], w.shape[0], size), (w.shape[0] * size, size, 1), x.dtype)
        bound = products.bound(Product(as_dtype(x.dtype)), Arrays(left, right, (), (), (out,)))
        self._product, self._workspace = bound.call, bound.workspace

    def __call__(self, x: Any, w: Any) -> Any:
        """The convolution of arrays of the shapes and strides that this was made for."""
        work = self._spare.take(self._workspace)
        out = self._results.any(self._shape, self._dtype)
        self._product(*_matrices(x, w), out, work)
        self._spare.give_back(work)
        return out


def _matrices(x: Any, w: Any) -> tuple[Any, Any]:
    """The weights, outputs by channels, and for each image channels by places."""
    return w.reshape(w.shape[:2]), x.reshape(*x.shape[:2], -1)
