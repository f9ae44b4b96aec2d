"""Counts, bins and histograms by NumPy's names."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._tensor.dtype import bool_, int64
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import arange, asarray, linspace, zeros
from .decompositions import floating
from .elementwise import less, logical_and, where
from .index import scatter_add
from .reduce import max, min, sum
from .shape import broadcast_to, concat, reshape
from .sort import searchsorted


@rules.on_tensor
def bincount(x: Tensor, /, weights: Tensor | None = None, minlength: int = 0, *, length: int | None = None) -> Tensor:
    """How often each integer from 0 on occurs in a vector, or the sum of its weights.

    - `minlength`: the least length of the result.
    - `length`: the length of the result, if the values are not to be asked for it; integers outside are not counted.
      Without it the values are needed at once, which a traced function cannot do.

    >>> import yosegi as ys
    >>> ys.bincount(ys.asarray([0, 2, 2])).tolist(), ys.bincount(ys.asarray([0, 2, 2]), length=2).tolist()
    ([1, 0, 2], [1, 0])
    """
    if x.ndim != 1:
        raise ShapeError(f"expected a vector, got shape {x.shape}; flatten it first")
    rules.expect(x.dtype, "an integer or bool dtype", lambda d: d.is_integer or d is bool_)
    places = x.astype(int64)
    ones = broadcast_to(asarray(1, dtype=int64), x.shape) if weights is None else floating(asarray(weights))
    if ones.shape != x.shape:
        raise ShapeError(f"expected weights of shape {x.shape}, got {ones.shape}")
    if length is not None:
        return _counted(places, ones, rules.as_index(length, "length"))
    values: Any = places.numpy()
    if values.size and values.min() < 0:
        raise ArgumentError(f"expected integers of at least 0, got {values.min()}")
    top = int(values.max()) + 1 if values.size else 0
    return _counted(places, ones, top if top > minlength else rules.as_index(minlength, "minlength"))


def _counted(places: Tensor, weights: Tensor, length: int) -> Tensor:
    """The sum of the weights at each place below `length`; what lies outside goes to a place that is cut off."""
    inside = logical_and(places >= 0, places < length)
    into = zeros((length + 1,), weights.dtype)
    return scatter_add(into, weights, where(inside, places, length), axes=(0,), at=0, of="bincount")[:length]


@rules.on_tensor
def digitize(x: Tensor, bins: Tensor, /, right: bool = False) -> Tensor:
    """The number of the bin that each element falls into: of ascending or descending bounds, 0 is before the first.

    - `right`: a bin holds its upper bound, not its lower one.

    >>> import yosegi as ys
    >>> ys.digitize(ys.asarray([0.5, 1.0, 3.0]), ys.asarray([0.0, 1.0, 2.0])).tolist()
    [1, 2, 3]
    """
    bounds = asarray(bins)
    if bounds.ndim != 1:
        raise ShapeError(f"expected a vector of bounds, got shape {bounds.shape}")
    if not bounds.shape[0]:
        return zeros(x.shape, int64)
    rising = searchsorted(bounds, x, side="left" if right else "right")
    falling = bounds.shape[0] - searchsorted(bounds[::-1], x, side="left" if right else "right")
    return where(less(bounds[-1], bounds[0]), falling, rising)


@rules.on_tensor
def histogram_bin_edges(x: Tensor, /, bins: Any = 10, range: tuple[float, float] | None = None) -> Tensor:
    """The bounds of the bins that `histogram` would use.

    - `bins`: how many equal bins, or the bounds themselves.
    - `range`: the outermost bounds; by default the smallest and the largest element.

    >>> import yosegi as ys
    >>> ys.histogram_bin_edges(ys.asarray([0.0, 4.0]), 2).tolist()
    [0.0, 2.0, 4.0]
    """
    if not isinstance(bins, (int, np.integer)):
        if isinstance(bins, str):
            raise ArgumentError(f"expected a number of bins or their bounds, got {bins!r}")
        edges = asarray(bins)
        if edges.ndim != 1:
            raise ShapeError(f"expected a vector of bounds, got shape {edges.shape}")
        return edges
    count = rules.as_index(bins, "bins")
    if count < 1:
        raise ArgumentError(f"expected at least one bin, got {count}")
    if range is not None:
        low, high = (rules.plain_float(r, "range") for r in range)
        if low > high:
            raise ArgumentError(f"expected a range that ascends, got {range}")
        low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
        return linspace(low, high, count + 1)
    x = floating(x)
    if not x.size:
        return linspace(0.0, 1.0, count + 1, dtype=x.dtype)
    least, most = min(x), max(x)
    flat = least == most
    least, most = where(flat, least - 0.5, least), where(flat, most + 0.5, most)
    steps = arange(count + 1).astype(x.dtype)
    return where(arange(count + 1) == count, most, least + steps * ((most - least) / count))


@rules.on_tensor
def histogram(
    x: Tensor,
    /,
    bins: Any = 10,
    range: tuple[float, float] | None = None,
    density: bool = False,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """How many elements fall into each bin, and the bounds of the bins. The last bin holds its upper bound too.

    - `bins`, `range`: those of `histogram_bin_edges`.
    - `density`: scale the counts so that their integral is 1.
    - `weights`: how much each element counts.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.histogram(ys.asarray([0.0, 1.0, 1.5, 4.0]), 2, (0, 4))]
    [[3, 1], [0.0, 2.0, 4.0]]
    """
    edges = histogram_bin_edges(x, bins, range)
    flat = reshape(x, (-1,))
    amounts = None if weights is None else reshape(asarray(weights), (-1,))
    counts = _histogram([flat], [edges], amounts)
    if density:
        counts = counts / (edges[1:] - edges[:-1]) / sum(counts)
    return counts, edges


def _histogram(columns: Sequence[Tensor], edges: Sequence[Tensor], weights: Tensor | None) -> Tensor:
    """Counts over the bins of several dimensions, whose places are found by search."""
    shape = tuple(e.shape[0] - 1 for e in edges)
    place: Any = 0
    inside: Any = None
    total = 1
    for column, bounds, n in zip(columns, edges, shape, strict=True):
        found = searchsorted(bounds, column, side="right") - 1
        found = where(column == bounds[-1], n - 1, found)
        here = logical_and(found >= 0, found < n)
        inside = here if inside is None else logical_and(inside, here)
        place = place * n + found
        total *= n
    amounts = broadcast_to(asarray(1, dtype=int64), columns[0].shape) if weights is None else weights
    return reshape(_counted(where(inside, place, -1), amounts, total), shape)


@rules.on_tensor
def histogramdd(
    sample: Tensor, /, bins: Any = 10, range: Any = None, density: bool = False, weights: Tensor | None = None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """`histogram` of points in several dimensions: the counts, and the bounds along each dimension.

    - `sample`: a point in each row.
    - `bins`, `range`: one for all dimensions, or one for each.

    >>> import yosegi as ys
    >>> ys.histogramdd(ys.asarray([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]), 2)[0].tolist()
    [[1, 0], [1, 1]]
    """
    if sample.ndim != 2:
        raise ShapeError(f"expected points in the rows of a matrix, got shape {sample.shape}")
    columns = [sample[:, d] for d in builtins.range(sample.shape[1])]
    each = bins if isinstance(bins, (list, tuple)) else [bins] * len(columns)
    spans = [None] * len(columns) if range is None else range
    edges = [histogram_bin_edges(c, b, r) for c, b, r in zip(columns, each, spans, strict=True)]
    counts = _histogram(columns, edges, None if weights is None else asarray(weights))
    if density:
        counts = counts / sum(counts)
        for d, bounds in enumerate(edges):
            widths = bounds[1:] - bounds[:-1]
            counts = counts / reshape(widths, (-1,) + (1,) * (len(edges) - d - 1))
    return counts, tuple(edges)


@rules.on_tensor
def histogram2d(
    x: Tensor, y: Tensor, /, bins: Any = 10, range: Any = None, density: bool = False, weights: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`histogram` of points in the plane: the counts, and the bounds along x and along y.

    >>> import yosegi as ys
    >>> ys.histogram2d(ys.asarray([0.0, 1.0]), ys.asarray([0.0, 1.0]), 2)[0].tolist()
    [[1, 0], [0, 1]]
    """
    points = concat([reshape(x, (-1, 1)), reshape(asarray(y), (-1, 1))], axis=1)
    counts, (first, second) = histogramdd(points, bins, range, density, weights)
    return counts, first, second


__all__ = [
    "bincount", "digitize", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd",
]  # fmt: skip
