"""Data in a CUDA device's memory.

Device memory is stream-ordered: one stream does all work, so that a block that nobody holds can be handed out at once,
while kernels that use it are still waiting. What comes to the host lands in pinned memory from a pool, which NumPy sees
as it is; the block goes back when the last array on it is gone. What comes from another GPU is copied in the order of
both streams, for which no host waits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import c_int64
from functools import partial
from math import prod
from threading import RLock, local
from typing import Any, Final, NamedTuple

import numpy as np

from ..._run.memory.pool import Block, BlockKey, Pool, PoolStatistics, block_key
from ..._tensor.dtype import DType, as_dtype, int64
from ..._tensor.environment import memory_limit
from ..._tensor.node import Shape
from ...errors import DeviceFailure, OutOfMemory, UserError
from ..kernel.faults import Faults, Span
from .errors import translated
from .staging import Staging

_DEVICE_TO_HOST, _ON_DEVICE = 2, 3
_WITHOUT_TIMING: Final = 2
_PORTABLE: Final = 1
"""Pinned for every device."""
_MAPPED: Final = 2
"""Pinned where kernels can write to it."""
_MOST_PINNED: Final = 8
"""The share of the host's memory that may be pinned: one eighth, for all GPUs together."""
_NON_BLOCKING: Final = 1
_SPARE: Final = 4
"""How many times as much memory must be free as a copy of results takes."""
_SHARE: Final = 4
"""The share of the device's memory that scratch memory may take: one of so many."""
ALIGNMENT: Final = 256
"""Of everything that lies in a device's memory."""


def aligned(nbytes: int) -> int:
    """Bytes rounded up to where the next value may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def offsets_of(sizes: Sequence[int], start: int = 0) -> tuple[list[int], int]:
    """Where things of these bytes begin that lie one behind the other, and where the last of them ends.

    >>> offsets_of([4, 256, 300])
    ([0, 256, 512], 1024)
    """
    offsets = []
    for nbytes in sizes:
        offsets.append(start)
        start += aligned(nbytes)
    return offsets, start


class _Exposed:
    """A pinned block's bytes for NumPy. An array made of this keeps the block from going back to its pool."""

    def __init__(self, block: Block) -> None:
        self.block = block

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"data": (self.block.memory, False), "shape": (self.block.nbytes,), "typestr": "|u1", "version": 3}


class Data:
    """Elements in the device's memory, contiguous, at `pointer`. Without elements there is no memory.

    Several may lie in one block, each at an offset of its own: the block is in use until the last of them is gone.
    """

    __slots__ = ("block", "dtype", "pointer", "shape", "span")

    def __init__(self, shape: Shape, dtype: DType, block: Block | None, offset: int = 0) -> None:
        self.shape = shape
        self.dtype = dtype
        self.block = block
        self.span: Span | None = None
        self.pointer: int = 0 if block is None else block.memory + offset

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * self.dtype.itemsize

    def reshaped(self, shape: Shape) -> Data:
        """The data in its memory with another shape."""
        return Data(shape, self.dtype, self.block, 0 if self.block is None else self.pointer - self.block.memory)


class HostNumber(Data):
    """A number of the host, such as a learning rate. It is put into the device's memory when its address is asked for:
    a recording that copies it takes it from the host."""

    __slots__ = ("_memory", "_placed", "number")

    def __init__(self, number: Any, memory: Memory) -> None:
        self.number = number
        self.shape, self.dtype, self.span = number.shape, as_dtype(number.dtype), None
        self._memory = memory
        self._placed: Data | None = None

    @property
    def pointer(self) -> int:  # type: ignore[override]
        """The address in the device's memory."""
        return self.placed().pointer

    @property
    def block(self) -> Block | None:  # type: ignore[override]
        """The block in the device's memory."""
        return self.placed().block

    def placed(self) -> Data:
        """The number in the device's memory."""
        if self._placed is None:
            with self._memory.lock:
                if self._placed is None:
                    self._placed = self._memory.uploaded(self.number)
        return self._placed


