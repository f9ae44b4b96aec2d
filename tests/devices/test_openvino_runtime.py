"""OpenVINO as a device: whose memory it works on, how many models live, what is kept on disk, and what goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from openvino_regions import DEVICE, run, whole
from yosegi.background import background
from yosegi.device import Absent, discovered
from yosegi.devices import openvino
from yosegi.devices.openvino import errors, library, models, ops, probe
from yosegi.devices.openvino.models import Models
from yosegi.devices.openvino.rows import DTYPES, SINGLE, Row
from yosegi.devices.openvino.specimens import NOT_TRIED, region_of, specimens
from yosegi.dtype import bool_, int32
from yosegi.errors import CompileFailure, DeviceLost, LaunchFailure, OutOfMemory
from yosegi.health import health
from yosegi.store import sealed
from yosegi.trace import trace
from yosegi.trial import Outcome

needed = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))
RNG = np.random.default_rng(3)


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def program(x: Any) -> Any:
    return ys.tanh(x @ x.T) * 2 + 1


# Memory -------------------------------------------------------------------------------------------------------------


@needed
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


@needed
def test_memory_that_may_only_be_read_is_read_where_it_lies() -> None:
    a = np.frombuffer(numbers(8, 8).tobytes(), np.float32).reshape(8, 8)
    region, data = whole(ys.asarray(a, copy=False) * 2)
    model = DEVICE.compile(region)
    np.testing.assert_array_equal(model(*data)[0], a * 2)
    assert model._request.request.get_input_tensor(0).data.ctypes.data == a.ctypes.data


@needed
def test_a_jitted_function_works_on_the_users_memory() -> None:
    a, w = numbers(2, 8, 12, 12), ys.asarray(numbers(8, 8, 3, 3))
    f = ys.jit(lambda x: ys.nn.conv2d(x, w, padding=1))
    x = ys.asarray(a, copy=False)
    with ys.options(device=DEVICE.name):
        for _ in range(3):
            result = np.asarray(f(x))
            (replay,) = f._replays.values()
            request = replay.plan.sole_step.kernels[DEVICE.name]._request.request
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


@needed
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


@needed
def test_inputs_are_never_written() -> None:
    a = numbers(50, 40)
    kept = a.copy()
    x = ys.asarray(a, copy=False)
    run(ys.exp(-ys.abs(x)) * x + 1, ys.reshape(x, (-1,)), ys.maximum(x, 0))
    np.testing.assert_array_equal(a, kept)


@needed
def test_results_of_two_calls_are_two_arrays() -> None:
    region, data = whole(ys.asarray(numbers(100, 100)) * 3)
    model = DEVICE.compile(region)
    first, second = model(*data)[0], model(*data)[0]
    assert not np.shares_memory(first, second)
    kept = first.copy()
    model(-data[0], *data[1:])
    np.testing.assert_array_equal(first, kept)


@needed
def test_the_memory_of_results_is_used_again() -> None:
    region, data = whole(ys.asarray(numbers(300, 300)) * 3)
    model = DEVICE.compile(region)
    address = model(*data)[0].ctypes.data
    assert model(*data)[0].ctypes.data == address
    assert DEVICE.trim() >= 300 * 300 * 4


@needed
def test_an_output_that_is_an_input_is_the_input() -> None:
    x = ys.asarray(numbers(5))
    region, data = whole(+x, +x * 2, simplified=False)
    same, twice = DEVICE.compile(region)(*data)
    assert same is data[0]
    np.testing.assert_array_equal(twice, data[0] * 2)
    only, data = whole(+x, simplified=False)
    assert DEVICE.compile(only)(*data)[0] is data[0]


@needed
def test_nothing_is_transferred() -> None:
    before = ys.memory_stats()["transfers"]
    with ys.options(device=DEVICE.name):
        assert str(program(ys.asarray(numbers(20, 20))).device) == "cpu"  # its memory is the host's
        ys.eval(program(ys.asarray(numbers(20, 20))))
    assert trace.records[-1].device == DEVICE.name
    assert trace.records[-1].bytes_moved == 0
    assert ys.memory_stats()["transfers"] == before


@needed
def test_constants_are_part_of_the_model() -> None:
    w = ys.asarray(numbers(30, 30))
    f = ys.jit(lambda x: ys.tanh(x @ w + 0.25))
    x = numbers(4, 30)
    with ys.options(device=DEVICE.name):
        result = f(ys.asarray(x)).numpy()
    np.testing.assert_allclose(result, np.tanh(x @ w.numpy() + np.float32(0.25)), rtol=1e-4, atol=1e-5)
    assert "float32[4, 30] → float32[4, 30]" in str(next(iter(f._replays.values())).plan.explain())


@needed
def test_a_limit_on_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = next(d for d in ys.devices() if d.name == DEVICE.name)
    real.trim()  # what other tests have left there
    monkeypatch.setattr(real.models.pool, "limit", 10_000)
    with ys.options(device=DEVICE.name):
        np.testing.assert_allclose((ys.asarray(np.ones((100, 100), np.float32)) * 2).numpy(), 2)
    assert trace.records[-1].device == "cpu"
    assert {f.kind for f in trace.records[-1].failures} == {"OutOfMemory"}


# Settings -----------------------------------------------------------------------------------------------------------


@needed
def test_the_precision_is_always_ours() -> None:
    chosen = library.settings("CPU")
    assert chosen["INFERENCE_PRECISION_HINT"] == "f32"
    assert chosen["EXECUTION_MODE_HINT"] == "ACCURACY"
    assert chosen["NUM_STREAMS"] == "1"
    region, _ = whole(ys.asarray(numbers(4)) * 2)
    compiled = DEVICE.compile(region)._request.request.get_compiled_model()
    assert "float" in str(compiled.get_property("INFERENCE_PRECISION_HINT"))
    assert "16" not in str(compiled.get_property("INFERENCE_PRECISION_HINT"))


@needed
def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("YOSEGI_THREADS", raising=False)
    if hasattr(os, "sched_getaffinity"):
        assert library.threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("YOSEGI_THREADS", "3")
    assert library.settings("CPU")["INFERENCE_NUM_THREADS"] == "3"


@needed
def test_looking_for_devices_does_not_load_it_and_loading_reports_to_nobody() -> None:
    code = (
        "import sys, yosegi as ys; ys.devices(); assert 'openvino' not in sys.modules; "
        "from yosegi.devices.openvino.library import openvino; openvino(); "
        "print(any('telemetry' in m and sys.modules[m] and 'stub' not in m and 'ovc' not in m for m in sys.modules))"
    )
    assert in_a_process(code) == "False"


def in_a_process(code: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Models: how many live, and those on disk ---------------------------------------------------------------------------


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Models:
    """Models with a cache of their own."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return Models("openvino:0", "CPU")


