"""`ys.deterministic()`: whatever was measured, and whenever, the plan and the bits are the same."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor, TimeoutError
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest

import hostile
import yosegi as ys
import yosegi._place.place as place_module
import yosegi._tune.autotune as contest
import yosegi._tune.timing as timing
from fakes import Clock, FakeDevice, ModelCompiler, installed
from fakes.reduced import Reduced
from forks import holds_in_a_fork
from measured import machine, speed
from native_code import NATIVES, RESULTS, needs_llvm, region_of
from yosegi._place.candidates import Candidate
from yosegi._place.costs import costs
from yosegi._place.plan import Plan
from yosegi._run.device import host_device
from yosegi._tensor.precision import Precision
from yosegi._tune.autotune import TrialSetup
from yosegi._tune.certificate import Certified, random_matrix
from yosegi._tune.records import TuningRecords
from yosegi.devices.cpu import tiered
from yosegi.devices.cpu.variants import Variants

FIXED = [-1.0876667, -0.7376019, -1.3648010, 0.4503319, 1.0988375]
RNG = np.random.default_rng(3)
X, W, B = RNG.standard_normal((65, 127), np.float32), RNG.standard_normal((127, 33), np.float32), np.float32([0.5])
A, A2 = RNG.standard_normal((96, 192), np.float32), RNG.standard_normal((192, 96), np.float32)
HALF = A[:, :96]
CANCELLING = np.concatenate([HALF, -HALF], axis=1), np.concatenate([A2[:96], A2[:96] * np.float32(1 + 1e-6)])


def where(plan: Plan) -> list[str]:
    return [str(step.candidate) for step in plan.steps]


def test_runs_give_the_same_bits_from_the_first_on() -> None:
    def program(x: Any, w: Any, b: Any) -> Any:
        y = ys.nn.softmax(ys.nn.gelu(x @ w + b), axis=-1)
        return y, ys.sum(y * x[:, :33], axis=0)

    with ys.deterministic():
        first, *others = ([y.numpy() for y in program(*map(ys.asarray, (X, W, B)))] for _ in range(12))
    for other in others:
        for mine, theirs in zip(first, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_plans_are_neither_measured_nor_changed() -> None:
    with installed(FakeDevice(), alone=True), ys.deterministic():
        plan = ys.plan(ys.asarray(X) @ ys.asarray(W))
        assert plan.watch is None
        assert plan.steps[0].device.name.startswith("fake")


@pytest.mark.parametrize(
    ("strategy", "first"), [("f32", Precision.FULL), ("f16", Precision.F16), ("adaptive", Precision.BF16)]
)
def test_precisions_are_taken_in_order_whatever_they_were_measured_to_cost(
    strategy: str, first: Precision, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Reduced(*hostile.ALL)

    def planned() -> Precision:
        y = ys.asarray(A) @ ys.asarray(A2)
        with ys.options(precision=strategy, tol=1e-1, device=device.name):
            step = ys.plan(y).steps[0]
            ys.eval(y)
        return step.candidate.precision

    with machine(monkeypatch, tmp_path, {device: speed(10)}):
        step = ys.plan(ys.asarray(A) @ ys.asarray(A2)).steps[0]
        costs.observe(step.region, step.works, Candidate.of(device), 1e-9)
        with ys.deterministic():
            assert planned() is first
        assert device.ran == [first]
        assert planned() is Precision.FULL


def test_calls_that_are_not_worth_it_are_made_all_the_same() -> None:
    device = ModelCompiler("sort", launch=1.0)

    def program() -> Any:
        return ys.exp(ys.sort(ys.exp(ys.sort(ys.exp(ys.asarray(A))))))

    with installed(device, alone=True):
        with ys.options(device=device.name):
            assert where(ys.plan(program())) == ["cpu"]
        with ys.deterministic():
            assert where(ys.plan(program())) == [device.name, "cpu"] * 2 + [device.name]


@pytest.mark.parametrize("fakes", [(), (FakeDevice(),)])
def test_devices_are_not_measured(fakes: tuple[FakeDevice, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(place_module, "ensure_measured", lambda chain: bool(asked.append(chain)))
    large = np.zeros((2000 + len(fakes),) * 2, np.float32)  # plans are kept
    with installed(*fakes, alone=True), ys.options(precision="f16"):
        with ys.deterministic():
            ys.plan(ys.asarray(large) @ ys.asarray(large))
        assert not asked
        ys.plan(ys.asarray(large) @ ys.asarray(large))
        assert asked


def test_a_miss_changes_nothing_for_other_inputs() -> None:
    def bits(device: Reduced) -> tuple[list[Any], Any]:
        with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
            made = [(ys.asarray(a) @ ys.asarray(b)).numpy() for a, b in ((A, A2), CANCELLING, (A, A2))]
        return made, device.ran

    with ys.deterministic():
        (first, missed, again), ran = bits(Reduced(Precision.BF16))
    np.testing.assert_array_equal(first, again)
    assert ran[0] is ran[-1] is Precision.BF16
    truth = CANCELLING[0].astype(float) @ CANCELLING[1].astype(float)
    assert hostile.true_error(missed, truth, by_norm=True) <= 1e-2
    (first, _, again), _ = bits(Reduced(Precision.BF16))
    assert not np.array_equal(first, again)


# Kernels


def test_of_several_kernels_the_first_is_taken_whatever_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    clock = Clock()
    for module in (contest, timing):
        monkeypatch.setattr(module, "perf_counter", clock)
    calls: list[str] = []

    def candidate(name: str, seconds: float) -> Any:
        def kernel(x: Any) -> list[Any]:
            calls.append(name)
            clock.now += seconds
            return [x * 2]

        return lambda: kernel

    kernels = {"first": candidate("first", 1e-2), "second": candidate("second", 1e-5)}
    trial = TrialSetup(lambda: [A], lambda x: [x * 2])
    choices = TuningRecords("a machine")
    assert choices.best("doubling", kernels, trial).verdict.winner == "second"
    calls.clear()
    with ys.deterministic():
        assert choices.known("doubling") is None
        assert choices.best("doubling", kernels, trial).verdict.winner == "first"
    assert calls == ["first"]  # once, to see that it is right: there is no race
    assert choices.best("doubling", kernels, trial).verdict.winner == "second"


# Threads


@needs_llvm
@pytest.mark.parametrize("is_deterministic", [True, False])
def test_threads_that_come_while_a_kernel_is_compiled_wait_for_it(
    is_deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, native_function = Event(), Event(), tiered.native_function

    def slow(*args: Any) -> Any:
        begun.set()
        assert go_on.wait(30)
        return native_function(*args)

    monkeypatch.setattr(tiered, "native_function", slow)
    region, (x,) = region_of(ys.exp(ys.sin(ys.asarray(A))))
    kernel = tiered.compile_region(replace(region, repeats=True), Variants(NATIVES, RESULTS))

    def called() -> Any:
        with ys.options(deterministic=is_deterministic):
            return kernel(x)[0]

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(called)
        assert begun.wait(30)
        second = pool.submit(called)
        if is_deterministic:
            with pytest.raises(TimeoutError):
                second.result(0.2)
        else:
            second.result(30)
        assert not first.done()
        go_on.set()
        if is_deterministic:
            np.testing.assert_array_equal(first.result(30), second.result(30))


@needs_llvm
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_does_not_wait_for_a_thread_that_it_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    parent, native_function = os.getpid(), tiered.native_function
    begun, go_on = Event(), Event()

    def slow(*args: Any) -> Any:
        begun.set()
        assert os.getpid() != parent or go_on.wait(30)
        return native_function(*args)

    monkeypatch.setattr(tiered, "native_function", slow)
    region, (x,) = region_of(ys.exp(ys.sin(ys.asarray(A))))
    kernel = tiered.compile_region(replace(region, repeats=True), Variants(NATIVES, RESULTS))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(kernel, x)
        assert begun.wait(30)
        with ys.deterministic():
            assert holds_in_a_fork(lambda: np.allclose(kernel(x)[0], np.exp(np.sin(x)), rtol=1e-5))
        go_on.set()
        first.result(30)


# The contract


def test_certificates_are_the_same_in_every_process() -> None:
    assert random_matrix(5, 2, is_fixed=True)[:, 0].tolist() == pytest.approx(FIXED, rel=1e-6)
    assert not np.array_equal(random_matrix(5, 2, is_fixed=True), random_matrix(5, 2, is_fixed=False))


def test_a_kernel_close_to_the_tolerance_is_not_given_up_after_some_runs() -> None:
    a, b = RNG.standard_normal((256, 128), np.float32), RNG.standard_normal((128, 128), np.float32)
    region, arrays = region_of(ys.asarray(a) @ ys.asarray(b))
    kernel = lambda a, b: ((a @ b) * np.float32(1 + 9e-3),)
    fixed = Certified(kernel, region, host_device(), 1e-2, is_fixed=True)
    for _ in range(20):
        fixed(*arrays)
