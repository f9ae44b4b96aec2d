"""The op table: our ops as those of Core ML's programs, by name."""

from __future__ import annotations

from typing import Final

from ..._tensor.op import OpKind
from ..model.op_row import OpRow, OpTable
from .composites import COMPOSITES
from .elementwise import BINARY, SELECTION, UNARY
from .movement import MOVEMENT
from .op_row import DTYPES, against
from .reductions import REDUCTIONS
from .windows import WINDOWS

ROWS: Final[dict[str, OpRow]] = {
    **UNARY, **BINARY, **SELECTION, **REDUCTIONS, **MOVEMENT, **WINDOWS, **COMPOSITES
}  # fmt: skip
"""Every op that Core ML can have."""

LEFT_OUT: Final = {
    "asinh": "by its logarithm it has no digits near 0",
    "acosh": "by its logarithm it has no digits near 1",
    "floor_divide": "it rounds the quotient before it takes the floor",
    "remainder": "its remainder of a large quotient is off",
    "hypot": "by its own ops it would overflow where the result does not",
    "signbit": "it does not tell -0.0 from 0.0",
    "copysign": "it does not tell -0.0 from 0.0",
    "argmax": "its positions are 32-bit integers",
    "argmin": "its positions are 32-bit integers",
    "einsum": "its einsum has two forms only",
    "slice_set": "it writes into a tensor from macOS 15 only",
    "sort": "it has no place for NaN",
    "argsort": "it has no place for NaN",
    "scatter": "it would not tell of an index out of range",
    "scatter_add": "it would not tell of an index out of range",
}
"""The ops that it has in a form that is not ours, and the difference."""

TABLE: Final = OpTable(
    "Core ML", ROWS, LEFT_OUT, frozenset(UNARY), frozenset(BINARY), DTYPES, against, dimensions=5,
    fewer={OpKind.REDUCTION: 4, OpKind.NORMALISATION: 4},
)  # fmt: skip
