"""The Core ML device over a double of Core ML's objects: see `fakes/apple/CoreML.py`.

Every program is written as a package, parsed back, and evaluated op by op by our reference bodies.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import apple_doubles
import apple_programs
import yosegi as ys
from device_regions import in_two_threads, numbers, regions, run
from samples import SAMPLES, calls
from yosegi._graph.reference import bind
from yosegi._run.device import Absent
from yosegi._run.trace import trace
from yosegi._tensor.dtype import ALL, bool_, float16, float32, float_info
from yosegi._tensor.op import REGISTRY, OpKind
from yosegi._tensor.precision import Precision
from yosegi.devices import coreml
from yosegi.devices.coreml import library
from yosegi.devices.coreml.ops import LEFT_OUT, ROWS
from yosegi.devices.model import models, precisions, probe
from yosegi.devices.model.specimens import NOT_TRIED, region_of, specimens
from yosegi.errors import CompileFailure, LaunchFailure
from yosegi.extend import installed

pytestmark = [
    pytest.mark.skipif(apple_doubles.NO_CORE_ML is not None, reason=str(apple_doubles.NO_CORE_ML)),
    pytest.mark.skipif(apple_doubles.NO_METAL is not None, reason=str(apple_doubles.NO_METAL)),
]
RNG = np.random.default_rng(4)


@pytest.fixture(scope="module")
def shared() -> Any:
    return apple_doubles.core_ml_device()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A device with a cache of its own."""
    monkeypatch.setenv("YOSEGI_CACHE_DIR", str(tmp_path))
    return apple_doubles.core_ml_device()


@pytest.fixture
def double() -> Iterator[Any]:
    """The module `CoreML`, whose calls fail no more behind a test."""
    module = apple_doubles.core_ml_double()
    yield module
    module.failing = lambda what: None
    module.takes_backings = True


# Rows ---------------------------------------------------------------------------------------------------------------

CALLS = [(name, n) for name, n in calls() if name in ROWS]
REFUSED = {
    ("conv", 3): "it has no steps over elements that stand apart",
    ("conv", 0): "a dilated kernel has to be a constant",
    ("max_pool", 1): "its pools have no dilation",
    ("gather", 0): "it would not tell of an index out of range",
}
EPS = {Precision.FULL: float_info(float32).eps, Precision.F16: float_info(float16).eps}


@pytest.mark.parametrize("precision", [Precision.FULL, Precision.F16], ids=["f32", "f16"])
@pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{a}-{b}" for a, b in CALLS])
def test_row(name: str, number: int, precision: Precision, shared: Any) -> None:
    """Every row in both precisions, against its reference body in float64."""
    sample = SAMPLES[name][number]
    exact = [np.asarray(a) for a in sample.arrays]
    attrs = {k: ys.float32 if v is ys.float64 else v for k, v in sample.attrs.items()}
    arrays = [a.astype(np.float32) if a.dtype == np.float64 else a for a in exact]
    node = REGISTRY[name]._node(tuple([ys.asarray(a) for a in arrays]), attrs)
    region, data = region_of([node])
    region = replace(region, precision=precision)
    reason = shared.supports(region)
    unknown = [d for s in (*node.call.inputs, *node.call.outputs) if (d := s.dtype) not in (float32, float16, bool_)]
    if unknown or (name, number) in REFUSED:
        assert reason == REFUSED.get((name, number)) or reason == f"Core ML has no {unknown[0].name}"
        return
    assert reason is None
    (got,) = shared.compile(region)(*data)
    with np.errstate(all="ignore"):
        wanted = np.asarray(bind(node.call)(*[a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]))
    assert (got.shape, got.dtype) == (node.spec.shape, node.spec.dtype.numpy)
    scale = np.max(np.abs(wanted), initial=0) if wanted.dtype.kind == "f" else 0
    eps = 16 * EPS[precision] if wanted.dtype.kind == "f" else 0
    np.testing.assert_allclose(got, wanted, rtol=eps, atol=eps * scale)


def test_gather_along_constant_places(shared: Any) -> None:
    a, places = numbers(float32, 5, 7), ys.asarray([0, 2, 4])
    with installed(shared) as chain, ys.options(device=chain, on_fallback="error"):
        taken = ys.jit(lambda x: ys.take(x, places, axis=1) * 2)(ys.asarray(a)).numpy()
    np.testing.assert_array_equal(taken, a[:, [0, 2, 4]] * 2)


