"""The training examples: they run from their files, resume, and give the same bits for the same seed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import yosegi as ys

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, out, *options):
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--device", "cpu", "--out", str(out), *options],
        capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (out / "loss.svg").read_text().startswith("<svg")
    return done.stdout


def number(word, text):
    return float(re.search(rf"^{word} ([0-9.]+)", text, re.MULTILINE)[1])


def weights(out):
    return ys.load(max((out / "checkpoints").iterdir()))


def test_the_residual_network_learns(tmp_path):
    """`--steps 300`, the default, passes 97%."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    assert number("accuracy", run("train_digits_resnet.py", tmp_path, "--steps", "120", "--events")) > 0.9
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_the_transformer_learns_the_same_bits_and_resumes(tmp_path):
    text = run("train_char_transformer.py", tmp_path / "a", "--steps", "60", "--explain")
    assert number("loss", text) < 3.3
    assert "1 plan" in text
    assert "step 0 on cpu" in text
    run("train_char_transformer.py", tmp_path / "b", "--steps", "60")
    for path, leaf in weights(tmp_path / "a").items():
        other = weights(tmp_path / "b")[path]
        assert leaf == other if not isinstance(leaf, ys.Tensor) else leaf.tobytes() == other.tobytes(), path
    assert "over the last" not in run("train_char_transformer.py", tmp_path / "b", "--steps", "60", "--resume")
