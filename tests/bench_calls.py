"""The host's time for a call of a jitted function with many arguments and results.

    python tests/bench_calls.py [--profile]

A step like that of an optimiser, with 235 tensors of a few elements in and 235 out, in the nesting of a model's
parameters: on the CPU; on a queue whose launches do nothing, so that the host's part of a call on a GPU remains; and
in JAX, if it is installed. A forward pass reads 79 of them. `before launch` is the time until the queue gets the
launch: a GPU is idle meanwhile. With `--profile`, the functions that take the most time are printed.
"""

from __future__ import annotations

import cProfile
import gc
import pstats
import sys
from contextlib import nullcontext
from time import perf_counter

import numpy as np

import yosegi as ys
from fakes.host_queue import Graph, QueueDevice
from yosegi.tools.fakes import installed

LAYERS, NAMES, CALLS, BLOCKS = 6, ("n1", "qkv", "o", "n2", "f1", "f2"), 40, 25
launched = [0.0]


def tree(array):
    """Parameters of a small GPT, nested as its code nests them."""

    def pair():
        return {"w": array(), "b": array()}

    blocks = [{name: pair() for name in NAMES} for _ in range(LAYERS)]
    return {"e": array(), "p": array(), "n": pair(), "h": pair(), "b": blocks}


def maker(of, tree_map, total):
    """The step and the forward pass, and their arguments, by the functions of a library."""
    rng = np.random.default_rng(0)
    state = [tree(lambda: of(rng.normal(size=4).astype(np.float32))) for _ in range(3)]

    def step(p, m, v, t):
        m = tree_map(lambda m, p: 0.9 * m + 0.1 * p, m, p)
        v = tree_map(lambda v, p: 0.99 * v + 0.01 * p * p, v, p)
        p = tree_map(lambda p, m, v: p - 1e-3 * (m / (v + t)), p, m, v)
        return p, m, v, total(p["e"])

    def forward(p, x):
        return sum([b[n]["w"] * x + b[n]["b"] for b in p["b"] for n in NAMES], p["e"] * x + p["p"])

    return state, step, forward


def timed(name, call, launches):
    """Print the least time of a call."""
    for _ in range(3 * CALLS):
        call()
    gc.collect()
    gc.freeze()  # what was imported does not take part in collections
    times, before = [], []
    for _ in range(BLOCKS):
        began = perf_counter()
        for _ in range(CALLS):
            call()
        times.append((perf_counter() - began) / CALLS)
        began = perf_counter()
        call()
        before.append(launched[0] - began)
    text = f", before launch {min(before) * 1e6:6.1f} µs" if launches else ""
    print(f"{name:24} {min(times) * 1e6:7.1f} µs a call{text}", flush=True)
    if "--profile" in sys.argv:
        profile = cProfile.Profile()
        profile.runcall(lambda: [call() for _ in range(CALLS)])
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


def measure(name, of, jit, tree_map, total, launches=False):
    """Time both functions of a library."""
    state, step, forward = maker(of, tree_map, total)
    step, forward, x = jit(step), jit(forward), of(np.ones(4, np.float32))
    first = state[0]

    def update():
        state[0], state[1], state[2], _ = step(*state, of(np.float32(2)))

    timed(f"{name}: 235 → 235", update, launches)
    timed(f"{name}: 79 → 1", lambda: forward(first, x), launches)


def main():
    """Measure all."""
    plain = Graph.launch

    def launch(graph, stream):
        launched[0] = perf_counter()
        plain(graph, stream)

    Graph.launch = launch
    queue = QueueDevice(idles=True)
    for name, fake in (("cpu", None), ("queue", queue)):
        with installed(fake) if fake else nullcontext("cpu") as device, ys.options(device=device):
            measure(name, ys.asarray, ys.jit, ys.tree_map, ys.sum, launches=fake is not None)
    try:
        import jax
    except ImportError:
        return
    measure("JAX", jax.numpy.asarray, jax.jit, jax.tree_util.tree_map, jax.numpy.sum)


if __name__ == "__main__":
    main()
