"""A driver that ends the process is found out in a child, and the verdict is kept."""

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

from yosegi.devices.opencl import discover, probe
from yosegi.trial import Outcome


def test_the_drivers_of_this_machine_survive():
    assert probe.probe() != []


def test_a_driver_that_crashes_makes_the_device_absent(monkeypatch, tmp_path):
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    trials = []
    outcome = Outcome(failure="it ended the process with SIGILL")
    monkeypatch.setattr(probe, "attempt", lambda function: trials.append(function) or outcome)
    for _ in range(2):
        (absent,) = discover()
        assert absent.reason == "a trial in a child process failed: it ended the process with SIGILL"
    assert trials == ["yosegi.devices.opencl.probe:probe"]


def test_the_verdict_is_about_the_drivers_that_are_installed(monkeypatch, tmp_path):
    before = probe._registered()
    (tmp_path / "new.icd").write_text("libnew.so")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    assert probe._registered() != before


def test_a_cache_folder_that_cannot_be_written_changes_nothing(monkeypatch):
    monkeypatch.setenv("YOSEGI_CACHE_DIR", "/proc/nowhere")
    monkeypatch.setattr(probe, "attempt", lambda function: Outcome(result=["a device"]))
    assert probe.verdict() is None
