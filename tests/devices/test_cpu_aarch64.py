"""Generated CPU code for AArch64, run under qemu and compared with NumPy in float64."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import scalar_calls
import yosegi as ys
from aarch64_code import PROCESSORS, GuestCompiler, GuestRuntime, library, machine, natives, needs_aarch64
from devices.test_cpu_control import BODIES, check_control, control_call
from native_code import RESULTS, always, always_native, region_of
from target_programs import PROGRAMS, RULES, WINOGRAD, Program, rules, values
from values import Array
from yosegi._graph.expand import in_parts
from yosegi._graph.float64 import float64_outputs
from yosegi._run.trace import trace
from yosegi._tensor.dtype import DType
from yosegi._tune.certificate import random_matrix
from yosegi._tune.projection import VECTORS, projection_of
from yosegi.codegen.llvm.control import Lists
from yosegi.codegen.llvm.product import Product
from yosegi.devices.cpu import guard
from yosegi.devices.cpu.bfloat16_support import find
from yosegi.devices.cpu.control import Loops
from yosegi.devices.cpu.operand_layout import Arrays
from yosegi.devices.cpu.product_calls import GeneratedProducts, Objects
from yosegi.devices.cpu.projections import Projections
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import APART, GENERATED, LIBRARY, Variants

pytestmark = needs_aarch64

EACH_PROCESSOR = pytest.mark.parametrize("processor", PROCESSORS)
THREADED = ("loops", "reductions", "rows", "products", "convolutions")
"""The kinds of programs whose work is dealt out to threads."""


@cache
def variants(processor: str = "apple-m1", threads: int = 2, *, futex: bool = True) -> Variants:
    """The variants of products on a machine of that architecture; its BLAS is one of the program under qemu."""
    made = Variants(natives(processor, threads, futex=futex), RESULTS)
    made.__dict__["_library"] = library(made)  # a cached property, which would have found the BLAS of this process
    return made


def run(
    function: Callable[..., Any], arrays: Sequence[Array], by: Variants, *, way: str = GENERATED, chunked: bool = False
) -> list[Array]:
    """A program's results by code for AArch64. It is an error if none of it runs there, or if LLVM fails."""
    made = function(*[ys.asarray(a, copy=False) for a in arrays])
    region, given = region_of(*(made if isinstance(made, tuple) else (made,)))
    if any(call.op.decomposition is not None for call in region.calls):
        region = in_parts(region)
    runtime, records = by.natives.runtime, len(trace.records)
    assert isinstance(runtime, GuestRuntime)
    calls = runtime.calls
    with always_native(chunked=chunked), always(way):
        results = list(native_function(region, by)(*given))
    assert len(trace.records) == records, trace.records[-1]
    assert runtime.calls > calls, "nothing became native"
    return results


def run_program(program: Program, by: Variants, *, chunked: bool = False) -> None:
    """Run a program and compare its results."""
    program.check(run(program.function, program.given, by, way=program.way, chunked=chunked))


# Programs


@EACH_PROCESSOR
@pytest.mark.parametrize(("dtype", "arity"), RULES, ids=lambda of: getattr(of, "name", str(of)))
def test_every_elementwise_op(dtype: DType, arity: int, processor: str) -> None:
    of = rules(dtype, arity)
    scalar_calls.check(of.read, of.arrays, run(of.function, of.arrays, variants(processor)))


@EACH_PROCESSOR
@pytest.mark.parametrize("kind", PROGRAMS)
def test_programs(kind: str, processor: str) -> None:
    for program in PROGRAMS[kind]():
        run_program(program, variants(processor))


@pytest.mark.parametrize("kind", THREADED)
def test_programs_by_several_threads(kind: str) -> None:
    for program in PROGRAMS[kind]():
        if max(a.size for a in program.arrays) < 50_000:
            run_program(program, variants(threads=3), chunked=True)


@pytest.mark.parametrize("way", [LIBRARY, APART])
def test_products_by_a_library(way: str) -> None:
    for program in PROGRAMS["products"]():
        run_program(replace(program, way=way), variants())


@pytest.mark.parametrize("futex", [True, False], ids=["futex", "condition"])
def test_threads_that_sleep(futex: bool) -> None:
    x = values((200, 300), ys.float32)
    program = Program("a loop", lambda x: ys.sqrt(x * x + 1) - x, (x,), lambda x: np.sqrt(x * x + 1) - x)
    for pause in (0, 0, 0.05, 0.05):
        time.sleep(pause)
        run_program(program, variants(futex=futex), chunked=True)


def test_results_that_do_not_go_through_the_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("yosegi.devices.cpu.native_groups"), "_streams", lambda group: True)
    for shape in ((300_001,), (128, 2304)):  # of more than 1 MB, so that results begin with a page
        x = values(shape, ys.float32)
        (got,) = run(lambda x: x * 2 + 1, [x], variants())
        np.testing.assert_array_equal(got, x * 2 + 1)


