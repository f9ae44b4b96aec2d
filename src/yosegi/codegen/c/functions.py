"""Functions of floats that some languages of the C family lack, written out in terms of those that all have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..scalar.error_function import SINGLE


def _polynomial(coefficients: tuple[float, ...], of: str) -> str:
    """Horner's rule as text, lowest power first."""
    text = f"{coefficients[-1]!r}f"
    for c in reversed(coefficients[:-1]):
        text = f"fma({text}, {of}, {c!r}f)"
    return text


FUNCTIONS: Final = f"""
inline float error_function(float x) {{
    const float size = fabs(x) < {SINGLE.end!r}f ? fabs(x) : {SINGLE.end!r}f;
    const float square = size * size;
    const float near = fma(size, {_polynomial(SINGLE.near, "square")}, size);
    const float place = {SINGLE.scale!r}f / (size + 2.0f) - {SINGLE.shift!r}f;
    const float far = fma(-exp(-square), {_polynomial(SINGLE.far, "place")}, 1.0f);
    return x == x ? copysign(size < 1.0f ? near : far, x) : x;
}}
inline float exp_less_one(float x) {{
    const float power = exp(x);
    if (power == 1.0f) return x;
    const float less = power - 1.0f;
    return less == -1.0f || power == INFINITY ? less : less * x / log(power);
}}
inline float log_of_one_more(float x) {{
    const float more = 1.0f + x;
    return more == 1.0f ? x : more == INFINITY ? more : log(more) * (x / (more - 1.0f));
}}
inline float hypotenuse(float x, float y) {{
    const float a = fabs(x), b = fabs(y);
    if (a == INFINITY || b == INFINITY) return INFINITY;
    const float longer = a > b ? a : b, shorter = a > b ? b : a;
    const float ratio = shorter / longer;
    return longer == 0.0f ? shorter : longer * sqrt(1.0f + ratio * ratio);
}}
"""
"""Their definitions."""
NAMES: Final[Mapping[str, str]] = {
    "erf": "error_function", "expm1": "exp_less_one", "log1p": "log_of_one_more", "hypot": "hypotenuse",
}  # fmt: skip
"""The name of each function in these languages."""
