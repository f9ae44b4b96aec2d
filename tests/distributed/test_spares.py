"""Spares in the places of lost ranks, and ranks that do not end, over Open MPI."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from yosegi.tools.cli import main

HERE = Path(__file__).parent
CLI = "import sys; from yosegi.tools.cli import main; sys.exit(main())"


def launch(size, *arguments, deadline, options=()):
    """Run a program of `losing_ranks.py` on several ranks."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'yosegi[mpi]'")
    command = [
        sys.executable,
        "-c",
        CLI,
        "launch",
        *options,
        "-n",
        str(size),
        str(HERE / "losing_ranks.py"),
        *arguments,
    ]
    paths = os.pathsep.join([str(HERE.parent), *sys.path])
    variables = {**os.environ, "YOSEGI_DEADLINE": deadline, "YOSEGI_DEVICE": "cpu", "PYTHONPATH": paths}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize(
    ("faults", "spares", "size", "groups"),
    [
        ([], 1, 2, []),
        (["5:0:SIGKILL", "9:2:SIGKILL"], 2, 2, ["1, 2 go on from step 5", "1, 3 go on from step 9"]),
        (["5:0:SIGKILL", "9:2:SIGKILL"], 1, 1, ["1, 2 go on from step 5", "1 go on from step 9"]),
        (["5:1:SIGSTOP"], 1, 2, ["0, 2 go on from step 5"]),
    ],
)
def test_spares_take_the_places_of_lost_ranks(faults, spares, size, groups):
    done = launch(2, "replaced", *faults, deadline="8", options=["--spares", str(spares)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"of {size}: done") == size
    assert re.findall("ranks ([0-9, ]+ go on from step [0-9]+)", done.stderr) == groups


def test_a_rank_that_stops_at_its_end_is_ended():
    done = launch(2, "at_exit", deadline="8")
    assert (done.returncode, done.stdout.count("done")) == (0, 2), done.stderr


def test_a_negative_number_of_spares(capsys):
    assert main(["launch", "-n", "2", "--spares", "-1", __file__]) == 2
    assert "[launch] expected no negative number of spares, got -1" in capsys.readouterr().err
