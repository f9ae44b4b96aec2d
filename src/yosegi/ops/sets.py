"""Sets of elements, and bits packed into bytes, by NumPy's names. Sets are evaluated at once: their size depends on
values."""

from __future__ import annotations

from typing import Any

from .._tensor.dtype import bool_, int64
from .._tensor.tensor import Tensor
from . import rules
from .choosing import compress
from .creation import asarray, zeros
from .elementwise import isnan, logical_not, minimum, not_equal
from .shape import concat, expand_dims, reshape
from .sort import isin, unique_all


@rules.on_tensor
def unique(
    x: Tensor,
    /,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    *,
    equal_nan: bool = True,
) -> Any:
    """The unique elements in ascending order; with them, on request, the index of each one's first occurrence, the
    indices that restore the tensor, and how often each occurs.

    - `equal_nan`: all NaN are one element; the standard's `unique_values` keeps each of them.

    >>> import yosegi as ys
    >>> ys.unique(ys.asarray([3, 1, 3])).tolist()
    [1, 3]
    """
    found = unique_all(x)
    parts: tuple[Tensor, ...] = tuple(found)
    unknown = int(isnan(found.values).astype(int64).sum()) if equal_nan and x.dtype.is_inexact else 0
    if unknown > 1:  # they are the last
        last = found.values.shape[0] - unknown
        counts = concat([found.counts[:last], asarray([unknown])])
        parts = (found.values[: last + 1], found.indices[: last + 1], minimum(found.inverse_indices, last), counts)
    wanted = (True, return_index, return_inverse, return_counts)
    made = tuple(part for part, is_wanted in zip(parts, wanted, strict=True) if is_wanted)
    return made[0] if len(made) == 1 else made


def _unique(x: Any) -> Tensor:
    found: Tensor = unique(reshape(asarray(x), (-1,)))
    return found


@rules.named
def union1d(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The elements of either tensor, each once, in ascending order.

    >>> import yosegi as ys
    >>> ys.union1d(ys.asarray([3, 1]), ys.asarray([1, 2])).tolist()
    [1, 2, 3]
    """
    return _unique(concat([asarray(x1), asarray(x2)], axis=None))


@rules.named
def intersect1d(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The elements of both tensors, each once, in ascending order.

    >>> import yosegi as ys
    >>> ys.intersect1d(ys.asarray([3, 1]), ys.asarray([1, 2])).tolist()
    [1]
    """
    first, second = _unique(x1), _unique(x2)
    return compress(isin(first, second), first)


@rules.named
def setdiff1d(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The elements of the first tensor that are not in the second, each once, in ascending order.

    >>> import yosegi as ys
    >>> ys.setdiff1d(ys.asarray([3, 1]), ys.asarray([1, 2])).tolist()
    [3]
    """
    first, second = _unique(x1), _unique(x2)
    return compress(logical_not(isin(first, second)), first)


@rules.named
def setxor1d(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The elements of exactly one of the tensors, each once, in ascending order.

    >>> import yosegi as ys
    >>> ys.setxor1d(ys.asarray([3, 1]), ys.asarray([1, 2])).tolist()
    [2, 3]
    """
    return _unique(concat([setdiff1d(x1, x2), setdiff1d(x2, x1)]))


# Bits


@rules.on_tensor
def packbits(x: Tensor, /, axis: int | None = None, bitorder: str = "big") -> Tensor:
    """Eight elements as the bits of a byte each, 1 for those that are not zero, along an axis (flattened by default).

    >>> import yosegi as ys
    >>> ys.packbits(ys.asarray([1, 0, 1])).tolist()
    [160]
    """
    rules.one_of("bitorder", bitorder, ("big", "little"))
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = rules.normal_axis(axis, x.ndim)
    bits = (x if x.dtype is bool_ else not_equal(x, 0)).astype("uint8")
    short = -bits.shape[axis] % 8
    if short:
        lengths = tuple(short if i == axis else n for i, n in enumerate(bits.shape))
        bits = concat([bits, zeros(lengths, "uint8")], axis=axis)
    grouped = reshape(bits, (*bits.shape[:axis], -1, 8, *bits.shape[axis + 1 :]))
    made = zeros((), "uint8")
    for n in range(8):
        bit = grouped[(slice(None),) * (axis + 1) + (n,)]
        made = made | (bit << (7 - n if bitorder == "big" else n))
    return made


@rules.on_tensor
def unpackbits(x: Tensor, /, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Tensor:
    """The bits of bytes along an axis (flattened by default): the inverse of `packbits`.

    - `count`: how many bits to keep; negative: how many to leave off at the end.

    >>> import yosegi as ys
    >>> ys.unpackbits(ys.asarray([160], ys.uint8), count=3).tolist()
    [1, 0, 1]
    """
    rules.one_of("bitorder", bitorder, ("big", "little"))
    rules.expect(x.dtype, "uint8", lambda d: d.name == "uint8")
    if axis is None:
        x, axis = reshape(x, (-1,)), 0
    axis = rules.normal_axis(axis, x.ndim)
    shifts = asarray(list(range(8))[:: -1 if bitorder == "big" else 1], "uint8")
    wide = expand_dims(x, axis + 1) >> reshape(shifts, (8,) + (1,) * (x.ndim - axis - 1)) & 1
    bits = reshape(wide, (*x.shape[:axis], x.shape[axis] * 8, *x.shape[axis + 1 :]))
    return bits if count is None else bits[(slice(None),) * axis + (slice(0, count),)]


__all__ = [
    "intersect1d", "packbits", "setdiff1d", "setxor1d", "union1d", "unique", "unpackbits",
]  # fmt: skip
