"""Nothing stops because a device cannot: fallback, quarantine, lost devices, and what users are told."""

import gc
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

import yosegi as ys
import yosegi._run.health as health_module
from fakes import (
    CompilerFails,
    DiesAfter,
    FailsAtRandom,
    FakeDevice,
    Garbage,
    OutOfMemoryAt,
    Slow,
    WithoutFloat64,
    installed,
)
from yosegi._run.snapshots import snapshots
from yosegi._run.trace import trace
from yosegi.errors import CompileFailure, DeviceLost, FallbackWarning, ShapeError, Unsupported

X = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)


def program(x):
    """Elementwise work, a product, a reduction, indexing."""
    h = ys.tanh(x * 1.5 + 0.25)
    return ys.sum((h @ h.T)[::2] ** 2, axis=1) + ys.max(h)


def expected(x=X):
    with ys.options(device="cpu"):
        return program(ys.asarray(x)).numpy()


def computed(name, x=X):
    with ys.options(device=name):
        return program(ys.asarray(x)).numpy()


@pytest.mark.parametrize(
    "make",
    [
        FakeDevice,
        lambda: FakeDevice(is_volatile=False),
        Garbage,
        Slow,
        WithoutFloat64,
        lambda: OutOfMemoryAt(10_000),
        lambda: OutOfMemoryAt(0),
        lambda: CompilerFails("tanh"),
        lambda: CompilerFails("matmul", "sum", "slice_view"),
        *[lambda n=n: DiesAfter(n) for n in range(6)],
    ],
)
def test_the_result_is_right_whatever_fails(make):
    fake = make()
    with installed(fake) as name:
        for _ in range(3):
            np.testing.assert_allclose(computed(name), expected(), rtol=1e-5)


def test_a_working_device_does_the_work():
    fake = FakeDevice()
    with installed(fake) as name:
        computed(name)
    assert fake.runs > 2


def test_an_unsupported_op_goes_to_the_next_with_its_reason():
    fake = FakeDevice()
    with installed(fake) as name, ys.options(device=name):
        q, _ = ys.linalg.qr(ys.asarray(X))
        explanation = ys.explain(q * 2)
        reasons = [r["reason"] for step in explanation.to_json()["steps"] for r in step["refused"]]
    assert "it has no ops of several outputs" in reasons
    assert f"not on {fake.name}: it has no ops of several outputs" in str(explanation)


def test_float64_is_never_lowered_a_device_without_it_is_skipped():
    fake = WithoutFloat64()
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X.astype(np.float64))
        y = ys.exp(x) + 1e-12
        assert "it has no float64" in str(ys.explain(y))
        assert y.numpy().dtype == np.float64
        np.testing.assert_array_equal(y.numpy(), np.exp(X.astype(np.float64)) + 1e-12)
    assert fake.runs == 0


def test_out_of_memory_trims_and_tries_once_more_then_moves_on():
    fake = OutOfMemoryAt(X.nbytes)
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X)
        np.testing.assert_array_equal((x + 0.5).numpy(), X + np.float32(0.5))
        np.testing.assert_array_equal(x.numpy(), X)  # everything alive is still readable
    assert fake.trimmed == 1


class LostInTrim(FakeDevice):
    """A device that is found to be lost when it gives memory back."""

    def trim(self):
        raise DeviceLost("a command buffer failed")


def test_a_device_that_is_lost_while_another_needs_memory():
    """The loss was raised to the user."""
    with installed(OutOfMemoryAt(0), LostInTrim()) as names, ys.options(device=names):
        np.testing.assert_array_equal((ys.asarray(X) + 0.5).numpy(), X + np.float32(0.5))


def test_a_failed_region_is_quarantined_and_gets_another_chance(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(health_module.time, "monotonic", lambda: now[0])
    fake = CompilerFails("exp")
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X)
        for _ in range(5):
            ys.eval(ys.exp(x))
        assert fake.attempts == 1
        now[0] += health_module.EXPIRES_AFTER + 1
        ys.eval(ys.exp(x))
        assert fake.attempts == 2


