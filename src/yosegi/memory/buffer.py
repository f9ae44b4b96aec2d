"""A tensor's values in memory."""

from __future__ import annotations

from typing import Any, Final

HOST: Final = "host"
"""The name of main memory, where `Buffer.data` is a NumPy array (or a tuple of them, for an op of several outputs)."""


class Buffer:
    """Values that will never change, in one memory: `space` names it, `data` is what kernels there take."""

    __slots__ = ("data", "space")

    def __init__(self, data: Any, space: str = HOST) -> None:
        self.data = data
        self.space = space
