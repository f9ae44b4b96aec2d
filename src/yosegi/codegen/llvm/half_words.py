"""The description of a product with bfloat16 numbers inside, and the arguments of its functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType, float32
from .entry import PARAMETERS
from .integers import choice, div, mul, shifted, sub, word
from .ir import Function, Module
from .product import FusedStage, Product, Side

PLAN: Final = (
    "pool", "spread", "threads", "batches", "wave", "m", "n", "k", "steps", "depth", "stretches", "tall", "wide",
    "band_m", "band_n", "a_line", "a_along", "a_shared", "a_group", "a_segment", "a_chunk",
    "b_line", "b_along", "b_shared", "b_group", "b_segment", "b_chunk", "b_kept", "c_row", "packed_a", "sums", "slot",
)  # fmt: skip
"""The words of a plan, in order. After them, of each side, the bytes from one row to the next; then, for each matrix of
a stack, the bytes at which it begins in each array."""
JOB: Final = (
    "first", "units", "units_b", "sums", "row", "rows", "column", "columns",
    "a_from", "a_packed", "a_next", "b_from", "b_packed", "b_next",
)  # fmt: skip
"""The arguments of the threads, after the addresses of the plan and of the matrices in it."""
BEFORE_JOB: Final = 2
LINE: Final = 64
"""Bytes of a cache line: the counters of units have one of their own, before all else."""
COUNTERS: Final = 3
"""Words of units that are taken: of all, of those from the first on, and of those from the last on."""


@dataclass(frozen=True, slots=True)
class HalfProduct:
    """The computation of a kernel: after(before(a) @ b, *sides), each operand as a sum of bfloat16 parts."""

    a: DType = float32
    b: DType = float32
    parts: int = 1
    before: FusedStage | None = None
    """It has no sides."""
    after: FusedStage | None = None
    """It gives one value."""
    out: DType = float32
    """The dtype of the results."""

    @classmethod
    def of(cls, product: Product, parts: int) -> HalfProduct:
        """A product of float32, in so many parts."""
        (out,), before = product.results, product.before
        assert not product.fed
        return cls(float32 if before is None else before.dtype, float32, parts, before, product.after, out)

    @property
    def sides(self) -> tuple[Side, ...]:
        """The epilogue reads them."""
        return () if self.after is None else self.after.sides

    @property
    def words(self) -> str | None:
        """Its identity among all functions, if it has one."""
        stages = ["nothing" if stage is None else stage.identity for stage in (self.before, self.after)]
        if None in stages:
            return None
        return "\n".join([self.a.name, self.b.name, str(self.parts), *map(str, stages), self.out.name])

    @property
    def arrays(self) -> int:
        """How many arrays there are: a, b, the sides and the result."""
        return 3 + len(self.sides)


class HalfJob:
    """A function that threads run, and its arguments."""

    def __init__(self, module: Module, name: str) -> None:
        self.code = module.function(name, PARAMETERS)
        self._words = shifted(self.code, "%arguments", str(LINE))
        self.plan = word(self.code, self._words, 0, "ptr")
        self.table = word(self.code, self._words, 1, "ptr")

    def planned(self, *names: str) -> list[str]:
        """Words of the plan."""
        return [word(self.code, self.plan, PLAN.index(name)) for name in names]

    def told(self, *names: str) -> list[str]:
        """Numbers of the job."""
        return [word(self.code, self._words, BEFORE_JOB + JOB.index(name)) for name in names]

    def pointers(self, *names: str) -> list[str]:
        """Addresses of the job."""
        return [word(self.code, self._words, BEFORE_JOB + JOB.index(name), "ptr") for name in names]

    def end(self, n: int) -> str:
        """Where a side begins; the result comes after them."""
        return word(self.code, self._words, BEFORE_JOB + len(JOB) + n, "ptr")

    def side_row(self, n: int) -> str:
        """The bytes from one row of a side to the next."""
        return word(self.code, self.plan, len(PLAN) + n)

    def next(self, units: str) -> str:
        """A unit that nobody else has; how many there are, if there is none left.

        Half of the threads begin at one end, half at the other, so that two of them find in their caches what they
        had the last time.
        """
        code = self.code
        number = code.let("atomicrmw add ptr %arguments, i64 1 monotonic")
        is_left = code.let(f"icmp slt i64 {number}, {units}")
        is_last = code.let("trunc i64 %low to i1")
        end = shifted(code, "%arguments", choice(code, is_last, "16", "8"))
        count = code.let(f"zext i1 {is_left} to i64")  # of those that find nothing left nobody is counted
        place = code.let(f"atomicrmw add ptr {end}, i64 {count} monotonic")
        back = sub(code, sub(code, units, "1"), place)
        return choice(code, is_left, choice(code, is_last, back, place), units)


def split(code: Function, index: str, size: str) -> tuple[str, str]:
    """An index as (row, place), with rows of this size."""
    row = div(code, index, size)
    return row, sub(code, index, mul(code, row, size))
