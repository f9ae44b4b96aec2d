"""Products of matrices compared with their random projections, by three kernels of our own.

    fold      B·R
    compare   the Gram matrix of C·R − A·(B·R) and the sum of C's squares, of the rows of each block
    total     the sums of all blocks

A block has some rows of one matrix, which share the vectors that it loads. All matrices have contiguous rows. The eight
numbers of R, or of B·R, that belong to one element lie side by side. Sums are made in the same order in every run.
"""

from __future__ import annotations

from math import prod
from typing import Final

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.dtype import float32
from ..._tensor.role import Contraction
from ..._tune.projection import VECTORS
from ...codegen.c.builder import INT_LIMIT
from ...codegen.c.dialect import Dialect
from ...codegen.c.kernel_source import NAME
from ...codegen.c.kernel_source import Kernel as Generated
from .launch import Launch, Queue
from .memory import Data

_ROWS: Final = 8
_GROUP: Final = 256
_SUMS: Final = VECTORS * VECTORS + 1
_SHARES: Final = 1024 // _SUMS
"""Into which the sums of all blocks are divided while they are added up."""

_COMMON: Final = f"""
#define VECTORS {VECTORS}
#define ROWS {_ROWS}
#define GROUP {_GROUP}
#define SUMS {_SUMS}
#define SHARES {_SHARES}

// Adds the rows of x times the vectors, or subtracts them; the sum of the squares of x if that is wanted.
template <int WIDTH, int SIGN>
__device__ __forceinline__ void add_rows(const float* x, const float* vectors, size row, size rows, size length,
                                         float* sums, float& squares) {{
    for (size j = (size)threadIdx.x * WIDTH; j < length; j += GROUP * WIDTH) {{
        float own[WIDTH * VECTORS];
        #pragma unroll
        for (int n = 0; n < WIDTH * VECTORS; n += 4) {{
            const float4 four = *(const float4*)(vectors + j * VECTORS + n);
            own[n] = four.x; own[n + 1] = four.y; own[n + 2] = four.z; own[n + 3] = four.w;
        }}
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {{
            const float* from = x + min(row + r, rows - 1) * length + j;
            float values[WIDTH];
            if (WIDTH == 4) {{
                const float4 four = *(const float4*)from;
                values[0] = four.x; values[WIDTH > 1 ? 1 : 0] = four.y;
                values[WIDTH > 2 ? 2 : 0] = four.z; values[WIDTH > 3 ? 3 : 0] = four.w;
            }} else {{
                #pragma unroll
                for (int i = 0; i < WIDTH; i++) values[i] = from[i];
            }}
            #pragma unroll
            for (int i = 0; i < WIDTH; i++) {{
                const float value = SIGN * values[i];
                if (SIGN > 0 && row + r < rows) squares = fmaf(value, value, squares);
                #pragma unroll
                for (int v = 0; v < VECTORS; v++)
                    sums[r * VECTORS + v] = fmaf(value, own[i * VECTORS + v], sums[r * VECTORS + v]);
            }}
        }}
    }}
}}

// Adds up the sums of two threads that are AWAY from each other: one keeps the first half of them, one the second.
template <int AWAY>
__device__ __forceinline__ void halve(float* sums, int lane) {{
    const bool upper = lane & AWAY;
    #pragma unroll
    for (int i = 0; i < 2 * AWAY; i++) {{
        const float given = upper ? sums[i] : sums[i + 2 * AWAY], kept = upper ? sums[i + 2 * AWAY] : sums[i];
        sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, AWAY);
    }}
}}

// The sums of all threads of a block, in shared memory.
__device__ __forceinline__ void gather(float* sums, float* all) {{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    halve<16>(sums, lane);
    halve<8>(sums, lane);
    halve<4>(sums, lane);
    halve<2>(sums, lane);
    halve<1>(sums, lane);
    __shared__ float parts[GROUP / 32][ROWS * VECTORS];
    parts[warp][2 * lane] = sums[0];
    parts[warp][2 * lane + 1] = sums[1];
    __syncthreads();
    if (threadIdx.x < ROWS * VECTORS) {{
        float total = 0;
        for (int w = 0; w < GROUP / 32; w++) total += parts[w][threadIdx.x];
        all[threadIdx.x] = total;
    }}
    __syncthreads();
}}
"""

_FOLD: Final = """
    const size row = (size)blockIdx.x * ROWS;
    float sums[ROWS * VECTORS] = {}, squares = 0;
    add_rows<WIDTH_X, 1>(x, vectors, row, rows, length, sums, squares);
    __shared__ float all[ROWS * VECTORS];
    gather(sums, all);
    const int own = threadIdx.x;
    if (own < ROWS * VECTORS && row + own / VECTORS < rows) out[row * VECTORS + own] = all[own];
"""

