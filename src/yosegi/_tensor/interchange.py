"""Values on their way in and out: NumPy, DLPack, pickles, text.

DLPack is NumPy's, zero-copy both ways. NumPy does not know bfloat16, so such arrays travel as uint16 and the type
code in the capsule is changed on the way: the bytes are the same.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType
from typing import Any, Final, TypeAlias

import numpy as np

from ..errors import ArgumentError, DTypeError
from .dtype import bfloat16
from .html import heading, picture, preformatted
from .node import Node, fetch
from .role import Leaf
from .tracebacks import PACKAGE, function_of, package_of

Array: TypeAlias = np.ndarray[Any, Any]

HOST_DEVICE: Final = (1, 0)  # kDLCPU of the DLPack standard
_SMALL_PART: Final = 4  # a view of less than one in so many bytes of its memory is copied, to let go of the rest
_DL_UINT: Final = 1
_DL_BFLOAT: Final = 4


def host_array(node: Node) -> Array:
    """The node's value as a host array that cannot be made writeable, computed if it was not yet."""
    return sealed(read(node))


@dataclass(frozen=True, slots=True)
class ValueRead:
    """A value that left the graph, and where."""

    node: Node
    place: str
    """The call and the user's line."""


READS: Final[ContextVar[list[ValueRead] | None]] = ContextVar("reads", default=None)
"""Where reads are noted, while a function is being recorded for a gradient: no gradient comes through them."""
_CALLS: Final = {"__array__": "NumPy", "__dlpack__": "DLPack", "__buffer__": "a buffer"}


def read(node: Node) -> Array:
    """The node's value as a host array, computed if it was not yet. It may be writeable: not to be handed out."""
    if node.spec.layout is not None:
        raise ArgumentError(
            f"[numpy] expected a value that every rank has, got one with the layout {node.spec.layout}; use "
            "ys.distributed.gather on all ranks, or ys.distributed.local for this rank's part"
        )
    noted = READS.get()
    if noted is not None:
        noted.append(ValueRead(node, _place()))
    array: Array = fetch(node)
    return array


def _place() -> str:
    """The function of this package that was called, and the user's line that did it, through NumPy or not."""
    frame: FrameType | None = sys._getframe(1)
    name = ""
    while frame is not None:
        package = package_of(frame)
        if package not in (PACKAGE, "numpy"):
            break
        name = function_of(frame) if package == PACKAGE else name
        frame = frame.f_back
    call = _CALLS.get(name, f"{name.strip('_')}()")
    return call if frame is None else f"{call} at {frame.f_code.co_filename}:{frame.f_lineno}"


class _Sealed:
    """Owns the memory of an array, and offers it for reading only. NumPy asks the owner before it makes a view of it
    writeable: the flag of a view of an array could be set again."""

    __slots__ = ("__array_interface__", "_array")

    def __init__(self, array: Array) -> None:
        interface = array.__array_interface__
        interface["data"] = (interface["data"][0], True)
        self.__array_interface__ = interface
        self._array = array


def sealed(array: Array) -> Array:
    """A view of the array that cannot be made writeable; the array itself if it cannot."""
    if type(array.base) is _Sealed:
        return array
    view = np.asarray(_Sealed(array))
    return view if view.dtype == array.dtype else view.view(array.dtype)


def settled(array: Array) -> Array:
    """A result that may be a view, as one that is good to keep: not a constant's memory, which many tensors share, not
    a broadcast one, nor a sliver of a large array."""
    if not array.flags.writeable:
        return array.copy()
    base = array.base
    if base is None:
        return array
    sliver = isinstance(base, np.ndarray) and array.nbytes * _SMALL_PART < base.nbytes
    repeats = 0 in array.strides and any(s == 0 and n > 1 for s, n in zip(array.strides, array.shape, strict=True))
    return array.copy() if sliver or repeats else array


def is_immutable(array: Array) -> bool:
    """True if this memory cannot be written: it belongs to a `bytes` object. An array's own flag can be set again."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return isinstance(owner.obj if isinstance(owner, memoryview) else owner, bytes)


def plain(array: Array) -> Array:
    """The array in a dtype that NumPy's own formats know."""
    return array.view(np.uint16) if array.dtype == bfloat16.numpy else array


def describe(node: Node, device: Callable[[], Any]) -> str:
    """NumPy's text for the value, with dtype and device; a value that cannot be had yet is described by its spec."""
    if node.buffer is None and _is_placeholder(node):
        return f"Tensor(<traced {node.spec!r}>)"
    array: Array = fetch(node)
    dtype = node.spec.dtype
    shown = array.astype(np.float32) if dtype is bfloat16 else array
    body = np.array2string(shown, separator=", ", prefix="Tensor(")
    if array.size == 0:
        body = f"[], shape={array.shape}"
    layout = "" if node.spec.layout is None else f", shape={node.spec.shape}, layout={node.spec.layout}"
    return f"Tensor({body}, dtype={dtype.name}, device={device()}{layout})"


_FEW: Final = 64
"""Elements that a notebook shows as text."""


