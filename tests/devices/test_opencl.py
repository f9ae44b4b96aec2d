"""The OpenCL device, driven directly through regions. Every block its pool hands out is full of garbage here."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from samples import SAMPLES, calls
from values import Array, same
from yosegi import reference
from yosegi.codegen import kernels as codegen_kernels
from yosegi.codegen.dialect import Target
from yosegi.codegen.kernels import Inputs
from yosegi.codegen.kernels import Kernel as Generated
from yosegi.codegen.loops import loop
from yosegi.device import Absent
from yosegi.devices import opencl
from yosegi.devices.opencl import kernels as opencl_kernels
from yosegi.devices.opencl.cache import cache_folder
from yosegi.devices.opencl.dialect import OPENCL
from yosegi.devices.opencl.errors import failure
from yosegi.dtype import ALL, as_dtype, float16, float32, float_info
from yosegi.errors import CompileFailure, DeviceLost, LaunchFailure, OutOfMemory
from yosegi.fuse import RegionKind, fuse
from yosegi.graph import capture, graph_of
from yosegi.op import REGISTRY
from yosegi.simplify import simplify


def make() -> Any:
    """A device of its own, so that no test sees another's pool."""
    device = next(iter(opencl.discover()))
    if not isinstance(device, Absent):
        device._memory.fill_with_garbage()
    return device


DEVICE: Any = make()
pytestmark = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))
RNG = np.random.default_rng(11)


def graph_and_leaves(*tensors: ys.Tensor) -> tuple[Any, list[Any]]:
    key, leaves, _ = capture([t._node for t in tensors])
    return simplify(graph_of(key)), leaves


def regions(*tensors: ys.Tensor) -> list[Any]:
    return fuse(graph_and_leaves(*tensors)[0])


def run(*tensors: ys.Tensor, device: Any = None) -> list[Array]:
    """The tensors' values, all of them computed by the device."""
    device = device or DEVICE
    graph, leaves = graph_and_leaves(*tensors)
    data = {entry: device.from_host(node.buffer.data) for entry, node in zip(graph.inputs, leaves, strict=True)}
    for region in fuse(graph):
        assert device.supports(region) is None
        made = device.compile(region)(*[data[i] for i in region.inputs])
        data.update(zip(region.outputs, made, strict=True))
    return [device.to_host(data[o]) for o in graph.outputs[: len(tensors)]]


def numbers(dtype: Any, *shape: int) -> Array:
    """Random numbers of a dtype, with products and sums that do not overflow."""
    if dtype.kind == "bool":
        return RNG.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return RNG.integers(0, 5, shape).astype(dtype.numpy)
    values = RNG.uniform(0.5, 1.5, shape)
    return (values + 1j * RNG.uniform(-0.5, 0.5, shape) if dtype.is_complex else values).astype(dtype.numpy)


# Ops ----------------------------------------------------------------------------------------------------------------

MOVED = {"reshape", "permute_dims", "flip", "concatenate", "rolled", "diagonal"}
REDUCED = {"sum", "prod", "max", "min", "all", "any", "mean"}
NATIVE = {name for name, op in REGISTRY.items() if op.scalar is not None} | MOVED | REDUCED
CALLS = [(name, n) for name, n in calls() if name in NATIVE]


@pytest.mark.parametrize("layout", ["contiguous", "reversed"])
@pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{a}-{b}" for a, b in CALLS])
def test_samples(name: str, number: int, layout: str) -> None:
    op, sample = REGISTRY[name], SAMPLES[name][number]
    arrays = [np.flip(np.flip(np.asarray(a)).copy()) if layout == "reversed" else np.asarray(a) for a in sample.arrays]
    made = op(*[ys.asarray(a, copy=False) for a in arrays], **sample.attrs)
    call = made._node.call
    with np.errstate(all="ignore"):
        expected = np.asarray(reference.bind(call)(*[a.astype(s.dtype.numpy) for a, s in zip(arrays, call.inputs)]))
    (got,) = run(made)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    eps = float_info(as_dtype(got.dtype)).eps if got.dtype.kind in "fc" else 0
    np.testing.assert_allclose(got, expected, rtol=op.tolerance.ulps * eps, atol=op.tolerance.ulps * eps)


