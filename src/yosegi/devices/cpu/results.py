"""Memory for results.

The pages of a fresh array cost more than writing its elements does: each is cleared and mapped by the system at its
first touch. Large results take their memory from a pool, to which it returns when the last array on it is gone. What
a block held before is still in it; kernels write all of a result.

NumPy's arrays begin anywhere in a cache line, and vectors that are written across two of them take up to three times as
long, as long as they stay in the caches. Results of some size begin with a line.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any, Final

import numpy as np

from ..._run.forks import in_forked_child
from ..._run.memory.pool import ALIGNMENT, Pool
from ..._tensor.node import Shape
from ...errors import OutOfMemory
from .extents import PAGE, Extent, Extents

LARGE: Final = 1 << 20
"""Bytes from which a result's memory is pooled."""
_LINED_UP: Final = 1 << 15
"""Bytes from which a result begins with a cache line: with less, asking where it begins takes as long as that saves."""
_HUGE_PAGE: Final = 1 << 21
_SHARE: Final = 8
"""One in so many bytes of the machine's memory is kept for reuse, at most."""


class Results:
    """Arrays for results."""

    def __init__(self) -> None:
        self.skip: Callable[[Any], int] | None = None
        """How many bytes an array has before its first whole cache line: from native code, which asks fast enough."""
        self._extents = Extents(_mapped, _released(), most_free=_physical() // _SHARE)
        self.pool = Pool(lambda nbytes, _: self._extents.take(nbytes), self._extents.give_back, most_kept=0)
        in_forked_child(self.pool.reset)
        in_forked_child(self._extents.reset)

    def any(self, shape: Shape, dtype: Any) -> Any:
        """An array of any size whose elements are yet to be written. Raises `OutOfMemory`."""
        nbytes = prod(shape) * dtype.itemsize
        if nbytes >= LARGE:
            return self.new(shape, dtype, nbytes)
        skip = self.skip_for(nbytes)
        if skip is None:
            return np.empty(shape, dtype)
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        return np.ndarray(shape, dtype, raw, skip(raw))

    @property
    def cached(self) -> int:
        """Bytes that are kept for reuse."""
        self.pool.statistics()  # collects what came back
        return self._extents.free

    def trim(self) -> int:
        """Give back what is kept for reuse; how many bytes that were. The peak is counted anew from here."""
        self.pool.trim()
        return self._extents.trim()

    def skip_for(self, nbytes: int) -> Callable[[Any], int] | None:
        """`skip`, if results of so many bytes begin with a cache line."""
        return self.skip if nbytes >= _LINED_UP else None

    def new(self, shape: Shape, dtype: Any, nbytes: int) -> Any:
        """A large one."""
        block = self.pool.take_of((-(-nbytes // PAGE) * PAGE, ALIGNMENT))
        raw: Any = (ctypes.c_char * nbytes).from_address(block.memory.address)
        raw.block = block  # an array's base keeps the block from going back
        return np.ndarray(shape, dtype, buffer=raw)


def lined_up(size: int) -> Any:
    """So many bytes, from a whole cache line on. Anything may be in them."""
    raw = np.empty(size + ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT :][:size]


def _physical() -> int:
    if "SC_PHYS_PAGES" not in getattr(os, "sysconf_names", ()):
        return 1 << 32
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _mapped(nbytes: int) -> tuple[Any, int]:
    """Fresh memory and its address, in huge pages where the system gives them to those who ask."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        raw: Any = np.empty(nbytes + PAGE, np.uint8)
        return raw, raw.ctypes.data + -raw.ctypes.data % PAGE
    try:
        pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise OutOfMemory(f"the system has no {nbytes} bytes left: {error}") from error
    raw = np.frombuffer(pages, np.uint8)
    start, whole = -raw.ctypes.data % _HUGE_PAGE, nbytes - nbytes % _HUGE_PAGE
    with suppress(OSError, AttributeError):
        pages.madvise(mmap.MADV_HUGEPAGE, start, whole)
        pages.madvise(mmap.MADV_NOHUGEPAGE, start + whole)  # a huge page at the end would be mostly empty
    return raw, raw.ctypes.data + start


def _released() -> Callable[[Extent], None]:
    """A function that gives pages back to the system; one that does nothing where the system has no call for it."""
    try:
        call = ctypes.CDLL(None).madvise
        call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        unneeded = mmap.MADV_DONTNEED
    except (OSError, AttributeError, TypeError):
        return lambda extent: None

    def released(extent: Extent) -> None:
        start = -(-extent.address // mmap.PAGESIZE) * mmap.PAGESIZE  # a system's pages may be larger than ours
        end = (extent.address + extent.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            call(start, end - start, unneeded)

    return released