def describe_html(node: Node, device: Callable[[], Any]) -> str:
    """HTML with shape, dtype and device, and the value if it is computed: few elements as text, more as a picture."""
    facts = f"shape {node.spec.shape}, {node.spec.dtype.name}"
    if node.buffer is None:
        return heading("Tensor", f"{facts}, not computed yet")
    array: Array = fetch(node)
    shown = array.astype(np.float32) if node.spec.dtype is bfloat16 else array
    body = preformatted(np.array2string(shown, separator=", ")) if array.size <= _FEW else picture(shown)
    return heading("Tensor", f"{facts}, on {device()}") + body


def describe_briefly(node: Node, device: Callable[[], Any]) -> str:
    """The text of `describe` for a computed value; the spec alone for another."""
    return describe(node, device) if node.buffer is not None else f"Tensor(<{node.spec!r}, not computed yet>)"


def _is_placeholder(node: Node) -> bool:
    """True if the value depends on an argument of a function that is being traced."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if current in seen or current.buffer is not None:
            continue
        seen.add(current)
        if isinstance(current.call.op.role, Leaf):
            return True
        stack.extend(current.inputs)
    return False


# DLPack ---------------------------------------------------------------------------------------------------------


def is_array(value: Any) -> bool:
    """True for arrays of NumPy and of other libraries, whose elements may change."""
    return isinstance(value, (np.ndarray, np.generic)) or hasattr(type(value), "__dlpack__")


def class_name(value: Any) -> str:
    """The name of a value's class, with the library of another library's: a `torch.Tensor` is no `Tensor`."""
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    return kind.__name__ if library in ("builtins", "numpy", PACKAGE) else f"{library}.{kind.__name__}"


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
    ]  # shape, strides and byte_offset follow; nothing here reads them


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


def _dl_type(capsule: Any) -> _DLDataType:
    """The type code inside a capsule, for reading and changing."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype = ctypes.c_char_p
    api.PyCapsule_GetName.argtypes = [ctypes.py_object]
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    name = api.PyCapsule_GetName(capsule)
    address = api.PyCapsule_GetPointer(capsule, name)
    if name == b"dltensor_versioned":
        return _Versioned.from_address(address).tensor.dtype  # type: ignore[no-any-return]
    return _DLTensor.from_address(address).dtype  # type: ignore[no-any-return]


def to_dlpack(
    node: Node,
    stream: Any,
    max_version: tuple[int, int] | None,
    dl_device: tuple[Any, int] | None,
    copy: bool | None,
) -> Any:
    """A DLPack capsule of the node's value: zero-copy, and marked read-only.

    The first DLPack protocol cannot say "read-only", and some consumers of later ones do not listen. So those of the
    first get a copy, and all do of memory that really must not be written (a constant's, another owner's), unless
    they insist with `copy=False`. All get a copy of a value with negative strides, of which some consumers abort the
    process.
    """
    if stream is not None:
        raise ArgumentError(f"[__dlpack__] expected stream=None for values in host memory, got {stream!r}")
    if dl_device is not None and (int(dl_device[0]), dl_device[1]) != HOST_DEVICE:
        raise BufferError(f"[__dlpack__] expected dl_device={HOST_DEVICE}, got {dl_device}; move the tensor first")
    array = read(node)
    if any(stride < 0 for stride in array.strides):
        if copy is False:
            raise BufferError(f"[__dlpack__] expected copy=None for a value of strides {array.strides}, got copy=False")
        array, copy = array.copy(), None
    if max_version is None or max_version[0] < 1:
        array = array if copy is False else array.copy()
        max_version = copy = None
    else:
        copy = copy if copy is not None or array.flags.writeable else True
        array = sealed(array)
    capsule = plain(array).__dlpack__(max_version=max_version, copy=copy)
    if array.dtype == bfloat16.numpy:
        _dl_type(capsule).code = _DL_BFLOAT
    return capsule


class _AsUint16:
    """A producer of bfloat16 data that NumPy takes for uint16. Remembers which it was."""

    def __init__(self, producer: Any) -> None:
        self.producer = producer
        self.was_bfloat16 = False

    def __dlpack__(self, **kwargs: Any) -> Any:
        capsule = self.producer.__dlpack__(**kwargs)
        dtype = _dl_type(capsule)
        if dtype.code == _DL_BFLOAT and dtype.bits == 16:
            dtype.code = _DL_UINT
            self.was_bfloat16 = True
        return capsule

    def __dlpack_device__(self) -> Any:
        return self.producer.__dlpack_device__()


def from_dlpack_array(producer: Any, copy: bool | None) -> Array:
    """The producer's data as a host array, without a copy unless one is asked for."""
    if not hasattr(producer, "__dlpack__"):
        raise DTypeError(f"[from_dlpack] expected an object with __dlpack__, got {class_name(producer)}")
    wrapped = _AsUint16(producer)
    # Producers of the first DLPack protocol know no copy=: they are asked for the memory, and copied from here.
    try:
        array: Array = np.from_dlpack(wrapped)
    except (BufferError, RuntimeError) as error:  # each library raises one of them
        raise BufferError(
            f"[from_dlpack] expected an array that DLPack and NumPy can describe, got {class_name(producer)}: {error}; "
            "convert it with its own library first"
        ) from None
    if copy:
        array = array.copy()
    return array.view(bfloat16.numpy) if wrapped.was_bfloat16 else array
