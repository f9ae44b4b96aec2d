"""The sizes of caches, from the system's files or calls, and where nobody tells them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from apple_doubles import sysctl_double
from yosegi.codegen.llvm.blocking import Caches
from yosegi.devices.cpu import caches as module


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    module.caches.cache_clear()
    yield
    module.caches.cache_clear()


def folder(root: Path, *indices: tuple[str, str, str]) -> Path:
    for n, (level, kind, size) in enumerate(indices):
        place = root / f"index{n}"
        place.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (place / name).write_text(f"{text}\n")
    return root


def test_the_files_of_linux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = folder(tmp_path, ("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "2048K"),
                  ("3", "Unified", "1G"))  # fmt: skip
    monkeypatch.setattr(module, "_SYSTEM", str(told))
    assert module.caches() == Caches(48 << 10, 2 << 20)


@pytest.mark.parametrize("size", ["", "many", "-"])
def test_files_that_tell_nothing(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYSTEM", str(folder(tmp_path, ("1", "Data", size))))
    assert module.caches() == Caches()


def test_a_level_that_is_not_told_is_no_smaller_than_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SYSTEM", str(folder(tmp_path, ("1", "Data", "1M"))))
    assert module.caches() == Caches(1 << 20, 1 << 20)


def test_a_system_without_such_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYSTEM", str(tmp_path / "nothing"))
    assert module.caches() == Caches()


def test_apples_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the fast cores, four of which share their second cache."""
    monkeypatch.setattr(module, "_SYSTEM", str(tmp_path / "nothing"))
    sysctl_double(monkeypatch, {
        "hw.perflevel0.l1dcachesize": 128 << 10, "hw.perflevel0.l2cachesize": 12 << 20, "hw.perflevel0.cpusperl2": 4,
        "hw.l1dcachesize": 64 << 10, "hw.l2cachesize": 4 << 20,
    })  # fmt: skip
    assert module.caches() == Caches(128 << 10, 3 << 20)


def test_apples_computers_with_intels_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SYSTEM", str(tmp_path / "nothing"))
    sysctl_double(monkeypatch, {"hw.l1dcachesize": 32 << 10, "hw.l2cachesize": 256 << 10})
    assert module.caches() == Caches(32 << 10, 256 << 10)


def test_this_machine() -> None:
    found = module.caches()
    assert 0 < found.first <= found.second
