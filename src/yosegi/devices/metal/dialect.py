"""The Metal Shading Language, as a row of the table of dialects.

It has no double, and lacks a few functions of the others, which are written out here.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    float16,
    float32,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from ...codegen.c.dialect import Dialect
from ...codegen.scalar.error_function import SINGLE

_INTEGERS: Final[dict[DType, str]] = {
    int8: "char", int16: "short", int32: "int", int64: "long",
    uint8: "uchar", uint16: "ushort", uint32: "uint", uint64: "ulong",
}  # fmt: skip
_FLOATS: Final[dict[DType, str]] = {float32: "float", complex64: "float"}
_STORED: Final = _INTEGERS | _FLOATS | {bool_: "uchar", float16: "ushort", bfloat16: "ushort"}


def _polynomial(coefficients: tuple[float, ...], of: str) -> str:
    """Horner's rule as text, lowest power first."""
    text = f"{coefficients[-1]!r}f"
    for c in reversed(coefficients[:-1]):
        text = f"fma({text}, {of}, {c!r}f)"
    return text


FUNCTIONS: Final = f"""
inline float from_half_bits(ushort bits) {{ return float(as_type<half>(bits)); }}
inline ushort half_bits(float x) {{ return as_type<ushort>(half(x)); }}
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
_HEADER: Final = "#include <metal_stdlib>\nusing namespace metal;\n"

MSL: Final = Dialect(
    header=_HEADER + FUNCTIONS,
    kernel="kernel void",
    global_pointer="device {const}{type}* {name}",
    local_array="threadgroup {type} {name}[{size}]",
    global_id="item_number",
    local_id="item_in_group",
    group_id="group_number",
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup)",
    types=_INTEGERS | _FLOATS | {float16: "float", bfloat16: "float"},
    stored=_STORED,
    masks={8: "char", 16: "short", 32: "int", 64: "long"},
    unsigned={t: f"u{t.removeprefix('u')}" for t in _INTEGERS.values()},
    load_half="from_half_bits({pointer}[{at}])",
    store_half="{pointer}[{at}] = half_bits({value})",
    convert="({type})({x})",
    reinterpret="as_type<{type}>({x})",
    packed=_STORED,
    packet="struct alignas({align}) {name} {{ {type} lane[{n}]; }};",
    load_packet="*(device const {name}*)({pointer} + {at})",
    store_packet="*(device {name}*)({pointer} + {at}) = {value}",
    half_bits={float16: "half_bits({x})"},
    from_half_bits="from_half_bits({x})",
    atomic_max="atomic_fetch_max_explicit((device atomic_int*)({pointer} + {at}), {value}, memory_order_relaxed)",
    atomic_add="atomic_fetch_add_explicit((device atomic_int*)({pointer} + {at}), {value}, memory_order_relaxed)",
    unrolled="#pragma unroll({n})",
    unrolled_whole="#pragma unroll",
    functions={
        "erf": "error_function", "expm1": "exp_less_one", "log1p": "log_of_one_more", "hypot": "hypotenuse",
    },
    size_parameter="constant {type}& {name}",
    parameter_place=" [[buffer({n})]]",
    built_in=(
        "uint item_number [[thread_position_in_grid]]",
        "uint item_in_group [[thread_position_in_threadgroup]]",
        "uint group_number [[threadgroup_position_in_grid]]",
    ),
)  # fmt: skip
