"""The CPU device with native code: what it says, threads, forks, caches, memory, and what happens when LLVM fails."""

from __future__ import annotations

import os
import platform
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from forks import holds_in_a_fork
from native_code import (
    NATIVES,
    RESULTS,
    always_native,
    both,
    expected,
    groups_of,
    needs_llvm,
    process,
    program,
    region_of,
)  # fmt: skip
from samples import SAMPLES, calls
from yosegi._graph.expand import in_parts
from yosegi._graph.graph import capture
from yosegi._run.trace import trace
from yosegi._tensor.op import REGISTRY
from yosegi._tune import store
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine, Part
from yosegi.devices.cpu.device import Cpu
from yosegi.devices.cpu.guard import survives
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import Variants
from yosegi.errors import ArgumentError, CompileFailure

pytestmark = needs_llvm

N = 300_000


def compiled(natives: Natives, *tensors: ys.Tensor) -> Any:
    with always_native():
        return native_function(region_of(*tensors)[0], Variants(natives, RESULTS))


# What it is


def test_the_device_says_what_it_has() -> None:
    said = Cpu().description
    assert "LLVM" in said
    assert "-bit vectors" in said
    assert "thread" in said


def test_without_llvmlite_numpy_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    device = Cpu()
    assert "llvmlite is not installed" in device.description
    x = np.linspace(-1, 1, N, dtype=np.float32)
    region, _ = region_of(program(ys.asarray(x)))
    (got,) = device.compile(region)(*[x, np.float32(1)][: len(region.inputs)])
    np.testing.assert_array_equal(got, expected(x))


def test_a_broken_llvmlite_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostMachine, "host", lambda: 1 / 0)
    assert "LLVM does not work: ZeroDivisionError" in str(Natives())


def test_a_processor_that_lacks_what_it_reports_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    trials = []
    probe = import_module("yosegi.devices.cpu.probe")
    monkeypatch.setattr(probe, "survives", lambda *what: bool(trials.append(what)))
    for _ in range(2):
        natives = Natives()
        assert "that it reports (SIGILL)" in str(natives)
        assert natives.runtime is None
    assert len(trials) == 1  # the verdict is kept


def test_the_trial_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    probe = import_module("yosegi.devices.cpu.probe")
    assert probe.verdict(HostMachine.host()) is None
    assert probe.probe(HostMachine.host()) is None


@pytest.mark.skipif(os.name != "posix", reason="there are no signals")
def test_an_instruction_that_is_not_there_does_not_end_the_process() -> None:
    compiler = Compiler(HostMachine.host())
    text = "define void @kernel(ptr %x) {{\n {} \n store i64 7, ptr %x\n ret void\n}}\ndeclare void @llvm.trap()\n"
    written = np.zeros(1, np.int64)
    fine, bad = (compiler.linked(text.format(line), ("kernel",)) for line in ("", "call void @llvm.trap()"))
    for _ in range(3):
        assert not survives(compiler, bad, "kernel", written.ctypes.data)
        assert written[0] == 0
    assert survives(compiler, fine, "kernel", written.ctypes.data)
    assert written[0] == 7
    assert signal.getsignal(signal.SIGILL) in (signal.SIG_DFL, None)  # as it was


# Machines


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names of x86 processors")
@pytest.mark.parametrize(("model", "width"), [("x86-64", 16), ("x86-64-v3", 32)])
def test_a_lesser_processor(model: str, width: int) -> None:
    host = HostMachine.host()
    machine = HostMachine(host.triple, model, "", host.version)
    assert machine.vector_bytes == width
    natives = Natives(machine)
    rng = np.random.default_rng(0)
    x = ys.asarray(rng.normal(size=(37, 130)).astype(np.float32))
    h = ys.asarray(rng.normal(size=(37, 130)).astype(np.float16))
    e = ys.exp(x - ys.max(x, axis=1, keepdims=True))
    for got, wanted in both(e / ys.sum(e, axis=1, keepdims=True), ys.argmax(x, axis=1), h * h + h, natives=natives):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no POSIX threads")
def test_threads_that_sleep_on_a_condition() -> None:
    assert NATIVES.runtime is not None
    natives = Natives(runtime=Runtime(NATIVES.runtime.compiler, 3, futex=False))
    x = np.linspace(-1, 1, N, dtype=np.float32)
    kernel = compiled(natives, program(ys.asarray(x)))
    for pause in (0, 0, 0.01):
        time.sleep(pause)
        np.testing.assert_array_equal(kernel(*region_of(program(ys.asarray(x)))[1])[0], expected(x))


