"""Convolutions whose weights are larger than their result, as matrix products.

The gradient of a convolution by its weights is one: there are few places in its result, and each of them is a sum over
whole images. Both operands are copied into planes of one size, one image behind the other, with zeros between rows and
between images. A place of the result is then a product of the flattened planes, of which the input's begin earlier or
later; no window is ever copied. A dilation, which is the other convolution's stride, reads every second element, say:
each remainder has planes of its own.

Images are multiplied a few at a time, for all places, while they are in a cache.

Numbers that are not finite would be multiplied by those zeros. A result that has any is computed by another function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product as combinations
from math import prod
from typing import Any, Final

import numpy as np

from ..._tensor.dtype import as_dtype
from ...codegen.c.copies import strides_of
from ...codegen.llvm.product import Product
from ...ops.windows import Windows
from .column_products import MakesCopies
from .operand_layout import Arrays, layout_like
from .product_calls import GeneratedProducts
from .results import Results, lined_up
from .workspace import Spare

_CACHED: Final = 512 << 10
"""Bytes of both operands that are multiplied at a time: half of a second cache."""


def is_gradient(x: Any, w: Any, windows: Windows, groups: int) -> bool:
    """True if a convolution has larger weights than its result has places."""
    is_dense = groups == 1 and all(spread == 1 for spread in windows.spread)
    return is_dense and prod(w.shape[2:]) > prod(windows.counts(x.shape[2:]))


@dataclass(frozen=True, slots=True)
class _Length:
    """One dimension of the planes."""

    size: int
    """Elements of the input."""
    weights: int
    """Elements of the weights."""
    steps: tuple[int, ...]
    """The element of the input that the first weight of each place reads, counted from the first element."""
    apart: int
    """From the element that a weight reads to the one that the next weight reads."""

    @property
    def shifts(self) -> list[int]:
        """For each place, the element of its plane that the first weight reads."""
        return [step // self.apart for step in self.steps]

    @property
    def before(self) -> int:
        """Zeros that are read before the first element: they are those behind the line before."""
        return max(0, -min(self.shifts))

    @property
    def behind(self) -> int:
        """How much later than the weights a place begins, at most."""
        return max(0, *self.shifts)

    @property
    def whole(self) -> int:
        """The length of a plane: elements and weights fit in, with the zeros that are read around them."""
        return max(-(-self.size // self.apart) + self.before, self.weights + self.behind)

    def run(self, phase: int) -> list[int]:
        """The elements with a remainder, one behind the other."""
        return [-(-(self.size - phase) // self.apart), phase, self.apart, 0, 1] if phase < self.size else [0] * 5


class WeightGradient:
    """A convolution of arrays of certain shapes and strides: `call(x, w)` gives the result."""

    def __init__(
        self, products: GeneratedProducts, copies: MakesCopies, results: Results, spare: Spare, x: Any, w: Any,
        windows: Windows, otherwise: Callable[[Any, Any], Any],
    ) -> None:  # fmt: skip
        """`otherwise` computes results that are not finite. Raises `CompileFailure`."""
        self._results, self._spare, self._otherwise = results, spare, otherwise
        counts = windows.counts(x.shape[2:])
        lengths = [
            _Length(size, weights, tuple(n * stride - low for n in range(count)), dilation)
            for size, weights, count, stride, dilation, (low, _) in
            zip(x.shape[2:], w.shape[2:], counts, windows.stride, windows.dilation, windows.padding, strict=True)
        ]  # fmt: skip
        plane = tuple(length.whole for length in lengths)
        images = x.shape[1]
        self._shape, self._dtype = (x.shape[0], w.shape[0], *counts), x.dtype
        before, behind = (
            sum(n * stride for n, stride in zip(zeros, strides_of(plane), strict=True))
            for zeros in ([length.before for length in lengths], [length.behind for length in lengths])
        )
        self._sizes = [len(array) * images * prod(plane) for array in (x, w)]
        phases = list(combinations(*[range(length.apart) for length in lengths]))
        self._copies = [copies(x, plane, [n.run(p) for n, p in zip(lengths, phase, strict=True)]) for phase in phases]
        self._before, self._pitch = before, before + self._sizes[0] + behind
        """Zeros before the planes of a phase, and elements from one phase to the next."""
        self._copy_weights = copies(w, plane, [[length.weights, 0, 1, 0, 1] for length in lengths])
        starts = []
        for place in combinations(*map(range, counts)):
            steps = [length.steps[n] for n, length in zip(place, lengths, strict=True)]
            phase = phases.index(tuple(step % length.apart for step, length in zip(steps, lengths, strict=True)))
            shifts = [step // length.apart for step, length in zip(steps, lengths, strict=True)]
            shift = sum(n * stride for n, stride in zip(shifts, strides_of(plane), strict=True))
            starts.append(phase * self._pitch + before + shift)
        parts = _parts(images, prod(plane), self._shape[:2], len(starts), x.itemsize)
        depth, row = images // parts * prod(plane), images * prod(plane)
        self._sums = (parts, len(starts), *self._shape[:2])
        left = layout_like((parts, len(starts), len(x), depth), (depth, 0, row, 1), x.dtype)
        right = layout_like((parts, len(starts), depth, len(w)), (depth, 0, 1, row), x.dtype)
        sums = layout_like(self._sums, strides_of(self._sums), x.dtype)
        offsets = [(start * x.itemsize, 0) for _ in range(parts) for start in starts]
        arrays = Arrays(left, right, (), (), (sums,), offsets)
        bound = products.bound(Product(as_dtype(x.dtype)), arrays)
        self._product, self._workspace = bound.call, bound.workspace

    def __call__(self, x: Any, w: Any) -> Any:
        """The convolution of arrays of the shapes and strides that this was made for."""
        sizes = len(self._copies) * self._pitch, self._sizes[1]
        blocks = [self._spare.take(size * self._dtype.itemsize) for size in sizes]
        planes, weights = (b.view(self._dtype)[:size] for b, size in zip(blocks, sizes, strict=True))
        before, size, pitch = self._before, self._sizes[0], self._pitch
        for number, copy in enumerate(self._copies):
            phase = planes[number * pitch : (number + 1) * pitch]
            phase[:before] = phase[before + size :] = 0
            copy(x, phase[before : before + size])
        self._copy_weights(w, weights)
        blocks.append(self._spare.take(self._workspace))
        sums = lined_up(prod(self._sums) * self._dtype.itemsize).view(self._dtype).reshape(self._sums)
        self._product(planes, weights, sums, blocks[-1])
        for block in blocks:
            self._spare.give_back(block)
        places = sums[0] if len(sums) == 1 else sums.sum(axis=0)
        if not np.isfinite(places).all():
            return self._otherwise(x, w)
        made = self._results.any(self._shape, self._dtype)
        flat = made.reshape(*self._shape[:2], -1)
        for number, place in enumerate(places):
            flat[:, :, number] = place
        return made


def _parts(images: int, plane: int, rows: tuple[int, int], places: int, itemsize: int) -> int:
    """How many groups of images are multiplied one after the other: those of a group fit into a cache, but all sums
    together take no more memory than the operands."""
    operands, sums = sum(rows) * images * plane, places * prod(rows)
    fewest = -(-operands * itemsize // _CACHED)
    even = [n for n in range(1, images + 1) if images % n == 0 and (n == 1 or n * sums <= operands)]
    return next((n for n in even if n >= fewest), even[-1])
