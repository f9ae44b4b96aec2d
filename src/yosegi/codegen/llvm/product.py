"""The description of a product for its kernel: dtypes, prologue, epilogue, and the arguments of its functions.

A kernel is put together from objects that are made one by one, when a product first needs them: the order of the work,
one for a dtype (`products`); tiles of several sizes (`tiles`); the copying of right operands of several layouts
(`packing`); and what is done before and behind (`fused`). Which of them a product needs, its sizes and strides, and how
its work is cut are data, a plan.

A product reads `left`, the sides of what comes before, `right`, and the sides of what comes after, and writes the
outputs: its arrays, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType
from ..scalar.value import Value
from .entry import BEFORE_ARRAYS
from .integers import word
from .ir import Function

Elementwise = Callable[..., Sequence[Value]]
"""Takes a builder, a value and the sides' values; gives values."""


@dataclass(frozen=True, slots=True)
class Side:
    """A further operand of elementwise work on a matrix: an element for each of its own, or for each row if `along`
    is not set. One for each column has a distance of zero between rows."""

    dtype: DType
    along: bool = True


@dataclass(frozen=True, slots=True)
class FusedStage:
    """Elementwise work before or behind a product."""

    function: Elementwise
    dtype: DType
    """The dtype of the value that the function reads."""
    sides: tuple[Side, ...] = ()
    words: str | None = None
    """The identity of the function, if it has one."""

    @property
    def identity(self) -> str | None:
        """The identity of all of it, if it has one."""
        return None if self.words is None else f"{self.words}\n{[side.along for side in self.sides]}"


