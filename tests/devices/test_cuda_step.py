"""A jitted step on a CUDA device, through the whole runtime: one unit, one launch, and memory that stays the same. The
GPU is a fake (`fakes.gpus`), whose kernels do nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes import installed
from fakes.gpus import Runtime, fake_cupy
from yosegi.devices.cuda.device import CUDADevice

LAYERS = 40


class Machine:
    """A machine with one GPU."""

    def __init__(self) -> None:
        cupy = fake_cupy(1)
        self.runtime: Runtime = cupy.cuda.runtime
        self.device = CUDADevice(cupy, 0)

    def told(self) -> Counter[str]:
        """What was put into the stream since the last look."""
        made = Counter(name for name, _ in self.runtime.told)
        self.runtime.told.clear()
        return made


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    made = Machine()
    with installed(made.device, alone=True) as name, ys.options(device=name):  # type: ignore[arg-type]
        yield made


@ys.jit
def step(params: list[Any], rate: Any, x: Any) -> tuple[list[Any], Any]:
    """A model without products, which the fake has no library for."""

    def loss(params: list[Any]) -> Any:
        y = x
        for p in params:
            y = ys.tanh(y * p["w"] + p["b"])
        return ys.mean(y * y)

    value, slopes = ys.value_and_grad(loss)(params)
    return ys.tree_map(lambda p, s: p - rate * s, params, slopes), value


def model() -> list[Any]:
    ones, zeros = np.ones((16, 300), np.float32), np.zeros(300, np.float32)
    return [{"w": ys.asarray(ones), "b": ys.asarray(zeros)} for _ in range(LAYERS)]


def run(machine: Machine, count: int, kept: list[Any] | None = None) -> list[Counter[str]]:
    params, x = model(), ys.asarray(np.ones((16, 300), np.float32))
    told = []
    for n in range(count):
        params, loss = step(params, ys.asarray(np.float32(n)), x)
        if kept is not None:
            kept.append(loss)
        told.append(machine.told())
    return told


@pytest.mark.parametrize("keeps", [False, True])
def test_a_step_is_one_launch(machine: Machine, keeps: bool) -> None:
    told = run(machine, 30, [] if keeps else None)
    (plan,) = [p for p in step.plans if p.steps[0].device is machine.device]
    assert len(plan.steps) == 1
    assert len(plan.steps[0].region.nodes) > 256
    last = told[-10:]
    assert all(t["graph"] == 1 and not t["launch"] for t in last)
    assert sum(t["malloc"] for t in last) <= (10 if keeps else 0)  # a loss that is kept is new memory
    assert "one launch of" in str(plan.explain())
    assert "one launch of" in plan.explain()._repr_html_()


def test_memory_is_given_back_and_taken_again(machine: Machine) -> None:
    run(machine, 10)
    device = machine.device
    before = device.statistics()["in_use"]
    device.trim()
    after = device.statistics()["in_use"]
    assert before is not None
    assert after is not None
    assert after < before
    told = run(machine, 12)
    assert all(t["graph"] == 1 and not t["launch"] for t in told[-4:])


def test_runs_that_must_repeat_are_one_launch_too(machine: Machine) -> None:
    with ys.options(device=machine.device.name, deterministic=True):
        told = run(machine, 20)
    assert all(t["graph"] == 1 and not t["launch"] for t in told[-5:])
