"""Memory that calls work in and leave to the next: its pages are there already, and most of it is in a cache."""

from __future__ import annotations

from typing import Any, Final

from .results import lined_up

_MOST: Final = 4


class Spare:
    """Free memory, from which several threads may take."""

    def __init__(self) -> None:
        self._blocks: dict[int, Any] = {}
        """By identity: two threads never get the same block out of it."""

    def take(self, size: int) -> Any:
        """At least so many bytes, which nobody else has, from a whole cache line on. Anything may be in them. The
        smallest block that is large enough is taken."""
        for block in sorted(self._blocks.copy().values(), key=_size):
            if block.nbytes >= size and self._blocks.pop(id(block), None) is not None:
                return block
        return lined_up(size)

    def give_back(self, block: Any) -> None:
        """Memory that is no longer needed. Of too many blocks, the smallest is let go of."""
        self._blocks[id(block)] = block
        while len(self._blocks) > _MOST:
            self._blocks.pop(id(min(self._blocks.copy().values(), key=_size)), None)


def _size(block: Any) -> int:
    return int(block.nbytes)
