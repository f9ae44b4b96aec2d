"""Copies that exchange the axes along which the source and the target are contiguous, through shared memory.

Element by element, one side is read or written with large strides. A block copies a tile instead: it reads rows of the
source and writes rows of the target, and both are contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from ..._tensor.dtype import DType
from ..scalar.access import Dimension
from .builder import CBuilder
from .dialect import Target
from .kernel_source import Kernel, assembled, decomposed, offsets

_TILE: Final = 32
_LEAST: Final = 16
"""The length of both axes from which a tile is worth it."""


def tiled_axis(dims: Sequence[Dimension], target: Target) -> int | None:
    """The dimension along which the source is contiguous, if a copy is better done in tiles; `None` otherwise.

    The target is contiguous along the last dimension.
    """
    inner = dims[-1]
    if target.group % _TILE or inner.whole != 1 or inner.strides[0] == 1 or inner.size < _LEAST:
        return None
    found = [n for n, d in enumerate(dims[:-1]) if d.strides[0] == 1 and d.size >= _LEAST]
    return found[0] if found else None


def tiled_copy(
    k: CBuilder, dims: Sequence[Dimension], axis: int, starts: tuple[int, int], bits: DType, target: Target
) -> Kernel:
    """The kernel of a copy whose source is contiguous along `axis`, and whose target is along the last dimension."""
    across, along = dims[axis], dims[-1]
    outer = [d for n, d in enumerate(dims[:-1]) if n != axis]
    tiles = [Dimension(-(-d.size // _TILE), (0,), 0) for d in (across, along)]
    dialect, sizes, ctype, step = k.dialect, k.sizes, k.index, target.group // _TILE
    block = k.let(ctype, f"({ctype})({dialect.group_id})")
    *indices, u, v = decomposed(k, ctype, block, [*outer, *tiles], sizes)
    source, into = offsets(indices, outer, 1, sizes)
    source = k.let(ctype, f"{sizes(starts[0])} + {source}")
    into = k.let(ctype, f"{sizes(starts[1])} + {into}")
    lane = k.let(ctype, f"({ctype})({dialect.local_id}) % {_TILE}")
    row = k.let(ctype, f"({ctype})({dialect.local_id}) / {_TILE}")
    first, second = k.let(ctype, f"{u} * {_TILE}"), k.let(ctype, f"{v} * {_TILE}")
    for n in range(0, _TILE, step):
        x, y = k.let(ctype, f"{first} + {lane}"), k.let(ctype, f"{second} + {row} + {n}")
        is_inside = f"{x} < {sizes(across.size)} && {y} < {sizes(along.size)}"
        place = f"tile[({row} + {n}) * {_TILE + 1} + {lane}]"
        k.say(f"if ({is_inside}) {place} = a0[{source} + {x} + {y} * {sizes(along.strides[0])}]")
    k.barrier()
    for n in range(0, _TILE, step):
        x, y = k.let(ctype, f"{first} + {row} + {n}"), k.let(ctype, f"{second} + {lane}")
        is_inside = f"{x} < {sizes(across.size)} && {y} < {sizes(along.size)}"
        place = f"tile[{lane} * {_TILE + 1} + {row} + {n}]"
        k.say(f"if ({is_inside}) b0[{into} + {y} + {x} * {sizes(across.whole)}] = {place}")
    k.shared(dialect.stored[bits], "tile", _TILE * (_TILE + 1))
    return assembled(k, (bits,), (bits,), prod(d.size for d in (*outer, *tiles)) * target.group, target.group)
