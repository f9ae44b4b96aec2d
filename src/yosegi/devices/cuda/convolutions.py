"""Convolutions through cuDNN, where it is installed: as its plainest functions, on tensors as they lie.

Its descriptions have at least two lengths: a convolution along one is one along two, the first of which is 1. What it
lacks, a spread or padding that differs from side to side, generated kernels have.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ctypes import CDLL, Structure, byref, c_char_p, c_double, c_float, c_int, c_size_t, c_void_p
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from weakref import finalize

import numpy as np

from ...device import Kernel
from ...dtype import DType, bfloat16, float16, float32, float64
from ...errors import CompileFailure, LaunchFailure
from ...fuse import Region, is_constant
from ...node import Call, Shape
from ...precision import Precision
from ...reference import bind
from .blas import loaded
from .errors import translated
from .launch import WORKSPACE, Queue
from .memory import Data

_DATA_TYPES: Final[dict[DType, int]] = {float32: 0, float64: 1, float16: 2, bfloat16: 9}
"""cudnnDataType_t."""
_NOT_TURNED_AROUND: Final = 1
"""cudnnConvolutionMode_t: what deep learning calls a convolution."""
_CHANNELS_FIRST: Final = 0
_TENSOR_CORES, _AS_THEY_ARE = 1, 3
"""cudnnMathType_t: for float, the first rounds to TF32."""
ALGORITHMS: Final = {"implicit product": 0, "precomputed product": 1, "product": 2}
"""cudnnConvolutionFwdAlgo_t: products of matrices, in which a result depends on its own window alone. Not those by
Fourier transforms or Winograd's, whose error is a share of the largest number around."""
_LARGEST: Final = 2**31 - 1
_LEAST_VERSION: Final = 8000
_MOST_FOUND: Final = 8


class _Performance(Structure):
    """cudnnConvolutionFwdAlgoPerf_t."""

    _fields_ = (
        ("algorithm", c_int), ("status", c_int), ("time", c_float), ("memory", c_size_t), ("determinism", c_int),
        ("math", c_int), ("reserved", c_int * 3),
    )  # fmt: skip


class CUDNNError(RuntimeError):
    """A status of the library's that is not success."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


@cache
def _library() -> CDLL | None:
    """The library, if it is there: loaded already, where the system looks, or as a package."""
    places = [loaded("libcudnn.so"), "libcudnn.so.9", "libcudnn.so.8"]
    package = find_spec("nvidia.cudnn") if find_spec("nvidia") is not None else None
    for folder in (package.submodule_search_locations or ()) if package is not None else ():
        places += [str(p) for p in sorted(Path(folder, "lib").glob("libcudnn.so.*"))]
    for place in places:
        try:
            found = CDLL(place)
        except OSError:
            continue
        found.cudnnGetVersion.restype = c_size_t
        if found.cudnnGetVersion() >= _LEAST_VERSION:
            found.cudnnGetErrorString.restype = c_char_p
            return found
    return None


class Convolutions:
    """The convolutions of one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._stream = -1

    def refusal(self, call: Call) -> str | None:
        """Why there is none for a call, or `None`."""
        if _library() is None:
            return "cuDNN is not installed"
        if call.spec.dtype not in _DATA_TYPES:
            return f"cuDNN has no convolution of {call.spec.dtype.name}"
        if any(s > 1 for s in call.attrs["spread"]):
            return "cuDNN has no convolution of elements that stand apart"
        if any(low != high or low < 0 for low, high in call.attrs["padding"]):
            return "cuDNN pads both sides alike"
        sizes = [s.size for s in (*call.inputs, call.spec)]
        if max(sizes) > _LARGEST:
            return "more elements than cuDNN counts"
        return None if all(sizes) else "there is nothing to compute"

    def compiled(self, region: Region, algorithm: int | None = None) -> Kernel:
        """The convolution of a region, at its precision: by an algorithm, or that which the library expects to be the
        fastest of those that sum plainly. Raises `CompileFailure` if it has none."""
        memory, graph, entry = self._queue.memory, region.graph, region.nodes[-1]
        call, args = graph.calls[entry], graph.args[entry]
        constants = {a: memory.from_host(np.asarray(bind(graph.calls[a])())) for a in args if is_constant(graph, a)}
        doing = f"[{self._queue.name}] preparing a convolution"
        try:
            with translated(doing):
                launch = _Convolution(self, call, algorithm, rounds=region.precision is Precision.TF32)
        except LaunchFailure as failure:
            raise CompileFailure(str(failure)) from failure

        def kernel(*data: Data) -> tuple[Data, ...]:
            given = constants | dict(zip(region.inputs, data, strict=True))
            made = memory.new(call.spec.shape, call.spec.dtype)
            launch(*[given[a] for a in args], made)
            return (made,)

        return kernel

    @property
    def queue(self) -> Queue:
        """Where launches go."""
        return self._queue

    @cached_property
    def handle(self) -> c_void_p:
        """The library's, made when the first convolution is."""
        made = c_void_p()
        do("cudnnCreate", byref(made))
        return made

    def follow(self) -> None:
        """Let convolutions go to where launches go now."""
        if self._stream != self._queue.pointer:
            do("cudnnSetStream", self.handle, c_void_p(self._queue.pointer))
            self._stream = self._queue.pointer


