"""pyobjc's `objc`, as far as the Metal device uses it: pools of objects that nobody owns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

__version__ = "0"

_thread = local()


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
