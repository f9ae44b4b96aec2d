"""The fastest of several ways, if it is right: candidates that are wrong, fail, tie, or were chosen before."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forks import holds_in_a_fork
from values import Array
from yosegi.choice import Choices, Kernel, Trial, disagreement, size_class

X = np.arange(1000, dtype=np.float32)


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return tmp_path


def twice(x: Array) -> tuple[Array]:
    return (x + x,)


def slowly(kernel: Kernel, seconds: float = 0.002) -> Callable[[], Kernel]:
    def call(*arguments: Any) -> Any:
        time.sleep(seconds)
        return kernel(*arguments)

    return lambda: call


TRIAL = Trial(lambda: (X,), twice)


def test_the_fastest_is_chosen_and_its_kernel_works() -> None:
    chosen = Choices("here").best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
    assert chosen.verdict.winner == "fast"
    assert chosen.verdict.seconds["slow"] > 0.002 > chosen.verdict.seconds["fast"]
    assert chosen.kernel is not None
    assert np.array_equal(chosen.kernel(X)[0], 2 * X)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: (np.zeros_like(x),),
        lambda x: (x + x + (x == 999),),
        lambda x: ((x + x).astype(np.float64),),
        lambda x: ((x + x)[:-1],),
        lambda x: (x + x, x),
        lambda x: (np.where(x == 500, np.nan, x + x).astype(np.float32),),
    ],
    ids=["zeros", "one element", "another dtype", "another shape", "one result more", "not a number"],
)
def test_a_fast_and_wrong_one_is_never_kept(wrong: Kernel) -> None:
    choices = Choices("here")
    candidates = {"wrong": lambda: wrong, "right": slowly(twice)}
    for _ in range(2):
        chosen = choices.best("twice", candidates, TRIAL)
        assert chosen.verdict.winner == "right"
        assert list(chosen.verdict.refused) == ["wrong"]
    alone = choices.best("alone", {"wrong": lambda: wrong}, TRIAL)
    assert (alone.kernel, alone.verdict.winner, list(alone.verdict.refused)) == (None, None, ["wrong"])


def test_one_that_writes_nothing_finds_no_result_in_its_memory() -> None:
    rng = np.random.default_rng(0)
    candidates = {"right": slowly(twice), "idle": lambda: lambda x: (np.empty_like(x),)}
    for n in range(5):
        chosen = Choices("here").best(str(n), candidates, Trial(lambda: (rng.random(1000),), twice))
        assert chosen.verdict.winner == "right"


def test_one_that_fails_is_dropped_with_the_reason() -> None:
    def cannot() -> Kernel:
        raise MemoryError("too little")

    calls = iter(range(3))

    def fails_later(x: Array) -> tuple[Array]:
        if next(calls, None) is None:
            raise RuntimeError("tired")
        return twice(x)

    def fails(x: Array) -> tuple[Array]:
        raise ValueError("never")

    candidates = {"no": cannot, "bad": lambda: fails, "tired": lambda: fails_later, "good": lambda: twice}
    chosen = Choices("here").best("twice", candidates, TRIAL)
    assert chosen.verdict.winner == "good"
    assert chosen.verdict.refused == {
        "no": "MemoryError: too little", "bad": "ValueError: never", "tired": "RuntimeError: tired",
    }  # fmt: skip
    nobody = Choices("here").best("nothing", {"no": cannot, "bad": lambda: fails}, TRIAL)
    assert (nobody.kernel, nobody.verdict.winner, set(nobody.verdict.refused)) == (None, None, {"no", "bad"})
    again = Choices("here").best("nothing", {"no": lambda: twice}, TRIAL)
    assert again.verdict.winner == "no", "that all have failed is not remembered"


def test_among_equals_the_first_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yosegi.choice.perf_counter", count(step=1e-3).__next__)  # whatever is timed takes as long
    for names in (["a", "b", "c"], ["c", "b", "a"]):
        chosen = Choices("here").best("".join(names), dict.fromkeys(names, lambda: twice), TRIAL)
        assert chosen.verdict.winner == names[0]
        assert set(chosen.verdict.seconds) == set(names)


def test_one_slow_turn_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate that the machine holds up in its first turn, and that is the fastest in all others."""
    clock = [0.0]
    monkeypatch.setattr("yosegi.choice.perf_counter", lambda: clock[0])

    def taking(seconds: Callable[[], float]) -> Callable[[], Kernel]:
        def kernel(x: Array) -> tuple[Array]:
            clock[0] += seconds()
            return twice(x)

        return lambda: kernel

    turns = count()
    candidates = {"steady": taking(lambda: 0.02), "held up": taking(lambda: 0.01 if next(turns) > 2 else 1.0)}
    assert Choices("here").best("twice", candidates, TRIAL).verdict.winner == "held up"