@needed
def test_regions_that_are_the_same_work_share_a_model(own: Models) -> None:
    made = [own.get(whole(ys.asarray(numbers(3)) * ys.asarray(numbers(3)))[0]) for _ in range(2)]
    assert made[0] is made[1]
    assert own.compiled == 1


@needed
def test_only_so_many_models_live(own: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "LIVE", 3)
    regions = [whole(ys.asarray(np.full(n + 1, 2, np.float32)) * ys.asarray(numbers(n + 1))) for n in range(5)]
    made = [own.get(region) for region, _ in regions]
    assert own.live() == made[2:]
    monkeypatch.setattr(models, "SOON", 0.0)
    for (_, data), model in zip(regions, made, strict=True):  # those put away come back
        np.testing.assert_array_equal(model(*data)[0], data[0] * data[1])
    assert len(own.live()) == 3
    assert own.loaded > 0


@needed
def test_models_that_would_take_turns_are_left_to_another_device(own: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "LIVE", 1)
    (first, data), (second, _) = (whole(ys.asarray(numbers(n)) * 2) for n in (3, 4))
    put_away = own.get(first)
    kept = own.get(second)
    with pytest.raises(CompileFailure, match="models are in use"):
        put_away(*data)
    assert kept.is_live


@needed
def test_a_model_goes_with_the_last_who_needs_it(own: Models) -> None:
    model = own.get(whole(ys.asarray(numbers(3)) * 2)[0])
    assert own.live() == [model]
    del model
    assert own.live() == []


