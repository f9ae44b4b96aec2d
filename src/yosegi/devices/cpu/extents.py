"""Memory in extents: a free one is split for a smaller value, and neighbours that are free become one again.

The values of a program have many sizes. If each size kept memory of its own, a training step would keep the memory of
its activations beside that of its updated parameters, though they never live at the same time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, NamedTuple

from ...errors import OutOfMemory

PAGE: Final = 4096
_AHEAD: Final = 4
_MOST_AHEAD: Final = 1 << 30
"""So many times as much as there is is mapped at a time, up to so many bytes. What was never used takes no memory."""


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
    ) -> None:
        """`mapped(nbytes)` gives an object that keeps fresh memory mapped, and the address; it raises `OutOfMemory`.
        `released(extent)` gives the pages of memory that stays mapped back to the system. More than `most_free` bytes
        are not kept."""
        self._mapped = mapped
        self._released = released
        self._most_free = most_free
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
