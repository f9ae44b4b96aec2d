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
from typing import Any, Final, NamedTuple

import numpy as np

from ..._run.forks import in_forked_child
from ..._run.memory.pool import ALIGNMENT, Pool
from ..._tensor.node import Shape
from ...errors import OutOfMemory

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
        self.pool = Pool(_allocate, lambda memory: None, most_kept=_physical() // _SHARE)
        in_forked_child(self.pool.reset)

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

    def skip_for(self, nbytes: int) -> Callable[[Any], int] | None:
        """`skip`, if results of so many bytes begin with a cache line."""
        return self.skip if nbytes >= _LINED_UP else None

    def new(self, shape: Shape, dtype: Any, nbytes: int) -> Any:
        """A large one."""
        block = self.pool.take(nbytes)
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


class _Pages(NamedTuple):
    """Memory, and where it begins: asking NumPy for that takes longer than all else that is done for a result."""

    raw: Any
    address: int

    @classmethod
    def of(cls, raw: Any, edge: int) -> _Pages:
        """From the first multiple of `edge` on."""
        return cls(raw, raw.ctypes.data + -raw.ctypes.data % edge)


def _allocate(nbytes: int, alignment: int) -> _Pages:
    """Fresh memory, in huge pages where the system gives them to those who ask."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return _Pages.of(np.empty(nbytes + mmap.PAGESIZE, np.uint8), mmap.PAGESIZE)
    try:
        pages = mmap.mmap(-1, nbytes + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError) as error:
        raise OutOfMemory(f"the system has no {nbytes} bytes left: {error}") from error
    with suppress(OSError, AttributeError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return _Pages.of(np.frombuffer(pages, np.uint8), _HUGE_PAGE)