@pytest.mark.parametrize("dtype", [float32, float16, bool_], ids=lambda d: d.name)
def test_special_values(dtype: Any, shared: Any) -> None:
    assert probe.wrong_rows(shared, dtype.name) == {}


def test_the_trial_finds_a_wrong_row(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    monkeypatch.setitem(ROWS, "exp", ROWS["sinh"])
    assert list(probe.wrong_rows(device, "float32")) == ["exp float32"]


def test_every_row_is_tried() -> None:
    tried = {node.call.op.name for node in specimens(coreml.TABLE, float32)}
    tried |= {node.call.op.name for node in specimens(coreml.TABLE, bool_)}
    assert set(ROWS) - tried == {*NOT_TRIED, "silu"}  # silu has a sample


@pytest.mark.parametrize("dtype", [d for d in ALL if d not in (float32, float16, bool_)], ids=lambda d: d.name)
def test_other_dtypes_are_refused_with_a_reason(dtype: Any, shared: Any) -> None:
    (region,) = regions(ys.flip(ys.asarray(numbers(dtype, 3))))
    assert shared.supports(region) == f"Core ML has no {dtype.name}"


def test_other_ops_are_refused_with_a_reason(shared: Any) -> None:
    x = ys.asarray(numbers(float32, 4, 3))
    for made, reason in [(ys.sort(x), LEFT_OUT["sort"]), (ys.asinh(x), LEFT_OUT["asinh"])]:
        assert shared.supports(region_of([made._node])[0]) == reason
    words = ys.random.default_rng(0).normal((3,))
    assert "Core ML" in shared.supports(regions(words)[0])
    for kind in (OpKind.COMPLEX, OpKind.RANDOM, OpKind.CONTROL, OpKind.ORDER):
        assert kind not in shared.limits.kinds


@pytest.mark.parametrize(("function", "most"), [
    (lambda x: x * 2, 5), (lambda x: ys.sum(x, axis=0), 4), (lambda x: ys.nn.softmax(x, axis=-1), 4),
])  # fmt: skip
def test_dimensions(function: Any, most: int, shared: Any) -> None:
    for ndim in (most, most + 1):
        node = function(ys.asarray(numbers(float32, *[2] * ndim)))._node
        reason = shared.supports(region_of([node])[0])
        assert reason == (None if ndim == most else f"it has at most {most} dimensions")


def test_float16_is_rounded_after_each_op(shared: Any) -> None:
    a = np.float16([1000.5, 3.0])
    x = ys.asarray(a)
    got = run(x * x - x * x + x / 3, device=shared)[0]
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, np.float16([np.nan, 0]) + np.float16(a / np.float16(3)))


# Memory -------------------------------------------------------------------------------------------------------------


def test_nothing_is_copied(device: Any, double: Any) -> None:
    a, b = numbers(float32, 40, 30), numbers(float32, 30, 20)
    region, data = region_of([(ys.asarray(a, copy=False) @ ys.asarray(b, copy=False))._node])
    model = device.compile(region)
    for _ in range(2):
        (result,) = model(*data)
        request = model._request
        read = {f.multiArrayValue().address for f in request._features.values()}
        assert read == {a.ctypes.data, b.ctypes.data}
        assert request._backings["o0"].address == result.ctypes.data
        np.testing.assert_allclose(result, a @ b, rtol=1e-5)


def test_padded_rows_are_read_by_their_strides(device: Any, double: Any) -> None:
    a = numbers(float32, 3, 4, 5)
    double.takes_backings = False
    np.testing.assert_array_equal(run(ys.asarray(a) * 2, ys.sum(ys.asarray(a)) * 0, device=device)[0], a * 2)


def test_an_array_that_is_not_contiguous(device: Any) -> None:
    a = numbers(float32, 6, 8)
    x = ys.asarray(a[::-1, ::2], copy=False)
    np.testing.assert_array_equal(run(x + 1, device=device)[0], a[::-1, ::2] + 1)


def test_no_object_is_leaked_in_ten_thousand_launches(device: Any, double: Any) -> None:
    (region,) = regions(ys.asarray(numbers(float32, 8)) + 1)
    model, data = device.compile(region), numbers(float32, 8)
    model(data)
    before = double.LIVE.copy()
    for _ in range(10_000):
        model(data)
    gc.collect()
    assert dict(double.LIVE - before) == {}


def test_two_threads(device: Any) -> None:
    assert in_two_threads(device) == []


# Compiled models ----------------------------------------------------------------------------------------------------


