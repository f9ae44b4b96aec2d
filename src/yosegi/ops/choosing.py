"""Elements chosen by conditions, indices and rank, by NumPy's names; and `topk`, `one_hot`.

Functions whose result has a shape that depends on values (`argwhere`, `compress`, `unique`, …) are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._tensor.dtype import int64
from .._tensor.op import from_array
from .._tensor.tensor import Operand, Tensor
from ..errors import ArgumentError, ShapeError
from . import rules
from .creation import arange, asarray, zeros
from .elementwise import clip, equal, imag, real, remainder, where
from .index import gather, scatter, take_along_axis
from .shape import broadcast_to, expand_dims, reshape, stack
from .sort import argsort, argtopk, nonzero, sort

# By conditions


@rules.named
def select(conditions: Sequence[Tensor], choices: Sequence[Operand], /, default: Operand = 0) -> Tensor:
    """Element-wise the choice of the first condition that holds, `default` where none does.

    >>> import yosegi as ys
    >>> x = ys.arange(5)
    >>> ys.select([x < 2, x > 3], [x, x * 10], -1).tolist()
    [0, 1, -1, -1, 40]
    """
    if len(conditions) != len(choices) or not conditions:
        raise ArgumentError(f"expected as many conditions as choices, got {len(conditions)} and {len(choices)}")
    values = rules.as_tensors([*choices, default])
    made = values[-1]
    for condition, choice in zip(reversed(conditions), reversed(values[:-1]), strict=True):
        made = where(condition, choice, made)
    return made


@rules.on_tensor
def piecewise(x: Tensor, conditions: Sequence[Tensor], functions: Sequence[Any], /) -> Tensor:
    """Element-wise the function of the last condition that holds. One function more than conditions is for the rest,
    which is 0 otherwise. A function may be a number. Every function is called with the whole tensor.

    >>> import yosegi as ys
    >>> x = ys.asarray([-2.0, 3.0])
    >>> ys.piecewise(x, [x < 0, x >= 0], [lambda v: -v, 7.0]).tolist()
    [2.0, 7.0]
    """
    if len(functions) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(f"expected {len(conditions)} functions or one more, got {len(functions)}")

    def applied(function: Any) -> Tensor:
        return asarray(function(x) if isinstance(function, Callable) else function).astype(x.dtype)  # type: ignore[arg-type]

    made = zeros(x.shape, x.dtype)
    if len(functions) > len(conditions):
        made = broadcast_to(applied(functions[-1]), x.shape)
    for condition, function in zip(conditions, functions, strict=False):
        made = where(asarray(condition), applied(function), made)
    return made


@rules.named
def choose(places: Tensor, choices: Sequence[Operand], /, mode: str = "raise") -> Tensor:
    """Element-wise the choice that the integer at its place names.

    - `mode`: what a number outside means: "raise" an error where its value is there, "clip" the nearest, "wrap" around.

    >>> import yosegi as ys
    >>> ys.choose(ys.asarray([1, 0]), [ys.asarray([1, 2]), ys.asarray([10, 20])]).tolist()
    [10, 2]
    """
    rules.one_of("mode", mode, ("raise", "clip", "wrap"))
    chosen = rules.as_tensor(places)
    rules.expect(chosen.dtype, "integer places", lambda d: d.is_integer)
    options = rules.as_tensors(choices)
    shape = rules.broadcast_shapes(chosen.shape, *[o.shape for o in options])
    chosen = clip(chosen, 0, len(options) - 1) if mode == "clip" else chosen
    chosen = remainder(chosen, len(options)) if mode == "wrap" else chosen
    if mode == "raise" and chosen._node.buffer is not None:
        found: Any = chosen.numpy()
        if ((found < 0) | (found >= len(options))).any():
            raise ArgumentError(f"expected numbers from 0 to {len(options) - 1}, got others; use mode='clip' or 'wrap'")
    stacked = stack([broadcast_to(o, shape) for o in options])
    return take_along_axis(stacked, expand_dims(broadcast_to(chosen, shape), 0).astype(int64), axis=0)[0]


@rules.named
def compress(condition: Any, x: Tensor, /, axis: int | None = None) -> Tensor:
    """The slices along an axis (the elements of the flattened tensor by default) where a vector of bools is true.

    >>> import yosegi as ys
    >>> ys.compress([False, True], ys.asarray([[1, 2], [3, 4]]), axis=0).tolist()
    [[3, 4]]
    """
    given = rules.as_tensor(x)
    kept: Any = np.flatnonzero(np.asarray(condition))
    if axis is None:
        given, axis = reshape(given, (-1,)), 0
    dim = rules.normal_axis(axis, given.ndim)
    return gather(given, from_array(kept), axes=(dim,), at=dim, of="compress")


@rules.named
def extract(condition: Any, x: Tensor, /) -> Tensor:
    """The elements, flattened, where a condition of as many elements is true.

    >>> import yosegi as ys
    >>> x = ys.arange(5)
    >>> ys.extract(x % 2 == 0, x).tolist()
    [0, 2, 4]
    """
    return compress(reshape(asarray(condition), (-1,)), reshape(rules.as_tensor(x), (-1,)))


@rules.on_tensor
def argwhere(x: Tensor, /) -> Tensor:
    """The indices of the elements that are not zero, one row for each.

    >>> import yosegi as ys
    >>> ys.argwhere(ys.asarray([[0, 1], [1, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    if not x.ndim:
        return from_array(np.argwhere(x.numpy()))
    return stack(nonzero(x), axis=1)


@rules.on_tensor
def flatnonzero(x: Tensor, /) -> Tensor:
    """The indices in the flattened tensor of the elements that are not zero.

    >>> import yosegi as ys
    >>> ys.flatnonzero(ys.asarray([0, 5, 0, 7])).tolist()
    [1, 3]
    """
    return nonzero(reshape(x, (-1,)))[0]


@rules.on_tensor
def trim_zeros(x: Tensor, /, trim: str = "fb") -> Tensor:
    """A vector without the zeros at its front ("f"), at its back ("b"), or at both.

    >>> import yosegi as ys
    >>> ys.trim_zeros(ys.asarray([0, 1, 0, 2, 0])).tolist()
    [1, 0, 2]
    """
    rules.one_of("trim", trim, ("f", "b", "fb", "bf"))
    if x.ndim != 1:
        raise ShapeError(f"expected a vector, got shape {x.shape}")
    found: Any = np.flatnonzero(x.numpy())
    if not found.size:
        return x[:0]
    first, last = int(found[0]) if "f" in trim else 0, int(found[-1]) + 1 if "b" in trim else x.shape[0]
    return x[first:last]


# By rank


class TopK(NamedTuple):
    """The largest elements and their indices."""

    values: Tensor
    indices: Tensor


@rules.on_tensor
def topk(x: Tensor, k: int, /, axis: int = -1, *, largest: bool = True) -> TopK:
    """The k largest elements along an axis in descending order, and their indices.

    - `largest`: False for the smallest, in ascending order.

    >>> import yosegi as ys
    >>> values, indices = ys.topk(ys.asarray([1.0, 5.0, 3.0]), 2)
    >>> values.tolist(), indices.tolist()
    ([5.0, 3.0], [1, 2])
    """
    axis = rules.normal_axis(axis, x.ndim)
    places = argtopk(x, k, axis, descending=largest)
    return TopK(take_along_axis(x, places, axis=axis), places)


@rules.on_tensor
def partition(x: Tensor, kth: Any, /, axis: int | None = -1) -> Tensor:
    """The elements with the kth along an axis at its place, none larger before and none smaller behind: all in order.

    >>> import yosegi as ys
    >>> ys.partition(ys.asarray([3, 1, 2]), 1).tolist()[1]
    2
    """
    return sort(reshape(x, (-1,)), axis=0) if axis is None else sort(x, axis=axis)


@rules.on_tensor
def argpartition(x: Tensor, kth: Any, /, axis: int | None = -1) -> Tensor:
    """The indices that `partition` would take the elements from.

    >>> import yosegi as ys
    >>> ys.argpartition(ys.asarray([3, 1, 2]), 1).tolist()[1]
    2
    """
    return argsort(reshape(x, (-1,)), axis=0) if axis is None else argsort(x, axis=axis)


@rules.named
def lexsort(keys: Any, /, axis: int = -1) -> Tensor:
    """The indices that sort by several keys, of which the last counts first.

    >>> import yosegi as ys
    >>> ys.lexsort([ys.asarray([2, 1, 1]), ys.asarray([5, 5, 4])]).tolist()
    [2, 1, 0]
    """
    given = rules.as_tensors(keys)
    if not given:
        raise ArgumentError("expected at least one key, got none")
    order = argsort(given[0], axis=axis)
    for key in given[1:]:
        turn = argsort(take_along_axis(key, order, axis=axis), axis=axis)
        order = take_along_axis(order, turn, axis=axis)
    return order


@rules.on_tensor
def sort_complex(x: Tensor, /) -> Tensor:
    """The elements along the last axis in the order of their real parts, then of their imaginary parts, as complex.

    >>> import yosegi as ys
    >>> ys.sort_complex(ys.asarray([2.0, 1 + 2j, 1 - 1j])).tolist()
    [(1-1j), (1+2j), (2+0j)]
    """
    numbers = x if x.dtype.is_complex else x.astype("complex128")
    return take_along_axis(numbers, lexsort([imag(numbers), real(numbers)]), axis=-1)


@rules.on_tensor
def one_hot(x: Tensor, num_classes: int, /, *, dtype: Any = None, axis: int = -1) -> Tensor:
    """Each integer as a vector with a 1 at its place and 0 elsewhere; all 0 for a number that is no class.

    Parameters
    ----------
    x
        A tensor of integers.
    num_classes
        The length of the vectors.
    dtype
        The dtype of the result, the default float by default.
    axis
        The place of the new dimension.

    Returns
    -------
    Tensor
        The vectors.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.nn.one_hot(ys.asarray([0, 2]), 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    rules.expect(x.dtype, "an integer dtype", lambda d: d.is_integer)
    count = rules.as_index(num_classes, "num_classes")
    axis = rules.normal_axis(axis, x.ndim + 1)
    classes = reshape(arange(count, dtype=x.dtype), (count,) + (1,) * (x.ndim - axis))
    return equal(expand_dims(x, axis), classes).astype(zeros((), dtype).dtype)


# Into places


@rules.on_tensor
def put_along_axis(x: Tensor, indices: Tensor, values: Operand, /, axis: int | None) -> Tensor:
    """The tensor with values at the places that `take_along_axis` would read. It is returned: tensors are values.

    >>> import yosegi as ys
    >>> ys.put_along_axis(ys.asarray([[1, 2], [3, 4]]), ys.asarray([[0], [1]]), 9, axis=1).tolist()
    [[9, 2], [3, 9]]
    """
    if axis is None:
        flat = put_along_axis(reshape(x, (-1,)), reshape(asarray(indices), (-1,)), values, 0)
        return reshape(flat, x.shape)
    places = asarray(indices)
    dim = rules.normal_axis(axis, x.ndim)
    if places.ndim != x.ndim:
        raise ShapeError(f"expected as many dimensions as {x.shape} has, got shape {places.shape}")
    each = [places if i == dim else reshape(arange(n), (n,) + (1,) * (x.ndim - i - 1)) for i, n in enumerate(x.shape)]
    shape = rules.broadcast_shapes(*[e.shape for e in each])
    new = broadcast_to(asarray(values).astype(x.dtype), shape)
    return scatter(x, new, *each, axes=tuple(range(x.ndim)), at=0, of="put_along_axis")


# Positions


@rules.on_tensor
def unravel_index(places: Tensor, shape: Sequence[int], /) -> tuple[Tensor, ...]:
    """The indices along each dimension of places in the flattened tensor of a shape.

    >>> import yosegi as ys
    >>> [part.tolist() for part in ys.unravel_index(ys.asarray([1, 5]), (2, 3))]
    [[0, 1], [1, 2]]
    """
    rules.expect(places.dtype, "integer places", lambda d: d.is_integer)
    made: list[Tensor] = []
    rest = places.astype(int64)
    for n in reversed(rules.normal_shape(shape)):
        made.append(remainder(rest, n))
        rest = rest // n
    return tuple(reversed(made))


@rules.named
def ravel_multi_index(indices: Sequence[Operand], shape: Sequence[int], /, mode: str = "raise") -> Tensor:
    """The places in the flattened tensor of a shape, of the indices along each dimension.

    - `mode`: "raise" for an index outside, where its value is there; "clip" to the nearest; "wrap" around.

    >>> import yosegi as ys
    >>> ys.ravel_multi_index((ys.asarray([0, 1]), ys.asarray([1, 2])), (2, 3)).tolist()
    [1, 5]
    """
    rules.one_of("mode", mode, ("raise", "clip", "wrap"))
    lengths = rules.normal_shape(shape)
    if len(lengths) != len(indices):
        raise ArgumentError(f"expected {len(lengths)} indices for shape {lengths}, got {len(indices)}")
    place = zeros((), int64)
    for index, n in zip(indices, lengths, strict=True):
        at = asarray(index).astype(int64)
        if mode == "raise" and at._node.buffer is not None:
            found: Any = at.numpy()
            if ((found < 0) | (found >= n)).any():
                raise ArgumentError(f"expected indices from 0 to {n - 1}, got others; use mode='clip' or 'wrap'")
        at = clip(at, 0, n - 1) if mode == "clip" else remainder(at, n) if mode == "wrap" else at
        place = place * n + at
    return place


__all__ = [
    "TopK", "argpartition", "argwhere", "choose", "compress", "extract", "flatnonzero", "lexsort", "one_hot",
    "partition", "piecewise", "put_along_axis", "ravel_multi_index", "select", "sort_complex", "topk", "trim_zeros",
    "unravel_index",
]  # fmt: skip
