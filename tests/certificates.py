"""The precision contract over many calls: inputs turn hostile at random moments, and no result is beyond its tolerance.

    python tests/certificates.py [--calls 20000] [--seed 0] [--devices cpu,openvino:0]

A session is one product or convolution, jitted or not, on one device, under one tolerance. Its inputs are benign for a
random number of calls. Then they are hostile: sums that cancel everywhere, in 1 to 12 rows, in one column or in one
entry. Every result is compared with float64. A session in which reduced precision never ran shows nothing; how many did
is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

import yosegi as ys
from fakes import installed
from fakes.reduced import Reduced
from hostile import ALL
from yosegi._run.trace import trace
from yosegi._tensor.op import REGISTRY
from yosegi._tune.certificate import relative_error

TOLERANCES = (1e-1, 3e-2, 2e-2, 1e-2, 1e-2, 3e-3, 1e-3, 1e-4)
Pair = tuple[Any, Any]


def _cancelling(rng: np.random.Generator, a: Any, b: Any, rows: Any, columns: Any) -> None:
    """Make the sums of some rows and columns cancel, and large before they do."""
    half, size = a.shape[1] // 2, 10.0 ** rng.uniform(1, 3)
    values = rng.standard_normal((len(rows), half)) * size
    off = 1 + 10.0 ** rng.uniform(-4, -1)
    a[rows, :half], a[rows, half : 2 * half], a[rows, 2 * half :] = values, -values * off, 0
    b[:, columns] = size * (1 + 10.0 ** rng.uniform(-3, -1) * rng.standard_normal((len(b), len(columns))))


def pair(rng: np.random.Generator, shape: tuple[int, int, int], kind: str) -> Pair:
    """Two operands."""
    m, k, n = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "everywhere":
        _cancelling(rng, a, b, range(m), range(n))
    elif kind == "rows":
        _cancelling(rng, a, b, rng.choice(m, rng.integers(1, 13), replace=False), range(n))
    elif kind == "column":
        _cancelling(rng, a, b, range(m), [rng.integers(n)])
    elif kind == "entry":
        _cancelling(rng, a, b, [rng.integers(m)], [rng.integers(n)])
    return a.astype(np.float32), b.astype(np.float32)


HOSTILE = ("everywhere", "rows", "column", "entry")


def _as_images(a: Any, b: Any, side: int) -> Pair:
    """Operands as those of a convolution: the sums run over the channels and a window of one place."""
    m, k = a.shape
    x = np.ascontiguousarray(np.moveaxis(a.reshape(m // side**2, side, side, k), 3, 1))
    return x, np.ascontiguousarray(b.T)[:, :, None, None]


def session(rng: np.random.Generator, device: str, most: int, count: Counter[str]) -> int:
    """One session; how many calls it was."""
    tolerance = float(rng.choice(TOLERANCES))
    is_conv = rng.random() < 0.3
    side = int(rng.choice([4, 8]))
    m = int(rng.choice([1, 3, 9])) * 64 if is_conv else int(2 ** rng.uniform(5, 10))
    k, n = int(2 ** rng.uniform(6, 9 if is_conv else 10)), int(2 ** rng.uniform(5, 9))
    kinds = ["benign"] * 3 + list(rng.choice(HOSTILE, 4))
    operands = [pair(rng, (m, k, n), kind) for kind in kinds]
    truths = [a.astype(np.float64) @ b.astype(np.float64) for a, b in operands]
    program: Callable[..., Any] = lambda x, w: x @ w
    if is_conv:
        operands = [_as_images(a, b, side) for a, b in operands]
        truths = [np.moveaxis(t.reshape(-1, side, side, n), 3, 1) for t in truths]
        program = lambda x, w: REGISTRY["conv"](x, w)
    is_jitted = bool(rng.random() < 0.7)
    run = ys.jit(program) if is_jitted else program
    tensors = [(ys.asarray(a), ys.asarray(b)) for a, b in operands]
    calls = int(min(most, rng.integers(5, 60)))
    turns = int(rng.integers(0, calls))
    reduced = False
    with ys.options(device=device, precision="adaptive", tol=tolerance):
        for call in range(calls):
            which = int(rng.integers(3) if call < turns else rng.integers(len(kinds)))
            got = run(*tensors[which]).numpy()
            error = relative_error(got, truths[which])
            label = f"{device}, {'conv' if is_conv else 'matmul'} {(m, k, n)}, tol {tolerance}, call {call}, "
            label += f"jit {is_jitted}: {kinds[which]}"
            if not error <= tolerance:
                count["BEYOND"] += 1
                print(f"{label}: an error of {error:.1e}", flush=True)
        if is_jitted:
            reduced = any(
                s.missed or s.candidate.precision.value not in ("full", "f64") for p in run.plans for s in p.steps
            )  # type: ignore[attr-defined]
    count["sessions in reduced precision"] += reduced
    count["sessions"] += 1
    count[f"calls on {device}"] += calls
    count.update(f"steps on {record.device}" for record in trace.records)
    return calls


def main() -> int:
    """Run them all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--devices", default="")
    args = parser.parse_args()
    names = args.devices.split(",") if args.devices else [d.name for d in ys.devices()]
    count: Counter[str] = Counter()
    done, seed, start = 0, args.seed, time.monotonic()
    with installed(Reduced(*ALL)) as fake:
        while done < args.calls:
            rng = np.random.default_rng(seed)
            device = [*names, fake][seed % (len(names) + 1)]
            trace.clear()
            done += session(rng, device, args.calls - done, count)
            seed += 1
    print(f"{done} calls, {time.monotonic() - start:.0f} s; " + ", ".join(f"{k}: {n}" for k, n in count.items()))
    return 1 if count["BEYOND"] else 0


if __name__ == "__main__":
    sys.exit(main())
