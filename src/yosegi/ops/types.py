"""Functions on dtypes, and casts."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._tensor.dtype import PROMOTION, DType, FloatInfo, IntInfo, as_dtype, bool_, float_info, int_info, is_kind
from .._tensor.node import spec
from .._tensor.op import cast, common_dtype
from .._tensor.tensor import OPERATORS, Tensor
from ..errors import DTypeError
from . import rules
from .elementwise import not_equal

_PYTHON = (bool, int, float, complex)


@rules.on_tensor
def astype(x: Tensor, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Tensor:
    """The values converted to another dtype. `copy` changes nothing here: tensors are values."""
    wanted = as_dtype(dtype)
    moved = x if device is None else x.to_device(device)
    if x.dtype.is_complex and wanted is bool_:
        return not_equal(moved, 0)
    if x.dtype.is_complex and not wanted.is_complex:
        raise DTypeError(f"expected a complex dtype for {x.dtype.name}, got {wanted.name}; take ys.real first")
    return Tensor(cast(moved._node, wanted))


OPERATORS["astype"] = astype


def _dtype_of(item: Any) -> DType:
    return as_dtype(item.dtype if isinstance(item, (Tensor, np.ndarray, np.generic)) else item)


@rules.named
def can_cast(from_: DType | Tensor, to: DType, /) -> bool:
    """Whether promotion would ever take one dtype to the other."""
    return PROMOTION[_dtype_of(from_), as_dtype(to)] is as_dtype(to)


@rules.named
def result_type(*arrays_and_dtypes: Any) -> DType:
    """The dtype an operation on these would have: tensors, dtypes and Python numbers, at least one not a number."""
    specs = []
    for item in arrays_and_dtypes:
        if isinstance(item, Tensor):
            specs.append(item._node.spec)
        elif isinstance(item, (np.ndarray, np.generic)):
            specs.append(spec((), as_dtype(item.dtype)))
        elif isinstance(item, _PYTHON):
            specs.append(spec((), as_dtype(next(t for t in _PYTHON if isinstance(item, t))), weak=True))
        else:
            specs.append(spec((), as_dtype(item)))
    common = common_dtype(specs)
    if common is None or all(s.weak for s in specs):
        raise DTypeError("expected at least one tensor or dtype, got none")
    return common


@rules.named
def finfo(type: DType | Tensor, /) -> FloatInfo:
    """The machine limits of a floating dtype."""
    return float_info(_dtype_of(type))


@rules.named
def iinfo(type: DType | Tensor, /) -> IntInfo:
    """The machine limits of an integer dtype."""
    return int_info(_dtype_of(type))


@rules.named
def isdtype(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """Whether a dtype is of a kind, by the standard's names."""
    for k in kind if isinstance(kind, tuple) else (kind,):
        if not isinstance(k, (str, DType)):
            raise DTypeError(f"expected a kind by its name, a dtype, or a tuple of them, got {kind!r}")
    return is_kind(as_dtype(dtype), kind)