def product() -> Any:
    """A product by a constant."""
    return next(precisions._products())[1]


def again() -> Any:
    """The device in the next process."""
    return apple_doubles.core_ml_device()


def test_the_next_process_compiles_nothing(device: Any, double: Any) -> None:
    region = product()
    device.compile(region)
    count, other = double.compiled, again()
    other.compile(region)
    assert (double.compiled, other.models.loaded) == (count, 1)


def test_another_system_compiles_anew(device: Any, double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    region = product()
    device.compile(region)
    monkeypatch.setattr(platform, "platform", lambda: "macOS-99.0-arm64")
    library.machine.cache_clear()
    try:
        other = again()
        other.compile(region)
    finally:
        library.machine.cache_clear()
    assert (other.models.compiled, other.models.loaded) == (1, 0)


def test_other_constants_are_another_model(device: Any, tmp_path: Path) -> None:
    for n in (2.0, 3.0):
        held, ones = ys.asarray(np.full(4, n, np.float32)), ys.asarray(np.ones(4, np.float32))
        with installed(device) as chain, ys.options(device=chain, on_fallback="error"):
            np.testing.assert_array_equal(ys.jit(lambda x, held=held: x * held)(ones).numpy(), [n] * 4)
    assert len(list((tmp_path / "coreml").glob("*.mlmodelc"))) == 2


def test_a_damaged_model_is_compiled_again(device: Any, tmp_path: Path) -> None:
    region = product()
    device.compile(region)
    (damaged,) = (tmp_path / "coreml").rglob("*.mlmodel")
    damaged.write_bytes(damaged.read_bytes()[:-9])
    other = again()
    other.compile(region)
    assert (other.models.compiled, other.models.loaded) == (1, 0)


def test_shapes_are_fixed(device: Any, tmp_path: Path) -> None:
    """Models of flexible shapes do not run on the Neural Engine (coremltools #2370): each shape is a model."""
    for n in (3, 5):
        run(ys.asarray(numbers(float32, n, 4)) * 2, device=device)
    models = list((tmp_path / "coreml").rglob("*.mlmodel"))
    assert len(models) == 2
    for path in models:
        (given,) = library.tools().models.utils.load_spec(str(path)).description.input
        kind = given.type.multiArrayType
        assert tuple(kind.shape) in ((3, 4), (5, 4))
        assert kind.WhichOneof("ShapeFlexibility") is None


def test_shapes_that_come_and_go_are_not_all_kept(device: Any, double: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model for each shape, kept for ever, ends at a limit of the system's (mlx #4464)."""
    monkeypatch.setattr(models, "LIVE", 3)
    monkeypatch.setattr(models, "SOON", 0.0)
    before, kept = double.LIVE["MLModel"], []
    for n in range(1, 9):
        (region,) = regions(ys.asarray(numbers(float32, n)) + 1)
        kept.append((device.compile(region), numbers(float32, n)))
        kept[-1][0](kept[-1][1])
        gc.collect()
        assert double.LIVE["MLModel"] - before <= 3
    for model, data in kept:  # each is loaded again from disk
        np.testing.assert_array_equal(model(data)[0], data + 1)
    assert device.models.compiled == 8


# Precision and the plan ---------------------------------------------------------------------------------------------


def test_only_float16_programs_may_use_the_neural_engine(device: Any) -> None:
    region = product()
    full, half = (device.compile(replace(region, precision=p)).launched for p in (Precision.FULL, Precision.F16))
    assert "Neural Engine" not in full
    assert "on GPU (of GPU, CPU)" in full
    assert "on Neural Engine (of Neural Engine, GPU, CPU)" in half


def test_the_plan_is_explained(device: Any) -> None:
    x, w = ys.asarray(numbers(float32, 64, 64)), ys.asarray(numbers(float32, 64, 64))
    with installed(device) as chain, ys.options(device=chain, on_fallback="error"):
        f = ys.jit(lambda x: ys.nn.gelu(x @ w))
        f(x).numpy()
        (replay,) = f._replays.values()
        assert "matmul 33% on GPU (of GPU, CPU)" in str(replay.plan.explain())


@pytest.mark.parametrize("precision", ["f16", "adaptive"])
def test_a_lower_precision_is_within_its_contract(precision: str, device: Any) -> None:
    a, b = numbers(float32, 64, 96), numbers(float32, 96, 48)
    with installed(device) as chain, ys.options(device=chain, precision=precision, tol=1e-2):
        got = (ys.asarray(a) @ ys.asarray(b)).numpy()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-2)


def test_a_float16_overflow_is_never_returned_under_adaptive(device: Any) -> None:
    a, b = 1e3 * numbers(float32, 32, 64), 1e3 * numbers(float32, 64, 32)
    with installed(device) as chain, ys.options(device=chain, precision="adaptive", tol=1e-2):
        got = (ys.asarray(a) @ ys.asarray(b)).numpy()
    np.testing.assert_allclose(got, a.astype(np.float64) @ b, rtol=1e-2)


def test_small_partitions_stay_on_the_host(device: Any) -> None:
    x = ys.asarray(numbers(float32, 30, 20))
    with installed(device, alone=True), ys.options(background=False):
        plan = ys.plan(ys.tanh(x) * 2 + 1)
    assert {step.device.name for step in plan.steps} == {"cpu"}


def test_many_small_partitions_stay_on_the_host(device: Any) -> None:
    """Ops that it has, cut apart by ops that it lacks: models of all pieces are slower than the host (#19887)."""
    x = ys.asarray(numbers(float32, 40, 30))
    for _ in range(20):
        x = ys.sort(ys.tanh(x) * 2 + 1, axis=1)
    with installed(device, alone=True), ys.options(background=False):
        plan = ys.plan(x)
    assert {step.device.name for step in plan.steps} == {"cpu"}


# Failures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("what", "kind"), [
    ("compile", CompileFailure), ("load", CompileFailure), ("predict", LaunchFailure),
])  # fmt: skip
def test_failures_are_what_they_mean(what: str, kind: type[Exception], device: Any, double: Any) -> None:
    x = ys.asarray(numbers(float32, 40)) + 0.5
    double.failing = lambda at: "it failed" if at == what else None
    with pytest.raises(kind, match="it failed"):
        run(x, device=device)
    double.failing = lambda at: None
    assert run(x, device=device)[0].shape == (40,)


