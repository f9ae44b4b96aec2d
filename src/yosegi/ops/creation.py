"""Tensors from data, and tensors of a pattern."""

from __future__ import annotations

from math import ceil
from operator import index as as_index
from typing import Any

import numpy as np

from .. import interchange
from ..dtype import DEFAULT_FLOAT, DEFAULT_INT, DType, as_dtype, complex128
from ..errors import ArgumentError, DTypeError, ShapeError
from ..node import spec
from ..op import Arr, OpKind, from_array, literal, op
from ..tensor import Array, Tensor
from . import rules
from .shape import broadcast_to, reshape, stack
from .types import astype

DTypeLike = Any
DeviceLike = Any


def place(x: Tensor, device: DeviceLike) -> Tensor:
    """The tensor on a device, if one is named."""
    return x if device is None else x.to_device(device)


def asarray(obj: Any, /, *, dtype: DTypeLike = None, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """A tensor from numbers, nested lists, NumPy arrays, buffers, DLPack producers or tensors.

    A NumPy array or buffer that anybody could still write to is copied, so that no later write to it changes a
    result. Memory that nobody can write to is shared. `copy=False` shares in any case: the caller vouches for it.

    >>> import yosegi as ys
    >>> ys.asarray([1.0, 2.0]) * 2
    Tensor([2., 4.], dtype=float64, device=cpu)
    """
    wanted = rules.optional_dtype(dtype)
    if isinstance(obj, Tensor):
        if copy is False and wanted not in (None, obj.dtype):
            raise ArgumentError(f"[asarray] expected dtype {obj.dtype.name} for copy=False, got {wanted}")
        return place(obj if copy is False else astype(obj, wanted or obj.dtype), device)
    if _holds_tensors(obj):
        return place(asarray(stack([asarray(o) for o in obj]), dtype=wanted), device)
    return place(from_array(_host_array(obj, wanted, copy)), device)


def _holds_tensors(obj: Any) -> bool:
    return isinstance(obj, (list, tuple)) and any(isinstance(o, Tensor) or _holds_tensors(o) for o in obj)


def _host_array(obj: Any, dtype: DType | None, copy: bool | None) -> Array:
    if isinstance(obj, (np.ndarray, np.generic)):
        array = np.asarray(obj)
    elif isinstance(obj, (bool, int, float, complex, list, tuple)):
        if copy is False:
            raise ArgumentError(f"[asarray] expected an array or a buffer for copy=False, got {type(obj).__name__}")
        array, copy = _from_numbers(obj, dtype), False
    elif hasattr(obj, "__dlpack__"):
        array = interchange.from_dlpack_array(obj, copy=None)
    elif hasattr(obj, "__array__"):
        array = np.asarray(obj)
    else:
        try:
            array = np.asarray(memoryview(obj))
        except TypeError:
            raise DTypeError(f"[asarray] expected numbers, an array or a buffer, got {type(obj).__name__}") from None
    own = as_dtype(array.dtype)
    if dtype is not None and dtype is not own:
        if copy is False and not isinstance(obj, (bool, int, float, complex, list, tuple)):
            raise ArgumentError(f"[asarray] expected dtype {own.name} for copy=False, got {dtype.name}")
        with np.errstate(all="ignore"):
            return array.astype(dtype.numpy)
    if copy or (copy is None and not interchange.is_immutable(array)):
        return np.array(array, own.numpy, order="K")
    return array if array.dtype == own.numpy else array.astype(own.numpy)


def _from_numbers(obj: Any, dtype: DType | None) -> Array:
    try:
        array = np.array(obj)
        if array.dtype == object or (dtype is not None and dtype.is_integer and array.dtype.kind in "iu"):
            array = np.array(obj, dtype=dtype.numpy if dtype is not None else None)
    except (ValueError, OverflowError, TypeError) as error:
        raise ArgumentError(
            f"[asarray] expected numbers in lists of even lengths, got {_short(obj)}: {error}"
        ) from None
    if array.dtype == object or array.dtype.kind not in "biufc":
        raise DTypeError(f"[asarray] expected numbers that fit a dtype, got {_short(obj)}")
    return array if array.size or array.dtype.kind != "f" else array.astype(DEFAULT_FLOAT.numpy)


def _short(obj: Any) -> str:
    text = repr(obj)
    return text if len(text) <= 40 else text[:37] + "..."


def from_numpy(array: Array, /, *, copy: bool | None = None) -> Tensor:
    """A tensor from a NumPy array, by the rule of `asarray`."""
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"[from_numpy] expected a NumPy array, got {type(array).__name__}; use asarray")
    return asarray(array, copy=copy)


def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """A tensor on another library's memory. This is the door for sharing: nothing is copied unless `copy=True`, and
    who writes to the memory afterwards changes what is computed from it."""
    return place(from_array(interchange.from_dlpack_array(x, copy)), device)


# Patterns


