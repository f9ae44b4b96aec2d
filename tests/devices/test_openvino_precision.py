"""OpenVINO's lower precisions: what is asked of it, what is kept apart, and what a trial on a machine finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from openvino_regions import DEVICE, answering, needed, resolved, whole
from yosegi._run.child import ChildResult, attempt
from yosegi._run.device import device_named
from yosegi._tensor.precision import Precision
from yosegi.devices import openvino
from yosegi.devices.model import precisions
from yosegi.devices.model.models import Models
from yosegi.devices.openvino import library
from yosegi.devices.openvino.compiler import PluginCompiler
from yosegi.devices.openvino.device import OpenVINO
from yosegi.tools.cli import main

pytestmark = needed
RNG = np.random.default_rng(13)
PLUGIN = {"plugin": "CPU", "description": "a processor", "failure": None, "wrong": {}}


def product() -> Any:
    x, w = (ys.asarray(RNG.normal(size=(64, 64)).astype(np.float32)) for _ in range(2))
    return whole(x @ w)


# Settings and models


@pytest.mark.parametrize(
    ("precision", "hint"), [(Precision.FULL, "f32"), (Precision.F16, "f16"), (Precision.BF16, "bf16")]
)
def test_the_precision_is_part_of_the_settings(precision: Precision, hint: str) -> None:
    chosen = library.settings("CPU", precision)
    assert chosen["INFERENCE_PRECISION_HINT"] == hint
    assert chosen["EXECUTION_MODE_HINT"] == ("ACCURACY" if precision is Precision.FULL else "PERFORMANCE")


def survives(name: str) -> bool:
    """Whether a precision at least does not end the process here."""
    return not getattr(DEVICE, "_against", {}).get(name, "").startswith("a trial in a child process failed")


def test_models_and_blobs_of_each_precision_are_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not survives("bf16"):
        pytest.skip("bf16 ends the process on this machine")
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    own = Models("openvino:0", PluginCompiler("CPU"))
    region, data = product()
    full, reduced = own.get(region), own.get(replace(region, precision=Precision.BF16))
    assert full is not reduced
    assert own.get(replace(region, precision=Precision.BF16)) is reduced
    assert len(list((tmp_path / "openvino").glob("*.blob"))) == 2
    again = Models("openvino:0", PluginCompiler("CPU"))
    exact = data[0].astype(np.float64) @ data[1]
    for model in (full, again.get(region)):
        assert np.max(np.abs(model(*data)[0] - exact)) < 1e-4
    hint = reduced._request.request.get_compiled_model().get_property("INFERENCE_PRECISION_HINT")
    if "bfloat16" in str(hint):
        assert np.max(np.abs(reduced(*data)[0] - exact)) > 1e-3
    assert np.max(np.abs(reduced(*data)[0] - exact)) < 0.02 * np.max(np.abs(exact))
    assert (again.compiled, again.loaded) == (0, 1)


def test_a_precision_that_did_not_come_through_its_trial_is_refused() -> None:
    device = OpenVINO("CPU", 0, "a processor", {}, {"bf16": "no gain: 0.5 of float32's speed"})
    region, _ = product()
    assert device.limits.precisions == {Precision.F16}
    assert device.supports(region) is None
    assert device.supports(replace(region, precision=Precision.F16)) is None
    assert device.supports(replace(region, precision=Precision.BF16)) == "no bf16: no gain: 0.5 of float32's speed"
    assert device.supports(replace(region, precision=Precision.TF32)) == "no tf32: it has no such precision"
    assert device.description == "CPU: a processor; no bf16: no gain: 0.5 of float32's speed"


def test_a_precision_is_used_only_for_those_who_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    if not survives("bf16"):
        pytest.skip("bf16 ends the process on this machine")
    here: Any = next(d for d in ys.devices() if d.name == DEVICE.name)
    limits = replace(here.limits, precisions=frozenset({Precision.BF16}))  # as if it had gained by it
    monkeypatch.setattr(here, "limits", limits)
    x, w = (RNG.normal(size=(64, 64)).astype(np.float32) for _ in range(2))
    f = ys.jit(lambda x: ys.exp(x) @ ys.asarray(w))
    exact = np.exp(x.astype(np.float64)) @ w
    errors = {}
    for precision in ("f32", "f16"):
        with ys.options(device=DEVICE.name, precision=precision, on_fallback="error"):
            errors[precision] = np.max(np.abs(f(ys.asarray(x)).numpy() - exact)) / np.max(np.abs(exact))
    plans = [replay.plan.explain().to_json()["steps"] for replay in f._replays.values()]
    assert [step["precision"] for (step,) in plans] == ["full", "bf16"]
    assert [step["actual"]["device"] for (step,) in plans] == [DEVICE.name] * 2
    assert errors["f32"] < 1e-6
    assert errors["f16"] < 0.02


# The trial


def test_each_precision_is_tried_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = {"present": ChildResult([["CPU", "a processor"]]), "f16": ChildResult(None),
               "bf16": ChildResult(failure="it ended the process with SIGILL", died=True)}  # fmt: skip
    answering(monkeypatch, tmp_path, lambda *call: answers.get(call[-1], ChildResult({})))
    for _ in range(2):  # found out, and from the file
        (device,) = resolved()
        assert device.limits.precisions == {Precision.F16}
        assert "no bf16: a trial in a child process failed: it ended the process with SIGILL" in device.description


def test_a_precision_that_ends_its_process_takes_nothing_else_along(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(openvino, "_PROBE", "openvino_precision_crashes")
    (device,) = resolved()
    assert device.limits.precisions == frozenset()
    region, data = product()
    reason = "no bf16: a trial in a child process failed: it ended the process with SIGILL"
    assert device.supports(replace(region, precision=Precision.BF16)) == reason
    np.testing.assert_allclose(device.compile(region)(*data)[0], data[0] @ data[1], rtol=1e-4, atol=1e-4)


def test_the_command_line_shows_the_reasons(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    assert main(["devices", "--verbose"]) == 0
    shown = capsys.readouterr().out
    present: Any = device_named(DEVICE.name)
    for name, reason in present._against.items():
        assert f"no {name}: {reason}" in shown


class Staged:
    """A device whose lower precision is as good and as fast as a test wants."""

    def __init__(self, *, off: float = 0.0, same: bool = False, slower: float = 0.2) -> None:
        self.off, self.same, self.slower = off, same, slower
        self.now = 0.0

    def compile(self, region: Any) -> Any:
        (call,) = region.calls
        w = region.graph.calls[1].attrs["array"].astype(np.float64)
        is_full = region.precision is Precision.FULL

        def kernel(x: Any) -> Any:
            self.now += 1.0 if is_full else self.slower
            exact = precisions.bind(call)(x.astype(np.float64), w)
            error = 0.0 if is_full or self.same else self.off + 1e-5
            return ((exact + error * np.max(np.abs(exact))).astype(np.float32),)

        return kernel


@pytest.mark.parametrize(
    ("staged", "reason"),
    [
        (Staged(), None),
        (Staged(off=0.1), "its matrix product was off by 1e-01 of the largest value when it was tried here"),
        (Staged(off=float("nan")), "its matrix product was off by nan of the largest value when it was tried here"),
        (Staged(same=True), "it computes in float32 all the same"),
        (Staged(slower=2.0), "no gain: 0.5 of float32's speed for a matrix product, 0.5 of float32's speed for a "
                             "convolution"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_what_a_trial_finds(monkeypatch: pytest.MonkeyPatch, staged: Staged, reason: str | None, name: str) -> None:
    monkeypatch.setattr("yosegi._tune.timing.perf_counter", lambda: staged.now)
    assert precisions.reason_against(staged, name) == reason


def test_this_machine_has_the_precisions_that_came_through() -> None:
    for precision in library.REDUCED:
        outcome = attempt(f"{openvino._PROBE}:reason_against", "CPU", precision.value)
        came_through = outcome.failure is None and outcome.result is None
        if not came_through or precision not in DEVICE.limits.precisions:  # a gain may be small, and noise
            reason = outcome.failure or outcome.result or ""
            assert (precision in DEVICE.limits.precisions) == came_through or "no gain" in reason
