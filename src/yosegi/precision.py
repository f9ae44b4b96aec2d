"""Precision: in which numbers the products of a region are computed. Its inputs and outputs stay as they are."""

from __future__ import annotations

from enum import Enum
from typing import Final


class Precision(Enum):
    """How many bits of its operands a product keeps; sums are kept in float32 at least."""

    FULL = "full"
    """All that the inputs have."""
    TF32 = "tf32"
    """11 bits, and float32's range."""
    F16 = "f16"
    """11 bits, and float16's range."""
    BF16 = "bf16"
    """8 bits, and float32's range."""
    BF16X2 = "bf16x2"
    """Operands as sums of two bfloat16 numbers, 16 bits in all: three products, the least significant left out."""
    BF16X3 = "bf16x3"
    """Operands as sums of three bfloat16 numbers, 24 bits in all: six products, the least significant left out."""


STRATEGIES: Final[dict[str, tuple[Precision, ...]]] = {"f32": (), "f16": (Precision.F16, Precision.BF16)}
"""What users ask for, and the precisions below the inputs' own that it allows, best first."""
