"""OpenVINO's memory and settings: it works on whatever arrays there are, and computes as we say."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from openvino_regions import DEVICE, in_a_process, needed, numbers, run, whole
from yosegi._run.trace import trace
from yosegi.devices.openvino import library

pytestmark = needed


def program(x: Any) -> Any:
    return ys.tanh(x @ x.T) * 2 + 1


# Memory


def test_inputs_are_read_and_outputs_written_where_they_lie() -> None:
    a, b = numbers(64, 32), numbers(32, 16)
    x, y = ys.asarray(a, copy=False), ys.asarray(b, copy=False)
    region, data = whole(ys.exp(x @ y), x @ y)
    model = DEVICE.compile(region)
    for _ in range(3):
        results = model(*data)
        request = model._request.request
        given = {request.get_input_tensor(n).data.ctypes.data for n in range(2)}
        made = [request.get_output_tensor(n).data.ctypes.data for n in range(2)]
        assert given == {a.ctypes.data, b.ctypes.data}
        assert made == [r.ctypes.data for r in results]
        np.testing.assert_allclose(results[1], a @ b, rtol=1e-4, atol=1e-5)


def test_memory_that_may_only_be_read_is_read_where_it_lies() -> None:
    a = np.frombuffer(numbers(8, 8).tobytes(), np.float32).reshape(8, 8)
    region, data = whole(ys.asarray(a, copy=False) * 2)
    model = DEVICE.compile(region)
    np.testing.assert_array_equal(model(*data)[0], a * 2)
    assert model._request.request.get_input_tensor(0).data.ctypes.data == a.ctypes.data


def test_a_jitted_function_works_on_the_users_memory() -> None:
    a, w = numbers(2, 8, 12, 12), ys.asarray(numbers(8, 8, 3, 3))
    f = ys.jit(lambda x: ys.nn.conv2d(x, w, padding=1))
    x = ys.asarray(a, copy=False)
    with ys.options(device=DEVICE.name, on_fallback="error"):
        for _ in range(3):
            result = np.asarray(f(x))
            (replay,) = f._replays.values()
            step = replay.plan.sole_step
            request = step.kernels[step.candidate]._request.request
            assert request.get_input_tensor(0).data.ctypes.data == a.ctypes.data
            assert request.get_output_tensor(0).data.ctypes.data == result.ctypes.data


class Counted:
    """A request that counts how often its tensors are set."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.inputs = self.outputs = 0

    def set_input_tensor(self, n: int, tensor: Any) -> None:
        self.inputs += 1
        self._request.set_input_tensor(n, tensor)

    def set_output_tensor(self, n: int, tensor: Any) -> None:
        self.outputs += 1
        self._request.set_output_tensor(n, tensor)


def test_tensors_are_bound_anew_only_for_other_memory() -> None:
    region, data = whole(ys.asarray(numbers(40, 40)) * ys.asarray(numbers(40, 40)))
    model = DEVICE.compile(region)
    model(*data)
    counted = model._request.request = Counted(model._request.request)
    for _ in range(3):  # the same arrays, and results that nobody keeps
        np.testing.assert_array_equal(model(*data)[0], data[0] * data[1])
    assert (counted.inputs, counted.outputs) == (0, 0)
    kept = [model(data[0], other)[0] for other in (numbers(40, 40), numbers(40, 40))]
    assert counted.inputs == 2  # those that are new
    assert counted.outputs == 1  # the first of two that are kept has the memory of those before
    np.testing.assert_array_equal(model(*data)[0], data[0] * data[1])
    assert counted.inputs == 3
    assert not np.shares_memory(*kept)
    np.testing.assert_array_equal(model(data[0][::-1], data[1])[0], data[0][::-1] * data[1])


def test_inputs_are_never_written() -> None:
    a = numbers(50, 40)
    kept = a.copy()
    x = ys.asarray(a, copy=False)
    run(ys.exp(-ys.abs(x)) * x + 1, ys.reshape(x, (-1,)), ys.maximum(x, 0))
    np.testing.assert_array_equal(a, kept)