SECOND = """
import numpy as np, yosegi as ys
from yosegi.device import device_named
w = ys.asarray(np.arange(64, dtype=np.float32).reshape(8, 8))
f = ys.jit(lambda x: ys.tanh(x @ w) * 2)
with ys.options(device="openvino:0", background=False):
    y = f(ys.asarray(np.ones((4, 8), np.float32))).numpy()
m = device_named("openvino:0").models
print(m.compiled, m.loaded, float(y.sum()))
"""


@needed
def test_the_next_process_compiles_nothing(tmp_path: Path) -> None:
    first, second = (in_a_process(SECOND, YOSEGI_CACHE_DIR=str(tmp_path)).split() for _ in range(2))
    assert (first[:2], second[:2]) == (["1", "0"], ["0", "1"])
    assert first[2] == second[2]


@needed
@pytest.mark.parametrize(
    "damage", [lambda b: b"", lambda b: b[:100], lambda b: b[:-50] + bytes(50), lambda b: bytes(len(b))]
)
def test_a_damaged_blob_is_compiled_again(own: Models, tmp_path: Path, damage: Any) -> None:
    region, data = whole(ys.exp(ys.asarray(numbers(9))))
    expected = own.get(region)(*data)[0].copy()
    (blob,) = (tmp_path / "openvino").glob("*.blob")
    blob.write_bytes(damage(blob.read_bytes()))
    again = Models("openvino:0", "CPU")
    np.testing.assert_array_equal(again.get(region)(*data)[0], expected)
    assert (again.compiled, again.loaded) == (1, 0)


@needed
def test_a_blob_that_openvino_does_not_take_is_compiled_again(own: Models, tmp_path: Path) -> None:
    region, data = whole(ys.exp(ys.asarray(numbers(9))))
    own.get(region)
    (blob,) = (tmp_path / "openvino").glob("*.blob")
    sealed(blob, b"not a model")
    again = Models("openvino:0", "CPU")
    assert again.get(region)(*data)[0].shape == (9,)
    assert (again.compiled, again.loaded) == (1, 0)


@needed
def test_blobs_of_other_constants_are_other_blobs(own: Models, tmp_path: Path) -> None:
    for n in (2.0, 3.0):
        x = ys.asarray(np.ones(4, np.float32))
        region, data = whole(x * (ys.arange(4, dtype=ys.float32) + n))
        np.testing.assert_array_equal(own.get(region)(*data)[0], np.arange(4) + n)
    assert len(list((tmp_path / "openvino").glob("*.blob"))) == 2


# What goes wrong ----------------------------------------------------------------------------------------------------


def test_without_the_library_it_is_absent_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: None)
    assert openvino.discover() == (Absent("openvino:0", "openvino is not installed; install yosegi[openvino]"),)


@needed
def test_a_library_that_ends_the_process_makes_it_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    trials = []
    outcomes = {("present",): Outcome([["CPU", "a processor"], ["GPU", "a card"]]),
                ("wrong_rows", "CPU"): Outcome(failure="SIGILL"),
                ("wrong_rows", "GPU"): Outcome({"exp float32": "inf instead of nan"})}  # fmt: skip

    def attempt(function: str, *arguments: str) -> Outcome:
        trials.append((function.partition(":")[2], *arguments))
        return outcomes.get(trials[-1], Outcome(None))

    monkeypatch.setattr(probe, "attempt", attempt)
    for _ in range(2):
        absent, card = openvino.discover()
        assert absent == Absent("openvino:0", "CPU: a trial in a child process failed: SIGILL")
        assert (card.name, card.is_gpu, card.description) == ("openvino:1", True, "GPU: a card")
        reason = card.supports(whole(ys.exp(ys.asarray(numbers(3))))[0])
        assert reason == "its exp of float32 was wrong when it was tried here: inf instead of nan"
    tried = [("present",), ("wrong_rows", "CPU"), ("wrong_rows", "GPU")]
    assert trials == [*tried, *[("reason_against", "GPU", p) for p in ("f16", "bf16")]]  # the verdict is kept
    outcomes["wrong_rows", "CPU"] = Outcome({})
    monkeypatch.setattr(probe, "_FAILED_FOR", 0.0)  # but a failure not for ever: the machine may have been too busy
    assert [d.name for d in openvino.discover() if not isinstance(d, Absent)] == ["openvino:0", "openvino:1"]


