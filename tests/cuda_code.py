"""CUDA C on the host: rendered kernels, built by a C++ compiler, with groups and barriers as threads.

The header takes the place of the dialect's: what a GPU's compiler knows of itself is written out here.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from values import Array
from yosegi.codegen.dialect import Target
from yosegi.codegen.kernels import NAME, Kernel
from yosegi.devices.cuda.dialect import CUDA

COMPILER = shutil.which("g++")
NVCC = shutil.which("nvcc")
TARGET = Target(width=4, group=8, cooperating=8, units=2, blocked=False)
"""Small groups, so that few elements make many of them."""

_HEADER = """
#include <barrier>
#include <cmath>
#include <thread>
#include <utility>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) alignas(n)
struct Index { unsigned x; };
static thread_local Index threadIdx;
static Index blockIdx, blockDim;
static std::barrier<>* team;
#define __syncthreads() team->arrive_and_wait()
using std::min;
template <class To, class From> To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
static float from_half_bits(unsigned short bits) { return (float)bits_as<_Float16>(bits); }
static unsigned short half_bits(float x) { return bits_as<unsigned short>((_Float16)x); }
"""
_LAUNCH = """
template <class... P, std::size_t... I>
static void called(void (*kernel)(P...), const long long* values, std::index_sequence<I...>) {
    kernel((P)values[I]...);
}
template <class... P>
static void launched(void (*kernel)(P...), long long groups, unsigned group, const long long* values) {
    blockDim.x = group;
    for (long long block = 0; block < groups; block++) {
        blockIdx.x = (unsigned)block;
        std::barrier<> barrier(group);
        team = &barrier;
        std::vector<std::thread> items;
        for (unsigned item = 0; item < group; item++)
            items.emplace_back([=] {
                threadIdx.x = item;
                called(kernel, values, std::index_sequence_for<P...>());
                team->arrive_and_drop();
            });
        for (auto& item : items) item.join();
    }
}
extern "C" void launch(long long groups, unsigned group, const long long* values) {
    launched(kernel_, groups, group, values);
}
"""

HOSTED = replace(CUDA, header=_HEADER)
"""The dialect, as a C++ compiler takes it."""


def run(kernel: Kernel, inputs: Sequence[Array], outputs: Sequence[Array], folder: Path) -> None:
    """Run a kernel that was rendered in `HOSTED` on arrays."""
    assert COMPILER is not None
    stem = folder / hashlib.sha256(kernel.source.encode()).hexdigest()[:16]
    library = stem.with_suffix(".so")
    if not library.exists():
        source = stem.with_suffix(".cpp")
        source.write_text(kernel.source + _LAUNCH, encoding="utf-8")
        options = ["-std=c++20", "-O1", "-w", "-ffp-contract=off", "-fwrapv", "-shared", "-fPIC", "-pthread"]
        subprocess.run([COMPILER, *options, str(source), "-o", str(library)], check=True, capture_output=True)
    values = [a.ctypes.data for a in (*inputs, *outputs)] + list(kernel.sizes)
    groups = -(-kernel.items // kernel.group)
    entry: Any = ctypes.CDLL(str(library)).launch
    entry(ctypes.c_longlong(groups), ctypes.c_uint(kernel.group), (ctypes.c_longlong * len(values))(*values))


def padded(array: Array) -> Array:
    """A copy at an address that packets are aligned to."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    skip = -raw.ctypes.data % 64
    made = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


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
