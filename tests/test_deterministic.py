"""`ys.deterministic()`: whatever was measured, and whenever, the plan and the bits are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hostile
import yosegi as ys
import yosegi.contract as contract
import yosegi.place as place_module
from fakes import Clock, FakeDevice, ModelCompiler, installed
from fakes.reduced import Reduced
from measured import machine, speed
from yosegi.candidates import Candidate
from yosegi.contract import Guarded
from yosegi.costs import costs
from yosegi.fuse import Region, fuse
from yosegi.graph import capture, graph_of
from yosegi.plan import Plan
from yosegi.precision import Precision

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
        assert plan.rivals == ()
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
        costs.observe(step.region, step.works, Candidate(device), 1e-9)
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


# The contract


def product_of_many_rows() -> tuple[Region, list[Any]]:
    a, b = RNG.standard_normal((3000, 8), np.float32), RNG.standard_normal((8, 8), np.float32)
    key, leaves, _ = capture([(ys.asarray(a) @ ys.asarray(b))._node])
    region = fuse(graph_of(key))[0]
    return region, [leaf.buffer.data for leaf in leaves]  # type: ignore[union-attr]


@pytest.mark.parametrize("is_fixed", [True, False])
def test_every_run_is_looked_at_and_the_same_rows(is_fixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, errors = Clock(), []
    monkeypatch.setattr(contract, "perf_counter", clock)
    region, arrays = product_of_many_rows()
    off = np.linspace(1, 1.001, 3000, dtype=np.float32)[:, None]
    looks: list[int] = []

    def to_host(data: Any) -> Any:
        looks.append(len(errors))
        return data

    guarded = Guarded(lambda a, b: ((a @ b) * off,), replace(region, repeats=True), to_host, 1e-2, is_fixed=is_fixed)
    for _ in range(20):
        clock.now += 1e-6  # without `is_fixed`, time for a look at every fifth run
        guarded(*arrays)
        errors.append(guarded.error)
    assert (set(looks) == set(range(20))) is is_fixed
    assert (len(set(errors)) == 1) is is_fixed
