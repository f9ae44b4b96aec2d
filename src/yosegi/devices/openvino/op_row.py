"""The dtypes that OpenVINO computes correctly, and building blocks of its rows.

Inside a model OpenVINO computes in fewer types than it takes. With its precision set to f32 (`library.settings`):

- float64 becomes float32, 64-bit integers become 32-bit ones, in silence: none of them is given to it.
- 16-bit floats become float32 and are not rounded between ops. Ops whose result is exact in 16 bits may have them.
- A division becomes a product by the reciprocal: a divisor below the smallest normal number counts as zero. (It can be
  configured not to do that, but then its division by a constant, fused with a reduction, gives wrong results.)
- Results below the smallest normal number may be zero, and a zero that is added to -0.0 may leave it negative.
- Kernels that it fuses may compute any integers in float32. 32-bit ones are only moved and converted to float32; of
  8-bit ones float32 holds all, so they are also compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ..._tensor.dtype import DType, bfloat16, bool_, float16, float32, int8, int32, uint8
from .library import openvino

SINGLE: Final = frozenset({float32})
FLOATS: Final = frozenset({float32, float16, bfloat16})
BOOL: Final = frozenset({bool_})
COMPARED: Final = FLOATS | {bool_, int8, uint8}
DTYPES: Final = COMPARED | {int32}

TYPES: Final = {
    "bool": "boolean", "int8": "i8", "uint8": "u8", "int32": "i32", "int64": "i64", "float16": "f16",
    "bfloat16": "bf16", "float32": "f32",
}  # fmt: skip
"""Our dtypes by OpenVINO's names. int64 is for positions only."""

_UNKNOWN: Final = {
    "real floating": "it would compute float64 in float32",
    "complex floating": "it has no complex numbers",
}


def against(dtype: DType, name: str | None) -> str:
    """The reason against a dtype, for an op or for any."""
    if name is None:
        return _UNKNOWN.get(dtype.kind, "") or f"it would keep {dtype.name} in another integer type"
    if dtype.is_half:
        return f"it would not round the {dtype.name} result of {name}"
    return f"it might compute {name} of {dtype.name} in float32" if dtype.is_integer else f"no {name} of {dtype.name}"


def number(o: Any, value: float, like: Any) -> Any:
    """A number of another node's type."""
    return o.convert(o.constant(np.float32(value)), like.get_element_type())  # constants of 16 bits cannot be NaN


def places(o: Any, values: Sequence[int]) -> Any:
    """Axes, lengths or positions."""
    ov = openvino()
    return ov.op.Constant(ov.Type.i64, ov.Shape([len(values)]), list(values))


def is_nan(o: Any, x: Any) -> Any:
    """Where a number is none."""
    return o.not_equal(x, x)
