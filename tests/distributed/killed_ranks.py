"""A training run on three ranks, of which a random one is killed or stopped at a random moment.

`python tests/distributed/killed_ranks.py --kills 30` fails if the lost rank is not named within the deadline, if the
others do not go on, or if they end with another loss than a run that was left alone. Every other pair of runs has a
spare, which runs the program from the top before the others go on.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from statistics import median
from subprocess import PIPE, STDOUT, Popen
from threading import Thread

RANKS, STEPS = 3, 150
DEADLINE = 5.0
NAMED = re.compile(r"yosegi: \[\w+\] rank \d (died|did not come|came later)")
HANG = 90.0
"""Seconds to start, and to do the rest of the steps."""


def train() -> None:
    """Fit a line to data, each rank with its share of the batch; rank 0 prints the loss."""
    import numpy as np

    import yosegi as ys
    from yosegi.distributed.communicator import Combine, RankLost
    from yosegi.distributed.runtime import init
    from yosegi.distributed.survival import survive

    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 4)).astype(np.float32)
    y = x @ np.arange(4, dtype=np.float32)

    @ys.jit
    def gradient(w, x, y):
        error = x @ w - y
        return ys.sum(error**2), 2 * (x.T @ error)

    def shares(w, rank, size):
        share = slice(rank, None, size)
        return gradient(w, ys.asarray(x[share]), ys.asarray(y[share]))

    def step(ranks, number, w):
        loss, change = shares(w, ranks.rank, ranks.size)
        own, began = np.append(change.numpy(), loss.numpy()), time.monotonic()
        try:
            total = ranks.all_reduce(own, Combine.SUM)
        except RankLost:
            print(f"waited {time.monotonic() - began:.3f}", flush=True)
            raise
        time.sleep(0.01)  # so that moments outside of collectives come up too
        losses.append(float(total[-1]))
        return w - 0.0001 * ys.asarray(total[:-1])

    losses: list[float] = []
    first = ys.zeros((4,), dtype=ys.float32)
    for size in range(1, RANKS + 1):
        ys.eval(*shares(first, 0, size))  # compiled before a deadline runs
    if not init().is_new:
        init(deadline=HANG).barrier()
        init(deadline=DEADLINE)
    print(f"begins {init().rank} {os.getpid()}", flush=True)
    survive(step, first, steps=STEPS)
    print(f"ends {losses[-1]:.4g}", flush=True)


def lines_of(process: Popen[str]) -> Queue[str]:
    """The lines of a process, as they come; an empty one at the end."""
    lines: Queue[str] = Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line)
        lines.put("")

    Thread(target=read, daemon=True).start()
    return lines


@dataclass(frozen=True)
class Run:
    """The lines of a run, and the seconds from the signal until the rank is named, and until the others go on. `None`:
    the run was faster. The ranks may still compute when the signal comes; a deadline begins with a collective."""

    text: str
    named: float | None
    recovered: float | None

    @property
    def losses(self) -> set[str]:
        """The losses that ranks printed."""
        return set(re.findall(r"ends (\S+)", self.text))

    @property
    def waited(self) -> float:
        """The most seconds that a survivor waited in a collective until it named the rank."""
        return max(map(float, re.findall(r"waited (\S+)", self.text)), default=0.0)


def run(number: signal.Signals | None, spares: int, draw: random.Random) -> Run:
    """Launch a run, and send a signal to a random rank."""
    cli = "import sys; from yosegi.tools.cli import main; sys.exit(main())"
    options = ["-n", str(RANKS), "--spares", str(spares)]
    command = [sys.executable, "-c", cli, "launch", *options, __file__, "--train"]
    variables = {**os.environ, "YOSEGI_DEADLINE": str(DEADLINE), "YOSEGI_DEVICE": "cpu"}
    process = Popen(command, stdout=PIPE, stderr=STDOUT, text=True, env=variables)
    lines, seen, ranks = lines_of(process), [], {}
    sent, named, recovered = float("inf"), None, None
    try:
        end = time.monotonic() + HANG
        while len(ranks) < RANKS:
            seen.append(lines.get(timeout=end - time.monotonic()))
            assert seen[-1], f"the run ended before it began: {seen}"
            if found := re.search(r"begins (\d) (\d+)", seen[-1]):
                ranks[int(found[1])] = int(found[2])
        if number is not None:
            time.sleep(draw.uniform(0, 2))
            sent = time.monotonic()
            with suppress(ProcessLookupError):  # the run was faster
                os.kill(ranks[draw.randrange(RANKS)], number)
        end = time.monotonic() + HANG
        while seen[-1]:
            seen.append(lines.get(timeout=end - time.monotonic()))
            if NAMED.search(seen[-1]) and named is None:
                named = time.monotonic() - sent
            if "go on from step" in seen[-1] and recovered is None:
                recovered = time.monotonic() - sent
        status = process.wait(10)
    except Empty:
        raise AssertionError(f"the run hangs after {number}:\n{''.join(seen)}") from None
    finally:
        process.terminate()
        process.wait()
    assert status == 0, f"status {status} after {number}:\n{''.join(seen)}"
    return Run("".join(seen), named, recovered)


def compared(kills: int, seed: int, within: float) -> str:
    """Send SIGKILL and SIGSTOP in turn. Returns a summary. Raises if a run is late, or a loss differs."""
    draw = random.Random(seed)
    expected = run(None, 0, draw).losses
    assert len(expected) == 1, expected
    taken: dict[str, list[tuple[float, float, float]]] = {}
    replaced = 0
    for n in range(kills):
        number, spares = (signal.SIGKILL, signal.SIGSTOP)[n % 2], n // 2 % 2
        made = run(number, spares, draw)
        after = f"after {number.name}:\n{made.text}"
        assert made.losses == expected, f"{made.losses}, not {expected}, {after}"
        if made.recovered is None:
            continue
        assert made.named is not None, f"no rank was named {after}"
        assert made.waited < within, f"named after {made.waited:.1f} s {after}"
        kind = number.name + (" with a spare" if spares else "")
        taken.setdefault(kind, []).append((made.waited, made.named, made.recovered - made.named))
        replaced += bool(re.search(r"ranks \d, \d, \d go on", made.text))
    times = "".join(f"\n{kind}: {_times(each)}" for kind, each in taken.items())
    lost = sum(map(len, taken.values()))
    return f"{kills} signals, {lost} ranks lost, {replaced} replaced: all runs ended with the same loss.{times}"


def _times(taken: list[tuple[float, float, float]]) -> str:
    words = ("named in a collective after", "from the signal after", "then recovered in")
    parts = zip(words, zip(*taken, strict=True), strict=True)
    return ", ".join(f"{word} {median(each):.2f} s, at most {max(each):.2f} s" for word, each in parts)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, default=DEADLINE, help="seconds in which a lost rank has to be named")
    args = parser.parse_args()
    if args.train:
        train()
    else:
        sys.path.insert(0, str(Path(__file__).parent))
        print(compared(args.kills, args.seed, args.within))
