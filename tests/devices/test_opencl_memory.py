"""The OpenCL device's memory, programs, failures and speed."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from caches import seeded
from device_regions import in_two_threads
from opencl_regions import DEVICE, RNG, graph_and_leaves, make, numbers, reduces, regions, run
from values import same
from yosegi._run.device import Absent
from yosegi._schedule.fuse import fuse
from yosegi._tensor.dtype import float32
from yosegi.codegen.c.kernel_source import Kernel as Generated
from yosegi.devices import opencl
from yosegi.devices.opencl.errors import failure
from yosegi.devices.opencl.launch import Launch
from yosegi.errors import CompileFailure, DeviceLost, LaunchFailure, OutOfMemory

pytestmark = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

# Memory -------------------------------------------------------------------------------------------------------------


FORKS = """
import os
import numpy as np
import yosegi as ys
x = ys.asarray(np.arange(200 * 200, dtype=np.float32).reshape(200, 200) % 7)
with ys.options(device="DEVICE"):
    f = ys.jit(lambda x: x @ x)
    f(x)  # the queue is at work on it; the second call is watched, and waits for the queue
    child = os.fork()
    right = bool((f(x).numpy() == x.numpy() @ x.numpy()).all()) and ys.memory_stats() is not None
    if child:
        right = right and os.waitpid(child, 0)[1] == 0
    os._exit(not right)
"""


@needs_fork
def test_a_forked_child_does_not_wait_for_the_driver(tmp_path: Path) -> None:
    """Its threads are not there: the child waited for ever."""
    environment = {**os.environ, "YOSEGI_CACHE_DIR": seeded(tmp_path), "YOSEGI_CALIBRATE": "1"}
    assert (
        subprocess.run(
            [sys.executable, "-c", FORKS.replace("DEVICE", DEVICE.name)], env=environment, timeout=240, check=False
        ).returncode
        == 0
    )


ENDS_EARLY = """
import os
import sys
import numpy as np
import yosegi as ys
x = ys.asarray(np.ones((200, 200), np.float32))
with ys.options(device="DEVICE"):
    y = ys.jit(lambda x: x @ x @ x)(x)  # the queue is still at work on it when the process ends
if len(sys.argv) > 1 and (child := os.fork()):
    os.waitpid(child, 0)
