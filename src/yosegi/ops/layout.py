"""Where elements stand: axes in another order, turns, diagonals, triangles and padding, by NumPy's names."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .._tensor.op import from_array
from .._tensor.tensor import Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import arange, asarray, ones, zeros
from .elementwise import greater_equal, where
from .index import gather
from .products import diagonal as last_diagonal
from .products import on_diagonal
from .reduce import sum
from .shape import broadcast_to, concat, flip, moveaxis, permute_dims, reshape

# The tensor itself


@rules.named
def array(obj: Any, /, dtype: Any = None, *, copy: bool | None = None, ndmin: int = 0) -> Tensor:
    """A tensor from numbers, nested lists, arrays or tensors, as `asarray` makes it.

    - `ndmin`: the least number of dimensions; new ones are in front.

    >>> import yosegi as ys
    >>> ys.array([1, 2], ys.float32, ndmin=2)
    Tensor([[1., 2.]], dtype=float32, device=cpu)
    """
    made = asarray(obj, dtype, copy=copy)
    return reshape(made, (1,) * (ndmin - made.ndim) + made.shape) if made.ndim < ndmin else made


@rules.on_tensor
def copy(x: Tensor, /) -> Tensor:
    """A tensor of the same value; tensors are values, so nothing is copied.

    >>> import yosegi as ys
    >>> ys.copy(ys.asarray([1, 2])).tolist()
    [1, 2]
    """
    return x.copy()


@rules.on_tensor
def shape(x: Tensor, /) -> tuple[int, ...]:
    """The length of each dimension.

    >>> import yosegi as ys
    >>> ys.shape(ys.zeros((2, 3)))
    (2, 3)
    """
    return x.shape


@rules.on_tensor
def ndim(x: Tensor, /) -> int:
    """How many dimensions.

    >>> import yosegi as ys
    >>> ys.ndim(ys.zeros((2, 3)))
    2
    """
    return x.ndim


@rules.on_tensor
def size(x: Tensor, /, axis: int | None = None) -> int:
    """How many elements, in all or along an axis.

    >>> import yosegi as ys
    >>> ys.size(ys.zeros((2, 3))), ys.size(ys.zeros((2, 3)), 1)
    (6, 3)
    """
    return x.size if axis is None else x.shape[rules.normal_axis(axis, x.ndim)]


@rules.on_tensor
def ravel(x: Tensor, /) -> Tensor:
    """The elements in one dimension, in row-major order.

    >>> import yosegi as ys
    >>> ys.ravel(ys.asarray([[1, 2], [3, 4]])).tolist()
    [1, 2, 3, 4]
    """
    return reshape(x, (-1,))


# Axes


@rules.on_tensor
def transpose(x: Tensor, /, axes: Any = None) -> Tensor:
    """The dimensions in reverse order, or in the order of `axes`.

    >>> import yosegi as ys
    >>> ys.transpose(ys.zeros((2, 3, 4))).shape, ys.transpose(ys.zeros((2, 3, 4)), (1, 0, 2)).shape
    ((4, 3, 2), (3, 2, 4))
    """
    return permute_dims(x, tuple(range(x.ndim))[::-1] if axes is None else tuple(axes))


@rules.on_tensor
def swapaxes(x: Tensor, axis1: int, axis2: int, /) -> Tensor:
    """Two dimensions in each other's place.

    >>> import yosegi as ys
    >>> ys.swapaxes(ys.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    order = list(range(x.ndim))
    first, second = rules.normal_axis(axis1, x.ndim), rules.normal_axis(axis2, x.ndim)
    order[first], order[second] = second, first
    return permute_dims(x, tuple(order))


@rules.on_tensor
def rollaxis(x: Tensor, axis: int, /, start: int = 0) -> Tensor:
    """One dimension moved to stand before another; `moveaxis` says where it goes more plainly.

    >>> import yosegi as ys
    >>> ys.rollaxis(ys.zeros((2, 3, 4)), 2).shape
    (4, 2, 3)
    """
    axis = rules.normal_axis(axis, x.ndim)
    start = start + x.ndim if start < 0 else start
    if not 0 <= start <= x.ndim:
        raise ArgumentError(f"expected start from {-x.ndim} to {x.ndim}, got {start}")
    return moveaxis(x, axis, start - 1 if axis < start else start)


@rules.on_tensor
def fliplr(x: Tensor, /) -> Tensor:
    """The elements in reverse order along the second axis.

    >>> import yosegi as ys
    >>> ys.fliplr(ys.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 1], [4, 3]]
    """
    return flip(x, axis=1)


@rules.on_tensor
def flipud(x: Tensor, /) -> Tensor:
    """The elements in reverse order along the first axis.

    >>> import yosegi as ys
    >>> ys.flipud(ys.asarray([[1, 2], [3, 4]])).tolist()
    [[3, 4], [1, 2]]
    """
    return flip(x, axis=0)


@rules.on_tensor
def rot90(x: Tensor, /, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Tensor:
    """The plane of two axes rotated by k quarters, from the first axis towards the second.

    >>> import yosegi as ys
    >>> ys.rot90(ys.asarray([[1, 2], [3, 4]])).tolist()
    [[2, 4], [1, 3]]
    """
    plane = rules.normal_axes(tuple(axes), x.ndim)
    if len(plane) != 2:
        raise ArgumentError(f"expected two axes, got {axes}")
    first, second = plane
    turns = rules.as_index(k, "k") % 4
    if turns == 0:
        return x
    if turns == 2:
        return flip(x, axis=(first, second))
    if turns == 1:
        return swapaxes(flip(x, axis=second), first, second)
    return flip(swapaxes(x, first, second), axis=second)


# Diagonals and triangles


@rules.on_tensor
def diagonal(x: Tensor, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """The diagonal of the planes of two axes, along a new last axis; `linalg.diagonal` has the last two axes.

    >>> import yosegi as ys
    >>> ys.diagonal(ys.asarray([[1, 2], [3, 4]]), 1).tolist()
    [2]
    """
    return last_diagonal(moveaxis(x, (axis1, axis2), (-2, -1)), offset=offset)


@rules.on_tensor
def trace(x: Tensor, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    """The sum of the diagonal of the planes of two axes; `linalg.trace` has the last two axes.

    >>> import yosegi as ys
    >>> ys.trace(ys.asarray([[1, 2], [3, 4]])).tolist()
    5
    """
    return sum(diagonal(x, offset, axis1, axis2), axis=-1, dtype=dtype)


@rules.on_tensor
def diag(x: Tensor, /, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix, or the matrix with a vector on its k-th diagonal.

    >>> import yosegi as ys
    >>> ys.diag(ys.asarray([1, 2])).tolist(), ys.diag(ys.asarray([[1, 2], [3, 4]])).tolist()
    ([[1, 0], [0, 2]], [1, 4])
    """
    if x.ndim not in (1, 2):
        raise ShapeError(f"expected a vector or a matrix, got shape {x.shape}; use diagonal or diagflat")
    return last_diagonal(x, offset=k) if x.ndim == 2 else diagflat(x, k)


@rules.on_tensor
def diagflat(x: Tensor, /, k: int = 0) -> Tensor:
    """The matrix with the flattened elements on its k-th diagonal.

    >>> import yosegi as ys
    >>> ys.diagflat(ys.asarray([[1, 2]]), 1).tolist()
    [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
    """
    offset = rules.as_index(k, "k")
    n = x.size + (offset if offset >= 0 else -offset)
    return on_diagonal(reshape(x, (-1,)), shape=(n, n), offset=offset)


@rules.named
def tri(n_rows: int, n_cols: int | None = None, /, k: int = 0, dtype: Any = None) -> Tensor:
    """A matrix of ones on and below the k-th diagonal, and zeros above.

    >>> import yosegi as ys
    >>> ys.tri(2, 3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    rows, cols = rules.normal_shape((n_rows, n_rows if n_cols is None else n_cols))
    below = greater_equal(reshape(arange(rows), (rows, 1)) + rules.as_index(k, "k"), arange(cols))
    return where(below, ones((), dtype), zeros((), dtype))


def _places(found: Any) -> tuple[Tensor, ...]:
    return tuple(from_array(np.asarray(places)) for places in found)


@rules.named
def tril_indices(n: int, /, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """The rows and columns of the elements on and below the k-th diagonal of a matrix of n rows and m columns.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    rows, columns = _places(np.tril_indices(n, k, m))
    return rows, columns


@rules.named
def triu_indices(n: int, /, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """The rows and columns of the elements on and above the k-th diagonal of a matrix of n rows and m columns.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    rows, columns = _places(np.triu_indices(n, k, m))
    return rows, columns


@rules.on_tensor
def tril_indices_from(x: Tensor, /, k: int = 0) -> tuple[Tensor, Tensor]:
    """`tril_indices` of a matrix of the shape of `x`.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.tril_indices_from(ys.zeros((1, 2)))]
    [[0], [0]]
    """
    rows, columns = _matrix(x).shape
    return tril_indices(rows, k, columns)


@rules.on_tensor
def triu_indices_from(x: Tensor, /, k: int = 0) -> tuple[Tensor, Tensor]:
    """`triu_indices` of a matrix of the shape of `x`.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.triu_indices_from(ys.zeros((1, 2)))]
    [[0, 0], [0, 1]]
    """
    rows, columns = _matrix(x).shape
    return triu_indices(rows, k, columns)


def _matrix(x: Tensor) -> Tensor:
    if x.ndim != 2:
        raise ShapeError(f"expected a matrix, got shape {x.shape}")
    return x


@rules.named
def diag_indices(n: int, /, ndim: int = 2) -> tuple[Tensor, ...]:
    """The indices of the main diagonal of a tensor of `ndim` dimensions of length n.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.diag_indices(2)]
    [[0, 1], [0, 1]]
    """
    return (arange(n),) * ndim


@rules.on_tensor
def diag_indices_from(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the main diagonal of a tensor of equal lengths.

    >>> import yosegi as ys
    >>> len(ys.diag_indices_from(ys.zeros((3, 3))))
    2
    """
    if x.ndim < 2 or len(set(x.shape)) != 1:
        raise ShapeError(f"expected at least two dimensions of one length, got shape {x.shape}")
    return diag_indices(x.shape[0], x.ndim)


@rules.named
def ix_(*vectors: Tensor) -> tuple[Tensor, ...]:
    """Vectors of indices shaped to select the grid that they span: `x[ys.ix_(rows, columns)]`.

    >>> import yosegi as ys
    >>> [part.shape for part in ys.ix_(ys.asarray([0, 2]), ys.asarray([1]))]
    [(2, 1), (1, 1)]
    """
    parts = [asarray(v) for v in vectors]
    for part in parts:
        if part.ndim != 1:
            raise ShapeError(f"expected vectors, got shape {part.shape}")
    return tuple(reshape(p, (1,) * i + (-1,) + (1,) * (len(parts) - i - 1)) for i, p in enumerate(parts))


# Padding

PAD_MODES: Final = ("constant", "edge", "reflect", "symmetric", "wrap", "empty")


@rules.on_tensor
def pad(x: Tensor, pad_width: Any, /, mode: str = "constant", *, constant_values: Any = 0) -> Tensor:
    """The tensor with elements put before and behind along each dimension.

    - `pad_width`: how many; one number, a pair (before, behind), or one pair for each dimension.
    - `mode`: "constant" for a value; "edge" for the outermost element; "reflect" and "symmetric" for the elements read
      backwards, without and with the outermost; "wrap" for those of the other end; "empty" for any (zeros).
    - `constant_values`: the value, a pair of values, or one pair for each dimension, under mode "constant".

    >>> import yosegi as ys
    >>> ys.pad(ys.asarray([1, 2, 3]), (2, 1), "reflect").tolist()
    [3, 2, 1, 2, 3, 2]
    >>> ys.pad(ys.asarray([[1]]), ((0, 1), (1, 0)), constant_values=9).tolist()
    [[9, 1], [9, 9]]
    """
    rules.one_of("mode", mode, PAD_MODES)
    widths = _per_side(pad_width, x.ndim, lambda n: rules.as_index(n, "a width"))
    values = _per_side(constant_values, x.ndim, lambda v: v)
    if any(n < 0 for pair in widths for n in pair):
        raise ArgumentError(f"expected widths of at least 0, got {pad_width}")
    for axis, (before, behind) in enumerate(widths):
        if not before and not behind:
            continue
        if mode in ("constant", "empty"):
            x = _with_constants(x, axis, (before, behind), values[axis])
        else:
            if not x.shape[axis]:
                raise ShapeError(f"expected elements along dimension {axis} to pad with, got shape {x.shape}")
            x = gather(x, from_array(_sources(x.shape[axis], before, behind, mode)), axes=(axis,), at=axis, of="pad")
    return x


def _per_side(given: Any, ndim: int, number: Any) -> list[tuple[Any, Any]]:
    """One value, a pair, or a pair for each dimension, as a pair for each dimension."""
    given = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(given, (tuple, list)):
        return [(number(given),) * 2] * ndim
    if not any(isinstance(g, (tuple, list)) for g in given):
        if len(given) > 2 or not given:
            raise ArgumentError(f"expected one number, a pair, or a pair for each dimension, got {given}")
        return [(number(given[0]), number(given[-1]))] * ndim
    pairs = [tuple(g) if isinstance(g, (tuple, list)) else (g,) for g in given]
    pairs = pairs * ndim if len(pairs) == 1 else pairs
    if len(pairs) != ndim or not all(1 <= len(p) <= 2 for p in pairs):
        raise ArgumentError(f"expected a pair for each of {ndim} dimensions, got {given}")
    return [(number(p[0]), number(p[-1])) for p in pairs]


def _with_constants(x: Tensor, axis: int, widths: tuple[int, int], values: tuple[Any, Any]) -> Tensor:
    def side(count: int, value: Any) -> list[Tensor]:
        lengths = tuple(count if i == axis else n for i, n in enumerate(x.shape))
        return [broadcast_to(asarray(value).astype(x.dtype), lengths)] if count else []

    return concat([*side(widths[0], values[0]), x, *side(widths[1], values[1])], axis=axis)


def _sources(length: int, before: int, behind: int, mode: str) -> np.ndarray[Any, Any]:
    """For each place of a padded dimension, the element that stands there."""
    places = np.arange(-before, length + behind)
    if mode == "edge":
        return np.clip(places, 0, length - 1)
    if mode == "wrap":
        return places % length
    if mode == "symmetric":
        phase = places % (2 * length)
        return np.where(phase < length, phase, 2 * length - 1 - phase)
    period = max(1, 2 * (length - 1))
    phase = places % period
    return np.where(phase < length, phase, period - phase)


__all__ = [
    "array", "copy", "diag", "diag_indices", "diag_indices_from", "diagflat", "diagonal", "fliplr",
    "flipud", "ix_", "ndim", "pad", "ravel", "rollaxis", "rot90", "shape", "size", "swapaxes", "trace", "transpose",
    "tri", "tril_indices", "tril_indices_from", "triu_indices", "triu_indices_from",
]  # fmt: skip
