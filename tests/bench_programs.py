"""Whole programs in plain user code beside PyTorch on the CPU: checked first, then timed in turns.

    PYTHONPATH=tests python tests/bench_programs.py [--device auto] [--only part] [--turns 3] [--seconds 0.3]
        [--compile] [--first] [--processor-time]

The programs are in `beside`. The results of the first three runs are compared with PyTorch's in float64. A ratio is
the time of the fastest peer by Yosegi's: below 1, Yosegi loses. With `--first`, each program's first run is timed in a
process and with a cache of its own, instead. `YOSEGI_THREADS` is the number of threads of all contenders, 2 by
default. With `--processor-time`, and one thread, the time that other processes take does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

import yosegi as ys
from bench_inference import in_turns
from beside import images, language, science, tables
from beside.program import PROGRAMS, Program


def flat(value: Any) -> Iterator[Any]:
    """The arrays of a result, floats in float64."""
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from flat(part)
    else:
        array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        yield array.astype(np.float64)


def error(own: list[Any], expected: list[Any]) -> float:
    """The greatest difference of any result, by its norm."""
    pairs = list(zip(flat(own), flat(expected), strict=True))
    return max(float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30)) for a, b in pairs)


def measured(program: Program, args: Any) -> str:
    """One line of the table."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    reference = program.theirs(lambda f: f, torch.float64)
    expected = [reference() for _ in range(3)]
    torch.set_default_dtype(torch.float32)
    contenders = {"Yosegi": program.ours(), "eager": program.theirs(lambda f: f, torch.float32)}
    if args.compile:
        contenders["compiled"] = program.theirs(torch.compile, torch.float32)
    start = perf_counter()
    firsts = [contenders["Yosegi"]()]
    first = perf_counter() - start
    differs = error([*firsts, *(contenders["Yosegi"]() for _ in range(2))], expected)
    mark = "" if differs <= program.tolerance else " WRONG"
    times = in_turns(contenders, args.turns, args.seconds, by_processor=args.processor_time)
    own, best = times["Yosegi"], min(median(t) for name, t in times.items() if name != "Yosegi")
    spread = f"{median(own):9.3f} ({min(own):.3f} to {max(own):.3f})"
    peers = ", ".join(f"{name} {median(t):.3f}" for name, t in times.items() if name != "Yosegi")
    ratio = best / median(own)
    return f"{ratio:6.2f} {program.title:52} {spread}, {peers}; first {first:.2f} s; error {differs:.1e}{mark}"


def first_call(title: str) -> str:
    """The seconds of a first run in a process of its own, with an empty cache and a full one."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *sys.argv[1:], "--alone", title]
        made = [
            subprocess.run(
                command, env={**os.environ, "YOSEGI_CACHE_DIR": folder}, check=True, capture_output=True, text=True
            )
            for _ in range(2)
        ]
    cold, warm = (float(m.stdout.split()[-1]) for m in made)
    return f"{cold:6.2f} s cold, {warm:6.2f} s warm  {title}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--only", default="", help="parts of titles, separated by commas; without them, all")
    parser.add_argument("--alone", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("YOSEGI_THREADS", "2")))
    torch.manual_seed(0)
    warnings.filterwarnings("ignore", module="torch")
    for family in (language, images, tables, science):
        family.add_all()
    parts = args.only.lower().split(",")
    with ys.options(device=args.device):
        if args.alone:
            (run,) = (p.ours() for p in PROGRAMS if p.title == args.alone)
            start = perf_counter()
            run()
            print(perf_counter() - start)
            return
        if args.device == "auto" and not args.first:
            print(", ".join(device.name for device in ys.devices()))  # qualifies all drivers
        for program in PROGRAMS:
            if any(part in program.title.lower() for part in parts):
                print(first_call(program.title) if args.first else measured(program, args), flush=True)


if __name__ == "__main__":
    main()
