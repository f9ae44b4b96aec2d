"""The loop nest of a group: its dimensions, and the addresses of its operands. `rows` makes it, `walk` walks it.

Sizes and strides are data of a kernel, not part of its text, so that one object serves every shape of a kind. The text
depends on the number of dimensions, on those that are reduced, and on the stride of each operand along the vectors: 0,
1, or any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from ..._schedule.groups import Group
from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ..scalar.access import Dimension, dimensions
from .entry import BEFORE_ARRAYS, PARAMETERS
from .integers import add, mul, shifted, split
from .ir import Function, Module

_SHORT: Final = 8
"""The length below which vectors run along another dimension than the innermost, if that is longer."""

Strides = Mapping[int, tuple[int, ...]]
"""The strides of entries, in elements. An entry without strides is contiguous."""


@dataclass(frozen=True, slots=True)
class VectorTarget:
    """The vector unit for which code is made."""

    vector_bytes: int
    attributes: str
    """The LLVM attributes of every function."""
    converts_halves: bool = True
    registers: int = 16
    """Registers that hold a vector."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that a group reads or writes."""

    entry: int
    view: Shape
    """The shape in which the index space addresses the array."""
    dtype: DType
    strides: tuple[int, ...] | None = None


def operand_of(group: Group, user: int, entry: int, strides: Strides) -> Operand:
    """An array, as one of the group's ops reads it."""
    spec = group.graph.calls[entry].spec
    return Operand(entry, group.view(user, spec.shape, 1), spec.dtype,
                   group.view(user, strides[entry], 0) if entry in strides else None)  # fmt: skip


def operands_of(group: Group, strides: Strides) -> tuple[list[Operand], list[Operand]]:
    """The arrays that a group reads, once for each access pattern, and those that it writes."""
    read: dict[Operand, None] = {}
    for user in group.nodes:
        for entry in group.graph.args[user]:
            if entry in group.inputs:
                read[operand_of(group, user, entry, strides)] = None
    written = []
    for entry in group.outputs:
        spec = group.graph.calls[entry].spec
        view = spec.shape if group.is_whole(entry) else group.row_view(spec.shape, 1)
        written.append(Operand(entry, view, spec.dtype))
    return list(read), written


class Nest:
    """The space of a group, with as few dimensions as its operands allow, outermost first."""

    def __init__(self, group: Group, operands: Sequence[Operand], *, counts: bool) -> None:
        """`counts` says whether it matters which number an element has in its row."""
        self.operands = operands
        dims = dimensions(group.space, [o.view for o in operands], frozenset(group.axes), [o.strides for o in operands])
        if not dims or (group.axes and not any(d.reduced for d in dims)):
            dims.insert(0, Dimension(1, (0,) * len(operands), 1, bool(group.axes)))
        self.dims = dims
        self.kept = [d for d in dims if not d.reduced]
        self.reduced = [d for d in dims if d.reduced]
        self.vector = dims[-1] if counts and len(self.reduced) > 1 else _best(dims)
        """The dimension along which vectors run."""
        self.row = prod(d.size for d in self.reduced)
        self.total = prod(d.size for d in dims)

    def crossing(self) -> int | None:
        """The dimension along which an operand is contiguous that has strides along the vectors."""
        for n, along in enumerate(self.vector.strides):
            beside = [place for place, d in enumerate(self.dims)
                      if d is not self.vector and d.strides[n] in (1, -1) and d.size >= _SHORT]  # fmt: skip
            if along not in (0, 1, -1) and beside:
                return beside[-1]
        return None

    def along(self, number: int) -> int:
        """How an operand lies along the vectors: elements from one lane to the next."""
        return self.vector.strides[number]


def _best(dims: Sequence[Dimension]) -> Dimension:
    """The dimension along which most elements of the operands are contiguous, the innermost of several."""
    long = [d for d in dims if d.size >= _SHORT]
    if not long:
        return max(reversed(dims), key=lambda d: d.size)
    elements = [prod(d.size for d in dims if d.strides[n]) for n in range(len(dims[0].strides))]

    def contiguous(dim: Dimension) -> int:
        return sum(size if s in (1, -1) else -size for size, s in zip(elements, dim.strides, strict=True) if s)

    return max(reversed(long), key=contiguous)


@dataclass(frozen=True, slots=True)
class Steps:
    """Dimensions as data: their sizes, and of each the bytes from one index to the next, per operand."""

    sizes: list[str]
    strides: list[list[str]]


class LoopFrame:
    """A function of a kernel under way: its numbers, its operands' addresses."""

    def __init__(self, module: Module, name: str, nest: Nest, sizes: list[int]) -> None:
        self.code: Function = module.function(name, PARAMETERS)
        self.nest = nest
        self._sizes = sizes
        self._numbers = self.code.let("load ptr, ptr %arguments")
        self.bases = [self.array(n) for n in range(len(nest.operands))]

    def array(self, number: int) -> str:
        """The data of an array, by its place among the arguments."""
        slot = self.code.let(f"getelementptr ptr, ptr %arguments, i64 {BEFORE_ARRAYS + number}")
        return self.code.let(f"load ptr, ptr {slot}")

    def number(self, value: int) -> str:
        """A number that is data; 0 and 1 are text. To be asked for where all of the function can see it."""
        if value in (0, 1):
            return str(value)
        slot = self.code.let(f"getelementptr i64, ptr {self._numbers}, i64 {len(self._sizes)}")
        self._sizes.append(value)
        return self.code.let(f"load i64, ptr {slot}")

    def steps(self, dims: Sequence[Dimension]) -> Steps:
        """Dimensions as data."""
        sizes = [self.number(d.size) for d in dims]
        bytes_of = [o.dtype.itemsize for o in self.nest.operands]
        return Steps(sizes, [[self.number(s * b) for s, b in zip(d.strides, bytes_of, strict=True)] for d in dims])

    def indices(self, index: str, steps: Steps) -> list[str]:
        """The index along each dimension, from the number of an element."""
        found: list[str] = []
        for size in steps.sizes[:0:-1]:
            index, place = split(self.code, index, size)
            found.append(place)
        return [*([index] if steps.sizes else []), *found[::-1]]

    def moved(self, bases: Sequence[str], steps: Steps, indices: Sequence[str]) -> list[str]:
        """The operands' addresses, at some indices."""
        made = []
        for n, base in enumerate(bases):
            offset = "0"
            for index, strides in zip(indices, steps.strides, strict=True):
                offset = add(self.code, offset, mul(self.code, index, strides[n]))
            made.append(shifted(self.code, base, offset))
        return made


def lanes(target: VectorTarget, dtypes: Iterable[DType]) -> int:
    """The lanes of which the widest elements fill one vector."""
    sizes = [4 if d.is_half else d.itemsize // (2 if d.is_complex else 1) for d in dtypes]
    return max(1, target.vector_bytes // max(sizes))


def power_below(n: int) -> int:
    """The largest power of two that is not above n."""
    return 1 << (n.bit_length() - 1)
