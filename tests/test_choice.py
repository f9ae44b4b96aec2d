"""The fastest of several ways, if it is right: candidates that are wrong, fail, tie, or were chosen before."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from forks import holds_in_a_fork
from values import Array
from yosegi._tune import records
from yosegi._tune.autotune import Kernel, TrialSetup
from yosegi._tune.comparison import disagreement
from yosegi._tune.records import Tuned, TuningRecords, adopting, decisions, size_class
from yosegi.errors import CompileFailure, NoSuchVariant, OutOfMemory

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


TRIAL = TrialSetup(lambda: (X,), twice)


def reasons(chosen: Tuned) -> dict[str, str]:
    return {name: refusal.reason for name, refusal in chosen.verdict.refused.items()}


def test_the_fastest_is_chosen_and_its_kernel_works() -> None:
    chosen = TuningRecords("here").best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
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
    choices = TuningRecords("here")
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
        chosen = TuningRecords("here").best(str(n), candidates, TrialSetup(lambda: (rng.random(1000),), twice))
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
    chosen = TuningRecords("here").best("twice", candidates, TRIAL)
    assert chosen.verdict.winner == "good"
    assert reasons(chosen) == {
        "no": "MemoryError: too little", "bad": "ValueError: never", "tired": "RuntimeError: tired",
    }  # fmt: skip
    nobody = TuningRecords("here").best("nothing", {"no": cannot, "bad": lambda: fails}, TRIAL)
    assert (nobody.kernel, nobody.verdict.winner, set(nobody.verdict.refused)) == (None, None, {"no", "bad"})
    again = TuningRecords("here").best("nothing", {"no": lambda: twice}, TRIAL)
    assert again.verdict.winner == "no", "that all have failed is not remembered"


def test_want_of_memory_is_told_and_not_kept(folder: Path) -> None:
    class Exhausted(OutOfMemory):
        """A device's own."""

    failures = {"never": CompileFailure("no"), "full": OutOfMemory("no"), "own": Exhausted("no"), "host": MemoryError()}

    def fails(failure: Exception) -> Kernel:
        raise failure

    candidates: dict[str, Callable[[], Kernel]] = {name: partial(fails, f) for name, f in failures.items()}
    chosen = TuningRecords("here").best("twice", candidates | {"good": lambda: twice}, TRIAL)
    assert list(chosen.verdict.refused) == list(failures)
    later = TuningRecords("here").known("twice")
    assert later is not None
    assert list(later.refused) == ["never"]


def test_one_that_is_not_there_is_not_refused() -> None:
    def absent() -> Kernel:
        raise NoSuchVariant("there are two")

    chosen = TuningRecords("here").best("twice", {"third": absent, "good": lambda: twice}, TRIAL)
    assert (chosen.verdict.winner, chosen.verdict.refused) == ("good", {})


def test_among_equals_the_first_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("autotune", "timing"):  # everything that is timed takes as long
        monkeypatch.setattr(f"yosegi._tune.{module}.perf_counter", count(step=1e-3).__next__)
    for names in (["a", "b", "c"], ["c", "b", "a"]):
        chosen = TuningRecords("here").best("".join(names), dict.fromkeys(names, lambda: twice), TRIAL)
        assert chosen.verdict.winner == names[0]
        assert set(chosen.verdict.seconds) == set(names)


