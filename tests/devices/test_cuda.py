"""The CUDA device, driven directly through regions. Every block its pool hands out is full of garbage here."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from opencl_regions import RNG, numbers, regions, run
from values import same
from yosegi._run.child import ChildResult
from yosegi._run.device import Absent
from yosegi._tensor.dtype import float32
from yosegi._tensor.precision import Precision
from yosegi.codegen.c.kernel_source import Kernel as Generated
from yosegi.devices import cuda
from yosegi.devices.cuda import probe
from yosegi.devices.cuda.errors import failure
from yosegi.devices.cuda.launch import Launch
from yosegi.errors import CompileFailure, DeviceLost, LaunchFailure, OutOfMemory

# Discovery, which every machine can test ----------------------------------------------------------------------------


def test_without_the_library_the_device_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "find_spec", lambda name: None)
    (absent,) = cuda.discover()
    assert absent == Absent("cuda:0", "CuPy is not installed; install yosegi[cuda]")


def test_a_driver_that_crashes_makes_the_device_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda, "find_spec", lambda name: object())
    trials: list[str] = []
    outcome = ChildResult(failure="it ended the process with SIGSEGV")
    monkeypatch.setattr(probe, "attempt", lambda function: trials.append(function) or outcome)
    for _ in range(2):
        (absent,) = cuda.discover()
        assert isinstance(absent, Absent)
        assert absent.reason == "a trial in a child process failed: it ended the process with SIGSEGV"
    assert trials == ["yosegi.devices.cuda.probe:probe"]


class Runtime:
    """CuPy's runtime, with versions."""

    def __init__(self, driver: int, library: int) -> None:
        self.driverGetVersion = lambda: driver
        self.runtimeGetVersion = lambda: library


@pytest.mark.parametrize(
    ("driver", "library", "reason"),
    [
        (0, 13000, "no NVIDIA driver is loaded"),
        (12040, 13000, "the driver serves CUDA 12.4, CuPy 14 is built for CUDA 13.0; install cupy-cuda12x"),
        (13000, 13020, ""),
        (13000, 12090, ""),
    ],
)
def test_versions_that_do_not_fit_are_told(driver: int, library: int, reason: str) -> None:
    module = type("cupy", (), {"__version__": "14", "cuda": type("cuda", (), {"runtime": Runtime(driver, library)})})
    told = probe.mismatch(module)
    assert told.startswith(reason)
    assert bool(told) == bool(reason)


@pytest.mark.parametrize(
    ("name", "status", "kind"),
    [
        ("CUDARuntimeError", 2, OutOfMemory),
        ("CUDADriverError", 700, DeviceLost),
        ("CUDADriverError", 719, DeviceLost),
        ("CUDADriverError", 209, CompileFailure),
        ("CUDARuntimeError", 9, LaunchFailure),
        ("CUBLASError", 3, OutOfMemory),
        ("CUBLASError", 13, LaunchFailure),
        ("CUSOLVERError", 2, OutOfMemory),
        ("CUSOLVERError", 3, LaunchFailure),
        ("NVRTCError", 6, CompileFailure),
    ],
)
def test_errors_are_what_they_mean(name: str, status: int, kind: type[Exception]) -> None:
    error = type(name, (RuntimeError,), {"status": status})("it failed")
    assert type(failure(error, "launching")) is kind


# On a GPU -----------------------------------------------------------------------------------------------------------


def _make() -> Any:
    device = next(iter(cuda.discover()))
    if not isinstance(device, Absent):
        device._memory.fill_with_garbage()
    return device


DEVICE: Any = _make()
needs_gpu = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))


def computed(*tensors: ys.Tensor) -> list[Any]:
    return run(*tensors, device=DEVICE)


SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((), ()), ((7,), (7,)), ((127,), ()), ((2049,), (2049,)), ((100003,), (1,)), ((1000, 3, 513), (513,)),
    ((1000, 3, 512), (3, 1)), ((50, 1, 40), (50, 60, 1)), ((5000, 3), (3,)), ((0,), (1,)), ((4096,), (1, 1)),
]  # fmt: skip


@needs_gpu
@pytest.mark.parametrize("dtype", [ys.float32, ys.float16, ys.bfloat16, ys.float64], ids=lambda d: d.name)
@pytest.mark.parametrize(("first", "second"), SHAPES)
def test_broadcasting(first: tuple[int, ...], second: tuple[int, ...], dtype: Any) -> None:
    a, b = numbers(dtype, *first), numbers(dtype, *second)
    x, y = ys.asarray(a), ys.asarray(b)
    same(computed((x + y) * x)[0], ((a + b).astype(a.dtype) * a).astype(a.dtype))


