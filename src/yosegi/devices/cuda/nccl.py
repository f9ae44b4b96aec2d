"""NCCL through its C interface: collectives between GPUs, as launches that are recorded and captured like kernels.

The library is looked for by its name, then in the folder of the package that PyTorch brings. It takes one rank for each
GPU. While ranks wait for each other on their GPUs, their hosts look at the clock: a host that would wait longer than
the deadline ends the communicator, and asks all ranks who is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from ctypes import CDLL, POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_void_p
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Final

import numpy as np

from ..._run.device import Ranks
from ..._tensor.dtype import (
    DType,
    bfloat16,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
    uint32,
    uint64,
)
from ..._tensor.role import Pattern, Traffic
from ...errors import Unsupported
from .errors import translated
from .launch import Queue
from .memory import Data
from .traffic import Table

_FILE: Final = "libnccl.so.2"
_PACKAGE: Final = "nvidia.nccl"
_UNIQUE: Final = 128
_BYTES: Final = 1
"""ncclUint8."""
_TYPES: Final[dict[DType, tuple[int, int]]] = {
    int8: (0, 1), uint8: (1, 1), int32: (2, 1), uint32: (3, 1), int64: (4, 1), uint64: (5, 1), float16: (6, 1),
    float32: (7, 1), float64: (8, 1), bfloat16: (9, 1), complex64: (7, 2), complex128: (8, 2),
}  # fmt: skip
"""ncclDataType_t, and how many of them an element is."""
_COMBINES: Final = {"sum": 0, "max": 2, "min": 3, "mean": 4}
"""ncclRedOp_t."""
_IN_PROGRESS: Final = 7
_NOT_READY: Final = 600
_SPIN: Final = 2e-4
"""Seconds in which a stream is queried before the host sleeps between queries."""
_NAP: Final = 5e-5


class _UniqueId(Structure):
    _fields_ = (("internal", c_char * _UNIQUE),)


_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {
    "ncclGetVersion": (POINTER(c_int),),
    "ncclGetUniqueId": (POINTER(_UniqueId),),
    "ncclCommInitRank": (POINTER(c_void_p), c_int, _UniqueId, c_int),
    "ncclCommAbort": (c_void_p,),
    "ncclCommGetAsyncError": (c_void_p, POINTER(c_int)),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclRecv": (c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclAllReduce": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclReduceScatter": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
    "ncclAllGather": (c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p),
    "ncclBroadcast": (c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p),
}


class NCCLError(RuntimeError):
    """An error of NCCL."""


class Library:
    """The functions of NCCL, which raise `NCCLError`."""

    def __init__(self, library: Any) -> None:
        self._text = library.ncclGetErrorString
        self._text.argtypes, self._text.restype = (c_int,), c_char_p
        self._functions: dict[str, Any] = {}
        for name, types in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = types, c_int
            self._functions[name] = function
        number = c_int()
        self.call("ncclGetVersion", byref(number))
        major, minor = (10_000, 100) if number.value >= 10_000 else (1000, 100)
        rest = number.value % major
        self.version = f"{number.value // major}.{rest // minor}.{rest % minor}"

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises `NCCLError`."""
        status = self._functions[name](*arguments)
        if status and status != _IN_PROGRESS:
            raise NCCLError(f"{name}: {self._text(status).decode()}")


@cache
def library() -> Library:
    """NCCL. Raises `Unsupported` if there is none that can be used."""
    reasons = []
    for file in (_FILE, *_packaged()):
        try:
            return Library(CDLL(file))
        except (OSError, AttributeError, NCCLError) as error:
            reasons.append(str(error))
    raise Unsupported(f"NCCL is not there ({'; '.join(reasons)})")


def _packaged() -> list[str]:
    """The library in its package, if that is installed."""
    try:
        found = find_spec(_PACKAGE)
    except ImportError:
        return []
    folders = [] if found is None else found.submodule_search_locations or []
    return [str(Path(folder) / "lib" / _FILE) for folder in folders]


