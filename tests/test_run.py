"""Evaluation: depth, sharing, threads, memory, plans."""

import gc
import logging
import re
import resource
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, installed
from yosegi._run.evaluate import PlanCache
from yosegi._run.memory import HOST
from yosegi._tensor.interchange import read
from yosegi._tensor.node import Node
from yosegi._tensor.op import REGISTRY
from yosegi.errors import ArgumentError


def chain(x, length):
    for _ in range(length):
        x = x + 1
    return x


def test_a_chain_of_100_000_ops_is_evaluated_in_linear_time():
    times = []
    for length in (10_000, 100_000):
        start = time.perf_counter()
        assert chain(ys.asarray([0.0]), length).tolist() == [float(length)]
        times.append(time.perf_counter() - start)
    print(f"\n10,000 ops: {times[0]:.2f} s; 100,000 ops: {times[1]:.2f} s; ratio {times[1] / times[0]:.1f}")
    assert times[1] < 30 * times[0]  # 10 when linear, 100 when quadratic


def test_a_deep_chain_is_differentiated_without_recursion():
    assert ys.grad(lambda x: ys.sum(chain(x, 20_000)))(ys.asarray([1.0, 2.0])).tolist() == [1.0, 1.0]


def test_what_a_function_returns_is_evaluated_as_it_is():
    x = ys.asarray([1.0, 2.0])
    y, z, w = x + 1, x * 2, x - 1
    ys.eval((y, {"z": z}), w)
    assert all(t._node.buffer is not None for t in (y, z, w))
    assert "multiply" in str(ys.explain([x * 3, x * 4]))
    for function in (ys.eval, ys.plan, ys.explain):
        with pytest.raises(ys.errors.ArgumentError, match=rf"\[{function.__name__}\] expected tensors, got ndarray"):
            function(x + 1, [np.ones(2)])


def test_a_deep_chain_that_is_never_evaluated_is_freed_without_recursion():
    x = chain(ys.asarray([0.0]), 100_000)
    del x
    gc.collect()


def test_eight_threads_get_right_results():
    shared = ys.asarray(np.arange(100.0))
    common = ys.exp(shared / 100)  # lazy: all threads evaluate it at once
    expected = np.exp(np.arange(100.0) / 100)

    def work(number):
        for i in range(150):
            y = (common * number + i) * (shared + number)
            np.testing.assert_allclose(y.numpy(), (expected * number + i) * (np.arange(100.0) + number))
            z = ys.sum(y[:: 1 + i % 7]) - common[i % 100]
            np.testing.assert_allclose(float(z), np.sum(y.numpy()[:: 1 + i % 7]) - expected[i % 100])
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == list(range(8))


def test_memory_is_flat_over_10_000_evaluations():
    x = ys.asarray(np.ones(1000))

    def evaluations(count):
        for i in range(count):
            y = ys.exp(x * 0.001 * i) - x[i % 10 :].sum()
            ys.eval(y)

    evaluations(2000)
    gc.collect()
    objects, peak = len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    evaluations(10_000)
    gc.collect()
    assert len(gc.get_objects()) - objects < 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 8 << 10  # KiB


def test_a_training_loop_keeps_no_history():
    gc.collect()
    before = sum(type(o) is Node for o in gc.get_objects())
    w = ys.asarray(np.ones(10))
    losses = []
    for _ in range(50):
        loss, g = ys.value_and_grad(lambda w: ys.sum((w - 3) ** 2) if float(ys.sum(w)) else ys.sum(w))(w)
        w = w - 0.1 * g
        ys.eval(w, loss)
        losses.append(loss)
    gc.collect()
    assert all(loss._node.inputs == () for loss in losses)
    assert sum(type(o) is Node for o in gc.get_objects()) - before < 100


def test_what_was_computed_is_not_computed_again(monkeypatch):
    calls = []
    exp = ys.exp.body
    monkeypatch.setattr(ys.exp, "body", lambda x: calls.append(1) or exp(x))
    h = ys.exp(ys.asarray(np.arange(5.0)) + 0.25)
    a, b = h + 1.25, h * 3
    np.testing.assert_allclose(a.numpy() - 1.25, b.numpy() / 3)
    assert h.numpy().shape == (5,)
    assert len(calls) == 1


def test_both_results_of_a_decomposition_come_from_one_run(monkeypatch):
    calls = []
    op = REGISTRY["qr"]
    body = op.body
    monkeypatch.setattr(op, "body", lambda x, **kw: calls.append(1) or body(x, **kw))
    x = np.random.default_rng(0).normal(size=(17, 3))
    q, r = ys.linalg.qr(ys.asarray(x))
    np.testing.assert_allclose(q.numpy() @ r.numpy(), x)
    assert len(calls) == 1


def test_an_unevaluated_tensor_is_one_value_however_often_it_is_read():
    rng = ys.random.default_rng(0)
    x = rng.normal((3,))
    y = x + 0.5
    np.testing.assert_array_equal(x.numpy() + 0.5, y.numpy())


def test_explain_says_what_runs_where():
    with ys.options(device="cpu"):
        y = ys.exp(ys.asarray([1.0, 2.0]) * 3)
        explanation = ys.explain(y)
        assert (
            str(explanation)
            == "step 0 on cpu: multiply exp\n  float64[2], float64[] → float64[2]\n  1 kernel: multiply+exp"
        )
    (step,) = explanation.to_json()["steps"]
    assert (step["device"], step["ops"], step["refused"]) == ("cpu", ["multiply", "exp"], [])
    ys.eval(y)
    assert str(ys.explain(y)) == "nothing to compute: the values are there"