REDUCTIONS: list[tuple[tuple[int, ...], Any]] = [
    ((), None), ((7,), 0), ((129, 127), 0), ((129, 127), 1), ((40, 3, 513), (0, 2)), ((40, 3, 513), 1),
    ((3_000_000,), None), ((3, 50001), 1), ((50001, 3), 0), ((50001, 3), 1), ((6, 1000, 20), 1), ((1000, 6, 4), (0, 1)),
    ((2048, 2048), 0), ((2048, 2048), 1),
]  # fmt: skip


@needs_gpu
@pytest.mark.parametrize("dtype", [ys.float32, ys.float16, ys.float64, ys.int32, ys.complex64], ids=lambda d: d.name)
@pytest.mark.parametrize(("shape", "axis"), REDUCTIONS)
def test_reductions(shape: tuple[int, ...], axis: Any, dtype: Any) -> None:
    a = numbers(dtype, *shape)
    x = ys.asarray(a)
    # NumPy's own sums along the first axis are no better than its dtype.
    wide = a.astype(np.complex128 if dtype.is_complex else np.longdouble if dtype is ys.float64 else np.float64)
    mean = ys.mean(x, axis=axis) if dtype.is_inexact else ys.sum(x, axis=axis, dtype=dtype)
    exact = np.mean(wide, axis=axis) if dtype.is_inexact else np.sum(wide, axis=axis)
    (got,) = computed(mean)
    same(got, np.asarray(exact).astype(dtype.numpy), ulps=16)
    if not dtype.is_complex:
        same(computed(ys.max(x, axis=axis))[0], np.max(a, axis=axis))


MATRICES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4, 5)), ((1, 7), (7, 1)), ((127, 129), (129, 33)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)),
    ((6, 3, 4), (4, 5)), ((6, 3, 4), (6, 4, 5)), ((2, 1, 3, 4), (1, 5, 4, 6)), ((2, 5, 3, 4), (5, 4, 6)),
    ((3, 0), (0, 4)), ((0, 3), (3, 4)), ((256, 512), (512, 128)),
]  # fmt: skip


@needs_gpu
@pytest.mark.parametrize(
    "dtype", [ys.float32, ys.float64, ys.float16, ys.bfloat16, ys.complex64, ys.complex128], ids=lambda d: d.name
)
@pytest.mark.parametrize(("left", "right"), MATRICES)
def test_products(left: tuple[int, ...], right: tuple[int, ...], dtype: Any) -> None:
    a, b = numbers(dtype, *left), numbers(dtype, *right)
    wide = np.complex128 if dtype.is_complex else np.float64
    (got,) = computed(ys.asarray(a) @ ys.asarray(b))
    same(got, np.matmul(a.astype(wide), b.astype(wide)).astype(a.dtype), ulps=64)


@needs_gpu
@pytest.mark.parametrize(
    "subscripts", ["ij,jk->ik", "ij,kj->ki", "bij,bjk->bik", "bij,kbj->ikb", "ij,ij->ij", "i,j->ij"]
)
def test_indices_that_are_a_product(subscripts: str) -> None:
    sizes = {"i": 5, "j": 6, "k": 7, "b": 3}
    first, second = subscripts.partition("->")[0].split(",")
    a, b = (numbers(float32, *[sizes[x] for x in term]) for term in (first, second))
    (got,) = computed(ys.einsum(subscripts, ys.asarray(a), ys.asarray(b)))
    same(got, np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64)).astype(np.float32), ulps=64)


ERRORS = {
    Precision.FULL: 1e-6, Precision.TF32: 2e-3, Precision.F16: 2e-3, Precision.BF16: 1e-2,
    Precision.BF16X2: 5e-5, Precision.BF16X3: 1e-6,
}  # fmt: skip


@needs_gpu
@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.F64], ids=lambda p: p.value)
def test_a_product_has_the_precision_that_was_asked_for(precision: Precision) -> None:
    a, b = RNG.normal(size=(300, 500)).astype(np.float32), RNG.normal(size=(500, 200)).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    (region,) = regions(ys.asarray(a) @ ys.asarray(b))
    (out,) = DEVICE.compile(replace(region, precision=precision))(DEVICE.from_host(a), DEVICE.from_host(b))
    error = np.linalg.norm(DEVICE.to_host(out) - exact) / np.linalg.norm(exact)
    assert error < ERRORS[precision]
    if precision in (Precision.TF32, Precision.BF16, Precision.BF16X2):
        assert error > 1e-7  # it was not computed in full


# Replays


