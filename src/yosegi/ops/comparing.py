"""Comparisons of whole tensors and of their kinds, by NumPy's names."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._tensor.dtype import DType, as_dtype, is_kind, number_type
from .._tensor.tensor import Operand, Tensor
from . import rules
from .creation import asarray
from .decompositions import floating
from .elementwise import abs, equal, isfinite, isnan, less_equal, logical_and, logical_or, where
from .reduce import all
from .types import result_type


@rules.named
def isclose(x1: Operand, x2: Operand, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Element-wise: is |x1 - x2| at most atol + rtol * |x2|?

    - `rtol`, `atol`: the relative and the absolute tolerance.
    - `equal_nan`: NaN is close to NaN.

    >>> import yosegi as ys
    >>> ys.isclose(ys.asarray([1.0, 2.0]), ys.asarray([1.0 + 1e-9, 2.1])).tolist()
    [True, False]
    """
    first, second = (floating(t) for t in rules.as_tensors((x1, x2)))
    near = less_equal(abs(first - second), atol + rtol * abs(second))
    # An infinity is near itself alone.
    close = where(logical_and(isfinite(first), isfinite(second)), near, equal(first, second))
    return logical_or(close, logical_and(isnan(first), isnan(second))) if equal_nan else close


@rules.named
def allclose(x1: Operand, x2: Operand, /, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """A bool tensor: are all elements close by `isclose`?

    >>> import yosegi as ys
    >>> bool(ys.allclose(ys.asarray([1.0, 2.0]), ys.asarray([1.0, 2.0 + 1e-9])))
    True
    """
    return all(isclose(x1, x2, rtol, atol, equal_nan))


@rules.named
def array_equal(x1: Any, x2: Any, /, equal_nan: bool = False) -> Tensor:
    """A bool tensor: are the shapes the same and all elements equal?

    - `equal_nan`: NaN equals NaN.

    >>> import yosegi as ys
    >>> bool(ys.array_equal(ys.asarray([1, 2]), ys.asarray([1.0, 2.0])))
    True
    """
    first, second = asarray(x1), asarray(x2)
    if first.shape != second.shape:
        return asarray(False)
    same = equal(first, second)
    if equal_nan and first.dtype.is_inexact and second.dtype.is_inexact:
        same = logical_or(same, logical_and(isnan(first), isnan(second)))
    return all(same)


@rules.named
def array_equiv(x1: Any, x2: Any, /) -> Tensor:
    """A bool tensor: are all elements equal, once the shapes are broadcast?

    >>> import yosegi as ys
    >>> bool(ys.array_equiv(ys.asarray([1, 1]), ys.asarray(1)))
    True
    """
    first, second = asarray(x1), asarray(x2)
    try:
        rules.broadcast_shapes(first.shape, second.shape)
    except ValueError:
        return asarray(False)
    return all(equal(first, second))


# Kinds


def _own(x: Any) -> DType:
    kind = number_type(x)
    return as_dtype(kind) if kind is not None else rules.as_tensor(x).dtype


@rules.named
def iscomplexobj(x: Any, /) -> bool:
    """True if the dtype of a tensor, or the type of a number, is complex.

    >>> import yosegi as ys
    >>> ys.iscomplexobj(ys.asarray([1j]))
    True
    """
    return _own(x).is_complex


@rules.named
def isrealobj(x: Any, /) -> bool:
    """True if the dtype of a tensor, or the type of a number, is not complex.

    >>> import yosegi as ys
    >>> ys.isrealobj(ys.asarray([1j]))
    False
    """
    return not _own(x).is_complex


@rules.named
def isscalar(x: Any, /) -> bool:
    """True for a Python number and a NumPy scalar; a 0-d tensor is no scalar.

    >>> import yosegi as ys
    >>> ys.isscalar(3.0), ys.isscalar(ys.asarray(3.0))
    (True, False)
    """
    return number_type(x) is not None or isinstance(x, (np.generic, str, bytes))


@rules.named
def iterable(x: Any, /) -> bool:
    """True if `iter` takes it: a tensor of at least one dimension does.

    >>> import yosegi as ys
    >>> ys.iterable(ys.zeros((2,))), ys.iterable(ys.zeros(()))
    (True, False)
    """
    try:
        iter(x)
    except TypeError:
        return False
    return True


@rules.named
def issubdtype(dtype: Any, kind: Any, /) -> bool:
    """True if a dtype is of a kind: the standard's name of one, or a dtype; `isdtype` by NumPy's name.

    >>> import yosegi as ys
    >>> ys.issubdtype(ys.float32, "real floating")
    True
    """
    named = isinstance(kind, str) and (" " in kind or kind in _KINDS)
    return is_kind(as_dtype(dtype), kind if named else as_dtype(kind))


_KINDS = ("bool", "integral", "numeric")


@rules.named
def promote_types(dtype1: Any, dtype2: Any, /) -> DType:
    """The dtype that two dtypes are promoted to.

    >>> import yosegi as ys
    >>> ys.promote_types(ys.int32, ys.float32)
    yosegi.float64
    """
    return result_type(as_dtype(dtype1), as_dtype(dtype2))


@rules.named
def common_type(*tensors: Tensor) -> DType:
    """The floating dtype that tensors are promoted to; integers count as the default float.

    >>> import yosegi as ys
    >>> ys.common_type(ys.asarray([1]), ys.zeros((2,), ys.float32))
    yosegi.float64
    """
    return result_type(*[floating(rules.as_tensor(t)) for t in tensors])


__all__ = [
    "allclose", "array_equal", "array_equiv", "common_type", "isclose", "iscomplexobj", "isrealobj", "isscalar",
    "issubdtype", "iterable", "promote_types",
]  # fmt: skip