def do(name: str, *arguments: Any) -> None:
    """Call a function of the library; raises `CUDNNError`."""
    library = _library()
    assert library is not None
    status = getattr(library, name)(*arguments)
    if status:
        raise CUDNNError(status, f"{name}: {library.cudnnGetErrorString(status).decode()}")


class _Convolution:
    """One that can be launched, again and again, as a generated kernel can."""

    def __init__(self, owner: Convolutions, call: Call, algorithm: int | None, *, rounds: bool) -> None:
        """`rounds`: to TF32."""
        self._owner = owner
        x, w = call.inputs
        dtype, attrs = call.spec.dtype, call.attrs
        queue = owner.queue
        with queue.lock:
            queue.runtime.setDevice(queue.number)
            kind = _DATA_TYPES[dtype]
            shapes = [_widened(s) for s in (x.shape, w.shape, call.spec.shape)]
            self._x, self._y = (self._tensor(kind, shapes[n]) for n in (0, 2))
            self._w = self._made("Filter")
            do("cudnnSetFilterNdDescriptor", self._w, kind, _CHANNELS_FIRST, *_list(shapes[1]))
            pads = [low for low, _ in attrs["padding"]]
            one = [1] * (len(shapes[0]) - x.ndim)
            self._windows = self._made("Convolution")
            do("cudnnSetConvolutionNdDescriptor", self._windows, len(shapes[0]) - 2, _ints([0] * len(one) + pads),
               _ints([*one, *attrs["stride"]]), _ints([*one, *attrs["dilation"]]), _NOT_TURNED_AROUND,
               _DATA_TYPES[float64 if dtype is float64 else float32])  # fmt: skip
            do("cudnnSetConvolutionGroupCount", self._windows, attrs["groups"])
            uses_units = dtype in (float16, bfloat16) or rounds
            do("cudnnSetConvolutionMathType", self._windows, _TENSOR_CORES if uses_units else _AS_THEY_ARE)
            self._algorithm, self._workspace = self._chosen(algorithm)
        number = c_double if dtype is float64 else c_float
        self._one, self._nothing = number(1), number(0)

    def __call__(self, *data: Data) -> None:
        """Put it into the stream: for the input, the weights and the result."""
        queue = self._owner.queue
        with translated(f"[{queue.name}] convolving"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([d.pointer for d in data])
        queue.note(self, data, 1)

    def at(self, pointers: list[int]) -> None:
        """The same by addresses, with the library's own errors, on the device that is current."""
        owner = self._owner
        owner.follow()
        x, w, into = map(c_void_p, pointers)
        do(
            "cudnnConvolutionForward", owner.handle, byref(self._one), self._x, x, self._w, w, self._windows,
            self._algorithm, c_void_p(owner.queue.workspace if self._workspace else None), c_size_t(self._workspace),
            byref(self._nothing), self._y, into,
        )  # fmt: skip

    def _chosen(self, algorithm: int | None) -> tuple[int, int]:
        """The algorithm, and the bytes that it needs on the way."""
        given = self._owner.handle, self._x, self._w, self._windows, self._y
        needed = c_size_t()
        for one in self._expected(given) if algorithm is None else [algorithm]:
            with suppress(CUDNNError):
                do("cudnnGetConvolutionForwardWorkspaceSize", *given, one, byref(needed))
                if needed.value <= WORKSPACE:
                    return one, needed.value
        raise LaunchFailure(f"[{self._owner.queue.name}] cuDNN has no such algorithm for it in the memory there is")

    def _expected(self, given: tuple[c_void_p, ...]) -> list[int]:
        """The algorithms that sum plainly, the one that the library expects to be the fastest first."""
        found, count = (_Performance * _MOST_FOUND)(), c_int()
        do("cudnnGetConvolutionForwardAlgorithm_v7", *given, len(found), byref(count), byref(found))
        usable = [one.algorithm for one in found[: count.value] if not one.status]
        return [algorithm for algorithm in usable if algorithm in ALGORITHMS.values()]

    def _tensor(self, kind: int, shape: Shape) -> c_void_p:
        made = self._made("Tensor")
        strides = [int(np.prod(shape[n + 1 :])) for n in range(len(shape))]
        do("cudnnSetTensorNdDescriptor", made, kind, *_list(shape), _ints(strides))
        return made

    def _made(self, kind: str) -> c_void_p:
        """A description, for as long as this object lives."""
        made = c_void_p()
        do(f"cudnnCreate{kind}Descriptor", byref(made))
        finalize(self, do, f"cudnnDestroy{kind}Descriptor", made)
        return made


def _widened(shape: Shape) -> Shape:
    """A shape with at least two lengths."""
    return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape


def _ints(numbers: Sequence[int]) -> Any:
    return (c_int * len(numbers))(*numbers)


def _list(numbers: Sequence[int]) -> tuple[int, Any]:
    return len(numbers), _ints(numbers)
