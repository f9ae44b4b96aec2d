"""NCCL's functions for ranks that are threads of one process, on the host's memory. A call is done when it returns, or
when the graph runs that a stream captures."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import memmove, string_at
from threading import Barrier, BrokenBarrierError, Lock, local
from typing import Any

import ml_dtypes
import numpy as np

_DTYPES = ("i1", "u1", "i4", "u4", "i8", "u8", "f2", "f4", "f8", ml_dtypes.bfloat16)
_COMBINES: dict[int, Callable[[list[Any]], Any]] = {
    0: lambda rows: np.add.reduce(rows), 2: lambda rows: np.maximum.reduce(rows),
    3: lambda rows: np.minimum.reduce(rows), 4: lambda rows: np.add.reduce(rows) / len(rows),
}  # fmt: skip
SYSTEM_ERROR = 2


class _Function:
    """A function as `ctypes` gives it, whose types are set before it is called."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.argtypes: Any = ()
        self.restype: Any = None

    def __call__(self, *given: Any) -> Any:
        return self._function(*given)


class _Hub:
    """What the ranks of one communicator share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = Barrier(size, timeout=10)
        self.given: dict[Any, bytes] = {}

    def swapped(self, own: dict[Any, bytes]) -> dict[Any, bytes]:
        """What all ranks give. Keys are different."""
        self.given.update(own)
        self.barrier.wait()
        given = dict(self.given)
        self.barrier.wait()
        for key in own:
            self.given.pop(key)
        self.barrier.wait()
        return given


class FakeNCCL:
    """The library. `told` has the functions that were called; `put` takes work for a stream."""

    def __init__(self, put: Callable[[Callable[[], object]], None] = lambda work: work() and None) -> None:
        self.told: list[str] = []
        self.put = put
        self.status = 0
        """The asynchronous error of all communicators."""
        self._hubs: dict[bytes, _Hub] = {}
        self._communicators: list[tuple[_Hub, int]] = []
        self._lock = Lock()
        self._group = local()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nccl"):
            raise AttributeError(name)
        body = f"_{name[4].lower()}{name[5:]}"

        def told(*given: Any) -> Any:
            with self._lock:
                self.told.append(name)
            return getattr(self, body)(*given)

        made = self.__dict__[name] = _Function(told)
        return made

    def _getErrorString(self, status: int) -> bytes:
        return b"unhandled system error"

    def _getVersion(self, number: Any) -> int:
        number._obj.value = 22803
        return 0

    def _getUniqueId(self, unique: Any) -> int:
        unique._obj.internal = f"unique {len(self._hubs)}".encode()
        return 0

    def _commInitRank(self, made: Any, size: int, unique: Any, rank: int) -> int:
        with self._lock:
            hub = self._hubs.setdefault(bytes(unique), _Hub(size))
            self._communicators.append((hub, rank))
            made._obj.value = len(self._communicators)
        try:
            hub.barrier.wait(20)
        except BrokenBarrierError:
            return SYSTEM_ERROR
        return 0

    def _commAbort(self, communicator: Any) -> int:
        self._of(communicator)[0].barrier.abort()
        return 0

    def _commGetAsyncError(self, communicator: Any, status: Any) -> int:
        status._obj.value = self.status
        return 0

    def _of(self, communicator: Any) -> tuple[_Hub, int]:
        return self._communicators[communicator.value - 1]

    def _groupStart(self) -> int:
        self._group.sends, self._group.receives = [], []
        return 0

    def _send(self, source: int, count: int, kind: int, to: int, communicator: Any, stream: int) -> int:
        self._group.sends.append((source, count, to, communicator))
        return 0

    def _recv(self, target: int, count: int, kind: int, of: int, communicator: Any, stream: int) -> int:
        self._group.receives.append((target, count, of, communicator))
        return 0

    def _groupEnd(self) -> int:
        sends, receives = self._group.sends, self._group.receives
        if not sends and not receives:
            return 0

        def work() -> None:
            hub, rank = self._of((sends or receives)[0][-1])
            given = hub.swapped({(rank, to): string_at(source, count) for source, count, to, _ in sends})
            for target, count, of, _ in receives:
                assert len(given[of, rank]) == count
                memmove(target, given[of, rank], count)

        self.put(work)
        return 0

    def _rows(self, source: int, nbytes: int, communicator: Any) -> list[bytes]:
        hub, rank = self._of(communicator)
        given = hub.swapped({(rank,): string_at(source, nbytes)})
        return [given[(n,)] for n in range(hub.size)]

    def _allReduce(self, source: int, target: int, count: int, kind: int, op: int, of: Any, stream: int) -> int:
        def work() -> None:
            dtype = np.dtype(_DTYPES[kind])
            rows = [np.frombuffer(row, dtype) for row in self._rows(source, count * dtype.itemsize, of)]
            memmove(target, _COMBINES[op](rows).astype(dtype).tobytes(), count * dtype.itemsize)

        self.put(work)
        return 0

    def _reduceScatter(self, source: int, target: int, count: int, kind: int, op: int, of: Any, stream: int) -> int:
        def work() -> None:
            dtype, (hub, rank) = np.dtype(_DTYPES[kind]), self._of(of)
            whole = self._rows(source, hub.size * count * dtype.itemsize, of)
            rows = [np.frombuffer(row, dtype)[rank * count : (rank + 1) * count] for row in whole]
            memmove(target, _COMBINES[op](rows).astype(dtype).tobytes(), count * dtype.itemsize)

        self.put(work)
        return 0

    def _allGather(self, source: int, target: int, count: int, kind: int, of: Any, stream: int) -> int:
        def work() -> None:
            made = b"".join(self._rows(source, count, of))
            memmove(target, made, len(made))

        self.put(work)
        return 0

    def _broadcast(self, source: int, target: int, count: int, kind: int, root: int, of: Any, stream: int) -> int:
        self.put(lambda: memmove(target, self._rows(source, count, of)[root], count))
        return 0