_COMPARE: Final = """
    const size matrix = blockIdx.x / blocks, row = blockIdx.x % blocks * ROWS;
    float sums[ROWS * VECTORS] = {}, squares = 0, unused = 0;
    add_rows<WIDTH_X, 1>(c + matrix * rows * width, vectors, row, rows, width, sums, squares);
    folded += matrix * length * VECTORS;
    add_rows<WIDTH_Y, -1>(a + matrix * rows * length, folded, row, rows, length, sums, unused);
    __shared__ float all[ROWS * VECTORS], others[GROUP / 32];
    for (int away = 16; away; away >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, away);
    if ((threadIdx.x & 31) == 0) others[threadIdx.x >> 5] = squares;
    gather(sums, all);
    const int own = threadIdx.x;
    if (own < SUMS) {
        float total = 0;
        if (own == SUMS - 1)
            for (int w = 0; w < GROUP / 32; w++) total += others[w];
        else
            for (int r = 0; r < ROWS && row + r < rows; r++)
                total = fmaf(all[r * VECTORS + own / VECTORS], all[r * VECTORS + own % VECTORS], total);
        out[(size)blockIdx.x * SUMS + own] = total;
    }
"""

_TOTAL: Final = """
    __shared__ float parts[SHARES][SUMS];
    const int share = threadIdx.x / SUMS, place = threadIdx.x % SUMS;
    float total = 0;
    if (share < SHARES) {
        #pragma unroll 8
        for (size n = share; n < blocks; n += SHARES) total += x[n * SUMS + place];
        parts[share][place] = total;
    }
    __syncthreads();
    if (threadIdx.x < SUMS) {
        float all = 0;
        for (int n = 0; n < SHARES; n++) all += parts[n][threadIdx.x];
        out[threadIdx.x] = all;
    }
"""


def _generated(
    body: str,
    pointers: tuple[str, ...],
    sizes: dict[str, int],
    blocks: int,
    dialect: Dialect,
    group: int,
    is_long: bool,
) -> Generated:
    kind = "long long" if is_long else "int"
    parameters = [f"const float* __restrict__ {name}" for name in pointers] + ["float* __restrict__ out"]
    parameters += [f"const size {name}" for name in sizes]
    head = f"{dialect.kernel} __launch_bounds__({group}, {2 if group == _GROUP else 1}) {NAME}({', '.join(parameters)})"
    source = f"{dialect.header}\ntypedef {kind} size;\n{_COMMON}\n{head}\n{{{body}}}\n"
    return Generated(source, tuple(sizes.values()), is_long, blocks * group, group)


def projection(region: Region, queue: Queue, dialect: Dialect) -> Kernel | None:
    """The kernel of a projection's region; `None` unless it is that of a product of float32 arrays: all rows by one
    matrix, or two stacks of as many matrices."""
    a, b, c, r = (region.graph.calls[n].spec for n in region.inputs)
    is_matmul = all(call.op.role is Contraction.MATRICES for call in region.calls[:3])
    if not is_matmul or a.ndim < 2 or r.shape[1] != VECTORS or {s.dtype for s in (a, b, c)} != {float32}:
        return None
    if b.ndim > 2 and a.shape[:-2] != b.shape[:-2]:
        return None
    stack = prod(b.shape[:-2])
    rows, length, width = prod(a.shape[:-1]) // stack, a.shape[-1], b.shape[-1]
    wide = {n: "4" if n % 4 == 0 else "1" for n in (length, width)}
    of_matrix = -(-rows // _ROWS)
    blocks, folds = stack * of_matrix, -(-stack * length // _ROWS)
    memory = queue.memory
    folded_by = _FOLD.replace("WIDTH_X", wide[width])
    compared = _COMPARE.replace("WIDTH_X", wide[width]).replace("WIDTH_Y", wide[length])
    sizes = {"rows": rows, "width": width, "length": length, "blocks": of_matrix}
    is_long = max(s.size for s in (a, b, c)) + max(rows, length, width) * _ROWS >= INT_LIMIT
    fold, compare, total = (
        Launch(queue, _generated(body, given, sizes, count, dialect, group, is_long), len(given) + 1)
        for body, given, sizes, count, group in (
            (folded_by, ("x", "vectors"), {"rows": stack * length, "length": width}, folds, _GROUP),
            (compared, ("c", "vectors", "a", "folded"), sizes, blocks, _GROUP),
            (_TOTAL, ("x",), {"blocks": blocks}, 1, 1024),
        )
    )

    def kernel(a: Data, b: Data, c: Data, r: Data) -> tuple[Data, ...]:
        folded, parts = memory.new((stack * length, VECTORS), float32), memory.new((blocks, _SUMS), float32)
        sums = memory.new((_SUMS,), float32)
        fold([b, r], [folded])
        compare([c, r, a, folded], [parts])
        total([parts], [sums])
        return (sums,)

    return kernel
