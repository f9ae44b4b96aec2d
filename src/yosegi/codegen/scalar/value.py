"""Values and numbers in C-family text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..._tensor.dtype import DType


@dataclass(frozen=True, slots=True)
class Value:
    """A value: an expression that can be repeated at no cost. Complex dtypes have a second one."""

    dtype: DType
    text: str
    imag: str = ""
    exact: bool = True
    """False for a 16-bit float that is not rounded yet."""


def texts(values: Iterable[Value]) -> list[str]:
    """The expressions of values, one after another."""
    return [t for v in values for t in (v.text, v.imag) if t]


def like(values: Sequence[Value], parts: Iterable[str]) -> list[Value]:
    """Values of the same dtypes, from expressions."""
    left = iter(parts)
    return [replace(v, text=next(left), imag=next(left) if v.imag else "") for v in values]


def spelled(value: Any, dtype: DType, scalar: str) -> str:
    """A number as C writes it, to the last bit."""
    if dtype.is_integer:
        whole = int(value)
        text = f"{whole + 1}L - 1" if whole < 0 else f"{whole}UL"  # C has no literal for the least integer
        return f"({scalar})({text})"
    number = float(value)
    if number != number:
        return "NAN"
    if number in (float("inf"), float("-inf")):
        return "INFINITY" if number > 0 else "-INFINITY"
    digits = f"{number:.17g}" if scalar == "double" else f"{np.float32(number):.9g}"
    text = digits if any(c in digits for c in ".e") else f"{digits}.0"
    return text if scalar == "double" else f"{text}f"
