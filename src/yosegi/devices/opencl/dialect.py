"""OpenCL C, as a row of the table of dialects."""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType, bfloat16, bool_, complex64, complex128, float16, float32, float64
from ...codegen.c.dialect import INTEGERS, Dialect

_FLOATS: Final[dict[DType, str]] = {float32: "float", float64: "double", complex64: "float", complex128: "double"}

# Products are not fused with sums: a loop gives what its ops give one by one, to the bit. Compilers may take it that a
# half and a ushort are never the same memory; the bytes of a union may be anything.
_HEADER: Final = """#pragma OPENCL FP_CONTRACT OFF
typedef union { ushort bits; uchar memory[2]; } Half;
float from_half_bits(ushort bits) { Half x; x.bits = bits; return vload_half(0, (const half*)x.memory); }
ushort half_bits(float x) { Half made; vstore_half_rte(x, 0, (half*)made.memory); return made.bits; }
"""

DOUBLE: Final = "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n"

OPENCL: Final = Dialect(
    header=DOUBLE + _HEADER,
    kernel="__kernel void",
    global_pointer="__global {const}{type}* restrict {name}",
    local_array="__local {type} {name}[{size}]",
    global_id="get_global_id(0)",
    local_id="get_local_id(0)",
    group_id="get_group_id(0)",
    barrier="barrier(CLK_LOCAL_MEM_FENCE)",
    types=INTEGERS | _FLOATS | {float16: "float", bfloat16: "float"},
    stored=INTEGERS | _FLOATS | {bool_: "uchar", float16: "ushort", bfloat16: "ushort"},
    convert="convert_{type}({x})",
    reinterpret="as_{type}({x})",
    packet="typedef struct __attribute__((aligned({align}))) {{ {type} lane[{n}]; }} {name};",
    load_packet="*(__global const {name}*)({pointer} + {at})",
    store_packet="*(__global {name}*)({pointer} + {at}) = {value}",
    half_bits={float16: "half_bits({x})"},
    from_half_bits="from_half_bits({x})",
    atomic_max="atomic_max({pointer} + {at}, {value})",
    atomic_add="atomic_add({pointer} + {at}, {value})",
    unrolled="#pragma unroll {n}",
    unrolled_whole="#pragma unroll",
)
