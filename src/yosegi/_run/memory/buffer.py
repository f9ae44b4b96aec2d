"""A tensor's values in memory: one logical buffer with replicas."""

from __future__ import annotations

from typing import Any, Final

HOST: Final = "host"
"""The name of main memory, where data is a NumPy array (or a tuple of them, for an op of several outputs)."""


class Buffer:
    """Values that will never change, in one memory or several.

    `data` is what kernels take in the memory named `space`, where the values were made. Replicas in other memories are
    added as they are needed. Since values never change, every replica is as good as the first: none is ever stale.
    A buffer is pinned if the user has put it, or what it was made of, into a device's memory: work follows it there.
    """

    __slots__ = ("__weakref__", "_replicas", "data", "depth", "is_pinned", "space")

    def __init__(self, data: Any, space: str = HOST, is_pinned: bool = False) -> None:
        self.data = data
        self.space = space
        self.is_pinned = is_pinned
        self.depth = 0
        """For values that only a device has: how many evaluations it takes to make them again."""
        self._replicas: dict[str, Any] | None = None  # most buffers never have one

    def on(self, space: str) -> Any:
        """The data in a memory, or `None` if there is no replica."""
        if self.space == space:
            return self.data
        return None if self._replicas is None else self._replicas.get(space)

    def add(self, space: str, data: Any) -> None:
        """Note a replica."""
        if self._replicas is None:
            self._replicas = {}
        # A lost device's memory gets a new name, "device/number": replicas under the old ones are dead.
        device = space.partition("/")[0]
        for dead in [s for s in list(self._replicas) if s.partition("/")[0] == device]:
            self._replicas.pop(dead, None)
        self._replicas[space] = data

    def spaces(self) -> tuple[str, ...]:
        """The memories that have the values."""
        return (self.space, *(self._replicas or ()))

    def without(self, space: str) -> Buffer | None:
        """The buffer as it is when a memory is gone: another object, so that no thread sees it half changed."""
        left = {s: self.on(s) for s in self.spaces() if s != space}
        if not left:
            return None
        home = HOST if HOST in left else next(iter(left))
        buffer = Buffer(left.pop(home), home, self.is_pinned and home != HOST)
        for other, data in left.items():
            buffer.add(other, data)
        return buffer
