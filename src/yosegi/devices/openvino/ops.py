"""The op table: our ops as OpenVINO's, by name.

A row is written only for what gives the reference's result, special values included, on the CPU plugin; the tests
show it on random programs, and a trial on each new machine shows it there (`probe`).
"""

from __future__ import annotations

from typing import Final

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
"""Every op that OpenVINO can have."""

LEFT_OUT: Final = {
    "floor_divide": "it rounds the quotient before it takes the floor",
    "remainder": "its remainder of a large quotient is off",
    "signbit": "it does not tell -0.0 from 0.0",
    "copysign": "it does not tell -0.0 from 0.0",
    "hypot": "by its own ops it would overflow where the result does not",
    "sort": "its TopK has no place for NaN",
    "argsort": "its TopK has no place for NaN",
    "scatter": "it would not tell of an index out of range",
    "scatter_add": "it would not tell of an index out of range",
}
"""The ops that it accepts but computes incorrectly."""

TABLE: Final = OpTable(
    "OpenVINO", ROWS, LEFT_OUT, frozenset(UNARY), frozenset(BINARY), DTYPES, against, dimensions=8
)  # fmt: skip
