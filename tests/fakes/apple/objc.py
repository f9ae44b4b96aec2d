"""pyobjc's `objc`, as far as Apple's devices use it: pools of objects that nobody owns, objects that count."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any, NamedTuple

__version__ = "0"

LIVE: Counter[str] = Counter()
"""The objects that are alive, by class."""
_thread = local()


class Object:
    """An object of Apple's frameworks."""

    def __init__(self) -> None:
        LIVE[type(self).__name__] += 1

    def __del__(self, live: Counter[str] = LIVE) -> None:  # the module goes before its last objects
        live[type(self).__name__] -= 1

    @classmethod
    def alloc(cls) -> Any:
        return cls.__new__(cls)

    def init(self) -> Any:
        self.__init__()  # type: ignore[misc]
        return self


class error(Exception):
    """An exception of Objective-C."""


class NSError(Object):
    """Why something failed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def localizedDescription(self) -> str:
        return self._text


class Varlist(NamedTuple):
    """A pointer to memory of unknown length."""

    address: int

    def as_buffer(self, nbytes: int) -> memoryview:
        """Memory that nobody keeps."""
        return memoryview((ctypes.c_char * nbytes).from_address(self.address)).cast("B")


def autoreleased(thing: Any) -> Any:
    """The same object, kept until the innermost pool ends. Without a pool it is kept for ever: a leak."""
    _pools()[-1].append(thing)
    return thing


def _pools() -> list[list[Any]]:
    if not hasattr(_thread, "pools"):
        _thread.pools = [[]]
    pools: list[list[Any]] = _thread.pools
    return pools


@contextmanager
def autorelease_pool() -> Iterator[None]:
    """A pool."""
    _pools().append([])
    try:
        yield
    finally:
        _pools().pop()
