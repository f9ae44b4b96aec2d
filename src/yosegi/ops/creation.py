"""Tensors from data, and tensors of a pattern."""

from __future__ import annotations

from math import ceil, isfinite
from typing import Any, Final

import numpy as np

from .._tensor import interchange
from .._tensor.dtype import (
    DEFAULT_INT,
    KINDS,
    DType,
    as_dtype,
    bool_,
    default_complex,
    default_float,
    default_of,
    float64,
    int_info,
    number_type,
    with_scalar,
)
from .._tensor.node import Spec, spec
from .._tensor.op import Arr, OpKind, from_array, number, op
from .._tensor.role import Progression
from .._tensor.tensor import HOOKS, Array, Tensor
from ..errors import ArgumentError, DTypeError, ShapeError
from . import rules
from .shape import broadcast_to, reshape, stack
from .types import astype

DTypeLike = Any
DeviceLike = Any
_NUMBERS: Final = (bool, int, float, complex)
_PLAIN: Final[tuple[Any, ...]] = (*_NUMBERS, list, tuple, range)
_PYTHON_TYPE: Final[dict[str, Any]] = dict(zip(KINDS, (bool, int, int, float, complex), strict=True))


def place(x: Tensor, device: DeviceLike) -> Tensor:
    """The tensor on a device, if one is named."""
    return x if device is None else x.to_device(device)


