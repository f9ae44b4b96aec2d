"""Data in an OpenCL device's memory.

Where the device shares the host's memory nothing is copied: an array from the host is used where it lies, and a result
is handed to the host as an array on the very memory that the kernel wrote. Elsewhere data is copied.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from threading import Lock, RLock
from typing import Any, Final, NamedTuple

import numpy as np

from ..._run.forks import in_forked_child
from ..._run.memory.pool import Block, Pool, PoolStatistics, memory_limit
from ..._tensor.dtype import DType, as_dtype, int64
from ..._tensor.node import Shape
from ...errors import DeviceLost, OutOfMemory, UserError
from ..kernel.faults import Faults, Span
from .errors import translated

_PAGE: Final = 4096


class HostMemory(NamedTuple):
    """Memory of the host that the device uses: the bytes, and the same as a buffer."""

    raw: Any
    buffer: Any


class _Exposed:
    """A block's bytes for NumPy. An array made of this keeps the block from going back to its pool."""

    def __init__(self, block: Block) -> None:
        self.block = block

    @property
    def __array_interface__(self) -> dict[str, Any]:
        raw = self.block.memory.raw
        return {"data": (raw.ctypes.data, False), "shape": raw.shape, "typestr": "|u1", "version": 3}


class Data:
    """Elements in the device's memory, contiguous. Without elements there is no buffer."""

    __slots__ = ("_finish", "block", "buffer", "dtype", "host", "shape", "span")

    def __init__(
        self, shape: Shape, dtype: DType, buffer: Any, block: Block | None = None, host: Any | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.buffer = buffer
        self.block = block
        self.host = host
        self.span: Span | None = None
        self._finish: Callable[[], Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * self.dtype.itemsize

    def reshaped(self, shape: Shape) -> Data:
        """The data in its memory with another shape."""
        host = None if self.host is None else self.host.reshape(shape)
        return Data(shape, self.dtype, self.buffer, self.block, host)

    @classmethod
    def unfinished(cls, shape: Shape, dtype: DType, finish: Callable[[], Any]) -> Data:
        """Data whose last step the host does, when somebody wants it: `finish` gives the array."""
        made = cls(shape, dtype, None)
        made._finish = finish
        return made

    def finished(self, memory: Memory) -> Data:
        """The data with its last step done."""
        finish = self._finish
        if finish is not None:
            whole = memory.from_host(finish())
            self.buffer, self.host, self.block = whole.buffer, whole.host, whole.block
            self._finish = None
        return self


class Memory:
    """The memory of one device, its pool, and what must stay alive until its queue has done with it."""

    def __init__(self, cl: Any, context: Any, queue: Any, device: Any, name: str) -> None:
        self._cl = cl
        self._context = context
        self._queue = queue
        self.shared = bool(device.host_unified_memory)
        self.total = int(device.global_mem_size)
        self.largest = int(device.max_mem_alloc_size)
        self.name = name
        self.pool = Pool(self._allocate, self._free, memory_limit(name))
        self._waiting: deque[tuple[Any, Sequence[Any]]] = deque()
        self._lock = Lock()
        self._handing = RLock()
        self._is_forked = False
        self.faults = Faults()
        self._fault_table: Data | None = None
        weakref.finalize(self, _finish, cl, queue, os.getpid())
        in_forked_child(self._after_fork)

    def _after_fork(self) -> None:
        """In a forked child: the driver's threads are not there, nor is a thread that may have held a lock."""
        self._is_forked = True
        self._lock = Lock()
        self._handing = RLock()
        self.pool.reset()

    def check(self) -> None:
        """Raise in a forked child: who waits for the driver there waits for ever."""
        if self._is_forked:
            raise DeviceLost(f"[{self.name}] its driver was loaded before this process was forked")

    def from_host(self, array: Any) -> Data:
        """An array of the host as data: in place if memory is shared, else a copy."""
        dtype = as_dtype(array.dtype)
        whole = np.asarray(array, order="C")
        if not whole.size:
            return Data(whole.shape, dtype, None, host=whole)
        self.check()
        flat = whole.reshape(-1).view(np.uint8)
        cl = self._cl
        with translated(cl, f"[{self.name}] taking {whole.nbytes} bytes from the host"):
            if self.shared:
                flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
                return Data(whole.shape, dtype, cl.Buffer(self._context, flags, hostbuf=flat), host=whole)
            block = self.pool.take(whole.nbytes)
            event = cl.enqueue_copy(self._queue, block.memory, flat, is_blocking=False)
            self.keep(event, (flat,))
            return Data(whole.shape, dtype, block.memory, block)

    def to_host(self, data: Data) -> Any:
        """Data as an array of the host, when all work on it is done. Raises if it depends on an index out of range."""
        with self._handing:  # two threads must not map one buffer at a time
            array = self._to_host(data)
        self._check(data)
        return array

    def _to_host(self, data: Data) -> Any:
        data.finished(self)
        if data.host is not None:
            return data.host
        if data.buffer is None:
            return np.empty(data.shape, data.dtype.numpy)
        self.check()
        cl = self._cl
        with translated(cl, f"[{self.name}] handing {data.nbytes} bytes to the host"):
            if not self.shared:
                flat = np.empty(data.nbytes, np.uint8)
                cl.enqueue_copy(self._queue, flat, data.buffer, is_blocking=True)
                self.let_go()
                return flat.view(data.dtype.numpy).reshape(data.shape)
            # By the standard the host may only look at the memory while it is mapped, or after it has been.
            mapped, _ = cl.enqueue_map_buffer(
                self._queue, data.buffer, cl.map_flags.READ, 0, (data.nbytes,), np.uint8, is_blocking=True
            )
            mapped.base.release(self._queue)
        self.let_go()
        assert data.block is not None
        flat = np.asarray(_Exposed(data.block))[: data.nbytes]
        data.host = flat.view(data.dtype.numpy).reshape(data.shape)
        return data.host

    def new(self, shape: Shape, dtype: DType) -> Data:
        """Room for elements that a kernel will write, all of them."""
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return Data(shape, dtype, None)
        if nbytes > self.largest:
            raise OutOfMemory(f"[{self.name}] asked for {nbytes} bytes; its largest buffer has {self.largest}")
        block = self.pool.take(nbytes)
        return Data(shape, dtype, block.memory.buffer if self.shared else block.memory, block)

    def fault_table(self) -> Data:
        """Where a kernel, which is launched next, notes indices out of range."""
        with self._lock:
            if self._fault_table is None:
                cl, zeros = self._cl, np.zeros(Faults.shape, np.int64)
                flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
                with translated(cl, f"[{self.name}] asking for {zeros.nbytes} bytes"):
                    buffer = cl.Buffer(self._context, flags, hostbuf=zeros)
                self._fault_table = Data(Faults.shape, int64, buffer)
            return self._fault_table

    def look_for_faults(self) -> UserError | None:
        """Wait until the queue is empty. Returns a mistake that kernels have found meanwhile."""
        waited = self.faults.tick()
        self.wait()
        return None if self._fault_table is None else self.faults.look(waited, self._read_faults, self._clear_faults)

    def _check(self, data: Data) -> None:
        if not self.faults.is_settled(data.span):
            self.look_for_faults()
        self.faults.check(data.span)

    def _read_faults(self) -> Any:
        table = np.zeros((self.faults.used, 2), np.int64)
        with translated(self._cl, f"[{self.name}] looking for faults"):
            self._cl.enqueue_copy(self._queue, table, self.fault_table().buffer, is_blocking=True)
        return table

    def _clear_faults(self) -> None:
        table = self.fault_table()
        with translated(self._cl, f"[{self.name}] clearing faults"):
            self._cl.enqueue_fill_buffer(self._queue, table.buffer, np.uint8(0), 0, table.nbytes)

    def keep(self, event: Any, things: Sequence[Any]) -> None:
        """Hold on to memory of the host until an event: the queue still reads it."""
        with self._lock:
            self._waiting.append((event, things))
        self.let_go()

    def let_go(self) -> None:
        """Of what the queue has done with. It works in order: behind the first that is not done, none is."""
        if self._is_forked:
            return
        done = self._cl.command_execution_status.COMPLETE
        with self._lock:
            while self._waiting and self._waiting[0][0].command_execution_status <= done:
                self._waiting.popleft()

    def wait(self) -> None:
        """Until the queue is empty."""
        self.check()
        with translated(self._cl, f"[{self.name}] waiting"):
            self._queue.finish()
        with self._lock:
            self._waiting.clear()

    def statistics(self) -> PoolStatistics:
        """The statistics of the pool."""
        self.let_go()
        return self.pool.statistics()

    def fill_with_garbage(self) -> None:
        """From now on every block is handed out full of ones: tests show so that kernels write all they show."""

        def fill(memory: Any, nbytes: int) -> None:
            buffer = memory.buffer if self.shared else memory
            self._cl.enqueue_fill_buffer(self._queue, buffer, np.uint8(255), 0, nbytes)

        self.pool.on_take = fill

    def trim(self) -> int:
        """Return the free memory of the pool to the system."""
        if self._is_forked:
            return 0
        self.wait()
        return self.pool.trim()

    def _allocate(self, nbytes: int, alignment: int) -> Any:
        cl = self._cl
        with translated(cl, f"[{self.name}] asking for {nbytes} bytes"):
            if not self.shared:
                return cl.Buffer(self._context, cl.mem_flags.READ_WRITE, nbytes)
            edge = max(alignment, _PAGE if nbytes >= _PAGE else alignment)
            whole = np.empty(nbytes + edge, np.uint8)
            skip = -whole.ctypes.data % edge
            raw = whole[skip : skip + nbytes]
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
            return HostMemory(raw, cl.Buffer(self._context, flags, hostbuf=raw))

    def _free(self, memory: Any) -> None:
        # The queue may still be at work on it: what was returned is only known to be out of the program's hands.
        if self._is_forked:
            return
        self._queue.finish()
        (memory.buffer if self.shared else memory).release()


def _finish(cl: Any, queue: Any, process: int) -> None:
    """Before a process ends, or memory goes: kernels may still be at work on arrays of the host, which go with it.

    A child that was forked has the queue, but nobody who would ever empty it.
    """
    if os.getpid() == process:
        with suppress(cl.Error):  # there is nobody left to tell
            queue.finish()
