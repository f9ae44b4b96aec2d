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
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from mmap import PAGESIZE
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from objc import LIVE, NSError, Object, Varlist, autoreleased  # type: ignore[attr-defined]  # noqa: F401

import emulation
import msl_code
from yosegi._tune.store import digest_of

copied = 0
"""Bytes that were copied from the host."""
_share = float(os.environ.get("YOSEGI_TEST_METAL_FAULTS", "0"))
failing: Callable[[str], str | None] = lambda what: "an injected fault" if random.random() < _share else None
"""Called with "library", "pipeline", "archive", "buffer", "command", "graph" or "encode"; the text is the reason of a
failure."""
detects_races = False
"""Whether a launch fails in which two threads use one address between barriers, and one of them writes."""
pace = 3
"""The looks that run one command buffer."""
MTLGPUFamilyApple6, MTLGPUFamilyApple7, MTLGPUFamilyApple9 = 1006, 1007, 1009
families = {MTLGPUFamilyApple6, MTLGPUFamilyApple7, MTLGPUFamilyApple9}
"""The families of GPUs that the device belongs to."""

_FOLDER = Path(os.environ.get("YOSEGI_TEST_METAL_CACHE", Path(tempfile.gettempdir()) / f"yosegi-metal-{os.getuid()}"))
_BUFFERS, _BYTES, _THREADS, _LOCAL, _OPEN = 31, 4096, 1024, 32768, 64  # limits of every Apple GPU
_WIDTHS = {"char": 1, "uchar": 1, "short": 2, "ushort": 2, "half": 2, "int": 4, "uint": 4, "float": 4, "long": 8,
           "ulong": 8}  # fmt: skip
_GUARD = 256
_INDIRECT, _DISPATCH, _ARCHIVED_ONLY = 16384, 1 << 5, 1 << 2
_lock = RLock()


class MTLSize(NamedTuple):
    """Threads, or groups of them."""

    width: int
    height: int
    depth: int


def MTLSizeMake(width: int, height: int, depth: int) -> MTLSize:
    """A size."""
    return MTLSize(width, height, depth)


class MTLCompileOptions(Object):
    """How a library is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.is_fast = True

    def setFastMathEnabled_(self, is_fast: bool) -> None:
        self.is_fast = is_fast


class MTLBuffer(Object):
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

    def contents(self) -> Varlist:
        return Varlist(self.address)

    def length(self) -> int:
        return self.nbytes

    def is_intact(self) -> bool:
        """Whether nobody has written around it."""
        guards = self._raw[self._start - _GUARD : self._start], self._raw[self._start + self.nbytes :]
        return all(bool((guard == 0xFF).all()) for guard in guards)


class MTLFunction(Object):
    """A kernel of a library."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source


