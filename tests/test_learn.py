"""Learning from runs: what is timed, when plans change, and when they must not."""

import numpy as np
import pytest

import yosegi as ys
import yosegi._tune.learn as learn
from fakes import Clock, Paced, SlowCompiler
from measured import machine, numbers, paced_host, speed
from yosegi._place.candidates import Candidate
from yosegi._place.cost_model import TransferCost
from yosegi._place.costs import costs
from yosegi._run.background import background
from yosegi._run.device import host_device
from yosegi._tune.comparison import agree
from yosegi.errors import LaunchFailure

X = numbers(400, 500)  # 0.16 ms in and out by the host's line


def program(x):
    return ys.tanh(x * 1.5) + x


def plan_of(function):
    (plan,) = function.plans
    return plan


def where(function):
    return [step.device.name for step in plan_of(function).steps]


def called(function, times, x=X):
    for _ in range(times):
        result = function(ys.asarray(x)).numpy()
    np.testing.assert_allclose(result, np.tanh(x * np.float32(1.5)) + x, rtol=1e-5)
    return result


# Devices that are not as fast as their lines say


def test_a_device_that_is_slower_than_its_line_is_left(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-3)  # it seems ten times as fast as the host, and is ten times as slow
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-4):
        f = ys.jit(program)
        called(f, 1)
        assert where(f) == [fake.name]
        called(f, 40)
        assert where(f) == ["cpu"]
        runs = fake.runs
        called(f, 100)
        assert fake.runs == runs


def test_a_device_that_is_faster_than_its_line_is_found(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 1e-4)
    with machine(monkeypatch, tmp_path, {fake: speed(0.8)}), paced_host(monkeypatch, clock, 1e-3):
        f = ys.jit(program)
        called(f, 1)
        assert where(f) == ["cpu"]
        called(f, 60)
        assert where(f) == [fake.name]


class Drowsy(Paced):
    """Falls asleep when it is not asked for a while, and takes long to wake up."""

    woken = float("-inf")

    def before_run(self, region):
        is_asleep = self.clock.now - self.woken > 2e-4
        self.clock.now += 20 * self.seconds if is_asleep else self.seconds
        self.woken = self.clock.now


def test_a_device_that_is_fast_when_it_is_awake_is_found(monkeypatch, tmp_path):
    clock = Clock()
    fake = Drowsy(clock, 1e-4)  # in turns with the host, one run each, it would always be asleep
    with machine(monkeypatch, tmp_path, {fake: speed(0.8)}), paced_host(monkeypatch, clock, 3e-4):
        f = ys.jit(program)
        called(f, 1)
        assert where(f) == ["cpu"]
        called(f, 400)
        assert where(f) == [fake.name]


class LateCompiler(Paced):
    """Compiles in the second run of a kernel."""

    def before_run(self, region):
        self.clock.now += 3.0 if self.runs == 2 else self.seconds


def test_a_device_that_compiles_in_its_second_run_is_timed_without_that(monkeypatch, tmp_path):
    clock = Clock()
    fake = LateCompiler(clock, 1e-4)
    with machine(monkeypatch, tmp_path, {fake: speed(0.8)}), paced_host(monkeypatch, clock, 0.3):
        f = ys.jit(program)
        called(f, 1)
        assert where(f) == ["cpu"]
        called(f, 200)
        assert where(f) == [fake.name]


def test_what_was_learned_holds_for_the_next_plan_and_the_next_process(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-4):
        called(ys.jit(program), 40)
        again = ys.jit(program)
        called(again, 1)
        assert where(again) == ["cpu"]
        costs.save()
        host = Candidate.of(host_device())
        region = plan_of(again).steps[0].region
        known = costs.measured(region, host)
        assert known == pytest.approx(5e-4, rel=0.1)
        costs.clear()
        costs.load(host_device())
        assert costs.measured(region, host) == known


def test_a_device_whose_speed_changes_is_left_and_taken_again(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 1e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-3) as host:
        f = ys.jit(program)
        called(f, 20)
        assert where(f) == [fake.name]
        fake.seconds = 0.1
        called(f, 400)
        assert where(f) == ["cpu"]
        fake.seconds, host["seconds"] = 1e-3, 0.1
        called(f, 4000)
        assert where(f) == [fake.name]


def test_a_plan_that_keeps_its_promise_is_left_alone(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 2e-5)
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-3):
        f = ys.jit(program)
        called(f, 1)
        steps = f.plans[0].steps
        called(f, 299)
        assert f.plans[0].steps is steps
        assert where(f) == [fake.name]


