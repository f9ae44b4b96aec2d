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

    __slots__ = ("_others", "data", "depth", "space")

    def __init__(self, data: Any, space: str = HOST, depth: int = 0) -> None:
        self.data = data
        self.space = space
        self.depth = depth
        """How many evaluations it would take to make it again, if its memory were lost."""
        self._others: dict[str, Any] | None = None

    def on(self, space: str) -> Any:
        """The data in a memory, or `None` if there is no replica."""
        if self.space == space:
            return self.data
        return None if self._others is None else self._others.get(space)

    def add(self, space: str, data: Any) -> None:
        """Note a replica."""
        if self._others is None:
            self._others = {}
        self._others[space] = data

    def spaces(self) -> tuple[str, ...]:
        """The memories that have the values."""
        return (self.space, *(self._others or ()))

    def forget(self, space: str) -> bool:
        """Drop the replica in a memory that is gone; whether any replica is left."""
        if self._others is not None:
            self._others.pop(space, None)
        if self.space == space:
            if not self._others:
                return False
            self.space, self.data = self._others.popitem()
        return True
