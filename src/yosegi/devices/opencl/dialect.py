"""OpenCL C, as a row of the table of dialects."""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType, bfloat16, bool_, complex64, complex128, float16, float32, float64
from ...codegen.c.dialect import INTEGERS, UNSIGNED, Dialect

_FLOATS: Final[dict[DType, str]] = {float32: "float", float64: "double", complex64: "float", complex128: "double"}

# Products are not fused with sums: a loop gives what its ops give one by one, to the bit. Compilers may take it that a
# half and a ushort are never the same memory; the bytes of a union may be anything.
_HEADER: Final = """#pragma OPENCL FP_CONTRACT OFF
typedef union { ushort bits; uchar memory[2]; } Half;
float from_half_bits(ushort bits) { Half x; x.bits = bits; return vload_half(0, (const half*)x.memory); }
ushort half_bits(float x) { Half made; vstore_half_rte(x, 0, (half*)made.memory); return made.bits; }
"""

# PoCL reads and writes vectors of halves by instructions for aligned memory, wherever they lie: a crash, in programs in
# which the compiler does not fold that away. So they go through memory of the function's own, which is aligned.
_HALVES: Final = """#ifdef __OPENCL_VERSION__
#define HALVES(n) typedef union { ushort##n bits; uchar memory[2 * n]; } Half##n; \\
float##n load_half##n(const __global half* p) \\
{ Half##n x; x.bits = vload##n(0, (const __global ushort*)p); return vload_half##n(0, (const half*)x.memory); } \\
void store_half##n(float##n value, __global half* p) \\
{ Half##n x; vstore_half##n##_rte(value, 0, (half*)x.memory); vstore##n(x.bits, 0, (__global ushort*)p); }
HALVES(2) HALVES(4) HALVES(8) HALVES(16)
#endif
"""
DOUBLE: Final = "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n"

OPENCL: Final = Dialect(
    header=DOUBLE + _HEADER + _HALVES,
    kernel="__kernel void",
    global_pointer="__global {const}{type}* restrict {name}",
    local_array="__local {type} {name}[{size}]",
    global_id="get_global_id(0)",
    local_id="get_local_id(0)",
    group_id="get_group_id(0)",
    barrier="barrier(CLK_LOCAL_MEM_FENCE)",
    types=INTEGERS | _FLOATS | {float16: "float", bfloat16: "float"},
    stored=INTEGERS | _FLOATS | {bool_: "uchar", float16: "half", bfloat16: "ushort"},
    masks={8: "char", 16: "short", 32: "int", 64: "long"},
    unsigned=UNSIGNED,
    widths=(16, 8, 4, 2, 1),
    vector="{type}{n}",
    splat="({type})({items})",
    lane="{x}.s{i}",
    low="{x}.lo",
    high="{x}.hi",
    even="{x}.even",
    odd="{x}.odd",
    load="vload{n}(0, {pointer} + {at})",
    store="vstore{n}({value}, 0, {pointer} + {at})",
    load_half="vload_half({at}, {pointer})",
    load_halves="load_half{n}({pointer} + {at})",
    store_half="vstore_half_rte({value}, {at}, {pointer})",
    store_halves="store_half{n}({value}, {pointer} + {at})",
    convert="convert_{type}({x})",
    reinterpret="as_{type}({x})",
    select="select({b}, {a}, {mask})",
    all_lanes="all({mask})",
    packed=INTEGERS | _FLOATS | {bool_: "uchar", float16: "ushort", bfloat16: "ushort"},
    packet="typedef struct __attribute__((aligned({align}))) {{ {type} lane[{n}]; }} {name};",
    load_packet="*(__global const {name}*)({pointer} + {at})",
    store_packet="*(__global {name}*)({pointer} + {at}) = {value}",
    half_bits={float16: "half_bits({x})"},
    from_half_bits="from_half_bits({x})",
    atomic_max="atomic_max({pointer} + {at}, {value})",
    atomic_add="atomic_add({pointer} + {at}, {value})",
    unrolled="#pragma unroll {n}",
    unrolled_whole="#pragma unroll",
    # The vector forms of SLEEF, which PoCL compiles in: one large argument spoils the other lanes' results, and the
    # extremes of pow and fmod are wrong in double.
    bounded={
        ("sin", "float"): 100.0,
        ("cos", "float"): 100.0,
        ("tan", "float"): 100.0,
        ("pow", "double"): 0.0,
        ("fmod", "double"): 0.0,
    },
)
