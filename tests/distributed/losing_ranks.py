"""Programs that lose ranks, for tests: `yosegi launch -n 2 tests/distributed/losing_ranks.py replaced 5:0:SIGKILL`."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from distributed_cases import DTYPES, check_collectives
from yosegi.distributed import runtime
from yosegi.distributed.communicator import Combine
from yosegi.distributed.survival import survive


def collectives():
    """All collectives of all dtypes against NumPy."""
    for dtype in DTYPES:
        check_collectives(runtime.current(), dtype)


def at_exit():
    """Rank 1 stops once it has left MPI, after its program."""
    from mpi4py import MPI

    finalize = MPI.Finalize
    if runtime.rank() == 1:
        MPI.Finalize = lambda: (finalize(), os.kill(os.getpid(), signal.SIGSTOP))


def replaced():
    """Ranks die or stop in steps that arguments name: `5:1:SIGKILL` is rank 1 in step 5. Spares take their places."""
    faults = {tuple(map(int, each.split(":")[:2])): each.split(":")[2] for each in sys.argv[2:]}

    def step(ranks, number, total):
        time.sleep(float(os.environ.get("YOSEGI_TEST_PAUSE", "0")))
        if name := faults.get((number, ranks.members[ranks.rank])):
            os.kill(os.getpid(), getattr(signal, name))
        share = np.arange(12.0)[ranks.rank :: ranks.size].sum()
        return total + float(ranks.all_reduce(np.asarray(share * number), Combine.SUM))

    assert survive(step, 0.0, steps=20, every=10) == 66 * 190


def faults():
    """Rank 1 raises, or exits with status 7."""
    runtime.current().barrier()
    if runtime.rank() == 1:
        if sys.argv[2] == "raise":
            raise ValueError("the mistake of rank 1")
        sys.exit(7)
    runtime.current().barrier()


if __name__ == "__main__":
    {each.__name__: each for each in (collectives, at_exit, replaced, faults)}[sys.argv[1]]()
    print(f"{sys.argv[1]} on rank {runtime.rank()} of {runtime.size()}: done", flush=True)