def test_plans_of_the_cache_learn_too(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-4):
        x = ys.asarray(X)
        plan = ys.plan(ys.cos(x * 2.5) - x)
        assert plan.steps[0].device is fake
        for _ in range(60):
            ys.eval(ys.cos(x * 2.5) - x)
        same = ys.plan(ys.cos(x * 2.5) - x)
        assert plan is same
        assert plan.steps[0].device is host_device()


def test_calibrating_anew_makes_plans_again(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 1e-4)
    with machine(monkeypatch, tmp_path, {fake: speed(1e-4)}), paced_host(monkeypatch, clock, 2e-3):
        f = ys.jit(lambda x: program(program(x)))
        x = numbers(2000, 1000)
        f(ys.asarray(x))
        assert where(f) == ["cpu"]
        costs.set_speed(fake, speed(20))
        for _ in range(40):
            f(ys.asarray(x))
        assert where(f) == [fake.name]


# When nothing changes


def test_a_plan_by_name_never_changes_but_what_it_takes_is_learned(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-2)
    known = {fake: speed(10)}
    with machine(monkeypatch, tmp_path, known), paced_host(monkeypatch, clock, 5e-4), ys.options(device=fake.name):
        f = ys.jit(program)
        called(f, 100)
        assert where(f) == [fake.name]
        step = plan_of(f).steps[0]
        assert costs.measured(step.region, step.candidate) == pytest.approx(5e-2, rel=0.01)


def test_small_plans_are_one_call_from_the_start(monkeypatch, tmp_path):
    with machine(monkeypatch, tmp_path, {Paced(Clock(), 1.0): speed(10, launch=1e-4)}):
        f = ys.jit(program)
        called(f, 1, X[:3])
        assert plan_of(f).host_kernel is not None
        assert plan_of(f).watch is None


def test_a_plan_with_nothing_left_to_find_out_becomes_one_call(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(0.7)}), paced_host(monkeypatch, clock, 5e-4):
        f = ys.jit(program)
        called(f, 1)
        assert plan_of(f).watch is not None
        called(f, 300)
        assert where(f) == ["cpu"]
        assert plan_of(f).host_kernel is not None
        assert plan_of(f).watch is None
        called(f, 3)


def test_runs_that_are_timed_become_rare(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 1e-4)
    timed = []
    run = learn.Watch.run
    monkeypatch.setattr(learn.Watch, "run", lambda self, *args: timed.append(self.runs) or run(self, *args))
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 1.0):
        called(ys.jit(program), 2000)
    assert timed[:3] == [3, 4, 5]
    assert len(timed) < 40


def test_trials_take_no_more_than_half_of_the_time(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 8e-4)
    with machine(monkeypatch, tmp_path, {fake: speed(0.9)}), paced_host(monkeypatch, clock, 5e-4) as host:
        f = ys.jit(program)
        for count in range(1, 200):
            before = clock.now
            called(f, 1)
            assert clock.now - before < 1e-3 + 0.5 * count * host["seconds"] + 20 * 8e-4
        assert clock.now < 200 * 5e-4 * 1.6


# Results


def test_a_rival_that_is_fast_and_wrong_is_never_kept(monkeypatch, tmp_path, caplog):
    clock = Clock()
    fake = Paced(clock, 1e-5)
    fake.factor = 1.01
    with machine(monkeypatch, tmp_path, {fake: speed(0.8)}), paced_host(monkeypatch, clock, 1e-3):
        f = ys.jit(program)
        called(f, 500)
        assert where(f) == ["cpu"]
    assert caplog.text.count("gives other results, and is not used") == 1


@pytest.mark.parametrize("failure", [LaunchFailure, TypeError])
def test_a_rival_that_fails_is_not_kept_and_nobody_notices(monkeypatch, tmp_path, failure):
    clock = Clock()
    fake = Paced(clock, 1e-5)

    def broken(region):
        raise failure("it broke")

    with machine(monkeypatch, tmp_path, {fake: speed(0.8)}), paced_host(monkeypatch, clock, 1e-3):
        fake.before_run = broken
        f = ys.jit(program)
        with ys.options(on_fallback="error"):
            called(f, 300)
        assert where(f) == ["cpu"]


def test_inputs_are_not_left_on_a_device_that_was_only_tried(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-3)
    with machine(monkeypatch, tmp_path, {fake: speed(0.8)}), paced_host(monkeypatch, clock, 5e-4):
        f = ys.jit(program)
        x = ys.asarray(X)
        for _ in range(100):
            f(x)
        assert fake.runs > 0
        assert x._node.buffer.spaces() == ("host",)
        f = None
    assert fake.live == 0


