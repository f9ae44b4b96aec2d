"""Memory that calls work in and leave to the next: its pages are there already, and most of it is in a cache."""

from __future__ import annotations

from typing import Any, Final

from .results import lined_up

_MOST: Final = 4


class Spare:
    """Free memory, from which several threads may take."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []

    def take(self, size: int) -> Any:
        """At least so many bytes, which nobody else has, from a whole cache line on. Anything may be in them."""
        try:
            block = self._blocks.pop()
        except IndexError:
            return lined_up(size)
        return block if block.nbytes >= size else lined_up(size)

    def give_back(self, block: Any) -> None:
        """Memory that is no longer needed."""
        if len(self._blocks) < _MOST:
            self._blocks.append(block)
