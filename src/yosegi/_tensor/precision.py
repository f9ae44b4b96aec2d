"""Precision: in which numbers the products of a region are computed. Its inputs and outputs stay as they are."""

from __future__ import annotations

from dataclasses import dataclass
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

    F64 = "f64"
    """64-bit floats, rounded in the end: for tolerances that nothing else meets."""

    __hash__ = object.__hash__  # by identity: candidates are looked up for every region of every plan

    @property
    def typical(self) -> float:
        """The error of a product of ordinary numbers, to begin with: on real inputs it is measured."""
        return _TYPICAL[self]


_TYPICAL: Final = {
    Precision.BF16: 3e-3, Precision.F16: 4e-4, Precision.TF32: 3.9e-4, Precision.BF16X2: 1e-5, Precision.BF16X3: 1e-6,
    Precision.FULL: 3e-7, Precision.F64: 3e-8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Policy:
    """Which precisions users admit."""

    precisions: tuple[Precision, ...] = ()
    """Other than the inputs' own, the one that is taken to be fastest first."""
    tolerance: float | None = None
    """The largest admitted error of a product or reduction; `None` if it is not checked."""
    is_fixed: bool = False
    """True if nothing depends on measurements: the first that can compute something does, and what one run finds out
    changes nothing in the next."""


STRATEGIES: Final = ("f32", "f16", "adaptive")
"""The strategies that users name."""
IN_FULL: Final = Policy()
"""Nothing but the inputs' own."""
