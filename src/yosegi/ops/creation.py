"""Tensors from data, and tensors of a pattern."""

from __future__ import annotations

from math import ceil, isfinite
from typing import Any, Final

import numpy as np

from .. import interchange
from ..dtype import DEFAULT_COMPLEX, DEFAULT_FLOAT, DEFAULT_INT, KINDS, DType, as_dtype, bool_, number_type, with_scalar
from ..errors import ArgumentError, DTypeError, ShapeError
from ..node import spec
from ..op import Arr, OpKind, from_array, number, op
from ..tensor import Array, Tensor
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
    elif hasattr(obj, "__array__"):
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
        whole = array.dtype.kind in "iu" or (array.dtype == object and all(type(v) is int for v in array.flat))
        if dtype is not None and whole:
            array = np.array(obj, dtype.numpy)  # which refuses integers that do not fit
        own = as_dtype(array.dtype)
    except OverflowError:
        assert dtype is not None
        raise DTypeError(f"expected numbers that fit {dtype.name}, got {_short(obj)}") from None
    except DTypeError:
        raise DTypeError(f"expected numbers that fit a dtype, got {_short(obj)}") from None
    except (ValueError, TypeError):
        raise ArgumentError(f"expected numbers in lists of even lengths, got {_short(obj)}") from None
    return array if dtype in (None, own) else _cast(array, dtype)