@needed
def test_every_plugin_that_finds_something_is_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    plugins = {"CPU": "a processor", "GPU.0": "a card", "GPU.1": "another card", "NPU": "a neural processor"}

    def attempt(function: str, *arguments: str) -> Outcome:
        if function.endswith(":present"):
            return Outcome([list(pair) for pair in plugins.items()])
        if function.endswith(":wrong_rows"):
            return Outcome({"add float32": "it computes in f16"} if arguments == ("NPU",) else {})
        return Outcome(None if arguments[0].startswith("GPU") else "no gain")

    monkeypatch.setattr(probe, "attempt", attempt)
    found = list(openvino.discover())
    assert [d.name for d in found] == ["openvino:0", "openvino:1", "openvino:2", "openvino:3"]
    assert [d.models.plugin for d in found] == list(plugins)
    assert [d.is_gpu for d in found] == [False, True, True, False]
    assert [d.rank for d in found] == sorted(d.rank for d in found)
    assert all(description in d.description for d, description in zip(found, plugins.values(), strict=True))
    assert [len(d.limits.precisions) for d in found] == [0, 2, 2, 0]
    region = whole(ys.asarray(numbers(3)) + ys.asarray(numbers(3)))[0]
    reasons = [d.supports(region) for d in found]
    assert reasons == [None, None, None, "its add of float32 was wrong when it was tried here: it computes in f16"]


@needed
def test_a_crash_while_looking_for_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(probe, "attempt", lambda function: Outcome(failure="it ended the process with SIGSEGV"))
    expected = "a trial in a child process failed: it ended the process with SIGSEGV"
    assert openvino.discover() == (Absent("openvino:0", expected),)


@needed
def test_a_real_crash_in_the_trial_is_survived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(probe, "_HERE", "openvino_crashes")
    (absent,) = openvino.discover()
    assert absent.reason == "CPU: a trial in a child process failed: it ended the process with SIGILL"


@needed
def test_this_machines_rows_are_right() -> None:
    assert probe.wrong_rows("CPU") == {}


@needed
def test_the_trial_finds_a_wrong_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(ops.ROWS, "exp", Row(lambda o, call, args: o.exp(args[0]), SINGLE))
    assert probe.wrong_rows("CPU") == {"exp float32": "inf instead of nan"}


@needed
def test_every_row_is_tried_in_every_dtype_that_it_is_for() -> None:
    tried = {(n.call.op.name, d) for d in DTYPES for n in specimens(d) if DEVICE.supports(region_of([n])[0]) is None}
    wanted = {(name, d) for name, row in ops.ROWS.items() if name not in NOT_TRIED for d in row.dtypes}
    never = {("positive", bool_), *[(name, int32) for name in ("tril", "triu", "where")]}  # no such call, or refused
    never |= {(name, d) for name, d in wanted if name == "scaled_dot_product_attention" and d is bool_}  # its mask's
    assert wanted - tried == never


@needed
def test_a_row_that_a_plugin_does_not_compile_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = models.translate

    def translate(region: Any) -> Any:
        if any(call.op.name == "erf" for call in region.calls):
            raise RuntimeError("Operation Erf is not supported")
        return real(region)

    monkeypatch.setattr(models, "translate", translate)
    assert probe.wrong_rows("CPU") == {"erf float32": "[openvino:0] compiling erf: Operation Erf is not supported"}


@needed
def test_what_openvino_raises_is_a_failure_of_the_right_class() -> None:
    cases = {
        "Exception from a:1\nstd::bad_alloc": OutOfMemory, "Failed to allocate 8 bytes": OutOfMemory,
        "[GPU] CL_DEVICE_NOT_AVAILABLE": DeviceLost, "Check failed\nunsupported": LaunchFailure,
    }  # fmt: skip
    for text, kind in cases.items():
        with pytest.raises(kind) as told, errors.translated(LaunchFailure, "running"):
            raise RuntimeError(text)
        assert str(told.value) == f"running: {text.splitlines()[-1]}"
    with pytest.raises(OutOfMemory), errors.translated(LaunchFailure, "running"):
        raise MemoryError


