"""A tensor's values in memory: one logical buffer with replicas."""

from __future__ import annotations

from typing import Any, Final

HOST: Final = "host"
"""The name of main memory, where data is a NumPy array (or a tuple of them, for an op of several outputs)."""


class Buffer:
    """Values that will never change, in one memory or several.

    `data` is what kernels take in the memory named `space`, where the values were made. Replicas in other memories are
    added as they are needed. Since values never change, every replica is as good as the first: none is ever stale.
    """

    __slots__ = ("_replicas", "data", "space")

    def __init__(self, data: Any, space: str = HOST) -> None:
        self.data = data
        self.space = space
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
        self._replicas[space] = data

    def spaces(self) -> tuple[str, ...]:
        """The memories that have the values."""
        return (self.space, *(self._replicas or ()))

    def forget(self, space: str) -> bool:
        """Drop the replica in a memory that is gone; whether any replica is left."""
        if self._replicas is not None:
            self._replicas.pop(space, None)
        if self.space == space:
            if not self._replicas:
                return False
            self.space, self.data = self._replicas.popitem()
        return True