@dataclass(frozen=True, slots=True)
class Product:
    """The computation of a kernel: after(before(left, …) @ right, …)."""

    dtype: DType
    before: FusedStage | None = None
    after: FusedStage | None = None
    """The epilogue, whose results are the outputs."""
    outs: tuple[DType, ...] = ()
    """The dtypes of the outputs; a product without anything behind it has one, of its own dtype."""
    parts: int = 0
    """The bfloat16 numbers whose sum stands for a number of an operand; 0 if operands keep their dtype."""
    projections: int = 0
    """The number of random vectors on which the kernel projects its result and its operands (`fused_projections`), or
    0. Behind the outputs come the random vectors, then the sums."""

    @property
    def results(self) -> tuple[DType, ...]:
        """The dtypes of the outputs."""
        return self.outs or (self.dtype,)

    @property
    def holder(self) -> int | None:
        """The output that can hold unfinished sums, if there is one; else the sum is not cut into blocks."""
        return self.results.index(self.dtype) if self.dtype in self.results else None

    @property
    def fed(self) -> tuple[Side, ...]:
        """The sides of what comes before."""
        return self.before.sides if self.before is not None else ()

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides of what comes after."""
        return self.after.sides if self.after is not None else ()

    @property
    def right(self) -> int:
        """The place of the right operand among the arrays."""
        return 1 + len(self.fed)

    @property
    def first_out(self) -> int:
        """The place of the first output among the arrays."""
        return 2 + len(self.fed) + len(self.sides)

    @property
    def arrays(self) -> int:
        """How many arrays there are; then comes the workspace."""
        return self.random + 2 * bool(self.projections)

    @property
    def random(self) -> int:
        """The place of the random vectors among the arrays, if there are any."""
        return self.first_out + len(self.results)


PLAN: Final = (
    "pool", "spread", "batches", "by_batch", "slot", "m", "n", "k", "a_m", "a_k", "b_k", "b_n",
    "depth", "blocks", "down", "across", "in_panels", "copies_a", "copies_b", "kept_b", "slots", "room",
    "arrays", "right", "out", "out_row", "out_item", "panel", "lines", "finish", "finishes", "tiles", "offsets",
    "left", "multiply", "apply", "guard", "get_threads", "set_threads", "share", "units", "in_place", "transposed_a",
    "transposed_b", "row_a", "row_b", "random", "folded", "seen", "fold_parts",
    "fold_chunk",
)  # fmt: skip
"""The words of a plan: threads, the stack, sizes and strides; how the work is cut; the arrays, and of them the output
that holds the sums, functions, whether sums are finished by one if they could be left as they are, where in the plan
the tiles' functions are, and the bytes at which each matrix of a stack begins in each array; what only a library's
products need; and what only projections need: the place of the random vectors among the arrays, where in the workspace
the projected operands are, and into how many units of work the rows of a left operand are cut that is projected, or
how many numbers of each sum are projected in one unit, if its columns are contiguous."""


class Words:
    """Where in a plan the words are that depend on what is fused.

    Of each side of what comes before, the bytes from one row to the next and along a row. Of each side of what comes
    after, and of each output, those from one row to the next. All else comes behind.
    """

    def __init__(self, product: Product) -> None:
        self.fed = len(PLAN)
        self.sides = self.fed + 2 * len(product.fed)
        self.outs = self.sides + len(product.sides)
        self.end = self.outs + len(product.results)


JOB: Final = ("work", "packed_a", "a", "a_row", "a_step", "apart", "a_panel")
"""The arguments of the threads for one matrix of a stack, between those of the plan and of the arrays."""


class ProductJob:
    """A function that is given a job as `%arguments`, and the job's words."""

    def __init__(self, code: Function) -> None:
        self.code = code
        self.plan = code.let("load ptr, ptr %arguments")

    def planned(self, name: str, kind: str = "i64") -> str:
        """A word of the plan."""
        return self.word(PLAN.index(name), kind)

    def word(self, number: int, kind: str = "i64") -> str:
        """A word of the plan by its place."""
        return word(self.code, self.plan, number, kind)

    def is_planned(self, name: str) -> str:
        """Whether a word of the plan is not zero, as an i1."""
        return self.code.let(f"icmp ne i64 {self.planned(name)}, 0")

    def __getitem__(self, name: str) -> str:
        """A number of the job."""
        return word(self.code, "%arguments", BEFORE_ARRAYS + JOB.index(name))

    def pointer(self, name: str) -> str:
        """An address of the job."""
        return word(self.code, "%arguments", BEFORE_ARRAYS + JOB.index(name), "ptr")

    def array(self, number: int | str) -> str:
        """The address of an array, for the matrix of the stack that is being worked on."""
        first = self.code.pure(f"getelementptr i64, ptr %arguments, i64 {BEFORE_ARRAYS + len(JOB)}")
        return self.code.let(f"load ptr, ptr {self.code.pure(f'getelementptr ptr, ptr {first}, i64 {number}')}")


class JobWriter:
    """A job that is being written down, for threads to be given."""

    def __init__(self, code: Function, plan: str, arrays: str = "0") -> None:
        self._code = code
        size = code.let(f"add i64 {arrays}, {BEFORE_ARRAYS + len(JOB)}")
        self.job = code.let(f"alloca i64, i64 {size}, align 64")
        code.do(f"store ptr {plan}, ptr {self.job}")

    def __call__(self, name: str, value: str, kind: str = "i64") -> None:
        """Write a word."""
        at = self._code.pure(f"getelementptr i64, ptr {self.job}, i64 {BEFORE_ARRAYS + JOB.index(name)}")
        self._code.do(f"store {kind} {value}, ptr {at}")

    def _array(self, number: str) -> str:
        first = self._code.pure(f"getelementptr i64, ptr {self.job}, i64 {BEFORE_ARRAYS + len(JOB)}")
        return self._code.pure(f"getelementptr ptr, ptr {first}, i64 {number}")

    def array(self, number: str, address: str) -> None:
        """Write the address of an array."""
        self._code.do(f"store ptr {address}, ptr {self._array(number)}")

    def given(self, number: str) -> str:
        """The address of an array that was written."""
        return self._code.let(f"load ptr, ptr {self._array(number)}")