def _short(obj: Any) -> str:
    text = repr(obj)
    return text if len(text) <= 40 else text[:37] + "..."


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
def full(shape: Any, fill_value: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of one value."""
    wanted = rules.optional_dtype(dtype)
    if isinstance(fill_value, Tensor):
        if fill_value.ndim:
            raise ShapeError(f"expected one value, got shape {fill_value.shape}; use broadcast_to")
        value = astype(fill_value, wanted or fill_value.dtype)
    elif isinstance(fill_value, np.generic):
        value = asarray(fill_value, dtype=wanted)
    elif (kind := number_type(fill_value)) is not None:
        value = _in_kind(fill_value, kind, wanted or as_dtype(kind))
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
def zeros(shape: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of zeros."""
    return full(shape, 0, dtype=dtype or DEFAULT_FLOAT, device=device)


@rules.named
def ones(shape: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of ones."""
    return full(shape, 1, dtype=dtype or DEFAULT_FLOAT, device=device)


@rules.named
def empty(shape: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor whose values do not matter; they are zeros, for nothing ever shows what memory held before."""
    return zeros(shape, dtype=dtype, device=device)


@rules.named
def full_like(x: Tensor, /, fill_value: Any, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of one value, shaped and typed like `x`."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device)


@rules.named
def zeros_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of zeros, shaped and typed like `x`."""
    return full_like(x, 0, dtype=dtype, device=device)


@rules.named
def ones_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor of ones, shaped and typed like `x`."""
    return full_like(x, 1, dtype=dtype, device=device)


@rules.named
def empty_like(x: Tensor, /, *, dtype: DTypeLike = None, device: DeviceLike = None) -> Tensor:
    """A tensor whose values do not matter, shaped and typed like `x`."""
    return zeros_like(x, dtype=dtype, device=device)


def _steps(start: Any, stop: Any, step: Any) -> int:
    """How many steps from start to before stop."""
    if step == 0:
        raise ArgumentError(f"expected a step other than 0, got {step}")
    n: int = -((start - stop) // step) if _whole(start, stop, step) else ceil((stop - start) / step)
    return max(0, n)


def _whole(*numbers: Any) -> bool:
    return all(isinstance(n, int) for n in numbers)


@op(OpKind.SOURCE, infer=lambda *, start, stop, step, dtype: spec((_steps(start, stop, step),), dtype))
def count(*, start: Any, stop: Any, step: Any, dtype: DType) -> Arr:
    """Evenly spaced numbers, by their step."""
    n = _steps(start, stop, step)
    if dtype.is_integer and _whole(start, step):  # modulo 2**64, which holds every integer dtype
        first, by = (np.asarray(v % 2**64, np.uint64) for v in (start, step))
        return (first + by * np.arange(n, dtype=np.uint64)).astype(dtype.numpy)
    return (start + step * np.arange(n, dtype=np.float64)).astype(dtype.numpy)


def _number(value: Any, what: str, kinds: Any) -> Any:
    """A Python number from a number or a tensor of one."""
    number = value.item() if isinstance(value, (Tensor, np.generic)) else value
    if not isinstance(number, kinds):
        raise DTypeError(f"expected {what}, got {value!r}")
    if complex not in kinds and not isfinite(number):
        raise ArgumentError(f"expected {what}, got {value!r}")
    return number


@rules.named
def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """Evenly spaced numbers from start (0 if left out) to before stop."""
    if stop is None:
        start, stop = 0, start
    start, stop, step = (_number(v, "a finite real number", (int, float)) for v in (start, stop, step))
    default = DEFAULT_INT if _whole(start, stop, step) else DEFAULT_FLOAT
    made = count(start=start, stop=stop, step=step, dtype=rules.optional_dtype(dtype) or default)
    return place(made, device)


@op(OpKind.SOURCE, infer=lambda *, start, stop, num, dtype, endpoint: spec((num,), dtype))
def spaced(*, start: Any, stop: Any, num: int, dtype: DType, endpoint: bool) -> Arr:
    """Evenly spaced numbers, by how many."""
    return np.linspace(start, stop, num, endpoint=endpoint).astype(dtype.numpy)


@rules.named
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
    start, stop = (_number(v, "a number", (int, float, complex)) for v in (start, stop))
    num = rules.as_index(num, "num")
    if num < 0:
        raise ArgumentError(f"expected num of at least 0, got {num}")
    default = DEFAULT_COMPLEX if isinstance(start, complex) or isinstance(stop, complex) else DEFAULT_FLOAT
    wanted = rules.optional_dtype(dtype) or default
    if default.is_complex and not wanted.is_complex:
        raise DTypeError(f"expected a complex dtype from {start} to {stop}, got {wanted.name}; take ys.real first")
    return place(spaced(start=start, stop=stop, num=num, dtype=wanted, endpoint=bool(endpoint)), device)


@op(OpKind.SOURCE, infer=lambda *, n_rows, n_cols, k, dtype: spec((n_rows, n_cols), dtype))
def diagonal_ones(*, n_rows: int, n_cols: int, k: int, dtype: DType) -> Arr:
    """A matrix with ones on one diagonal."""
    return np.eye(n_rows, n_cols, k).astype(dtype.numpy)


@rules.named
def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike = None, device: DeviceLike = None
) -> Tensor:
    """A matrix with ones on the k-th diagonal and zeros elsewhere."""
    rows, cols = rules.normal_shape((n_rows, n_rows if n_cols is None else n_cols))
    wanted = rules.optional_dtype(dtype) or DEFAULT_FLOAT
    return place(diagonal_ones(n_rows=rows, n_cols=cols, k=rules.as_index(k, "k"), dtype=wanted), device)


@rules.named
def meshgrid(*arrays: Tensor, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Coordinate tensors of the grid that 1-d coordinates span; "xy" has the second coordinate first."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"expected indexing 'xy' or 'ij', got {indexing!r}")
    if any(a.ndim > 1 for a in arrays):
        raise ShapeError(f"expected 1-d tensors, got shapes {[a.shape for a in arrays]}")
    axes = list(range(len(arrays)))
    if indexing == "xy" and len(arrays) > 1:
        axes[:2] = [1, 0]
    sizes = {axis: a.size for axis, a in zip(axes, arrays, strict=True)}
    shape = tuple(sizes[i] for i in range(len(arrays)))
    return tuple(
        broadcast_to(reshape(a, tuple(a.size if i == axis else 1 for i in range(len(arrays)))), shape)
        for axis, a in zip(axes, arrays, strict=True)
    )
