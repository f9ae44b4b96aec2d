"""Memory for results.

The pages of a fresh array cost more than writing its elements does: each is cleared and mapped by the system at its
first touch. Large results take their memory from a pool, to which it returns when the last array on it is gone. What
a block held before is still in it; kernels write all of a result.

NumPy's arrays begin anywhere in a cache line, and vectors that are written across two of them take up to three times as
long, as long as they stay in the caches. Results of some size begin with a line.

The values of a program have many sizes. Memory is taken in extents: a free one is split for a smaller value, and
neighbours that are free become one again. So updated parameters lie where activations were.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from bisect import bisect_left, insort
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from threading import Lock
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
PAGE: Final = 4096
_AHEAD: Final = 4
"""The multiple of the memory in use that is mapped at a time. Pages that were never used take no memory."""
_MOST_AHEAD: Final = 1 << 30
"""Bytes that are mapped at a time, at most."""
_GROWTH: Final = 1 << 25
"""Bytes by which the memory in use grows, at least, until the C library is asked for free pages again."""


class Results:
    """Arrays for results."""

    def __init__(self) -> None:
        self.skip: Callable[[Any], int] | None = None
        """How many bytes an array has before its first whole cache line: from native code, which asks fast enough."""
        self._extents = Extents(_mapped, _released(), most_free=_physical() // _SHARE, grows=_heap_trim())
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


def _heap_trim() -> Callable[[], object]:
    """A function that makes the C library give its free pages back to the system, where it can: compiling a large step,
    and initial values that NumPy made, leave tens of megabytes there that no result would use."""
    try:
        call = ctypes.CDLL(None).malloc_trim
        call.argtypes = (ctypes.c_size_t,)
    except (OSError, AttributeError, TypeError):
        return lambda: None
    return lambda: call(0)


class Extent(NamedTuple):
    """Some memory."""

    address: int
    nbytes: int


@dataclass(slots=True)
class _Mapping:
    """Memory from the system."""

    held: Any
    used: int
    """The address behind all that was ever used."""
    end: int


class Extents:
    """Free memory by size and by place.

    >>> extents = Extents(lambda nbytes: (None, 1 << 30))
    >>> first, second = extents.take(8192), extents.take(4096)
    >>> extents.give_back(first)
    >>> extents.take(4096).address == first.address, extents.free
    (True, 4096)
    """

    def __init__(
        self,
        mapped: Callable[[int], tuple[Any, int]],
        released: Callable[[Extent], None] = lambda extent: None,
        most_free: int | None = None,
        grows: Callable[[], object] = lambda: None,
    ) -> None:
        """`mapped(nbytes)` gives an object that keeps fresh memory mapped, and the address; it raises `OutOfMemory`.
        `released(extent)` gives the pages of memory that stays mapped back to the system. More than `most_free` bytes
        are not kept. `grows()` is called where the memory that was ever used grows by a sixteenth."""
        self._mapped = mapped
        self._released = released
        self._most_free = most_free
        self._grows = grows
        self._used = 0
        """Bytes that were ever used."""
        self._large = _GROWTH
        """The bytes at which `grows` is called next."""
        self._maps: dict[int, _Mapping] = {}
        """By address."""
        self._last: _Mapping | None = None
        """The mapping that has memory that was never used."""
        self._sorted: list[tuple[int, int]] = []
        """The bytes and the address of free extents, in order."""
        self._starts: dict[int, int] = {}
        """The bytes of free extents, by address."""
        self._ends: dict[int, int] = {}
        """The addresses of free extents, by the address behind them."""
        self._empty: set[int] = set()
        """The addresses of free extents whose pages the system has."""
        self.free = 0
        """Bytes of free extents with pages, at most: next to an extent in use, pages given back may count again."""
        self._lock = Lock()

    def reset(self) -> None:
        """In a forked child: the lock may have been held by a thread that is not there."""
        self._lock = Lock()

    def take(self, nbytes: int) -> Extent:
        """An extent of so many bytes, of the smallest that is large enough."""
        with self._lock:
            return self._taken(nbytes)

    def give_back(self, extent: Extent) -> None:
        """Free an extent."""
        with self._lock:
            self._free_again(extent)
            if self._most_free is not None and self.free > self._most_free:
                self._drop()

    def trim(self) -> int:
        """Give all free memory back to the system; how many bytes that were."""
        with self._lock:
            return self._drop()

    def _taken(self, nbytes: int) -> Extent:
        place = bisect_left(self._sorted, (nbytes, 0))
        if place == len(self._sorted):
            self._extend(nbytes)
            place = bisect_left(self._sorted, (nbytes, 0))
        size, address = self._sorted[place]
        self._remove(address, size)
        if size > nbytes:
            self._add(address + nbytes, size - nbytes)
        return Extent(address, nbytes)

    def _extend(self, nbytes: int) -> None:
        """Make an extent of so many bytes free, of memory that was never used."""
        last = self._last
        before = None if last is None else self._ends.get(last.used)
        missing = nbytes if last is None or before is None else nbytes - (last.used - before)
        if last is None or last.used + missing > last.end:
            last = self._last = self._map(nbytes)
            missing = nbytes
        last.used += missing
        self._used += missing
        if self._used >= self._large:
            self._large = self._used + max(_GROWTH, self._used // 16)
            self._grows()
        self._free_again(Extent(last.used - missing, missing))

    def _free_again(self, extent: Extent) -> None:
        address, nbytes = extent
        if address not in self._maps:
            before = self._ends.get(address)
            if before is not None:
                self._remove(before, address - before)
                address, nbytes = before, nbytes + address - before
        behind = address + nbytes
        if behind not in self._maps and behind in self._starts:
            size = self._starts[behind]
            self._remove(behind, size)
            nbytes += size
        self._add(address, nbytes)

    def _drop(self) -> int:
        """Unmap all that is wholly free, and give back the pages of the rest."""
        before = self.free
        self._unmap()
        for address, nbytes in self._starts.items():
            if address not in self._empty:
                self._released(Extent(address, nbytes))
                self._empty.add(address)
                self.free -= nbytes
        return before - self.free

    def _unmap(self) -> int:
        gone = 0
        for address, mapping in list(self._maps.items()):
            used = mapping.used - address
            if self._starts.get(address) == used:
                self._remove(address, used)
                del self._maps[address]
                gone += used
                self._last = None if self._last is mapping else self._last
        return gone

    def _map(self, nbytes: int) -> _Mapping:
        known = sum(mapping.end - address for address, mapping in self._maps.items())
        size = max(nbytes, min(_MOST_AHEAD, _AHEAD * known))
        try:
            held, address = self._mapped(size)
        except OutOfMemory:
            if not self._unmap() and size == nbytes:
                raise
            size = nbytes
            held, address = self._mapped(size)
        made = self._maps[address] = _Mapping(held, address, address + size)
        return made

    def _add(self, address: int, nbytes: int) -> None:
        insort(self._sorted, (nbytes, address))
        self._starts[address] = nbytes
        self._ends[address + nbytes] = address
        self.free += nbytes

    def _remove(self, address: int, nbytes: int) -> None:
        del self._sorted[bisect_left(self._sorted, (nbytes, address))]
        del self._starts[address]
        del self._ends[address + nbytes]
        if address in self._empty:
            self._empty.remove(address)
        else:
            self.free -= nbytes
