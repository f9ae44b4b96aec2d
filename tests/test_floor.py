"""The floor: a plan on `auto` is judged by its measured total against that of every single device."""

from dataclasses import replace

import numpy as np
import pytest

import yosegi as ys
from fakes import Clock, Paced
from measured import machine, numbers, paced_host, speed
from yosegi._place.candidates import Candidate
from yosegi._place.cost_model import works_of
from yosegi._place.costs import costs
from yosegi._run.device import host_device
from yosegi._schedule.fuse import fuse

X = numbers(400, 500)  # 0.16 ms in and out by the host's cost model
DECIDED = 200  # runs


class Stored(Paced):
    """A device whose costs are kept on disk."""

    identity = "one that is remembered"


def program(x):
    return ys.tanh(x * 1.5) + x


def where(function):
    return [step.device.name for step in function.plans[0].steps]


def called(function, times, x=X):
    for _ in range(times):
        result = function(ys.asarray(x)).numpy()
    return result


def evaluated(function, times, x=X):
    """The same without jit."""
    for _ in range(times):
        result = function(ys.asarray(x)).numpy()
    plan = ys.plan(function(ys.asarray(x)))
    return result, [step.device.name for step in plan.steps]


def remembered(function, seconds, on_host=None):
    """As if an earlier process had stored what the regions of a function take: a list for each device; and what the
    host takes for all of it in one step."""
    traced = ys.jit(function)
    called(traced, 1)
    graph = traced.plans[0].graph
    with ys.options(device="cpu"):
        named = ys.jit(function)
        called(named, 1)
    regions = fuse(graph)
    works = works_of(graph, regions)
    speeds = {device: costs.speed(device) for device in seconds}
    costs.clear()
    for device, known in speeds.items():
        costs.set_speed(device, known)
    for device, taken in seconds.items():
        for region, work, each in zip(regions, works, taken, strict=True):
            costs.observe(region, (work,), Candidate.of(device), each)
    if on_host is not None:
        (step,) = named.plans[0].steps
        costs.observe(step.region, step.works, step.candidate, on_host)
    costs.save()
    costs.clear()
    for device in seconds:
        costs.load(device)


@pytest.mark.parametrize("is_jitted", [True, False])
def test_a_host_that_was_busy_when_it_was_measured_is_found(monkeypatch, tmp_path, is_jitted):
    clock = Clock()
    fake = Stored(clock, 1e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(1)}), paced_host(monkeypatch, clock, 3e-4):
        remembered(program, {fake: [1e-3], host_device(): [3e-3]})
        if is_jitted:
            f = ys.jit(program)
            called(f, 1)
            assert where(f) == [fake.name]
            called(f, DECIDED - 1)
            assert where(f) == ["cpu"]
        else:
            assert evaluated(program, 1)[1] == [fake.name]
            result, devices = evaluated(program, DECIDED - 1)
            assert devices == ["cpu"]
            np.testing.assert_allclose(result, np.tanh(X * np.float32(1.5)) + X, rtol=1e-5)


def test_a_device_that_was_busy_when_it_was_measured_is_found(monkeypatch, tmp_path):
    clock = Clock()
    fake = Stored(clock, 2e-4)
    with machine(monkeypatch, tmp_path, {fake: speed(1)}), paced_host(monkeypatch, clock, 1e-3):
        remembered(program, {fake: [9e-3], host_device(): [1e-3]})
        f = ys.jit(program)
        called(f, 1)
        assert where(f) == ["cpu"]
        called(f, DECIDED - 1)
        assert where(f) == [fake.name]


def test_a_device_that_claims_to_be_fast_is_left(monkeypatch, tmp_path):
    clock = Clock()
    fake = Stored(clock, 3e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(1)}), paced_host(monkeypatch, clock, 1e-3):
        remembered(program, {fake: [1e-4], host_device(): [4e-3]})
        f = ys.jit(program)
        called(f, 1)
        assert where(f) == [fake.name]
        called(f, DECIDED - 1)
        assert where(f) == ["cpu"]
        step = f.plans[0].steps[0]
        assert costs.measured(step.region, step.candidate) == pytest.approx(1e-3, rel=0.1)
        assert costs.measured(step.region, Candidate.of(fake)) == pytest.approx(3e-3, rel=0.1), "not 0.1 ms any more"


def test_a_host_kernel_that_is_predicted_to_be_short_is_timed_too(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 2e-4)
    x = X[:100]  # 0.04 ms by the host's cost model
    with machine(monkeypatch, tmp_path, {fake: speed(1, launch=1e-5)}), paced_host(monkeypatch, clock, 2e-3):
        f = ys.jit(program)
        called(f, 1, x)
        assert where(f) == ["cpu"]
        step = f.plans[0].steps[0]
        called(f, DECIDED - 1, x)
        assert costs.measured(step.region, step.candidate) == pytest.approx(2e-3, rel=0.1)
        assert where(f) == [fake.name]