class NCCL:
    """A communicator of NCCL: the GPUs of a group of ranks, one for each."""

    stands_alone = False
    """Its exchanges are launches like any others."""

    def __init__(self, queue: Queue, ranks: Ranks, nccl: Library | None = None) -> None:
        """All ranks call it. Raises `NCCLError`."""
        self._queue, self._ranks = queue, ranks
        self._nccl = library() if nccl is None else nccl
        self.size = ranks.size
        unique = _UniqueId()
        if ranks.rank == 0:
            self._nccl.call("ncclGetUniqueId", byref(unique))
        shared = ranks.all_gather(np.frombuffer(bytes(unique), np.uint8))[0].tobytes()
        self._communicator = c_void_p()
        self._join(_UniqueId.from_buffer_copy(shared))
        self._name = "NCCL"
        """The collective that was launched last."""
        if self.size > 1:
            queue.memory.watches.append(self._watch)

    def __str__(self) -> str:
        return f"NCCL {self._nccl.version}"

    def _join(self, unique: _UniqueId) -> None:
        """Join the communicator, in a thread: NCCL waits for ever for a rank that does not come."""
        queue, ranks, errors = self._queue, self._ranks, []

        def join() -> None:
            try:
                queue.runtime.setDevice(queue.number)
                self._nccl.call("ncclCommInitRank", byref(self._communicator), ranks.size, unique, ranks.rank)
            except RuntimeError as error:
                errors.append(error)

        thread = Thread(target=join, daemon=True)
        thread.start()
        thread.join(ranks.deadline)
        if thread.is_alive():
            ranks.find_missing("init")
        if errors:
            raise errors[0]

    # Collectives

    def exchange(self, table: Table) -> Exchanged:
        """An exchange of bytes, to be put into the stream: all messages as one group."""
        call, communicator, rank = self._nccl.call, self._communicator, table.rank
        sends = [(to, begin, n) for to, (begin, n) in enumerate(table.sent[rank]) if n]
        receives = [(of, at, n) for of, (at, n) in enumerate(zip(table.starts, table.received, strict=True)) if n]

        def put(source: int, target: int, stream: int) -> None:
            call("ncclGroupStart")
            try:
                for to, begin, n in sends:
                    call("ncclSend", source + begin, n, _BYTES, to, communicator, stream)
                for of, at, n in receives:
                    call("ncclRecv", target + at, n, _BYTES, of, communicator, stream)
            finally:
                call("ncclGroupEnd")

        return self._exchanged(table.name, put)

    def native(self, traffic: Traffic, count: int, dtype: DType) -> Exchanged | None:
        """A collective of NCCL's own, on `count` elements that each rank sends, or gets from a reduce-scatter; `None`
        if it has none with the results that are expected."""
        call, communicator, pattern = self._nccl.call, self._communicator, traffic.pattern
        nbytes = count * dtype.itemsize
        if pattern is Pattern.GATHER:
            return self._exchanged(
                pattern.value, lambda a, b, to: call("ncclAllGather", a, b, nbytes, _BYTES, communicator, to)
            )
        if pattern is Pattern.BROADCAST:
            return self._exchanged(
                pattern.value,
                lambda a, b, to: call("ncclBroadcast", a, b, nbytes, _BYTES, traffic.root, communicator, to),
            )
        if not self._combines(traffic, dtype):
            return None
        name = "ncclAllReduce" if pattern is Pattern.REDUCE else "ncclReduceScatter"
        number, parts = _TYPES[dtype]
        combine = _COMBINES[traffic.combine]
        return self._exchanged(
            pattern.value, lambda a, b, to: call(name, a, b, count * parts, number, combine, communicator, to)
        )

    def _combines(self, traffic: Traffic, dtype: DType) -> bool:
        """True if NCCL combines as expected: its sums have any order, those of 16-bit floats are rounded at each step,
        and its extremes lose NaNs."""
        if dtype not in _TYPES:
            return False
        if dtype.is_integer:
            return True
        if traffic.combine in ("max", "min") or traffic.is_ordered:
            return False
        return not dtype.is_half or self.size <= 2

    def _exchanged(self, name: str, put: Callable[[int, int, int], None]) -> Exchanged:
        return Exchanged(self._queue, name, put, partial(setattr, self, "_name", name))

    # Survival

    def _watch(self) -> None:
        """Wait until the stream is done. Ends the communicator, and raises an error with the name of a missing rank, if
        that takes longer than the deadline."""
        queue, began = self._queue, time.monotonic()
        while queue.runtime.streamQuery(queue.stream.ptr) == _NOT_READY:
            waited = time.monotonic() - began
            if waited > _SPIN:
                if waited > self._ranks.deadline or self._failed():
                    self._end()
                time.sleep(_NAP)

    def _failed(self) -> bool:
        status = c_int()
        self._nccl.call("ncclCommGetAsyncError", self._communicator, byref(status))
        return status.value not in (0, _IN_PROGRESS)

    def _end(self) -> None:
        self._queue.memory.watches.remove(self._watch)
        self._nccl.call("ncclCommAbort", self._communicator)
        self._ranks.find_missing(self._name)


class Exchanged:
    """A collective that can be launched, again and again, as a generated kernel can."""

    def __init__(
        self, queue: Queue, name: str, put: Callable[[int, int, int], None], begun: Callable[[], None]
    ) -> None:
        self._queue, self._name, self._put, self._begun = queue, name, put, begun

    def __call__(self, source: Data, target: Data, after: Sequence[Data] = ()) -> None:
        """Put it into the stream, behind what makes the values of `after`."""
        queue = self._queue
        self._begun()
        with translated(f"[{queue.name}] {self._name}"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([source.pointer, target.pointer])
        queue.note(self, (source, *after, target), 1)

    def at(self, pointers: list[int]) -> None:
        """Launch by addresses, on the current device. Raises `NCCLError`."""
        self._put(pointers[0], pointers[-1], self._queue.pointer)
