"""Ranks that are processes, over Open MPI, started by `yosegi launch`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from yosegi.tools.cli import main

pytest.importorskip("mpi4py", reason="mpi4py is not installed: pip install 'yosegi[mpi]'")
HERE = Path(__file__).parent
CLI = "import sys; from yosegi.tools.cli import main; sys.exit(main())"


def launch(size, *arguments, logs=None):
    """Run a program of `over_mpi.py` on several ranks."""
    options = [] if logs is None else ["--logs", str(logs)]
    command = [sys.executable, "-c", CLI, "launch", *options, "-n", str(size), str(HERE / "over_mpi.py"), *arguments]
    paths = os.pathsep.join([str(HERE.parent), *sys.path])
    variables = {**os.environ, "YOSEGI_DEADLINE": "60", "PYTHONPATH": paths}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_collectives_agree_with_numpy(size):
    done = launch(size, "collectives")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"of {size}: done") == size


def test_ranks_that_call_different_things_learn_of_it():
    done = launch(3, "mistakes")
    assert (done.returncode, done.stdout.count("of 3: done")) == (0, 3), done.stderr


def test_gradients_are_sent_while_the_backward_pass_runs():
    done = launch(2, "overlap")
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\d+% of 6 communications hidden", done.stdout)) == 2, done.stdout


@pytest.mark.parametrize(("signal", "text"), [("SIGKILL", "died"), ("SIGSTOP", "did not come within 4 s")])
def test_a_rank_that_is_lost_in_the_background_is_named(signal, text):
    done = launch(2, "overlap", signal)
    assert (done.returncode, f"RankLost: [all_reduce] rank 1 {text}" in done.stderr) == (1, True), done.stderr


def test_costs_are_measured_and_agreed_on(monkeypatch):
    monkeypatch.setenv("YOSEGI_CALIBRATE", "1")
    done = launch(3, "costs")
    assert done.returncode == 0, done.stderr


def test_orders_of_sums():
    done = launch(3, "orders")
    assert done.returncode == 0, done.stderr


def test_slow_tests_of_a_request_do_not_extend_the_deadline():
    done = launch(1, "slow")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("fault", "status", "text"),
    [
        ("raise", 1, "rank 1: ValueError: the mistake of rank 1"),
        ("exit7", 7, ""),
        ("exit0", 1, "expected the same call on all ranks, got barrier on 0, exit on 1"),
        ("end", 1, "RankLost: [barrier] rank 1 did not come within 4 s"),
        ("SIGKILL", 1, "RankLost: [barrier] rank 1 died"),
        ("SIGSTOP", 1, "RankLost: [barrier] rank 1 did not come within 4 s"),
        ("differ", 1, "expected the same call on all ranks, got barrier on 0, all_reduce sum of float64[1048576] on 1"),
    ],
)
def test_a_fault_ends_the_program(fault, status, text):
    done = launch(3, "faults", fault)
    assert (done.returncode, text in done.stderr) == (status, True), done.stderr


def test_each_rank_has_a_log(tmp_path):
    done = launch(2, "orders", logs=tmp_path)
    assert done.stdout == "orders on rank 0 of 2: done\n"
    assert [(tmp_path / f"rank-{n}.log").read_text() for n in (0, 1)] == [
        f"orders on rank {n} of 2: done\n" for n in (0, 1)
    ]


def test_survivors_of_signals_end_with_the_same_loss():
    run = subprocess.run(
        [sys.executable, str(HERE / "killed_ranks.py"), "--kills", "2", "--within", "60"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert re.match(r"2 signals, [12] ranks lost", run.stdout), run.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_two_ranks_share_a_gpu():
    paths = os.pathsep.join([str(HERE.parent), *sys.path])
    run = subprocess.run(
        [sys.executable, str(HERE / "gpu_ranks.py"), "--fake", "nccl", "copies", "train", "kill"],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr


def test_mistakes_in_the_command(capsys):
    assert main(["launch", "-n", "2", "no_such.py"]) == 2
    assert "[launch] expected a Python program, got no file no_such.py" in capsys.readouterr().err
    assert main(["launch", "-n", "0", __file__]) == 2
    assert "[launch] expected at least 1 rank, got 0" in capsys.readouterr().err
