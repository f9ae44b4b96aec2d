"""`yosegi launch`: the same program in several processes, started by `mpiexec` or by Ray."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from threading import Thread
from typing import IO, Final

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ..distributed import worker
from ..errors import ArgumentError
from .bench.machine import threads

_TAGGED: Final = re.compile(r"\[\d+,(\d+)\]<(stdout|stderr)>: ?(.*)")
"""A line of a rank, as `mpiexec --output tag` writes it."""
_NOISE: Final = re.compile("$|NBC_Progress: an error|MPI Error in NBC subrequest")
"""Lines of Open MPI about operations that are given up, and empty lines."""
_TOKEN: Final = "YOSEGI_LAUNCH"
"""The variable by which the processes of one launch are known."""
_START: Final = 60
"""Seconds in which all ranks have to join."""
_GRACE: Final = 2
"""Seconds that the other ranks have, once one has failed, to write their errors."""
_NAP: Final = 0.02
_SENT: Final = ("YOSEGI_", "PYTHON", "OMP_", "OPENBLAS_")
"""Beginnings of the names of variables that actors of Ray get."""
_THREADS: Final = ("YOSEGI_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("-n", type=int, required=True, metavar="RANKS", help="the number of processes")
    parser.add_argument("--spares", type=int, default=0, metavar="COUNT", help="processes that replace lost ranks")
    parser.add_argument("--ray", action="store_true", help="start the ranks as actors of Ray, which restarts them")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="write the output of each rank to rank-N.log")
    parser.add_argument("program", metavar="PROGRAM.py", help="the program of all ranks")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the program")
    parser.set_defaults(run=launch)


def command(size: int) -> list[str]:
    """The command line that starts a Python program, whose path comes behind it, on several ranks."""
    beside = Path(sys.executable).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise ArgumentError("[launch] expected mpiexec, got none in PATH; pip install 'yosegi[mpi]'")
    options = ["--with-ft", "ulfm", "--oversubscribe", "--bind-to", "none", "--output", "tag", "--stdin", "none"]
    naming = ["--runtime-options", "error-nonzero-status=0"]  # else a rank that a library ends takes the others along
    return [mpiexec, *options, *naming, "-n", str(size), sys.executable, "-m", worker.__name__]


def environment(size: int, spares: int) -> dict[str, str]:
    """The variables of the ranks: a share of the processors for each, and leave to run as root in a container."""
    share = str(max(1, threads() // size))
    return {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        **dict.fromkeys(_THREADS, share),
        **os.environ,
        "YOSEGI_SPARES": str(spares),
        _TOKEN: uuid.uuid4().hex,
    }


def launch(console: Console, options: argparse.Namespace) -> int:
    """Run a program on several ranks, and return its exit status."""
    if options.n < 1:
        raise ArgumentError(f"[launch] expected at least 1 rank, got {options.n}")
    if options.spares < 0:
        raise ArgumentError(f"[launch] expected no negative number of spares, got {options.spares}")
    if not Path(options.program).is_file():
        raise ArgumentError(f"[launch] expected a Python program, got no file {options.program}")
    if options.ray:
        return _launch_on_ray(options)
    arguments = [*command(options.n + options.spares), options.program, *options.arguments]
    with _RankOutput(options.n, options.logs) as output:
        with _started(arguments, environment(options.n, options.spares)) as process:
            readers = [Thread(target=output.read, args=(stream,)) for stream in (process.stdout, process.stderr)]
            for reader in readers:
                reader.start()
            status = _joined(process, output) or _ended(process, output)
        for reader in readers:
            reader.join()
    lost = sorted({*range(options.n), *output.joined} - output.statuses.keys())
    if lost:
        print(f"[launch] {_ranks(lost)} did not finish", file=sys.stderr)
    return status or max(output.statuses.values(), default=abs(process.returncode) or 1)


def _launch_on_ray(options: argparse.Namespace) -> int:
    """Run a program on actors of Ray, and return its exit status."""
    if options.spares or options.logs:
        raise ArgumentError("[launch] expected --ray without --spares and --logs: Ray restarts ranks, and keeps logs")
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    try:
        from .launch_ray import launch as launch_actors
    except ImportError as error:
        raise ArgumentError(f"[launch] expected Ray, got {error}; pip install 'yosegi[ray]'") from None
    variables = {name: text for name, text in environment(options.n, 0).items() if name.startswith(_SENT)}
    return launch_actors(options.n, [options.program, *options.arguments], variables)


def _joined(process: Popen[str], output: _RankOutput) -> int:
    """Wait until all ranks have joined. MPI waits for ever for a rank that dies before. Returns 0, or a failure."""
    end = time.monotonic() + _START
    while process.poll() is None and len(output.joined) < output.size:
        if time.monotonic() > end:
            absent = [number for number in range(output.size) if number not in output.joined]
            print(f"[launch] {_ranks(absent)} did not join within {_START} s", file=sys.stderr)
            return 1
        time.sleep(_NAP)
    return 0


def _ended(process: Popen[str], output: _RankOutput) -> int:
    """Wait for the end of all ranks, or for the first failure. Returns its status, or 0.

    A rank that has not ended a deadline after the first is stopped, or lost.
    """
    while process.poll() is None and time.monotonic() < output.end:
        failures = [status for status in output.statuses.values() if status]
        if failures:
            with suppress(TimeoutExpired):
                process.wait(_GRACE)
            return failures[0]
        time.sleep(_NAP)
    return 0


@contextmanager
def _started(arguments: list[str], variables: dict[str, str]) -> Iterator[Popen[str]]:
    """Start a process. It and all processes that it started end with the block."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    process = Popen(arguments, env=variables, stdout=PIPE, stderr=PIPE, text=True, errors="replace")
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"{_TOKEN}={variables[_TOKEN]}".encode() in path.read_bytes().split(b"\0"):
                    os.kill(int(path.parent.name), signal.SIGKILL)
        signal.signal(signal.SIGTERM, before)


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


