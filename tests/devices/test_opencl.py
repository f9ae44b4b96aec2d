"""The OpenCL device, driven directly through regions. Every block its pool hands out is full of garbage here."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from opencl_regions import DEVICE, RNG, numbers, reduces, regions, run
from samples import SAMPLES, calls
from values import same
from yosegi._graph import reference
from yosegi._graph.graph import capture, graph_of
from yosegi._run.device import Absent
from yosegi._schedule.fuse import RegionKind, fuse
from yosegi._tensor.dtype import ALL, as_dtype, float16, float32, float_info
from yosegi._tensor.op import REGISTRY
from yosegi.codegen.c import builder as codegen_builder
from yosegi.codegen.c.dialect import Target
from yosegi.codegen.c.kernel_source import Inputs
from yosegi.codegen.c.loop_kernels import loop
from yosegi.devices.kernel import regions as kernel_regions
from yosegi.devices.kernel.fused import Fused
from yosegi.devices.kernel.machine import Machine
from yosegi.devices.opencl.dialect import OPENCL

pytestmark = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))

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
        typed = [a.astype(s.dtype.numpy) for a, s in zip(arrays, call.inputs, strict=True)]
        expected = np.asarray(reference.bind(call)(*typed))
    (got,) = run(made)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    eps = float_info(as_dtype(got.dtype)).eps if got.dtype.kind in "fc" else 0
    np.testing.assert_allclose(got, expected, rtol=op.tolerance.ulps * eps, atol=op.tolerance.ulps * eps)


def test_what_it_cannot_do_has_a_reason() -> None:
    x = ys.asarray(RNG.normal(size=(3, 4)))
    z = x.astype(ys.complex128)
    for tensor, reason in [(ys.sort(x), "no OpenCL kernel for sort"), (z @ z.mT, "no product of complex128")]:
        (region,) = [r for r in regions(tensor) if r.kind is not RegionKind.LOOP and "permute" not in str(r)]
        assert DEVICE.supports(region) == reason


@pytest.mark.parametrize("shape", [(1, 7, 129), (130, 129, 131), (260, 257, 300)], ids=["naive", "16", "32"])
def test_products_in_each_way(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = RNG.normal(size=(m, k)).astype(np.float32), RNG.normal(size=(n, k)).astype(np.float32)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    got = run(ys.asarray(a) @ ys.asarray(np.ascontiguousarray(b.T)))[0]
    np.testing.assert_allclose(got, exact, rtol=0, atol=2e-6 * np.abs(exact).max())
    (whole,) = fuse(graph_of(capture([ys.nn.linear(ys.asarray(a), ys.asarray(b))._node])[0]))
    made = DEVICE.compile(whole)(DEVICE.from_host(a), DEVICE.from_host(b))[0]
    np.testing.assert_allclose(DEVICE.to_host(made), exact, rtol=0, atol=2e-6 * np.abs(exact).max())


def test_templates_as_a_gpu_gets_them() -> None:
    machine = Machine(DEVICE.queue, DEVICE.compile, DEVICE.supports, 100)
    machine.target = Target(group=64, cooperating=64, units=2)
    x, w = (ys.asarray(RNG.normal(size=s).astype(np.float16)) for s in ((70, 24), (40, 24)))
    patterns = [ys.nn.layer_norm_linear(x, w), ys.nn.softmax(x), ys.nn.scaled_dot_product_attention(x, w, w)]
    for tensor in patterns:
        key, leaves, _ = capture([tensor._node])
        (region,) = fuse(graph_of(key))
        arrays = [node.buffer.data for node in leaves if node.buffer is not None]
        args = region.graph.args[region.nodes[-1]]
        expected = reference.bind(region.calls[-1])(*[arrays[a] for a in args]).astype(np.float64)
        for way, make in Fused(machine, "a gpu").variants(region).items():
            got = DEVICE.to_host(make()(*[DEVICE.from_host(a) for a in arrays])[0])
            np.testing.assert_allclose(got, expected, rtol=0, atol=5e-3 * np.abs(expected).max(), err_msg=way)


@pytest.mark.parametrize("rows", [16384, 16400, 16640])
def test_truths_of_slices_without_elements(rows: int) -> None:
    zeros = ys.asarray(np.zeros((rows, 32), np.int8))
    assert not run(ys.any(zeros, axis=0))[0].any()
    assert run(ys.all(zeros + 1, axis=0))[0].all()


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
    if not DEVICE.is_volatile:
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
    monkeypatch.setattr(codegen_builder, "INT_LIMIT", 1)
    a, b = numbers(float32, 300, 50), numbers(float32, 50)
    x, y = ys.asarray(a), ys.asarray(b)
    same(run(x * y + y)[0], a * b + b)
    same(run(ys.sum(x * y, axis=0))[0], np.sum(a * b, axis=0), ulps=16)
    same(run(ys.permute_dims(x, (1, 0)))[0], a.T)


def test_one_program_for_every_size_of_a_kind() -> None:
    sources = set()
    for n in (3000, 5000, 7000):  # whole packets, and few: each may be a kind
        (region,) = regions(ys.asarray(numbers(float32, n)) * 2)
        sources.add(loop(region, Inputs.of(region), OPENCL, DEVICE.queue.target).source)
    assert len(sources) == 1
    assert re.search(r"vload(4|8|16)\(|_x[24]", sources.pop())


def test_loops_on_a_device_that_reads_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEVICE.queue, "target", TARGETS["coalescing"])
    for first, second in SHAPES:
        for dtype in (float32, float16, ys.complex64):
            a, b = numbers(dtype, *first), numbers(dtype, *second)
            x, y = ys.asarray(a), ys.asarray(b)
            same(run((x + y) * x)[0], ((a + b) * a).astype(a.dtype), ulps=2)


# Reductions ---------------------------------------------------------------------------------------------------------

REDUCTIONS: list[tuple[tuple[int, ...], Any]] = [
    ((), None), ((7,), 0), ((129, 127), 0), ((129, 127), 1), ((40, 3, 513), (0, 2)), ((40, 3, 513), 1),
    ((300000,), None), ((3, 50001), 1), ((50001, 3), 0), ((50001, 3), 1), ((6, 1000, 20), 1), ((1000, 6, 4), (0, 1)),
]  # fmt: skip
TARGETS = {
    "as found": None,
    "coalescing": Target(group=32, cooperating=32, units=8),
}


@pytest.mark.parametrize("target", list(TARGETS))
@pytest.mark.parametrize(("shape", "axis"), REDUCTIONS)
def test_reductions(shape: tuple[int, ...], axis: Any, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if TARGETS[target] is not None:
        monkeypatch.setattr(DEVICE.queue, "target", TARGETS[target])
    a = numbers(float32, *shape) - np.float32(0.25)
    x = ys.asarray(a)
    exact = a.astype(np.float64)
    reduces(ys.sum(x * 2, axis=axis, keepdims=True), np.sum(exact * 2, axis=axis, keepdims=True))
    reduces(ys.max(x, axis=axis), np.max(exact, axis=axis))
    reduces(ys.mean(x.astype(ys.float64) * 0.5, axis=axis), np.mean(exact * 0.5, axis=axis))


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("shape", "axis", "names"),
    [((7, 3), 1, "sum prod max min all any mean"), ((90, 70), 0, "sum prod any"), ((90, 70), None, "min sum")],
    ids=["few", "leading", "all"],
)
def test_reductions_of_every_dtype(dtype: Any, shape: tuple[int, ...], axis: Any, names: str) -> None:
    a = numbers(dtype, *shape)
    x = ys.asarray(a)
    for name in names.split():
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
    monkeypatch.setattr(kernel_regions, "_FEW", 0)
    a = numbers(float32, 300_000)
    exact = a.astype(np.float64)
    reduces(ys.sum(ys.asarray(a)), np.sum(exact))
    reduces(ys.mean(ys.asarray(a).reshape((100_000, 3)), axis=0), np.mean(exact.reshape(100_000, 3), axis=0))


def test_an_unfinished_reduction_feeds_a_kernel() -> None:
    a = numbers(float32, 300_000)
    x = ys.asarray(a)
    same(run(x / ys.sum(x))[0], a / np.sum(a), ulps=8)