def test_a_plan_made_in_quarantine_uses_the_device_when_it_is_over(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(health_module.time, "monotonic", lambda: now[0])
    fake = DiesAfter(0)
    with installed(fake) as name, ys.options(device=name):
        ys.eval(ys.asarray(X) + 1)  # lost
        ys.eval(ys.sqrt(ys.abs(ys.asarray(X))))  # a new plan, made meanwhile
        fake.steps = 10**6  # it recovers
        now[0] += health_module.EXPIRES_AFTER + 1
        ys.eval(ys.sqrt(ys.abs(ys.asarray(X))))
    assert fake.runs > 0


def test_other_regions_still_run_on_the_device_that_failed_on_one():
    fake = CompilerFails("exp")
    with installed(fake) as name, ys.options(device=name):
        ys.eval(ys.exp(ys.asarray(X)))
        before = fake.runs
        ys.eval(ys.sin(ys.asarray(X)))
        assert fake.runs == before + 1


def test_values_that_lived_only_on_a_lost_device_are_computed_again():
    fake = DiesAfter(3)
    with installed(fake) as name, ys.options(device=name):
        a = ys.asarray(X) * 2
        ys.eval(a)
        b = a + 1
        ys.eval(b)
        assert (a._node.buffer.spaces(), b._node.buffer.spaces()) == ((fake.space,), (fake.space,))
        ys.eval(b * 3)  # the third and last step
        assert fake.is_dead
        np.testing.assert_array_equal(b.numpy(), X * 2 + 1)
        np.testing.assert_array_equal((a * b).numpy(), X * 2 * (X * 2 + 1))


def train(steps, name):
    with ys.options(device=name):
        rng = ys.random.default_rng(1)
        x, y = rng.normal((32, 8)), rng.normal((32,))
        w = ys.zeros((8,))
        for _ in range(steps):
            loss, slope = ys.value_and_grad(lambda w: ys.mean((x @ w - y) ** 2))(w)
            w = w - 0.05 * slope
            ys.eval(w)
        return w.numpy(), float(loss)


@pytest.mark.parametrize("dies_after", [1, 100, 1777])
def test_a_device_that_dies_in_a_500_step_loop_changes_no_number(dies_after):
    with installed(FakeDevice()) as name:
        w, loss = train(500, name)
    fake = DiesAfter(dies_after)
    with installed(fake) as name:
        survived, same_loss = train(500, name)
    assert fake.is_dead
    np.testing.assert_array_equal(survived, w)
    assert same_loss == loss


def test_the_history_of_volatile_values_is_bounded():
    fake = FakeDevice()
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X)
        for _ in range(2000):
            x = x * 1.001
            ys.eval(x)
        depth, node = 0, x._node
        while node.inputs:
            node, depth = node.inputs[0], depth + 1
        assert depth < 300
    del x, node
    snapshots.wait()
    gc.collect()
    assert fake.live < 100  # the number 1.001 may be kept there


def test_a_users_mistake_is_not_tried_anywhere():
    fake = CompilerFails("add")
    with installed(fake) as name, ys.options(device=name), pytest.raises(ShapeError):
        ys.ones((2,)) + ys.ones((3,))
    assert (fake.attempts, fake.runs) == (0, 0)


def test_an_index_found_wrong_at_replay_is_the_users_mistake():
    fake = FakeDevice()
    with installed(fake) as name, ys.options(device=name):
        f = ys.jit(lambda x, i: x[i])
        f(ys.asarray([1.0, 2.0]), ys.asarray([1]))
        with pytest.raises(ys.errors.IndexingError):
            f(ys.asarray([1.0, 2.0]), ys.asarray([5]))


# What users are told


def test_on_fallback_warn():
    fake = CompilerFails("exp")
    with installed(fake) as name, ys.options(device=name, on_fallback="warn"):
        with pytest.warns(FallbackWarning, match=rf"exp ran on cpu \({fake.name}: CompileFailure: internal error"):
            ys.eval(ys.exp(ys.asarray(X)))
        with pytest.warns(FallbackWarning, match=rf"pick runs on cpu, not on {fake.name}: it has no ops of several"):
            ys.eval(*ys.linalg.qr(ys.asarray(X)))


def test_on_fallback_error():
    fake = CompilerFails("exp")
    with installed(fake) as name, ys.options(device=name, on_fallback="error"):
        with pytest.raises(CompileFailure):
            ys.eval(ys.exp(ys.asarray(X)))
        with pytest.raises(Unsupported, match="it has no ops of several outputs"):
            ys.eval(*ys.linalg.qr(ys.asarray(X)))


def test_on_fallback_silent():
    fake = CompilerFails("exp")
    with installed(fake) as name, ys.options(device=name), warnings.catch_warnings():
        warnings.simplefilter("error")
        ys.eval(ys.exp(ys.asarray(X)))


