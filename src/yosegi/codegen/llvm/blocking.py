"""How the work of a product is cut, from its sizes and the processor's caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .products import PADDING, Product
from .tiles import LINE, TileShape

_FILLED: Final = 0.9
"""How much of the first cache the two panels take that a tile reads."""
_PAGE: Final = 4096
_SINGLE: Final = 1 << 18
"""Products of elements up to which one thread is faster than two: 64 * 64 * 64."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of a core's two caches, and of the one that all cores share."""

    first: int = 32 << 10
    second: int = 512 << 10
    shared: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """A stack of products: c[m, n] = a[m, k] @ b[k, n], with the bytes from one index to the next."""

    batches: int
    m: int
    n: int
    k: int
    a_m: int
    a_k: int
    b_k: int
    b_n: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How the work is cut."""

    depth: int
    """Steps of the sum in a block."""
    band: int
    """Rows for which the left operand is copied at once."""
    tall: int
    wide: int
    """Tiles of a unit of work, down and across."""
    copies_a: bool
    copies_b: bool
    threads: int
    by_batch: int
    """Matrices of a stack that a thread takes at once, each alone; if zero, all threads work on each."""
    room: int
    """Bytes for copies of the right operand; those of the left come behind."""
    slot: int
    """Bytes for all copies of a product."""

    @property
    def workspace(self) -> int:
        """Bytes that the kernel needs."""
        return self.slot * max(1, self.threads * _SHARES if self.by_batch else 1)


_SHARES: Final = 4
"""Chunks of a stack for each thread."""


def cut(product: Product, shape: TileShape, sizes: Sizes, caches: Caches, threads: int, *, kept: bool = False) -> Cut:
    """The cut for a product. `kept` says that the right operand is copied already."""
    item = product.dtype.itemsize
    depth = max(1, sizes.k)
    if product.result is product.dtype:
        blocks = max(1, round(depth * (shape.columns + shape.rows) * item / (caches.first * _FILLED)))
        depth = -(-depth // blocks)
    work = sizes.m * sizes.n * sizes.k
    whole = work * sizes.batches
    threads = 1 if whole <= _SINGLE else threads
    by_batch = 0
    if sizes.batches > 1 and (sizes.batches >= 2 * threads or work <= _SINGLE):
        by_batch = -(-sizes.batches // (threads * _SHARES))
    alone = 1 if by_batch else threads
    # Copying a right operand pays as soon as several rows of tiles read it.
    in_place = sizes.b_n == item and (depth * sizes.n * item <= caches.first // 2 or sizes.m <= 2 * shape.rows)
    copies_b = kept or not in_place
    # Rows a page apart fall into the same few places of the first cache.
    crowded = sizes.a_m % _PAGE == 0 and sizes.m > shape.rows
    copies_a = product.prologue is not None or sizes.a_k != item or crowded
    if sizes.m <= shape.rows and product.prologue is None:
        copies_a = False
    panels, right = -(-sizes.m // shape.rows), -(-sizes.n // shape.columns)
    tall, wide = _unit(panels, right, shape, depth * item, caches, alone)
    band = sizes.m
    if copies_a:
        lines = max(tall * shape.rows, (8 << 20) // max(1, depth * item))
        band = min(sizes.m, lines // (tall * shape.rows) * (tall * shape.rows))
    copied = right if copies_b else int(sizes.n % shape.columns > 0)
    room = 0 if kept else _lines(depth * shape.columns * item * copied)
    slot = room
    if copies_a:
        groups = -(-band // (shape.rows * tall)) + 1
        slot += _lines(groups * tall * shape.rows * (depth * item + PADDING))
    return Cut(depth, max(1, band), tall, wide, copies_a, copies_b, threads, by_batch, room, slot)


def _unit(panels: int, right: int, shape: TileShape, line: int, caches: Caches, threads: int) -> tuple[int, int]:
    """Tiles of a unit, down and across: what they read of the left operand stays in the core's own cache."""
    tall = max(1, min(panels, caches.second // 8 // (shape.rows * max(1, line))))
    if threads == 1:
        return tall, max(1, right)
    # Each thread gets several units, all about the same.
    wanted = 4 * threads
    down = -(-panels // tall)
    if down < wanted:
        down = min(panels, -(-wanted // max(1, min(right, 2))))
    across = max(1, min(right, -(-wanted // max(1, down))))
    return -(-panels // down), -(-right // across)


def _lines(size: int) -> int:
    return (size + LINE - 1) // LINE * LINE
