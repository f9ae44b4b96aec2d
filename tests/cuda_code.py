"""CUDA C on the host: see `emulation`. The header takes the place of the dialect's: what a GPU's compiler knows of
itself is written out here."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes.util import find_library
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import emulation
from values import Array
from warp_code import WARPS
from yosegi.codegen.c.dialect import Target
from yosegi.codegen.c.kernel_source import NAME, Kernel
from yosegi.devices.cuda.dialect import CUDA
from yosegi.devices.cuda.tensor_cores import PARTS_OF_FLOATS

TARGET = Target(group=8, cooperating=8, units=2)
"""Small groups, so that few elements make many of them."""

_HEADER = f"""{emulation.FIBERS}
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)
struct Index {{ unsigned x; }};
#define threadIdx Index{{fibers::item}}
#define blockIdx Index{{fibers::group}}
#define blockDim Index{{fibers::size}}
#define __syncthreads() fibers::wait()
template <class T> static T atomicAdd(T* at, T more) {{
    const T before = *at;
    *at = before + more;
    return before;
}}
static int atomicMax(int* at, int other) {{
    const int before = *at;
    *at = other > before ? other : before;
    return before;
}}
template <class To, class From> To bits_as(From from) {{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}}
static float from_half_bits(unsigned short bits) {{ return (float)bits_as<_Float16>(bits); }}
static unsigned short half_bits(float x) {{ return bits_as<unsigned short>((_Float16)x); }}
static unsigned short bfloat_bits(float x) {{
    const unsigned bits = bits_as<unsigned>(x);
    return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}}
static float bfloat_rounded(float x) {{ return bits_as<float>((unsigned)bfloat_bits(x) << 16); }}
"""

HOSTED = replace(
    CUDA,
    header=_HEADER,
    bounds="",
    matrix_units=tuple(
        replace(unit, functions=WARPS + (PARTS_OF_FLOATS if unit.splits else "")) for unit in CUDA.matrix_units
    ),
)
"""The dialect, as a C++ compiler takes it."""


def run(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path) -> None:
    """Run a kernel that was rendered in `HOSTED` on arrays."""
    emulation.run(kernel, inputs, outputs, folder, f"call({NAME})")


def compiler() -> ctypes.CDLL | None:
    """NVIDIA's runtime compiler, as a library of the system or of its package; `None` where there is none."""
    spec = find_spec("nvidia")
    folders = [Path(f) for f in (spec.submodule_search_locations or () if spec is not None else ())]
    found = [str(f) for folder in folders for f in sorted(folder.glob("*/lib/libnvrtc.so.*"))]
    own = find_library("nvrtc")
    for name in [own] if own is not None else found:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def translates(sources: Sequence[str]) -> None:
    """Fail unless the GPU's own compiler takes the sources, all together as one program, as far as machine code."""
    nvrtc = compiler()
    assert nvrtc is not None
    functions = [unit.functions for unit in CUDA.matrix_units][::-1]  # the longest, which has the others, first
    texts, declared = [CUDA.header, functions[0]], set()
    for n, source in enumerate(sources):
        lines = []
        own = source.removeprefix(CUDA.header)
        for text in functions:
            own = own.replace(text, "")
        for line in own.splitlines():
            if line.startswith("struct"):
                if line in declared:
                    continue
                declared.add(line)
            lines.append(line.replace(f"{NAME}(", f"{NAME}{n}("))
        texts.append("\n".join(lines))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    options = [b"-arch=sm_90", b"--std=c++17", b"--fmad=false", b"-w"]
    assert not nvrtc.nvrtcCreateProgram(ctypes.byref(program), "\n".join(texts).encode(), b"all.cu", 0, None, None)
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert status == 0, log.value.decode()[:4000]
