"""A Mac that is not there: Metal as pyobjc shows it, for tests on any Linux machine with a C++ compiler.

The folder of this file on the path makes `import Metal` find it, in child processes too. Objects have the selectors
that the Metal device uses, with their meaning: buffers in shared memory, command buffers that run later and in order,
objects that nobody owns until a pool ends. Kernels run as `msl_code` builds them. What Metal's validation layer refuses
fails an assertion here: a no-copy buffer that is not whole pages, a table of arguments that does not fit the kernel,
commands after a commit. `failing` makes calls fail; `LIVE` counts the objects that are alive.

The device works when it is looked at: some looks at a command buffer's status (see `pace`) run the oldest one that
waits.
"""

from __future__ import annotations

import ctypes
import os
import random
import re
import tempfile
from collections import Counter, deque
from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from objc import autoreleased  # type: ignore[attr-defined]

import emulation
import msl_code

LIVE: Counter[str] = Counter()
"""The objects that are alive, by class."""
copied = 0
"""Bytes that were copied from the host."""
_share = float(os.environ.get("YOSEGI_TEST_METAL_FAULTS", "0"))
failing: Callable[[str], str | None] = lambda what: "an injected fault" if random.random() < _share else None
"""Called with "library", "pipeline", "buffer" or "command"; the text is the reason of a failure."""
pace = 3
"""The looks that run one command buffer."""

_FOLDER = Path(os.environ.get("YOSEGI_TEST_METAL_CACHE", Path(tempfile.gettempdir()) / f"yosegi-metal-{os.getuid()}"))
_BUFFERS, _BYTES, _THREADS, _LOCAL, _OPEN = 31, 4096, 1024, 32768, 64  # limits of every Apple GPU
_WIDTHS = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4, "long": 8,
           "ulong": 8}  # fmt: skip
_GUARD = 256
_lock = RLock()


class MTLSize(NamedTuple):
    """Threads, or groups of them."""

    width: int
    height: int
    depth: int


def MTLSizeMake(width: int, height: int, depth: int) -> MTLSize:
    """A size."""
    return MTLSize(width, height, depth)


class _Object:
    def __init__(self) -> None:
        LIVE[type(self).__name__] += 1

    def __del__(self, live: Counter[str] = LIVE) -> None:  # the module goes before its last objects
        live[type(self).__name__] -= 1


class NSError(_Object):
    """Why something failed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def localizedDescription(self) -> str:
        return self._text


class MTLCompileOptions(_Object):
    """How a library is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.is_fast = True

    @classmethod
    def alloc(cls) -> type[MTLCompileOptions]:
        return cls

    @classmethod
    def init(cls) -> MTLCompileOptions:
        return cls()

    def setFastMathEnabled_(self, is_fast: bool) -> None:
        self.is_fast = is_fast


class _Varlist(NamedTuple):
    address: int

    def as_buffer(self, nbytes: int) -> memoryview:
        """Memory that nobody keeps."""
        return memoryview((ctypes.c_char * nbytes).from_address(self.address)).cast("B")


class MTLBuffer(_Object):
    """Memory, between guards if it is Metal's own."""

    def __init__(self, nbytes: int, address: int | None = None) -> None:
        super().__init__()
        self.nbytes = nbytes
        self._raw = np.full(0 if address else nbytes + PAGESIZE + 2 * _GUARD, 0xFF, np.uint8)
        self._start = _GUARD + -(self._raw.ctypes.data + _GUARD) % PAGESIZE
        self.address = address or self._raw.ctypes.data + self._start

    def __del__(self) -> None:
        self._raw[:] = 0xFF  # who still reads it sees it
        super().__del__()

    def contents(self) -> _Varlist:
        return _Varlist(self.address)

    def length(self) -> int:
        return self.nbytes

    def is_intact(self) -> bool:
        """Whether nobody has written around it."""
        guards = self._raw[self._start - _GUARD : self._start], self._raw[self._start + self.nbytes :]
        return all(bool((guard == 0xFF).all()) for guard in guards)


class MTLFunction(_Object):
    """A kernel of a library."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


class MTLLibrary(_Object):
    """A compiled source."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def newFunctionWithName_(self, name: str) -> MTLFunction | None:
        return MTLFunction(self._source) if f"kernel void {name}(" in self._source else None