"""


@pytest.mark.parametrize("forks", [[], pytest.param(["fork"], marks=needs_fork)])
def test_a_process_may_end_while_kernels_run(forks: list[str], tmp_path: Path) -> None:
    """Their memory went first, and the process ended with a segmentation fault."""
    environment = {**os.environ, "YOSEGI_CACHE_DIR": seeded(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", ENDS_EARLY.replace("DEVICE", DEVICE.name), *forks],
        env=environment,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0


def test_nothing_is_copied_where_memory_is_shared() -> None:
    if DEVICE.is_volatile:
        pytest.skip("the device has memory of its own")
    a = numbers(float32, 1000)
    a.flags.writeable = False
    data = DEVICE.from_host(a)
    assert DEVICE.to_host(data).ctypes.data == a.ctypes.data
    (region,) = regions(ys.asarray(a) * 3)
    graph, leaves = region.graph, [DEVICE.from_host(a), DEVICE.from_host(np.float32(3))]
    (out,) = DEVICE.compile(region)(*leaves[: len(graph.inputs)])
    host = DEVICE.to_host(out)
    assert host.ctypes.data == out.block.memory.raw.ctypes.data
    assert host.ctypes.data % 64 == 0
    same(host, a * np.float32(3))


def test_a_result_outlives_its_data() -> None:
    a = numbers(float32, 5000)
    got = run(ys.asarray(a) + 1)[0]
    for _ in range(4):
        run(ys.asarray(a) * 7)
    same(got, a + np.float32(1))


def test_the_host_may_let_go_of_an_input_at_once() -> None:
    results = []
    for n in range(30):
        a = np.full(300_000, n, np.float32)
        (region,) = regions(ys.asarray(a) * 2)
        kernel = DEVICE.compile(region)
        results.append(kernel(DEVICE.from_host(a))[0])
        del a, region
        np.full(300_000, -1.0, np.float32)  # what takes its place
    assert all((DEVICE.to_host(r) == 2 * n).all() for n, r in enumerate(results))


def test_memory_goes_back_to_the_pool() -> None:
    device = make()
    a = numbers(float32, 100_000)
    before = device._memory.statistics().in_use
    held = run(ys.exp(ys.asarray(a)), device=device)
    assert device.is_volatile or device._memory.statistics().in_use > before  # a result on the host is the block itself
    del held
    gc.collect()
    device.synchronize()
    statistics = device._memory.statistics()
    assert statistics.in_use == before
    assert statistics.cached > 0
    assert device.trim() == statistics.cached
    assert device._memory.statistics().cached == 0


def test_a_reused_block_has_the_bytes_not_the_elements() -> None:
    device = make()
    n = 10_000
    held = run(ys.asarray(np.ones(n, np.float16)) + 1, device=device)
    del held
    gc.collect()
    device.synchronize()
    a = numbers(float32, n)
    got = run(ys.asarray(a) + 1, device=device)[0]
    assert got.base is not None
    same(got, a + np.float32(1))
    assert device._memory.new((n,), float32).block.nbytes >= 4 * n


def test_a_limit_that_cannot_be_met(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOSEGI_MEMORY_LIMIT", f"{DEVICE.name}=1MB")
    device = make()
    assert device.memory()[1] == 1_000_000
    a = numbers(float32, 100_000)
    got = run(ys.asarray(a) + 1, device=device)[0]
    with pytest.raises(OutOfMemory, match=r"asked for 4194304 bytes.*the limit is 1000000"):
        run(ys.asarray(numbers(float32, 1_000_000)) + 1, device=device)
    same(got, a + np.float32(1))
    assert run(ys.asarray(a) * 2, device=device)[0].shape == a.shape


def test_a_device_with_memory_of_its_own() -> None:
    device = make()
    device._memory.shared = False
    a, b = numbers(float32, 70, 90), numbers(float32, 90)
    x, y = ys.asarray(a), ys.asarray(b)
    same(run(x * y, device=device)[0], a * b)
    reduces(ys.sum(x * y), np.sum((a * b).astype(np.float64)), device)
    reduces(ys.sum(x, axis=0), np.sum(a.astype(np.float64), axis=0), device)
    same(run(x[::2], device=device)[0], a[::2])
    device.trim()


def test_two_threads() -> None:
    assert in_two_threads(DEVICE) == []


# Programs and failures ----------------------------------------------------------------------------------------------

SECOND_PROCESS = """
import numpy as np, yosegi as ys
from opencl_regions import make
from yosegi._schedule.fuse import fuse
from yosegi._graph.graph import capture, graph_of
device = make()
(region,) = fuse(graph_of(capture([(ys.asarray(np.ones(5000, np.float32)) * 2.5)._node])[0]))
data = [device.from_host(np.ones(5000, np.float32)), device.from_host(np.float32(2.5))]
result = device.to_host(device.compile(region)(*data)[0])
assert (result == 2.5).all()
print(device.queue.programs.built, device.queue.programs.loaded)
"""


def test_a_second_process_finds_the_program_on_disk(tmp_path: Path) -> None:
    def process() -> str:
        environment = os.environ | {"YOSEGI_CACHE_DIR": seeded(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", SECOND_PROCESS], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert process() == "1 0"
    assert process() == "0 1"
    (file,) = (tmp_path / "programs").glob("*.bin")
    file.write_bytes(file.read_bytes()[:-7])
    assert process() == "1 0"
    assert process() == "0 1"


def test_what_does_not_compile_says_why() -> None:
    with pytest.raises(CompileFailure, match="no_such_thing"):
        Launch(DEVICE.queue, Generated("__kernel void kernel_() { no_such_thing; }", (), False, 1, 1), 0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(-4, OutOfMemory), (-5, OutOfMemory), (-2, DeviceLost), (-11, CompileFailure), (-54, LaunchFailure)],
)
def test_errors_are_what_they_mean(code: int, kind: type[Exception]) -> None:
    class Error(Exception):
        pass

    error = Error("it failed")
    error.code = code  # type: ignore[attr-defined]
    assert type(failure(error, "launching")) is kind


def test_without_the_library_the_device_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    (absent,) = opencl.discover()
    assert isinstance(absent, Absent)
    assert absent.name == "opencl:0"
    assert "pyopencl" in absent.reason


def test_without_a_platform_the_device_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("no driver")

    monkeypatch.setattr(sys.modules["pyopencl"], "get_platforms", broken)
    found = list(opencl.discover())
    assert all(isinstance(d, Absent) for d in found)
    assert any("no driver" in d.reason for d in found)


# Speed --------------------------------------------------------------------------------------------------------------


def best(function: Any, repeats: int = 10) -> float:
    """Milliseconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


