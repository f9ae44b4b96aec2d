"""Memory for large results, kept for reuse.

The pages of a fresh array cost more than writing its elements does: each is cleared and mapped by the system at its
first touch. Large results take their memory from a pool, to which it returns when the last array on it is gone. What
a block held before is still in it; kernels write all of a result.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress
from math import prod
from typing import Any, Final

import numpy as np

from ...errors import OutOfMemory
from ...memory.pool import Pool
from ...node import Shape

LARGE: Final = 1 << 20
"""Bytes from which a result's memory is pooled."""
_HUGE_PAGE: Final = 1 << 21
_SHARE: Final = 8
"""One in so many bytes of the machine's memory is kept for reuse, at most."""


class Results:
    """Arrays for large results."""

    def __init__(self) -> None:
        self.pool = Pool(_allocate, lambda memory: None, most_kept=_physical() // _SHARE)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.pool.reset)

    def any(self, shape: Shape, dtype: Any) -> Any:
        """An array of any size whose elements are yet to be written. Raises `OutOfMemory`."""
        nbytes = prod(shape) * dtype.itemsize
        return self.new(shape, dtype, nbytes) if nbytes >= LARGE else np.empty(shape, dtype)

    def new(self, shape: Shape, dtype: Any, nbytes: int) -> Any:
        """A large one."""
        block = self.pool.take(nbytes)
        raw: Any = (ctypes.c_char * nbytes).from_address(block.memory.ctypes.data)
        raw.block = block  # an array's base keeps the block from going back
        return np.ndarray(shape, dtype, buffer=raw)


def _physical() -> int:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return 1 << 32
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _allocate(nbytes: int, alignment: int) -> Any:
    """Fresh memory, in huge pages where the system gives them to those who ask."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        raw = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
        first = -raw.ctypes.data % mmap.PAGESIZE
        return raw[first : first + nbytes]
    try:
        pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise OutOfMemory(f"the system has no {nbytes} bytes left: {error}") from error
    with suppress(OSError, AttributeError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(pages, np.uint8)
    first = -raw.ctypes.data % _HUGE_PAGE
    return raw[first : first + nbytes]
