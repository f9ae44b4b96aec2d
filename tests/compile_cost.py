"""What compiling costs: loops and products in a process that has compiled nothing of the kind, and in the next one.

    make compile-cost, or: PYTHONPATH=src:tests python tests/compile_cost.py [--rounds 5] [--filter pow,product]

A round is two processes with a folder of their own for what is kept on disk: the first compiles, the second finds it
there. All loops share them, each product has its own, because products share objects. Both begin with another loop, so
that LLVM is there; what that takes is the row "LLVM itself", with the trial of the machine in the first. Figures are
milliseconds, of the middle round: all of it, from a region to a function that can be called; of that, what the compiler
took (writing its text not included); and all of it in the second process. Of a product, every way to compute it is
compiled; to choose the fastest takes up to 0.3 s more, once for a machine, which is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatch
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from native_code import NATIVES, RESULTS, region_of
from yosegi import nn
from yosegi._graph.expand import in_parts
from yosegi._schedule.fuse import RegionKind
from yosegi._schedule.groups import Group, RowLimits, grouped
from yosegi._tensor.dtype import DType, bfloat16, complex64, float16, float32, float64
from yosegi._tune.autotune import TrialSetup, TuningResult
from yosegi._tune.records import Candidates, Tuned, TuningRecords
from yosegi.codegen.llvm.einsum_products import expanded
from yosegi.codegen.llvm.nest import VectorTarget
from yosegi.codegen.llvm.rows import kernel
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import Variants

BEGIN = "LLVM itself"


def _of(*shape: int, dtype: DType = float32, above: float = -1.0) -> ys.Tensor:
    numbers = np.random.default_rng(0).uniform(above, 1.0, shape)
    return ys.asarray(numbers.astype(dtype.numpy))


def chain(x: ys.Tensor, y: ys.Tensor, z: ys.Tensor) -> ys.Tensor:
    """Four elementary functions."""
    return ys.exp(ys.sin(x)) * ys.log(y) + ys.tanh(z)


def gelu(x: ys.Tensor, w: ys.Tensor, b: ys.Tensor) -> ys.Tensor:
    """What a layer without a product does."""
    return nn.gelu(x * w + b)


def _numbers(count: int, dtype: DType = float32, size: int = 100_000) -> list[ys.Tensor]:
    return [_of(size, dtype=dtype, above=0.1) for _ in range(count)]


LOOPS: dict[str, Callable[[], ys.Tensor]] = {
    "add": lambda: ys.add(*_numbers(2)),
    "gelu(x * w + b)": lambda: gelu(*_numbers(3)),
    "gelu(x * w + b), float64": lambda: gelu(*_numbers(3, float64)),
    "gelu(x * w + b), float16": lambda: gelu(*_numbers(3, float16)),
    "gelu(x * w + b), bfloat16": lambda: gelu(*_numbers(3, bfloat16)),
    "softmax of rows": lambda: nn.softmax(_of(4096, 1024)),
    "layer norm": lambda: nn.layer_norm(_of(4096, 1024), _of(1024), _of(1024)),
    "pow": lambda: ys.pow(*_numbers(2)),
    "pow, float64": lambda: ys.pow(*_numbers(2, float64)),
    "four functions": lambda: chain(*_numbers(3)),
    "four functions, float64": lambda: chain(*_numbers(3, float64)),
    "sin": lambda: ys.sin(*_numbers(1)),
    "tan, float64": lambda: ys.tan(*_numbers(1, float64)),
    "asinh, float64": lambda: ys.asinh(*_numbers(1, float64)),
    "sum": lambda: ys.sum(_of(1_000_000)),
    "cumulative sum": lambda: ys.cumulative_sum(_of(1_000_000)),
    "exp, complex64": lambda: ys.exp(_of(100_000, dtype=complex64)),
    "add, float16": lambda: ys.add(*_numbers(2, float16)),
    "exp, bfloat16": lambda: ys.exp(*_numbers(1, bfloat16)),
}
"""Loops, by name: among them those with the longest text."""
PRODUCTS: dict[str, Callable[[], ys.Tensor]] = {
    "product 256": lambda: _of(256, 256) @ _of(256, 256),
    "product 1024": lambda: _of(1024, 1024) @ _of(1024, 1024),
    "relu(x @ w + b + r) 512": lambda: nn.relu(_of(512, 512) @ _of(512, 512) + _of(512) + _of(512, 512)),
    "gelu(x) @ w + b 512": lambda: nn.gelu(_of(512, 512)) @ _of(512, 512) + _of(512),
    "product 300 × 500 × 200": lambda: _of(300, 500) @ _of(500, 200),
    "product 256, float64": lambda: _of(256, 256, dtype=float64) @ _of(256, 256, dtype=float64),
}
CASES = LOOPS | PRODUCTS


def sources(case: str, target: VectorTarget) -> list[str]:
    """The text of a loop's kernels."""
    region = expanded(in_parts(region_of(LOOPS[case]())[0]))
    parts = [part for part in grouped(region, RowLimits()) if part.kind in (RegionKind.LOOP, RegionKind.REDUCTION)]
    return [kernel(Group.of(part), target)[0] for part in parts]