@pytest.mark.parametrize("lasting", [True, False])
def test_moving_counts_only_where_inputs_change(monkeypatch, tmp_path, lasting):
    """A device that is fast, but far away: it is worth it only for what stays there."""
    clock = Clock()
    way = TransferCost(1e-6, 4e8)  # 2 ms for the input
    fake = Paced(clock, 1e-5, moving=way)
    with machine(monkeypatch, tmp_path, {fake: speed(10, way=way)}), paced_host(monkeypatch, clock, 1e-3):
        f = ys.jit(lambda x: ys.sum(program(x), axis=1))
        x = ys.asarray(X)
        for _ in range(200):
            f(x if lasting else ys.asarray(X)).numpy()
        assert (fake.name in where(f)) is lasting


def test_a_slow_compiler_is_tried_when_it_is_done(monkeypatch, tmp_path):
    clock = Clock()
    fake = SlowCompiler()
    fake.before_run = lambda region: setattr(clock, "now", clock.now + 1e-4)
    with machine(monkeypatch, tmp_path, {fake: speed(0.8)}), paced_host(monkeypatch, clock, 1e-3):
        f = ys.jit(program)
        with ys.options(background=True):
            called(f, 60)
            assert where(f) == ["cpu"]
            assert fake.begun.wait(30)
            fake.go_on.set()
            background.wait()
            called(f, 60)
            assert where(f) == [fake.name]


def test_a_frozen_plan_is_run_as_it_is(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 5e-2)
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-4):
        f = ys.jit(program)
        called(f, 1)
        plan_of(f).watch = None
        called(f, 100)
        assert where(f) == [fake.name]


def test_measured_times_are_told(monkeypatch, tmp_path):
    clock = Clock()
    fake = Paced(clock, 2e-4)
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 5e-3):
        f = ys.jit(program)
        called(f, 100)
        told = plan_of(f).explain()
        (step,) = told.to_json()["steps"]
        assert [c["device"] for c in step["candidates"]] == [fake.name, "cpu"]
        assert step["candidates"][0]["measured_ms"] == pytest.approx(0.2, rel=0.05)
        assert told.to_json()["measured_ms"] == pytest.approx(0.2, rel=0.05)
        assert ", measured 0.2" in str(told)


def test_steps_that_a_device_works_off_in_a_row_add_up_to_what_they_take_together(monkeypatch, tmp_path):
    class InARow(Paced):
        """Works when it is waited for: several calls take little more than one."""

        pending = 0

        def before_run(self, region):
            self.pending += 1

        def synchronize(self):
            self.clock.now += 1e-3 + 1e-5 * self.pending if self.pending else 0.0
            self.pending = 0

        def to_host(self, data):
            self.synchronize()
            return super().to_host(data)

    clock = Clock()
    fake = InARow(clock, 0.0)
    with machine(monkeypatch, tmp_path, {fake: speed(10)}), paced_host(monkeypatch, clock, 1.0):
        f = ys.jit(lambda x: ys.sum(ys.tanh(ys.sum(x, axis=0)) * x, axis=1))
        for _ in range(20):
            f(ys.asarray(X)).numpy()
        plan = plan_of(f)
        assert len(plan.steps) > 1
        total = sum(costs.measured(s.region, s.candidate) for s in plan.steps)
        assert total == pytest.approx(plan.watch.milliseconds / 1e3, rel=0.01)
        assert total < 1.5e-3


# Whether results agree


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 1e-12], [1.0, 2e-12], True),  # beside the largest
        ([1.0, 2.0], [1.0, 2.01], False),
        ([1.0, np.nan], [1.0, np.nan], True),
        ([1.0, np.nan], [1.0, 2.0], False),
        ([1.0, np.inf], [1.0, -np.inf], False),
        ([1.0, np.inf], [1.0, np.inf], True),
        ([], [], True),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "complex64"])
def test_agree(one, other, same, dtype):
    numpy = ys.asarray(np.zeros(1), dtype=getattr(ys, dtype)).numpy().dtype
    small = numpy.itemsize == 2
    a, b = np.asarray(one).astype(numpy), np.asarray(other).astype(numpy)
    assert agree(a, b) is (same or (small and other == [1.0, 2.01]))


def test_whole_numbers_agree_only_if_they_are_equal():
    assert agree(np.array([1, 2]), np.array([1, 2]))
    assert not agree(np.array([1, 2]), np.array([1, 3]))
    assert agree((np.array([True]), np.array([1.0])), (np.array([True]), np.array([1.0])))
