"""Small programs in LLVM IR, compiled and run on arrays: what the tests of its writers need of a compiler."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from values import Array
from yosegi._tensor.dtype import DType
from yosegi.codegen.llvm import ir
from yosegi.codegen.llvm.builder import LlvmBuilder
from yosegi.codegen.llvm.load_store import lanes_below, load, store
from yosegi.codegen.scalar.value import Value

HOST = ""
"""The processor that this runs on."""
Body = Callable[..., Sequence[Value]]


def _lesser() -> list[tuple[str, int]]:
    if platform.machine() not in ("x86_64", "AMD64"):
        return []
    features = llvm.get_host_cpu_features()
    return [("x86-64", 4), *([("haswell", 8)] if features.get("avx2") and features.get("fma") else [])]


LESSER = _lesser()
"""Older processors whose code this one can run, with a width for each."""


def machine(cpu: str = HOST, triple: str = "") -> Any:
    """A compiler for a processor."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = "" if cpu or triple else llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_triple(triple) if triple else llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=cpu or ("" if triple else llvm.get_host_cpu_name()), features=features, opt=2, codemodel="jitdefault"
    )


def attributes(cpu: str = HOST) -> str:
    """Of every function: what it may use of the processor."""
    if cpu:
        return f'nounwind "target-cpu"="{cpu}"'
    features = llvm.get_host_cpu_features().flatten()
    return (
        f'nounwind "prefer-vector-width"="512" "target-cpu"="{llvm.get_host_cpu_name()}" "target-features"="{features}"'
    )


def written(body: Body, dtypes: Sequence[DType], width: int, *, masked: bool = True, **options: Any) -> ir.Module:
    """A module whose function `run(pointers, n)` gives `body` n elements of each input, and stores what it returns."""
    module = ir.Module(**options)
    code = module.function("run", [("ptr", "pointers"), ("i64", "n")])
    k = LlvmBuilder(code, width)

    def pointer(number: int, size: int, at: str) -> str:
        slot = code.pure(f"getelementptr ptr, ptr %pointers, i64 {number}")
        base = code.let(f"load ptr, ptr {slot}")
        place = code.pure(f"mul i64 {at}, {size}")
        return code.pure(f"getelementptr i8, ptr {base}, i64 {place}")

    with code.loop(0, "%n", width) as loop:
        mask = lanes_below(k, code.let(f"sub i64 %n, {loop.index}")) if masked and width > 1 else None
        inputs = [load(k, d, pointer(n, d.itemsize, loop.index), mask) for n, d in enumerate(dtypes)]
        for n, value in enumerate(body(k, *inputs)):
            store(k, value, pointer(len(dtypes) + n, value.dtype.itemsize, loop.index), mask)
        loop.carry()
    code.ret()
    return module


class Program:
    """A module, compiled."""

    def __init__(self, module: ir.Module, cpu: str = HOST) -> None:
        self.text = module.text(attributes(cpu))
        parsed = llvm.parse_assembly(self.text)
        parsed.verify()
        self._engine = llvm.create_mcjit_compiler(parsed, machine(cpu))
        self._engine.finalize_object()
        address = self._engine.get_function_address("run")
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)

    def __call__(self, arrays: Sequence[Array], outputs: Sequence[DType]) -> list[Array]:
        """The program's outputs on arrays of one length."""
        made = [np.zeros(arrays[0].shape, d.numpy) for d in outputs]
        self.run([*[np.ascontiguousarray(a) for a in arrays], *made], arrays[0].size)
        return made

    def run(self, arrays: Sequence[Array], n: int) -> None:
        """The program on the addresses of arrays."""
        pointers = (ctypes.c_void_p * len(arrays))(*[a.ctypes.data for a in arrays])
        self._run(ctypes.addressof(pointers), n)


def placed(
    body: Callable[..., Sequence[Value]], arrays: Sequence[Array], outputs: Sequence[DType], width: int
) -> list[Array]:
    """What `body` returns, once, for pointers to arrays: a vector of each of the dtypes."""
    module = ir.Module()
    code = module.function("run", [("ptr", "pointers"), ("i64", "n")])
    k = LlvmBuilder(code, width)
    made = [np.zeros(width, d.numpy) for d in outputs]
    at = []
    for number in range(len(arrays) + len(made)):
        slot = code.pure(f"getelementptr ptr, ptr %pointers, i64 {number}")
        at.append(code.let(f"load ptr, ptr {slot}"))
    for value, pointer in zip(body(k, *at[: len(arrays)]), at[len(arrays) :], strict=True):
        store(k, value, pointer)
    code.ret()
    Program(module).run([*arrays, *made], 0)
    return made


def assembly(module: ir.Module, cpu: str = HOST, triple: str = "") -> str:
    """What a module becomes on a processor."""
    parsed = llvm.parse_assembly(module.text("nounwind" if triple else attributes(cpu)))
    parsed.verify()
    made: str = machine(cpu, triple).emit_assembly(parsed)
    return made
