"""Data in an OpenCL device's memory."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, final

import numpy as np

from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ..kernel.memory import Data, HostMemory
from ..kernel.memory import Memory as KernelMemory
from .errors import translated

_PAGE: Final = 4096


@final
class Memory(KernelMemory):
    """The memory of one device: the host's own where the device shares it."""

    def __init__(self, cl: Any, context: Any, queue: Any, device: Any, name: str) -> None:
        self._cl = cl
        self._context = context
        self._queue = queue

        def finish() -> None:
            with suppress(cl.Error):  # there is nobody left to tell
                queue.finish()

        super().__init__(
            name,
            int(device.global_mem_size),
            int(device.max_mem_alloc_size),
            shared=bool(device.host_unified_memory),
            finish=finish,
        )

    def _taken(self, flat: Any, shape: Shape, dtype: DType) -> Data:
        cl = self._cl
        with translated(cl, f"[{self.name}] taking {flat.nbytes} bytes from the host"):
            if self.shared:
                flags = cl.mem_flags.READ_ONLY | cl.mem_flags.USE_HOST_PTR
                return Data(shape, dtype, cl.Buffer(self._context, flags, hostbuf=flat))
            block = self.pool.take(flat.nbytes)
            event = cl.enqueue_copy(self._queue, block.memory, flat, is_blocking=False)
            self.keep(event, (flat,))
            return Data(shape, dtype, block.memory, block)

    def _handed(self, data: Data) -> Any:
        cl = self._cl
        with translated(cl, f"[{self.name}] handing {data.nbytes} bytes to the host"):
            if not self.shared:
                flat = np.empty(data.nbytes, np.uint8)
                cl.enqueue_copy(self._queue, flat, data.buffer, is_blocking=True)
                return flat.view(data.dtype.numpy).reshape(data.shape)
            # By the standard the host may only look at the memory while it is mapped, or after it has been.
            mapped, _ = cl.enqueue_map_buffer(
                self._queue, data.buffer, cl.map_flags.READ, 0, (data.nbytes,), np.uint8, is_blocking=True
            )
            mapped.base.release(self._queue)
        return data.exposed()

    def _fill(self, buffer: Any, nbytes: int, byte: int) -> None:
        with translated(self._cl, f"[{self.name}] filling {nbytes} bytes"):
            self._cl.enqueue_fill_buffer(self._queue, buffer, np.uint8(byte), 0, nbytes)

    def _is_done(self, event: Any) -> bool:
        status = event.command_execution_status  # once: it may end, and fail, between two looks
        if status < 0:
            self._lose(f"a command ended with the status {status}")
        return bool(status <= self._cl.command_execution_status.COMPLETE)

    def _finish(self) -> None:
        with translated(self._cl, f"[{self.name}] waiting"):
            self._queue.finish()

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

    def _release(self, buffer: Any) -> None:
        # The queue may still be at work on it: what was returned is only known to be out of the program's hands.
        self._queue.finish()
        buffer.release()
