"""Step times of a training schedule: measured on 1, 2 and 4 processes, and simulated on up to 4,096 ranks.

`python tests/distributed/scaling.py --output docs/performance/scaling.md` writes the table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from simulator import SimulatedCommunicator, hollow, simulate

from yosegi.distributed.communicator import Combine
from yosegi.distributed.costs import Network
from yosegi.distributed.pipeline import Pass, one_forward_one_backward
from yosegi.distributed.runtime import init

FORWARD, BACKWARD = 0.010, 0.020
"""Seconds of work for a microbatch in one stage."""
MICROBATCHES, BUCKETS = 4, 4
ACTIVATIONS, GRADIENTS = (1 << 16,), (1 << 18,)
SIZES = (1, 2, 4, 8, 64, 512, 4096)
ETHERNET = Network(alpha=3e-5, beta=1 / 1.25e9)
"""A network of 10 Gbit/s, for ranks on other hosts."""
SENT = (64, 1 << 20)
"""Bytes of the messages by which the network is measured."""
FOUND = "network and seconds: "


def stages(size: int) -> int:
    """The stages of the pipeline; the other axis of the mesh is data parallel."""
    return min(size, 2 if size <= 4 else 8)


class Schedule:
    """One step: 1F1B over the stages, then the sums of the gradients over the data axis."""

    def __init__(self, ranks, array, work) -> None:
        count = stages(ranks.size)
        self.row = ranks.split(ranks.rank // count, ranks.rank)
        self.column = ranks.split(ranks.rank % count, ranks.rank)
        self.activations, self.gradients, self.work = array(ACTIVATIONS), array(GRADIENTS), work

    def step(self) -> None:
        """Run the schedule of this rank."""
        row = self.row
        for direction, _ in one_forward_one_backward(row.rank, row.size, MICROBATCHES):
            forward = direction is Pass.FORWARD
            before, after = (row.rank - 1, row.rank + 1) if forward else (row.rank + 1, row.rank - 1)
            if 0 <= before < row.size:
                row.receive(before, tag=forward)
            self.work(row, FORWARD if forward else BACKWARD)
            if 0 <= after < row.size:
                row.send(self.activations, after, tag=forward)
        for _ in range(BUCKETS):
            self.column.all_reduce(self.gradients, Combine.SUM)


def on_processes() -> None:
    """Measure steps, whose work sleeps: the ranks of a test share few processors."""
    ranks = init()
    small, large = (float(ranks.all_reduce(np.asarray(ranks.seconds("send", n)), Combine.MAX)) for n in SENT)
    network = Network(small, max(0.0, large - small) / SENT[1])
    slept: list[float] = []

    def work(_, seconds: float) -> None:
        began = time.perf_counter()
        time.sleep(seconds)
        slept.append((time.perf_counter() - began) / seconds)

    schedule = Schedule(ranks, lambda shape: np.ones(shape, np.float32), work)
    taken = []
    for _ in range(12):
        ranks.barrier()
        began = time.perf_counter()
        schedule.step()
        ranks.barrier()
        taken.append(time.perf_counter() - began)
    factor = float(ranks.all_reduce(np.asarray(np.mean(slept)), Combine.MAX))
    if ranks.rank == 0:
        print(FOUND + json.dumps([network.alpha, network.beta, factor, median(taken[2:])]), flush=True)


def measure(size: int) -> tuple[Network, float, float]:
    """The network, how much longer the work took than it should, and the seconds of a step, on processes."""
    cli = "import sys; from yosegi.tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", cli, "launch", "-n", str(size), __file__, "--rank"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200).stdout.splitlines()
    alpha, beta, factor, seconds = json.loads(
        next(line for line in lines if line.startswith(FOUND)).removeprefix(FOUND)
    )
    return Network(alpha, beta), factor, seconds


def predict(size: int, network: Network, stragglers: dict[int, float] | None = None) -> float:
    """The simulated seconds of a step."""

    def program(ranks: SimulatedCommunicator) -> None:
        Schedule(ranks, hollow, lambda row, seconds: row.compute(seconds)).step()
        ranks.barrier()

    return simulate(size, program, network, stragglers)


def table() -> str:
    """The page."""
    rows = []
    local = Network(0.0, 0.0)
    for size in SIZES:
        mesh = f"{size // stages(size)} × {stages(size)}"
        if size <= 4:
            local, factor, seconds = measure(size)
            expected = predict(size, local, dict.fromkeys(range(size), factor))
            shown = f"{seconds * 1e3:.0f} ms | {expected * 1e3:.0f} ms"
        else:
            shown = "– | –"
        slow = {0: 1.5}
        far = f"{predict(size, ETHERNET) * 1e3:.0f} ms | {predict(size, ETHERNET, slow) * 1e3:.0f} ms"
        rows.append(f"| {size:,} | {mesh} | {shown} | {far} |")
    bandwidth = 1e-9 / local.beta if local.beta else float("inf")
    return f"""# Scaling

Generated by `make scaling`. A step is {MICROBATCHES} microbatches through a 1F1B pipeline, then {BUCKETS} all-reduces
of 1 MiB over the data axis. The work of a microbatch in one stage takes {FORWARD * 1e3:.0f} ms forward and
{BACKWARD * 1e3:.0f} ms backward.

- Measured: processes over Open MPI on one host. Work is sleep, because the ranks share two processors.
- Simulated: the same schedule on shapes only, with a clock in place of work. It gets the time that the processes slept,
  and the network as they measured it: {local.alpha * 1e6:.0f} µs and {bandwidth:.1f} GB/s at 4 ranks.
- Other hosts: a network of {ETHERNET.alpha * 1e6:.0f} µs and 1.25 GB/s.
  The straggler is rank 0, whose work takes 1.5 times as long.

| ranks | data × stages | measured | simulated | other hosts, simulated | with a straggler |
|---|---|---|---|---|---|
{chr(10).join(rows)}

The times beyond 4 ranks were never measured: they follow from the model.
"""


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", action="store_true")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if args.rank:
        on_processes()
    else:
        args.output.write_text(table(), encoding="utf-8")
