"""An op as a program of several kernels, and how such kernels are written.

A `KernelProgram` is device-neutral: kernels in the order of their launches, and for each the arrays that it reads and
writes. Arrays have numbers: the inputs of the call, its result, then scratch. `FAULTS` is the device's table of indices
that were out of range (see `IndexBound`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType, int32, int64
from ..._tensor.node import Shape
from .builder import CBuilder
from .dialect import Dialect, Target
from .kernel_source import Kernel, assembled

FAULTS: Final = -1
"""The number of the table of faults: for each site whether an index was out of range, and that index (int64)."""


@dataclass(frozen=True, slots=True)
class IndexBound:
    """The places of a dimension, for an index. An index outside is a mistake in a call of the function `of`."""

    length: int
    is_unsigned: bool
    of: str


@dataclass(frozen=True, slots=True)
class Setting:
    """The device that kernels are written for."""

    dialect: Dialect
    target: Target
    site: Callable[[IndexBound], int]
    """The row of the table of faults in which an index outside of a bound is noted."""
    ordered: bool
    """True if the same bits must come out of every run."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One launch. The kernel's pointers are the arrays that it reads, then those that it writes."""

    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelProgram:
    """The launches of one call, in order."""

    stages: tuple[Stage, ...]
    scratch: tuple[tuple[Shape, DType], ...] = ()
    """Arrays on the way. Kernels write all that they read of them."""


class KernelWriter:
    """One kernel under construction. Its pointers are `a0`, `a1`, … for arrays that are read, `b0`, … for others."""

    def __init__(self, setting: Setting, elements: int, reads: Sequence[DType], writes: Sequence[DType]) -> None:
        """`elements` is the number of elements of the largest array: from some number on, indices are 64-bit."""
        self.setting = setting
        self.dialect = setting.dialect
        self.k = CBuilder(setting.dialect, elements)
        self.sizes = self.k.sizes
        self.ctype = self.k.index
        self._reads, self._writes = reads, writes

    def let(self, expression: str) -> str:
        """A variable for an index."""
        return self.k.let(self.ctype, expression)

    def item(self, items: int) -> str:
        """The number of this thread; those beyond `items` return."""
        item = self.let(self.dialect.global_id)
        self.k.say(f"if ({item} >= {self.sizes(items)}) return")
        return item

    def shared(self, dtype: DType, name: str, size: int) -> None:
        """Declare an array that a block shares; `name` and `name_imag` if the dtype is complex."""
        for each in (name, f"{name}_imag") if dtype.is_complex else (name,):
            self.k.shared(self.k.ctype(dtype), each, size)

    def kernel(self, items: int, group: int | None = None) -> Kernel:
        """The kernel, for so many threads."""
        wanted = self.setting.target.group if group is None else group
        return assembled(self.k, self._reads, self._writes, items, wanted)


def filled(setting: Setting, value: int, length: int) -> Kernel:
    """A kernel that writes one number (int32) to every element of an array."""
    w = KernelWriter(setting, length, (), (int32,))
    at = w.item(length)
    w.k.say(f"b0[{at}] = {value}")
    return w.kernel(length)


def noted(w: KernelWriter, outside: str, index: str, bound: IndexBound, faults: str) -> None:
    """Note an index in the table of faults, where it is `outside`. Of several, any one stays."""
    site, wide = w.sizes(w.setting.site(bound)), w.dialect.types[int64]
    with w.k.block(f"if ({outside})"):
        w.k.say(f"{faults}[2 * {site} + 1] = ({wide}){index}")
        w.k.say(f"{faults}[2 * {site}] = 1")
