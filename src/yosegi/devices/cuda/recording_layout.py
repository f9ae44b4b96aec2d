"""Where the values of a recording lie: results in slabs, values on the way in blocks that several of them share."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from .memory import aligned

_MANY: Final = 16
_MUCH: Final = 64 << 10
"""A slab is full when it has so many values and so many bytes."""
_FITS: Final = 2
"""How many times as large as a value a block may be that the value gets."""
_REST: Final = 8
"""Launches after which a block is used again: before, its next value would make launches wait that could run side by
side."""


@dataclass(frozen=True, slots=True)
class Slab:
    """Results that share a block."""

    nbytes: int
    offsets: dict[int, int]
    """Where each of the values begins."""


def size_class(nbytes: int) -> int:
    """A number for sizes of one order, which are up to 16, 256, 4096, … bytes: scalars are apart from all others.

    >>> [size_class(n) for n in (4, 16, 17, 256, 257, 4096, 4097, 1 << 20)]
    [1, 1, 2, 2, 3, 3, 4, 5]
    """
    return max(1, ((nbytes - 1).bit_length() + 3) // 4)


def slabs_of(sizes: dict[int, int]) -> list[Slab]:
    """Slabs for values of these bytes.

    A loop finds its results at the same few addresses again if they come in few blocks. But a program that keeps one
    value keeps its slab: so a slab has values of one order of size, and not many of them unless they are small.
    """
    made: list[Slab] = []
    for order in sorted({size_class(n) for n in sizes.values()}):
        offsets: dict[int, int] = {}
        at = 0
        for value, nbytes in sizes.items():
            if size_class(nbytes) != order:
                continue
            if len(offsets) >= _MANY and at >= _MUCH:
                made.append(Slab(at, offsets))
                offsets, at = {}, 0
            offsets[value] = at
            at += aligned(nbytes)
        made.append(Slab(at, offsets))
    return made


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A value on the way: the first and the last launch that use it."""

    value: int
    nbytes: int
    first: int
    last: int


def blocks_of(spans: Iterable[Lifetime]) -> tuple[dict[int, int], list[int]]:
    """The block of each value, and the bytes of each block. Values that are in use at the same time have different
    ones; of those that fit, a value gets the one that has been free for longest.

    >>> blocks_of([Lifetime(0, 512, 0, 1), Lifetime(1, 512, 1, 20), Lifetime(2, 300, 20, 30)])
    ({0: 0, 1: 1, 2: 0}, [512, 512])
    """
    homes: dict[int, int] = {}
    sizes: list[int] = []
    free: list[tuple[int, int, int]] = []  # bytes, the launch since which it is free, the block
    in_use: list[tuple[int, int]] = []  # the last launch, the block
    for span in sorted(spans, key=lambda span: span.first):
        while in_use and in_use[0][0] + _REST < span.first:
            last, block = heappop(in_use)
            insort(free, (sizes[block], last, block))
        nbytes = aligned(span.nbytes)
        place = bisect_left(free, (nbytes, -1, -1))
        if place < len(free) and free[place][0] <= _FITS * nbytes:
            block = free.pop(place)[2]
        else:
            block = len(sizes)
            sizes.append(nbytes)
        homes[span.value] = block
        heappush(in_use, (span.last, block))
    return homes, sizes
