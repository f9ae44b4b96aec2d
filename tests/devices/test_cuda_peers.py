"""Several GPUs: which one is current. With streams that are lists (`fakes.gpus`)."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes.gpus import LOST, Runtime, fake_cupy
from opencl_regions import regions
from yosegi.device import Absent
from yosegi.devices import cuda
from yosegi.devices.cuda.device import CUDADevice
from yosegi.errors import DeviceLost

A = np.arange(1000, dtype=np.float32)


class Pair:
    """Two GPUs."""

    def __init__(self) -> None:
        self.cupy = fake_cupy(2)
        self.runtime: Runtime = self.cupy.cuda.runtime
        self.first, self.second = (CUDADevice(self.cupy, n) for n in range(2))
        self.streams = self.first.queue.pointer, self.second.queue.pointer


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return Pair()


# Which GPU is current


def elsewhere(pair: Pair, work: Any) -> Any:
    """What a thread of its own gets, on which GPU 0 is current."""
    got: list[Any] = []
    thread = Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()
    thread.join(60)
    (made,) = got
    return made


def test_programs_are_loaded_for_the_gpu_that_runs_them(pair: Pair) -> None:
    (region,) = regions(ys.asarray(A) * 2.5 + 1)
    kernel = elsewhere(pair, lambda: pair.second.compile(region))  # GPU 0 is current there
    inputs = [pair.second.from_host(A), *[pair.second.from_host(np.float32(n)) for n in (2.5, 1)]]
    for _ in range(5):
        pair.runtime.setDevice(0)
        (made,) = kernel(*inputs[: len(region.inputs)])
    assert made.shape == A.shape
    assert ("graph", pair.streams[1]) in pair.runtime.told


def test_streams_to_capture_in_are_of_the_right_gpu(pair: Pair) -> None:
    pair.runtime.setDevice(0)
    pair.second.queue.captured([])
    (aside,) = pair.second.queue._asides
    assert pair.runtime.gpu_of(aside.ptr) == 1


def test_memory_goes_back_whichever_gpu_is_current(pair: Pair) -> None:
    def tried() -> int:
        pair.second.from_host(A)
        pair.runtime.setDevice(0)
        return pair.second._memory.pool.trim()

    assert elsewhere(pair, tried) > 0
    assert pair.runtime.told[-1] == ("free", pair.streams[1])


def test_all_gpus_together_pin_no_more_than_one_does(pair: Pair) -> None:
    limits = [CUDADevice(fake_cupy(gpus), 0)._memory._pinned.limit or 0 for gpus in (1, 8)]
    assert limits[1] == limits[0] // 8


def test_a_gpu_that_cannot_become_current_is_a_devices_failure(pair: Pair) -> None:
    data = pair.first.from_host(A)
    pair.runtime.failing["setDevice"] = LOST
    for work in (
        lambda: pair.first.from_host(A), lambda: pair.first.to_host(data), pair.first.synchronize,
    ):  # fmt: skip
        with pytest.raises(DeviceLost):
            work()


def test_all_gpus_are_found_and_the_current_one_stays(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: object())
    monkeypatch.setattr(cuda, "verdict", lambda version: None)
    module = fake_cupy(3)
    monkeypatch.setitem(sys.modules, "cupy", module)
    works = module.cuda.runtime.getDeviceProperties
    module.cuda.runtime.getDeviceProperties = lambda n: works(n) if n != 1 else {}["nothing"]
    found = list(cuda.discover())
    assert [d.name for d in found] == ["cuda:0", "cuda:1", "cuda:2"]
    assert [isinstance(d, Absent) for d in found] == [False, True, False]
    assert module.cuda.runtime.getDevice() == 0
