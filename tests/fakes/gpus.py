"""Several GPUs behind CuPy's names, on the host's memory: streams are lists of work, which is done when somebody
waits, in any order that events allow. What CUDA demands of the GPU that is current is checked at every call."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from ctypes import memmove
from dataclasses import dataclass, field
from itertools import count
from threading import RLock, local
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

LOST: Final = 700
"""The status of a GPU that is lost."""


class CUDARuntimeError(RuntimeError):
    """An error of CuPy's."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


@dataclass
class _Stream:
    """Work, each with the ticket that has to be there before it, and the one that is there after it."""

    gpu: int
    work: deque[tuple[int | None, Callable[[], object], int | None]] = field(default_factory=deque)


@dataclass
class _Event:
    gpu: int
    ticket: int | None = None


class Runtime:
    """CUDA's runtime on so many GPUs. `told` is what was put into streams, in order; `failing` has the GPUs and
    the calls that fail, with their status."""

    def __init__(self, gpus: int) -> None:
        self.told: list[tuple[str, int]] = []
        self.failing: dict[int | str, int] = {}
        self._gpus = gpus
        self._thread = local()
        self._numbers = count(1)
        self._streams: dict[int, _Stream] = {}
        self._events: dict[int, _Event] = {}
        self._blocks: dict[int, tuple[Any, int]] = {}
        self._done: set[int] = set()
        self._lock = RLock()
        self.getDeviceCount = lambda: gpus
        self.driverGetVersion = self.runtimeGetVersion = lambda: 13000
        self.memGetInfo = lambda: (1 << 30, 1 << 30)

    def getDeviceProperties(self, number: int) -> dict[str, Any]:
        return {"name": b"a fake", "multiProcessorCount": 4, "maxThreadsPerMultiProcessor": 2048}

    def setDevice(self, number: int) -> None:
        assert 0 <= number < self._gpus
        self._fail("setDevice")
        self._thread.gpu = number

    def getDevice(self) -> int:
        return getattr(self._thread, "gpu", 0)

    # Streams and events

    def new_stream(self) -> int:
        stream = next(self._numbers)
        self._streams[stream] = _Stream(self.getDevice())
        return stream

    def gpu_of(self, stream: int) -> int:
        return self._streams[stream].gpu

    def put(
        self,
        name: str,
        stream: int,
        work: Callable[[], object],
        *,
        after: int | None = None,
        gives: int | None = None,
    ) -> None:
        """Put work into a stream, whose GPU has to be current."""
        gpu = self._streams[stream].gpu
        assert gpu == self.getDevice(), f"{name} for GPU {gpu}, and GPU {self.getDevice()} is current"
        self._fail(name, gpu)
        with self._lock:
            self.told.append((name, stream))
            self._streams[stream].work.append((after, work, gives))

    def eventCreateWithFlags(self, flags: int) -> int:
        event = next(self._numbers)
        self._events[event] = _Event(self.getDevice())
        return event

    def eventRecord(self, event: int, stream: int) -> None:
        known = self._events[event]
        assert known.gpu == self._streams[stream].gpu, "an event of another GPU"
        ticket = next(self._numbers)
        self.put("record", stream, lambda: None, gives=ticket)
        known.ticket = ticket

    def streamWaitEvent(self, stream: int, event: int) -> None:
        ticket = self._events[event].ticket
        assert ticket is not None
        self.put("wait", stream, lambda: None, after=ticket)

    def eventDestroy(self, event: int) -> None:
        del self._events[event]

    def streamSynchronize(self, stream: int) -> None:
        self._fail("streamSynchronize", self._streams[stream].gpu)
        with self._lock:
            while self._streams[stream].work:
                waiting = [s for s in self._streams.values() if s.work]
                ready = [s for s in waiting if s.work[0][0] is None or s.work[0][0] in self._done]
                assert ready, "streams wait for each other"
                _, work, ticket = random.choice(ready).work.popleft()
                work()
                self._done.add(ticket or 0)

    # Memory

    def mallocAsync(self, nbytes: int, stream: int) -> int:
        self.put("malloc", stream, lambda: None)
        return self._block(nbytes, self._streams[stream].gpu)

    def freeAsync(self, pointer: int, stream: int) -> None:
        assert self._blocks[pointer][1] == self._streams[stream].gpu
        self.put("free", stream, lambda: None)  # the block stays: who uses it after that is wrong, and does not crash

    def hostAlloc(self, nbytes: int, flags: int) -> int:
        return self._block(nbytes, -1)

    def freeHost(self, pointer: int) -> None: ...

    def memcpyAsync(self, into: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        if kind == 1:  # what a small array of the host holds is copied aside
            aside = self._block(nbytes, -1)
            memmove(aside, source, nbytes)
            source = aside
        self.put("copy", stream, lambda: memmove(into, source, nbytes))

    def memcpyPeerAsync(self, into: int, to: int, source: int, of: int, nbytes: int, stream: int) -> None:
        assert (self._blocks[into][1], self._blocks[source][1]) == (to, of)
        self.put("peer copy", stream, lambda: memmove(into, source, nbytes))

    def _block(self, nbytes: int, gpu: int) -> int:
        block = np.full(nbytes, 255, np.uint8)
        self._blocks[block.ctypes.data] = block, gpu
        return int(block.ctypes.data)

    def _fail(self, *who: int | str) -> None:
        for one in who:
            if one in self.failing:
                raise CUDARuntimeError(self.failing[one])


class _Function:
    """A kernel, in the context of the GPU that was current when its program was loaded."""

    def __init__(self, gpu: int) -> None:
        self.ptr = gpu


def fake_cupy(gpus: int) -> Any:
    """What the CUDA device uses of CuPy. Programs compile, and their kernels do nothing."""
    runtime = Runtime(gpus)

    class Stream:
        def __init__(self, non_blocking: bool) -> None:
            self.ptr = runtime.new_stream()

        def begin_capture(self) -> None:
            assert runtime.gpu_of(self.ptr) == runtime.getDevice()

        def record(self) -> None: ...

        def wait_event(self, event: None) -> None:
            """A graph of kernels that do nothing may run in any order."""

        def end_capture(self) -> Any:
            return SimpleNamespace(launch=lambda stream: runtime.put("graph", stream.ptr, lambda: None))

    class Module:
        def load(self, code: bytes) -> None:
            self.gpu = runtime.getDevice()

        def get_function(self, name: str) -> _Function:
            return _Function(self.gpu)

    def launch(function: int, *rest: Any) -> None:
        stream = rest[-3]
        assert function == runtime.gpu_of(stream), "a program of another GPU"
        runtime.put("launch", stream, lambda: None)

    nvrtc = SimpleNamespace(
        getSupportedArchs=lambda: [90], getVersion=lambda: (13, 0), createProgram=lambda *of: 1,
        compileProgram=lambda program, options: None, getCUBIN=lambda program: b"code",
        destroyProgram=lambda program: None,
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Stream=Stream, nvrtc=nvrtc, function=SimpleNamespace(Module=Module),
        driver=SimpleNamespace(launchKernel=launch), Device=lambda number: SimpleNamespace(compute_capability="90"),
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda, __version__="0")
