"""MSL on the host: see `emulation`. The header takes the place of Metal's own; the dialect's functions stay.

Items get their numbers from the emulation instead of from parameters. A number that Metal passes by reference is a
reference to its slot, of which a smaller type reads the low bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import emulation
from values import Array
from yosegi.codegen.c.kernel_source import NAME, Kernel
from yosegi.devices.metal.dialect import FUNCTIONS, MSL

_HEADER = f"""{emulation.FIBERS}
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
{FUNCTIONS}
"""
HOSTED = replace(MSL, header=_HEADER, built_in=(), global_id="(fibers::group * fibers::size + fibers::item)",
                 local_id="fibers::item", group_id="fibers::group")  # fmt: skip
"""The dialect, as a C++ compiler takes it."""


def run(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path) -> None:
    """Run a kernel that was rendered in `HOSTED` on arrays."""
    emulation.run(kernel, inputs, outputs, folder, f"call({NAME})")
