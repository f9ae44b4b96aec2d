"""A training run that is killed at random moments, also in writing a checkpoint, and resumed each time.

`python tests/training/kills.py --kills 20` fails if its last weights differ in a bit from those of a run that was left
alone.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEPS = 200


def train(folder: Path) -> None:
    """Train, resumed from the last checkpoint, and print a line when it begins, and the digest of the weights."""
    import numpy as np

    import yosegi as ys

    rng = ys.random.default_rng(1)
    data = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    loader = ys.training.Loader((data, data[:, 0] * data[:, 1]), 16, shuffle=True, workers=2)
    params = {
        "w": ys.random.default_rng(2).normal((8, 32), dtype=ys.float32) * 0.3,
        "v": ys.zeros((32,), dtype=ys.float32),
    }
    optimizer = ys.optim.AdamW(params, lr=ys.optim.cosine_decay(0.02, STEPS))
    weight = ys.zeros((1 << 20,), dtype=ys.float32)  # makes a checkpoint slow to write

    @ys.jit
    def step(optimizer, x, y):
        def loss(params):
            hidden = ys.nn.dropout(ys.nn.relu(x @ params["w"]), 0.1, rng=rng)
            return ys.mean((hidden @ params["v"] - y) ** 2)

        value, grads = ys.value_and_grad(loss)(optimizer.params)
        return optimizer.step(grads), value

    with ys.deterministic():
        checkpoints = ys.training.Checkpoints(folder, keep=2)
        state = {"optimizer": optimizer, "rng": rng, "loader": loader, "weight": weight}
        done, state = checkpoints.restore(state) or (0, state)
        optimizer = state["optimizer"]
        print("begins", flush=True)
        while done < STEPS:
            for x, y in loader:
                optimizer, _ = step(optimizer, x, y)
                done += 1
                if done % 4 == 0:
                    checkpoints.save(done, {**state, "optimizer": optimizer})
                if done == STEPS:
                    break
        leaves = [leaf.numpy().tobytes() for leaf in ys.tree_leaves(optimizer)]
        print(hashlib.sha256(b"".join(leaves)).hexdigest(), flush=True)


def started(folder: Path) -> subprocess.Popen[str]:
    """A process that trains, at its first step."""
    command = [sys.executable, __file__, "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n"
    return process


def killed(folder: Path, in_writing: bool, moment: float) -> bool:
    """Train, and kill the process: in writing a checkpoint, or after some seconds. True if a checkpoint was cut off."""
    old = set(folder.glob("*.partial"))  # of a process that was killed before
    process = started(folder)
    end = time.monotonic() + moment
    while process.poll() is None and time.monotonic() < end + (60 if in_writing else 0):
        if in_writing and time.monotonic() >= end and set(folder.glob("*.partial")) - old:
            break
        time.sleep(0.0002)
    process.kill()
    process.communicate()
    return bool(set(folder.glob("*.partial")) - old)


def compared(kills: int, seed: int) -> int:
    """The number of checkpoints that were cut off. Raises if the weights differ."""
    draw = random.Random(seed)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        expected, _ = started(Path(first)).communicate()
        cut = sum(killed(Path(second), n % 2 == 0, draw.uniform(0, 0.3)) for n in range(kills))
        got, _ = started(Path(second)).communicate()
    assert len(expected) == 65, expected
    assert got == expected, f"{got} after {kills} kills, {expected} without"
    return cut


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.folder:
        train(args.folder)
    else:
        print(f"{args.kills} kills, {compared(args.kills, args.seed)} in writing a checkpoint: the same bits")
