"""Movements as strided copies: one kernel for slices, transposes, reversals and joins of arrays.

Elements are moved as unsigned integers of their size. If the source and the target are contiguous along different axes,
a block copies a tile through shared memory: it reads rows of the source and writes rows of the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Final

from ..._tensor.dtype import DType, complex128, uint8, uint16, uint32, uint64
from ..._tensor.node import Shape
from ..scalar.access import Dimension
from .builder import CBuilder
from .dialect import Dialect, Target
from .kernel_source import Kernel, assembled, decomposed, offsets
from .packets import element_at, put_element

BITS: Final = {1: uint8, 2: uint16, 4: uint32, 8: uint64, 16: complex128}
"""The dtype in which elements are moved, by their bytes."""
_TILE: Final = 32
_LEAST: Final = 16
"""The length of both axes from which a tile is worth it."""


@dataclass(frozen=True, slots=True)
class Copy:
    """From one array into another: a window of the source, element by element, into a window of the target."""

    shape: Shape
    source_strides: tuple[int, ...]
    target_strides: tuple[int, ...]
    source_start: int = 0
    target_start: int = 0


def strides_of(shape: Shape) -> tuple[int, ...]:
    """The strides of a contiguous array, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def _merged(copy: Copy) -> list[Dimension]:
    """The copy's dimensions, as few as possible: its source is input 0, its target the loop's own shape."""
    made: list[Dimension] = []
    for size, source, target in zip(copy.shape, copy.source_strides, copy.target_strides, strict=True):
        if size == 1:
            continue
        if made and (made[-1].strides[0], made[-1].whole) == (source * size, target * size):
            made[-1] = Dimension(made[-1].size * size, (source,), target)
        else:
            made.append(Dimension(size, (source,), target))
    return made or [Dimension(1, (1,), 1)]


def _in_packets(copy: Copy, itemsize: int) -> tuple[Copy, DType]:
    """The copy in wider elements, up to 8 bytes, if both sides allow it, and a dtype of their size."""
    *outer, inner = _merged(copy)
    if (inner.strides[0], inner.whole) != (1, 1):
        return copy, BITS[itemsize]
    divided = gcd(inner.size, copy.source_start, copy.target_start, *[n for d in outer for n in (*d.strides, d.whole)])
    count = next(n for n in (8, 4, 2, 1) if divided % n == 0 and (n == 1 or n * itemsize <= uint64.itemsize))
    dims = [Dimension(inner.size // count, (1,), 1)]
    dims = [*[Dimension(d.size, (d.strides[0] // count,), d.whole // count) for d in outer], *dims]
    shape, sources, targets = zip(*[(d.size, d.strides[0], d.whole) for d in dims], strict=True)
    made = Copy(shape, sources, targets, copy.source_start // count, copy.target_start // count)
    return made, BITS[count * itemsize]


def copy_kernel(copy: Copy, dtype: DType, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of a copy of at least one element: in wider elements where both sides are contiguous along one axis,
    in tiles where they are along two, else element by element."""
    copy, bits = _in_packets(copy, dtype.itemsize)
    dims, total = _merged(copy), prod(copy.shape)
    reach = sum(abs(s) * (n - 1) for s, n in zip(copy.source_strides, copy.shape, strict=True)) + copy.source_start
    far = sum(abs(s) * (n - 1) for s, n in zip(copy.target_strides, copy.shape, strict=True)) + copy.target_start
    k = CBuilder(dialect, max(total, reach, far))
    axis = _tiled_axis(dims, target) if bits.itemsize <= uint64.itemsize else None
    if axis is not None:
        starts = copy.source_start, copy.target_start
        return _tiled_copy(k, dims, axis, starts, bits, target)
    ctype, sizes = k.index, k.sizes
    item = k.let(ctype, dialect.global_id)
    k.say(f"if ({item} >= {sizes(total)}) return")
    source, into = offsets(decomposed(k, ctype, item, dims, sizes), dims, 1, sizes)
    value = element_at(k, bits, "a0", k.let(ctype, f"{sizes(copy.source_start)} + {source}"))
    put_element(k, value, "b0", k.let(ctype, f"{sizes(copy.target_start)} + {into}"))
    return assembled(k, (bits,), (bits,), total, target.group)


def _tiled_axis(dims: Sequence[Dimension], target: Target) -> int | None:
    """The dimension along which the source is contiguous, if a copy is better done in tiles; `None` otherwise.

    The target is contiguous along the last dimension.
    """
    inner = dims[-1]
    if target.group % _TILE or inner.whole != 1 or inner.strides[0] == 1 or inner.size < _LEAST:
        return None
    found = [n for n, d in enumerate(dims[:-1]) if d.strides[0] == 1 and d.size >= _LEAST]
    return found[0] if found else None


def _tiled_copy(
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