class MTLComputePipelineState(_Object):
    """A kernel that can be launched."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.entry = msl_code.built(source, _FOLDER)
        self.parameters = [p for p in msl_code.signature(source).split(", ") if "[[buffer(" in p]

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return _THREADS


class _Encoder(_Object):
    def __init__(self, commands: MTLCommandBuffer) -> None:
        super().__init__()
        assert commands.encoder is None, "another encoder is open"
        assert commands.status() == 0, "it was committed"
        self._commands = commands
        commands.encoder = self

    def endEncoding(self) -> None:
        assert self._commands.encoder is self, "it has ended"
        self._commands.encoder = None

    def _encode(self, work: Callable[[], None], *kept: Any) -> None:
        assert self._commands.encoder is self, "it has ended"
        self._commands.work.append((work, kept))


class MTLBlitCommandEncoder(_Encoder):
    """Copies and fills."""

    def fillBuffer_range_value_(self, buffer: MTLBuffer, range_: tuple[int, int], value: int) -> None:
        start, length = range_
        assert 0 <= start < start + length <= buffer.nbytes, "out of the buffer"
        assert 0 <= value <= 255
        self._encode(lambda: ctypes.memset(buffer.address + start, value, length) and None, buffer)


class MTLComputeCommandEncoder(_Encoder):
    """Launches."""

    def __init__(self, commands: MTLCommandBuffer) -> None:
        super().__init__(commands)
        self._pipeline: MTLComputePipelineState | None = None
        self._table: dict[int, MTLBuffer | bytes] = {}

    def setComputePipelineState_(self, pipeline: MTLComputePipelineState) -> None:
        self._pipeline = pipeline

    def setBuffer_offset_atIndex_(self, buffer: MTLBuffer, offset: int, index: int) -> None:
        assert isinstance(buffer, MTLBuffer), "no buffer"
        assert 0 <= index < _BUFFERS, f"there is no place {index} for a buffer"
        assert offset == 0, "the device uses no offsets"
        self._table[index] = buffer

    def setBytes_length_atIndex_(self, data: bytes, length: int, index: int) -> None:
        assert 0 <= index < _BUFFERS, f"there is no place {index} for bytes"
        assert len(data) == length <= _BYTES, "more bytes than a kernel takes without a buffer"
        self._table[index] = bytes(data)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: MTLSize, threads: MTLSize) -> None:
        pipeline = self._pipeline
        assert pipeline is not None, "no pipeline is set"
        assert threads.width * threads.height * threads.depth <= _THREADS, "too many threads"
        assert min(*groups, *threads) > 0, "nothing to launch"
        table = []
        for n, parameter in enumerate(pipeline.parameters):
            assert n in self._table, f"nothing is bound to {parameter}"
            bound = self._table[n]
            assert isinstance(bound, bytes) == parameter.startswith("constant "), f"the wrong thing for {parameter}"
            table.append(bound)

        def launch() -> None:
            numbers = {n: ctypes.create_string_buffer(b) for n, b in enumerate(table) if isinstance(b, bytes)}
            values = [ctypes.addressof(numbers[n]) if isinstance(b, bytes) else b.address for n, b in enumerate(table)]
            emulation.launched(pipeline.entry, groups.width, threads.width, values)
            is_intact = all(b.is_intact() for b in table if isinstance(b, MTLBuffer))
            assert is_intact, f"it wrote beyond a buffer: {pipeline.parameters}"

        self._encode(launch, *table, pipeline)


class MTLCommandBuffer(_Object):
    """Commands that run when they were committed. It keeps what they use."""

    def __init__(self, queue: MTLCommandQueue) -> None:
        super().__init__()
        self.work: list[tuple[Callable[[], None], Any]] = []
        self.encoder: _Encoder | None = None
        self._queue = queue
        self._status = 0
        self._error: NSError | None = None
        self._handlers: list[Callable[[MTLCommandBuffer], None]] = []

    def computeCommandEncoder(self) -> Any:
        return autoreleased(MTLComputeCommandEncoder(self))

    def blitCommandEncoder(self) -> Any:
        return autoreleased(MTLBlitCommandEncoder(self))

    def addCompletedHandler_(self, handler: Callable[[MTLCommandBuffer], None]) -> None:
        assert self._status == 0, "it was committed"
        self._handlers.append(handler)

    def commit(self) -> None:
        assert self._status == 0, "it was committed"
        assert self.encoder is None, "an encoder is open"
        self._status = 2
        with _lock:
            self._queue.waiting.append(self)

    def waitUntilCompleted(self) -> None:
        assert self._status, "it was not committed"
        with _lock:
            while self._status < 4:
                self._queue.work()

    def status(self) -> int:
        if 0 < self._status < 4:
            with _lock:
                self._queue.looks += 1
                if self._queue.looks % pace == 0:
                    self._queue.work()
        return self._status

    def error(self) -> NSError | None:
        return None if self._error is None else autoreleased(self._error)

    def execute(self) -> None:
        """Run all commands, or none where it fails."""
        reason = failing("command")
        if reason is None:
            for work, _ in self.work:
                work()
        else:
            self._error = NSError(reason)
        self.work = []
        self._status = 4 if reason is None else 5
        for handler in self._handlers:
            handler(self)
        self._handlers = []


class MTLCommandQueue(_Object):
    """Command buffers, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: deque[MTLCommandBuffer] = deque()
        self.looks = 0

    def commandBuffer(self) -> Any:
        assert len(self.waiting) < _OPEN, "Metal would wait here for one of 64 command buffers"
        return autoreleased(MTLCommandBuffer(self))

    def work(self) -> None:
        """Run the oldest command buffer that waits."""
        if self.waiting:
            self.waiting.popleft().execute()


