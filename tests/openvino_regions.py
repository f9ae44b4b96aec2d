"""The first device of OpenVINO driven directly, a graph as one region: what its tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from values import Array
from yosegi._graph.expand import expand
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.reference import bind
from yosegi._graph.simplify import simplify
from yosegi._run.child import ChildResult, Worker
from yosegi._run.device import Absent, Pending
from yosegi._schedule.fuse import Region, RegionKind, is_constant
from yosegi._tensor.op import leaf
from yosegi.devices import openvino


def resolved() -> list[Any]:
    """Its devices, when their drivers have qualified, or not."""
    return [d.resolved() if isinstance(d, Pending) else d for d in openvino.discover()]


DEVICE: Any = resolved()[0]
needed = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))
"""On tests that cannot be run without it."""
_RNG = np.random.default_rng(3)


def answering(
    monkeypatch: pytest.MonkeyPatch, folder: Path, answers: Callable[..., ChildResult]
) -> list[tuple[str, ...]]:
    """Child processes that answer so; the calls are noted in the list."""
    calls: list[tuple[str, ...]] = []

    def call(self: Worker, function: str, *arguments: str, timeout: float = 0) -> ChildResult:
        calls.append((function.partition(":")[2], *arguments))
        return answers(*calls[-1])

    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(folder))
    monkeypatch.setattr(Worker, "call", call)
    return calls


def numbers(*shape: int) -> Array:
    """Random float32 numbers, others every time."""
    return _RNG.normal(size=shape).astype(np.float32)


def in_a_process(code: str, **environment: str) -> str:
    """What another process prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment})  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def garbage() -> None:
    """From now on the pool hands out memory full of ones: what a model does not write shows."""
    DEVICE.models.pool.on_take = lambda memory, nbytes: memory.raw.fill(255)


def whole(*tensors: ys.Tensor, simplified: bool = True, expanded: bool = True) -> tuple[Region, list[Array]]:
    """Everything that these tensors need, as one region, and the values of its inputs."""
    key, leaves, _ = capture([t._node for t in tensors])
    graph = expand(graph_of(key), [DEVICE]) if expanded else graph_of(key)
    graph = simplify(graph) if simplified else graph
    outputs = graph.outputs[: len(tensors)]
    nodes = tuple(e for e, c in enumerate(graph.calls)
                  if c.op is not leaf and (e in outputs or not is_constant(graph, e)))  # fmt: skip
    return Region(graph, RegionKind.SEQUENCE, nodes, graph.inputs, outputs), [n.buffer.data for n in leaves]


def run(*tensors: ys.Tensor, simplified: bool = True) -> list[Array]:
    """The tensors' values, all of them computed by one model."""
    region, data = whole(*tensors, simplified=simplified)
    assert DEVICE.supports(region) is None, DEVICE.supports(region)
    return list(DEVICE.compile(region)(*data))


def reference(*tensors: ys.Tensor) -> list[Array]:
    """The tensors' values by the reference bodies, op by op."""
    region, data = whole(*tensors, simplified=False)
    graph = region.graph
    values: dict[int, Any] = dict(zip(graph.inputs, data, strict=True))
    with np.errstate(all="ignore"):
        for entry, call in enumerate(graph.calls):
            if entry not in values:
                made = bind(call)(*[values[a] for a in graph.args[entry]])
                values[entry] = np.asarray(made).astype(call.spec.dtype.numpy)
    return [np.asarray(values[o]) for o in region.outputs]


def reason(*tensors: ys.Tensor) -> str | None:
    """Why the device does not take the tensors as one region."""
    return DEVICE.supports(whole(*tensors, expanded=False)[0])
