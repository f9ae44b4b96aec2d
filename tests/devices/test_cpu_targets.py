"""Generated code for other processors: x86-64 levels run on this one, other architectures only compile."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

import llvmlite.binding as llvm
import numpy as np

import yosegi as ys
from native_code import needs_llvm, process, region_of
from target_run import MEASURED
from yosegi._schedule.groups import Group, RowLimits, grouped
from yosegi.codegen.llvm.entry import ObjectLayout, entry_text
from yosegi.codegen.llvm.rows import kernel
from yosegi.codegen.llvm.thread_pool import pool_text
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine

pytestmark = needs_llvm

LEVELS = {
    "x86-64-v2": (16, ("sse4.2", "ssse3", "popcnt")),
    "x86-64-v3": (32, ("avx2", "fma", "bmi", "bmi2", "f16c", "lzcnt", "movbe")),
    "x86-64-v4": (64, ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}
"""Bytes of a level's vectors, and features that a processor must have to run its code, by LLVM's names."""
CHILD = """
import sys
sys.modules.update(openvino=None, pyopencl=None, cupy=None)  # only the CPU is asked, and the others take seconds
from target_run import report
report()
"""


def _why_not(level: str) -> str | None:
    """Why this machine cannot run a level's code, or `None`."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"{level} is code for x86-64; this is {platform.machine()}"
    features = llvm.get_host_cpu_features()
    missing = [name for name in LEVELS[level][1] if not features.get(name)]
    return f"this processor has no {', '.join(missing)}, which {level} needs" if missing else None


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_of_x86_64(level: str, tmp_path: Path) -> None:
    reason = _why_not(level)
    if reason is not None:
        print(reason)
        pytest.skip(reason)
    found = json.loads(process(CHILD, tmp_path, YOSEGI_CPU=level, YOSEGI_THREADS="2").splitlines()[-1])
    width = LEVELS[level][0]
    assert f"native kernels for {level}, LLVM" in found["machine"]
    assert f"{8 * width}-bit vectors, 2 threads" in found["machine"]
    assert found["wrong"] == {}
    assert found["failures"] == []
    assert found["compiled"] > 100
    assert {f"{name}, measured" for name in MEASURED} <= found["calls"].keys()
    assert [name for name, count in found["calls"].items() if not count] == []


# Other architectures: code that only compiles

LINUX = "aarch64-unknown-linux-gnu"
APPLE = "arm64-apple-darwin24.0.0"
RISC_V = "riscv64-unknown-linux-gnu"
TRIPLES = [LINUX, APPLE, "aarch64-pc-windows-msvc", RISC_V]


def _compiler(triple: str, model: str = "", features: str = "") -> Compiler:
    """A compiler for a machine of another architecture. What it makes cannot be loaded."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return Compiler(HostMachine(triple, model, features, ".".join(map(str, llvm.llvm_version_info))))


def _shared(compiler: Compiler, *, futex: bool) -> str:
    """What all kernels share: the threads, and the way in from Python."""
    machine = compiler.machine
    text = pool_text(machine.triple.partition("-")[0], futex=futex) + entry_text(ObjectLayout(32, 8, 16, 64))
    return f"{text}\nattributes #0 = {{ {machine.attributes} }}\n"


@pytest.mark.parametrize("triple", TRIPLES)
def test_threads_and_calls_compile(triple: str) -> None:
    compiler = _compiler(triple)
    for futex in {False, "linux" in triple}:
        assert compiler.emit(_shared(compiler, futex=futex))


@pytest.mark.parametrize("triple", [LINUX, APPLE])
def test_a_thread_that_waits_on_arm_pauses(triple: str) -> None:
    """By ISB: YIELD takes no time there, and SPINS counts pauses of some length."""
    compiler = _compiler(triple)
    assert compiler.assembly(_shared(compiler, futex=False)).count("\tisb") == 2


def test_threads_sleep_on_a_condition_where_system_calls_have_unknown_numbers() -> None:
    for triple in (LINUX, RISC_V):
        runtime = Runtime(_compiler(triple), 2)
        assert runtime._futex == (triple == LINUX and platform.system() == "Linux")


HOST = f"""
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
from yosegi.devices.cpu import compiler
llvm.get_process_triple = lambda: "{LINUX}"
llvm.get_host_cpu_name = lambda: "NAME"
llvm.get_host_cpu_features = lambda: llvm.FeatureMap(neon=True)
from yosegi.codegen.llvm.small_products import product_source
from yosegi._tensor.dtype import float64
made = compiler.Compiler(compiler.HostMachine.host())
print(len(made.emit(product_source(float64, made.machine.target))) > 1000)
"""


@pytest.mark.parametrize("name", ["oryon-1", "ampere1b", "apple-m1", "neoverse-n1"])
def test_no_processor_ends_the_process(name: str, tmp_path: Path) -> None:
    """LLVM 22 fails an assertion for the first two."""
    assert process(HOST.replace("NAME", name), tmp_path) == "True"


@pytest.mark.parametrize("triple", TRIPLES)
def test_float16_needs_no_function_that_is_not_there(triple: str) -> None:
    x = ys.asarray(np.ones(1000, np.float16))
    region, _ = region_of(x * x + x)
    (part,) = grouped(region, RowLimits())
    compiler = _compiler(triple)
    made = compiler.emit(kernel(Group.of(part), compiler.machine.target)[0])
    assert not [name for name in (b"__truncsfhf2", b"__extendhfsf2", b"__gnu_f2h", b"__gnu_h2f") if name in made]