@pytest.mark.parametrize("what", ["compile", "load", "predict"])
def test_the_runtime_survives(what: str, device: Any, double: Any) -> None:
    a = numbers(float32, 50, 40)
    double.failing = lambda at: "it failed" if at == what else None
    with installed(device) as chain, ys.options(device=chain):
        got = ys.sum(ys.exp(ys.asarray(a)), axis=0).numpy()
    np.testing.assert_allclose(got, np.exp(a.astype(np.float64)).sum(0), rtol=1e-5)
    assert "cpu" in {record.device for record in trace.records}


@pytest.mark.parametrize("seed", range(4))
def test_random_programs(seed: int, double: Any) -> None:
    apple_programs.check(seed, faults=0.1)


# Discovery and the double -------------------------------------------------------------------------------------------


def test_without_the_library_the_device_is_absent() -> None:
    (absent,) = coreml.discover()
    assert isinstance(absent, Absent)
    assert (absent.name, absent.reason) == ("coreml:0", "only macOS has it")


def test_the_order_of_the_chain(device: Any) -> None:
    from yosegi.devices.opencl.device import OpenCL

    ranks = [device.rank, apple_doubles.metal_device().rank, OpenCL.rank, ys.devices()[-1].rank]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 4


def test_the_double_refuses_what_core_ml_refuses(double: Any, tmp_path: Path) -> None:
    from coremltools.converters.mil.mil import Function, Program

    from yosegi.devices.coreml.compiler import write_package
    from yosegi.devices.coreml.library import builder, tools

    mb = builder()
    with Function({"i0": mb.placeholder((4, 4))}, opset_version=tools().target.iOS17) as function:
        deep = mb.reshape(x=function.inputs["i0"], shape=[2, 2, 2, 2, 1, 1])
        function.set_outputs([mb.reshape(x=deep, shape=[16])])
    program = Program()
    program.add_function("main", function)
    write_package(program, tmp_path / "deep.mlpackage")
    url = library.core_ml()[1].NSURL.fileURLWithPath_(str(tmp_path / "deep.mlpackage"))
    made, error = double.MLModel.compileModelAtURL_error_(url, None)
    assert made is None
    assert error.localizedDescription() == "reshape has rank 6, more than 5"
    memory = (double.ctypes.c_char * 64)()
    array = double.MLMultiArray.alloc()
    made, error = array.initWithDataPointer_shape_dataType_strides_deallocator_error_(
        memory, [8], 65600, [1], None, None
    )
    assert made is None
    assert "65600" in error.localizedDescription()
