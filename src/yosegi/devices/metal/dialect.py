"""The Metal Shading Language, as a row of the table of dialects.

It has no double, and lacks a few functions of the others.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType, bfloat16, bool_, complex64, float16, float32
from ...codegen.c.dialect import INTEGERS, UNSIGNED, Dialect
from ...codegen.c.functions import FUNCTIONS, NAMES

_FLOATS: Final[dict[DType, str]] = {float32: "float", complex64: "float"}
_STORED: Final = INTEGERS | _FLOATS | {bool_: "uchar", float16: "ushort", bfloat16: "ushort"}

_HEADER: Final = """#include <metal_stdlib>
using namespace metal;
inline float from_half_bits(ushort bits) { return float(as_type<half>(bits)); }
inline ushort half_bits(float x) { return as_type<ushort>(half(x)); }
"""

MSL: Final = Dialect(
    header=_HEADER + FUNCTIONS,
    kernel="kernel void",
    global_pointer="device {const}{type}* {name}",
    local_array="threadgroup {type} {name}[{size}]",
    global_id="item_number",
    local_id="item_in_group",
    group_id="group_number",
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup)",
    types=INTEGERS | _FLOATS | {float16: "float", bfloat16: "float"},
    stored=_STORED,
    masks={8: "char", 16: "short", 32: "int", 64: "long"},
    unsigned=UNSIGNED,
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
    functions=NAMES,
    size_table="constant {type}* sizes",
    parameter_place=" [[buffer({n})]]",
    built_in=(
        "uint item_number [[thread_position_in_grid]]",
        "uint item_in_group [[thread_position_in_threadgroup]]",
        "uint group_number [[threadgroup_position_in_grid]]",
    ),
)  # fmt: skip
