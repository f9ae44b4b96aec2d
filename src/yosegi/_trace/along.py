"""NumPy's functions that apply a Python function along axes of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from .._tensor.tensor import Tensor
from ..errors import ShapeError
from ..ops import rules
from ..ops.creation import asarray
from ..ops.shape import expand_dims, moveaxis, reshape
from .vmap import vmap


@rules.named
def apply_along_axis(function: Callable[..., Any], axis: int, x: Tensor, /, *args: Any, **kwargs: Any) -> Tensor:
    """Apply a function of one vector to all vectors along an axis.

    The function runs once, for all vectors (see `vmap`): it must not read their values.

    Parameters
    ----------
    function : callable
        A function of a vector, and of the further arguments. It returns a tensor of any shape.
    axis : int
        The axis of the vectors.
    x : Tensor
        The tensor.
    *args, **kwargs
        Further arguments of the function.

    Returns
    -------
    Tensor
        The results. Their dimensions stand in the place of the axis.

    Examples
    --------
    >>> import yosegi as ys
    >>> x = ys.asarray([[1.0, 5.0], [3.0, 2.0]])
    >>> ys.apply_along_axis(lambda v: v[-1] - v[0], 1, x).tolist()
    [4.0, -1.0]
    """
    x = asarray(x)
    place = rules.normal_axis(axis, x.ndim)
    vectors = moveaxis(x, place, -1)
    others = vectors.shape[:-1]
    each = vmap(lambda vector: function(vector, *args, **kwargs))
    made = each(reshape(vectors, (prod(others), x.shape[place])))
    new = range(made.ndim - 1)
    shaped = reshape(made, others + made.shape[1:])
    return moveaxis(shaped, tuple(len(others) + n for n in new), tuple(place + n for n in new))


@rules.named
def apply_over_axes(function: Callable[[Tensor, int], Tensor], x: Tensor, /, axes: int | Sequence[int]) -> Tensor:
    """Apply a function of a tensor and an axis for one axis after the other.

    Parameters
    ----------
    function : callable
        A function of a tensor and an axis. It keeps the number of dimensions, or removes the axis.
    x : Tensor
        The tensor.
    axes : int or sequence of ints
        The axes, in this order.

    Returns
    -------
    Tensor
        The result, with as many dimensions as `x`.

    Raises
    ------
    ShapeError
        If the function returns another number of dimensions.

    Examples
    --------
    >>> import yosegi as ys
    >>> ys.apply_over_axes(ys.sum, ys.ones((2, 3, 4)), (0, 2)).shape
    (1, 3, 1)
    """
    result = x = asarray(x)
    for axis in rules.normal_axes(axes, x.ndim):
        made = function(result, axis)
        result = expand_dims(made, axis=axis) if made.ndim == x.ndim - 1 else made
        if result.ndim != x.ndim:
            raise ShapeError(f"expected {x.ndim} or {x.ndim - 1} dimensions from the function, got {made.ndim}")
    return result