def test_the_trace_and_explain_show_planned_against_actual():
    fake = CompilerFails("exp")
    trace.clear()
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X)
        y = ys.exp(x)
        plan = ys.plan(y)
        ys.eval(y)
        ys.eval(x + 1)
    record = trace.records[0]
    assert (record.planned, record.device, record.failures[0].kind) == (fake.name, "cpu", "CompileFailure")
    assert trace.steps() == {"cpu": 1, fake.name: 1}
    text = str(plan.explain())
    assert f"failed on {fake.name}: CompileFailure: internal error" in text
    assert "ran on cpu in" in text
    assert f">{fake.name}</td>" in plan.explain()._repr_html_()


def test_bytes_moved_are_counted():
    fake = FakeDevice()
    trace.clear()
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X)
        y = ys.exp(x)
        ys.eval(y)
        ys.eval(y + 1)
    assert [r.bytes_moved for r in trace.records] == [X.nbytes, 0]


# Chains and placement


def test_a_hybrid_name_is_a_device_and_the_one_that_takes_what_it_cannot_do():
    first, second = CompilerFails("exp"), FakeDevice()
    with installed(first, second) as name, ys.options(device=name):
        ys.eval(ys.exp(ys.asarray(X)))
    assert (first.runs, second.runs) == (0, 1)


def test_tensors_put_on_a_device_stay_there():
    fake = FakeDevice()
    with installed(fake):
        x = ys.asarray(X, device=fake)
        assert x.device is fake
        y = x * 2 + 1
        ys.eval(y)
        assert y.device is fake
        assert ys.zeros((2,), device=fake.name).device is fake
        assert y.to_device("cpu").device.name == "cpu"
        np.testing.assert_array_equal(y.numpy(), X * 2 + 1)


def test_little_work_goes_to_the_host_and_much_to_the_device():
    fake = FakeDevice()
    with installed(fake):
        ys.eval(ys.asarray(X) + 1)
        assert fake.runs == 0
        ys.eval(ys.zeros((1 << 18,)) + ys.asarray(np.ones(1 << 18)))
        assert fake.runs > 0


def test_neighbours_on_the_host_are_one_step_whatever_the_reasons_were():
    class Picky(FakeDevice):
        def supports(self, region):
            return f"no {region.calls[0].op.name} here"

    with installed(Picky()) as name, ys.options(device=name):
        x = ys.asarray(X)
        plan = ys.plan(ys.sum(ys.sin(x) @ x.T, axis=0))
    assert len(plan.steps) == 1


def test_gradients_flow_through_to_device():
    fake = FakeDevice()
    with installed(fake):
        slope = ys.grad(lambda x: ys.sum(x.to_device(fake) ** 2))(ys.asarray([1.0, 2.0]))
        assert slope.tolist() == [2.0, 4.0]


# What an adversary found


def test_a_joined_step_falls_back_only_to_devices_that_can_run_it():
    picky = WithoutFloat64()
    with installed(picky):
        plan = ys.plan(ys.asarray(X)[::2] * 3 + ys.asarray(X.astype(np.float64))[::2])
    asked = [c.device for step in plan.steps if len(step.region.nodes) > 2 for c in step.candidates]
    assert asked
    assert picky not in asked


@pytest.mark.parametrize("dies_after", range(6))
def test_what_jit_returns_survives_its_device(dies_after):
    fake = DiesAfter(dies_after)
    with installed(fake) as name, ys.options(device=name):
        f = ys.jit(lambda x, y: (x * 2 + y, ys.sum(x @ y.T)))
        x = ys.asarray(X)
        for _ in range(3):
            x, total = f(x, x)
        expected, sums = X, 0.0
        for _ in range(3):
            expected, sums = expected * 2 + expected, np.sum(expected @ expected.T)
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5)
        np.testing.assert_allclose(float(total), sums, rtol=1e-4)


@pytest.mark.parametrize("dies_after", [31, 32, 33, 40])
def test_a_device_that_dies_when_history_is_cut(dies_after):
    with installed(DiesAfter(dies_after)) as name, ys.options(device=name):
        x = ys.asarray(X)
        for _ in range(45):
            x = x + 1
            ys.eval(x)
        np.testing.assert_allclose(x.numpy(), X + 45, rtol=1e-6)