def test_without_knowing_where_arrays_have_their_data(monkeypatch: pytest.MonkeyPatch) -> None:
    native = import_module("yosegi.devices.cpu.callables")
    monkeypatch.setattr(native, "_layout", lambda: None)
    assert NATIVES.runtime is not None
    natives = Natives(runtime=Runtime(NATIVES.runtime.compiler))
    x = np.linspace(-1, 1, N, dtype=np.float32)
    for array in (x, x[::-1]):
        region, given = region_of(program(ys.asarray(x)))
        given = [array if a.size == N else a for a in given]
        with always_native():
            (got,) = native_function(region, Variants(natives, RESULTS))(*given)
        np.testing.assert_array_equal(got, expected(array))


@pytest.mark.parametrize("text", ["many", "1.5", "0"])
def test_a_number_of_threads_that_is_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    threads = import_module("yosegi.devices.cpu.threads")
    monkeypatch.setenv("YOSEGI_THREADS", text)
    with pytest.raises(ArgumentError, match=r"\[options\] expected YOSEGI_THREADS to be a whole number"):
        threads.thread_count()


def test_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = import_module("yosegi.devices.cpu.threads")
    monkeypatch.setenv("YOSEGI_THREADS", "3")
    assert threads.thread_count() == 3
    monkeypatch.delenv("YOSEGI_THREADS")
    assert threads.thread_count() >= 1


COLD = """
import numpy as np, yosegi as ys
from yosegi._run.device import host_device
f, x = ys.jit(lambda x: ys.exp(x) * 2), ys.asarray(np.ones((300, 300), np.float32))
for _ in range(2):
    f(x)
print(host_device().description)
"""


def test_a_first_run_that_must_not_compile_leaves_native_code_to_the_next(tmp_path: Path) -> None:
    """With an empty cache, where not even the code that starts threads is there."""
    settings = {"YOSEGI_CACHE_DIR": str(tmp_path), "YOSEGI_DEVICE": "cpu", "YOSEGI_BACKGROUND": "1"}
    assert "native kernels for" in process(COLD, tmp_path, **settings)


# When LLVM fails


def test_a_kernel_that_llvm_fails_on_is_numpys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))

    def fails(self: Compiler, source: str) -> bytes:
        raise CompileFailure("LLVM: cannot select")

    assert NATIVES.runtime is not None
    natives = Natives(runtime=Runtime(Compiler(NATIVES.runtime.compiler.machine)))
    monkeypatch.setattr(Compiler, "emit", fails)
    x = np.linspace(-1, 1, N, dtype=np.float32)
    kernel = compiled(natives, program(ys.asarray(x)))
    (got,) = kernel(*region_of(program(ys.asarray(x)))[1])
    np.testing.assert_array_equal(got, expected(x))
    last = trace.records[-1]
    assert last.failures[0].kind == "CompileFailure"
    assert "cannot select" in last.failures[0].message
    assert "sqrt" in last.ops


def test_text_that_is_no_ir_is_a_compile_failure() -> None:
    assert NATIVES.runtime is not None
    with pytest.raises(CompileFailure, match="LLVM"):
        NATIVES.runtime.compiler.load("define nonsense", ("kernel",))


# The disk


