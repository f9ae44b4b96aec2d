"""Products by NumPy's names and NumPy's rules for axes; `linalg` has those of the Array API standard."""

from __future__ import annotations

from typing import Any

from .._tensor.tensor import Operand, Tensor
from . import rules
from .elementwise import conj
from .products import cross as cross_3d
from .products import matmul, tensordot
from .shape import expand_dims, moveaxis, reshape, squeeze


def _both(x1: Any, x2: Any) -> tuple[Tensor, Tensor]:
    first, second = rules.as_tensors((x1, x2))
    return first, second


@rules.named
def dot(x1: Operand, x2: Operand, /) -> Tensor:
    """The product of vectors or matrices; of more dimensions, the last of `x1` with the second to last of `x2`. A
    number scales.

    >>> import yosegi as ys
    >>> ys.dot(ys.asarray([1, 2]), ys.asarray([3, 4])).tolist()
    11
    """
    first, second = _both(x1, x2)
    if not first.ndim or not second.ndim:
        return first * second
    if first.ndim <= 2 and second.ndim <= 2:
        return matmul(first, second)
    return tensordot(first, second, ((first.ndim - 1,), (max(0, second.ndim - 2),)))


@rules.named
def inner(x1: Operand, x2: Operand, /) -> Tensor:
    """The sums of products over the last axes of both. A number scales.

    >>> import yosegi as ys
    >>> ys.inner(ys.asarray([[1, 2], [3, 4]]), ys.asarray([5, 6])).tolist()
    [17, 39]
    """
    first, second = _both(x1, x2)
    if not first.ndim or not second.ndim:
        return first * second
    return tensordot(first, second, ((first.ndim - 1,), (second.ndim - 1,)))


@rules.named
def outer(x1: Operand, x2: Operand, /) -> Tensor:
    """The products of every element of one with every element of the other, both flattened.

    >>> import yosegi as ys
    >>> ys.outer(ys.asarray([1, 2]), ys.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    first, second = _both(x1, x2)
    return reshape(first, (-1, 1)) * reshape(second, (1, -1))


@rules.named
def vdot(x1: Operand, x2: Operand, /) -> Tensor:
    """The sum of conj(x1) * x2 over all elements, both flattened.

    >>> import yosegi as ys
    >>> ys.vdot(ys.asarray([1j, 2.0]), ys.asarray([1j, 3.0])).tolist()
    (7+0j)
    """
    first, second = _both(x1, x2)
    return matmul(conj(reshape(first, (-1,))), reshape(second, (-1,)))


@rules.named
def kron(x1: Operand, x2: Operand, /) -> Tensor:
    """The Kronecker product: `x2`, scaled by each element of `x1`, in its place.

    >>> import yosegi as ys
    >>> ys.kron(ys.asarray([1, 10]), ys.asarray([1, 2])).tolist()
    [1, 2, 10, 20]
    """
    first, second = _both(x1, x2)
    ndim = max(first.ndim, second.ndim)
    first, second = (reshape(t, (1,) * (ndim - t.ndim) + t.shape) for t in (first, second))
    product = expand_dims(first, tuple(range(1, 2 * ndim, 2))) * expand_dims(second, tuple(range(0, 2 * ndim, 2)))
    return reshape(product, tuple(n * m for n, m in zip(first.shape, second.shape, strict=True)))


@rules.named
def cross(
    x1: Operand, x2: Operand, /, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Tensor:
    """The cross product of vectors of three elements.

    - `axisa`, `axisb`, `axisc`: where the vectors are in `x1`, in `x2` and in the result; `axis` is for all of them.

    >>> import yosegi as ys
    >>> ys.cross(ys.asarray([1, 0, 0]), ys.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    first, second = _both(x1, x2)
    axisa, axisb, axisc = (axisa, axisb, axisc) if axis is None else (axis,) * 3
    made = cross_3d(moveaxis(first, axisa, -1), moveaxis(second, axisb, -1), axis=-1)
    return moveaxis(made, -1, axisc)


@rules.named
def matvec(x1: Operand, x2: Operand, /) -> Tensor:
    """The products of matrices with vectors, along the last axes of stacks that broadcast.

    >>> import yosegi as ys
    >>> ys.matvec(ys.asarray([[1, 2], [3, 4]]), ys.asarray([1, 1])).tolist()
    [3, 7]
    """
    first, second = _both(x1, x2)
    return squeeze(matmul(first, expand_dims(second, -1)), -1)


@rules.named
def vecmat(x1: Operand, x2: Operand, /) -> Tensor:
    """The products of conjugated vectors with matrices, along the last axes of stacks that broadcast.

    >>> import yosegi as ys
    >>> ys.vecmat(ys.asarray([1, 1]), ys.asarray([[1, 2], [3, 4]])).tolist()
    [4, 6]
    """
    first, second = _both(x1, x2)
    return squeeze(matmul(expand_dims(conj(first), -2), second), -2)


__all__ = ["cross", "dot", "inner", "kron", "matvec", "outer", "vdot", "vecmat"]