def test_a_choice_is_remembered_here_and_on_disk() -> None:
    def never() -> list[Any]:
        raise AssertionError("measured again")

    candidates = {"slow": slowly(twice), "fast": lambda: twice}
    choices = Choices("here")
    choices.best("twice", candidates, TRIAL)
    for known in (choices, Choices("here")):
        chosen = known.best("twice", candidates, Trial(never, twice))
        assert chosen.verdict.winner == "fast"
        assert set(chosen.verdict.seconds) == {"slow", "fast"}
    for identity, kind in (("elsewhere", "twice"), ("here", "thrice")):
        with pytest.raises(AssertionError, match="measured again"):
            Choices(identity).best(kind, candidates, Trial(never, twice))


def test_a_winner_that_is_gone_or_fails_now_is_chosen_anew() -> None:
    def cannot() -> Kernel:
        raise OSError("no longer")

    Choices("here").best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
    chosen = Choices("here").best("twice", {"slow": slowly(twice), "other": slowly(twice, 0.006)}, TRIAL)
    assert chosen.verdict.winner == "slow"
    chosen = Choices("here").best("twice", {"slow": cannot, "other": slowly(twice)}, TRIAL)
    assert (chosen.verdict.winner, chosen.verdict.refused) == ("other", {"slow": "OSError: no longer"})


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"winner": "slow"}', b'{"winner": 1, "seconds": 2}', b"\xff"])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_damaged_file_is_set_aside(content: bytes, is_sealed: bool, folder: Path) -> None:
    choices = Choices("here")
    candidates = {"slow": slowly(twice), "fast": lambda: twice}
    choices.best("twice", candidates, TRIAL)
    (path,) = (folder / "choices").iterdir()
    if is_sealed:
        choices._stored.put(path.stem, content)
    else:
        path.write_bytes(content)
    chosen = Choices("here").best("twice", candidates, TRIAL)
    assert chosen.verdict.winner == "fast"
    assert sorted(p.suffix for p in (folder / "choices").iterdir()) == [".bin", ".damaged"]


def test_the_file_is_readable(folder: Path) -> None:
    choices = Choices("here")
    choices.best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
    (path,) = (folder / "choices").iterdir()
    found = json.loads(choices._stored.get(path.stem) or b"")
    assert (found["kind"], found["winner"]) == ("twice", "fast")


def test_a_folder_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", "/proc/nowhere")
    chosen = Choices("here").best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
    assert chosen.verdict.winner == "fast"


def test_threads_do_not_measure_each_other() -> None:
    inside = threading.Lock()

    def alone(x: Array) -> tuple[Array]:
        assert inside.acquire(blocking=False), "somebody else was measuring"
        time.sleep(1e-4)
        inside.release()
        return twice(x)

    choices = Choices("here")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: choices.best(str(n % 2), {"a": lambda: alone, "b": lambda: alone}, TRIAL),
                             range(8)))  # fmt: skip
    assert not any(m.verdict.refused for m in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_can_choose() -> None:
    choices = Choices("here")
    with choices._lock:
        assert holds_in_a_fork(lambda: choices.best("twice", {"only": lambda: twice}, TRIAL).verdict.winner == "only")


def test_what_counts_as_the_same() -> None:
    x = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert disagreement([x], [x], 1) is None
    assert disagreement([x], [x + np.float32(1e-6)], 1) is not None
    assert disagreement([x], [x + np.float32(1e-6)], 64) is None
    for place, value in ((1, 0.0), (2, np.nan), (3, np.inf), (0, np.nan)):
        other = x.copy()
        other[place] = value
        reason = disagreement([x], [other], 64)
        assert reason is not None
        assert f"at ({place},)" in reason
    many = np.zeros(200_000, np.float32)
    stray = many.copy()
    stray[:2] = 1
    assert disagreement([many + 1], [stray + 1], 1) is None
    stray[:3] = 1
    assert disagreement([many + 1], [stray + 1], 1) is not None
    assert disagreement([np.array([1, 2])], [np.array([1, 3])], 1e9) is not None
    assert disagreement([np.float32(2)], [np.float32(2)], 1) is None


def test_classes_of_sizes() -> None:
    assert size_class(1000, 1000) == size_class(1024, 1050)
    assert size_class(512) != size_class(1024)
    assert size_class(0, 1) != size_class(1, 1)
