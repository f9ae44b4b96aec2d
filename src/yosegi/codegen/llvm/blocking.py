"""How the work of a product is cut, from its sizes and the processor's caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .product import Product
from .product_kernels import PADDING
from .register_tiles import LINE, TileShape

_LINES: Final = 0.8
"""How much of the first cache the rows may take that a tile reads. The right operand's panels, which pass through it,
leave little of them there; what counts is that the fewer blocks there are, the less often sums go to memory and back.
"""
_PANELS: Final = 0.48
"""How much of the second cache a unit's part of the right operand takes."""
_FEW: Final = 0.8
"""How much of the first cache a right operand may take that is read where it lies, without being copied."""
_SINGLE: Final = 1 << 17
"""Products of elements up to which one thread is faster than two."""
_COPIED: Final = 16
"""With how many rows a column can be multiplied in the time that it takes to copy it."""
_READ: Final = 4
"""With how many columns a row can be multiplied in the time that it takes to read it from farther away."""
_LATE: Final = 0.1
"""The share of a unit that threads wait for one another in the end."""
_MOST_UNITS: Final = 12
"""Units for each thread."""
_SHARES: Final = 4
"""Chunks of a stack for each thread."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of a core's two caches, and of the one that all cores share."""

    first: int = 32 << 10
    second: int = 512 << 10
    shared: int = 8 << 20


@dataclass(frozen=True, slots=True)
class ProductSizes:
    """A stack of products: c[m, n] = a[m, k] @ b[k, n], with the bytes from one index to the next."""

    batches: int
    m: int
    n: int
    k: int
    a_m: int
    a_k: int
    b_k: int
    b_n: int

    @property
    def work(self) -> int:
        """Products of elements, for one matrix."""
        return self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class WorkSplit:
    """How the work is cut."""

    threads: int
    by_batch: int
    """Matrices of a stack that a thread takes at once, each alone; if zero, all threads work on each."""
    depth: int
    """Steps of the sum in a block."""
    blocks: int
    down: int
    across: int
    """Units of work: groups of row panels, and of column panels."""
    copies_a: bool
    in_panels: bool
    """Whether the left operand is copied panel by panel: it lies column by column."""
    copies_b: bool
    slots: int
    """Threads that copy the right operand at a time."""
    room: int
    """Bytes for what one of them copies."""
    slot: int
    """Bytes for all copies of a matrix of the stack."""

    @property
    def workspace(self) -> int:
        """Bytes that the kernel needs."""
        return LINE + self.slot * (self.threads * _SHARES if self.by_batch else 1)


def cut(
    product: Product, shape: TileShape, sizes: ProductSizes, caches: Caches, threads: int, *, kept: bool = False
) -> WorkSplit:
    """The cut for a product. `kept` says that the right operand is copied already."""
    item = product.dtype.itemsize
    threads = 1 if sizes.work * sizes.batches <= _SINGLE else threads
    by_batch = 0
    if sizes.batches > 1 and (sizes.batches >= 2 * threads or sizes.work <= _SINGLE):
        by_batch = _parts(sizes.batches, threads * _SHARES)
    slots = 1 if by_batch else threads
    blocks, depth = 1, max(1, sizes.k)
    if product.holder is not None:
        longest = max(64, int(caches.first * _LINES) // (shape.rows * item))
        depth = _parts(depth, _parts(depth, longest))
        blocks = max(1, _parts(sizes.k, depth))
    # Copying a right operand pays as soon as several rows of tiles read it from the second cache: where its vectors
    # cross cache lines, as they do in most arrays, reading them from there takes a third longer.
    is_small = sizes.k * sizes.n * item <= caches.first * _FEW or sizes.m <= 2 * shape.rows
    copies_b = kept or sizes.b_n != item or not is_small
    copies_a = product.before is not None or (sizes.a_k != item and sizes.m > shape.rows)
    in_panels = copies_a and product.before is None and sizes.a_m == item
    panels, right = _parts(sizes.m, shape.rows), _parts(_parts(sizes.n, shape.lanes), shape.vectors)
    widest = max(1, int(caches.second * _PANELS) // (depth * shape.columns * item))
    down, across = _units(panels, right, widest, shape, slots, copies=copies_b and not kept)
    room = 0
    if not kept and (copies_b or sizes.n % shape.lanes):
        room = _lines(depth * _parts(right, across) * shape.columns * item)
    slot = slots * (LINE + room)
    if copies_a:
        slot += _lines(panels * shape.rows * (sizes.k * item + PADDING))
    return WorkSplit(threads, by_batch, depth, blocks, down, across, copies_a, in_panels, copies_b, slots, room, slot)


def _units(panels: int, right: int, widest: int, shape: TileShape, threads: int, *, copies: bool) -> tuple[int, int]:
    """How many groups of row panels, and of column panels, no group wider than `widest`: those that take least time.

    A unit costs its area, and a little more on two sides: each row of it is read once more, and each column copied
    once more, if they are. Threads take units as they come, and one may come late: the fewer units, the longer the
    others wait for it.
    """
    least = _parts(right, widest)
    if threads == 1:
        return 1, least
    most = threads * _MOST_UNITS
    more = _COPIED if copies else 0

    def cost(cut: tuple[int, int]) -> float:
        down, across = cut
        high, wide = _parts(panels, down) * shape.rows + more, _parts(right, across) * shape.columns + _READ
        if down % threads == 0:  # each thread gets as many units of every width as the others
            return down // threads * high * (right * shape.columns + across * _READ) + _LATE * high * wide
        return high * wide * (_parts(down * across, threads) + _LATE)

    cuts = [(down, across) for across in range(least, min(right, max(least, most)) + 1)
            for down in range(1, min(panels, max(1, most // across)) + 1)]  # fmt: skip
    return min(cuts, key=cost)


def _parts(whole: int, size: int) -> int:
    """How many parts of a size a whole has, the last one perhaps not full."""
    return -(-whole // size)


def _lines(size: int) -> int:
    return (size + LINE - 1) // LINE * LINE