def test_explain_says_which_step_reads_which():
    with installed(FakeDevice()) as name, ys.options(device=name):
        x = ys.asarray(np.arange(6.0, dtype=np.float32).reshape(2, 3))
        sorted_, flipped = ys.sort(x, axis=1), ys.flip(x, axis=0)
        steps = ys.explain(ys.sum(sorted_ * 2, axis=1) + (sorted_ @ flipped.T)[:, 0]).to_json()["steps"]
    readers = {" ".join(step["ops"]): step["reads"] for step in steps}
    named = [" ".join(step["ops"]) for step in steps]
    assert readers["sort"] == readers["flip"] == []
    assert readers["multiply sum"] == [named.index("sort")]
    assert named.index("sort") in readers["matmul"]
    assert {i for step in steps for i in step["reads"]} == set(range(len(steps) - 1))


def test_each_placement_is_logged(caplog):
    with caplog.at_level(logging.INFO, "yosegi"):
        ys.eval(ys.log1p(ys.asarray([0.123] * 17)) ** 3.7)
    assert [r.getMessage() for r in caplog.records] == ["log1p+pow on cpu"]


def test_an_unknown_device_is_refused_with_the_list():
    with pytest.raises(ArgumentError, match=r"\[device\] expected one of .*cpu, got 'quantum:0'"):
        ys.asarray([1.0]).to_device("quantum:0")
    with pytest.raises(ArgumentError, match=r"expected one of .*cpu"), ys.options(device="quantum:0"):
        pass


def test_every_listed_device_is_a_place_for_data():
    """The standard's words: a tensor that is made on a device, or brought there, says that it is there."""
    info = ys.__array_namespace_info__()
    with installed(FakeDevice()) as name:
        assert {"cpu", name} <= {d.name for d in info.devices()}
        assert info.default_device() in info.devices()
        assert isinstance(info.devices(), list)  # SciPy's tests append to it
        for device in info.devices():
            for made in (ys.zeros((2,), device=device), ys.asarray([1.0], device=device)):
                assert made.device is device
                assert made.to_device("cpu").device.name == "cpu"
            assert ys.from_dlpack(np.ones(3), device=device).device is device
            assert ys.ones((2,)).to_device(device).device is device


def test_a_device_that_computes_in_the_hosts_memory_is_no_place_for_data():
    """A tensor that was put there said that it was on the host's device."""
    tenant = FakeDevice()
    tenant.space = HOST
    with installed(tenant) as name:
        assert tenant in ys.devices()
        assert tenant not in ys.__array_namespace_info__().devices()
        with pytest.raises(
            ArgumentError, match=rf"\[to_device\] expected a device with a memory of its own, got {name}"
        ):
            ys.ones((2,)).to_device(tenant)
        with pytest.raises(ArgumentError, match=rf"\[asarray\] .*use options\(device='{name}'\)"):
            ys.asarray([1.0], device=name)
        with pytest.raises(ArgumentError, match=r"\[from_dlpack\] expected a device with a memory"):
            ys.from_dlpack(np.ones(3), device=name)


def test_the_plan_cache_lets_the_oldest_go():
    cache = PlanCache(limit=64 * 10)
    for n in range(20):
        cache.put((n, 0, 0), ys.plan(ys.asarray([1.0]) + n))
    assert len(cache) == 3
    assert cache.get((0, 0, 0)) is None


def test_a_result_lets_go_of_the_memory_it_was_cut_from():
    big = ys.zeros((1000, 1000)) + 0.5
    small = big[3, :10]
    for part in (small, big[3, 4]):
        array = read(part._node)
        owner = array if array.base is None else array.base
        assert owner.nbytes < 1000


def test_a_broadcast_result_is_a_real_array():
    assert ys.ones((3, 4)).numpy().strides == (32, 8)


def test_a_reused_buffer_shows_no_old_values():
    x = ys.asarray(np.arange(8.0))
    y = x + 0.5
    z = (y * 3 - 1) * y  # y is needed after y * 3: its memory must not be overwritten
    np.testing.assert_array_equal(z.numpy(), ((x.numpy() + 0.5) * 3 - 1) * (x.numpy() + 0.5))
    np.testing.assert_array_equal(x.numpy(), np.arange(8.0))
    flipped = ys.flip(x + 0.25)  # a view of an intermediate, alive while the intermediate is written to
    np.testing.assert_array_equal((flipped + (x + 0.25) * 2).numpy(), (x.numpy() + 0.25)[::-1] + (x.numpy() + 0.25) * 2)


def test_explain_shows_the_kernels_of_a_step():
    x = ys.asarray(np.ones((64, 64), np.float32))
    with ys.options(device="cpu"):
        explanation = ys.explain(ys.sum(ys.tanh(x @ x) + 1, axis=1), ys.sort(x))
    assert explanation.to_json()["steps"][0]["kernels"] == [["sort"], ["matmul"], ["tanh", "add", "sum"]]
    text = str(explanation)
    assert "  3 kernels, predicted by a prior:\n" in text
    shares = [
        int(share) for share in re.findall(r"^ +\d+\.\d{3} ms +(\d+)%  (?:sort|matmul|tanh\+add\+sum)$", text, re.M)
    ]
    assert len(shares) == 3
    assert abs(sum(shares) - 100) <= 2
    assert re.search("by class: (other|products|reductions) [0-9]+%, ", text)
    assert "tanh+add+sum" in explanation._repr_html_()
