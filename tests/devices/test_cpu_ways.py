"""How the CPU chooses the way to compute a product: what is measured and when, candidates that fail or are wrong,
constants, and threads, ours and NumPy's."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

import yosegi as ys
from forks import holds_in_a_fork
from native_code import NATIVES, RESULTS, always, needs_llvm, region_of
from product_code import EACH_WAY, check, exact, needs_blas, numbers, run, variants
from values import Array
from yosegi._run.trace import trace
from yosegi._tune import autotune as contest
from yosegi.devices.cpu import variants as ways_module
from yosegi.devices.cpu.blas import numpy_blas
from yosegi.devices.cpu.kernel import numpy_function
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.tiered import compile_region, native_function
from yosegi.devices.cpu.variants import GENERATED, LIBRARY, Variants
from yosegi.errors import CompileFailure

pytestmark = needs_llvm


# Choosing


@contextmanager
def fresh(monkeypatch: pytest.MonkeyPatch, folder: Any) -> Iterator[Variants]:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(folder))
    trace.clear()
    yield Variants(NATIVES, RESULTS)
    trace.clear()


def product(size: int = 96) -> tuple[Any, list[Array], Array]:
    x, w, b = numbers((size, size)), numbers((size, size), seed=1), numbers((size,), seed=2)
    region, arrays = region_of(ys.nn.relu(ys.asarray(x) @ ys.asarray(w) + ys.asarray(b)))
    return region, arrays, np.maximum(exact(x, w) + b, 0)


def test_the_choice_is_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    region, arrays, expected = product()
    with fresh(monkeypatch, tmp_path) as first:
        check(native_function(region, first)(*arrays)[0], expected, 96)
        monkeypatch.setattr(ways_module, "samples", lambda *a: pytest.fail("measured again"))
        check(native_function(region, first)(*arrays)[0], expected, 96)
        check(native_function(region, Variants(NATIVES, RESULTS))(*arrays)[0], expected, 96)
        assert not trace.records


def test_a_small_lead_is_measured_again_when_the_product_has_run_often(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    policy = replace(contest._POLICY, close_share=1e6, hopeless_ratio=1e6)  # every lead is small
    monkeypatch.setattr(contest, "_POLICY", policy)
    monkeypatch.setattr(contest.TuningResult, "runs", 5)
    region, arrays, expected = product()
    with fresh(monkeypatch, tmp_path) as first:
        kernel = native_function(region, first)
        (path,) = (tmp_path / "choices").iterdir()
        before = path.read_bytes()
        for _ in range(4):
            check(kernel(*arrays)[0], expected, 96)
        assert path.read_bytes() == before
        check(kernel(*arrays)[0], expected, 96)
        assert path.read_bytes() != before
        assert not trace.records


def test_a_compiler_that_fails_is_told_and_something_else_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def fails(*args: Any, **more: Any) -> Any:
        raise CompileFailure("LLVM: out of luck")

    region, arrays, expected = product()
    with fresh(monkeypatch, tmp_path) as made:
        monkeypatch.setattr(ways_module.GeneratedProducts, "bound", fails)
        check(native_function(region, made)(*arrays)[0], expected, 96)
        assert any("out of luck" in f.message for r in trace.records for f in r.failures)
        monkeypatch.setattr(ways_module.Library, "bound", fails)
        trace.clear()
        check(native_function(product(40)[0], made)(*product(40)[1])[0], product(40)[2], 40)
        assert any("out of luck" in f.message for r in trace.records for f in r.failures)


def test_a_kernel_that_is_wrong_is_never_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """One that leaves its output as it is, which is faster than any product."""
    made = ways_module.fused

    def idle(cluster: Any, binder: Any, keep: Any = None) -> Any:
        native = made(cluster, binder, keep)
        return type(native)(lambda *arrays: None, native.reads, native.outputs, native.workspace)

    region, arrays, expected = product()
    with fresh(monkeypatch, tmp_path) as found:
        monkeypatch.setattr(ways_module, "fused", idle)
        check(native_function(region, found)(*arrays)[0], expected, 96)
        assert any("wrong" in f.message for r in trace.records for f in r.failures)


def test_less_than_the_operands_precision_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """One that computes in bfloat16, or in the 11 bits of TensorFloat."""
    made = ways_module.fused
    region, arrays, expected = product()
    for bits in (16, 13):

        def rough(cluster: Any, binder: Any, keep: Any = None, bits: int = bits) -> Any:
            native = made(cluster, binder, keep)

            def call(a: Array, b: Array, *rest: Array) -> None:
                native.call(*[(x.view(np.uint32) >> bits << bits).view(np.float32) for x in (a, b)], *rest)

            return type(native)(call, native.reads, native.outputs, native.workspace)

        with fresh(monkeypatch, tmp_path / str(bits)) as found:
            monkeypatch.setattr(ways_module, "fused", rough)
            check(native_function(region, found)(*arrays)[0], expected, 96)
            assert any("wrong" in f.message for r in trace.records for f in r.failures)


@settings(max_examples=15)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400))
def test_whatever_is_chosen_is_right(m: int, n: int, k: int) -> None:
    x, w, b = numbers((m, k)), numbers((k, n), seed=1), numbers((n,), seed=2)
    region, arrays = region_of(ys.nn.relu(ys.asarray(x) @ ys.asarray(w) + ys.asarray(b)))
    (got,) = native_function(region, variants())(*arrays)
    check(got, np.maximum(exact(x, w) + b, 0), k)
    (plain,) = numpy_function(region)(*arrays)
    check(got, plain, k)


def test_seldom_products_are_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not known to come again is measured when it has come often."""
    asked: list[Any] = []

    def steps(self: Variants, cluster: Any, precision: Any) -> list[Any]:
        asked.append(cluster)
        return self.apart(cluster, [cluster.entry])

    monkeypatch.setattr(Variants, "steps", steps)
    region, arrays, expected = product()
    kernel = compile_region(region, variants())
    for _ in range(3):
        check(kernel(*arrays)[0], expected, 96)
    assert not asked
    while not asked:
        kernel(*arrays)
    check(kernel(*arrays)[0], expected, 96)


