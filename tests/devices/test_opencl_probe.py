"""OpenCL drivers are listed and qualified in child processes, and the verdicts are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyopencl", reason="pyopencl is not installed")

import yosegi as ys
from opencl_regions import DEVICE, run
from yosegi._run.child import ChildResult
from yosegi._run.device import Absent, Pending
from yosegi._run.drivers import Driver, Verdict
from yosegi._tensor.dtype import ALL
from yosegi.devices import opencl
from yosegi.devices.kernel.qualification import families
from yosegi.devices.opencl import library, probe

needed = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))


@needed
def test_the_drivers_of_this_machine_are_listed() -> None:
    assert DEVICE._number < len(probe.listing())


@needed
@pytest.mark.parametrize("family", ["loops float32", "reductions float32", "movement 8 bytes"])
def test_a_family_is_right_on_the_device_that_qualified(family: str) -> None:
    assert family in families(frozenset(ALL))
    assert probe.check(DEVICE._number, family) == {}


@needed
def test_a_kernel_that_is_wrong_loses_its_family_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ys.asarray([1.0, 2.0], dtype=ys.float32)
    monkeypatch.setattr(DEVICE, "_driver", _driver(Verdict(refused={"loops float64": "2 instead of 3"})))
    (region,) = _regions(ys.sin(ys.astype(x, ys.float64)))
    assert DEVICE.supports(region) == "its loops float64 failed when the driver was qualified: 2 instead of 3"
    assert run(ys.sin(x), device=DEVICE)[0].shape == (2,)


def _regions(tensor: Any) -> list[Any]:
    from opencl_regions import regions

    return regions(tensor)


def _driver(verdict: Verdict) -> Driver:
    driver = Driver("opencl:9", "a test")
    driver.verdict = verdict
    return driver


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The calls in child processes, all of which crash."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    made: list[str] = []
    outcome = ChildResult(failure="it ended the process with SIGILL", died=True)
    monkeypatch.setattr(opencl, "attempt", lambda function: made.append(function) or outcome)
    return made


def test_drivers_that_crash_when_they_are_listed_make_it_absent(calls: list[str]) -> None:
    for _ in range(2):
        (absent,) = opencl.discover()
        assert isinstance(absent, Absent)
        assert absent.reason == (
            "listing the drivers in a child process failed: it ended the process with SIGILL; "
            "`yosegi devices --forget opencl` tries again"
        )
    assert calls == ["yosegi.devices.opencl.probe:listing"]


def test_the_list_is_of_the_drivers_that_are_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = library.registered()
    (tmp_path / "new.icd").write_text("libnew.so")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    assert library.registered() != before


def test_a_cache_folder_that_cannot_be_written_changes_nothing(
    calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", "/proc/nowhere")
    for _ in range(2):
        assert [d.name for d in opencl.discover()] == ["opencl:0"]
    assert len(calls) == 2


def test_a_new_driver_is_pending_and_a_withdrawn_one_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    entry = {"description": "a driver", "identity": "version 1", "is_gpu": True, "has_doubles": False}
    monkeypatch.setattr(opencl, "attempt", lambda function: ChildResult([entry]))
    (pending,) = opencl.discover()
    assert isinstance(pending, Pending)
    assert (pending.name, pending.description, pending.is_gpu) == ("opencl:0", "a driver", True)
    tried: list[str] = []

    def crashing(self: Driver, function: str, arguments: Any, families: list[str]) -> Verdict:
        tried.extend(families)
        return Verdict(failure="3 crashes, the last in loops float32: SIGSEGV")

    monkeypatch.setattr(Driver, "tried", crashing)
    for found in (pending.resolved(), *opencl.discover()):  # found out, and from the file
        assert isinstance(found, Absent)
        assert "3 crashes, the last in loops float32: SIGSEGV; `yosegi devices --forget opencl:0`" in found.reason
    assert "loops float32" in tried
    assert "loops float64" not in tried  # it has no doubles
