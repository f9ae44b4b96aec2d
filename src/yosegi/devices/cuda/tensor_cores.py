"""The tensor cores, for `codegen.c.matrix_unit`: the functions of a team, a warp here, in PTX. They are there from the
architecture sm_80 on."""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import bfloat16, float16, float32
from ...codegen.c.matrix_unit import COLUMNS, DEPTH, ROWS, MatrixUnit, UnitTile

_PLACES: Final = """
typedef unsigned Place;
__device__ __forceinline__ Place place_of(const void* shared) { return (Place)__cvta_generic_to_shared(shared); }"""

_LOAD: Final = """
__device__ __forceinline__ void {name}(unsigned (&words)[4], Place place) {{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4{turned}.shared.b16 {{%0, %1, %2, %3}}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(place));
}}"""

_OF_DTYPE: Final = """
__device__ __forceinline__ void multiply_add_{name}(
    float (&sums)[4], const unsigned (&left)[4], unsigned low, unsigned high) {{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{name}.{name}.f32 "
                 "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(low), "r"(high));
}}
__device__ __forceinline__ unsigned words_of_{name}(float low, float high) {{
    unsigned word;
    asm("cvt.rn.{name}x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}}"""

_OTHERS: Final = """
__device__ __forceinline__ bool any_of_team(bool truth) { return __any_sync(0xffffffffu, truth); }
__device__ __forceinline__ float from_partner(float x, int distance) {
    return __shfl_xor_sync(0xffffffffu, x, distance);
}
__device__ __forceinline__ float exp2_of(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}
__device__ __forceinline__ void copy_packet(Place place, const void* global, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(place), "l"(global), "r"(inside ? 16 : 0) : "memory");
}
__device__ __forceinline__ void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void await_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}"""

_NAMES: Final = {float16: "f16", bfloat16: "bf16"}

_TILES: Final = {
    "unit 32": UnitTile(32, 32, 64, 16, 16, 4),
    "unit 64": UnitTile(64, 64, 64, 32, 32, 3),
    "unit 128": UnitTile(128, 128, 32, 64, 32, 3),
}
"""Each is 48 KB of shared memory at most."""

_HALF_UNIT: Final = MatrixUnit(
    functions="".join([
        _PLACES, _LOAD.format(name="load_matrices", turned=""), _LOAD.format(name="load_turned", turned=".trans"),
        *[_OF_DTYPE.format(name=name) for name in _NAMES.values()], _OTHERS,
    ]),
    names=_NAMES,
    tiles=_TILES,
    rows=ROWS,
    columns=2 * COLUMNS,
    depth=DEPTH,
    left="unsigned {name}[{count}][4]",
    right="unsigned {name}[4]",
    sums="float sums[{high}][{wide}][4]",
    zero="sums[m][n][c] = 0.0f",
    load="load_matrices({into}, {place})",
    load_transposed="load_turned({into}, {place})",
    multiply_add="multiply_add_{name}(sums[m][p * 2 + h], left[m], words[h * 2], words[h * 2 + 1])",
)  # fmt: skip

_TF32: Final = """
__device__ __forceinline__ void load_words(float* words, Place place) {
    unsigned bits[4];
    load_matrices(bits, place);
    #pragma unroll
    for (int i = 0; i < 4; i++) words[i] = bits_as<float>(bits[i]);
}
template <int AWAY> __device__ __forceinline__ float word_at(Place place) {
    float word;
    asm volatile("ld.shared.f32 %0, [%1 + %2];" : "=f"(word) : "r"(place), "n"(AWAY));
    return word;
}
__device__ __forceinline__ void multiply_add_tf32(
    float (&sums)[4], const float* left, const float* right, bool begins) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(sums[0]), "=f"(sums[1]), "=f"(sums[2]), "=f"(sums[3])
        : "r"(bits_as<unsigned>(left[0])), "r"(bits_as<unsigned>(left[1])), "r"(bits_as<unsigned>(left[2])),
          "r"(bits_as<unsigned>(left[3])), "r"(bits_as<unsigned>(right[0])), "r"(bits_as<unsigned>(right[1])),
          "f"(begins ? 0.0f : sums[0]), "f"(begins ? 0.0f : sums[1]), "f"(begins ? 0.0f : sums[2]),
          "f"(begins ? 0.0f : sums[3]));
}"""

PARTS_OF_FLOATS: Final = """
// Eight words of a fragment become their leading 11 bits, and behind them the rest, which TF32 holds too, times 4096:
// the rest of a number near the least normal one stays a normal number.
__device__ __forceinline__ void split_words(float (&words)[16]) {
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const float leading = bits_as<float>((bits_as<unsigned>(words[i]) + 0x1000u) & 0xffffe000u);
        words[8 + i] = (words[i] - leading) * 4096.0f;
        words[i] = leading;
    }
}
struct Left { static const int deep = 2, line = 1; };
struct Right { static const int deep = 1, line = 2; };
// The words of four steps of the sum, two rows of the tile away from each other in eights, of one half of the lines.
template <class SIDE, int HALF, int STEP> __device__ __forceinline__ void load_turned_words(float* words, Place place) {
    words[HALF * SIDE::line] = word_at<0>(place);
    words[HALF * SIDE::line + SIDE::deep] = word_at<4 * STEP>(place);
    words[4 + HALF * SIDE::line] = word_at<8 * STEP>(place);
    words[4 + HALF * SIDE::line + SIDE::deep] = word_at<12 * STEP>(place);
}"""
"""The part of the functions for float32 without PTX."""

_FLOAT_UNIT: Final = MatrixUnit(
    functions=_HALF_UNIT.functions + _TF32 + PARTS_OF_FLOATS,
    names={float32: "tf32"},
    tiles={
        "tf32x3 32": UnitTile(64, 32, 32, 32, 16, 4, blocks=4),
        "tf32x3 64": UnitTile(64, 64, 32, 32, 32, 3),
    },
    rows=ROWS,
    columns=2 * COLUMNS,
    depth=DEPTH,
    left="float {name}[{count}][16]",
    right="float {name}[{count}][16]",
    sums=_HALF_UNIT.sums,
    zero="sums[m][n][c] = rest[m][n][c] = 0.0f",
    load="load_words({into}, {place})",
    load_transposed="load_turned_words<{side}, {half}, {step}>({into}, {place})",
    multiply_add="multiply_add_{name}({sums}, {left}, {right}, {begins})",
    splits=True,
)

TENSOR_CORES: Final = (_HALF_UNIT, _FLOAT_UNIT)
