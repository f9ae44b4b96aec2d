"""pyobjc, and the command buffers of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import cache
from threading import RLock
from typing import Any, Final, final

_MOST: Final = 32
"""Commands in a command buffer."""
_COMPLETED: Final = 4  # MTLCommandBufferStatusCompleted; MTLCommandBufferStatusError is the next


@cache
def metal() -> tuple[Any, Any]:
    """The packages `Metal` and `objc`."""
    import Metal
    import objc

    return Metal, objc


@cache
def foundation() -> Any:
    """The package `Foundation`."""
    import Foundation

    return Foundation


def pool() -> Any:
    """Give back what Metal's methods hand out inside: without this, each launch leaks its command buffer."""
    return metal()[1].autorelease_pool()


@final
class Encoder(Enum):
    """The kinds of encoders."""

    KERNELS = auto()
    FILLS = auto()
    INDIRECT = auto()
    """Kernels of an indirect command buffer: an encoder for each."""
    NONE = auto()
    """A library encodes its commands itself."""


@final
class Commands:
    """The commands to one device, in order.

    Each is encoded into the open command buffer. An idle device gets it at once. While the device is busy, the open
    command buffer takes up to `_MOST` commands: committing each on its own takes longer than a small kernel.
    """

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.lock = RLock()
        self._open: Any = None
        self._encoder: Any = None
        self._encoded = 0
        self._last: Any = None
        """The last command buffer that was committed."""

    @contextmanager
    def encoding(self, kind: Encoder) -> Iterator[tuple[Any, Any]]:
        """The open command buffer and an encoder for one more command."""
        with self.lock, pool():
            if self._open is None:
                self._open = self._queue.commandBuffer()
            if kind is not Encoder.KERNELS:
                self._end_encoder()
            if kind is Encoder.FILLS:
                self._encoder = self._open.blitCommandEncoder()
            elif self._encoder is None and kind is not Encoder.NONE:
                self._encoder = self._open.computeCommandEncoder()
            yield self._open, self._encoder
            self._encoded += 1
            if kind is not Encoder.KERNELS:
                self._end_encoder()
            if self._encoded >= _MOST or self._last is None or is_done(self._last):
                self._commit()

    def go_on_in(self, command_buffer: Any) -> None:
        """Encode into another command buffer from now on: a library has committed the open one."""
        self._last, self._open, self._encoded = self._open, command_buffer, 0

    def finish(self) -> None:
        """Wait until all commands are done. Whether one has failed, its command buffer says."""
        with self.lock, pool():
            self._commit()
            last = self._last
        if last is not None:  # without the lock: others may go on
            last.waitUntilCompleted()

    def _commit(self) -> None:
        if self._open is not None:
            self._end_encoder()
            self._open.commit()
            self._last, self._open, self._encoded = self._open, None, 0

    def _end_encoder(self) -> None:
        if self._encoder is not None:
            self._encoder.endEncoding()
            self._encoder = None


def is_done(command_buffer: Any) -> bool:
    """Whether the device is past a command buffer, well or not."""
    return bool(command_buffer.status() >= _COMPLETED)