SECOND = """
import numpy as np, yosegi as ys
from yosegi._run.device import host_device
x = ys.asarray(np.linspace(-1, 1, 20_000, dtype=np.float32))
f = ys.jit(lambda x: ys.sqrt(x * x + 1.0) - ys.abs(x))
f(x)
compiler = host_device().natives.runtime.compiler
print(compiler.compiled, compiler.found)
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    assert process(SECOND, tmp_path) == "2 0"
    assert process(SECOND, tmp_path) == "0 2"
    for file in (tmp_path / "objects").glob("*.bin"):
        file.write_bytes(file.read_bytes()[:-7])
    assert process(SECOND, tmp_path) == "2 0"
    assert len(list((tmp_path / "objects").glob("*.damaged"))) >= 2
    assert process(SECOND, tmp_path) == "0 2"


def test_an_object_that_cannot_be_linked_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    assert NATIVES.runtime is not None
    compiler = Compiler(NATIVES.runtime.compiler.machine)
    source = "define void @kernel() { ret void }"
    name = compiler.name(source)
    compiler._stored.put(name, b"this is no object")
    compiler.load(source, ("kernel",))
    assert (compiler.compiled, compiler.found) == (1, 0)
    assert compiler._stored.get(name) not in (None, b"this is no object")


def test_parts_that_are_wanted_together_are_one_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    machine = HostMachine.host()

    def part(name: str) -> Part:
        return Part(f"what {name} is", lambda: f"define void @{name}() {{ ret void }}", (name,))

    def loaded(*names: str) -> Compiler:
        compiler = Compiler(machine)
        codes = compiler.load_all([part(name) for name in names])
        assert all(code[name] for name, code in zip(names, codes, strict=True))
        return compiler

    first = loaded("one", "two")
    assert (first.compiled, first.found) == (1, 0)
    again = loaded("two", "one")
    assert (again.compiled, again.found) == (0, 1)
    more = loaded("two", "three")  # what is known stays where it is
    assert (more.compiled, more.found) == (1, 1)
    whole = max((tmp_path / "objects").iterdir(), key=lambda path: path.stat().st_size)
    whole.unlink()
    parts = loaded("one", "two", "three")  # of one object or the other, one is left
    assert parts.compiled == 1


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    assert store.cache_folder() == tmp_path
    monkeypatch.delenv("YOSEGI_CACHE_DIR")
    assert store.cache_folder().name in ("yosegi", "cache")


# Threads and processes


def test_several_python_threads_at_once() -> None:
    x = [np.random.default_rng(n).normal(size=N).astype(np.float32) for n in range(4)]
    kernel = compiled(NATIVES, program(ys.asarray(x[0])))
    others = region_of(program(ys.asarray(x[0])))[1]

    def work(n: int) -> bool:
        given = [x[n] if a.size == N else a for a in others]
        return all(np.array_equal(kernel(*given)[0], expected(x[n])) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_other_threads_run_meanwhile() -> None:
    x = np.random.default_rng(0).normal(size=20_000_000).astype(np.float32)
    kernel = compiled(NATIVES, program(ys.asarray(x)))
    given = region_of(program(ys.asarray(x)))[1]
    turns, stop = 0, threading.Event()

    def count() -> None:
        nonlocal turns
        while not stop.is_set():
            turns += 1
            time.sleep(0.0001)

    thread = threading.Thread(target=count)
    thread.start()
    start, ran = time.perf_counter(), False
    while not ran and time.perf_counter() - start < 10:  # on a busy machine its turn may come late
        before = turns
        kernel(*given)
        ran = turns > before + 5  # one turn may come between the kernel and this line
    stop.set()
    thread.join()
    assert ran, "no other thread ran while the kernel did"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own() -> None:
    x = np.linspace(-1, 1, N, dtype=np.float32)
    kernel = compiled(NATIVES, program(ys.asarray(x)))
    given = region_of(program(ys.asarray(x)))[1]
    kernel(*given)

    def works() -> bool:
        right = all(np.array_equal(kernel(*given)[0], expected(x)) for _ in range(20))
        again = compiled(NATIVES, program(ys.asarray(x)) * 3.0)  # it can compile, too
        return right and len(again(*region_of(program(ys.asarray(x)) * 3.0)[1])) == 1

    assert holds_in_a_fork(works)
    np.testing.assert_array_equal(kernel(*given)[0], expected(x))


def _sleeping_workers(runtime: Runtime) -> list[set[int]]:
    """The processors that each worker may run on, after one has been woken from its sleep."""
    before = set(os.listdir("/proc/self/task"))
    region, arrays = region_of(ys.asarray(np.ones(1 << 20, np.float32)) * 2.0)
    kernel = native_function(region, Variants(Natives(runtime.compiler.machine, runtime), RESULTS))
    for _ in range(3):
        assert np.array_equal(kernel(*arrays)[0], np.full(1 << 20, 2, np.float32))
        time.sleep(0.05)
    return [os.sched_getaffinity(int(t)) for t in set(os.listdir("/proc/self/task")) - before]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the system does not say where threads run")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="threads sleep on a condition here")
def test_a_worker_keeps_off_the_callers_processor() -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("there is one processor")

    def holds() -> bool:
        (processors,) = _sleeping_workers(Runtime(Compiler(HostMachine.host()), 2))
        mine = os.sched_getaffinity(0)
        return processors < allowed and len(processors) == len(allowed) - 1 and mine == allowed

    assert holds()
    assert holds_in_a_fork(holds)
    crowded = _sleeping_workers(Runtime(Compiler(HostMachine.host()), len(allowed) + 1))
    assert crowded == [allowed] * len(allowed), "with more threads than processors the system knows best"


def test_threads_without_work_take_no_time() -> None:
    x = np.linspace(-1, 1, N, dtype=np.float32)
    kernel = compiled(NATIVES, program(ys.asarray(x)))
    kernel(*region_of(program(ys.asarray(x)))[1])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_a_process_ends_while_threads_look_for_work(tmp_path: Path) -> None:
    end = SECOND.replace("20_000", "2_000_000").replace("print(compiler.compiled, compiler.found)", "f(x); f(x)")
    for _ in range(3):
        process(end, tmp_path, YOSEGI_DEVICE="cpu")


# Every op


@pytest.mark.parametrize("layout", ["contiguous", "reversed"])
@pytest.mark.parametrize(("name", "number"), calls(), ids=[f"{a}-{b}" for a, b in calls()])
def test_every_op(name: str, number: int, layout: str) -> None:
    op, sample = REGISTRY[name], SAMPLES[name][number]
    arrays = [np.flip(np.flip(np.asarray(a)).copy()) if layout == "reversed" else np.asarray(a) for a in sample.arrays]
    node = op._node(tuple(ys.asarray(a) for a in arrays), sample.attrs)
    if len(node.call.outputs) > 1:
        return  # NumPy's business
    given = {id(i): a for i, a in zip(node.inputs, arrays, strict=True)}
    leaves = capture([node])[1]
    by_layout = [given.get(id(n), n.buffer.data) for n in leaves]  # type: ignore[union-attr]
    ((got, wanted),) = both(ys.Tensor(node), arrays=by_layout, reference_only=True)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    if wanted.dtype.kind in "fc":
        rtol = op.tolerance.ulps * float(np.finfo(wanted.dtype).eps)
        np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * np.max(np.abs(wanted), initial=0))
    else:
        np.testing.assert_array_equal(got, wanted)


# Accuracy


@pytest.mark.parametrize("shape", [(10_000_000,), (10, 1_000_000), (1_000_000, 10)])
def test_sums_of_ten_million(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(1).uniform(size=shape).astype(np.float32)
    for axis in {None, 0, len(shape) - 1}:
        kernel = compiled(NATIVES, ys.sum(ys.asarray(x), axis=axis))
        (got,) = kernel(x)
        exact = np.sum(x, axis=axis, dtype=np.float64)
        assert np.max(np.abs(got - exact) / exact) < 1e-6


def test_sums_do_not_depend_on_the_number_of_threads() -> None:
    x = np.random.default_rng(1).uniform(size=1_000_003).astype(np.float32)
    assert NATIVES.runtime is not None
    results = set()
    for threads in (1, 2, 5):
        natives = Natives(runtime=Runtime(NATIVES.runtime.compiler, threads))
        results.add(float(compiled(natives, ys.sum(ys.asarray(x)))(x)[0]))
    assert len(results) == 1


# What becomes one kernel


def softmax(x: ys.Tensor) -> ys.Tensor:
    e = ys.exp(x - ys.max(x, axis=-1, keepdims=True))
    return e / ys.sum(e, axis=-1, keepdims=True)


def normal(x: ys.Tensor) -> ys.Tensor:
    return (x - ys.mean(x, axis=-1, keepdims=True)) / ys.sqrt(ys.var(x, axis=-1, keepdims=True) + 1e-5)


def by_squeezed_mean(x: ys.Tensor) -> ys.Tensor:
    return x - ys.expand_dims(ys.mean(x, axis=-1), axis=-1)


@pytest.mark.parametrize("function", [softmax, normal, by_squeezed_mean], ids=lambda f: f.__name__)
@pytest.mark.parametrize("shape", [(64, 1000), (3, 50, 70), (5000,)])
def test_rows_are_one_kernel(function: Any, shape: tuple[int, ...]) -> None:
    x = ys.asarray(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    assert len(groups_of(function(x))) == 1
    for got, wanted in both(function(x)):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)


def test_a_composite_that_was_left_whole_for_another_device_is_written_out() -> None:
    stages = import_module("yosegi.devices.cpu.tiered")
    x = np.random.default_rng(0).normal(size=(64, 1000)).astype(np.float32)
    region, _ = region_of(ys.nn.softmax(ys.asarray(x) * 2) + 1)
    assert [call.op.name for call in region.calls] == ["multiply", "softmax", "add"]
    kernel = stages.compile_region(replace(region, repeats=True), Variants(NATIVES, RESULTS))
    powers = np.exp(2 * x - np.max(2 * x, axis=1, keepdims=True))
    np.testing.assert_allclose(kernel(x)[0], powers / powers.sum(axis=1, keepdims=True) + 1, rtol=1e-5)
    assert [name for name in kernel.__globals__ if name.startswith("xn")] == ["xn0"]


def test_a_result_that_is_an_input_stays_one_beside_a_composite() -> None:
    x = ys.asarray(np.random.default_rng(0).normal(size=(6, 7)))
    region, _ = region_of(ys.nn.softmax(x))
    shown = replace(region, outputs=(*region.outputs, *region.inputs))
    parts = in_parts(shown)
    assert not set(parts.nodes) & set(parts.inputs)
    made = native_function(shown, Variants(NATIVES, RESULTS))(x.numpy())
    np.testing.assert_array_equal(made[1], x.numpy())


def test_a_composite_in_parts_keeps_its_numbers_inside_a_kernel() -> None:
    x = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    region, _ = region_of(ys.nn.gelu(ys.asarray(x) * 2))
    assert [call.op.name for call in region.calls] == ["multiply", "gelu"]
    kernel = native_function(in_parts(region), Variants(NATIVES, RESULTS))
    assert [name for name in kernel.__globals__ if name.startswith(("xn", "xf"))] == ["xn0"]
    np.testing.assert_allclose(kernel(x)[0], ys.nn.gelu(ys.asarray(x) * 2).numpy(), rtol=1e-5, atol=1e-6)


def test_loops_that_meet_in_an_op_are_one_kernel() -> None:
    x, y, z = (ys.asarray(np.random.default_rng(n).uniform(0.1, 1, 3000).astype(np.float32)) for n in range(3))
    chain = ys.exp(ys.sin(x)) * ys.log(y) + ys.tanh(z)
    assert len(groups_of(chain)) == 1
    for got, wanted in both(chain):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_loops_are_not_joined_across_what_reads_one_of_them() -> None:
    x, y = (ys.asarray(np.random.default_rng(n).uniform(0.1, 1, (64, 64)).astype(np.float32)) for n in range(2))
    grown = ys.exp(x)
    sorted_too = ys.sort(grown) * ys.log(y) + grown
    del grown  # nobody else holds it
    assert groups_of(sorted_too) == [["exp"], ["sort"], ["log", "multiply", "add"]]
    for got, wanted in both(sorted_too):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert groups_of(ys.tanh(x @ y) * ys.log(y)) == [["log"], ["matmul"], ["tanh", "multiply"]]


def test_what_cannot_be_one_kernel_is_several() -> None:
    x = ys.asarray(np.random.default_rng(0).normal(size=(1000, 1000)).astype(np.float32))
    assert len(groups_of(x / ys.sum(x))) == 2  # all threads sum first
    square = ys.asarray(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))
    assert len(groups_of(square - ys.mean(square, axis=1))) == 2  # the means lie along the other dimension
    for got, wanted in both(square - ys.mean(square, axis=1)):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_sums_of_the_same_array_are_one_kernel() -> None:
    x = ys.asarray(np.random.default_rng(0).normal(size=(300, 1000)).astype(np.float32))
    assert len(groups_of(ys.sum(x), ys.sum(x * x), ys.max(x))) == 1
    for got, wanted in both(ys.sum(x), ys.sum(x * x), ys.max(x)):
        np.testing.assert_allclose(got, wanted, rtol=1e-4)


# When it becomes native


def test_a_kernel_becomes_native_when_it_has_run_for_long() -> None:
    stages = import_module("yosegi.devices.cpu.tiered")
    x = np.linspace(-1, 1, 1000, dtype=np.float32)
    region, given = region_of(program(ys.asarray(x)))
    kernel = stages.compile_region(region, Variants(NATIVES, RESULTS))
    code = kernel.__code__
    for _ in range(5):
        kernel(*given)
    assert kernel.__code__ is code
    for _ in range(20_000):
        kernel(*given)
    assert kernel.__code__ is not code
    np.testing.assert_array_equal(kernel(*given)[0], expected(x))


def test_a_large_one_at_its_first_run() -> None:
    stages = import_module("yosegi.devices.cpu.tiered")
    x = np.linspace(-1, 1, 5_000_000, dtype=np.float32)
    region, given = region_of(program(ys.asarray(x)))
    kernel = stages.compile_region(region, Variants(NATIVES, RESULTS))
    np.testing.assert_array_equal(kernel(*given)[0], expected(x))
    assert "xn0" in kernel.__globals__


def test_a_variance_alone_becomes_native() -> None:
    stages = import_module("yosegi.devices.cpu.tiered")
    x = np.linspace(-1, 1, 20_000_000, dtype=np.float32).reshape(1000, 20_000)
    region, given = region_of(ys.var(ys.asarray(x), axis=0))
    kernel = stages.compile_region(region, Variants(NATIVES, RESULTS))
    np.testing.assert_allclose(kernel(*given)[0], np.var(x.astype(np.float64), axis=0), rtol=1e-5)
    assert "xn0" in kernel.__globals__
