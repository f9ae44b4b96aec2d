"""The Metal Shading Language, as a row of the table of dialects.

It has no double, and lacks a few functions of the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..._tensor.dtype import DType, bfloat16, bool_, complex64, float16, float32
from ...codegen.c.dialect import INTEGERS, Dialect
from ...codegen.c.functions import FUNCTIONS, NAMES
from ...codegen.c.matrix_unit import MatrixUnit, UnitTile

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
    local_pointer="threadgroup {type}*",
    global_id="item_number",
    local_id="item_in_group",
    group_id="group_number",
    barrier="threadgroup_barrier(mem_flags::mem_threadgroup)",
    types=INTEGERS | _FLOATS | {float16: "float", bfloat16: "float"},
    stored=_STORED,
    convert="({type})({x})",
    reinterpret="as_type<{type}>({x})",
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
"""Without the parts that only some GPUs have."""

_SIMDGROUP: Final = MatrixUnit(
    functions="",
    names={float32: "float", float16: "half"},
    tiles={"unit 32": UnitTile(32, 32, 32, 16, 16, 2), "unit 64": UnitTile(64, 64, 16, 32, 32, 2)},
    rows=8,
    columns=8,
    depth=8,
    left="simdgroup_matrix<{type}, 8, 8> {name}[{count}]",
    right="simdgroup_matrix<{type}, 8, 8> {name}",
    sums="simdgroup_matrix<float, 8, 8> sums[{high}][{wide}]",
    zero="sums[m][n] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f)",
    load="simdgroup_load({into}, {place})",
    load_transposed="simdgroup_load({into}, {place}, 0, true)",
    multiply_add="simdgroup_multiply_accumulate(sums[m][p], left[m], words, sums[m][p])",
    store="simdgroup_store(sums[m][n], {place}, 8)",
    barrier="simdgroup_barrier(mem_flags::mem_threadgroup)",
)
"""Tiles take 25 KB of shared memory at most, of 32."""

_BFLOAT: Final = """inline ushort bfloat_bits(float x) { return as_type<ushort>(bfloat(x)); }
inline float bfloat_rounded(float x) { return float(bfloat(x)); }
"""


def msl(*, has_matrices: bool, has_bfloat: bool) -> Dialect:
    """The language of a GPU, which may have simdgroup matrices and the type bfloat."""
    made = MSL
    if has_bfloat:
        made = replace(
            made,
            header=made.header + _BFLOAT,
            half_bits={**made.half_bits, bfloat16: "bfloat_bits({x})"},
            rounded={bfloat16: "bfloat_rounded({x})"},
        )
    if has_matrices:
        names = {**_SIMDGROUP.names, **({bfloat16: "bfloat"} if has_bfloat else {})}
        made = replace(made, matrix_units=(replace(_SIMDGROUP, names=names),))
    return made