@contextmanager
def _every_way() -> Iterator[None]:
    """Products in all ways, without a contest."""

    def best(self: TuningRecords, kind: str, candidates: Candidates, trial: TrialSetup) -> Tuned:
        made = {name: make() for name, make in candidates.items()}
        return Tuned(None, TuningResult(next(iter(made)), {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TuningRecords, "best", best)
        yield


def _measured(names: list[str], *, is_first: bool) -> dict[str, tuple[float, float]]:
    """Of each case, the milliseconds of all and those of the compiler, in this process."""
    start = perf_counter()
    runtime = NATIVES.runtime
    assert runtime is not None, NATIVES.reason
    variants = Variants(NATIVES, RESULTS)

    def taken(make: Callable[[], ys.Tensor]) -> tuple[float, float]:
        region = in_parts(region_of(make())[0])
        before, begin = runtime.compiler.seconds, perf_counter()
        with _every_way() if is_first else nullcontext():
            native_function(region, variants)
        end, after = perf_counter(), runtime.compiler.seconds
        if is_first:
            native_function(region, variants)  # the second process finds who was chosen
        return 1e3 * (end - begin), 1e3 * (after - before)

    taken(lambda: ys.multiply(*_numbers(2, size=50_000)))
    began = 1e3 * (perf_counter() - start)
    return {BEGIN: (began, began)} | {name: taken(CASES[name]) for name in names}


def _in_a_child(names: list[str], folder: str, turn: str) -> dict[str, tuple[float, float]]:
    """The same in another process."""
    environment = os.environ | {"YOSEGI_CACHE_DIR": folder}
    command = [sys.executable, __file__, "--child", turn, json.dumps(names)]
    made: Any = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    return {name: (total, compiler) for name, (total, compiler) in made.items()}


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--filter", default="*", help="cases, with commas between them; * stands for anything")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        turn, cases = given.child
        print(json.dumps(_measured(json.loads(cases), is_first=turn == "first")))
        return
    names = [n for n in CASES if any(fnmatch(n, f"*{wanted}*") for wanted in given.filter.split(","))]
    batches = [[n for n in names if n in LOOPS], *[[n] for n in names if n in PRODUCTS]]
    rounds = []
    for _ in range(given.rounds):
        first: dict[str, tuple[float, float]] = {}
        second: dict[str, tuple[float, float]] = {}
        for batch in batches:
            with TemporaryDirectory() as folder:
                first |= _in_a_child(batch, folder, "first")
                second |= _in_a_child(batch, folder, "second")
        rounds.append((first, second))
    print(f"{'ms':32}{'cold':>8}{'LLVM':>8}{'second process':>16}")
    for name in [BEGIN, *names]:
        figures = [(*first[name], second[name][0]) for first, second in rounds]
        cold, compiler, found = (median(column) for column in zip(*figures, strict=True))
        print(f"{name:32}{cold:8.1f}{compiler:8.1f}{found:16.2f}")


if __name__ == "__main__":
    main()
