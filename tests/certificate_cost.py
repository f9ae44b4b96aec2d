"""What the certificate of a product costs: the kernel in the chosen precision with and without it, in turns.

    python tests/certificate_cost.py [--device cpu] [--sizes 512,1024,2048] [--tol 1e-2] [--most 0.08]

Also how many times as fast as float32 the certified product is, both through the public API under `jit`. Ratios are of
blocks of a few milliseconds that follow each other: other work on the machine then disturbs some of them, and not all.
What counts is the middle one; the spread is the middle half. The exit status is 1 if the certificate takes more than
`--most` of the product at any size.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import yosegi as ys
from adaptive_run import timed, turns_of
from yosegi._run.device import device_named
from yosegi._tune.certificate import Certified

ROUNDS, SECONDS, BLOCK = 15, 4.0, 0.004


def in_turns(calls: dict[str, Callable[[], Any]], wait: Callable[[], Any]) -> dict[str, list[float]]:
    """Seconds of each call, in blocks that follow each other."""
    turns = {name: turns_of(call, wait, BLOCK) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    names, end = list(calls), time.monotonic() + SECONDS
    while len(times[names[0]]) < ROUNDS or time.monotonic() < end:
        names.reverse()
        for name in names:
            times[name].append(timed(calls[name], wait, turns[name]))
    return times


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="512,1024,2048")
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--most", type=float, default=0.08)
    args = parser.parse_args()
    device, worst = device_named(args.device), 0.0
    print("| n | precision | product, ms | certificate, share of it (spread) | times float32 (spread) |")
    print("|---|---|---|---|---|")
    for n in map(int, args.sizes.split(",")):
        rng = np.random.default_rng(n)
        x, y = (ys.asarray(rng.standard_normal((n, n), np.float32)).to_device(args.device) for _ in range(2))
        ys.eval(x, y)
        f = ys.jit(lambda a, b: a @ b)

        def run(strategy: str, f: Any = f, x: Any = x, y: Any = y) -> Any:
            with ys.options(device=args.device, precision=strategy, tol=args.tol):
                return f(x, y)

        for _ in range(20):
            run("adaptive")
        step = f.plans[0].steps[0]
        kernel = step.kernels[step.candidate]
        assert isinstance(kernel, Certified)
        data = [t._node.buffer.data for t in (x, y)]
        bare = {"plain": partial(kernel._kernel, *data), "certified": partial(kernel, *data)}
        kernels = in_turns(bare, device.synchronize)
        whole = in_turns({name: partial(run, name) for name in ("f32", "adaptive")}, device.synchronize)
        shares = sorted(c / p - 1 for c, p in zip(kernels["certified"], kernels["plain"], strict=True))
        gains = sorted(a / b for a, b in zip(whole["f32"], whole["adaptive"], strict=True))
        share, gain = statistics.median(shares), statistics.median(gains)
        worst = max(worst, share)
        product = statistics.median(kernels["plain"]) * 1e3
        spread = [
            f"{s[len(s) // 4]:{kind}} – {s[-len(s) // 4]:{kind}}" for s, kind in ((shares, ".1%"), (gains, ".2f"))
        ]
        precision = step.candidate.precision.value
        print(
            f"| {n} | {precision} | {product:.3f} | {share:.1%} ({spread[0]}) | {gain:.2f} ({spread[1]}) |", flush=True
        )
    return int(worst > args.most)


if __name__ == "__main__":
    raise SystemExit(main())
