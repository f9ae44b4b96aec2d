"""The command line, and the benchmark behind it."""

import json

import numpy as np
import pytest

import yosegi.bench.overhead as overhead
from yosegi.bench.timing import Timing, race
from yosegi.cli import main


def test_devices(capsys):
    assert main(["devices"]) == 0
    assert "cpu" in capsys.readouterr().out


def test_bench_overhead(capsys, tmp_path):
    target = tmp_path / "overhead.json"
    assert main(["bench", "overhead", "--rounds", "3", "--json", str(target)]) == 0
    results = json.loads(target.read_text())["results"]
    assert {"numpy", overhead.CACHED, overhead.REPLAYED} <= results.keys()
    assert results["numpy"]["times_numpy"][0] == 1.0
    assert "times NumPy" in capsys.readouterr().out


def test_a_wrong_contender_is_not_timed(monkeypatch):
    monkeypatch.setattr(overhead, "_torch", lambda *_: {"wrong": lambda: np.zeros(overhead.ELEMENTS)})
    monkeypatch.setattr(overhead, "_jax", lambda *_: {})
    monkeypatch.setattr(overhead.importlib, "import_module", lambda name: None)
    with pytest.raises(AssertionError, match="wrong computes something else"):
        overhead.measure(rounds=2)


def test_ratios_are_taken_within_a_round():
    slow, fast = Timing((2.0, 20.0, 4.0)), Timing((1.0, 10.0, 2.0))
    assert slow.ratio_to(fast) == (2.0, 2.0, 2.0)


def test_a_race_runs_everyone_in_every_round():
    ran = []
    timings = race({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2, calls=1)
    assert ran == ["a", "b"] * 3
    assert len(timings["a"].rounds) == 2


def test_an_unknown_command_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["fly"])
    assert "invalid choice" in capsys.readouterr().err