def full(shape: Any, fill_value: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of one value."""
    wanted = rules.optional_dtype(dtype)
    if isinstance(fill_value, Tensor):
        if fill_value.ndim:
            raise ShapeError(f"[full] expected one value, got shape {fill_value.shape}; use broadcast_to")
        value = astype(fill_value, wanted or fill_value.dtype)
    elif isinstance(fill_value, np.generic):
        value = asarray(fill_value, dtype=wanted)
    elif isinstance(fill_value, (bool, int, float, complex)):
        kind = next(t for t in (bool, int, float, complex) if isinstance(fill_value, t))
        try:
            value = Tensor(literal(fill_value, wanted or as_dtype(kind)))
        except DTypeError as error:
            raise error.of("full") from None
    else:
        raise DTypeError(f"[full] expected a number, got {type(fill_value).__name__}")
    return place(broadcast_to(value, rules.normal_shape(shape)), device)


def zeros(shape: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype=dtype or DEFAULT_FLOAT, device=device)


def ones(shape: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of ones."""
    return full(shape, 1, dtype=dtype or DEFAULT_FLOAT, device=device)


def empty(shape: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor whose values do not matter; they are zeros, for nothing ever shows what memory held before."""
    return zeros(shape, dtype=dtype, device=device)


def full_like(x: Tensor, /, fill_value: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of one value, shaped and typed like `x`."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of zeros, shaped and typed like `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of ones, shaped and typed like `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


def empty_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor whose values do not matter, shaped and typed like `x`."""
    return zeros_like(x, dtype=dtype, device=device)


def _steps(start: Any, stop: Any, step: Any) -> int:
    """How many steps from start to before stop."""
    if step == 0:
        raise ArgumentError("expected a step other than 0")
    whole = all(isinstance(v, int) for v in (start, stop, step))
    return int(max(0, -((start - stop) // step) if whole else ceil((stop - start) / step)))


@op(OpKind.SOURCE, infer=lambda *, start, stop, step, dtype: spec((_steps(start, stop, step),), dtype))
def count(*, start: Any, stop: Any, step: Any, dtype: DType) -> Arr:
    """Evenly spaced numbers, by their step."""
    steps = np.arange(_steps(start, stop, step), dtype=np.int64 if dtype.is_integer else np.float64)
    return (start + step * steps).astype(dtype.numpy)


def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Evenly spaced numbers from start (0 if left out) to before stop."""
    if stop is None:
        start, stop = 0, start
    start, stop, step = (v.item() if isinstance(v, (Tensor, np.generic)) else v for v in (start, stop, step))
    default = DEFAULT_INT if all(isinstance(v, int) for v in (start, stop, step)) else DEFAULT_FLOAT
    made = count(start=start, stop=stop, step=step, dtype=rules.optional_dtype(dtype) or default)
    return place(made, device)


@op(OpKind.SOURCE, infer=lambda *, start, stop, num, dtype, endpoint: spec((num,), dtype))
def spaced(*, start: Any, stop: Any, num: int, dtype: DType, endpoint: bool) -> Arr:
    """Evenly spaced numbers, by how many."""
    return np.linspace(start, stop, num, endpoint=endpoint).astype(dtype.numpy)


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced numbers from start to stop, with or without stop itself."""
    num = as_index(num)
    if num < 0:
        raise ArgumentError(f"[linspace] expected num of at least 0, got {num}")
    default = complex128 if isinstance(start, complex) or isinstance(stop, complex) else DEFAULT_FLOAT
    wanted = rules.optional_dtype(dtype) or default
    return place(spaced(start=start, stop=stop, num=num, dtype=wanted, endpoint=bool(endpoint)), device)


@op(OpKind.SOURCE, infer=lambda *, n_rows, n_cols, k, dtype: spec((n_rows, n_cols), dtype))
def diagonal_ones(*, n_rows: int, n_cols: int, k: int, dtype: DType) -> Arr:
    """A matrix with ones on one diagonal."""
    return np.eye(n_rows, n_cols, k).astype(dtype.numpy)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """A matrix with ones on the k-th diagonal and zeros elsewhere."""
    rows, cols = rules.normal_shape((n_rows, n_rows if n_cols is None else n_cols))
    wanted = rules.optional_dtype(dtype) or DEFAULT_FLOAT
    return place(diagonal_ones(n_rows=rows, n_cols=cols, k=as_index(k), dtype=wanted), device)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinate tensors of the grid that 1-d coordinates span; "xy" has the second coordinate first."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"[meshgrid] expected indexing 'xy' or 'ij', got {indexing!r}")
    if any(a.ndim > 1 for a in arrays):
        raise ShapeError(f"[meshgrid] expected 1-d tensors, got shapes {[a.shape for a in arrays]}")
    axes = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        axes[:2] = [1, 0]
    sizes = {axis: a.size for axis, a in zip(axes, arrays, strict=True)}
    shape = tuple(sizes[i] for i in range(len(arrays)))
    return tuple(
        broadcast_to(reshape(a, tuple(a.size if i == axis else 1 for i in range(len(arrays)))), shape)
        for axis, a in zip(axes, arrays, strict=True)
    )
