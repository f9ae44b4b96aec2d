"""Ops with kernels of their own on a GPU that is not there: its memory is the host's, and its kernels are emulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import cuda_code
import emulation
import yosegi as ys
from fakes.gpus import fake_cupy
from opencl_regions import regions
from program_cases import BAD, ELEMENTS, INDEXING, RNG, SEARCHES, call
from program_code import expected
from values import Array, same
from yosegi.codegen.c.kernel_source import Kernel
from yosegi.devices.cuda.device import CUDADevice
from yosegi.devices.cuda.launch import Queue
from yosegi.errors import IndexingError
from yosegi.ops.index import scatter_add

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
SOME = {name: {**INDEXING, **ELEMENTS, **SEARCHES}[name] for name in (
    "rows in packets", "two axes", "replaced places", "added rows", "added nothing", "eye", "words", "few NaN",
)}  # fmt: skip


class Launched:
    """A launch by which the stream runs a kernel on the host."""

    folder: Path

    def __init__(self, queue: Any, generated: Kernel, buffers: int) -> None:
        self._queue, self._kernel, self._count = queue, generated, buffers

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        data = (*inputs, *outputs)
        self._queue.runtime.setDevice(0)
        self.at([d.pointer for d in data])
        self._queue.note(self, data, len(outputs))

    def at(self, pointers: Sequence[int]) -> None:
        assert len(pointers) == self._count
        arrays: Any = [SimpleNamespace(ctypes=SimpleNamespace(data=p)) for p in pointers]
        run = lambda: cuda_code.run(self._kernel, arrays, [], self.folder)
        self._queue.runtime.put("launch", self._queue.pointer, run)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> CUDADevice:
    monkeypatch.setattr(Launched, "folder", folder, raising=False)
    monkeypatch.setattr(Queue, "launch", lambda queue, kernel, buffers: Launched(queue, kernel, buffers))
    monkeypatch.setattr(Queue, "dialect", cuda_code.HOSTED)
    return CUDADevice(fake_cupy(1), 0)


def run(device: CUDADevice, tensor: ys.Tensor, times: int = 1) -> Array:
    """A tensor that is one call, by the device alone."""
    (region,) = regions(tensor)
    assert device.supports(region) is None
    kernel = device.compile(region)
    data = [device.from_host(n.buffer.data) for n in tensor._node.inputs if n.buffer is not None]
    made = [kernel(*data) for _ in range(times)]
    return np.asarray(device.to_host(made[-1][0]))


@pytest.mark.parametrize("name", SOME)
def test_cases(name: str, device: CUDADevice) -> None:
    tensor = SOME[name]()
    for times in (1, 3):  # the second run is recorded, the third is a replay
        same(run(device, tensor, times), expected(tensor), ulps=64)


def test_sums_are_ordered_in_deterministic_runs(device: CUDADevice) -> None:
    value, places = RNG.normal(size=(90, 3)).astype(np.float32), RNG.integers(0, 4, 90)
    made = scatter_add(ys.asarray(np.zeros((4, 3), np.float32)), ys.asarray(value), ys.asarray(places), axes=(0,), at=0)
    names = []
    for deterministic in (False, True):
        device.queue.runtime.told.clear()
        with ys.options(deterministic=deterministic):
            same(run(device, made), expected(made), ulps=64)
        names.append([n for n, _ in device.queue.runtime.told].count("launch"))
    assert names == [2, 6]  # a copy and atomics; listed by rows, ranked and added


def test_sources_of_floats_are_made_once(device: CUDADevice) -> None:
    tensor = call("spaced", start=0.0, stop=1.0, num=7, dtype=ys.float32, endpoint=True)
    same(run(device, tensor), expected(tensor))
    assert "launch" not in [n for n, _ in device.queue.runtime.told]


@pytest.mark.parametrize("name", BAD)
def test_indices_out_of_range_raise_when_the_result_is_read(name: str, device: CUDADevice) -> None:
    tensor, text = BAD[name]()
    with pytest.raises(IndexingError, match=text):
        run(device, tensor)
    device.synchronize()  # the mistake is known


def test_a_wrong_result_raises_whenever_it_is_read(device: CUDADevice) -> None:
    (tensor, text), fine = (
        next(iter(BAD.values()))(),
        call("cumulative_sum", np.ones(9, np.int64), axis=0, dtype=ys.int64),
    )
    (region,) = regions(tensor)
    data = [device.from_host(n.buffer.data) for n in tensor._node.inputs if n.buffer is not None]
    kernel = device.compile(region)
    for _ in range(3):  # the third is a replay
        (wrong,) = kernel(*data)
        same(run(device, fine), expected(fine), ulps=64)
        for _ in range(2):
            with pytest.raises(IndexingError, match=text):
                device.to_host(wrong)