@needed
@pytest.mark.parametrize(("text", "kind"), [("internal error", "CompileFailure"), ("bad_alloc", "OutOfMemory")])
def test_a_compiler_that_fails_moves_the_work_on(monkeypatch: pytest.MonkeyPatch, text: str, kind: str) -> None:
    def fails(*args: Any) -> Any:
        raise RuntimeError(text)

    monkeypatch.setattr(models, "translate", fails)
    a = numbers(7, 7)
    with ys.options(device=DEVICE.name):
        result = (ys.cos(ys.asarray(a)) * 1.25).numpy()
    np.testing.assert_allclose(result, np.cos(a) * 1.25, rtol=1e-5)
    assert trace.records[-1].device == "cpu"
    assert trace.records[-1].failures[0].kind == kind
    health.clear()


@needed
def test_a_device_that_is_lost_leaves_the_hosts_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = next(d for d in ys.devices() if d.name == DEVICE.name)
    a = numbers(6, 6)
    with ys.options(device=real):
        kept = ys.asarray(a) * 2
        ys.eval(kept)
        f = ys.jit(lambda x: x + 1)
        f(kept)

        def gone(*data: Any) -> Any:
            raise DeviceLost("it fell off the bus")

        monkeypatch.setattr(models.Model, "__call__", gone)
        np.testing.assert_array_equal(f(kept).numpy(), a * 2 + 1)
    assert real.space == "host"
    np.testing.assert_array_equal(kept.numpy(), a * 2)
    health.clear()


@needed
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


@needed
def test_a_replay_that_is_one_model_is_called_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    w = ys.asarray(numbers(16, 16))
    f = ys.jit(lambda x: ys.tanh(x @ w))
    x = ys.asarray(numbers(8, 16))
    with ys.options(device=DEVICE.name):
        first = f(x).numpy()
        (replay,) = f._replays.values()
        assert set(replay.plan.sole_step.kernels) == {DEVICE.name}
        ran = len(trace.records)
        np.testing.assert_array_equal(f(x).numpy(), first)
        assert len(trace.records) == ran

        def fails(*data: Any) -> Any:
            raise RuntimeError("Check failed")

        monkeypatch.setattr(replay.plan.sole_step.kernels[DEVICE.name], "_request", fails)
        np.testing.assert_allclose(f(x).numpy(), first, rtol=1e-5)
        assert (trace.records[-1].device, trace.records[-1].failures[0].kind) == ("cpu", "LaunchFailure")
        np.testing.assert_allclose(f(x).numpy(), first, rtol=1e-5)
        assert trace.records[-1].failures[0].kind == "quarantined"
    health.clear()


@needed
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
        from yosegi.trace import trace
        assert trace.records[-1].device == "cpu"
        sys.exit(0)  # with all that goes with it
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@needed
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


@needed
def test_a_process_ends_well_while_a_model_is_compiled(tmp_path: Path) -> None:
    real = {"YOSEGI_CACHE_DIR": str(tmp_path)}
    in_a_process("import yosegi as ys; ys.devices()", **real)
    assert in_a_process(ENDING, **real) == "ending"


# In the chain -------------------------------------------------------------------------------------------------------


@needed
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


@needed
def test_sixty_layers_with_an_op_that_it_lacks_do_not_go_back_and_forth() -> None:
    with ys.options(device=DEVICE.name):
        x = ys.asarray(numbers(16, 16))
        for _ in range(60):
            x = ys.sort(ys.tanh(x @ x), axis=-1)
        (step,) = ys.plan(x).steps
        assert step.device.name == "cpu"
        assert dict(step.refused)[DEVICE.name] in ("its TopK has no place for NaN", "a piece of 2 ops with so little "
                                                   "work is not worth a call")  # fmt: skip


@needed
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


@needed
def test_it_is_found_among_the_devices() -> None:
    assert any(getattr(d, "name", "") == DEVICE.name for d in discovered())
    assert DEVICE.memory()[1] > 0
    assert "openvino:0" in repr(DEVICE)
