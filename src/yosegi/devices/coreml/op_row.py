"""The dtypes of Core ML, and building blocks of its rows.

A program computes in float32, or under a lower precision in float16: values of both dtypes are carried in the one that
the program computes in. A float16 result of a float32 program is rounded after each op. Core ML has no float64,
no complex numbers and no 64-bit integers; its integers are not used.
"""

from __future__ import annotations

from typing import Any, Final

from ..._tensor.dtype import DType, bool_, float16, float32
from .library import numpy_of

FLOATS: Final = frozenset({float32, float16})
BOOL: Final = frozenset({bool_})
DTYPES: Final = FLOATS | BOOL


def against(dtype: DType, name: str | None) -> str:
    """The reason against a dtype, for an op or for any."""
    return f"Core ML has no {dtype.name}" if name is None else f"no {name} of {dtype.name} in Core ML"


def number(o: Any, value: float, like: Any) -> Any:
    """A number of another node's type."""
    return numpy_of(like)(value)


def is_nan(o: Any, x: Any) -> Any:
    """Where a number is none."""
    return o.not_equal(x, x)