def test_threads_share_tensors_of_a_device_that_is_lost_now_and_then(monkeypatch):
    monkeypatch.setattr(health_module, "EXPIRES_AFTER", 0.0)
    fake = FailsAtRandom(np.random.default_rng(0), 0.1)
    with installed(fake) as name, ThreadPoolExecutor(6) as pool:
        with ys.options(device=name):
            shared = [ys.asarray(X) * n for n in range(1, 4)]

        def work(number):
            with ys.options(device=name):
                for i in range(40):
                    n = i % 3
                    np.testing.assert_allclose((shared[n] + number).numpy(), X * (n + 1) + number, rtol=1e-6)
            return number

        assert list(pool.map(work, range(6))) == list(range(6))


def test_to_device_recovers_what_was_lost_and_stays_where_it_is_when_there_is_no_room():
    fake = DiesAfter(1)
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X) * 2
        ys.eval(x)
        np.testing.assert_array_equal(x.to_device("cpu").numpy(), X * 2)
    with installed(OutOfMemoryAt(10)) as name:
        x = ys.asarray(X, device=name)
        assert x.device.name == "cpu"
        with ys.options(on_fallback="error"), pytest.raises(ys.errors.OutOfMemory):
            ys.asarray(X, device=name)


def test_a_tensor_can_be_shown_after_its_device_was_lost():
    fake = DiesAfter(2)
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X) * 2
        x.numpy()
        ys.eval(ys.asarray(X) * 3)
        ys.eval(ys.asarray(X) * 5)
        assert x.device.name == "cpu"
        assert "Tensor(" in repr(x)


def test_on_fallback_error_holds_in_quarantine_too():
    with installed(DiesAfter(0)) as name, ys.options(device=name, on_fallback="error"):
        for _ in range(2):
            with pytest.raises(ys.errors.DeviceFailure):
                ys.eval(ys.asarray(X) * 2)


def test_whatever_a_device_raises_is_its_failure():
    class Buggy(FakeDevice):
        def before_run(self, region):
            raise RuntimeError("driver bug")

    with installed(Buggy()) as name, ys.options(device=name):
        np.testing.assert_array_equal((ys.asarray(X) * 2).numpy(), X * 2)


def test_replicas_of_a_device_that_keeps_being_lost_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(health_module, "EXPIRES_AFTER", 0.0)

    class Flaky(FakeDevice):
        def before_run(self, region):
            self.runs += 1
            if self.runs % 3 == 0:
                raise DeviceLost("again")

    with installed(Flaky()) as name, ys.options(device=name):
        x = ys.asarray(X)
        for _ in range(12):
            ys.eval(x * 2)
        assert len(x._node.buffer.spaces()) <= 2