def test_results_of_two_calls_are_two_arrays() -> None:
    region, data = whole(ys.asarray(numbers(100, 100)) * 3)
    model = DEVICE.compile(region)
    first, second = model(*data)[0], model(*data)[0]
    assert not np.shares_memory(first, second)
    kept = first.copy()
    model(-data[0], *data[1:])
    np.testing.assert_array_equal(first, kept)


def test_the_memory_of_results_is_used_again() -> None:
    region, data = whole(ys.asarray(numbers(300, 300)) * 3)
    model = DEVICE.compile(region)
    address = model(*data)[0].ctypes.data
    assert model(*data)[0].ctypes.data == address
    assert DEVICE.trim() >= 300 * 300 * 4


def test_an_output_that_is_an_input_is_the_input() -> None:
    x = ys.asarray(numbers(5))
    region, data = whole(+x, +x * 2, simplified=False)
    same, twice = DEVICE.compile(region)(*data)
    assert same is data[0]
    np.testing.assert_array_equal(twice, data[0] * 2)
    only, data = whole(+x, simplified=False)
    assert DEVICE.compile(only)(*data)[0] is data[0]


def test_nothing_is_transferred() -> None:
    before = ys.memory_stats()["transfers"]
    with ys.options(device=DEVICE.name, on_fallback="error"):
        assert str(program(ys.asarray(numbers(20, 20))).device) == "cpu"  # its memory is the host's
        ys.eval(program(ys.asarray(numbers(20, 20))))
    assert trace.records[-1].device == DEVICE.name
    assert trace.records[-1].bytes_moved == 0
    assert ys.memory_stats()["transfers"] == before


def test_constants_are_part_of_the_model() -> None:
    w = ys.asarray(numbers(30, 30))
    f = ys.jit(lambda x: ys.tanh(x @ w + 0.25))
    x = numbers(4, 30)
    with ys.options(device=DEVICE.name, on_fallback="error"):
        result = f(ys.asarray(x)).numpy()
    np.testing.assert_allclose(result, np.tanh(x @ w.numpy() + np.float32(0.25)), rtol=1e-4, atol=1e-5)
    assert "float32[4, 30] → float32[4, 30]" in str(next(iter(f._replays.values())).plan.explain())


def test_a_limit_on_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = next(d for d in ys.devices() if d.name == DEVICE.name)
    real.trim()  # what other tests have left there
    monkeypatch.setattr(real.models.pool, "limit", 10_000)
    with ys.options(device=DEVICE.name):
        np.testing.assert_allclose((ys.asarray(np.ones((100, 100), np.float32)) * 2).numpy(), 2)
    assert trace.records[-1].device == "cpu"
    assert {f.kind for f in trace.records[-1].failures} == {"OutOfMemory"}


# Settings


def test_the_precision_is_always_ours() -> None:
    chosen = library.settings("CPU")
    assert chosen["INFERENCE_PRECISION_HINT"] == "f32"
    assert chosen["EXECUTION_MODE_HINT"] == "ACCURACY"
    assert chosen["NUM_STREAMS"] == "1"
    region, _ = whole(ys.asarray(numbers(4)) * 2)
    compiled = DEVICE.compile(region)._request.request.get_compiled_model()
    assert "float" in str(compiled.get_property("INFERENCE_PRECISION_HINT"))
    assert "16" not in str(compiled.get_property("INFERENCE_PRECISION_HINT"))


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("YOSEGI_THREADS", raising=False)
    if hasattr(os, "sched_getaffinity"):
        assert library.threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("YOSEGI_THREADS", "3")
    assert library.settings("CPU")["INFERENCE_NUM_THREADS"] == "3"


def test_looking_for_devices_does_not_load_it_and_loading_reports_to_nobody() -> None:
    code = (
        "import sys, yosegi as ys; ys.devices(); assert 'openvino' not in sys.modules; "
        "from yosegi.devices.openvino.library import openvino; openvino(); "
        "print(any('telemetry' in m and sys.modules[m] and 'stub' not in m and 'ovc' not in m for m in sys.modules))"
    )
    assert in_a_process(code) == "False"
