"""CUDA C on the host: see `emulation`. The header takes the place of the dialect's: what a GPU's compiler knows of
itself is written out here."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import emulation
from values import Array
from yosegi.codegen.dialect import Target
from yosegi.codegen.kernels import NAME, Kernel
from yosegi.devices.cuda.dialect import CUDA

NVCC = shutil.which("nvcc")
TARGET = Target(width=4, group=8, cooperating=8, units=2, blocked=False)
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
template <class To, class From> To bits_as(From from) {{
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}}
static float from_half_bits(unsigned short bits) {{ return (float)bits_as<_Float16>(bits); }}
static unsigned short half_bits(float x) {{ return bits_as<unsigned short>((_Float16)x); }}
"""

HOSTED = replace(CUDA, header=_HEADER)
"""The dialect, as a C++ compiler takes it."""


def run(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path) -> None:
    """Run a kernel that was rendered in `HOSTED` on arrays."""
    emulation.run(kernel, inputs, outputs, folder, f"call({NAME})")


def translates(sources: Sequence[str], folder: Path) -> None:
    """Fail unless the GPU's own compiler takes the sources, all together as one file."""
    assert NVCC is not None
    texts, declared = [CUDA.header], set()
    for n, source in enumerate(sources):
        lines = []
        for line in source.removeprefix(CUDA.header).splitlines():
            if line.startswith("struct"):
                if line in declared:
                    continue
                declared.add(line)
            lines.append(line.replace(f"{NAME}(", f"{NAME}{n}("))
        texts.append("\n".join(lines))
    file = folder / "all.cu"
    file.write_text("\n".join(texts), encoding="utf-8")
    command = [NVCC, "--ptx", "-arch=sm_90", "--fmad=false", "-std=c++17", str(file), "-o", str(folder / "all.ptx")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
