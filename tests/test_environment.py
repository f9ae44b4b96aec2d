"""Environment variables that say what they cannot."""

import os
import subprocess
import sys

import pytest

from yosegi._tensor.environment import memory_limit, setting
from yosegi.errors import ArgumentError

TWICE = """
import yosegi as ys
for _ in range(2):
    try:
        print(float((ys.asarray([1.0, 2.0]) * 2).sum()))
    except ys.errors.YosegiError as error:
        print(type(error).__name__, error)
"""

EXPECTED = {
    "YOSEGI_BACKGROUND": "0 or 1",
    "YOSEGI_CALIBRATE": "0 or 1",
    "YOSEGI_CHECK": "0 or 1",
    "YOSEGI_DETERMINISTIC": "0 or 1",
    "YOSEGI_DISABLE_GPU": "0 or 1",
    "YOSEGI_ISOLATE": "0 or 1",
    "YOSEGI_LOG": "one of debug, info, warning, error, critical",
    "YOSEGI_MEMORY_LIMIT": "a size such as 512MB, or name=size pairs with commas between",
    "YOSEGI_PRECISION": "one of f32, f16, adaptive",
    "YOSEGI_THREADS": "a whole number of at least 1",
    "YOSEGI_TOL": "a positive number such as 1e-3",
}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["YOSEGI_MEMORY_LIMIT", "YOSEGI_LOG", "YOSEGI_DETERMINISTIC"])
def test_garbage_is_one_error_when_the_package_is_imported(name: str) -> None:
    done = run(TWICE, YOSEGI_DEVICE="cpu", **{name: "garbage"})
    fix = "correct the environment variable, or unset it"
    assert done.stderr.splitlines()[-1] == (
        f"yosegi.errors.ArgumentError: [options] expected {name} to be {EXPECTED[name]}, got 'garbage'; {fix}"
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_device_that_is_not_there_is_the_same_error_every_time() -> None:
    done = run(TWICE, YOSEGI_DEVICE="garbage")
    first, second = done.stdout.splitlines()
    assert first == second
    assert first.startswith("ArgumentError [device] expected one of cpu")
    assert "got 'garbage' from YOSEGI_DEVICE; `yosegi devices` lists all of this machine" in first


@pytest.mark.parametrize("name", EXPECTED)
def test_every_variable_names_itself(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "garbage")
    with pytest.raises(ArgumentError) as told:
        setting(name)
    assert str(told.value).startswith(f"[options] expected {name} to be {EXPECTED[name]}, got 'garbage'")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("YOSEGI_MEMORY_LIMIT", "-1MB"),
        ("YOSEGI_MEMORY_LIMIT", "inf"),
        ("YOSEGI_MEMORY_LIMIT", "nan"),
        ("YOSEGI_MEMORY_LIMIT", "1MB, b=much"),
        ("YOSEGI_MEMORY_LIMIT", "=1MB"),
        ("YOSEGI_MEMORY_LIMIT", "1MM"),
        ("YOSEGI_THREADS", "0"),
        ("YOSEGI_THREADS", "-2"),
        ("YOSEGI_TOL", "0"),
        ("YOSEGI_TOL", "inf"),
        ("YOSEGI_TOL", "nan"),
    ],
)
def test_what_cannot_be_meant(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(ArgumentError, match=name):
        setting(name)


@pytest.mark.parametrize(("text", "value"), [("1", True), ("TRUE", True), ("on", True), ("0", False), ("no", False)])
def test_flags(text: str, value: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CALIBRATE", text)
    assert setting("YOSEGI_CALIBRATE") is value


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in EXPECTED:
        monkeypatch.setenv(name, " ")
        assert setting(name, "default") == "default"


def test_limits_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_MEMORY_LIMIT", "a:0=512MB, b=2GiB")
    assert [memory_limit(name) for name in ("a:0", "a:1", "b:1")] == [512_000_000, None, 2 << 30]
    monkeypatch.setenv("YOSEGI_MEMORY_LIMIT", "1e6")
    assert memory_limit("c") == 1_000_000
