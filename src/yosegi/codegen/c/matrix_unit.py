"""The instructions of a matrix unit in a language: the threads of a warp multiply small matrices together.

A warp is 32 neighbouring threads of a block. Each holds its part of a matrix, a fragment, in registers.

NVIDIA documents the place of every element. Thread i has, with row = i / 4 and pair = i % 4 * 2:

    of a left operand, 16 × 16      four words    rows row, row + 8, row, row + 8; columns pair, pair + 1 and, in the
                                                  last two, these + 8
    of a right operand, 16 × 8      two words     column row; rows pair, pair + 1 and, in the second, these + 8
    of sums, 16 × 8                 four floats   row, columns pair and pair + 1; row + 8, the same columns

A word is two 16-bit floats, the first of them low. So the sums of two products side by side, rounded and put into
words, are a left operand of the next product: nothing moves between threads.

Of float32 operands a word is one number, and the instructions multiply 16 × 8 by 8 × 8: thread i has row i / 4 (or this
plus 8) and column i % 4 (or this plus 4) of a left operand, and of a right one the same with rows and columns
exchanged. A fragment of 16 columns consists of two such parts.

Apple does not: matrices of 8 × 8 are loaded from shared memory and stored there as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType

SUBGROUP: Final = 32
ROWS: Final = 16
"""Of a left operand and of sums, where the places of elements are known."""
COLUMNS: Final = 8
"""Of sums."""
DEPTH: Final = 16
"""Columns of a left operand, rows of a right one, where the places of elements are known."""
PACKET: Final = 8
"""16-bit floats that are copied at once, and that make a row of one of the 8 × 8 matrices that fragments consist of."""


@dataclass(frozen=True, slots=True)
class UnitTile:
    """A tiling for a matrix unit: the results of a block and of a warp, in multiples of 16, the length of one stage of
    the sum, and the number of stages in shared memory, of which all but one are being loaded."""

    rows: int
    columns: int
    depth: int
    subgroup_rows: int
    subgroup_columns: int
    stages: int
    blocks: int = 1
    """Blocks for which a multiprocessor has to have registers."""

    @property
    def across(self) -> int:
        """Warps side by side."""
        return self.columns // self.subgroup_columns

    @property
    def items(self) -> int:
        """Threads in a block."""
        return self.rows // self.subgroup_rows * self.across * SUBGROUP


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixUnit:
    """The instructions of one language. All threads of a warp execute them together. Texts in braces are filled in by
    `str.format`."""

    functions: str
    """The text of functions that kernels call. Where the places of elements are known they are:

    `load_matrices(words, place)`: four 8 × 8 matrices from shared memory. Threads 8n to 8n + 7 give the places of the
    rows of matrix n; each thread gets the pair of row i / 4 at columns i % 4 * 2 of each;
    `load_turned(words, place)`: the same of the matrices' transposes;
    `multiply_add_<name>(sums, left, low, high)`: adds a product to sums;
    `any_of_team(truth)`: whether it holds for any thread of the warp;
    `from_partner(x, distance)`: the value of the thread whose number differs by this power of two;
    `words_of_<name>(low, high)`: two floats, rounded, as a word;
    `exp2_of(x)`: two to this power, nearly;
    `place_of(pointer)`: the number of a byte of shared memory, of the type `Place`;
    `copy_packet(place, global, inside)`: begins to bring a packet to shared memory, or zeros if it is not inside;
    `end_copies()`, `await_copies<n>()`: what a thread has begun since the last end is a batch; wait for all of a
    thread's batches but the last n.
    """
    names: Mapping[DType, str]
    """The dtypes that can be multiplied, as the instructions name them."""
    tiles: Mapping[str, UnitTile]
    """The tilings of products that may be tried, by name."""
    rows: int
    """Of a left fragment and of sums."""
    columns: int
    """Of a right fragment: those of one or two fragments of sums."""
    depth: int
    """Columns of a left fragment, rows of a right one."""
    left: str
    """Declares left fragments: {count}, {name}."""
    right: str
    """Declares a right fragment: {name}."""
    sums: str
    """Declares fragments of sums: {high}, {wide}."""
    zero: str
    """The fragment [m][n] of sums becomes zero; [c] is one of a thread's elements, if their places are known."""
    load: str
    """Loads a fragment: {into}, {place}."""
    load_transposed: str
    """Loads the transpose of a fragment: {into}, {place}. Of a unit for float32: one of the two packets across, {half},
    of the side {side}; {step} is the number of bytes from a row to the next."""
    multiply_add: str
    """Adds the product of left[m] and the fragment [h] of the right one to sums: {name}. Of a unit for float32: any
    product of parts to any sums, which are set to zero first if it {begins}: {name}, {sums}, {left}, {right}."""
    splits: bool = False
    """True if float32 operands are split into parts that the instructions multiply exactly. A fragment is twice as
    many packets, and results that are not finite are computed again without the parts."""
    store: str = ""
    """Stores the fragment [m][n] of sums to shared memory, 8 elements a row: {place}. Empty if the places of elements
    are known: then a thread has the four elements [m][n][c]."""
    barrier: str = ""
    """Waits for the warp, and makes what it stored to shared memory seen."""

    @property
    def keeps_places(self) -> bool:
        """True if the place of every element is known: threads use sums where they are, give places of their own to
        loads, and copy to shared memory asynchronously."""
        return not self.store
