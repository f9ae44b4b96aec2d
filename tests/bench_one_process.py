"""The time of a training step in one process, with distributed code and without.

    python tests/bench_one_process.py [cpu]

Both steps take turns in blocks. With `cpu`, the processor time of this process is compared instead of elapsed time,
which helps on a busy machine. Fails if the plans differ, or if the distributed step takes more than 2% longer.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from statistics import median

import numpy as np

import yosegi as ys
from yosegi import distributed as dist
from yosegi import nn

WIDTH, BATCH, BLOCKS, CALLS = 64, 32, 41, 50


def make(column, row):
    """An optimiser of a small model."""
    rng = ys.random.default_rng(0)
    model = nn.Sequential(column(WIDTH, 4 * WIDTH, rng=rng), nn.gelu, row(4 * WIDTH, WIDTH, rng=rng))
    return ys.optim.AdamW(model, lr=1e-3)


def step(optimizer, x, y):
    """Forward, backward, update."""
    value, grads = nn.value_and_grad(optimizer.params, lambda m, x, y: ys.mean((m(x) - y) ** 2))(x, y)
    return optimizer.step(grads), value


def collective_step(optimizer, x, y):
    """The step with collectives that one process does not need."""
    made, value = step(optimizer, x, y)
    return ys.tree_map(dist.all_reduce, made), dist.gather(value)


def main():
    """Print the times. Returns True if a limit is exceeded."""
    clock = time.process_time if sys.argv[1:] == ["cpu"] else time.perf_counter
    mesh = dist.Mesh((1,), ("model",))
    layers = partial(dist.ColumnParallelLinear, mesh=mesh), partial(dist.RowParallelLinear, mesh=mesh)
    x = ys.asarray(np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype(np.float32))
    with ys.options(device="cpu"):
        steps = {"plain": ys.jit(step), "distributed": dist.data_parallel(collective_step)}
        states = {"plain": make(nn.Linear, nn.Linear), "distributed": make(*layers)}
        times = {name: [] for name in steps}
        for _ in range(BLOCKS):
            for name, function in steps.items():
                state = states[name]
                began = clock()
                for _ in range(CALLS):
                    state, _ = function(state, x, x)
                times[name].append((clock() - began) / CALLS * 1e6)
                states[name] = state
    plans = [str(function.plans[0].graph) for function in steps.values()]
    best = {name: median(found[5:]) for name, found in times.items()}
    ratio = median([b / a for a, b in zip(times["plain"][5:], times["distributed"][5:], strict=True)])
    same = "the same plan" if plans[0] == plans[1] else "different plans"
    print(", ".join(f"{name} {found:.1f} µs" for name, found in best.items()), f"ratio {ratio:.3f}, {same}", sep="; ")
    return plans[0] != plans[1] or ratio > 1.02


if __name__ == "__main__":
    sys.exit(main())
