"""Ranks that are actors of Ray, started by `yosegi launch --ray`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from yosegi.tools.cli import main

HERE = Path(__file__).parent
CLI = "import sys; from yosegi.tools.cli import main; sys.exit(main())"


def launch(size, *arguments, deadline="60"):
    """Run a program of `losing_ranks.py` on several actors."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'yosegi[ray]'")
    command = [sys.executable, "-c", CLI, "launch", "--ray", "-n", str(size), str(HERE / "losing_ranks.py"), *arguments]
    paths = os.pathsep.join([str(HERE.parent), *sys.path])
    variables = {**os.environ, "YOSEGI_DEADLINE": deadline, "YOSEGI_DEVICE": "cpu", "PYTHONPATH": paths}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)


def test_collectives_agree_with_numpy():
    done = launch(2, "collectives")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("of 2: done") == 2


@pytest.mark.parametrize(("fault", "status"), [("raise", 1), ("exit", 7)])
def test_a_failure_ends_the_program(fault, status):
    done = launch(2, "faults", fault)
    assert done.returncode == status, done.stdout + done.stderr


@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_begins_again_and_joins(fault, monkeypatch):
    monkeypatch.setenv("YOSEGI_TEST_PAUSE", "1")  # Ray starts the rank again within the 20 steps
    done = launch(2, "replaced", f"2:1:{fault}", deadline="8")
    text = done.stdout + done.stderr
    assert done.returncode == 0, text
    assert "ranks 0 go on from step 2" in text
    assert "a rank joined; ranks 0, 2 go on from step" in text
    assert done.stdout.count("of 2: done") == 2


def test_options_that_ray_has_itself(capsys):
    assert main(["launch", "--ray", "-n", "2", "--spares", "1", __file__]) == 2
    assert "[launch] expected --ray without --spares and --logs" in capsys.readouterr().err
