"""The functions of a matrix unit in a language: the threads of a warp multiply small matrices together.

A team is 32 neighbouring items of a group. Each holds its part of a matrix, a fragment, in registers. Item i has, with
row = i / 4 and pair = i % 4 * 2:

    of a left operand, 16 × 16      four words    rows row, row + 8, row, row + 8; columns pair, pair + 1 and, in the
                                                  last two, these + 8
    of a right operand, 16 × 8      two words     column row; rows pair, pair + 1 and, in the second, these + 8
    of sums, 16 × 8                 four floats   row, columns pair and pair + 1; row + 8, the same columns

A word is two 16-bit floats, the first of them low. So the sums of two products side by side, rounded and put into
words, are a left operand of the next product: nothing moves between items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..._tensor.dtype import DType

SUBGROUP: Final = 32
ROWS: Final = 16
"""Of a left operand and of sums."""
COLUMNS: Final = 8
"""Of a right operand and of sums."""
DEPTH: Final = 16
"""Columns of a left operand, rows of a right one."""
PACKET: Final = 8
"""16-bit floats that are copied at once, and that make a row of one of the 8 × 8 matrices that fragments consist of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixUnit:
    """The functions of one language. All items of a team call the first five together."""

    functions: str
    """Their text. They are:

    `load_matrices(words, place)`: four 8 × 8 matrices from shared memory. Items 8n to 8n + 7 tell where the rows of
    matrix n are; each item gets the pair of row i / 4 at columns i % 4 * 2 of each;
    `load_turned(words, place)`: the same of the matrices' transposes;
    `multiply_add_<name>(sums, left, low, high)`: adds a product to sums;
    `any_of_team(truth)`: whether it holds for any item;
    `from_partner(x, distance)`: the value of the item whose number differs by this power of two;
    `words_of_<name>(low, high)`: two floats, rounded, as a word;
    `exp2_of(x)`: two to this power, nearly;
    `place_of(pointer)`: the number of a byte of shared memory, of the type `Place`;
    `copy_packet(place, global, inside)`: begins to bring a packet to shared memory, or zeros if it is not inside;
    `end_copies()`, `await_copies<n>()`: what an item has begun since the last end is a batch; wait for all of an
    item's batches but the last n.
    """
    names: Mapping[DType, str]
    """How the names of functions end for the dtypes that can be multiplied."""