class MTLLibrary(Object):
    """A compiled source."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self._source = source

    def newFunctionWithName_(self, name: str) -> MTLFunction | None:
        return MTLFunction(self._source) if f"kernel void {name}(" in self._source else None


class MTLComputePipelineDescriptor(Object):
    """A pipeline to be made."""

    def __init__(self) -> None:
        super().__init__()
        self.function: MTLFunction | None = None
        self.is_indirect = False
        self.archives: list[MTLBinaryArchive] = []

    def setComputeFunction_(self, function: MTLFunction) -> None:
        self.function = function

    def setSupportIndirectCommandBuffers_(self, is_indirect: bool) -> None:
        self.is_indirect = is_indirect

    def setBinaryArchives_(self, archives: list[MTLBinaryArchive]) -> None:
        self.archives = list(archives)

    @property
    def key(self) -> str:
        """What machine code is kept by."""
        assert self.function is not None, "no function is set"
        return digest_of(f"{self.is_indirect}\n{self.function.source}")


class MTLBinaryArchiveDescriptor(Object):
    """An archive to be made, or read."""

    url: Any = None

    def setUrl_(self, url: Any) -> None:
        self.url = url


class MTLBinaryArchive(Object):
    """Machine code: here the digests of what it was made of."""

    def __init__(self, keys: set[str]) -> None:
        super().__init__()
        self.keys = keys

    def addComputePipelineFunctionsWithDescriptor_error_(
        self, descriptor: MTLComputePipelineDescriptor, error: None
    ) -> tuple[bool, NSError | None]:
        reason = failing("archive")
        if reason is not None:
            return False, autoreleased(NSError(reason))
        _translated(descriptor)
        self.keys.add(descriptor.key)
        return True, None

    def serializeToURL_error_(self, url: Any, error: None) -> tuple[bool, NSError | None]:
        reason = failing("archive")
        if reason is None:
            Path(url.path()).write_bytes(_ARCHIVE + "\n".join(sorted(self.keys)).encode())
        return (True, None) if reason is None else (False, autoreleased(NSError(reason)))


translated = 0
"""Kernels whose machine code was made, and not found in an archive."""
_ARCHIVE = b"an archive of machine code\n"


def _translated(descriptor: MTLComputePipelineDescriptor) -> None:
    global translated
    if not any(descriptor.key in archive.keys for archive in descriptor.archives):
        translated += 1


class MTLComputePipelineState(Object):
    """A kernel that can be launched."""

    def __init__(self, source: str, *, is_indirect: bool) -> None:
        super().__init__()
        self.is_indirect = is_indirect
        self.entry = msl_code.built(source, _FOLDER, races=detects_races)
        self.parameters = [p for p in msl_code.signature(source).split(", ") if "[[buffer(" in p]

    def maxTotalThreadsPerThreadgroup(self) -> int:
        return _THREADS


class MTLIndirectCommandBufferDescriptor(Object):
    """An indirect command buffer to be made."""

    def __init__(self) -> None:
        super().__init__()
        self.types, self.inherits, self.bindings = 0, [True, True], 0

    def setCommandTypes_(self, types: int) -> None:
        self.types = types

    def setInheritBuffers_(self, inherits: bool) -> None:
        self.inherits[0] = inherits

    def setInheritPipelineState_(self, inherits: bool) -> None:
        self.inherits[1] = inherits

    def setMaxKernelBufferBindCount_(self, count: int) -> None:
        assert count <= _BUFFERS
        self.bindings = count


class MTLIndirectComputeCommand(Object):
    """A command of an indirect command buffer. It keeps neither its pipeline nor its buffers, but here, where a use of
    one that is gone would be no error."""

    def __init__(self, owner: MTLIndirectCommandBuffer) -> None:
        super().__init__()
        self._owner = weakref.ref(owner)
        self.pipeline: MTLComputePipelineState | None = None
        self.table: dict[int, MTLBuffer] = {}
        self.grid: tuple[MTLSize, MTLSize] | None = None
        self.waits = False

    def _change(self) -> MTLIndirectCommandBuffer:
        owner = self._owner()
        assert owner is not None
        assert not owner.pending, "the GPU may be executing it"
        return owner

    def setComputePipelineState_(self, pipeline: MTLComputePipelineState) -> None:
        self._change()
        assert pipeline.is_indirect, "the pipeline does not support indirect command buffers"
        self.pipeline = pipeline

    def setKernelBuffer_offset_atIndex_(self, buffer: MTLBuffer, offset: int, index: int) -> None:
        assert isinstance(buffer, MTLBuffer), "no buffer"
        assert 0 <= index < self._change().descriptor.bindings, "more buffers than the descriptor allows"
        self.table[index] = buffer

    def concurrentDispatchThreadgroups_threadsPerThreadgroup_(self, groups: MTLSize, threads: MTLSize) -> None:
        assert self._change().descriptor.types == _DISPATCH, "another type of commands"
        self.grid = groups, threads

    def setBarrier(self) -> None:
        self._change()
        self.waits = True


class MTLIndirectCommandBuffer(Object):
    """Commands that are encoded once and executed again and again."""

    def __init__(self, descriptor: MTLIndirectCommandBufferDescriptor, count: int) -> None:
        super().__init__()
        assert descriptor.inherits == [False, False], "what commands inherit is not emulated"
        self.descriptor = descriptor
        self.pending = 0
        self.commands = [MTLIndirectComputeCommand(self) for _ in range(count)]

    def indirectComputeCommandAtIndex_(self, index: int) -> Any:
        return autoreleased(self.commands[index])


selectors: Counter[str] = Counter()
"""Calls of encoders, by name."""


class _Encoder(Object):
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
        self._used: list[MTLBuffer] = []
        self._bound: list[MTLComputePipelineState] = []

    def setComputePipelineState_(self, pipeline: MTLComputePipelineState) -> None:
        selectors["setComputePipelineState"] += 1
        self._pipeline = pipeline
        self._bound.append(pipeline)

    def useResources_count_usage_(self, resources: list[MTLBuffer], count: int, usage: int) -> None:
        selectors["useResources"] += 1
        assert (len(resources), usage) == (count, 3)
        self._used += resources

    def executeCommandsInBuffer_withRange_(self, indirect: MTLIndirectCommandBuffer, range_: tuple[int, int]) -> None:
        selectors["executeCommandsInBuffer"] += 1
        commands = indirect.commands[range_[0] : range_[0] + range_[1]]
        used = {id(buffer) for buffer in self._used}
        works: list[list[Callable[[], None]]] = [[]]
        for command in commands:
            assert command.pipeline is not None, "no pipeline is set"
            assert command.grid is not None, "nothing is dispatched"
            assert all(id(buffer) in used for buffer in command.table.values()), "a buffer is not resident"
            if MTLGPUFamilyApple9 not in families:
                assert any(p is command.pipeline for p in self._bound), "the GPU crashes: no encoder had the pipeline"
            if command.waits:
                works.append([])
            works[-1].append(_launched(command.pipeline, command.table, *command.grid)[0])

        def execute() -> None:
            indirect.pending -= 1
            for concurrent in works:
                for work in reversed(concurrent):  # what does not wait may run in any order
                    work()

        indirect.pending += 1
        self._encode(execute, indirect, list(self._used))

    def setBuffer_offset_atIndex_(self, buffer: MTLBuffer, offset: int, index: int) -> None:
        assert isinstance(buffer, MTLBuffer), "no buffer"
        selectors["setBuffer"] += 1
        assert 0 <= index < _BUFFERS, f"there is no place {index} for a buffer"
        assert offset == 0, "the device uses no offsets"
        self._table[index] = buffer

    def setBytes_length_atIndex_(self, data: bytes, length: int, index: int) -> None:
        assert 0 <= index < _BUFFERS, f"there is no place {index} for bytes"
        assert len(data) == length <= _BYTES, "more bytes than a kernel takes without a buffer"
        self._table[index] = bytes(data)

    def dispatchThreadgroups_threadsPerThreadgroup_(self, groups: MTLSize, threads: MTLSize) -> None:
        selectors["dispatchThreadgroups"] += 1
        assert self._pipeline is not None, "no pipeline is set"
        if tuple(groups) != (0, 0, 0):  # nothing: it shows the pipeline to the GPU
            work, kept = _launched(self._pipeline, self._table, groups, threads)
            self._encode(work, *kept, self._pipeline)


def _launched(
    pipeline: MTLComputePipelineState, given: Mapping[int, MTLBuffer | bytes], groups: MTLSize, threads: MTLSize
) -> tuple[Callable[[], None], list[MTLBuffer | bytes]]:
    """A launch, and what it uses."""
    assert threads.width * threads.height * threads.depth <= _THREADS, "too many threads"
    assert min(*groups, *threads) > 0, "nothing to launch"
    table = []
    for n, parameter in enumerate(pipeline.parameters):
        assert n in given, f"nothing is bound to {parameter}"
        bound = given[n]
        assert not isinstance(bound, bytes) or parameter.startswith("constant "), f"the wrong thing for {parameter}"
        table.append(bound)

    def launch() -> None:
        numbers = {n: ctypes.create_string_buffer(b) for n, b in enumerate(table) if isinstance(b, bytes)}
        values = [ctypes.addressof(numbers[n]) if isinstance(b, bytes) else b.address for n, b in enumerate(table)]
        emulation.launched(pipeline.entry, groups.width, threads.width, values)
        is_intact = all(b.is_intact() for b in table if isinstance(b, MTLBuffer))
        assert is_intact, f"it wrote beyond a buffer: {pipeline.parameters}"

    return launch, table


class MTLCommandBuffer(Object):
    """Commands that run when they were committed. It keeps what they use."""

    def __init__(self, queue: MTLCommandQueue) -> None:
        super().__init__()
        self.work: list[tuple[Callable[[], None], Any]] = []
        self.encoder: _Encoder | None = None
        self._queue = queue
        self._status = 0
        self._error: NSError | None = None
        self._handlers: list[Callable[[MTLCommandBuffer], None]] = []

    def commandQueue(self) -> MTLCommandQueue:
        return self._queue

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
            while self._status < 4 and self._queue.waiting:  # else it runs now, and garbage is collected meanwhile
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


class MTLCommandQueue(Object):
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


class MTLDevice(Object):
    """A GPU with 8 GiB."""

    def name(self) -> str:
        return "Emulated GPU"

    def recommendedMaxWorkingSetSize(self) -> int:
        return 8 << 30

    def maxBufferLength(self) -> int:
        return 4 << 30

    def currentAllocatedSize(self) -> int:
        return 0

    def supportsFamily_(self, family: int) -> bool:
        return family in families

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
        if MTLGPUFamilyApple7 not in families and "simdgroup_matrix" in source:
            reason = "error: simdgroup_matrix is not supported by this GPU"
        if MTLGPUFamilyApple6 not in families and re.search(r"\bbfloat\b", source):
            reason = "error: unknown type name 'bfloat'"
        try:
            if reason is None:
                msl_code.built(source, _FOLDER, races=detects_races)
        except (AssertionError, emulation.CompileError) as refused:
            reason = str(refused)
        return (MTLLibrary(source), None) if reason is None else (None, autoreleased(NSError(reason)))

    def newBinaryArchiveWithDescriptor_error_(
        self, descriptor: MTLBinaryArchiveDescriptor, error: None
    ) -> tuple[MTLBinaryArchive | None, NSError | None]:
        content = _ARCHIVE if descriptor.url is None else Path(descriptor.url.path()).read_bytes()
        reason = failing("archive") or (None if content.startswith(_ARCHIVE) else "MTLBinaryArchiveErrorInvalidFile")
        if reason is not None:
            return None, autoreleased(NSError(reason))
        return MTLBinaryArchive(set(content[len(_ARCHIVE) :].decode().split())), None

    def newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
        self, descriptor: MTLIndirectCommandBufferDescriptor, count: int, options: int
    ) -> MTLIndirectCommandBuffer | None:
        assert 0 < count <= _INDIRECT, "too many commands"
        assert options == 0, "memory that the host does not see"
        return MTLIndirectCommandBuffer(descriptor, count) if failing("buffer") is None else None

    def newComputePipelineStateWithDescriptor_options_reflection_error_(
        self, descriptor: MTLComputePipelineDescriptor, options: int, reflection: None, error: None
    ) -> tuple[MTLComputePipelineState | None, NSError | None]:
        function = descriptor.function
        assert isinstance(function, MTLFunction), "no such function"
        reason = failing("pipeline")
        if options == _ARCHIVED_ONLY and not any(descriptor.key in archive.keys for archive in descriptor.archives):
            reason = "it is not in the archives"
        arrays = re.findall(r"threadgroup (\w+) \w+\[(\d+)\]", function.source)
        packets = re.findall(r"struct alignas\(\d+\) (\w+) \{ (\w+) lane\[(\d+)\]; \};", function.source)
        widths = _WIDTHS | {name: _WIDTHS[kind] * int(count) for name, kind, count in packets}
        if sum(widths[kind] * int(count) for kind, count in arrays) > _LOCAL:
            reason = "Threadgroup memory size exceeds the maximum threadgroup memory allowed (32768)"
        if reason is None:
            _translated(descriptor)
            return MTLComputePipelineState(function.source, is_indirect=descriptor.is_indirect), None
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
