"""The transformer example on several processes, in all ways: python tests/distributed/parallel_example.py [steps].

Compares the losses with those of one process. Rounding differs between numbers of ranks, and training amplifies it, so
only the first losses are compared closely. Two data parallel runs on the same number of ranks must have the same bits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
EXAMPLE = HERE.parent.parent / "examples" / "train_char_transformer.py"
CLI = "import sys; from yosegi.tools.cli import main; sys.exit(main())"
CLOSE = 20
"""Steps whose losses are compared closely."""


def losses(way, ranks, steps, out):
    """The losses of one run."""
    command = [
        sys.executable,
        "-c",
        CLI,
        "launch",
        "-n",
        str(ranks),
        str(EXAMPLE),
        "--parallel",
        way,
        "--device",
        "cpu",
    ]
    done = subprocess.run(
        [*command, "--steps", str(steps), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((out / "losses.json").read_text(encoding="utf-8"))


def check(runs, steps):
    """Run the example on numbers of ranks, in ways, as often as named. Prints a line for each, and compares."""
    expected: list[float] = []
    known: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for n, (way, ranks) in enumerate(runs):
            found = losses(way, ranks, steps, Path(folder) / str(n))
            expected = expected or found
            apart = np.abs(np.asarray(found) / expected - 1)
            end = np.mean(found[-20:])
            print(
                f"{way:8} on {ranks}: loss {end:.4f} at the end; relative difference from one process: "
                f"{apart[:CLOSE].max():.1e} in {min(steps, CLOSE)} steps, {apart.max():.1e} in all",
                flush=True,
            )
            assert apart[:5].max() < 1e-5
            assert apart[:CLOSE].max() < 1e-3
            assert abs(end / np.mean(expected[-20:]) - 1) < 0.02
            assert known.setdefault((way, ranks), found) == found, "two runs differ"


if __name__ == "__main__":
    ways = [("data", 1), ("data", 2), ("data", 4), ("data", 2), ("data", 4), ("tensor", 2), ("tensor", 4)]
    ways += [("sharded", 2), ("sharded", 4)]
    check([*ways, ("pipeline", 1), ("pipeline", 2), ("pipeline", 4)], int((sys.argv[1:] or ["600"])[0]))