@needs_gpu
def test_replays_give_new_results_in_new_memory() -> None:
    f = ys.jit(lambda x, y: ys.sum(ys.exp(x) * y, axis=1) / ys.max(ys.tanh(x * y), axis=1))
    with ys.options(device=DEVICE.name):
        kept = []
        for _ in range(12):
            a, b = numbers(float32, 40, 64), numbers(float32, 40, 64)
            x, y = ys.asarray(a).to_device(DEVICE.name), ys.asarray(b).to_device(DEVICE.name)
            kept.append((f(x, y), (np.exp(a) * b).sum(axis=1) / np.tanh(a * b).max(axis=1)))
        for got, expected in kept:
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5)
        x = ys.asarray(numbers(float32, 40, 64)).to_device(DEVICE.name)
        first = f(x, x * 2).numpy()
        for _ in range(20):
            np.testing.assert_array_equal(f(x, x * 2).numpy(), first)


@needs_gpu
def test_a_chain_of_replays() -> None:
    f = ys.jit(lambda x: x * 0.5 + 1)
    a = numbers(float32, 1000)
    with ys.options(device=DEVICE.name):
        x = ys.asarray(a).to_device(DEVICE.name)
        for _ in range(100):
            x = f(x)
            a = a * np.float32(0.5) + np.float32(1)
        same(x.numpy(), a)


@needs_gpu
def test_a_replay_of_the_same_tensor_twice() -> None:
    f = ys.jit(lambda x, y: ys.sum(ys.exp(x) * y, axis=1) - ys.max(y, axis=1))
    a, b = numbers(float32, 40, 64), numbers(float32, 40, 64)
    with ys.options(device=DEVICE.name):
        x, y = ys.asarray(a).to_device(DEVICE.name), ys.asarray(b).to_device(DEVICE.name)
        for left, right, p, q in [(x, x, a, a)] * 6 + [(x, y, a, b)] * 6 + [(y, y, b, b), (y, x, b, a)]:
            expected = (np.exp(p) * q).sum(axis=1) - q.max(axis=1)
            np.testing.assert_allclose(f(left, right).numpy(), expected, rtol=1e-5, atol=1e-5)


@needs_gpu
def test_what_is_independent_runs_side_by_side_and_is_right() -> None:
    weights = [numbers(float32, 200, 200) for _ in range(6)]
    a = numbers(float32, 300, 200)

    def branches(x: Any, *ws: Any) -> Any:
        made = [ys.nn.softmax(x @ w) for w in ws]
        return sum(m @ w for m, w in zip(made[1:], ws, strict=False)) + made[0]

    f = ys.jit(branches)
    with ys.options(device=DEVICE.name, on_fallback="error"):
        x, *ws = (ys.asarray(v).to_device(DEVICE.name) for v in (a, *weights))
        first = f(x, *ws).numpy()
        with ys.options(device="cpu"):
            expected = branches(*map(ys.asarray, (a, *weights))).numpy()
        np.testing.assert_allclose(first, expected, rtol=1e-4, atol=1e-4)
        for _ in range(50):
            np.testing.assert_array_equal(f(x, *ws).numpy(), f(x, *ws).numpy())
            np.testing.assert_allclose(f(x, *ws).numpy(), expected, rtol=1e-4, atol=1e-4)


# Memory and failures


@needs_gpu
@pytest.mark.parametrize("size", [1, 1000, 16_385, 3_000_001, 30_000_000])
def test_there_and_back(size: int) -> None:
    a = RNG.random(size, dtype=np.float32)
    data = DEVICE.from_host(a)
    for _ in range(3):
        np.testing.assert_array_equal(DEVICE.to_host(data), a)


@needs_gpu
def test_results_on_the_host_go_back_to_their_pool() -> None:
    data = DEVICE.from_host(numbers(float32, 100_000))
    first = DEVICE.to_host(data)
    where = first.ctypes.data
    view = first[10:20]
    del first
    second = DEVICE.to_host(data)
    assert second.ctypes.data != where  # the view still needs it
    del view
    assert DEVICE.to_host(data).ctypes.data == where
    del second


@needs_gpu
def test_no_room() -> None:
    free = DEVICE.memory()[1]
    with pytest.raises(OutOfMemory):
        DEVICE._memory.new((2 * free,), ys.uint8)
    same(computed(ys.asarray(numbers(float32, 10)) * 0)[0], np.zeros(10, np.float32))


@needs_gpu
def test_what_does_not_compile_says_why() -> None:
    with pytest.raises(CompileFailure, match="no_such_thing"):
        Launch(DEVICE.queue, Generated('extern "C" __global__ void kernel_() { no_such_thing; }', (), False, 1, 1), 0)


@needs_gpu
def test_two_threads() -> None:
    wrong: list[Any] = []
    x = ys.asarray(numbers(float32, 50_000))
    (region,) = regions(x * x + x)
    shared = DEVICE.compile(region)

    def work(seed: int) -> None:
        own = np.random.default_rng(seed).random(50_000, dtype=np.float32)
        for _ in range(50):
            (out,) = shared(DEVICE.from_host(own))
            if not np.array_equal(DEVICE.to_host(out), own * own + own):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