def test_what_it_cannot_do_has_a_reason() -> None:
    x = ys.asarray(RNG.normal(size=(3, 4)))
    for tensor, reason in [(ys.sort(x), "no OpenCL kernel for sort"), (x @ x.mT, "no OpenCL kernel for matmul")]:
        (region,) = [r for r in regions(tensor) if r.kind is not RegionKind.LOOP and "permute" not in str(r)]
        assert DEVICE.supports(region) == reason


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
def test_indexing_and_movement(dtype: Any) -> None:
    a = numbers(dtype, 40, 17, 9)
    x = ys.asarray(a)
    same(run(x[3:30:2, None, ::-1, 4])[0], a[3:30:2, None, ::-1, 4])
    same(run(ys.permute_dims(x, (2, 0, 1)))[0], np.transpose(a, (2, 0, 1)))
    same(run(ys.concat([x, x[:, :5], x], axis=1))[0], np.concatenate([a, a[:, :5], a], axis=1))
    same(run(ys.roll(x, (3, -20), axis=(0, 1)))[0], np.roll(a, (3, -20), axis=(0, 1)))
    changed, expected = ys.asarray(a), a.copy()
    changed[5:9, ::2] = x[0, 0]
    expected[5:9, ::2] = a[0, 0]
    same(run(changed)[0], expected)
    assert run(x[:0])[0].shape == (0, 17, 9)


def test_a_reshape_is_the_same_memory() -> None:
    a = numbers(float32, 6, 4)
    x = DEVICE.from_host(a)
    (region,) = regions(ys.reshape(ys.asarray(a), (8, 3)))
    (out,) = DEVICE.compile(region)(x)
    assert out.buffer is x.buffer
    assert DEVICE.to_host(out).ctypes.data == a.ctypes.data


# Loops --------------------------------------------------------------------------------------------------------------

SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((), ()), ((1,), (1,)), ((7,), (7,)), ((127,), ()), ((129,), (129,)), ((2049,), (2049,)), ((100003,), (1,)),
    ((1000, 3, 513), (513,)), ((1000, 3, 513), (3, 1)), ((1000, 1, 513), (3, 1)), ((50, 1, 40), (50, 60, 1)),
    ((5000, 3), (3,)), ((3000, 2, 3), (2, 1)), ((0,), (1,)), ((3, 0, 2), (2,)), ((1, 1), (4096, 1)), ((4096,), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_broadcasting(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    a, b = numbers(float32, *first), numbers(float32, *second)
    x, y = ys.asarray(a), ys.asarray(b)
    total = x + y
    same(run(total * x, total)[0], (a + b) * a)
    same(run(total * x, total)[1], a + b)


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize("shape", [(9,), (5003,)])
def test_values_survive_memory(dtype: Any, shape: tuple[int, ...]) -> None:
    a, b = numbers(dtype, *shape), numbers(dtype, *shape)
    condition = numbers(ys.bool, *shape)
    same(run(ys.where(ys.asarray(condition), ys.asarray(a), ys.asarray(b)))[0], np.where(condition, a, b))


def test_a_fused_half_is_rounded_after_every_op() -> None:
    a = RNG.uniform(1, 2, 4001).astype(np.float16)
    x = ys.asarray(a)
    with np.errstate(over="ignore"):
        expected = (a * np.float16(60000)) / np.float16(60000)
    got = run((x * ys.asarray(np.float16(60000))) / ys.asarray(np.float16(60000)))[0]
    same(got, expected, ulps=0)
    assert np.isinf(got).any()


def test_arrays_that_the_program_holds_itself() -> None:
    a = numbers(float32, 30, 4)
    x = ys.asarray(a) * (ys.arange(4, dtype=float32) + 1)
    same(run(x)[0], a * np.arange(1, 5, dtype=np.float32))


def test_long_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen_kernels, "INT_LIMIT", 1)
    a, b = numbers(float32, 300, 50), numbers(float32, 50)
    x, y = ys.asarray(a), ys.asarray(b)
    same(run(x * y + y)[0], a * b + b)
    same(run(ys.sum(x * y, axis=0))[0], np.sum(a * b, axis=0), ulps=16)
    same(run(ys.permute_dims(x, (1, 0)))[0], a.T)


def test_one_program_for_every_size_of_a_kind() -> None:
    sources = set()
    for n in (3000, 5000, 70001):
        (region,) = regions(ys.asarray(numbers(float32, n)) * 2)
        sources.add(loop(region, Inputs.of(region), OPENCL, DEVICE.queue.target).source)
    assert len(sources) == 1
    assert "vload16" in sources.pop()


# Reductions ---------------------------------------------------------------------------------------------------------

REDUCTIONS: list[tuple[tuple[int, ...], Any]] = [
    ((), None), ((7,), 0), ((129, 127), 0), ((129, 127), 1), ((40, 3, 513), (0, 2)), ((40, 3, 513), 1),
    ((300000,), None), ((3, 50001), 1), ((50001, 3), 0), ((50001, 3), 1), ((6, 1000, 20), 1), ((1000, 6, 4), (0, 1)),
]  # fmt: skip
TARGETS = {
    "as found": None,
    "coalescing": Target(width=4, group=32, cooperating=32, units=8, blocked=False),
}


def reduces(tensor: ys.Tensor, expected: Array, device: Any = None) -> None:
    same(run(tensor, device=device)[0], expected, ulps=32)


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize(("shape", "axis"), REDUCTIONS)
def test_reductions(shape: tuple[int, ...], axis: Any, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if TARGETS[target] is not None:
        monkeypatch.setattr(DEVICE.queue, "target", TARGETS[target])
    a = numbers(float32, *shape) - np.float32(0.25)
    x = ys.asarray(a)
    reduces(ys.sum(x * 2, axis=axis, keepdims=True), np.sum(a * 2, axis=axis, keepdims=True))
    reduces(ys.max(x, axis=axis), np.asarray(np.max(a, axis=axis)))
    half = x.astype(ys.float64) * 0.5
    reduces(ys.mean(half, axis=axis), np.asarray(np.mean(a * np.float64(0.5), axis=axis)))


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize(("shape", "axis"), [((7, 3), 1), ((90, 70), 0), ((90, 70), None)])
def test_reductions_of_every_dtype(dtype: Any, shape: tuple[int, ...], axis: Any) -> None:
    a = numbers(dtype, *shape)
    x = ys.asarray(a)
    for name in ("sum", "prod", "max", "min", "all", "any", "mean"):
        if (name in ("max", "min") and dtype.is_complex) or (name == "mean" and not dtype.is_inexact):
            continue
        made = getattr(ys, name)(x, axis=axis)
        call = made._node.call
        with np.errstate(all="ignore"):
            expected = np.asarray(reference.bind(call)(a))
        same(run(made)[0], expected, ulps=64 if name == "prod" else 8)


def test_a_reduction_shows_what_went_into_it() -> None:
    a = numbers(float32, 130, 70)
    squares = ys.asarray(a) * ys.asarray(a)
    (region,) = regions(ys.sum(squares, axis=1), squares)
    assert region.kind is RegionKind.REDUCTION
    total, shown = run(ys.sum(squares, axis=1), squares)
    same(shown, a * a)
    same(total, np.sum(a * a, axis=1), ulps=8)


@pytest.mark.parametrize("name", ["sum", "prod", "all", "any", "mean"])
def test_reductions_of_nothing(name: str) -> None:
    a = np.empty((4, 0, 3), np.float32)
    with np.errstate(all="ignore"):
        expected = np.asarray(reference.bind(getattr(ys, name)(ys.asarray(a), axis=1)._node.call)(a))
    same(run(getattr(ys, name)(ys.asarray(a), axis=1))[0], expected)


def test_ten_million_are_summed_to_the_sixth_digit_and_beyond() -> None:
    a = RNG.random(10_000_000, dtype=np.float32)
    for tensor in (ys.sum(ys.asarray(a)), ys.sum(ys.asarray(a).reshape((1_000_000, 10)), axis=0)):
        total = run(tensor)[0].astype(np.float64).sum()
        assert abs(total / a.sum(dtype=np.float64) - 1) < 1e-6


def test_a_million_ones_in_half_precision() -> None:
    x = ys.ones(1_000_000, dtype=float16) * ys.asarray(np.float16(1))
    assert run(ys.sum(x, dtype=float32))[0] == 1_000_000
    assert run(ys.mean(x))[0] == 1


def test_an_axis_does_not_give_the_global_value() -> None:
    a = numbers(float32, 64, 100)
    for axis in (0, 1):
        got = run(ys.sum(ys.asarray(a), axis=axis))[0]
        assert got.shape == np.sum(a, axis=axis).shape
        assert not np.isclose(got, a.sum()).any()


def test_nan_is_never_lost() -> None:
    a = numbers(float32, 5000)
    a[4321] = np.nan
    assert np.isnan(run(ys.max(ys.asarray(a)))[0])
    assert np.isnan(run(ys.sum(ys.asarray(a)))[0])


def test_the_last_stage_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opencl_kernels, "_FEW", 0)
    a = numbers(float32, 300_000)
    reduces(ys.sum(ys.asarray(a)), np.asarray(np.sum(a)))
    reduces(ys.mean(ys.asarray(a).reshape((100_000, 3)), axis=0), np.mean(a.reshape(100_000, 3), axis=0))


def test_an_unfinished_reduction_feeds_a_kernel() -> None:
    a = numbers(float32, 300_000)
    x = ys.asarray(a)
    same(run(x / ys.sum(x))[0], a / np.sum(a), ulps=8)


# Memory -------------------------------------------------------------------------------------------------------------


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
    assert device._memory.statistics().in_use > before
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
    monkeypatch.setenv("YOSEGI_MEMORY_LIMIT", "opencl:0=1MB")
    device = make()
    assert device.memory()[1] == 1_000_000
    a = numbers(float32, 100_000)
    got = run(ys.asarray(a) + 1, device=device)[0]
    with pytest.raises(OutOfMemory, match=r"asked for 4000000 bytes.*the limit is 1000000"):
        run(ys.asarray(numbers(float32, 1_000_000)) + 1, device=device)
    same(got, a + np.float32(1))
    assert run(ys.asarray(a) * 2, device=device)[0].shape == a.shape


def test_a_device_with_memory_of_its_own() -> None:
    device = make()
    device._memory.shared = False
    a, b = numbers(float32, 70, 90), numbers(float32, 90)
    x, y = ys.asarray(a), ys.asarray(b)
    same(run(x * y, device=device)[0], a * b)
    reduces(ys.sum(x * y), np.asarray(np.sum(a * b)), device)
    reduces(ys.sum(x, axis=0), np.sum(a, axis=0), device)
    same(run(x[::2], device=device)[0], a[::2])
    device.trim()


def test_two_threads() -> None:
    wrong: list[Any] = []
    a = numbers(float32, 50_000)
    (region,) = regions(ys.asarray(a) * ys.asarray(a) + ys.asarray(a))
    shared = DEVICE.compile(region)

    def work(seed: int) -> None:
        own = np.random.default_rng(seed).random(50_000, dtype=np.float32)
        for _ in range(50):
            (out,) = shared(DEVICE.from_host(own))
            if not np.array_equal(DEVICE.to_host(out), own * own + own):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# Programs and failures ----------------------------------------------------------------------------------------------

SECOND_PROCESS = """
import numpy as np, yosegi as ys
from yosegi.devices.opencl import discover
from yosegi.fuse import fuse
from yosegi.graph import capture, graph_of
device = next(iter(discover()))
(region,) = fuse(graph_of(capture([(ys.asarray(np.ones(5000, np.float32)) * 2.5)._node])[0]))
data = [device.from_host(np.ones(5000, np.float32)), device.from_host(np.float32(2.5))]
result = device.to_host(device.compile(region)(*data)[0])
assert (result == 2.5).all()
print(device.queue.programs.built, device.queue.programs.loaded)
"""


def test_a_second_process_finds_the_program_on_disk(tmp_path: Path) -> None:
    def process() -> str:
        environment = os.environ | {"YOSEGI_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", SECOND_PROCESS], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert process() == "1 0"
    assert process() == "0 1"
    (file,) = (tmp_path / "programs").iterdir()
    file.write_bytes(file.read_bytes()[:-7])
    assert process() == "1 0"
    assert process() == "0 1"


def test_the_folder_for_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("YOSEGI_CACHE_DIR")
    assert cache_folder().name in ("yosegi", "cache")


def test_what_does_not_compile_says_why() -> None:
    with pytest.raises(CompileFailure, match="no_such_thing"):
        opencl_kernels.Launch(DEVICE.queue, Generated("__kernel void kernel_() { no_such_thing; }", (), False, 1, 1), 0)


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
    (absent,) = opencl.discover()
    assert isinstance(absent, Absent)
    assert "no driver" in absent.reason


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
    device = next(iter(opencl.discover()))
    n, f = 10_000_000, np.float32
    a, w, b = RNG.normal(size=n).astype(f), f(1.3), f(0.2)

    def gelu(y: Any, tanh: Any, c: Any) -> Any:
        return c(0.5) * y * (c(1) + tanh(c(0.7978845608) * (y + c(0.044715) * y * y * y)))

    graph, leaves = graph_and_leaves(gelu(ys.asarray(a) * float(w) + float(b), ys.tanh, float))
    (region,) = fuse(graph)
    kernel = device.compile(region)
    data = [device.from_host(node.buffer.data) for node in leaves]
    copy = opencl_kernels.Launch(device.queue, Generated(COPY, (n,), False, n // 16, 64), 2)

    def fused() -> Any:
        made = kernel(*data)[0]
        device.synchronize()
        return made

    def copied() -> None:
        copy([device.from_host(a)], [device._memory.new((n,), float32)])
        device.synchronize()

    expected = gelu(a * w + b, np.tanh, f)
    same(device.to_host(fused()), expected, ulps=256)
    loop_ms, copy_ms, numpy_ms = best(fused), best(copied), best(lambda: gelu(a * w + b, np.tanh, f), 2)
    with capsys.disabled():
        print(f"\ngelu(x*w+b), 10M f32: {loop_ms:.1f} ms; copy {copy_ms:.1f} ms ({loop_ms / copy_ms:.1f} times that); "
              f"NumPy {numpy_ms:.0f} ms ({numpy_ms / loop_ms:.0f} times as long)")  # fmt: skip