def sorted_program(x):
    return ys.sort(program(x), axis=1)


def test_a_mixed_plan_that_loses_is_replaced(monkeypatch, tmp_path):
    clock = Clock()
    fake = Stored(clock, 2e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(1)}), paced_host(monkeypatch, clock, 5e-4):
        # What the mixed plan takes is stored as it is. The host takes 0.5 ms for all of it, not 8.
        remembered(sorted_program, {fake: [2e-3, 5e-2], host_device(): [4e-3, 5e-4]}, on_host=8e-3)
        f = ys.jit(sorted_program)
        called(f, 1)
        assert where(f) == [fake.name, "cpu"]
        result = called(f, DECIDED - 1)
        assert where(f) == ["cpu"]
        np.testing.assert_allclose(result, np.sort(np.tanh(X * np.float32(1.5)) + X, axis=1), rtol=1e-5)


def test_a_mixed_plan_that_wins_stays(monkeypatch, tmp_path):
    clock = Clock()
    fake = Stored(clock, 0.0)
    with machine(monkeypatch, tmp_path, {fake: speed(1)}), paced_host(monkeypatch, clock, 1e-4):
        host, compiled = host_device(), host_device().compile

        def is_sort(region):
            return any(call.op.name == "sort" for call in region.calls)

        def compile(region):  # the host takes long for loops, the other device for sorting
            kernel, slow = compiled(region), len(region.nodes) > 1

            def paced(*data):
                clock.now += 8e-3 if slow else 0.0
                return kernel(*data)

            return paced

        monkeypatch.setattr(host, "compile", compile)
        fake.before_run = lambda region: setattr(clock, "now", clock.now + (9e-2 if is_sort(region) else 1e-3))
        remembered(sorted_program, {fake: [1e-3, 9e-2], host: [8e-3, 1e-4]}, on_host=8e-3)
        f = ys.jit(sorted_program)
        called(f, DECIDED)
        assert where(f) == [fake.name, "cpu"]


def test_a_plan_that_slows_down_is_judged_again(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 3e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(0.9)}), paced_host(monkeypatch, clock, 2e-3) as host:
        f = ys.jit(program)
        called(f, 60)
        assert where(f) == ["cpu"]
        host["seconds"] = 8e-3
        called(f, 140)
        assert where(f) == [fake.name]


def test_a_machine_that_slows_down_changes_nothing(monkeypatch, tmp_path):
    clock = Clock()
    fast, slow = Paced(clock, 3e-3), Paced(clock, 2e-2)
    with (
        machine(monkeypatch, tmp_path, {fast: speed(0.9), slow: speed(0.8)}),
        paced_host(monkeypatch, clock, 2e-3) as host,
    ):
        f = ys.jit(program)
        called(f, DECIDED)
        assert where(f) == ["cpu"]
        runs = slow.runs
        assert runs > 0
        host["seconds"], fast.seconds, slow.seconds = 2e-2, 3e-2, 0.2
        called(f, 400)
        assert where(f) == ["cpu"]
        assert slow.runs == runs, "the other device shows that the machine is slower"


def test_the_plan_of_a_single_device_is_what_naming_it_gives(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-3, natives=frozenset({"gelu"}))
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-4):
        f = ys.jit(lambda x: ys.nn.gelu(x * 1.5))
        called(f, 1)
        assert set(where(f)) == {fake.name}
        assert "gelu" in [call.op.name for call in f.plans[0].graph.calls], "native there"
        result = called(f, DECIDED - 1)
        with ys.options(device="cpu"):
            named = ys.jit(lambda x: ys.nn.gelu(x * 1.5))
            expected = called(named, 1)
        own, other = f.plans[0], named.plans[0]
        assert [s.title for s in own.steps] == [s.title for s in other.steps]
        assert "gelu" not in [call.op.name for call in own.graph.calls]
        np.testing.assert_array_equal(result, expected)


def test_short_programs_are_not_tried_elsewhere(monkeypatch, tmp_path):
    """Trials take at most half of the time that a program has taken; a compiler alone would take longer."""
    clock = Clock()
    fake = Paced(clock, 1e-4)
    known = replace(speed(1, launch=1e-5), compiling=0.05)
    with machine(monkeypatch, tmp_path, {fake: known}), paced_host(monkeypatch, clock, 2e-5):
        f = ys.jit(program)
        called(f, 2 * DECIDED, X[:20])
        assert where(f) == ["cpu"]
        assert fake.runs == 0
