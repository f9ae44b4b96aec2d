"""The memory of the CPU's results: where they begin, and when it is used again."""

from __future__ import annotations

import ctypes
import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from native_code import NATIVES, always_native, expected, needs_llvm, process, program, region_of
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.device import Cpu
from yosegi.devices.cpu.results import Results
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import Variants

pytestmark = needs_llvm


def large(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=1_000_000).astype(np.float32)


def test_results_begin_with_a_cache_line() -> None:
    """Across two lines, vectors are written at half the speed while they stay in the caches."""
    x = ys.asarray(np.arange(30_000, dtype=np.float32).reshape(100, 300))
    with ys.options(device="cpu"):
        f = ys.jit(lambda x: (x + 1, x > 7))
        for _ in range(9):
            more, larger = (t.numpy() for t in f(x))
            assert more.ctypes.data % 64 == 0
            np.testing.assert_array_equal(more, x.numpy() + 1)
            np.testing.assert_array_equal(larger, x.numpy() > 7)


def test_where_arrays_begin_is_told_right() -> None:
    skip = Runtime(Compiler(HostMachine.host())).skip
    assert skip is not None
    for size in range(0, 3000, 7):
        array = np.empty(size, np.uint8)
        assert (array.ctypes.data + skip(array)) % 64 == 0
        assert 0 <= skip(array) < 64


def test_the_memory_of_a_result_is_used_again() -> None:
    device = Cpu()
    region, given = region_of(program(ys.asarray(large())))
    kernel = native_function(region, Variants(NATIVES, device.results))
    (first,) = kernel(*given)
    where = first.ctypes.data
    assert where % 64 == 0
    assert device.statistics()["in_use"] >= first.nbytes
    part = first[10:20].copy(), first[10:20]
    del first
    gc.collect()
    (second,) = kernel(*given)
    assert second.ctypes.data != where, "a view still uses that memory"
    np.testing.assert_array_equal(*part)
    del part
    gc.collect()
    (third,) = kernel(*given)
    assert third.ctypes.data == where
    del second, third
    gc.collect()
    assert device.statistics()["in_use"] == 0
    assert device.trim() > 0
    assert device.statistics()["cached"] == 0


def test_old_values_never_show() -> None:
    device = Cpu()
    device.results.pool.on_take = lambda memory, nbytes: ctypes.memset(memory.address, 0xAB, nbytes)
    x = np.random.default_rng(0).normal(size=(1001, 1003)).astype(np.float32)
    t = ys.asarray(x)
    results = program(t), ys.nn.softmax(t), ys.cumulative_sum(t, axis=1), t > 0
    region, given = region_of(*results)
    with always_native():
        made = native_function(region, Variants(NATIVES, device.results))(*given)
    np.testing.assert_array_equal(made[0], expected(x))
    np.testing.assert_allclose(made[1].sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(made[2], np.cumsum(x, axis=1), rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(made[3], x > 0)


LIMITED = """
import numpy as np, yosegi as ys
from yosegi._run.device import host_device
x = ys.asarray(np.ones(1_000_000, np.float32))
f = ys.jit(lambda x: ys.sqrt(x * x + 1.0))
kept = [f(x), f(x)]
del kept
kept = f(x)
del kept
print(host_device().statistics()["in_use"] + host_device().statistics()["cached"] <= 10_000_000)
kept = []
try:
    for _ in range(5):
        kept.append(f(x))
except Exception as error:
    print(len(kept), type(error).__name__)
"""


def test_a_limit_holds_for_what_is_kept_too(tmp_path: Path) -> None:
    said = process(LIMITED, tmp_path, YOSEGI_MEMORY_LIMIT="cpu=10MB", YOSEGI_DEVICE="cpu")
    assert said == "True\n2 OutOfMemory"


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="this system does not count pages in files")
def test_trim_gives_back_pages_beside_memory_in_use() -> None:
    results = Results()
    nbytes = 8 << 20
    first, *others = (results.new((nbytes,), np.dtype(np.uint8), nbytes) for _ in range(8))
    for array in (first, *others):
        array[:] = 7
    del array, others
    before = resident()
    assert results.trim() == 7 * nbytes
    assert before - resident() > 6 * nbytes, "one array kept the pages of all others"
    assert results.cached == 0
    assert (first == 7).all()
    again = results.new((nbytes,), np.dtype(np.uint8), nbytes)
    again[:] = 9
    assert (first == 7).all()


def resident() -> int:
    """The bytes of this process's pages."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
