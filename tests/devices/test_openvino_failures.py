"""What goes wrong with OpenVINO: libraries that are absent or end processes, wrong rows, compilers that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from openvino_regions import DEVICE, needed, numbers, whole
from yosegi.device import Absent
from yosegi.devices import openvino
from yosegi.devices.openvino import errors, models, ops, probe
from yosegi.devices.openvino.rows import DTYPES, SINGLE, Row
from yosegi.devices.openvino.specimens import NOT_TRIED, region_of, specimens
from yosegi.dtype import bool_, int32
from yosegi.errors import DeviceLost, LaunchFailure, OutOfMemory
from yosegi.health import health
from yosegi.trace import trace
from yosegi.trial import Outcome


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