class Taken:
    """The memory that `Memory.new` gave to a thread, as numbered values. An address may have several, one after the
    other: what nobody holds any more is handed out again."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """The bytes of each value."""
        self._at: dict[int, int] = {}

    def add(self, data: Data) -> None:
        """Number a new value."""
        self._at[data.pointer] = len(self.sizes)
        self.sizes.append(data.nbytes)

    def forget(self, data: Data) -> None:
        """Note that something else is at an address now."""
        self._at.pop(data.pointer, None)

    def number(self, pointer: int) -> int | None:
        """The value that is at an address now; `None` for one that was not taken meanwhile."""
        return self._at.get(pointer)


class _ThreadAllocations(local):
    """The allocations that a thread collects."""

    taken: Taken | None = None


class _Aside(NamedTuple):
    """A stream for copies to the host that no other work waits for."""

    stream: int
    staging: Staging


class Memory:
    """The memory of one device, its pools, and the copies between it and the host."""

    shared = False

    def __init__(self, runtime: Any, stream: int, number: int, name: str) -> None:
        self._runtime = runtime
        self._stream = stream
        self._number = number
        self.name = name
        self.total = int(runtime.memGetInfo()[1])
        self.pool = Pool(self._allocate, self._free, memory_limit(name))
        pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 8 << 30
        most = pages // _MOST_PINNED // int(runtime.getDeviceCount())
        self._pinned = Pool(self._allocate_pinned, self._free_pinned, most)
        self._staging = Staging(runtime, stream, self._pinned)
        self._aside: _Aside | None = None
        self._thread = _ThreadAllocations()
        self.faults = Faults()
        self.watches: list[Callable[[], None]] = []
        """Called before the host waits for the stream: they raise if it waits for a rank that is lost."""
        self._fault_table: Data | None = None
        self._faults_seen: Any = None
        self.lock = RLock()
        """Held while something is put into memory once."""

    def from_host(self, array: Any) -> Data:
        """An array of the host as data. It is copied before this returns, or read from where it is until it is."""
        dtype = as_dtype(array.dtype)
        whole = np.asarray(array, order="C")
        if not whole.size:
            return Data(whole.shape, dtype, None)
        return HostNumber(whole.copy(), self) if whole.size == 1 else self.uploaded(whole)

    def uploaded(self, array: Any) -> Data:
        """A contiguous array of the host as data, copied."""
        with translated(f"[{self.name}] taking {array.nbytes} bytes from the host"):
            self._runtime.setDevice(self._number)
            data = Data(array.shape, as_dtype(array.dtype), self.pool.take(array.nbytes, ALIGNMENT))
            self._staging.upload(array.reshape(-1).view(np.uint8), data.pointer)
        if self._thread.taken is not None:
            self._thread.taken.forget(data)
        return data

    def to_host(self, data: Data) -> Any:
        """Data as an array of the host, when all work on it is done. Raises if it depends on an index out of range."""
        nbytes = data.nbytes
        if not nbytes:
            return np.empty(data.shape, data.dtype.numpy)
        runtime, faults = self._runtime, self.faults
        waited = None if faults.is_settled(data.span) else faults.tick()
        with translated(f"[{self.name}] handing {nbytes} bytes to the host"):
            runtime.setDevice(self._number)
            try:
                block = self._pinned.take(nbytes)
            except OutOfMemory:  # no more may be pinned: through pieces that are
                self._watch()
                flat = np.empty(nbytes, np.uint8)
                self._staging.download(data.pointer, flat)
            else:
                flat = np.asarray(_Exposed(block))[:nbytes]
                runtime.memcpyAsync(block.memory, data.pointer, nbytes, _DEVICE_TO_HOST, self._stream)
                self._watch()
                runtime.streamSynchronize(self._stream)
        if waited is not None:  # the wait above was for all work before
            self._look(waited)
        faults.check(data.span)
        return flat.view(data.dtype.numpy).reshape(data.shape)

    def saving(self, data: Sequence[Data]) -> Callable[[], list[Any]]:
        """Begin to copy data to the host beside other work: a function for another thread that gives the arrays.

        What is copied is a copy on the device, so that the data's memory is free at once, and a loop goes on at the
        addresses that it is used to. If there is no room for that, the data is held until it is copied.
        """
        blocks: dict[int, Block] = {d.block.memory: d.block for d in data if d.block is not None}
        held, places, sizes = list(blocks.values()), list(blocks), [b.nbytes for b in blocks.values()]
        offsets, total = offsets_of(sizes)
        number = {place: n for n, place in enumerate(places)}
        runtime = self._runtime
        with translated(f"[{self.name}] saving {total} bytes"):
            runtime.setDevice(self._number)
            if self._aside is None:
                stream = runtime.streamCreateWithFlags(_NON_BLOCKING)
                self._aside = _Aside(stream, Staging(runtime, stream, self._pinned))
            aside = self._aside
            if 0 < _SPARE * total <= self.statistics().room(self.total)[0]:
                with suppress(OutOfMemory):
                    staged = self.pool.take(total, ALIGNMENT)
                    for offset, block in zip(offsets, held, strict=True):
                        self.copy(staged.memory + offset, block.memory, block.nbytes)
                    held, places = [staged], [staged.memory + offset for offset in offsets]
            done = runtime.eventCreateWithFlags(_WITHOUT_TIMING)
            runtime.eventRecord(done, self._stream)
            runtime.streamWaitEvent(aside.stream, done)
            runtime.eventDestroy(done)  # who waits for it still does
        parts = [
            (-1 if d.block is None else number[d.block.memory], 0 if d.block is None else d.pointer - d.block.memory,
             d.nbytes, d.dtype, d.shape)
            for d in data
        ]  # fmt: skip
        spans = {d.span for d in data}

        def copied() -> list[Any]:
            flats = [np.empty(nbytes, np.uint8) for nbytes in sizes]
            with translated(f"[{self.name}] saving {total} bytes"):
                runtime.setDevice(self._number)
                try:
                    for flat, place in zip(flats, places, strict=True):
                        aside.staging.download(place, flat)
                finally:
                    held.clear()
            for span in spans:
                self._check(span)
            return [
                (flats[n][first : first + nbytes] if n >= 0 else np.empty(0, np.uint8)).view(dtype.numpy).reshape(shape)
                for n, first, nbytes, dtype, shape in parts
            ]

        return copied

    def from_peer(self, peer: Memory, data: Data) -> Data:
        """Another GPU's data as data of this one, of which the stream copies it when it has been made.

        The other GPU's stream goes on after the copy: after the data is released, its memory may be written to at
        once, in that stream. No lock is held, because none is needed: a stream that waits for an event waits for what
        was in the other before, so that streams never wait for each other, and work that another thread puts in
        between makes them wait longer, at most.
        """
        nbytes, runtime = data.nbytes, self._runtime
        if not nbytes:
            return Data(data.shape, data.dtype, None)
        peer._check(data.span)  # a mistake of its kernels is unknown to this device
        with translated(f"[{self.name}] taking {nbytes} bytes from {peer.name}"):
            made = Data(data.shape, data.dtype, self.pool.take(nbytes, ALIGNMENT))
            peer._goes_before(self)
            runtime.memcpyPeerAsync(made.pointer, self._number, data.pointer, peer._number, nbytes, self._stream)
            self._goes_before(peer)
            runtime.setDevice(self._number)
        return made

    def _goes_before(self, other: Memory) -> None:
        """Let all that is put into another GPU's stream from now on wait for what is in this one's. That GPU is current
        then. With CuPy's own errors."""
        runtime = self._runtime
        runtime.setDevice(self._number)  # an event belongs to the GPU that is current when it is made
        event = runtime.eventCreateWithFlags(_WITHOUT_TIMING)
        try:
            runtime.eventRecord(event, self._stream)
            runtime.setDevice(other._number)
            runtime.streamWaitEvent(other._stream, event)
        finally:
            runtime.eventDestroy(event)  # who waits for it still does

    def new(self, shape: Shape, dtype: DType) -> Data:
        """Room for elements that a kernel will write, all of them."""
        key = self.key(shape, dtype)
        made = Data(shape, dtype, self.pool.take_of(key) if key is not None else None)
        if self._thread.taken is not None and made.block is not None:
            self._thread.taken.add(made)
        return made

    def key(self, shape: Shape, dtype: DType) -> BlockKey | None:
        """The key of a block for these elements; `None` if there are none."""
        nbytes = prod(shape) * dtype.itemsize
        return block_key(nbytes, ALIGNMENT) if nbytes else None

    def reshaped(self, data: Data, shape: Shape) -> Data:
        """A view of the memory with another shape."""
        return data.reshaped(shape)

    def reserved(self, nbytes: int) -> int:
        """The address of memory that is never given back, and no tensor's."""
        return self._allocate(nbytes, ALIGNMENT)

    def fault_table(self) -> Data:
        """Where kernels note indices out of range: pinned memory of the host, which costs nothing to look at."""
        with self.lock:
            if self._fault_table is None:
                table = Data(Faults.shape, int64, None)
                with translated(f"[{self.name}] pinning {table.nbytes} bytes"):
                    self._runtime.setDevice(self._number)
                    table.pointer = int(self._runtime.hostAlloc(table.nbytes, _PORTABLE | _MAPPED))
                numbers = (c_int64 * prod(Faults.shape)).from_address(table.pointer)
                self._faults_seen = np.frombuffer(numbers, np.int64).reshape(Faults.shape)
                self._faults_seen[...] = 0
                self._fault_table = table
            return self._fault_table

    def look_for_faults(self) -> UserError | None:
        """Wait until all work is done. Returns a mistake that kernels have found meanwhile."""
        waited = self.faults.tick()
        self.wait()
        return self._look(waited)

    def _look(self, waited: int) -> UserError | None:
        """Look for mistakes of all work that was launched before this tick, when it is done."""
        seen = self._faults_seen
        if seen is None:
            return None
        return self.faults.look(waited, lambda: seen[: self.faults.used], partial(seen.fill, 0))

    def _check(self, span: Span | None) -> None:
        if not self.faults.is_settled(span):
            self.look_for_faults()
        self.faults.check(span)

    @contextmanager
    def noting(self) -> Iterator[Taken]:
        """Everything that `new` gives to this thread meanwhile; notes that are made inside have their own."""
        outer, self._thread.taken = self._thread.taken, Taken()
        try:
            yield self._thread.taken
        finally:
            self._thread.taken = outer

    def copy(self, into: int, source: int, nbytes: int) -> None:
        """Put a copy from one address to another into the stream. With CuPy's own errors, on the device that is
        current."""
        self._runtime.memcpyAsync(into, source, nbytes, _ON_DEVICE, self._stream)

    def write(self, into: int, array: Any) -> None:
        """Put a copy of a small array of the host to an address into the stream. With CuPy's own errors, on the device
        that is current."""
        self._staging.upload(array.reshape(-1).view(np.uint8), into)

    def wait(self) -> None:
        """Until all work is done."""
        with translated(f"[{self.name}] waiting"):
            self._runtime.setDevice(self._number)
            self._watch()
            self._runtime.streamSynchronize(self._stream)

    def _watch(self) -> None:
        for watch in list(self.watches):
            watch()

    def statistics(self) -> PoolStatistics:
        """The statistics of the pool of device memory."""
        return self.pool.statistics()

    def fill_with_garbage(self) -> None:
        """From now on every block is handed out full of ones: tests show so that kernels write all they show."""
        self.pool.on_take = self._fill

    def _fill(self, pointer: int, nbytes: int) -> None:
        self._runtime.setDevice(self._number)
        self._runtime.memsetAsync(pointer, 255, nbytes, self._stream)

    def trim(self) -> int:
        """Give back what the pools keep."""
        with suppress(DeviceFailure):  # of a device that is lost there is nothing to give back
            self.wait()
        self._pinned.trim()
        return self.pool.trim()

    def _allocate(self, nbytes: int, alignment: int) -> int:
        with translated(f"[{self.name}] asking for {nbytes} bytes"):
            self._runtime.setDevice(self._number)
            return int(self._runtime.mallocAsync(nbytes, self._stream))

    def _free(self, pointer: int) -> None:
        with suppress(RuntimeError):  # the memory of a device that is lost is gone
            self._runtime.setDevice(self._number)
            self._runtime.freeAsync(pointer, self._stream)

    def _allocate_pinned(self, nbytes: int, alignment: int) -> int:
        with translated(f"[{self.name}] pinning {nbytes} bytes"):
            return int(self._runtime.hostAlloc(nbytes, _PORTABLE))

    def _free_pinned(self, pointer: int) -> None:
        with suppress(RuntimeError):
            self._runtime.freeHost(pointer)


class Scratch:
    """One block for all recordings of a device: its stream runs them one after the other, so that none finds the
    values of another in use. It is as large as the largest of them needs, and goes when memory is short."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._block: Block | None = None

    @property
    def most(self) -> int:
        """The bytes that it may have."""
        return self._memory.statistics().room(self._memory.total)[1] // _SHARE

    def block(self, nbytes: int) -> Block:
        """A block of at least so many bytes, for someone who holds the queue's lock and the block until all launches on
        it are in the stream. Another call may give another block."""
        if self._block is None or self._block.nbytes < nbytes:
            self._block = None  # before another is taken: there may be no room for both
            self._block = self._memory.pool.take(nbytes, ALIGNMENT)
        return self._block

    def release(self) -> None:
        """Give it back to the pool, by someone who holds the queue's lock."""
        self._block = None