COPY = """__kernel void kernel_(__global const float* restrict a, __global float* restrict b, const int n) {
    int i = get_global_id(0) * 16;
    if (i >= n) return;
    i = min(i, n - 16);
    vstore16(vload16(0, a + i), 0, b + i);
}"""


@pytest.mark.skipif(os.environ.get("YOSEGI_SPEED") != "1", reason="set YOSEGI_SPEED=1 to measure")
def test_speed_of_a_fused_loop(capsys: pytest.CaptureFixture[str]) -> None:
    device = make()
    n, f = 10_000_000, np.float32
    a, w, b = RNG.normal(size=n).astype(f), f(1.3), f(0.2)

    def gelu(y: Any, tanh: Any, c: Any) -> Any:
        return c(0.5) * y * (c(1) + tanh(c(0.7978845608) * (y + c(0.044715) * y * y * y)))

    graph, leaves = graph_and_leaves(gelu(ys.asarray(a) * float(w) + float(b), ys.tanh, float))
    (region,) = fuse(graph)
    kernel = device.compile(region)
    arrays = {entry: node.buffer.data for entry, node in zip(graph.inputs, leaves, strict=True)}
    data = [device.from_host(arrays[entry]) for entry in region.inputs]
    copy = Launch(device.queue, Generated(COPY, (n,), False, n // 16, 64), 2)

    def fused() -> Any:
        made = kernel(*data)[0]
        device.synchronize()
        return made

    def copied() -> None:
        copy([device.from_host(a)], [device._memory.new((n,), float32)])
        device.synchronize()

    expected = gelu(a * w + b, np.tanh, f)
    np.testing.assert_allclose(device.to_host(fused()), expected, rtol=1e-6, atol=1e-6)  # 1 + tanh cancels
    loop_ms, copy_ms, numpy_ms = best(fused), best(copied), best(lambda: gelu(a * w + b, np.tanh, f), 2)
    with capsys.disabled():
        print(f"\ngelu(x*w+b), 10M f32: {loop_ms:.1f} ms; copy {copy_ms:.1f} ms ({loop_ms / copy_ms:.1f} times that); "
              f"NumPy {numpy_ms:.0f} ms ({numpy_ms / loop_ms:.0f} times as long)")  # fmt: skip


class _FailedEvent:
    """The event of a kernel that failed after its launch."""

    command_execution_status = -14  # an event that it waited for had failed


def test_a_kernel_that_fails_after_its_launch_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cl, failed = DEVICE.queue.cl, []
    enqueue = cl.enqueue_nd_range_kernel

    def enqueue_and_fail(*arguments: Any) -> Any:
        event = enqueue(*arguments)
        if failed:
            return event
        failed.append(event)
        return _FailedEvent()

    x = RNG.normal(size=(64, 64)).astype(np.float32)
    graph, leaves = graph_and_leaves(ys.tanh(ys.asarray(x)) + 1)
    (region,) = fuse(graph)
    kernel, data = DEVICE.compile(region), [DEVICE.from_host(leaf.buffer.data) for leaf in leaves]
    (before,) = kernel(*data)
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", enqueue_and_fail)
    (lost,) = kernel(*data)
    for made in (before, lost):  # the queue cannot say which of its results are wrong
        with pytest.raises(DeviceLost, match="its data is lost: a command ended with the status -14"):
            DEVICE.to_host(made)
    (again,) = kernel(*data)
    np.testing.assert_allclose(DEVICE.to_host(again), np.tanh(x) + 1, rtol=1e-6, atol=1e-6)
