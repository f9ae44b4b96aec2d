"""Data in the memory of a device with an in-order queue.

Where the device shares the host's memory nothing is copied: an array from the host is used where it lies, and a result
is handed to the host as an array on the very memory that the kernel wrote. Elsewhere data is copied.
"""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from math import prod
from threading import RLock
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..._run.forks import in_forked_child
from ..._run.memory.pool import Block, Pool, PoolStatistics
from ..._tensor.dtype import DType, as_dtype, int64
from ..._tensor.environment import memory_limit
from ..._tensor.node import Shape
from ...errors import DeviceFailure, DeviceLost, OutOfMemory, UserError
from .faults import Faults, Span


class QueueMemory(Protocol):
    """The memory of a queue's device."""

    shared: bool
    """True if the host uses it too."""
    total: int
    """Its bytes."""
    faults: Faults

    def new(self, shape: Shape, dtype: DType) -> Any:
        """Room for elements that a kernel will write, all of them."""

    def from_host(self, array: Any) -> Any:
        """An array of the host as data."""

    def to_host(self, data: Any) -> Any:
        """Data as an array of the host, when all work on it is done."""

    def reshaped(self, data: Any, shape: Shape) -> Any:
        """A view of the memory with another shape."""

    def fault_table(self) -> Any:
        """Where a kernel, which is launched next, notes indices out of range."""

    def look_for_faults(self) -> UserError | None:
        """Wait until the queue is empty. Returns a mistake that kernels have found meanwhile."""

    def wait(self) -> None:
        """Until the queue is empty."""

    def statistics(self) -> PoolStatistics:
        """The statistics of its pool."""

    def fill_with_garbage(self) -> None:
        """Hand out every block full of ones from now on."""

    def trim(self) -> int:
        """Give back what its pools keep."""


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

    __slots__ = ("_finish", "block", "buffer", "dtype", "host", "losses", "shape", "span")

    def __init__(
        self, shape: Shape, dtype: DType, buffer: Any, block: Block | None = None, host: Any | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.buffer = buffer
        self.block = block
        self.host = host
        self.span: Span | None = None
        self.losses: int | None = None
        """The failures of the queue before a kernel wrote it; `None` for data of the host."""
        self._finish: Callable[[], Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return prod(self.shape) * self.dtype.itemsize

    @classmethod
    def unfinished(cls, shape: Shape, dtype: DType, finish: Callable[[], Any]) -> Data:
        """Data whose last step the host does, when somebody wants it: `finish` gives the array."""
        made = cls(shape, dtype, None)
        made._finish = finish
        return made

    @property
    def is_finished(self) -> bool:
        """False if the host has a last step to do."""
        return self._finish is None

    def finished(self, memory: Memory) -> Data:
        """The data with its values computed. Raises `DeviceLost` if the queue has failed since a kernel wrote them."""
        if self.losses is not None and self.losses != memory.losses:
            raise DeviceLost(f"[{memory.name}] its data is lost: {memory.loss}")
        finish = self._finish
        if finish is not None:
            whole = memory.from_host(finish())
            self.buffer, self.host, self.block = whole.buffer, whole.host, whole.block
            self._finish = None
        return self

    def exposed(self) -> Any:
        """The elements of a block of shared memory as an array, which keeps the block."""
        assert self.block is not None
        return np.asarray(_Exposed(self.block))[: self.nbytes].view(self.dtype.numpy).reshape(self.shape)


class Memory(ABC):
    """The memory of one device, its pool, and what must stay alive until its queue has done with it."""

    def __init__(self, name: str, total: int, largest: int, *, shared: bool, finish: Callable[[], None]) -> None:
        """`largest` is the size of the largest buffer. `finish` empties the queue when this object goes, or the process
        ends: kernels may still be at work on arrays of the host, which go with it."""
        self.name = name
        self.total = total
        self.largest = largest
        self.shared = shared
        self.pool = Pool(self._allocate, self._free, memory_limit(name))
        self._waiting: deque[tuple[Any, Sequence[Any]]] = deque()
        self._lock = RLock()
        self._handing = RLock()
        self._is_forked = False
        self.losses = 0
        """How often work in the queue has failed, after its launch: all data that kernels wrote before may be wrong."""
        self.loss = ""
        """The last of these failures."""
        self.faults = Faults()
        self._fault_table: Data | None = None
        self._is_table_lost = False
        """True if work that cleared the table may have failed."""
        self._is_clearing = False
        weakref.finalize(self, _in_process, os.getpid(), finish)
        in_forked_child(self._after_fork)

    # What a device brings

    @abstractmethod
    def _allocate(self, nbytes: int, alignment: int) -> Any:
        """New memory: a buffer, or `HostMemory` where memory is shared. Raises `OutOfMemory`."""

    @abstractmethod
    def _release(self, buffer: Any) -> None:
        """Give a buffer back; the queue may still use it."""

    @abstractmethod
    def _taken(self, flat: Any, shape: Shape, dtype: DType) -> Data:
        """The bytes of an array of the host as data."""

    @abstractmethod
    def _handed(self, data: Data) -> Any:
        """Data as an array of the host, when all work on it is done."""

    @abstractmethod
    def _fill(self, buffer: Any, nbytes: int, byte: int) -> None:
        """Fill a buffer, in the order of the queue."""

    @abstractmethod
    def _is_done(self, event: Any) -> bool:
        """True if the queue is past an event. Calls `_lose` if its work failed."""

    @abstractmethod
    def _finish(self) -> None:
        """Wait until the queue is empty. Raises a failure to do so."""

    # What all have

    def _after_fork(self) -> None:
        """In a forked child: the driver's threads are not there, nor is a thread that may have held a lock."""
        self._is_forked = True
        self._lock = RLock()
        self._handing = RLock()
        self.pool.reset()

    def check(self) -> None:
        """Raise in a forked child: who waits for the driver there waits for ever."""
        if self._is_forked:
            raise DeviceLost(f"[{self.name}] its driver was loaded before this process was forked")

    def _lose(self, reason: str) -> None:
        """Note that work in the queue has failed after its launch."""
        self.losses += 1
        self.loss = reason
        self._is_table_lost = self._fault_table is not None

    def finished(self, data: Sequence[Data]) -> list[Data]:
        """The data that a kernel reads, with its values computed. Raises `DeviceLost`."""
        self.check()
        return [d.finished(self) for d in data]

    def reshaped(self, data: Data, shape: Shape) -> Data:
        """A view of the memory with another shape."""
        data.finished(self)
        host = None if data.host is None else data.host.reshape(shape)
        made = Data(shape, data.dtype, data.buffer, data.block, host)
        made.losses = data.losses
        return made

    def from_host(self, array: Any) -> Data:
        """An array of the host as data: in place if memory is shared, else a copy."""
        dtype = as_dtype(array.dtype)
        whole = np.asarray(array, order="C")
        if not whole.size:
            return Data(whole.shape, dtype, None, host=whole)
        self.check()
        made = self._taken(whole.reshape(-1).view(np.uint8), whole.shape, dtype)
        if self.shared:
            made.host = whole
        return made

    def to_host(self, data: Data) -> Any:
        """Data as an array of the host, when all work on it is done. Raises if it depends on an index out of range."""
        with self._handing:  # two threads must not map one buffer at a time
            array = self._to_host(data)
        if not self.faults.is_settled(data.span):
            self.look_for_faults()
        self.faults.check(data.span)
        return array

    def _to_host(self, data: Data) -> Any:
        data.finished(self)
        if data.host is not None:
            return data.host
        if data.buffer is None:
            return np.empty(data.shape, data.dtype.numpy)
        self.check()
        array = self._handed(data)
        self.let_go()
        data.finished(self)  # raises if its work has failed meanwhile
        if self.shared:
            data.host = array
        return array

    def new(self, shape: Shape, dtype: DType) -> Data:
        """Room for elements that a kernel will write, all of them."""
        nbytes = prod(shape) * dtype.itemsize
        if not nbytes:
            return Data(shape, dtype, None)
        if nbytes > self.largest:
            raise OutOfMemory(f"[{self.name}] asked for {nbytes} bytes; its largest buffer has {self.largest}")
        return self.of_block(self.pool.take(nbytes), shape, dtype)

    def of_block(self, block: Block, shape: Shape, dtype: DType) -> Data:
        """Room for elements in a block."""
        made = Data(shape, dtype, self._buffer(block.memory), block)
        made.losses = self.losses
        return made

    def is_permanent(self, data: Data) -> bool:
        """True for data that every run writes in the same place."""
        return data is self._fault_table

    def _buffer(self, memory: Any) -> Any:
        return memory.buffer if self.shared else memory

    def fault_table(self) -> Data:
        """Where a kernel, which is launched next, notes indices out of range."""
        with self._lock:
            if self._fault_table is None:
                table = self.new(Faults.shape, int64)
                self._fill(table.buffer, table.nbytes, 0)
                self._fault_table = table
            return self._fault_table

    def look_for_faults(self) -> UserError | None:
        """Wait until the queue is empty. Returns a mistake that kernels have found meanwhile."""
        waited = self.faults.tick()
        self.wait()
        table = self._fault_table
        if table is None:
            return None
        if self._is_table_lost:
            raise DeviceLost(f"[{self.name}] its table of index faults is lost: {self.loss}")
        return self.faults.look(
            waited,
            lambda: self._handed(table)[: self.faults.used],
            lambda: self._fill(table.buffer, table.nbytes, 0),
        )

    def keep(self, event: Any, things: Sequence[Any]) -> None:
        """Hold on to memory of the host until an event: the queue still reads it."""
        with self._lock:
            self._waiting.append((event, things))
        self.let_go()

    def let_go(self) -> None:
        """Of what the queue has done with. It works in order: behind the first that is not done, none is."""
        if self._is_forked:
            return
        with self._lock:
            while self._waiting and self._is_done(self._waiting[0][0]):
                self._waiting.popleft()
            if self._is_table_lost and not self._is_clearing:
                self._clear_table()

    def _clear_table(self) -> None:
        """Clear the table of index faults again. If that fails too, the table stays lost, and a later call tries."""
        table = self._fault_table
        assert table is not None
        self._is_clearing, self._is_table_lost = True, False
        try:
            self._fill(table.buffer, table.nbytes, 0)
        except DeviceFailure:
            self._is_table_lost = True
        finally:
            self._is_clearing = False

    def wait(self) -> None:
        """Until the queue is empty. Raises `DeviceLost` if work in it has failed."""
        self.check()
        losses = self.losses
        self._finish()
        self.let_go()
        if self.losses != losses:
            raise DeviceLost(f"[{self.name}] {self.loss}")

    def statistics(self) -> PoolStatistics:
        """The statistics of the pool."""
        self.let_go()
        return self.pool.statistics()

    def fill_with_garbage(self) -> None:
        """From now on every block is handed out full of ones: tests show so that kernels write all they show."""
        self.pool.on_take = lambda memory, nbytes: self._fill(self._buffer(memory), nbytes, 255)

    def trim(self) -> int:
        """Give back what the pool keeps."""
        if self._is_forked:
            return 0
        self.wait()
        return self.pool.trim()

    def _free(self, memory: Any) -> None:
        if not self._is_forked:
            self._release(self._buffer(memory))


def _in_process(process: int, finish: Callable[[], None]) -> None:
    """Only where the queue was made: a child that was forked has it, but nobody who would ever empty it."""
    if os.getpid() == process:
        finish()