class Clock:
    """A clock that only moves when a kernel runs."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0

    def taking(self, seconds: Callable[[], float]) -> Callable[[], Kernel]:
        """A candidate that takes so long."""

        def kernel(x: Array) -> tuple[Array]:
            self.now += seconds()
            self.calls += 1
            return twice(x)

        return lambda: kernel


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in ("autotune", "timing"):
        monkeypatch.setattr(f"yosegi._tune.{module}.perf_counter", lambda: made.now)
    return made


def test_one_slow_turn_is_forgiven(clock: Clock) -> None:
    """A candidate that the machine holds up in its first turn, and that is the fastest in all others."""
    turns = count()
    candidates = {
        "steady": clock.taking(lambda: 0.02),
        "held up": clock.taking(lambda: 0.01 if next(turns) > 2 else 1.0),
    }
    assert TuningRecords("here").best("twice", candidates, TRIAL).verdict.winner == "held up"


def test_one_that_is_held_up_more_often_than_not_at_first_stays_in(clock: Clock) -> None:
    """A candidate that is the fastest but for the turns of its first rounds in which others used the machine."""
    turns = count()
    candidates = {
        "steady": clock.taking(lambda: 0.0012),
        "held up": clock.taking(lambda: 0.002 if next(turns) < 5 else 0.001),
    }
    verdict = TuningRecords("here").best("twice", candidates, TRIAL).verdict
    assert len(verdict.sittings[0]) == 5, "until it has shown what it can do"
    assert verdict.winner == "held up"


def test_one_lucky_turn_does_not_win(clock: Clock) -> None:
    turns = count()
    candidates = {
        "lucky": clock.taking(lambda: 0.005 if next(turns) == 3 else 0.011),
        "steady": clock.taking(lambda: 0.01),
    }
    verdict = TuningRecords("here").best("twice", candidates, TRIAL).verdict
    assert verdict.winner == "steady"
    assert verdict.seconds == pytest.approx({"lucky": 0.005, "steady": 0.01})


def test_a_clear_lead_ends_a_sitting_and_a_small_one_makes_it_longer(clock: Clock) -> None:
    fast, close = clock.taking(lambda: 0.001), clock.taking(lambda: 0.0011)
    (sitting,) = (
        TuningRecords("here").best("clear", {"a": fast, "b": clock.taking(lambda: 0.0013)}, TRIAL).verdict.sittings
    )
    assert len(sitting) == 3
    candidates = {"a": fast, "b": close, "far": clock.taking(lambda: 0.0013), "hopeless": clock.taking(lambda: 0.01)}
    (sitting,) = TuningRecords("here").best("close", candidates, TRIAL).verdict.sittings
    assert len(sitting) == 12
    assert [sum(name in taken for taken in sitting) for name in candidates] == [12, 12, 3, 2]
    slow = {"a": clock.taking(lambda: 0.1), "b": clock.taking(lambda: 0.11)}
    (sitting,) = TuningRecords("here").best("long", slow, TRIAL).verdict.sittings
    assert len(sitting) == 3, "it goes on no longer than it has to"


def test_a_small_lead_is_measured_again_and_may_be_turned_over(clock: Clock) -> None:
    """In the first sitting one was lucky. Later processes know better; this one stays with what it has."""
    taken = {"lucky": 0.01, "better": 0.0105}
    candidates = {name: clock.taking(lambda name=name: taken[name]) for name in taken}  # type: ignore[misc]
    choices = TuningRecords("here")
    chosen = choices.best("twice", candidates, TRIAL)
    assert (chosen.verdict.winner, chosen.verdict.is_open) == ("lucky", True)
    call = chosen.watched(lambda x: x + 1)
    taken["better"] = 0.008
    before = clock.calls
    assert {call(n) for n in range(chosen.verdict.runs - 1)} == set(range(1, chosen.verdict.runs))
    assert clock.calls == before, "it was measured before that was cheap"
    assert call(0) == 1
    assert clock.calls > before
    measured = clock.calls
    call(0)
    assert clock.calls == measured, "once is enough"
    assert choices.best("twice", candidates, TRIAL).verdict.winner == "lucky"
    later = TuningRecords("here").best("twice", candidates, TRIAL)
    assert later.verdict.winner == "better"
    assert [len(sitting) >= 3 for sitting in later.verdict.sittings] == [True, True]


def test_after_some_sittings_the_choice_stands(clock: Clock) -> None:
    candidates = {"a": clock.taking(lambda: 0.01), "b": clock.taking(lambda: 0.0105)}
    for sittings in (1, 2, 3):
        chosen = TuningRecords("here").best("twice", candidates, TRIAL)
        assert len(chosen.verdict.sittings) == sittings
        if chosen.again is not None:
            chosen.again()
    assert chosen.again is None
    assert chosen.watched(twice) is twice, "what stands costs nothing"


def test_a_clear_lead_is_not_measured_again(clock: Clock) -> None:
    candidates = {"a": clock.taking(lambda: 0.01), "b": clock.taking(lambda: 0.02)}
    assert TuningRecords("here").best("twice", candidates, TRIAL).again is None


def test_short_calls_are_worth_a_sitting_only_after_many(clock: Clock) -> None:
    def runs(seconds: float) -> int:
        candidates = {"a": clock.taking(lambda: seconds), "b": clock.taking(lambda: 1.05 * seconds)}
        return TuningRecords("here").best(str(seconds), candidates, TRIAL).verdict.runs

    assert runs(1e-6) * 1e-6 == pytest.approx(runs(2e-4) * 2e-4)
    assert runs(1e-2) == runs(2e-4)


def test_what_is_adopted_or_deterministic_is_not_measured_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yosegi._tune.records._decided", {})
    monkeypatch.setattr("yosegi._tune.records._adopted", {})
    candidates = {"a": clock.taking(lambda: 0.01), "b": clock.taking(lambda: 0.0105)}
    chosen = TuningRecords("here").best("twice", candidates, TRIAL)
    made = decisions()
    assert list(made.values()) == ["a"]
    assert chosen.again is not None
    before = clock.calls
    with ys.options(deterministic=True):
        chosen.again()
        assert clock.calls == before
        assert TuningRecords("here").best("twice", candidates, TRIAL).again is None
    monkeypatch.setattr("yosegi._tune.records._decided", {})
    with adopting(dict.fromkeys(made, "b")):
        loaded = TuningRecords("here").best("twice", candidates, TRIAL)
    assert (loaded.verdict.winner, loaded.again) == ("b", None)
    assert clock.calls == before + 1, "only the deterministic choice was tried"


def test_a_sitting_that_fails_leaves_all_as_it_was(clock: Clock) -> None:
    given = iter([(X,)])
    candidates = {"a": clock.taking(lambda: 0.01), "b": clock.taking(lambda: 0.0105)}
    chosen = TuningRecords("here").best("twice", candidates, TrialSetup(given.__next__, twice))
    assert chosen.again is not None
    chosen.again()  # there are no more arguments
    assert len(TuningRecords("here").best("twice", candidates, TRIAL).verdict.sittings) == 1


def test_a_choice_is_remembered_here_and_on_disk() -> None:
    def never() -> list[Any]:
        raise AssertionError("measured again")

    candidates = {"slow": slowly(twice), "fast": lambda: twice}
    choices = TuningRecords("here")
    choices.best("twice", candidates, TRIAL)
    for known in (choices, TuningRecords("here")):
        chosen = known.best("twice", candidates, TrialSetup(never, twice))
        assert chosen.verdict.winner == "fast"
        assert set(chosen.verdict.seconds) == {"slow", "fast"}
    for identity, kind in (("elsewhere", "twice"), ("here", "thrice")):
        with pytest.raises(AssertionError, match="measured again"):
            TuningRecords(identity).best(kind, candidates, TrialSetup(never, twice))


def test_a_winner_that_is_gone_or_fails_now_is_chosen_anew() -> None:
    def cannot() -> Kernel:
        raise OSError("no longer")

    TuningRecords("here").best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
    chosen = TuningRecords("here").best("twice", {"slow": slowly(twice), "other": slowly(twice, 0.006)}, TRIAL)
    assert chosen.verdict.winner == "slow"
    chosen = TuningRecords("here").best("twice", {"slow": cannot, "other": slowly(twice)}, TRIAL)
    assert (chosen.verdict.winner, reasons(chosen)) == ("other", {"slow": "OSError: no longer"})


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"winner": "slow"}', b'{"winner": 1, "seconds": 2}', b"\xff"])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_damaged_file_is_set_aside(content: bytes, is_sealed: bool, folder: Path) -> None:
    choices = TuningRecords("here")
    candidates = {"slow": slowly(twice), "fast": lambda: twice}
    choices.best("twice", candidates, TRIAL)
    (path,) = (folder / "choices").iterdir()
    if is_sealed:
        choices._stored.put(path.stem, content)
    else:
        path.write_bytes(content)
    chosen = TuningRecords("here").best("twice", candidates, TRIAL)
    assert chosen.verdict.winner == "fast"
    assert sorted(p.suffix for p in (folder / "choices").iterdir()) == [".bin", ".damaged"]


def test_the_file_is_readable(folder: Path) -> None:
    choices = TuningRecords("here")
    choices.best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
    (path,) = (folder / "choices").iterdir()
    found = json.loads(choices._stored.get(path.stem) or b"")
    assert (found["kind"], found["winner"]) == ("twice", "fast")


def test_a_folder_that_cannot_be_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", "/proc/nowhere")
    chosen = TuningRecords("here").best("twice", {"slow": slowly(twice), "fast": lambda: twice}, TRIAL)
    assert chosen.verdict.winner == "fast"


def test_threads_do_not_measure_each_other() -> None:
    inside = threading.Lock()

    def alone(x: Array) -> tuple[Array]:
        assert inside.acquire(blocking=False), "somebody else was measuring"
        time.sleep(1e-4)
        inside.release()
        return twice(x)

    choices = TuningRecords("here")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: choices.best(str(n % 2), {"a": lambda: alone, "b": lambda: alone}, TRIAL),
                             range(8)))  # fmt: skip
    assert not any(m.verdict.refused for m in made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_can_choose() -> None:
    choices = TuningRecords("here")
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
    signalling = np.full(4, 0x7F800001, np.uint32).view(np.float32)
    assert disagreement([np.ones(4, np.float32)], [signalling], 1) is not None  # and nothing warns


def test_classes_of_sizes() -> None:
    assert size_class(1000, 1000) == size_class(1024, 1050)
    assert size_class(512) != size_class(1024)
    assert size_class(0, 1) != size_class(1, 1)


def test_records_of_other_sources_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    TuningRecords("one machine").best("twice", {"good": lambda: twice}, TRIAL)
    assert TuningRecords("one machine").known("twice") is not None
    monkeypatch.setattr(records, "package_digest", lambda: "other sources")
    assert TuningRecords("one machine").known("twice") is None
