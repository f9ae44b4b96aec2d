"""The dtypes and their promotion, as one table.

Promotion follows the Array API inside a kind. Between kinds, where the standard leaves it open, the "higher" kind wins,
`bool < integer < real < complex`, in a width that holds the integer too, as in NumPy: `int16 + float32` is `float32`,
`int32 + float32` is `float64`. `float16` with `bfloat16` is `float32`. `uint64` with a signed integer has no common
type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from ..errors import DTypeError

KINDS: Final = ("bool", "signed integer", "unsigned integer", "real floating", "complex floating")


class DType:
    """A data type of tensors. Compare with `==`; `numpy` is the same type in NumPy."""

    __slots__ = ("bits", "kind", "name", "numpy")

    def __init__(self, name: str, kind: str, numpy: Any) -> None:
        self.name = name
        self.kind = kind
        self.numpy = np.dtype(numpy)
        self.bits: int = 8 * self.numpy.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """Real floating point."""
        return self.kind == "real floating"

    @property
    def is_complex(self) -> bool:
        """Complex floating point."""
        return self.kind == "complex floating"

    @property
    def is_inexact(self) -> bool:
        """Real or complex floating point: what gradients flow through."""
        return self.kind in ("real floating", "complex floating")

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer (not bool)."""
        return self.kind in ("signed integer", "unsigned integer")

    @property
    def is_half(self) -> bool:
        """A 16-bit float: stored so, computed in float32."""
        return self.kind == "real floating" and self.bits == 16

    @property
    def dtype(self) -> Any:
        """NumPy's dtype, under the name by which NumPy finds it: `np.zeros(3, dtype=ys.float32)`."""
        return self.numpy

    def __eq__(self, other: object) -> bool:
        """Equal to itself, and to what NumPy or Python call the same type: `x.dtype == np.float32`."""
        if self is other or isinstance(other, DType):
            return self is other
        try:
            return as_dtype(other) is self
        except DTypeError:
            return False

    __hash__ = object.__hash__  # dtypes are looked up on every hot path

    def __repr__(self) -> str:
        return f"yosegi.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)


bool_ = DType("bool", "bool", np.bool_)
int8 = DType("int8", "signed integer", np.int8)
int16 = DType("int16", "signed integer", np.int16)
int32 = DType("int32", "signed integer", np.int32)
int64 = DType("int64", "signed integer", np.int64)
uint8 = DType("uint8", "unsigned integer", np.uint8)
uint16 = DType("uint16", "unsigned integer", np.uint16)
uint32 = DType("uint32", "unsigned integer", np.uint32)
uint64 = DType("uint64", "unsigned integer", np.uint64)
float16 = DType("float16", "real floating", np.float16)
bfloat16 = DType("bfloat16", "real floating", ml_dtypes.bfloat16)
float32 = DType("float32", "real floating", np.float32)
float64 = DType("float64", "real floating", np.float64)
complex64 = DType("complex64", "complex floating", np.complex64)
complex128 = DType("complex128", "complex floating", np.complex128)

ALL: Final = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
DEFAULT_INT: Final = int64

_BY_NAME: Final = {d.name: d for d in ALL}
_BY_NUMPY: Final = {d.numpy: d for d in ALL}
_BY_PYTHON: Final[dict[Any, DType]] = {bool: bool_, int: int64, float: float64, complex: complex128}
_RANK: Final = {kind: rank for rank, kind in enumerate(KINDS)}
_SIGNED: Final = {d.bits: d for d in (int8, int16, int32, int64)}
_COMPLEX_OF: Final = {float16: complex64, bfloat16: complex64, float32: complex64, float64: complex128}
_REAL_OF: Final = {complex64: float32, complex128: float64}
_DIGITS: Final = {float16: 11, bfloat16: 8, float32: 24, float64: 53}


class _Default:
    """The dtype of Python floats, and of functions of real numbers that are given integers."""

    real = float64
    listeners: Final[list[Callable[[], None]]] = []


def _join(a: DType, b: DType) -> DType | None:
    if a is b:
        return a
    if _RANK[a.kind] > _RANK[b.kind]:
        a, b = b, a
    if a.kind == b.kind:
        return float32 if a.bits == b.bits else max(a, b, key=lambda d: d.bits)
    if a.kind == "signed integer" and b.kind == "unsigned integer":
        return _SIGNED.get(max(a.bits, 2 * b.bits))
    if a.is_float:
        return complex128 if a is float64 else b
    return _holding(a, b) if a.is_integer else b


def _holding(integer: DType, inexact: DType) -> DType:
    """The floating dtype, `inexact` or wider, that has a digit for each of the integer's, or as many as the default
    float has."""
    digits = integer.bits - (integer.kind == "signed integer")
    for real in (real_of(inexact), float32, float64):
        if _DIGITS[real] >= min(digits, _DIGITS[_Default.real]):
            return real if inexact.is_float else _COMPLEX_OF[real]
    raise AssertionError("float64 has the most digits")


def real_of(dtype: DType) -> DType:
    """The dtype of the parts of a complex `dtype`, else `dtype` itself."""
    return _REAL_OF.get(dtype, dtype)


PROMOTION: Final[dict[tuple[DType, DType], DType | None]] = {}


def _promote_all() -> None:
    PROMOTION.update({(a, b): _join(a, b) for a in ALL for b in ALL})


_promote_all()


def promote(a: DType, b: DType) -> DType:
    """The common dtype of two, or a `DTypeError` where there is none."""
    common = PROMOTION[a, b]
    if common is None:
        raise DTypeError(f"expected dtypes with a common type, got {a.name} and {b.name}; cast one with astype")
    return common


