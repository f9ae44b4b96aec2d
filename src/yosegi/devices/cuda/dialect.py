"""CUDA C, as a row of the table of dialects.

The runtime compiler is given no headers: the few functions that others take from there are written out.
"""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import (
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
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
from .tensor_cores import TENSOR_CORES

_INTEGERS: Final[dict[DType, str]] = {
    int8: "signed char", int16: "short", int32: "int", int64: "long long",
    uint8: "unsigned char", uint16: "unsigned short", uint32: "unsigned int", uint64: "unsigned long long",
}  # fmt: skip
_FLOATS: Final[dict[DType, str]] = {float32: "float", float64: "double", complex64: "float", complex128: "double"}
_STORED: Final = _INTEGERS | _FLOATS | {
    bool_: "unsigned char", float16: "unsigned short", bfloat16: "unsigned short",
}  # fmt: skip

_HEADER: Final = """#ifndef NAN
#define NAN __int_as_float(0x7fc00000)
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
template <class To, class From> __device__ __forceinline__ To bits_as(From from) {
    union { From from; To to; } both;
    both.from = from;
    return both.to;
}
__device__ __forceinline__ float from_half_bits(unsigned short bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}
__device__ __forceinline__ unsigned short half_bits(float x) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
__device__ __forceinline__ unsigned short bfloat_bits(float x) {
    unsigned short bits;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));  // every NaN is 0x7fff
#else
    const unsigned whole = bits_as<unsigned>(x);
    bits = x != x ? 0x7fff : (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
#endif
    return bits;
}
__device__ __forceinline__ float bfloat_rounded(float x) {
#if __CUDA_ARCH__ >= 800
    unsigned whole;  // two of them: the second, zero, is in the low bits
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(whole) : "f"(x), "f"(0.0f));
#else
    const unsigned whole = (unsigned)bfloat_bits(x) << 16;
#endif
    return bits_as<float>(whole);
}
"""

CUDA: Final = Dialect(
    header=_HEADER,
    kernel='extern "C" __global__ void',
    global_pointer="{const}{type}* __restrict__ {name}",
    local_array="__shared__ {type} {name}[{size}]",
    global_id="(long long)blockIdx.x * blockDim.x + threadIdx.x",
    local_id="threadIdx.x",
    group_id="blockIdx.x",
    barrier="__syncthreads()",
    types=_INTEGERS | _FLOATS | {float16: "float", bfloat16: "float"},
    stored=_STORED,
    convert="({type})({x})",
    reinterpret="bits_as<{type}>({x})",
    packet="struct __align__({align}) {name} {{ {type} lane[{n}]; }};",
    load_packet="*(const {name}*)({pointer} + {at})",
    store_packet="*({name}*)({pointer} + {at}) = {value}",
    half_bits={float16: "half_bits({x})", bfloat16: "bfloat_bits({x})"},
    rounded={bfloat16: "bfloat_rounded({x})"},
    from_half_bits="from_half_bits({x})",
    atomic_max="atomicMax({pointer} + {at}, {value})",
    atomic_add="atomicAdd({pointer} + {at}, {value})",
    atomic_sums=dict.fromkeys((float32, float64), "atomicAdd({pointer} + {at}, {value})"),
    unrolled="#pragma unroll {n}",
    unrolled_whole="#pragma unroll",
    written_out=frozenset(),
    suffixes={"float": "f"},
    bounds="__launch_bounds__({items}, {blocks}) ",
    matrix_units=TENSOR_CORES,
)
