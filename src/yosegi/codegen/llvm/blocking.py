"""How the work of a product is cut, from its sizes and the processor's caches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .bfloat16_units import PAIRS
from .fused_projections import row_bytes
from .product import Product
from .product_kernels import PADDING
from .register_tiles import LINE, TileShape


@dataclass(frozen=True, slots=True)
class BlockingPolicy:
    """The shares of the caches that blocks take, and the costs by which work is cut."""

    rows_share: float = 0.8
    """The share of the first cache for the lines that a tile reads. The right operand's panels pass through this cache
    and leave little of the lines there, but fewer blocks mean fewer transfers of sums to memory and back."""
    panels_share: float = 0.48
    """The share of the second cache for a unit's part of the right operand."""
    uncopied_share: float = 0.8
    """The share of the first cache for a right operand that is read without being packed."""
    single_work: int = 1 << 17
    """Products of elements up to which one thread is faster than two."""
    copied_rows: int = 16
    """Packing a column takes as long as multiplying it by this number of rows."""
    read_columns: int = 4
    """Reading a row from a farther cache takes as long as multiplying it by this number of columns."""
    late_share: float = 0.1
    """The share of a unit that threads wait for one another in the end."""
    most_units: int = 12
    """Units for each thread."""
    chunks: int = 4
    """Chunks of a stack, or of a left operand that is projected, for each thread."""
    fold_steps: int = 8
    """Steps of the sum in such a chunk of a left operand, at most."""


FLOATS: Final = BlockingPolicy()
BFLOAT16: Final = BlockingPolicy(rows_share=1.4, single_work=1 << 24, copied_rows=64)
"""Units multiply bfloat16 numbers faster than they are packed, and faster than threads start."""


@dataclass(frozen=True, slots=True)
class Caches:
    """Bytes of a core's own two caches."""

    first: int = 32 << 10
    second: int = 512 << 10


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
    chunks: int
    """Matrices of the stack that may be worked on at a time."""
    folded: int = 0
    """Where the projections of the left operand are in the workspace, if there are any."""
    seen: int = 0
    """Where the projections of the result are in the workspace, if there are any."""
    fold_parts: int = 0
    """Units of work into which the rows of a left operand are cut that is projected."""
    fold_chunk: int = 0
    """Numbers of each sum in a unit of work, if the columns of that operand are contiguous."""

    @property
    def workspace(self) -> int:
        """Bytes that the kernel needs."""
        return LINE + self.slot * self.chunks


def cut(
    product: Product, shape: TileShape, sizes: ProductSizes, caches: Caches, threads: int, *, kept: bool = False,
    policy: BlockingPolicy | None = None,
) -> WorkSplit:  # fmt: skip
    """The cut for a product. `kept` says that the right operand is copied already."""
    policy = policy or (BFLOAT16 if product.parts else FLOATS)
    work = sizes.work * (len(PAIRS[product.parts]) if product.parts else 1)
    threads, by_batch = shared(work, sizes.batches, threads, policy)
    slots = 1 if by_batch else threads
    steps = _parts(sizes.k, shape.step)
    blocks, depth = 1, max(1, steps)
    if product.holder is not None:
        longest = max(64 // shape.step, int(caches.first * policy.rows_share) // (shape.height * shape.step_bytes))
        depth = _parts(depth, _parts(depth, longest))
        blocks = max(1, _parts(steps, depth))
    # Copying a right operand pays as soon as several rows of tiles read it from the second cache: where its vectors
    # cross cache lines, as they do in most arrays, reading them from there takes a third longer.
    item = product.dtype.itemsize
    is_small = sizes.k * sizes.n * item <= caches.first * policy.uncopied_share or sizes.m <= 2 * shape.rows
    copies_b = kept or shape.packs_both or sizes.b_n != item or not is_small
    copies_a = shape.packs_both or product.before is not None or (sizes.a_k != item and sizes.m > shape.rows)
    in_panels = shape.packs_both or (copies_a and product.before is None and sizes.a_m == item)
    panels = _parts(_parts(sizes.m, shape.lines), shape.rows)
    right = _parts(_parts(sizes.n, shape.lanes), shape.vectors)
    panel = depth * shape.columns * shape.step_bytes
    widest = max(1, int(caches.second * policy.panels_share) // panel)
    down, across = _units(panels, right, widest, shape, slots, policy, copies=copies_b and not kept)
    room = 0
    if not kept and (copies_b or sizes.n % shape.lanes):
        room = whole_lines(_parts(right, across) * panel)
    slot = slots * (LINE + room)
    if copies_a:
        slot += whole_lines(panels * shape.height * (steps * shape.step_bytes + PADDING))
    folded = seen = fold_parts = fold_chunk = 0
    if product.projections:
        fold_parts = min(panels, threads * policy.chunks)
        folded, seen = slot, slot + fold_parts * product.projections * row_bytes(sizes.k)
        slot = seen + (product.projections + 1) * row_bytes(sizes.n) * down
        fold_chunk = shape.step * min(policy.fold_steps, _parts(steps, threads * policy.chunks))
    return WorkSplit(
        threads, by_batch, depth * shape.step, blocks, down, across, copies_a, in_panels, copies_b, slots, room, slot,
        threads * policy.chunks if by_batch else 1, folded, seen, fold_parts,
        fold_chunk,
    )  # fmt: skip


def shared(work: int, batches: int, threads: int, policy: BlockingPolicy = FLOATS) -> tuple[int, int]:
    """How many of the threads share the work on a stack, and how many matrices one takes at once; if zero, all threads
    work on each. `work` is that on one matrix."""
    threads = 1 if work * batches <= policy.single_work else threads
    by_batch = batches > 1 and (batches >= 2 * threads or work <= policy.single_work)
    return threads, _parts(batches, threads * policy.chunks) if by_batch else 0


def _units(
    panels: int, right: int, widest: int, shape: TileShape, threads: int, policy: BlockingPolicy, *, copies: bool
) -> tuple[int, int]:
    """How many groups of row panels, and of column panels, no group wider than `widest`: those that take least time.

    A unit costs its area, and a little more on two sides: each row of it is read once more, and each column copied
    once more, if they are. Threads take units as they come, and one may come late: the fewer units, the longer the
    others wait for it.
    """
    least = _parts(right, widest)
    if threads == 1:
        return 1, least
    most = threads * policy.most_units
    more = policy.copied_rows if copies else 0

    def cost(cut: tuple[int, int]) -> float:
        (down, across), read, late = cut, policy.read_columns, policy.late_share
        high, wide = _parts(panels, down) * shape.height + more, _parts(right, across) * shape.columns + read
        if down % threads == 0:  # each thread gets as many units of every width as the others
            return down // threads * high * (right * shape.columns + across * read) + late * high * wide
        return high * wide * (_parts(down * across, threads) + late)

    cuts = [(down, across) for across in range(least, min(right, max(least, most)) + 1)
            for down in range(1, min(panels, max(1, most // across)) + 1)]  # fmt: skip
    return min(cuts, key=cost)


def _parts(whole: int, size: int) -> int:
    """How many parts of a size a whole has, the last one perhaps not full."""
    return -(-whole // size)


def whole_lines(size: int) -> int:
    """Bytes as whole cache lines."""
    return (size + LINE - 1) // LINE * LINE
