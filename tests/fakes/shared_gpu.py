"""A GPU behind CuPy's names on the host's memory, which several processes can share.

Kernels are built by a C++ compiler (see `emulation`) and run at once, so that results are real. A stream that captures
keeps what is put into it; the graph runs it. Memory that a process shares is a file in /dev/shm that others map.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable
from ctypes import c_int64, c_void_p, memmove, memset
from itertools import count
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np

import emulation
from cuda_code import HOSTED
from yosegi.codegen.c.kernel_source import NAME
from yosegi.devices.cuda.dialect import CUDA

SHARED = Path("/dev/shm")
_HANDLE = 64
_numbers = count()
_one_kernel = Lock()
"""Ranks may be threads: kernels are built, and run, one at a time."""


class CUDARuntimeError(RuntimeError):
    """An error of CuPy's."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class Runtime:
    """CUDA's runtime. `copied` counts the bytes of copies between host and device."""

    def __init__(self, *, shares: bool = True) -> None:
        self.copied = 0
        self.shares = shares
        self.capturing: list[Callable[[], object]] | None = None
        self._blocks: dict[int, Any] = {}
        self._files: dict[int, tuple[Path, mmap.mmap]] = {}
        self.getDeviceCount = lambda: 1
        self.getDevice = lambda: 0
        self.setDevice = lambda number: None
        self.driverGetVersion = self.runtimeGetVersion = lambda: 13000
        self.memGetInfo = lambda: (1 << 30, 1 << 30)
        self.deviceGetPCIBusId = lambda number: "0000:00:00.0"
        self.streamQuery = self.streamSynchronize = lambda stream: 0

    def getDeviceProperties(self, number: int) -> dict[str, Any]:
        return {"name": b"a fake", "multiProcessorCount": 4, "maxThreadsPerMultiProcessor": 2048}

    def put(self, work: Callable[[], object]) -> None:
        """Work in a stream."""
        if self.capturing is None:
            work()
        else:
            self.capturing.append(work)

    # Memory

    def mallocAsync(self, nbytes: int, stream: int) -> int:
        block = np.full(nbytes + 256, 255, np.uint8)
        place = int(block.ctypes.data) + -block.ctypes.data % 256
        self._blocks[place] = block
        return place

    def freeAsync(self, pointer: int, stream: int) -> None:
        del self._blocks[pointer]

    def hostAlloc(self, nbytes: int, flags: int) -> int:
        return self.mallocAsync(nbytes, 0)

    def freeHost(self, pointer: int) -> None:
        del self._blocks[pointer]

    def memcpyAsync(self, into: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        if kind in (1, 2):
            self.copied += nbytes
        self.put(lambda: memmove(into, source, nbytes))

    def memsetAsync(self, pointer: int, value: int, nbytes: int, stream: int) -> None:
        self.put(lambda: memset(pointer, value, nbytes))

    def eventCreateWithFlags(self, flags: int) -> int:
        return next(_numbers)

    def eventRecord(self, event: int, stream: int) -> None: ...

    def eventSynchronize(self, event: int) -> None: ...

    def eventDestroy(self, event: int) -> None: ...

    # Memory of several processes

    def malloc(self, nbytes: int) -> int:
        if not self.shares:
            raise CUDARuntimeError(801)
        path = SHARED / f"yosegi-{os.getpid()}-{next(_numbers)}"
        with path.open("wb") as file:
            file.truncate(nbytes)
        return self._mapped(path)

    def ipcGetMemHandle(self, pointer: int) -> bytes:
        return str(self._files[pointer][0]).encode().ljust(_HANDLE, b"\0")

    def ipcOpenMemHandle(self, handle: bytes, flags: int) -> int:
        return self._mapped(Path(handle.rstrip(b"\0").decode()))

    def ipcCloseMemHandle(self, pointer: int) -> None:
        self._files.pop(pointer)  # the mapping stays: whoever uses it after that is wrong, and does not crash

    def free(self, pointer: int) -> None:
        self._files.pop(pointer)[0].unlink()

    def close(self) -> None:
        """Remove the files that are left."""
        for path, _ in self._files.values():
            path.unlink(missing_ok=True)

    def _mapped(self, path: Path) -> int:
        with path.open("r+b") as file:
            mapping = mmap.mmap(file.fileno(), 0)
        place = int(np.frombuffer(mapping, np.uint8).ctypes.data)
        self._files[place] = path, mapping
        return place


class _Function:
    """A kernel, built when it is loaded."""

    def __init__(self, code: bytes, folder: Path) -> None:
        source = code.decode().replace(CUDA.header, HOSTED.header)
        with _one_kernel:
            self.entry = emulation.built(source, folder, f"call({NAME})")
        self.parameters = 1 + re.search(rf"\b{NAME}\((.*?)\)\s*\{{", source, re.DOTALL)[1].count(",")
        self.ptr = self


def fake_cupy(folder: Path, *, shares: bool = True) -> Any:
    """What the CUDA device uses of CuPy. A folder keeps the kernels."""
    runtime = Runtime(shares=shares)

    class Stream:
        def __init__(self, non_blocking: bool) -> None:
            self.ptr = next(_numbers) + 1

        def begin_capture(self) -> None:
            runtime.capturing = []

        def record(self) -> None: ...

        def wait_event(self, event: None) -> None: ...

        def end_capture(self) -> Any:
            work, runtime.capturing = runtime.capturing or [], None
            return SimpleNamespace(launch=lambda stream: [each() for each in work])

    class Module:
        def load(self, code: bytes) -> None:
            self._function = _Function(code, folder)

        def get_function(self, name: str) -> _Function:
            return self._function

    def launch(function: _Function, groups: int, y: int, z: int, group: int, *rest: Any) -> None:
        places = (c_void_p * function.parameters).from_address(rest[-2])
        values = [c_int64.from_address(place).value for place in places]

        def run() -> None:
            with _one_kernel:
                emulation.launched(function.entry, groups, group, values)

        runtime.put(run)

    nvrtc = SimpleNamespace(
        getSupportedArchs=lambda: [90], getVersion=lambda: (13, 0),
        createProgram=lambda source, *of: source.encode(), compileProgram=lambda program, options: None,
        getCUBIN=lambda program: program, destroyProgram=lambda program: None,
    )  # fmt: skip
    cuda = SimpleNamespace(
        runtime=runtime, Stream=Stream, nvrtc=nvrtc, function=SimpleNamespace(Module=Module),
        driver=SimpleNamespace(launchKernel=launch), Device=lambda number: SimpleNamespace(compute_capability="90"),
    )  # fmt: skip
    return SimpleNamespace(cuda=cuda, __version__="fake")
