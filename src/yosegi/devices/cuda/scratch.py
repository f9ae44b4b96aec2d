"""Memory for values that live no longer than a run."""

from __future__ import annotations

from typing import Final

from ..._run.memory.pool import Block
from .memory import ALIGNMENT, Memory

_SHARE: Final = 4
"""The share of the device's memory that scratch memory may take: one of so many."""


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
