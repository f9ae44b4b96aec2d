"""The peak memory of training steps beside PyTorch's, each in a process of its own, in MB above the start.

    PYTHONPATH=tests python tests/memory_training.py [--steps 6] [--flat 2000]

The models are those of `bench_training`. A process counts its largest resident size after a warm-up, minus its size
before the model was built. The last line trains a small model for `--flat` steps with a schedule: the memory after the
first tenth and at the end, and the plans that were made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import yosegi as ys
from bench_training import cases, ours, theirs

WARM_UP = 12


def status(field: str) -> int:
    """A size of this process in bytes: `VmRSS` is the present one, `VmHWM` the largest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def peak(library: str, number: int, steps: int) -> dict[str, Any]:
    """The largest size of this process in training steps after a warm-up, above its present size."""
    torch.set_num_threads(2)
    start = status("VmRSS")
    title, make, make_peer, x, y, rule, peer_rule = cases()[number]
    if library == "Yosegi":
        run = ours(make(), rule, ys.asarray(x), ys.asarray(y))
    else:
        peer = make_peer()
        run = theirs(peer, peer_rule(peer.parameters()), torch.from_numpy(x), torch.from_numpy(y), is_compiled=False)
    for _ in range(WARM_UP):
        run()
    Path("/proc/self/clear_refs").write_text("5")  # the largest size is counted anew
    for _ in range(steps):
        run()
    return {"title": title, "peak": status("VmHWM") - start, "pool": ys.memory_stats()["devices"]["cpu"]}


def flat(steps: int) -> dict[str, Any]:
    """The memory of a small model in a long run, and how often it was planned."""
    rng = ys.random.default_rng(0)
    x, y = rng.normal((64, 32), dtype=ys.float32), rng.normal((64, 4), dtype=ys.float32)
    rate = ys.optim.warmup(ys.optim.cosine_decay(1e-3, steps), 10)
    model = ys.nn.Sequential(ys.nn.Linear(32, 64, rng=rng), ys.nn.GELU(), ys.nn.Linear(64, 4, rng=rng))
    optimizer = ys.optim.AdamW(model, lr=rate)

    @ys.jit
    def step(optimizer: Any, x: Any, y: Any) -> Any:
        value, grads = ys.nn.value_and_grad(optimizer.params, lambda m: ys.mean((m(x) - y) ** 2))()
        return optimizer.step(grads), value

    sizes, plans = [], []
    for n in range(steps):
        optimizer, value = step(optimizer, x, y)
        if n + 1 in (max(1, steps // 10), steps):
            float(value)
            sizes.append(status("VmRSS"))
            plans.append(ys.memory_stats()["plans"])
    return {"sizes": sizes, "plans": plans}


def _in_child(*arguments: str) -> Any:
    settings = {**os.environ, "YOSEGI_DEVICE": "cpu"}
    made = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, env=settings, check=True)
    return json.loads(made.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--flat", type=int, default=2000)
    parser.add_argument("--child", nargs="+")
    args = parser.parse_args()
    if args.child:
        kind, *rest = args.child
        print(json.dumps(flat(int(rest[0])) if kind == "flat" else peak(kind, int(rest[0]), args.steps)))
        return
    for number in range(2):
        made = {name: _in_child("--child", name, str(number)) for name in ("Yosegi", "PyTorch")}
        sizes = {name: m["peak"] / 1e6 for name, m in made.items()}
        print(made["Yosegi"]["title"], ", ".join(f"{name} {size:.0f} MB" for name, size in sizes.items()),
              f"{sizes['Yosegi'] / sizes['PyTorch']:.2f} times")  # fmt: skip
    made = _in_child("--child", "flat", str(args.flat))
    print(f"{args.flat} steps:", ", ".join(f"{s / 1e6:.1f} MB" for s in made["sizes"]), "plans", made["plans"])


if __name__ == "__main__":
    main()
