"""Data in shared storage: the host and the device use the same memory."""

from __future__ import annotations

import ctypes
from mmap import PAGESIZE
from typing import Any, Final, final

import numpy as np

from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ...errors import OutOfMemory
from ..kernel.memory import Data, HostMemory
from ..kernel.memory import Memory as KernelMemory
from .commands import Commands, Encoder, is_done

_SHARED: Final = 0  # MTLResourceStorageModeShared


@final
class Memory(KernelMemory):
    """The memory of one device. A command buffer keeps its buffers: none goes before the device is done with it."""

    def __init__(self, device: Any, commands: Commands, name: str) -> None:
        self._device = device
        self._commands = commands
        total, largest = int(device.recommendedMaxWorkingSetSize()), int(device.maxBufferLength())
        super().__init__(name, total, largest, shared=True, finish=commands.finish)

    def _taken(self, flat: Any, shape: Shape, dtype: DType) -> Data:
        """Use bytes in place if they begin at a page; copy others, because no buffer may begin within a page."""
        at, nbytes, device = flat.ctypes.data, flat.nbytes, self._device
        if at % PAGESIZE:
            return Data(shape, dtype, self._made(device.newBufferWithBytes_length_options_(flat, nbytes, _SHARED)))
        pages = (ctypes.c_char * (-(-nbytes // PAGESIZE) * PAGESIZE)).from_address(at)
        wrapped = device.newBufferWithBytesNoCopy_length_options_deallocator_(pages, len(pages), _SHARED, None)
        return Data(shape, dtype, self._made(wrapped))

    def small(self, content: bytes) -> Any:
        """A buffer with these bytes, for as long as it is kept."""
        return self._made(self._device.newBufferWithBytes_length_options_(content, len(content), _SHARED))

    def _handed(self, data: Data) -> Any:
        self.wait()
        return data.exposed()

    def _fill(self, buffer: Any, nbytes: int, byte: int) -> None:
        with self._commands.encoding(Encoder.FILLS) as (command_buffer, encoder):
            encoder.fillBuffer_range_value_(buffer, (0, nbytes), byte)
        self.keep(command_buffer, ())

    def _is_done(self, event: Any) -> bool:
        done = is_done(event)  # once: it may end, and fail, between two looks
        if done and (error := event.error()) is not None:
            self._lose(f"a command buffer failed: {error.localizedDescription()}")
        return done

    def _finish(self) -> None:
        self._commands.finish()

    def _allocate(self, nbytes: int, alignment: int) -> HostMemory:
        used = int(self._device.currentAllocatedSize())
        if used + nbytes > self.total:
            raise OutOfMemory(f"[{self.name}] asked for {nbytes} bytes beside {used} in use of {self.total}")
        buffer = self._made(self._device.newBufferWithLength_options_(nbytes, _SHARED))
        return HostMemory(np.frombuffer(buffer.contents().as_buffer(nbytes), np.uint8), buffer)

    def _made(self, buffer: Any | None) -> Any:
        if buffer is None:
            raise OutOfMemory(f"[{self.name}] Metal made no buffer")
        return buffer

    def _release(self, buffer: Any) -> None:
        """It goes with the last reference."""
