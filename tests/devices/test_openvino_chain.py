"""OpenVINO among other devices: several threads and processes, replays, and what it gets of a program."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from caches import seeded
from openvino_regions import DEVICE, in_a_process, needed, numbers
from yosegi._run.background import background
from yosegi._run.device import discovered
from yosegi._run.health import health
from yosegi._run.trace import trace

pytestmark = needed


# Threads, replays, processes


def test_many_threads_share_a_model() -> None:
    w = ys.asarray(numbers(64, 64))
    f = ys.jit(lambda x: ys.tanh(x @ w) @ w)
    inputs = [numbers(32, 64) for _ in range(40)]

    def work(a: Any) -> Any:
        with ys.options(device=DEVICE.name):
            return f(ys.asarray(a)).numpy()

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, inputs))
    for a, result in zip(inputs, results, strict=True):
        np.testing.assert_allclose(result, np.tanh(a @ w.numpy()) @ w.numpy(), rtol=1e-3, atol=1e-3)


def test_a_replay_that_is_one_model_is_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    w = ys.asarray(numbers(16, 16))
    f = ys.jit(lambda x: ys.tanh(x @ w))
    x = ys.asarray(numbers(8, 16))
    with ys.options(device=DEVICE.name):
        first = f(x).numpy()
        (replay,) = f._replays.values()
        step = replay.plan.sole_step
        assert [c.device.name for c in step.kernels] == [DEVICE.name]
        ran = len(trace.records)
        np.testing.assert_array_equal(f(x).numpy(), first)
        assert len(trace.records) == ran

        def fails(*data: Any) -> Any:
            raise RuntimeError("Check failed")

        monkeypatch.setattr(step.kernels[step.candidate], "_request", fails)
        np.testing.assert_allclose(f(x).numpy(), first, rtol=1e-5)
        assert (trace.records[-1].device, trace.records[-1].failures[0].kind) == ("cpu", "LaunchFailure")
        np.testing.assert_allclose(f(x).numpy(), first, rtol=1e-5)
        assert trace.records[-1].failures[0].kind == "quarantined"
    health.clear()


def test_a_replay_of_several_results_beside_a_number_is_called_directly() -> None:
    w = ys.asarray(numbers(16, 16))
    f = ys.jit(lambda x, unused: (ys.tanh(x @ w), x - 1))
    x = ys.asarray(numbers(8, 16))
    with ys.options(device=DEVICE.name):
        f(x, 2.0)
        ran = len(trace.records)
        product, rest = f(x, 3.0)
        assert len(trace.records) == ran
    np.testing.assert_allclose(product.numpy(), np.tanh(x.numpy() @ w.numpy()), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(rest.numpy(), x.numpy() - 1)


FORKED = """
import os, sys, warnings
import numpy as np, yosegi as ys
warnings.simplefilter("ignore")
x = ys.asarray(np.ones((50, 50), np.float32))
f = ys.jit(lambda x: ys.tanh(x @ x))
with ys.options(device="openvino:0", background=False):
    expected = f(x).numpy()
    child = os.fork()
    if child == 0:
        assert np.allclose(f(x).numpy(), expected)
        from yosegi._run.trace import trace
        assert trace.records[-1].device == "cpu"
        sys.exit(0)  # with all that goes with it
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_works_and_ends() -> None:
    assert in_a_process(FORKED) == "0"


ENDING = """
import numpy as np, yosegi as ys
w = [ys.asarray(np.random.rand(64, 64).astype(np.float32)) for _ in range(30)]
def f(x):
    for m in w: x = ys.tanh(x @ m)
    return x
f = ys.jit(f)
x = ys.asarray(np.ones((8, 64), np.float32))
with ys.options(device="openvino:0", background=True):
    f(x); f(x)
print("ending", flush=True)
"""


def test_a_process_ends_well_while_a_model_is_compiled(tmp_path: Path) -> None:
    real = {"YOSEGI_CACHE_DIR": seeded(tmp_path)}
    in_a_process("import yosegi as ys; ys.devices()", **real)
    assert in_a_process(ENDING, **real) == "ending"


# In the chain


def test_another_serves_while_it_compiles() -> None:
    a, w = numbers(16, 48), ys.asarray(numbers(48, 48))
    f = ys.jit(lambda x: ys.tanh(x @ w) * 7)
    served = []
    with ys.options(device=DEVICE.name, background=True):
        for n in range(4):
            result = f(ys.asarray(a)).numpy()
            served.append(trace.records[-1].device)
            np.testing.assert_allclose(result, np.tanh(a @ w.numpy()) * 7, rtol=1e-3, atol=1e-4)
            if n == 2:
                background.wait()
    assert (served[0], served[-1]) == ("cpu", DEVICE.name)


def test_sixty_layers_with_an_op_that_it_lacks_do_not_go_back_and_forth() -> None:
    with ys.options(device=DEVICE.name):
        x = ys.asarray(numbers(16, 16))
        for _ in range(60):
            x = ys.sort(ys.tanh(x @ x), axis=-1)
        (step,) = ys.plan(x).steps
        assert step.device.name == "cpu"
        reasons = [reason for name, reason in step.refused if name == DEVICE.name]
        assert reasons == ["too little work to cover the launch cost", "its TopK has no place for NaN"]


def test_what_comes_first_without_a_name() -> None:
    names = [d.name for d in ys.devices()]
    assert names.index(DEVICE.name) < names.index("cpu")
    assert all(names.index(DEVICE.name) < names.index(n) for n in names if n.startswith("opencl"))
    x, w = ys.asarray(numbers(64, 512)), ys.asarray(numbers(512, 512))
    with ys.options(device="auto"):
        assert ys.plan(ys.exp(x) * 2).steps[0].device.name != DEVICE.name
        assert ys.plan(x @ w).steps[0].device.name != DEVICE.name
        model = ys.jit(lambda x: ys.tanh(ys.tanh(x @ w) @ w))
        model(x)
        assert trace.records[-1].device == DEVICE.name
        small = ys.jit(lambda x: ys.tanh(ys.tanh(x @ w[:4, :4]) @ w[:4, :4]))
        small(x[:4, :4])
        assert next(iter(small._replays.values())).plan.steps[0].device.name == "cpu"


def test_it_is_found_among_the_devices() -> None:
    assert any(getattr(d, "name", "") == DEVICE.name for d in discovered())
    assert DEVICE.memory()[1] > 0
    assert "openvino:0" in repr(DEVICE)