class MTLDevice(_Object):
    """A GPU with 8 GiB."""

    def name(self) -> str:
        return "Emulated GPU"

    def recommendedMaxWorkingSetSize(self) -> int:
        return 8 << 30

    def maxBufferLength(self) -> int:
        return 4 << 30

    def currentAllocatedSize(self) -> int:
        return 0

    def maxThreadsPerThreadgroup(self) -> MTLSize:
        return MTLSize(_THREADS, _THREADS, _THREADS)

    def newCommandQueue(self) -> MTLCommandQueue:
        return MTLCommandQueue()

    def newBufferWithLength_options_(self, nbytes: int, options: int) -> MTLBuffer | None:
        assert options == 0, "memory that the host does not see"
        return self._made(nbytes, lambda: MTLBuffer(nbytes))

    def newBufferWithBytes_length_options_(self, data: Any, nbytes: int, options: int) -> MTLBuffer | None:
        global copied
        assert options == 0, "memory that the host does not see"
        view = memoryview(data).cast("B")
        assert view.nbytes == nbytes
        made = self._made(nbytes, lambda: MTLBuffer(nbytes))
        if made is not None:
            copied += nbytes
            ctypes.memmove(made.address, view.tobytes(), nbytes)
        return made

    def newBufferWithBytesNoCopy_length_options_deallocator_(
        self, data: Any, nbytes: int, options: int, deallocator: None
    ) -> MTLBuffer | None:
        address = ctypes.addressof(data)
        assert options == 0, "memory that the host does not see"
        assert address % PAGESIZE == 0, "a buffer without a copy begins at a page"
        assert nbytes % PAGESIZE == 0, "a buffer without a copy is whole pages"
        return self._made(nbytes, lambda: MTLBuffer(nbytes, address))

    def _made(self, nbytes: int, make: Callable[[], MTLBuffer]) -> MTLBuffer | None:
        assert nbytes > 0, "a buffer of no bytes"
        assert nbytes <= self.maxBufferLength(), "a buffer that is too large"
        return make() if failing("buffer") is None else None

    def newLibraryWithSource_options_error_(
        self, source: str, options: MTLCompileOptions, error: None
    ) -> tuple[MTLLibrary | None, NSError | None]:
        assert not options.is_fast, "fast mathematics loses NaN"
        reason = failing("library")
        if re.search(r"\bdouble\b", source):
            reason = "error: 'double' is not supported in Metal"
        try:
            if reason is None:
                msl_code.built(source, _FOLDER)
        except (AssertionError, emulation.CompileError) as refused:
            reason = str(refused)
        return (MTLLibrary(source), None) if reason is None else (None, autoreleased(NSError(reason)))

    def newComputePipelineStateWithFunction_error_(
        self, function: MTLFunction, error: None
    ) -> tuple[MTLComputePipelineState | None, NSError | None]:
        assert isinstance(function, MTLFunction), "no such function"
        reason = failing("pipeline")
        arrays = re.findall(r"threadgroup (\w+) \w+\[(\d+)\]", function.source)
        if sum(_WIDTHS[kind] * int(count) for kind, count in arrays) > _LOCAL:
            reason = "Threadgroup memory size exceeds the maximum threadgroup memory allowed (32768)"
        if reason is None:
            return MTLComputePipelineState(function.source), None
        return None, autoreleased(NSError(reason))


_devices: list[MTLDevice] = []


def MTLCopyAllDevices() -> list[MTLDevice]:
    """The GPUs: one."""
    if not _devices:
        _devices.append(MTLDevice())
    return _devices


def MTLCreateSystemDefaultDevice() -> MTLDevice:
    """The first GPU."""
    return MTLCopyAllDevices()[0]
