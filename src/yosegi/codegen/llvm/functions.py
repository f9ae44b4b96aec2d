"""The elementary functions, by their names in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from . import algebraic, exponential, inverse, logarithm, power, trigonometric
from .number import Number

FUNCTIONS: Final[dict[str, Callable[..., Number]]] = {
    "exp": exponential.exp, "expm1": exponential.expm1,
    "sinh": exponential.sinh, "cosh": exponential.cosh, "tanh": exponential.tanh,
    "log": logarithm.log, "log1p": logarithm.log1p, "log2": logarithm.log2, "log10": logarithm.log10,
    "asinh": logarithm.asinh, "acosh": logarithm.acosh, "atanh": logarithm.atanh,
    "sin": trigonometric.sin, "cos": trigonometric.cos, "tan": trigonometric.tan,
    "asin": inverse.asin, "acos": inverse.acos, "atan": inverse.atan, "atan2": inverse.atan2,
    "pow": power.pow, "hypot": algebraic.hypot, "fmod": algebraic.fmod, "nextafter": algebraic.nextafter,
    "erf": exponential.erf,
}  # fmt: skip
LANEWISE: Final = ("sin", "cos", "tan", "fmod", "fmodf")
"""The C library's functions that code may call, lane by lane. No function does so everywhere: `sin`, `cos` and `tan` of
doubles beyond 2**29 do, and remainders where the quotient has more digits than a float."""