# Constants


WEIGHTS: dict[str, tuple[Callable[[Any], Any], tuple[int, int]]] = {
    "plain": (lambda w: w, (50, 60)),
    "transposed": (lambda w: w.T, (60, 50)),
    "reversed": (lambda w: w[::-1, ::-1], (50, 60)),
    "sliced": (lambda w: w[3:, 2:-1], (53, 63)),
}
"""Views, and the shapes of arrays of which they are 50 by 60."""


@pytest.mark.parametrize("view", WEIGHTS)
def test_a_constant_right_operand_is_packed_once(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []
    made = ways_module.GeneratedProducts.packed

    def counted(*arguments: Any) -> Any:
        packed.append(arguments)
        return made(*arguments)

    monkeypatch.setattr(ways_module.GeneratedProducts, "packed", counted)
    seen, shape = WEIGHTS[view]
    base = numbers(shape)
    weights, bias = ys.asarray(base), ys.asarray(numbers((60,), seed=2))
    with always(GENERATED):
        function = ys.jit(lambda x: ys.nn.relu(x @ seen(weights) + bias))
        for x in (numbers((40, 50)), numbers((40, 50), seed=1), numbers((50, 40), seed=9).T):
            check(function(ys.asarray(x)).numpy(), np.maximum(exact(x, seen(base)) + bias.numpy(), 0), 50)
    assert len(packed) == 1


# Threads and forks


def test_several_python_threads_at_once() -> None:
    a, b = numbers((150, 160)), numbers((160, 170), seed=1)
    expected = np.maximum(exact(np.tanh(a), b) + 1, 0)
    for way in (GENERATED, LIBRARY):
        region, arrays = region_of(ys.nn.relu(ys.tanh(ys.asarray(a)) @ ys.asarray(b) + 1))
        with always(way):
            kernel = native_function(region, variants())
        wrong: list[Exception] = []

        def work(kernel: Any = kernel, arrays: Any = arrays, wrong: Any = wrong) -> None:
            try:
                for _ in range(20):
                    check(kernel(*arrays)[0], expected, 160)
            except AssertionError as error:
                wrong.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong, wrong[0]


@needs_blas
def test_the_library_gets_its_threads_back() -> None:
    blas = numpy_blas()
    assert blas is not None
    count = ctypes.CFUNCTYPE(ctypes.c_int)(blas.get_threads)
    set_count = ctypes.CFUNCTYPE(None, ctypes.c_int)(blas.set_threads)
    before = count()
    a, b = numbers((200, 200)), numbers((200, 200), seed=1)
    region, arrays = region_of(ys.asarray(a) @ ys.asarray(b))
    with always(LIBRARY):
        kernel = native_function(region, variants())
    try:
        for threads in (3, 1, before):
            set_count(threads)
            workers = [threading.Thread(target=lambda: [kernel(*arrays) for _ in range(20)]) for _ in range(3)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
            assert count() == threads
    finally:
        set_count(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@EACH_WAY
def test_a_forked_child_multiplies(way: str) -> None:
    a, b = numbers((150, 160)), numbers((160, 170), seed=1)
    region, arrays = region_of(ys.asarray(a) @ ys.asarray(b))
    with always(way):
        kernel = native_function(region, variants())
    expected = kernel(*arrays)[0]
    assert holds_in_a_fork(lambda: np.array_equal(kernel(*arrays)[0], expected))


@EACH_WAY
def test_one_thread(way: str) -> None:
    x, w = numbers((300, 310)), numbers((310, 320), seed=1)
    (got,) = run(way, ys.nn.relu(ys.asarray(x) @ ys.asarray(w)), by=variants(threads=1))
    check(got, np.maximum(exact(x, w), 0), 310)


def test_without_llvm_numpy_multiplies() -> None:
    absent = Natives()
    absent.reason = "not installed"
    x, w = numbers((60, 70)), numbers((70, 80), seed=1)
    region, arrays = region_of(ys.nn.relu(ys.asarray(x) @ ys.asarray(w)))
    (got,) = compile_region(region, Variants(absent, RESULTS))(*arrays)
    check(got, np.maximum(exact(x, w), 0), 70)
