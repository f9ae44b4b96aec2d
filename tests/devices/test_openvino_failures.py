"""What goes wrong with OpenVINO: libraries that are absent or end processes, wrong rows, compilers that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from openvino_regions import DEVICE, answering, needed, numbers, resolved, whole
from yosegi._run.child import ChildResult
from yosegi._run.device import Absent
from yosegi._run.drivers import Driver, Verdict, forget
from yosegi._run.health import health
from yosegi._run.trace import trace
from yosegi._tensor.dtype import bool_, int32
from yosegi.devices import openvino
from yosegi.devices.model import errors, models
from yosegi.devices.model.op_row import OpRow
from yosegi.devices.model.specimens import NOT_TRIED, region_of, specimens
from yosegi.devices.openvino import compiler, ops, probe
from yosegi.devices.openvino.op_row import DTYPES, SINGLE
from yosegi.errors import CompileFailure, DeviceLost, LaunchFailure, OutOfMemory


def test_without_the_library_it_is_absent_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openvino, "find_spec", lambda name: None)
    assert openvino.discover() == (Absent("openvino:0", "openvino is not installed; install yosegi[openvino]"),)


@needed
def test_a_library_that_ends_the_process_makes_it_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answers(function: str, *given: str) -> ChildResult:
        if function == "present":
            return ChildResult([["CPU", "a processor"], ["GPU", "a card"]])
        if function == "wrong_rows" and given[0] == "CPU":
            return ChildResult(failure="SIGILL", died=True)
        return ChildResult({"exp float32": "inf instead of nan"} if given[-1] == "float32" else {}) if given[
            0] == "GPU" and function == "wrong_rows" else ChildResult(None)  # fmt: skip

    calls = answering(monkeypatch, tmp_path, answers)
    for _ in range(2):
        absent, card = resolved()
        assert absent.reason.startswith("its driver is withdrawn since ")
        assert absent.reason.endswith("SIGILL; `yosegi devices --forget openvino:0` tries it again")
        assert (card.name, card.is_gpu, card.description) == ("openvino:1", True, "GPU: a card")
        reason = card.supports(whole(ys.exp(ys.asarray(numbers(3))))[0])
        assert reason == "its exp of float32 was wrong when it was tried here: inf instead of nan"
    assert len([c for c in calls if c[:2] == ("wrong_rows", "CPU")]) in (3, 4)  # in two processes
    assert [c for c in calls if c[0] == "reason_against"] == [("reason_against", "GPU", p) for p in ("f16", "bf16")]
    count = len(calls)
    assert forget("openvino:0") == 1
    resolved()
    assert len(calls) > count  # it is tried again


@needed
def test_a_dtype_that_ends_the_process_is_refused_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def answers(function: str, *given: str) -> ChildResult:
        if function == "present":
            return ChildResult([["CPU", "a processor"]])
        return ChildResult(failure="SIGILL", died=True) if given[-1] == "bool" else ChildResult({})

    answering(monkeypatch, tmp_path, answers)
    (device,) = resolved()
    logic, float32 = (ys.asarray(a) for a in (np.array([True]), numbers(1)))
    assert (
        device.supports(whole(logic & logic)[0]) == "its bitwise_and of bool was wrong when it was tried here: SIGILL"
    )
    assert device.supports(whole(float32 * float32)[0]) is None


@needed
def test_every_plugin_that_finds_something_is_a_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plugins = {"CPU": "a processor", "GPU.0": "a card", "GPU.1": "another card", "NPU": "a neural processor"}

    def answers(function: str, *given: str) -> ChildResult:
        if function == "present":
            return ChildResult([list(pair) for pair in plugins.items()])
        if function == "wrong_rows":
            return ChildResult({"add float32": "it computes in f16"} if given == ("NPU", "float32") else {})
        return ChildResult(None if given[0].startswith("GPU") else "no gain")

    answering(monkeypatch, tmp_path, answers)
    found = resolved()
    assert [d.name for d in found] == ["openvino:0", "openvino:1", "openvino:2", "openvino:3"]
    assert [d.models.compiler.plugin for d in found] == list(plugins)
    assert [d.is_gpu for d in found] == [False, True, True, False]
    assert [d.rank for d in found] == sorted(d.rank for d in found)
    assert all(description in d.description for d, description in zip(found, plugins.values(), strict=True))
    assert [len(d.limits.precisions) for d in found] == [0, 2, 2, 0]
    region = whole(ys.asarray(numbers(3)) + ys.asarray(numbers(3)))[0]
    reasons = [d.supports(region) for d in found]
    assert reasons == [None, None, None, "its add of float32 was wrong when it was tried here: it computes in f16"]


@needed
def test_a_crash_while_looking_for_plugins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answering(monkeypatch, tmp_path, lambda *call: ChildResult(failure="it ended the process with SIGSEGV", died=True))
    (absent,) = resolved()
    assert absent.reason == (
        "listing its plugins in a child process failed: it ended the process with SIGSEGV; "
        "`yosegi devices --forget openvino` tries again"
    )


@needed
def test_a_real_crash_in_the_qualification_is_survived(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(openvino, "_PROBE", "openvino_crashes")
    (absent,) = resolved()
    assert "it ended the process with SIGILL" in absent.reason


@needed
def test_a_compiler_that_kills_its_process_is_a_failed_compilation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Under `YOSEGI_ISOLATE=1`, as for any plugin that has crashed before, models are compiled in a child process."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("YOSEGI_ISOLATE", "1")
    driver = Driver(DEVICE.name, "a test")
    driver.verdict = Verdict()
    isolated = models.Models(DEVICE.name, compiler.PluginCompiler("CPU"), driver)
    region, data = whole(ys.tanh(x := ys.asarray(numbers(5, 7))) + x)
    np.testing.assert_allclose(isolated.get(region)(*data)[0], np.tanh(data[0]) + data[0], rtol=1e-5)
    assert driver.verdict == Verdict()
    monkeypatch.setattr(compiler.PluginCompiler, "proof", "openvino_crashes:prove")
    for number in range(5):
        region, data = whole(ys.tanh(ys.asarray(numbers(5, 8 + min(number, 3)))) * 3)
        with pytest.raises(CompileFailure, match="SIGKILL" if number < 3 else "3 crashes"):
            isolated.get(region)
    assert driver.absence is not None


def wrong_rows() -> dict[str, str]:
    """What a qualification of this machine's processor finds."""
    probe._device.cache_clear()
    return {row: how for dtype in DTYPES for row, how in probe.wrong_rows("CPU", dtype.name).items()}