def rank(dtype: DType) -> int:
    """How high the dtype's kind is: promotion goes upwards."""
    return _RANK[dtype.kind]


def number_type(value: Any) -> type | None:
    """The type of a Python number: `bool`, `int`, `float` or `complex`; `None` for any other value."""
    return next((t for t in _BY_PYTHON if isinstance(value, t)), None)


def default_float() -> DType:
    """The floating dtype that numbers without one become."""
    return _Default.real


def default_complex() -> DType:
    """The complex dtype that numbers without one become."""
    return _COMPLEX_OF[_Default.real]


def default_of(python_type: type) -> DType:
    """The dtype of a Python number that meets no tensor."""
    if python_type is float:
        return _Default.real
    return default_complex() if python_type is complex else _BY_PYTHON[python_type]


def on_new_default(forget: Callable[[], None]) -> None:
    """Have a function called when the default changes: what was inferred under the old one is wrong then."""
    _Default.listeners.append(forget)


def set_default_dtype(dtype: Any, /) -> None:
    """Set the floating dtype that numbers without one become, for the whole process: float64 or float32.

    It is that of Python floats and complex numbers in `asarray`, of `zeros`, `ones`, `linspace` and random numbers
    without a dtype, and of `exp`, `/` or `mean` of integers. Integers that meet a float32 become float32 under it, not
    float64. Tensors that exist, and NumPy arrays, keep their dtype.

    - `dtype`: `float64`, which is the default, or `float32`.

    >>> import yosegi as ys
    >>> ys.set_default_dtype(ys.float32)
    >>> ys.zeros((2,)).dtype, (ys.asarray([1, 2]) / 2).dtype
    (yosegi.float32, yosegi.float32)
    >>> ys.set_default_dtype(ys.float64)
    """
    wanted = as_dtype(dtype)
    if wanted not in (float32, float64):
        raise DTypeError(f"[set_default_dtype] expected float32 or float64, got {wanted.name}")
    _Default.real = wanted
    _promote_all()
    for forget in _Default.listeners:
        forget()


def get_default_dtype() -> DType:
    """The floating dtype that numbers without one become.

    >>> import yosegi as ys
    >>> ys.get_default_dtype()
    yosegi.float64
    """
    return _Default.real


def with_scalar(dtype: DType, scalar_type: type) -> DType:
    """The dtype of a tensor of `dtype` met by a Python scalar: the tensor's, unless the scalar's kind is higher."""
    scalar = default_of(scalar_type)
    if _RANK[scalar.kind] <= _RANK[dtype.kind]:
        return dtype
    if scalar.is_complex and dtype.is_float:
        return _COMPLEX_OF[dtype]
    return scalar


def complex_of(dtype: DType) -> DType:
    """The complex dtype whose parts hold `dtype`."""
    return dtype if dtype.is_complex else _COMPLEX_OF.get(dtype, default_complex())


def as_dtype(obj: Any) -> DType:
    """A `DType` from itself, its name, a NumPy dtype or a Python number type."""
    if isinstance(obj, DType):
        return obj
    if isinstance(obj, np.dtype) and obj in _BY_NUMPY:
        return _BY_NUMPY[obj]
    if isinstance(obj, str) and obj in _BY_NAME:
        return _BY_NAME[obj]
    if isinstance(obj, type) and obj in _BY_PYTHON:
        return _BY_PYTHON[obj]
    try:
        found = None if obj is None else _BY_NUMPY.get(np.dtype(obj).newbyteorder("="))
    except (TypeError, ValueError, SyntaxError):  # NumPy evaluates some texts
        found = None
    if found is None:
        raise DTypeError(f"expected a dtype among {', '.join(_BY_NAME)}, got {obj!r}")
    return found


@dataclass(frozen=True, slots=True)
class FloatInfo:
    """Machine limits of a floating-point dtype (of its parts, if complex)."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IntInfo:
    """Machine limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: DType


def float_info(dtype: DType) -> FloatInfo:
    """The limits of a real or complex floating dtype."""
    if not dtype.is_inexact:
        raise DTypeError(f"[finfo] expected a floating dtype, got {dtype.name}; iinfo is for integers")
    real = real_of(dtype)
    info = ml_dtypes.finfo(real.numpy)
    return FloatInfo(real.bits, float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), real)


def int_info(dtype: DType) -> IntInfo:
    """The limits of an integer dtype."""
    if not dtype.is_integer:
        raise DTypeError(f"[iinfo] expected an integer dtype, got {dtype.name}; finfo is for floats")
    info = np.iinfo(dtype.numpy)
    return IntInfo(info.bits, int(info.max), int(info.min), dtype)


_DTYPE_KINDS: Final[dict[str, tuple[str, ...]]] = {
    "bool": ("bool",),
    "signed integer": ("signed integer",),
    "unsigned integer": ("unsigned integer",),
    "integral": ("signed integer", "unsigned integer"),
    "real floating": ("real floating",),
    "complex floating": ("complex floating",),
    "numeric": KINDS[1:],
}


def is_kind(dtype: DType, kind: DType | str | tuple[DType | str, ...]) -> bool:
    """True if `dtype` is of a kind by the standard's names, is that dtype, or is any of several."""
    if isinstance(kind, tuple):
        return any(is_kind(dtype, k) for k in kind)
    if isinstance(kind, DType):
        return dtype is kind
    if kind not in _DTYPE_KINDS:
        raise DTypeError(f"[isdtype] expected a kind among {', '.join(_DTYPE_KINDS)}, got {kind!r}")
    return dtype.kind in _DTYPE_KINDS[kind]