@rules.named
def asarray(obj: Any, /, dtype: DTypeLike = None, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """A tensor from numbers, nested lists, NumPy arrays, buffers, DLPack producers or tensors.

    A NumPy array or buffer is copied, so that no later write to it changes a result. The memory of a `bytes` object,
    which nobody can write to, is shared. `copy=False` shares in any case: the caller vouches for it.

    >>> import yosegi as ys
    >>> ys.asarray([1.0, 2.0]) * 2
    Tensor([2., 4.], dtype=float64, device=cpu)
    """
    wanted = rules.optional_dtype(dtype)
    if isinstance(obj, Tensor):
        if copy is False and wanted not in (None, obj.dtype):
            raise ArgumentError(f"expected dtype {obj.dtype.name} for copy=False, got {wanted.name}; leave copy out")
        return place(obj if copy is False else astype(obj, wanted or obj.dtype), device)
    if isinstance(obj, _PLAIN) and not isinstance(obj, np.generic):
        if copy is False:
            raise ArgumentError(f"expected an array or a buffer for copy=False, got {type(obj).__name__}")
        if _holds_tensors(obj):
            stacked = stack([asarray(o) for o in obj])
            return place(astype(stacked, wanted or stacked.dtype), device)
        return place(from_array(_from_numbers(obj, wanted)), device)
    return place(from_array(_host_array(obj, wanted, copy)), device)


def _holds_tensors(obj: Any) -> bool:
    return isinstance(obj, (list, tuple)) and any(isinstance(o, Tensor) or _holds_tensors(o) for o in obj)


def _host_array(obj: Any, dtype: DType | None, copy: bool | None) -> Array:
    if isinstance(obj, (np.ndarray, np.generic)):
        array = np.asarray(obj)
    elif hasattr(obj, "__dlpack__"):
        array = interchange.from_dlpack_array(obj, copy=None)
    elif hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
        array = np.asarray(obj)
    else:
        try:
            array = np.asarray(memoryview(obj))
        except TypeError:
            raise DTypeError(f"expected numbers, an array or a buffer, got {type(obj).__name__}") from None
    own = as_dtype(array.dtype)
    wanted = dtype or own
    if array.dtype != wanted.numpy:
        if copy is False:
            raise ArgumentError(f"expected dtype {array.dtype} for copy=False, got {wanted.name}; leave copy out")
        return _cast(array, wanted)
    return np.array(array) if copy or (copy is None and not interchange.is_immutable(array)) else array


def _cast(array: Array, dtype: DType) -> Array:
    if array.dtype.kind == "c" and not (dtype.is_complex or dtype is bool_):
        raise DTypeError(f"expected a complex dtype for {array.dtype}, got {dtype.name}; take the real part first")
    with np.errstate(all="ignore"):
        return array.astype(dtype.numpy)


def _from_numbers(obj: Any, dtype: DType | None) -> Array:
    try:
        array = np.array(obj)
        if dtype is not None and _all_whole(obj, array):
            array = np.array(obj, dtype.numpy)  # which refuses integers that do not fit
        own = as_dtype(array.dtype)
    except OverflowError:
        assert dtype is not None
        raise DTypeError(f"expected numbers that fit {dtype.name}, got {rules.short(obj)}") from None
    except DTypeError:
        raise DTypeError(f"expected numbers that fit a dtype, got {rules.short(obj)}") from None
    except (ValueError, TypeError):
        raise ArgumentError(f"expected numbers in lists of even lengths, got {rules.short(obj)}") from None
    if dtype is None and own.is_inexact and default_float() is not float64 and not _holds_arrays(obj):
        dtype = default_of(complex if own.is_complex else float)
    return array if dtype in (None, own) else _cast(array, dtype)


def _holds_arrays(obj: Any) -> bool:
    """True if a list holds NumPy's arrays or scalars, which have a dtype of their own."""
    return isinstance(obj, (np.ndarray, np.generic)) or (
        isinstance(obj, (list, tuple)) and any(map(_holds_arrays, obj))
    )


def _all_whole(obj: Any, array: Array) -> bool:
    """Whether the array was made of integers alone. NumPy makes floats of some, and objects of very large ones."""
    if array.dtype.kind not in "fO":
        return array.dtype.kind in "iu"
    return array.size > 0 and all(isinstance(v, (int, np.integer)) for v in np.array(obj, object).flat)


@rules.named
def from_numpy(array: Array, /, *, copy: bool | None = None) -> Tensor:
    """A tensor from a NumPy array, by the rule of `asarray`."""
    if not isinstance(array, np.ndarray):
        raise DTypeError(f"expected a NumPy array, got {type(array).__name__}; use asarray")
    return asarray(array, copy=copy)


@rules.named
def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """A tensor on another library's memory. This is the door for sharing: nothing is copied unless `copy=True`, and
    who writes to the memory afterwards changes what is computed from it."""
    return place(from_array(interchange.from_dlpack_array(x, copy)), device)


# Patterns


@rules.named
def full(shape: Any, fill_value: Any, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor of one value."""
    wanted = rules.optional_dtype(dtype)
    if isinstance(fill_value, (Tensor, np.ndarray, np.generic)):
        if fill_value.ndim:
            raise ShapeError(f"expected one value, got shape {fill_value.shape}; use broadcast_to")
        value = asarray(fill_value, dtype=wanted)
    elif (kind := number_type(fill_value)) is not None:
        value = _in_kind(fill_value, kind, wanted or default_of(kind))
    else:
        raise DTypeError(f"expected a number, got {type(fill_value).__name__}")
    return place(broadcast_to(value, rules.normal_shape(shape)), device)


def _in_kind(value: Any, kind: type, dtype: DType) -> Tensor:
    if with_scalar(dtype, kind) is not dtype:  # a number of the dtype's own kind: among integers, 1.5 is 1
        try:
            value = _PYTHON_TYPE[dtype.kind](value)
        except (TypeError, ValueError, OverflowError):
            raise DTypeError(f"expected a number that fits {dtype.name}, got {value!r}") from None
    return number(value, dtype)


@rules.named
def zeros(shape: Any, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype=dtype or default_float(), device=device)


@rules.named
def ones(shape: Any, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor of ones."""
    return full(shape, 1, dtype=dtype or default_float(), device=device)


@rules.named
def empty(shape: Any, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor whose values do not matter; they are zeros, for nothing ever shows what memory held before."""
    return zeros(shape, dtype=dtype, device=device)


@rules.on_tensor
def full_like(x: Tensor, /, fill_value: Any, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor of one value, shaped and typed like `x`, and distributed over the same ranks."""
    return HOOKS.with_layout_of(full(x.shape, fill_value, dtype=dtype or x.dtype, device=device), x._node.spec)


@rules.on_tensor
def zeros_like(x: Tensor, /, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor of zeros, shaped and typed like `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


@rules.on_tensor
def ones_like(x: Tensor, /, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor of ones, shaped and typed like `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


@rules.on_tensor
def empty_like(x: Tensor, /, dtype: DTypeLike = None, *, device: DeviceLike = None) -> Tensor:
    """A tensor whose values do not matter, shaped and typed like `x`."""
    return zeros_like(x, dtype=dtype, device=device)


def _steps(start: Any, stop: Any, step: Any) -> int:
    """How many steps from start to before stop."""
    if step == 0:
        raise ArgumentError(f"expected a step other than 0, got {step}")
    try:
        span = stop - start
        if _whole(span, step):
            n: int = -(-span // step)
        else:
            n = ceil(span / step if isfinite(span) else (stop / 2 - start / 2) / step * 2)
    except OverflowError:
        raise ArgumentError(f"expected a range of finite length, got {start} to {stop} by {step}") from None
    return max(0, n)


def _whole(*numbers: Any) -> bool:
    return all(isinstance(n, int) for n in numbers)


def _expect_fit(dtype: DType, *numbers: float) -> None:
    """Raise unless the integer dtype has room for these numbers, rounded down."""
    info = int_info(dtype)
    for n in numbers:
        if not info.min <= n < info.max + 1:
            raise DTypeError(f"expected numbers that fit {dtype.name}, got {rules.short(n)}; choose another dtype")


def _count_rule(*, start: Any, stop: Any, step: Any, dtype: DType) -> Spec:
    for value in (start, stop, step):
        _number(value, "a finite real number", (int, float))
    n = _steps(start, stop, step)
    out = spec((n,), dtype)
    if not (dtype.is_integer and _whole(start, step)):
        start, step = rules.as_float(start), rules.as_float(step)
    if n and dtype.is_integer:
        _expect_fit(dtype, start, start + (n - 1) * step)
    return out


@op(OpKind.SOURCE, infer=_count_rule, role=Progression(is_counted=True))
def count(*, start: float, stop: float, step: float, dtype: DType) -> Arr:
    """Evenly spaced numbers, by their step."""
    n = _steps(start, stop, step)
    if dtype.is_integer and _whole(start, step):  # modulo 2**64, which holds every integer dtype
        first, by = (np.asarray(v % 2**64, np.uint64) for v in (start, step))
        return (first + by * np.arange(n, dtype=np.uint64)).astype(dtype.numpy)
    start, step = rules.as_float(start), rules.as_float(step)
    scale = 1.0 if isfinite(step * n) else 0.5  # no product on the way overflows
    return ((start * scale + step * scale * np.arange(n, dtype=np.float64)) / scale).astype(dtype.numpy)


def _number(value: Any, what: str, kinds: Any) -> Any:
    """A Python number from a number or a tensor of one."""
    number = rules.as_tensor(value).item() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value
    if not isinstance(number, kinds):
        raise DTypeError(f"expected {what}, got {value!r}")
    if complex not in kinds and isinstance(number, float) and not isfinite(number):
        raise ArgumentError(f"expected {what}, got {value!r}")
    return number


@rules.named
def arange(
    start: float, /, stop: float | None = None, step: float = 1, dtype: DTypeLike = None, *, device: DeviceLike = None
) -> Tensor:
    """Evenly spaced numbers from start (0 if left out) to before stop."""
    if stop is None:
        start, stop = 0, start
    start, stop, step = (_number(v, "a finite real number", (int, float)) for v in (start, stop, step))
    default = DEFAULT_INT if _whole(start, stop, step) else default_float()
    made = count(start=start, stop=stop, step=step, dtype=rules.optional_dtype(dtype) or default)
    return place(made, device)


def _spaced_rule(*, start: Any, stop: Any, num: int, dtype: DType, endpoint: bool) -> Spec:
    out = spec(rules.normal_shape(num), dtype)
    if not (dtype.is_integer and _whole(start, stop)):
        start, stop = rules.as_float(start), rules.as_float(stop)
    if num and dtype.is_integer:
        last = stop if endpoint and num > 1 else start + (stop - start) * (num - 1) // num
        _expect_fit(dtype, start, last)
    return out


@op(OpKind.SOURCE, infer=_spaced_rule, role=Progression(is_counted=False))
def spaced(*, start: complex, stop: complex, num: int, dtype: DType, endpoint: bool) -> Arr:
    """Evenly spaced numbers, by how many. Integers are rounded down."""
    if dtype.is_integer and _whole(start, stop):  # exactly, where floats would not be
        steps = np.arange(num, dtype=object) * (stop - start) // max(1, num - endpoint)
        return (start + steps).astype(dtype.numpy)
    made = np.linspace(rules.as_float(start), rules.as_float(stop), num, endpoint=endpoint)
    return (np.floor(made) if dtype.is_integer else made).astype(dtype.numpy)


@rules.named
def linspace(
    start: complex,
    stop: complex,
    /,
    num: int = 50,
    *,
    dtype: DTypeLike = None,
    device: DeviceLike = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` evenly spaced numbers from start to stop, with or without stop itself."""
    start, stop = (_number(v, "a number", (int, float, complex)) for v in (start, stop))
    num = rules.as_index(num, "num")
    if num < 0:
        raise ArgumentError(f"expected num of at least 0, got {num}")
    default = default_complex() if isinstance(start, complex) or isinstance(stop, complex) else default_float()
    wanted = rules.optional_dtype(dtype) or default
    if default.is_complex and not wanted.is_complex:
        raise DTypeError(f"expected a complex dtype from {start} to {stop}, got {wanted.name}; take ys.real first")
    return place(spaced(start=start, stop=stop, num=num, dtype=wanted, endpoint=bool(endpoint)), device)


def _ones_rule(*, n_rows: int, n_cols: int, k: int, dtype: DType) -> Spec:
    return spec(rules.normal_shape((n_rows, n_cols)), dtype)


@op(OpKind.SOURCE, infer=_ones_rule)
def diagonal_ones(*, n_rows: int, n_cols: int, k: int, dtype: DType) -> Arr:
    """A matrix with ones on one diagonal."""
    within = max(-n_rows, min(k, n_cols))  # beyond, there is no diagonal; NumPy overflows on the largest numbers
    return np.eye(n_rows, n_cols, within).astype(dtype.numpy)


@rules.named
def eye(
    n_rows: int, n_cols: int | None = None, /, k: int = 0, dtype: DTypeLike = None, *, device: DeviceLike = None
) -> Tensor:
    """A matrix with ones on the k-th diagonal and zeros elsewhere."""
    rows, cols = rules.normal_shape((n_rows, n_rows if n_cols is None else n_cols))
    wanted = rules.optional_dtype(dtype) or default_float()
    return place(diagonal_ones(n_rows=rows, n_cols=cols, k=rules.as_index(k, "k"), dtype=wanted), device)


@rules.named
def meshgrid(*arrays: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinate tensors of the grid that 1-d coordinates span; "xy" has the second coordinate first."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"expected indexing 'xy' or 'ij', got {indexing!r}")
    tensors = [rules.as_tensor(a) for a in arrays]
    if any(t.ndim > 1 for t in tensors):
        raise ShapeError(f"expected 1-d tensors, got shapes {[t.shape for t in tensors]}")
    axes = list(range(len(tensors)))
    if indexing == "xy" and len(tensors) > 1:
        axes[:2] = [1, 0]
    sizes = {axis: t.size for axis, t in zip(axes, tensors, strict=True)}
    shape = tuple(sizes[i] for i in range(len(tensors)))
    return tuple(
        broadcast_to(reshape(t, tuple(t.size if i == axis else 1 for i in range(len(tensors)))), shape)
        for axis, t in zip(axes, tensors, strict=True)
    )
