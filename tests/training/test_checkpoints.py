"""Checkpoints: whole, of the right form, the last ones kept, and as good as no interruption."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import yosegi as ys
from yosegi.errors import ArgumentError

sys.path.insert(0, str(Path(__file__).parent))
from kills import compared


def tree(value, rng=0):
    optimizer = ys.optim.Adam({"w": ys.full((2, 3), value)}, lr=0.1)
    return {"optimizer": optimizer, "rng": ys.random.default_rng(rng), "loss": value, "name": "net"}


def test_everything_comes_back(tmp_path):
    checkpoints = ys.training.Checkpoints(tmp_path)
    assert checkpoints.restore(tree(0.0)) is None
    saved = tree(2.0, rng=5)
    saved["rng"].normal((2,))
    checkpoints.save(7, saved)
    like = tree(0.0)
    step, made = checkpoints.restore(like)
    assert step == 7
    assert made["optimizer"].params["w"].tolist() == [[2.0] * 3] * 2
    assert (made["loss"], made["name"]) == (2.0, "net")
    assert made["rng"] is like["rng"]
    assert made["rng"].state == (5, 1)
    assert made["rng"].normal((3,)).tolist() == saved["rng"].normal((3,)).tolist()
    assert made["optimizer"].step({"w": ys.ones((2, 3))}).params["w"].shape == (2, 3)


def test_the_last_ones_are_kept(tmp_path):
    checkpoints = ys.training.Checkpoints(tmp_path, keep=2)
    (tmp_path / "step-000000001.safetensors.123.partial").write_bytes(b"cut off")
    for step in (1, 2, 10):
        checkpoints.save(step, {"x": step})
    assert checkpoints.steps() == [2, 10]
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-5], lambda b: b[:-5] + bytes(5), lambda b: b""])
def test_a_damaged_one_is_refused(tmp_path, damage):
    checkpoints = ys.training.Checkpoints(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"x": ys.full((50,), float(step))})
    last = tmp_path / "step-000000002.safetensors"
    last.write_bytes(damage(last.read_bytes()))
    with pytest.warns(RuntimeWarning, match=r"\[restore\] skipped the checkpoint of step 2: .* is damaged"):
        step, made = checkpoints.restore({"x": ys.zeros((50,))})
    assert step == 1
    assert made["x"].tolist() == [1.0] * 50


def test_every_difference_is_listed_and_nothing_is_changed(tmp_path):
    checkpoints = ys.training.Checkpoints(tmp_path)
    checkpoints.save(1, {"a": ys.zeros((2,)), "b": ys.zeros((2,)), "c": 1, "rng": ys.random.default_rng(3)})
    like = {"a": ys.zeros((3,)), "c": 1.5, "d": ys.zeros(()), "rng": ys.random.default_rng(0)}
    with pytest.raises(ArgumentError) as caught:
        checkpoints.restore(like)
    assert str(caught.value).splitlines()[1:] == [
        "  ['d'] is missing",
        "  ['b'] is unknown",
        "  ['a'] is float64[2], expected float64[3]",
        "  ['c'] is int, expected float",
    ]
    assert like["rng"].state == (0, 0)


def test_a_folder_of_none():
    with pytest.raises(ArgumentError, match="expected to keep at least 1, got 0"):
        ys.training.Checkpoints(".", keep=0)


def test_a_run_killed_three_times_ends_with_the_same_bits():
    """`make kills` does so twenty times."""
    assert compared(kills=3, seed=0) >= 1