class _RankOutput:
    """Shows the lines of the ranks, above one line of progress on a terminal, and writes them to a log for each rank.

    Lines of rank 0 are shown as they are. Those of other ranks have the number of the rank in front of them; with logs,
    only their errors are shown.
    """

    def __init__(self, size: int, logs: Path | None) -> None:
        self.size, self._logs = size, logs
        self.joined: set[int] = set()
        self.statuses: dict[int, int] = {}
        self.end = float("inf")
        """The time at which all ranks have to end."""
        self._files: dict[int, IO[str]] = {}
        terminal = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal)
        self._task = self._bar.add_task("")
        self._stack = ExitStack()

    def __enter__(self) -> _RankOutput:
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            for number in range(self.size):
                self._files[number] = self._stack.enter_context((self._logs / f"rank-{number}.log").open("w"))
        self._stack.enter_context(self._bar)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self, stream: IO[str]) -> None:
        """Show the lines of a stream of `mpiexec` to its end."""
        with suppress(BrokenPipeError):  # nobody reads the lines any more
            self._read(stream)
            return
        self.end = 0.0
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            tagged = _TAGGED.match(line)
            if tagged is None:
                print(line, end="", file=sys.stderr)
                continue
            number, text = int(tagged[1]), tagged[3]
            if text == worker.JOINED:
                self.joined.add(number)
            elif text.startswith(worker.STATUS):
                status, deadline = text.removeprefix(worker.STATUS).split()
                self.statuses[number] = int(status)
                self.end = min(self.end, time.monotonic() + float(deadline) + _GRACE)
            else:
                self._show(number, tagged[2] == "stderr", text)
            progress = f"{len(self.joined)} of {self.size} ranks, {len(self.statuses)} done"
            self._bar.update(self._task, description=progress)

    def _show(self, number: int, is_error: bool, text: str) -> None:
        if self._files:
            print(text, file=self._files[number], flush=True)
        if (number and self._files and not is_error) or _NOISE.match(text):
            return
        line = text if number == 0 else f"rank {number}: {text}"
        print(f"{line}\n", end="", file=sys.stderr if is_error else sys.stdout, flush=True)  # one write for each line
