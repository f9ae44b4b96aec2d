"""Several GPUs: what goes from one to another, and which one is current. With streams that are lists (`fakes.gpus`),
and on a GPU where there is one."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from ctypes import memmove
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from fakes import FakeDevice, installed
from fakes.gpus import LOST, Runtime, fake_cupy
from opencl_regions import regions
from yosegi._run.device import Absent
from yosegi._run.memory import HOST, Buffer, Method
from yosegi._run.run import transfers
from yosegi._tensor.dtype import float32
from yosegi.devices import cuda
from yosegi.devices.cuda.device import CUDADevice
from yosegi.devices.cuda.memory import Data
from yosegi.errors import DeviceLost, ValuesLost

A = np.arange(1000, dtype=np.float32)


class Pair:
    """Two GPUs."""

    def __init__(self) -> None:
        self.cupy = fake_cupy(2)
        self.runtime: Runtime = self.cupy.cuda.runtime
        self.first, self.second = (CUDADevice(self.cupy, n) for n in range(2))
        self.streams = self.first.queue.pointer, self.second.queue.pointer

    def written(self, device: CUDADevice, data: Data, values: Any) -> None:
        """Let a kernel write values, when its turn comes."""
        pointer, source = data.pointer, np.ascontiguousarray(values)
        self.runtime.setDevice(device.queue.number)
        self.runtime.put("kernel", device.queue.pointer, lambda: memmove(pointer, source.ctypes.data, source.nbytes))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return Pair()


def taken(source: CUDADevice, target: CUDADevice, data: Data) -> Data:
    link = target.link_from(source)
    assert link is not None
    made: Data = link(data)
    return made


def test_a_copy_waits_for_what_writes_it_and_is_waited_for(pair: Pair) -> None:
    data = pair.first.from_host(A)
    pair.runtime.told.clear()
    made = taken(pair.first, pair.second, data)
    one, two = pair.streams
    steps = [("record", one), ("wait", two), ("peer copy", two), ("record", two), ("wait", one)]
    assert [t for t in pair.runtime.told if t[0] != "malloc"] == steps  # nobody waits on the host
    assert pair.runtime.getDevice() == 1  # where the data is wanted
    assert not pair.runtime._events
    np.testing.assert_array_equal(pair.second.to_host(made), A)


@pytest.mark.parametrize("seed", range(20))
def test_a_source_is_written_late_and_its_memory_soon_again(pair: Pair, seed: int) -> None:
    data = pair.first._memory.new(A.shape, float32)
    pair.written(pair.first, data, A)
    made = taken(pair.first, pair.second, data)
    where = data.pointer
    del data
    gc.collect()
    again = pair.first._memory.new(A.shape, float32)
    assert again.pointer == where
    pair.written(pair.first, again, -A)
    back = taken(pair.second, pair.first, made)
    np.testing.assert_array_equal(pair.second.to_host(made), A)
    np.testing.assert_array_equal(pair.first.to_host(back), A)
    np.testing.assert_array_equal(pair.first.to_host(again), -A)


def test_nothing_is_a_copy_of_nothing(pair: Pair) -> None:
    data = pair.first.from_host(A[:0])
    pair.runtime.told.clear()
    made = taken(pair.first, pair.second, data)
    assert (made.shape, made.dtype, made.block, pair.runtime.told) == ((0,), float32, None, [])


def test_two_threads_in_both_directions(pair: Pair) -> None:
    wrong: list[Any] = []

    def work(source: CUDADevice, target: CUDADevice, factor: int) -> None:
        for n in range(100):
            data = source.from_host(A * factor + n)
            if not np.array_equal(target.to_host(taken(source, target, data)), A * factor + n):
                wrong.append((factor, n))

    both = [(pair.first, pair.second, 1), (pair.second, pair.first, -1)]
    threads = [Thread(target=work, args=given, daemon=True) for given in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_other_devices_are_no_peers(pair: Pair) -> None:
    assert pair.first.link_from(FakeDevice()) is None


# Through the runtime


@pytest.fixture
def chain(pair: Pair) -> Iterator[Pair]:
    with installed(pair.first, pair.second, alone=True):  # type: ignore[arg-type]
        yield pair


def moves() -> dict[Method, int]:
    return dict(transfers.traffic.count)


def test_a_value_goes_straight_and_is_counted(chain: Pair) -> None:
    one, two = chain.first, chain.second
    buffer, before = Buffer(one.from_host(A), one.space), moves().get(Method.PEER, 0)
    data, moved = transfers.fetch(buffer, two.space, A.nbytes)
    assert (moved, buffer.on(HOST), buffer.on(two.space)) == (A.nbytes, None, data)
    assert moves()[Method.PEER] == before + 1
    assert "device to device" in ys.memory_stats()["transfers"]
    np.testing.assert_array_equal(two.to_host(data), A)


def test_a_copy_that_fails_goes_through_the_host(chain: Pair) -> None:
    one, two = chain.first, chain.second
    buffer, before = Buffer(one.from_host(A), one.space), moves().get(Method.STAGED, 0)
    chain.runtime.failing["peer copy"] = 217
    data, _ = transfers.fetch(buffer, two.space, A.nbytes)
    np.testing.assert_array_equal(two.to_host(data), A)
    np.testing.assert_array_equal(buffer.on(HOST), A)
    assert moves()[Method.STAGED] == before + 1
    assert not chain.runtime._events


def test_whose_failure_it_is(chain: Pair) -> None:
    one, two = chain.first, chain.second
    buffer = Buffer(one.from_host(A), one.space)
    chain.runtime.failing[1] = LOST
    with pytest.raises(DeviceLost, match="cuda:1"):
        transfers.fetch(buffer, two.space, A.nbytes)
    np.testing.assert_array_equal(buffer.on(HOST), A)
    chain.runtime.failing = {0: LOST}
    with pytest.raises(ValuesLost, match="cuda:0"):
        transfers.fetch(Buffer(buffer.data, one.space), two.space, A.nbytes)
    assert one.space != "cuda:0"
    assert two.space == "cuda:1"


def test_a_chain_of_gpus_moves_tensors_straight(chain: Pair) -> None:
    before = moves().get(Method.PEER, 0)
    x = ys.asarray(A, device="cuda:0")
    x._node.buffer = Buffer(x._node.buffer.data, chain.first.space, is_pinned=True)  # as if it had been computed there
    y = x.to_device("cuda:1")
    assert (str(y.device), moves()[Method.PEER] - before) == ("cuda:1", 1)
    np.testing.assert_array_equal(y.numpy(), A)


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
        lambda: taken(pair.first, pair.second, data),
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


# On a GPU

SPIN = 'extern "C" __global__ void spin(long long n) { long long t = clock64(); while (clock64() - t < n); }'
FOUND: Any = next(iter(cuda.discover()))
needs_gpu = pytest.mark.skipif(isinstance(FOUND, Absent), reason=getattr(FOUND, "reason", ""))


@needs_gpu
@pytest.mark.parametrize("number", [0, 1])
def test_real_streams_keep_the_order(number: int) -> None:
    """From one device to another, on the same GPU or on two, while the first has yet to write the values."""
    import cupy

    if number >= cupy.cuda.runtime.getDeviceCount():
        pytest.skip("there is one GPU")
    first, second = CUDADevice(cupy, 0), CUDADevice(cupy, number)
    second.name = second.space = "another"
    a = np.random.default_rng(0).random(1 << 20, dtype=np.float32)
    same = ys.asarray(a)
    (region,) = regions(same * same)
    kernel, x, other = first.compile(region), first.from_host(a), first.from_host(-1 - a)
    spin = cupy.RawKernel(SPIN, "spin")

    def spun(cycles: float) -> None:
        cupy.cuda.runtime.setDevice(0)
        with first.queue.stream:
            spin((1,), (1,), (np.int64(cycles),))

    def turn(cycles: float) -> None:
        spun(cycles)
        (y,) = kernel(x)
        z = taken(first, second, y)
        is_ahead = not first.queue.stream.done
        cupy.cuda.runtime.setDevice(0)
        cupy.cuda.runtime.memsetAsync(y.pointer, 0, y.nbytes, first.queue.pointer)
        where = y.pointer
        del y
        (again,) = kernel(other)
        np.testing.assert_array_equal(second.to_host(z), a * a)
        np.testing.assert_array_equal(first.to_host(again), (-1 - a) * (-1 - a))
        if cycles > 1e6:
            assert is_ahead, "the host has waited"
            assert again.pointer == where, "the memory was not used again: nothing was tested"

    for cycles in (1e3, 1e3, 1e3, 4e8, 4e8):  # programs are loaded first, for which everything may have to wait
        turn(cycles)
