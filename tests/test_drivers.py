"""Verdicts on drivers: what is refused, who is trusted, who is withdrawn, and what is remembered."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from yosegi._graph import decode
from yosegi._run import drivers
from yosegi._run.child import ChildResult, Closed, Worker
from yosegi._run.drivers import Driver, Verdict, forget, remembered
from yosegi.errors import CompileFailure

HERE = "test_drivers"


# What child processes do


def family(faults: dict[str, str], name: str) -> dict[str, str]:
    """A family of kernels that is right, wrong, or ends the process."""
    fault = faults.get(name, "")
    if fault == "crash":
        ctypes.string_at(0)
    if fault == "hang":
        time.sleep(60)
    if fault == "memory":
        bytearray(1 << 50)
    if fault == "raise":
        raise ValueError("the compiler is confused")
    return {name: fault} if fault else {}


def compiled(fault: str) -> str:
    """A program, or the end of the process."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    family({"": fault}, "")
    return "binary"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(drivers, "_FAMILY", 8.0)
    monkeypatch.setattr(drivers, "_PROOF", 8.0)
    return tmp_path


FAMILIES = [f"family {n}" for n in range(8)]


def qualified(faults: dict[str, str], version: str = "1") -> Driver:
    driver = Driver("some:0", f"version {version}")
    driver.qualified(lambda d: d.tried(f"{HERE}:family", [faults], FAMILIES))
    return driver


def verdict_of(driver: Driver) -> Verdict:
    assert driver.verdict is not None
    return driver.verdict


def test_a_good_driver_is_trusted_and_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict_of(qualified({})).is_trusted
    monkeypatch.setattr(Driver, "tried", lambda *_: pytest.fail("it was tried again"))
    assert verdict_of(qualified({})).is_trusted
    monkeypatch.setenv("YOSEGI_ISOLATE", "1")
    assert not verdict_of(qualified({})).is_trusted


def test_a_qualification_that_was_cut_off_is_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it took longer than programs run, and every program began it anew."""
    call, asked = Worker.call, []

    def cut_off(worker: Worker, function: str, *arguments: Any, timeout: float) -> ChildResult:
        if len(asked) == 5:
            raise Closed
        asked.append(arguments[-1])
        return call(worker, function, *arguments, timeout=timeout)

    monkeypatch.setattr(Worker, "call", cut_off)
    monkeypatch.setattr(drivers, "_WORKERS", 1)
    with pytest.raises(Closed):
        qualified({"family 2": "wrong"})
    monkeypatch.setattr(Worker, "call", call)
    later = Driver("some:0", "version 1")
    left: list[str] = []
    monkeypatch.setattr(Worker, "call", lambda w, f, *a, timeout: left.append(a[-1]) or call(w, f, *a, timeout=timeout))
    later.qualified(lambda d: d.tried(f"{HERE}:family", [{}], FAMILIES))
    assert (asked, left) == (FAMILIES[:5], FAMILIES[5:])
    assert list(verdict_of(later).refused) == ["family 2"]
    assert not later._progress.exists()


def test_another_version_is_tried_anew() -> None:
    qualified({})
    assert Driver("some:0", "version 2").verdict is None


def test_what_is_wrong_is_refused_and_says_nothing_of_the_rest() -> None:
    verdict = verdict_of(qualified({"family 2": "3 instead of 4", "family 5": "raise"}))
    assert verdict.refused == {"family 2": "3 instead of 4", "family 5": "ValueError: the compiler is confused"}
    assert not verdict.is_trusted  # what was not tried may be wrong, too: it is compared with the reference


@pytest.mark.parametrize(
    ("fault", "how"),
    [("crash", "it ended the process with SIGSEGV"), ("hang", "it did not return within 8 s"), ("memory", "Memory")],
)
def test_a_family_that_ends_the_process_is_lost_alone(fault: str, how: str) -> None:
    driver = qualified({"family 3": fault})
    verdict = verdict_of(driver)
    assert list(verdict.refused) == ["family 3"]
    assert how in verdict.refused["family 3"]
    assert not verdict.is_trusted
    assert len(verdict.crashes) == (fault != "memory")  # which the process survived
    assert driver.absence is None


def test_a_driver_that_gets_most_of_it_wrong_is_withdrawn() -> None:
    driver = qualified(dict.fromkeys(FAMILIES[:5], "3 instead of 4"))
    assert driver.absence is not None
    assert "5 of 8 families of kernels failed, family 0: 3 instead of 4" in driver.absence


def test_a_driver_that_crashes_too_often_is_withdrawn_until_it_is_forgotten() -> None:
    faults = dict.fromkeys(FAMILIES[1:6], "crash")
    driver = qualified(faults)
    assert driver.absence is not None
    assert "its driver is withdrawn since 20" in driver.absence
    assert driver.absence.endswith("SIGSEGV; `yosegi devices --forget some:0` tries it again")
    assert qualified({}).absence is not None  # it is remembered
    assert forget("some:0") == 1
    assert qualified({}).absence is None


def test_a_program_that_fails_is_not_tried_again(folder: Path) -> None:
    driver = qualified({})
    assert driver.prove("a program", "digest 1", f"{HERE}:compiled", "") == "binary"
    started = time.monotonic()
    for _ in range(3):
        with pytest.raises(CompileFailure, match=r"\[some:0\] compiling another in a child process: it did not return"):
            driver.prove("another", "digest 2", f"{HERE}:compiled", "hang")
    assert time.monotonic() - started < 15
    later = Driver("some:0", "version 1")  # in the next process
    with pytest.raises(CompileFailure, match="it did not return"):
        later.prove("another", "digest 2", f"{HERE}:compiled", "")
    assert later.prove("a third", "digest 3", f"{HERE}:compiled", "") == "binary"
    assert not verdict_of(later).is_trusted


@pytest.mark.parametrize("fault", ["crash", "kill"])
def test_programs_that_crash_withdraw_a_driver(fault: str) -> None:
    driver = qualified({})
    for number in range(5):
        with pytest.raises(CompileFailure, match="SIG" if number < 3 else "3 crashes"):
            driver.prove(f"program {number}", str(number), f"{HERE}:compiled", fault)
    assert driver.absence is not None


def test_a_program_that_is_refused_is_no_crash() -> None:
    driver = qualified({})
    for number in range(5):
        with pytest.raises(CompileFailure, match="the compiler is confused"):
            driver.prove("it", str(number), f"{HERE}:compiled", "raise")
    assert verdict_of(driver).is_trusted


def test_a_damaged_file_is_as_good_as_none(folder: Path) -> None:
    qualified({})
    (path,) = (folder / "drivers").glob("*.json")
    for text in ("nonsense", "[]", "{}", '{"format": 1}', '{"format": 1, "device": 3, "identity": 4, "crashes": 5}'):
        path.write_text(text)
        assert Driver("some:0", "version 1").verdict is None


def test_a_call_is_remembered_unless_it_was_late() -> None:
    calls: list[ChildResult] = []

    def call(outcome: ChildResult) -> Any:
        return lambda: calls.append(outcome) or outcome

    late = ChildResult(failure="it did not return", timed_out=True)
    assert remembered("list", "version 1", call(late), decode.items).failure == "it did not return"
    for _ in range(2):
        assert remembered("list", "version 1", call(ChildResult([1, 2])), decode.items).result == [1, 2]
    assert len(calls) == 2
    assert forget("list") == 1
