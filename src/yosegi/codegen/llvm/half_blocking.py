"""How the work of a product with bfloat16 numbers inside is cut, from its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .bfloat16_units import BLOCK, LINES, PAIRS, PANEL, STEP, step_bytes
from .half_words import LINE, HalfProduct

_SINGLE: Final = 1 << 24
"""Products of elements up to which one thread is faster than two."""
_PACKED_APART: Final = 2
"""Tiles whose lines are packed by one unit, where lines lie apart from each other: a panel."""
_PACKED_BESIDE: Final = 16
"""Tiles whose lines are packed by one unit, where lines are adjacent: it reads a kilobyte of each row at once."""
_CHUNK_APART: Final = 8
_CHUNK_BESIDE: Final = 2
"""Steps that are packed of a tile's lines before the next tile's."""
_SEGMENT: Final = 16
"""Steps that are packed by one unit."""


@dataclass(frozen=True, slots=True)
class Blocking:
    """How large the pieces are. What is here suits 48 KB of first and 2 MB of second cache."""

    depth: int = 32
    """Steps of a stretch of the sum: the longer, the less often sums are loaded and stored."""
    tall: int = 16
    wide: int = 8
    """Panels of a unit, down and across: at most. A stretch of its columns takes 512 KB, and so do its sums."""
    shares: int = 2
    """Units for each thread, if there is work enough."""
    room: int = 1 << 27
    """Bytes of packed operands; more is done in bands."""


USUAL: Final = Blocking()


@dataclass(frozen=True, slots=True)
class HalfSizes:
    """A stack of products: c[m, n] = a[m, k] @ b[k, n]."""

    batches: int
    m: int
    n: int
    k: int
    a_line: int
    a_along: int
    b_line: int
    b_along: int
    """Elements from one line to the next, and along it. Lines are the rows of a and the columns of b."""
    a_shared: bool = False
    b_shared: bool = False
    """Whether all matrices of the stack are the same."""


@dataclass(frozen=True, slots=True)
class HalfWorkSplit:
    """How the work is cut: most of the words of a plan, and the workspace."""

    words: dict[str, int]
    threads: int
    workspace: int
    """Bytes that the kernel needs, wherever they begin."""


def cut(
    product: HalfProduct, sizes: HalfSizes, blocking: Blocking, threads: int, *, kept: bool = False
) -> HalfWorkSplit:
    """The cut for a product. `kept` says that the right operand is packed already."""
    steps = _over(sizes.k, STEP)
    stretches = max(1, _over(steps, max(1, blocking.depth // product.parts)))
    depth = max(1, _over(steps, stretches))
    panels = _over(sizes.m, PANEL), _over(sizes.n, PANEL)
    panel = steps * step_bytes(product.parts)
    wave, bands = _bands(sizes, panels, panel, blocking, kept=kept)
    tall, wide = _unit(panels, sizes.batches, blocking, threads)
    room_b = 0 if kept else bands[1] * panel * (1 if sizes.b_shared else wave)
    room_a = bands[0] * panel * (1 if sizes.a_shared else wave)
    slot = tall * wide * BLOCK if stretches > 1 else 0
    words = {
        "threads": threads, "batches": sizes.batches, "wave": wave, "m": sizes.m, "n": sizes.n, "k": sizes.k,
        "steps": steps, "depth": depth, "stretches": stretches, "tall": tall, "wide": wide,
        "band_m": bands[0] * PANEL, "band_n": bands[1] * PANEL, "b_kept": int(kept),
        "packed_a": room_b, "sums": room_b + room_a, "slot": slot,
    }  # fmt: skip
    for name, lines, line, along, shared in (
        ("a", sizes.m, sizes.a_line, sizes.a_along, sizes.a_shared),
        ("b", sizes.n, sizes.b_line, sizes.b_along, sizes.b_shared),
    ):
        words |= {f"{name}_line": line, f"{name}_along": along, f"{name}_shared": int(shared)}
        beside = line == 1 and along != 1
        group = _PACKED_BESIDE if beside else _PACKED_APART
        groups = _over(_over(lines, LINES), group) * (1 if shared else wave)
        wanted = _over(threads * blocking.shares, groups) if threads > 1 else 1
        segment = max(1, min(_SEGMENT, _over(steps, wanted)))
        chunk = _CHUNK_BESIDE if beside else _CHUNK_APART
        words |= {f"{name}_group": group, f"{name}_segment": segment, f"{name}_chunk": chunk}
    return HalfWorkSplit(words, threads, LINE + room_b + room_a + threads * slot)


def gains_by_threads(product: HalfProduct, sizes: HalfSizes) -> bool:
    """Whether there is so much to do that several threads are faster than one."""
    return sizes.batches * sizes.m * sizes.n * sizes.k * len(PAIRS[product.parts]) > _SINGLE


def _bands(
    sizes: HalfSizes, panels: tuple[int, int], panel: int, blocking: Blocking, *, kept: bool
) -> tuple[int, tuple[int, int]]:
    """How many matrices of a stack are packed at once, and how many panels of rows and columns of each."""
    own = panel * ((0 if sizes.a_shared else panels[0]) + (0 if sizes.b_shared or kept else panels[1]))
    whole = panel * (panels[0] + (0 if kept else panels[1]))
    if whole <= blocking.room:
        return max(1, min(sizes.batches, (blocking.room - (whole - own)) // max(1, own))), panels
    most = max(1, blocking.room // (2 * panel))
    return 1, (min(panels[0], most), panels[1] if kept else min(panels[1], most))


def _unit(panels: tuple[int, int], batches: int, blocking: Blocking, threads: int) -> tuple[int, int]:
    """Panels of a unit, down and across: the larger, the less is read; but there must be enough for all threads."""
    tall, wide = min(blocking.tall, panels[0]), min(blocking.wide, panels[1])
    wanted = 1 if threads == 1 else blocking.shares * threads
    while batches * _over(panels[0], tall) * _over(panels[1], wide) < wanted and tall * wide > 1:
        if wide >= tall:
            wide = _over(wide, 2)
        else:
            tall = _over(tall, 2)
    # All about the same.
    return _over(panels[0], _over(panels[0], tall)), _over(panels[1], _over(panels[1], wide))


def _over(a: int, b: int) -> int:
    return -(-a // b)