FORKED = """
import os, numpy as np, yosegi as ys
x = ys.asarray(np.ones(1 << 20, np.float32)) * 2
ys.eval(x)                                   # on the first device there is
child = os.fork()
if child == 0:
    ok = float(ys.sum(x * 3)) == 6.0 * (1 << 20) and x.numpy()[5] == 2.0
    os._exit(0 if ok else 1)
print(os.waitpid(child, 0)[1], float(ys.sum(x)))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_works_on_the_host():
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, env=environment, timeout=60, check=True
    )
    assert done.stdout.split() == ["0", str(2.0 * (1 << 20))]


@pytest.mark.parametrize("dies_after", [31, 32, 33, 40])
def test_a_device_that_dies_when_the_history_of_a_jitted_loop_is_cut(dies_after):
    step = ys.jit(lambda x: x + 1)
    with installed(DiesAfter(dies_after)) as name, ys.options(device=name):
        x = ys.asarray(X)
        for _ in range(45):
            x = step(x)
        np.testing.assert_allclose(x.numpy(), X + 45, rtol=1e-6)


def test_a_kernel_that_ran_out_of_memory_is_not_compiled_again():
    fake = OutOfMemoryAt(1 << 20)
    f = ys.jit(lambda x: x * 2 + 1)
    with installed(fake) as name, ys.options(device=name):
        x = ys.asarray(X)
        f(x)
        held = ys.ones((1 << 16,)).to_device(name) * 2
        ys.eval(held)
        fake.nbytes = 0
        np.testing.assert_array_equal(f(x + 0).numpy(), X * 2 + 1)
        fake.nbytes = 1 << 20
        f(x)
    assert fake.trimmed
    assert fake.compiled.count("multiply+add") == 1


# Snapshots


class SlowToHost(DiesAfter):
    """Its copies to the host take until they are let go."""

    def __init__(self, steps=10**9):
        super().__init__(steps)
        self.may_copy = Event()
        self.copies = 0

    def to_host(self, data):
        self.may_copy.wait(10)
        self.copies += 1
        return super().to_host(data)


def loop(fake, name, steps):
    """A jitted training loop that reads nothing."""
    step = ys.jit(lambda p, x: ({"w": p["w"] * 0.5 + x, "b": [p["b"][0] + 1]}, ys.sum(p["w"])))
    p, x = {"w": ys.asarray(X), "b": [ys.asarray(X)]}, ys.asarray(X)
    for _ in range(steps):
        p, loss = step(p, x)
    return p, loss


def test_a_loop_does_not_wait_for_a_snapshot():
    fake = SlowToHost()
    before = ys.memory_stats()["snapshots"]["count"]
    with installed(fake) as name, ys.options(device=name):
        snapshots._next = 0.0
        p, _ = loop(fake, name, 60)
        assert fake.copies == 0  # one is under way, and the loop is over
        fake.may_copy.set()
        snapshots.wait()
        assert fake.copies > 0
        assert ys.memory_stats()["snapshots"]["count"] == before + 1
        assert trace.records[-1].ops == "snapshot for survival"
        np.testing.assert_allclose(p["b"][0].numpy(), X + 60, rtol=1e-5)


@pytest.mark.parametrize("more", [0, 1, 40])
def test_a_snapshot_ends_the_history(more):
    """After the device is lost, only what came after the snapshot is computed again."""
    fake = SlowToHost()
    fake.may_copy.set()
    with installed(fake) as name, ys.options(device=name):
        step = ys.jit(lambda x, y: (x + 1, y * 0.5))
        x, y = ys.asarray(X), ys.asarray(X)
        snapshots._next = 0.0
        for _ in range(32):
            x, y = step(x, y)
        snapshots.wait()
        snapshots._next = float("inf")
        for _ in range(more):
            x, y = step(x, y)
        fake.steps = 0
        depth, node = 0, x._node
        while node.inputs:
            node, depth = node.inputs[0], depth + 1
        assert depth <= 2 * more + 1
        np.testing.assert_allclose(x.numpy(), X + (32 + more), rtol=1e-5)
        np.testing.assert_allclose(y.numpy(), X * 0.5 ** (32 + more))
    snapshots._next = 0.0


def test_a_device_that_dies_during_a_snapshot():
    fake = SlowToHost()
    with installed(fake) as name, ys.options(device=name):
        snapshots._next = 0.0
        p, loss = loop(fake, name, 50)
        fake.steps = 0
        fake.may_copy.set()
        snapshots.wait()
        np.testing.assert_allclose(p["b"][0].numpy(), X + 50, rtol=1e-5)
        with ys.options(device="cpu"):
            same, same_loss = loop(fake, "cpu", 50)
        np.testing.assert_allclose(p["w"].numpy(), same["w"].numpy(), rtol=1e-6)
        np.testing.assert_allclose(float(loss), float(same_loss), rtol=1e-6)


def test_an_input_given_twice_and_results_never_read():
    fake = DiesAfter(20)
    with installed(fake) as name, ys.options(device=name):
        step = ys.jit(lambda a, b, unused: ((a + b, b), a))
        x = ys.asarray(X)
        for _ in range(19):
            (x, _), _ = step(x, x, {"k": x})
        assert not fake.is_dead
        for _ in range(3):
            (x, _), _ = step(x, x, {"k": x})
        np.testing.assert_allclose(x.numpy(), X * 2.0**22, rtol=1e-6)


def test_threads_train_on_a_device_that_dies(monkeypatch):
    fake = DiesAfter(150)
    step = ys.jit(lambda p: {"w": p["w"] + 1})
    with installed(fake) as name, ThreadPoolExecutor(4) as pool:

        def work(number):
            with ys.options(device=name):
                p = {"w": ys.asarray(X + number)}
                for _ in range(80):
                    p = step(p)
                np.testing.assert_allclose(p["w"].numpy(), X + number + 80, rtol=1e-5)

        list(pool.map(work, range(4)))
        assert fake.is_dead


@pytest.mark.parametrize("coalesces", [False, True])
def test_the_history_of_a_jitted_loop_is_bounded(coalesces):
    fake = FakeDevice()
    fake.coalesces = coalesces  # a plan of one step, or of several
    with installed(fake) as name, ys.options(device=name):
        p, _ = loop(fake, name, 1200)
        depth, node = 0, p["w"]._node
        while node.inputs:
            node, depth = node.inputs[0], depth + 1
        assert depth < 600  # two nodes for each call
        snapshots.wait()
    del p, node
    gc.collect()
    assert fake.live < 20 * X.nbytes
