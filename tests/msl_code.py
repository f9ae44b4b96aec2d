"""MSL on the host: the text that a Mac would get, built by a C++ compiler (see `emulation`) with a `metal_stdlib` of
ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import emulation
from values import Array
from yosegi._tune.store import digest_of, written
from yosegi.codegen.c.kernel_source import NAME, Kernel
from yosegi.devices.metal.dialect import msl

HOSTED = msl(has_matrices=True, has_bfloat=True)
"""The language of a GPU that has everything, as a C++ compiler takes it."""
PLACES = ("thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid")
"""The numbers of an item, which are the last parameters."""

_STDLIB = f"""{emulation.FIBERS}
#define kernel
#define device
#define constant const
#define threadgroup
#define thread
enum class mem_flags {{ mem_threadgroup, mem_device }};
inline mem_flags operator|(mem_flags a, mem_flags) {{ return a; }}
static void threadgroup_barrier(mem_flags) {{ fibers::wait(); }}
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
struct bfloat {{
    ushort bits;
    bfloat() = default;
    explicit bfloat(float x) {{
        uint whole;
        __builtin_memcpy(&whole, &x, sizeof whole);
        bits = x != x ? 0x7fc0 : (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
    }}
    operator float() const {{
        const uint whole = (uint)bits << 16;
        float x;
        __builtin_memcpy(&x, &whole, sizeof x);
        return x;
    }}
}};
struct ulong2 {{ ulong x, y; ulong2(ulong n) : x(n), y(n) {{}} }};
// Matrices of a team. Each item has two elements; Metal does not say which.
static void simdgroup_barrier(mem_flags) {{
    fibers::wait(fibers::IN_TEAM);
    fibers::steps[fibers::item]++;
}}
template <class T, int Columns, int Rows> struct simdgroup_matrix {{
    static_assert(Columns == 8 && Rows == 8);
    T own[2];
}};
namespace simdgroup {{
struct Elements {{ float left[2], right[2]; }};
static Elements slots[2][fibers::MOST];
static uint calls[fibers::MOST];
PLAIN static uint row(uint lane) {{ return (lane / 4 & 4) + lane / 2 % 4; }}
PLAIN static uint column(uint lane) {{ return (lane / 4 & 2) * 2 + lane % 2 * 2; }}
PLAIN static ulong place(uint n, ulong step, ulong2 origin, bool transposed) {{
    const uint own = row(fibers::item % 32), beside = column(fibers::item % 32) + n;
    return (origin.y + (transposed ? beside : own)) * step + origin.x + (transposed ? own : beside);
}}
PLAIN static uint holder(uint row, uint column) {{
    return (row & 4) * 4 + (column & 4) * 2 + row % 4 * 2 + column % 4 / 2;
}}
}}
template <class T, int C, int R> static simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {{
    return {{{{value, value}}}};
}}
template <class T> static void simdgroup_load(
    simdgroup_matrix<T, 8, 8>& into, const T* from, ulong step = 8, ulong2 origin = 0, bool transposed = false) {{
    fibers::wait(fibers::IN_TEAM);
    for (uint n = 0; n < 2; n++) {{
        into.own[n] = from[simdgroup::place(n, step, origin, transposed)];
    }}
}}
template <class T> static void simdgroup_store(
    simdgroup_matrix<T, 8, 8> from, T* into, ulong step = 8, ulong2 origin = 0, bool transposed = false) {{
    fibers::wait(fibers::IN_TEAM);
    for (uint n = 0; n < 2; n++) {{
        into[simdgroup::place(n, step, origin, transposed)] = from.own[n];
    }}
}}
template <class T, class S> PLAIN static void simdgroup_multiply_accumulate(
    simdgroup_matrix<S, 8, 8>& made, simdgroup_matrix<T, 8, 8> left, simdgroup_matrix<T, 8, 8> right,
    simdgroup_matrix<S, 8, 8> onto) {{
    const uint item = fibers::item, turn = simdgroup::calls[item]++ % 2;
    for (uint n = 0; n < 2; n++) {{
        simdgroup::slots[turn][item].left[n] = left.own[n];
        simdgroup::slots[turn][item].right[n] = right.own[n];
    }}
    fibers::wait(fibers::IN_TEAM);
    const simdgroup::Elements* all = simdgroup::slots[turn] + item / 32 * 32;
    for (uint n = 0; n < 2; n++) {{
        const uint row = simdgroup::row(item % 32), column = simdgroup::column(item % 32) + n;
        float sum = onto.own[n];
        for (uint k = 0; k < 8; k++) {{
            const float a = all[simdgroup::holder(row, k)].left[k % 2];
            const float b = all[simdgroup::holder(k, column)].right[column % 2];
            sum = fmaf(a, b, sum);
        }}
        made.own[n] = (S)sum;
    }}
}}
typedef int atomic_int;
enum {{ memory_order_relaxed }};
PLAIN static int atomic_fetch_add_explicit(atomic_int* at, int more, int) {{
    const int before = *at;
    *at = before + more;
    return before;
}}
PLAIN static int atomic_fetch_max_explicit(atomic_int* at, int other, int) {{
    const int before = *at;
    *at = other > before ? other : before;
    return before;
}}
#define OF_FLOATS(name) inline float name(float x) {{ return name##f(x); }}
OF_FLOATS(fabs) OF_FLOATS(exp) OF_FLOATS(log) OF_FLOATS(sqrt) OF_FLOATS(sin) OF_FLOATS(cos) OF_FLOATS(floor)
inline float copysign(float x, float y) {{ return copysignf(x, y); }}
inline float fma(float x, float y, float z) {{ return fmaf(x, y, z); }}
template <class To, class From> To as_type(From from) {{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}}
namespace metal {{}}
template <class... P> struct Numbered {{
    template <unsigned... I> struct Numbers {{}};
    template <unsigned... I> static void call(void (*function)(P...), Numbers<I...>) {{
        const unsigned given = sizeof...(P) - 3;
        long long all[sizeof...(P)];
        for (unsigned n = 0; n < given; n++) all[n] = fibers::values[n];
        all[given] = fibers::group * fibers::size + fibers::item;
        all[given + 1] = fibers::item;
        all[given + 2] = fibers::group;
        function((P)all[I]...);
    }}
}};
template <class... P> static void numbered(void (*function)(P...)) {{
    Numbered<P...>::call(function, typename Numbered<P...>::template Numbers<__integer_pack(sizeof...(P))...>());
}}
"""


def signature(source: str) -> str:
    """The parameters of a source's kernel. Their attributes are checked, which the C++ compiler ignores."""
    found = re.search(rf"kernel void {NAME}\((.*)\)\n", source)
    assert found is not None, "there is no kernel"
    own = re.findall(r"\[\[(\w+)(?:\((\d+)\))?\]\]", found[1])
    buffers = len(own) - len(PLACES)
    assert own == [("buffer", str(n)) for n in range(buffers)] + [(place, "") for place in PLACES], own
    return found[1]


def built(source: str, folder: Path, *, races: bool = False) -> Any:
    """What launches the kernel of a source, for `emulation.launched`."""
    signature(source)
    include = folder / digest_of(_STDLIB)  # the compiled kernels depend on it, too
    stdlib = include / "metal_stdlib"
    if not stdlib.exists():
        include.mkdir(parents=True, exist_ok=True)
        written(stdlib, _STDLIB.encode())
    whole = re.sub(r"^(\s*)threadgroup (\w+ \w+\[)", r"\1static \2", source, flags=re.MULTILINE)
    return emulation.built(whole, folder, f"numbered({NAME})", f"-I{include}", races=races)


def run(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path) -> None:
    """Run a kernel on arrays."""
    sizes = np.array(kernel.sizes, np.int64 if kernel.long_sizes else np.int32)
    values = [a.ctypes.data for a in (*inputs, *outputs, sizes)]
    emulation.launched(built(kernel.source, folder), -(-kernel.items // kernel.group), kernel.group, values)
