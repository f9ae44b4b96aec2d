"""Tensors of a pattern by NumPy's names: ranges on other scales, and tensors made by functions and iterators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from .._tensor.dtype import as_dtype
from .._tensor.op import from_array
from .._tensor.tensor import Tensor
from ..errors import ArgumentError
from . import rules
from .creation import asarray, eye, linspace, ones
from .elementwise import exp, log, pow, where
from .joins import indices
from .reduce import cumulative_prod, cumulative_sum
from .shape import reshape
from .sort import nonzero


@rules.named
def identity(n: int, /, dtype: Any = None) -> Tensor:
    """The matrix of n rows and columns with ones on its diagonal.

    >>> import yosegi as ys
    >>> ys.identity(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return eye(n, dtype=dtype)


@rules.named
def logspace(
    start: float, stop: float, /, num: int = 50, endpoint: bool = True, base: float = 10.0, dtype: Any = None
) -> Tensor:
    """Numbers from base**start to base**stop whose logarithms are evenly spaced.

    >>> import yosegi as ys
    >>> ys.logspace(0, 2, 3).tolist()
    [1.0, 10.0, 100.0]
    """
    made = pow(rules.plain_float(base, "base"), linspace(start, stop, num, endpoint=endpoint))
    return made if dtype is None else made.astype(dtype)


@rules.named
def geomspace(start: float, stop: float, /, num: int = 50, endpoint: bool = True, dtype: Any = None) -> Tensor:
    """Numbers from start to stop, each a constant multiple of the one before.

    >>> import yosegi as ys
    >>> [round(v, 6) for v in ys.geomspace(1, 8, 4).tolist()]
    [1.0, 2.0, 4.0, 8.0]
    """
    first, last = rules.plain_float(start, "start"), rules.plain_float(stop, "stop")
    if first * last <= 0:
        raise ArgumentError(f"expected start and stop of one sign, neither 0, got {start} and {stop}")
    side = 1.0 if first > 0 else -1.0
    steps = linspace(0.0, 1.0, num, endpoint=endpoint)
    low, high = asarray(first * side), asarray(last * side)
    inside = exp(log(low) + steps * (log(high) - log(low)))
    exact = where(steps == 0, low, where(steps == 1, high, inside)) * side
    return exact if dtype is None else exact.astype(dtype)


@rules.named
def fromfunction(function: Callable[..., Any], lengths: Sequence[int], /, *, dtype: Any = float, **kwargs: Any) -> Any:
    """The function of the indices along each dimension, called once with tensors of all of them.

    >>> import yosegi as ys
    >>> ys.fromfunction(lambda i, j: i * 10 + j, (2, 2), dtype=int).tolist()
    [[0, 1], [10, 11]]
    """
    grid = indices(lengths, dtype=as_dtype(dtype))
    return function(*[grid[n] for n in range(grid.shape[0])], **kwargs)


@rules.named
def fromiter(numbers: Iterable[Any], /, dtype: Any, count: int = -1) -> Tensor:
    """A vector of the numbers of an iterable, of the first `count` if that is not negative.

    >>> import yosegi as ys
    >>> ys.fromiter((n * n for n in range(4)), int).tolist()
    [0, 1, 4, 9]
    """
    taken = list(islice(iter(numbers), count if count >= 0 else None))
    if len(taken) < count:
        raise ArgumentError(f"expected {count} numbers, got {len(taken)}")
    return asarray(taken, dtype) if taken else from_array(np.zeros((0,), as_dtype(dtype).numpy))


@rules.named
def frombuffer(buffer: Any, /, dtype: Any = float, count: int = -1, offset: int = 0) -> Tensor:
    """A vector of the numbers whose bytes a buffer holds.

    - `count`: how many numbers; all by default.
    - `offset`: the bytes before the first.

    >>> import yosegi as ys
    >>> ys.frombuffer(bytes([1, 0, 2, 0]), ys.int16).tolist()
    [1, 2]
    """
    return asarray(np.frombuffer(buffer, as_dtype(dtype).numpy, count, offset))


@rules.named
def mask_indices(n: int, mask: Callable[..., Any], /, k: int = 0) -> tuple[Tensor, ...]:
    """The rows and columns of the elements that a mask function, such as `triu`, keeps of a matrix of n rows.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.mask_indices(2, ys.triu, 1)]
    [[0], [1]]
    """
    return nonzero(mask(ones((n, n), "int64"), k))


# Running totals by NumPy's names


@rules.on_tensor
def cumsum(x: Tensor, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running sum along an axis (of the flattened tensor by default).

    >>> import yosegi as ys
    >>> ys.cumsum(ys.asarray([[1, 2], [3, 4]])).tolist()
    [1, 3, 6, 10]
    """
    return cumulative_sum(reshape(x, (-1,)) if axis is None else x, axis=0 if axis is None else axis, dtype=dtype)


@rules.on_tensor
def cumprod(x: Tensor, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running product along an axis (of the flattened tensor by default).

    >>> import yosegi as ys
    >>> ys.cumprod(ys.asarray([[1, 2], [3, 4]]), axis=1).tolist()
    [[1, 2], [3, 12]]
    """
    return cumulative_prod(reshape(x, (-1,)) if axis is None else x, axis=0 if axis is None else axis, dtype=dtype)


__all__ = [
    "cumprod", "cumsum", "frombuffer", "fromfunction", "fromiter", "geomspace", "identity", "logspace", "mask_indices",
]  # fmt: skip
