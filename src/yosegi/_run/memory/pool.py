"""Pools: memory that is kept for reuse, keyed by its bytes and alignment.

A block has bytes and no dtype. It still contains its old bytes; its user writes every byte that is read. A block goes
back to the pool when the last reference to it is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import Any, Final

from ...errors import OutOfMemory

ALIGNMENT: Final = 64


BlockKey = tuple[int, int]
"""The bytes and the alignment of a block."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The bytes of a pool."""

    in_use: int
    cached: int
    peak: int
    limit: int | None

    def room(self, memory: int) -> tuple[int, int]:
        """The free bytes under the limit in a memory of this size, and the total.

        >>> PoolStatistics(in_use=300, cached=0, peak=500, limit=1000).room(8000)
        (700, 1000)
        """
        total = memory if self.limit is None else min(memory, self.limit)
        return max(total - self.in_use, 0), total


class Block:
    """Some memory of a pool, for as long as this object lives. `memory` is what the pool's `allocate` gave."""

    __slots__ = ("__weakref__", "_returned", "key", "memory")

    def __init__(self, memory: Any, key: BlockKey, returned: deque[tuple[BlockKey, Any]]) -> None:
        self.memory = memory
        self.key = key
        self._returned = returned

    @property
    def nbytes(self) -> int:
        """Its size: the requested bytes, rounded up."""
        return self.key[0]

    def __del__(self) -> None:
        # The garbage collector may call this in the middle of anything, the pool's own work included: no locks here.
        self._returned.append((self.key, self.memory))


class Pool:
    """Memory of one device, from `allocate(bytes, alignment)` and back by `free(memory)`.

    >>> pool = Pool(lambda nbytes, alignment: bytearray(nbytes), lambda memory: None, limit=1000)
    >>> block = pool.take(100)
    >>> block.nbytes, pool.statistics().in_use
    (112, 112)
    >>> del block
    >>> pool.statistics().in_use, pool.trim()
    (0, 112)
    """

    def __init__(
        self,
        allocate: Callable[[int, int], Any],
        free: Callable[[Any], None],
        limit: int | None = None,
        most_kept: int | None = None,
    ) -> None:
        self._allocate = allocate
        self._free = free
        self.limit = limit
        self._most_kept = most_kept
        """The most bytes that are kept for reuse; further blocks are freed. `None` for no bound."""
        self.on_take: Callable[[Any, int], None] | None = None
        """Called with every block's memory and bytes before it is handed out. Tests fill them with garbage here."""
        self._cached: dict[BlockKey, list[Any]] = {}
        self._returned: deque[tuple[BlockKey, Any]] = deque()
        self._lock = Lock()
        self._in_use = self._kept = self._peak = 0

    def take(self, nbytes: int, alignment: int = ALIGNMENT) -> Block:
        """A block of at least `nbytes`. Raises `OutOfMemory` if the limit or the device does not allow it."""
        return self.take_of(block_key(nbytes, alignment))

    def take_of(self, key: BlockKey) -> Block:
        """A block by its key: a caller that asks repeatedly computes the key once."""
        returned = self._returned
        try:  # the last that came back: a loop gets the same again, which replays are made for
            back = returned.pop() if returned[-1][0] == key else None
        except IndexError:
            back = None
        if back is not None:
            if back[0] == key:
                return self._handed_out(back[1], key)  # it stays in use: no lock, and no sum that changes
            returned.append(back)  # another thread came in between
        return self._taken(key)

    def _taken(self, key: BlockKey) -> Block:
        with self._lock:
            if self._returned:
                self._collect()
            same = self._cached.get(key)
            if same:
                memory = same.pop()
                self._kept -= key[0]
            else:
                memory = self._new(key)
            self._in_use += key[0]
            if self._in_use > self._peak:
                self._peak = self._in_use
        return self._handed_out(memory, key)

    def _handed_out(self, memory: Any, key: BlockKey) -> Block:
        block = Block(memory, key, self._returned)
        if self.on_take is not None:
            self.on_take(memory, key[0])
        return block

    def trim(self) -> int:
        """Free all blocks that are kept for reuse, and return their bytes. The peak is counted anew."""
        with self._lock:
            self._collect()
            self._peak = self._in_use
            return self._drop()

    def reset(self) -> None:
        """Replace the lock in a forked child: a thread that does not exist there may hold it."""
        self._lock = Lock()

    def statistics(self) -> PoolStatistics:
        """The bytes in the pool now, and the largest use since it was last trimmed."""
        with self._lock:
            self._collect()
            return PoolStatistics(self._in_use, self._kept, self._peak, self.limit)

    def _collect(self) -> None:
        while self._returned:
            try:
                key, memory = self._returned.popleft()
            except IndexError:  # `take_of` has taken the last meanwhile: it holds no lock
                return
            self._in_use -= key[0]
            if self._most_kept is not None and self._kept + key[0] > self._most_kept:
                self._free(memory)
                continue
            self._cached.setdefault(key, []).append(memory)
            self._kept += key[0]

    def _new(self, key: BlockKey) -> Any:
        if self.limit is not None and self._in_use + self._kept + key[0] > self.limit:
            self._drop()
            if self._in_use + key[0] > self.limit:
                raise OutOfMemory(f"asked for {key[0]} bytes beside {self._in_use} in use; the limit is {self.limit}")
        try:
            return self._allocate(*key)
        except OutOfMemory:
            if not self._drop():
                raise
            return self._allocate(*key)

    def _drop(self) -> int:
        dropped = self._kept
        for same in self._cached.values():
            for memory in same:
                self._free(memory)
        self._cached.clear()
        self._kept = 0
        return dropped


@lru_cache(maxsize=1024)
def block_key(nbytes: int, alignment: int = ALIGNMENT) -> BlockKey:
    """The key of blocks for so many bytes."""
    return size_class(nbytes), alignment


def size_class(nbytes: int) -> int:
    """Bytes rounded up, to four steps per doubling: few sizes, and at most a quarter too much.

    >>> size_class(1), size_class(65), size_class(1000), size_class(1100)
    (64, 80, 1024, 1280)
    """
    if nbytes <= ALIGNMENT:
        return ALIGNMENT
    step = 1 << max((nbytes - 1).bit_length() - 3, 4)
    return -(-nbytes // step) * step
