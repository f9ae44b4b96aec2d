"""The time of a scan of 10,000 iterations: microseconds per iteration and per op of its body.

    PYTHONPATH=tests python tests/bench_scan.py [--length 10000] [--runs 20] [--device cpu] [--jax]

The best of several runs counts, on a machine that does nothing else. An op is a call of the body's graph, and its
arithmetic is part of the time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

import yosegi as ys
from yosegi._tensor.op import REGISTRY, constant, leaf

RNG = np.random.default_rng(0)


def lorenz(m: Any, scan: Callable[..., Any], state: Any, rows: Any) -> Any:
    """An ordinary differential equation of three numbers, by Euler's method, with indices and a stack."""

    def step(c: Any, _: Any) -> Any:
        x, y, z = c[0], c[1], c[2]
        return c + 0.001 * m.stack([10.0 * (y - x), x * (28.0 - z) - y, x * y - 2.5 * z]), c

    return scan(step, state[:3], rows)


def oscillators(m: Any, scan: Callable[..., Any], state: Any, rows: Any) -> Any:
    """Independent oscillators: elementwise work on a pair of vectors."""

    def step(c: Any, _: Any) -> Any:
        x, v = c
        v = v - 0.01 * m.sin(x)
        return (x + 0.01 * v, v), None

    return scan(step, (state, state * 0.5), rows)


def recurrent(m: Any, scan: Callable[..., Any], state: Any, rows: Any) -> Any:
    """A recurrent network of 16 units: a product, a sum and tanh."""
    w = m.reshape(state, (1, -1)) * m.reshape(state, (-1, 1)) * 0.1
    return scan(lambda h, x: (m.tanh(h @ w + x), h), state, rows)


def running(m: Any, scan: Callable[..., Any], state: Any, rows: Any) -> Any:
    """A running mean with a reduction in each iteration."""
    return scan(lambda c, x: (0.9 * c + 0.1 * m.mean(x), c), m.asarray(0.0), rows)


BODIES = {"lorenz": lorenz, "oscillators": oscillators, "recurrent": recurrent, "running mean": running}


def ops_of(f: Callable[..., Any], *args: Any) -> int:
    """The calls in the body of a jitted function's scan."""
    jitted = ys.jit(f)
    jitted(*args)
    (scan,) = [c for c in jitted.plans[0].graph.calls if c.op is REGISTRY["scan"]]
    return sum(c.op not in (leaf, constant) for c in scan.attrs["body"].calls)


def best(run: Callable[[], Any], runs: int) -> float:
    """The seconds of the fastest of several runs, after three that are not counted."""
    times = []
    for n in range(runs + 3):
        start = perf_counter()
        run()
        times.append(perf_counter() - start if n >= 3 else float("inf"))
    return min(times)


def main() -> None:
    """Time the bodies and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--length", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jax", action="store_true", help="also time jax.jit of the same programs")
    chosen = parser.parse_args()
    state, rows = RNG.normal(size=16), RNG.normal(size=(chosen.length, 16))
    for name, body in BODIES.items():
        with ys.options(device=chosen.device):
            f = ys.jit(lambda s, r, body=body: body(ys, ys.scan, s, r))
            given = ys.asarray(state), ys.asarray(rows)
            ops = ops_of(lambda s, r, body=body: body(ys, ys.scan, s, r), *given)
            seconds = best(lambda f=f, given=given: ys.eval(f(*given)), chosen.runs)
        step = seconds / chosen.length * 1e6
        text = f"{name}: {ops} ops, {step:.3f} µs per step, {step / ops:.3f} µs per step and op"
        print(text + (f"; JAX {_with_jax(body, state, rows, chosen) / ops:.3f}" if chosen.jax else ""), flush=True)


def _with_jax(body: Callable[..., Any], state: Any, rows: Any, chosen: argparse.Namespace) -> float:
    """Microseconds per iteration of the same program by JAX."""
    import jax

    jax.config.update("jax_enable_x64", True)
    f = jax.jit(lambda s, r: body(jax.numpy, jax.lax.scan, s, r))
    return best(lambda: jax.block_until_ready(f(state, rows)), chosen.runs) / chosen.length * 1e6


if __name__ == "__main__":
    main()
