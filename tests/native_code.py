"""Programs by native code and by NumPy, side by side: what the tests of the native code need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from caches import seeded
from values import Array
from yosegi._graph.expand import in_parts
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._run.trace import trace
from yosegi._schedule.fuse import Region, RegionKind, is_constant
from yosegi._schedule.groups import RowLimits, grouped
from yosegi._tensor.op import leaf
from yosegi._tune.autotune import TuningResult
from yosegi._tune.records import Tuned
from yosegi.codegen.llvm.einsum_products import expanded
from yosegi.devices.cpu.kernel import numpy_function
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.results import Results
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import Variants

NATIVES = Natives()
RESULTS = Results()
needs_llvm = pytest.mark.skipif(NATIVES.reason is not None, reason=str(NATIVES.reason))
CODES = ["NumPy", pytest.param("native", marks=needs_llvm)]
"""What runs a program: for tests that must hold for both."""


def code(name: str) -> Any:
    """Evaluate by one of these."""
    return always_native() if name == "native" else nullcontext()


@contextmanager
def always_native(*, chunked: bool = False) -> Iterator[None]:
    """Native code for whatever it can be generated for; `chunked`: every unit of work is a chunk, for any thread."""
    stages, natives = import_module("yosegi.devices.cpu.tiered"), import_module("yosegi.devices.cpu.native_groups")
    plans = import_module("yosegi._run.evaluate")._plans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "worthwhile", lambda group: True)
        patch.setattr(stages, "_POLICY", replace(stages._POLICY, compiling=0.0))
        patch.setattr(import_module("yosegi.devices.cpu.device"), "_LOADING", 0.0)
        policy = replace(natives._POLICY, strided_elements=0)
        if chunked:
            policy = replace(policy, threaded_work=0, chunk_work=1, chunks_per_thread=1 << 30)
        patch.setattr(natives, "_POLICY", policy)
        plans.clear()  # what was planned before has its code
        yield
        plans.clear()


@contextmanager
def always(way: str) -> Iterator[None]:
    """Products by one of the ways to compute them, however small, where there is that way."""
    variants, stages = import_module("yosegi.devices.cpu.variants"), import_module("yosegi.devices.cpu.tiered")

    def best(self: Any, kind: str, candidates: Any, trial: Any) -> Tuned:
        name = way if way in candidates else next(iter(candidates))
        return Tuned(candidates[name](), TuningResult(name, {}))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(variants.TuningRecords, "best", best)
        patch.setattr(stages, "_POLICY", replace(stages._POLICY, small_product=0))
        yield


def region_of(*tensors: ys.Tensor) -> tuple[Region, list[Array]]:
    """A program as one region, and the arrays it reads."""
    key, leaves, _ = capture([t._node for t in tensors])
    graph = simplify(graph_of(key))
    shown = set(graph.outputs)
    nodes = tuple(e for e, c in enumerate(graph.calls)
                  if c.op is not leaf and (e in shown or not is_constant(graph, e)))  # fmt: skip
    region = Region(graph, RegionKind.SEQUENCE, nodes, graph.inputs, graph.outputs)
    return region, [np.asarray(node.buffer.data) for node in leaves]  # type: ignore[union-attr]


def groups_of(*tensors: ys.Tensor) -> list[list[str]]:
    """The ops of each native kernel of a program, and of the NumPy calls between them."""
    region = expanded(in_parts(region_of(*tensors)[0]))
    return [[call.op.name for call in part.calls] for part in grouped(region, RowLimits())]


def both(
    *tensors: ys.Tensor,
    arrays: list[Array] | None = None,
    natives: Natives = NATIVES,
    chunked: bool = False,
    reference_only: bool = False,
) -> list[tuple[Array, Array]]:
    """Each result by native code and by NumPy.

    It is an error if LLVM fails, or if there is nothing for it to do, unless `reference_only` says so. `arrays` are
    what the program reads, in the order of its inputs, in layouts of their own.
    """
    region, given = region_of(*tensors)
    given = given if arrays is None else arrays
    failures = len(trace.records)
    with always_native(chunked=chunked):
        native = native_function(region, Variants(natives, RESULTS))
        if not reference_only:
            assert any(name.startswith("xn") for name in native.__globals__), "nothing became native"
        made: tuple[Any, ...] = native(*given)
    assert len(trace.records) == failures, trace.records[-1]
    plain = numpy_function(region)
    expected: tuple[Any, ...] = plain(*given)
    return list(zip(made, expected, strict=True))


def program(x: ys.Tensor) -> ys.Tensor:
    """A loop."""
    return ys.sqrt(x * x + 1.0) - ys.abs(x)


def expected(x: Any) -> Any:
    """What it gives."""
    return np.sqrt(x * x + np.float32(1)) - np.abs(x)


def process(code: str, folder: Path, **environment: str) -> str:
    """What another process prints."""
    settings = os.environ | {"YOSEGI_CACHE_DIR": seeded(folder), "PYTHONPATH": os.pathsep.join(sys.path)} | environment
    done = subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