@needed
def test_this_machines_rows_are_right() -> None:
    assert wrong_rows() == {}


@needed
def test_the_trial_finds_a_wrong_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(ops.ROWS, "exp", OpRow(lambda o, call, args: o.exp(args[0]), SINGLE))
    assert wrong_rows() == {"exp float32": "inf instead of nan"}


@needed
def test_every_row_is_tried_in_every_dtype_that_it_is_for() -> None:
    tried = {
        (n.call.op.name, d)
        for d in DTYPES
        for n in specimens(ops.TABLE, d)
        if DEVICE.supports(region_of([n])[0]) is None
    }
    wanted = {(name, d) for name, row in ops.ROWS.items() if name not in NOT_TRIED for d in row.dtypes}
    never = {("positive", bool_), *[(name, int32) for name in ("tril", "triu", "where")]}  # no such call, or refused
    never |= {(name, d) for name, d in wanted if name == "scaled_dot_product_attention" and d is bool_}  # its mask's
    assert wanted - tried == never


@needed
def test_a_row_that_a_plugin_does_not_compile_is_refused_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    real = compiler.translate

    def translate(region: Any) -> Any:
        if any(call.op.name == "erf" for call in region.calls):
            raise RuntimeError("Operation Erf is not supported")
        return real(region)

    monkeypatch.setattr(compiler, "translate", translate)
    assert wrong_rows() == {"erf float32": "[openvino:0] compiling erf: Operation Erf is not supported"}


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

    monkeypatch.setattr(compiler, "translate", fails)
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
