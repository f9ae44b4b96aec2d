"""Plans on one device as one unit, whose products are certified together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hostile
import yosegi as ys
from fakes import installed
from fakes.reduced import Reduced
from yosegi._run.background import background
from yosegi._schedule.fuse import Region, RegionKind
from yosegi._tensor.precision import Precision
from yosegi.errors import DeviceLost, LaunchFailure

RNG = np.random.default_rng(11)
A, B, C = (RNG.standard_normal((96, 96), np.float32) for _ in range(3))
HOSTILE = np.concatenate([A, -A], axis=1), np.concatenate([B, B * (1 + 1e-6)], axis=0).astype(np.float32)
BENIGN = np.concatenate([A, C], axis=1), np.concatenate([B, C], axis=0)
RUNS = 12
"""Calls after which a plan has settled and its unit is compiled."""


class Unit(Reduced):
    """A device that compiles a whole plan as one unit. It can fail in one."""

    coalesces = True

    def __init__(self, *precisions: Precision, **kwargs: Any) -> None:
        super().__init__(*precisions, **kwargs)
        self.units = 0
        self.failure: Exception | None = None

    def before_run(self, region: Region) -> None:
        if region.kind is RegionKind.SEQUENCE and any(p.kind is RegionKind.PROJECTION for p in region.parts):
            if self.failure is not None:
                raise self.failure
            self.units += 1


def program(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    """Three products: of inputs, of a loop's result, and of one matrix by itself; a sum that may cancel; an input."""
    first = a @ b
    second = ys.tanh(first) @ c
    return first, second, c @ c, ys.mean(second, axis=0), c


def settled(device: Unit, function: Any, *arrays: Any) -> None:
    for _ in range(RUNS):
        function(*arrays)
        background.wait()
    assert device.units > 0


def check(got: tuple[Any, ...], a: Any, b: Any, c: Any, tol: float) -> None:
    """Compare each product with the product of its own operands in float64."""
    first, second, third, _, same = [g.numpy() for g in got]
    operands = [(a, b), (np.tanh(first), c), (c, c)]
    for made, (left, right) in zip((first, second, third), operands, strict=True):
        assert hostile.true_error(made, left.astype(float) @ right.astype(float), by_norm=True) <= tol
    np.testing.assert_array_equal(same, c)


def test_a_plan_runs_as_one_unit_and_shows_it() -> None:
    device = Unit(Precision.BF16, Precision.F16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        f = ys.jit(program)
        arrays = [ys.asarray(x) for x in (*BENIGN, C)]
        settled(device, f, *arrays)
        before, ran = device.units, len(device.ran)
        check(f(*arrays), *BENIGN, C, 1e-2)
        assert (device.units, len(device.ran)) == (before + 1, ran + 1)
        steps = f.plans[0].explain().to_json()["steps"]
    errors = [step["candidates"][0]["error"] for step in steps if "matmul" in step["ops"]]
    assert len(errors) == 3
    assert all(0 < error <= 1e-2 for error in errors)


def test_no_result_is_beyond_its_tolerance_when_inputs_get_worse() -> None:
    device = Unit(Precision.BF16, Precision.F16, Precision.BF16X2)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        f = ys.jit(program)
        given = [[ys.asarray(x) for x in (*inputs, C)] for inputs in (BENIGN, HOSTILE)]
        settled(device, f, *given[0])
        for worse in RNG.random(20) < 0.5:
            inputs = HOSTILE if worse else BENIGN
            check(f(*given[int(worse)]), *inputs, C, 1e-2)
        background.wait()
        before = device.units
        check(f(*given[1]), *HOSTILE, C, 1e-2)
        check(f(*given[1]), *HOSTILE, C, 1e-2)
        assert device.units > before  # with the product that failed in higher precision


@pytest.mark.parametrize("failure", [LaunchFailure("made up"), DeviceLost("made up")])
def test_a_unit_that_fails_costs_no_result(failure: Exception) -> None:
    device = Unit(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        f = ys.jit(program)
        arrays = [ys.asarray(x) for x in (*BENIGN, C)]
        settled(device, f, *arrays)
        device.failure = failure
        check(f(*arrays), *BENIGN, C, 1e-2)
        check(f(*arrays), *BENIGN, C, 1e-2)


def test_a_product_without_a_projection_is_computed_in_float64() -> None:
    device = Unit(Precision.BF16)
    small = RNG.standard_normal((96, 3), np.float32)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        f = ys.jit(lambda a, b, c: ((a @ b) @ c, a @ b))
        arrays = [ys.asarray(x) for x in (A, B, small)]
        settled(device, f, *arrays)
        last, first = [made.numpy() for made in f(*arrays)]
    np.testing.assert_array_equal(last, (first.astype(float) @ small.astype(float)).astype(np.float32))


def test_a_step_of_the_host_runs_before_the_unit() -> None:
    device = Unit(Precision.BF16, dtypes=frozenset({ys.float32, ys.float64, ys.int32}))
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        f = ys.jit(lambda a, b, n: ((a @ b) * (n + 1).astype(ys.float32) @ b, n + 1))
        arrays = [ys.asarray(A), ys.asarray(B), ys.asarray(np.int64(2))]  # integers of 64 bits are the host's
        settled(device, f, *arrays)
        made, count = f(*arrays)
        assert len({step.device.name for step in f.plans[0].steps}) == 2
    truth = 3 * A.astype(float) @ B.astype(float) @ B.astype(float)
    assert hostile.true_error(made.numpy(), truth, by_norm=True) <= 4e-2
    assert int(count) == 3


def test_deterministic_runs_stay_step_by_step() -> None:
    device = Unit(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2, deterministic=True):
        f = ys.jit(program)
        arrays = [ys.asarray(x) for x in (*BENIGN, C)]
        for _ in range(RUNS):
            check(f(*arrays), *BENIGN, C, 1e-2)
    assert device.units == 0


def test_a_profile_has_the_time_of_a_unit() -> None:
    device = Unit(Precision.BF16)
    with installed(device) as name, ys.options(device=name, precision="adaptive", tol=1e-2):
        f = ys.jit(program)
        arrays = [ys.asarray(x) for x in (*BENIGN, C)]
        settled(device, f, *arrays)
        with ys.profile() as profile:
            f(*arrays)
    (event,) = [event for event in profile.to_json()["traceEvents"] if event["ph"] == "X" and "steps" in event["name"]]
    assert 0 <= event["ts"] <= event["ts"] + event["dur"] <= profile.seconds * 1e6