@pytest.mark.parametrize("dtype", [ys.float32, ys.float64], ids=lambda d: d.name)
def test_a_right_operand_that_is_packed_once(dtype: DType) -> None:
    runtime = natives().runtime
    assert runtime is not None
    products, product = GeneratedProducts(Objects(runtime)), Product(dtype)
    for m, n, k in ((1, 5, 3), (64, 32, 100), (130, 57, 900)):
        a, b = values((m, k), dtype), values((k, n), dtype, 1)
        for right in (b, np.asfortranarray(b), b[:, ::-1]):
            out = np.full((m, n), np.nan, dtype.numpy)
            bound = products.bound(product, Arrays(a, right, (), (), (out,)), kept=True, fallback=_refuse)
            bound.call(a, products.packed(product, right), out, np.empty(bound.workspace, np.uint8))
            exact = a.astype(np.float64) @ right.astype(np.float64)
            np.testing.assert_allclose(out, exact, rtol=0, atol=k * 4 * float(ys.finfo(dtype).eps))


def _refuse(*arrays: Array) -> Any:
    raise AssertionError("the arrays do not lie as the product was made for")


def test_a_convolution_of_what_is_not_finite() -> None:
    x, w = values((2, 8, 20, 20), ys.float32), values((8, 8, 3, 3), ys.float32, 1)
    x[0, 3, 10, 10] = np.inf
    (got,) = run(lambda x, w: ys.nn.conv2d(x, w, padding=1), [x, w], variants(), way=WINOGRAD)
    assert np.isfinite(got[1]).all()
    assert not np.isfinite(got[0, :, 9:12, 9:12]).any()
    assert np.isfinite(got[0]).sum() == got[0].size - 8 * 9


# Kernels that no program above uses


@pytest.mark.parametrize("name", [name for name in BODIES if name != "rows past the caches"])
def test_loops_and_branches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their instructions are in the memory of the program under qemu."""
    runtime = natives().runtime
    assert isinstance(runtime, GuestRuntime)
    monkeypatch.setattr(Lists, "keep", lambda lists, data: runtime.guest.keep(data))
    call, arrays = control_call(BODIES[name]())
    check_control(Loops(natives()).body(call), call, arrays)


@pytest.mark.parametrize(("m", "k", "n"), [(37, 70, 51), (300, 257, 129), (1, 64, 5)])
@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray], ids=["rows", "columns"])
def test_projections(m: int, k: int, n: int, layout: Callable[[Array], Array]) -> None:
    """Of operands whose rows, or whose columns, are contiguous."""
    runtime = natives().runtime
    assert runtime is not None
    a, b = layout(values((m, k), ys.float32)), layout(values((k, n), ys.float32, 1))
    drawn = random_matrix(n, VECTORS, is_fixed=True)
    (call,) = region_of(ys.asarray(a) @ ys.asarray(b))[0].calls
    region = projection_of(call, VECTORS)
    kernel = Projections(runtime).kernel(region, _refuse)
    made = (a.astype(np.float64) @ b).astype(np.float32)
    made[m // 2] += 0.5
    (sums,), (exact,) = kernel(a, b, made, drawn), float64_outputs(region, [a, b, made, drawn])
    np.testing.assert_allclose(sums, exact, rtol=1e-4, atol=1e-4 * np.max(np.abs(exact)))


# The machine


def test_an_instruction_that_the_processor_lacks_is_survived() -> None:
    """By the handler of `devices.cpu.guard`, with the functions of the system under qemu."""
    compiler = natives("generic").runtime.compiler  # type: ignore[union-attr]
    assert isinstance(compiler, GuestCompiler)
    there = compiler.guest
    names = {"SETJMP": "__sigsetjmp", "LONGJMP": "siglongjmp"}
    text = guard._TEXT.replace("PARAMETERS", ", ".join(f"i64 %a{n}" for n in range(8)))
    for word, name in names.items():
        text = text.replace(word, str(there.find(name)))
    guarded = compiler.linked(text, ("guarded", "handler"))
    there.call(there.find("signal"), 4, guarded["handler"])  # SIGILL
    code = '@kernel = constant [2 x i32] [i32 {}, i32 3596551104], section ".text", align 4'  # and RET
    for instruction, status in ((0xD503201F, 0), (0x04BF5020, 1), (0xD503201F, 0)):  # NOP, and RDVL of SVE
        kernel = compiler.linked(code.format(instruction), ("kernel",))
        assert there.call(guarded["guarded"], kernel["kernel"]) & 0xFFFFFFFF == status


@EACH_PROCESSOR
def test_the_machine_is_described(processor: str) -> None:
    made = machine(processor)
    assert made.vector_bytes == 16
    assert made.converts_halves
    assert made.target.registers == 32
    assert find(made).unit is None
    assert "no kernels for this architecture" in find(made).reason
