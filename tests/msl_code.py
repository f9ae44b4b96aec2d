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
from yosegi.codegen.c.kernel_source import NAME, Kernel
from yosegi.devices.metal.dialect import MSL

HOSTED = MSL
"""The dialect, as a C++ compiler takes it: unchanged."""
PLACES = ("thread_position_in_grid", "thread_position_in_threadgroup", "threadgroup_position_in_grid")
"""The numbers of an item, which are the last parameters."""

_STDLIB = f"""{emulation.FIBERS}
#define kernel
#define device
#define constant const
#define threadgroup static
enum class mem_flags {{ mem_threadgroup, mem_device }};
inline mem_flags operator|(mem_flags a, mem_flags) {{ return a; }}
static void threadgroup_barrier(mem_flags) {{ fibers::wait(); }}
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef int atomic_int;
enum {{ memory_order_relaxed }};
static int atomic_fetch_add_explicit(atomic_int* at, int more, int) {{
    const int before = *at;
    *at = before + more;
    return before;
}}
static int atomic_fetch_max_explicit(atomic_int* at, int other, int) {{
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


def built(source: str, folder: Path) -> Any:
    """What launches the kernel of a source, for `emulation.launched`."""
    signature(source)
    include = folder / "include"
    stdlib = include / "metal_stdlib"
    if not stdlib.exists() or stdlib.read_text(encoding="utf-8") != _STDLIB:
        include.mkdir(parents=True, exist_ok=True)
        stdlib.write_text(_STDLIB, encoding="utf-8")
    return emulation.built(source, folder, f"numbered({NAME})", f"-I{include}")


def run(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path) -> None:
    """Run a kernel on arrays."""
    sizes = np.array(kernel.sizes, np.int64 if kernel.long_sizes else np.int32)
    values = [a.ctypes.data for a in (*inputs, *outputs, sizes)]
    emulation.launched(built(kernel.source, folder), -(-kernel.items // kernel.group), kernel.group, values)
