"""Convolutions by MPSGraph, over a double of its objects: see `fakes/apple/MetalPerformanceShadersGraph.py`."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import apple_doubles
import yosegi as ys
from device_regions import join_of, numbers
from values import Array
from yosegi._run.drivers import Verdict
from yosegi._run.trace import trace
from yosegi._tensor.dtype import bfloat16, float16, float32
from yosegi.devices.kernel.convolutions import Form, form_of
from yosegi.devices.kernel.device import checked
from yosegi.devices.metal import convolutions
from yosegi.devices.metal.device import MetalDevice
from yosegi.devices.metal.replay import Replayed
from yosegi.errors import CompileFailure, DeviceLost, LaunchFailure
from yosegi.extend import installed
from yosegi.ops.conv import conv

pytestmark = pytest.mark.skipif(apple_doubles.NO_METAL is not None, reason=str(apple_doubles.NO_METAL))

GRAPH = "library, graph"
FORWARD: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 9, 10), (5, 3, 3, 3), {}),
    "padded": ((1, 3, 9, 10), (5, 3, 3, 3), {"padding": 1}),
    "strides": ((3, 4, 11, 8), (6, 4, 3, 2), {"stride": (2, 3), "padding": (1, 0)}),
    "dilations": ((2, 2, 12, 11), (3, 2, 3, 3), {"dilation": (2, 3), "padding": 2}),
    "uneven": ((1, 4, 7, 7), (6, 2, 3, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2),
                                           "groups": 2}),
    "depthwise": ((2, 5, 11, 6), (5, 1, 3, 3), {"padding": 1, "groups": 5}),
    "groups": ((4, 6, 5, 5), (9, 2, 3, 3), {"padding": 1, "groups": 3}),
    "one length": ((2, 3, 40), (7, 3, 5), {"padding": ((4, 1),), "dilation": 2, "stride": 3}),
    "1 x 1": ((2, 12, 5, 7), (9, 12, 1, 1), {}),
    "one element": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "a window as large as the input": ((2, 3, 4, 5), (2, 3, 4, 5), {}),
    "elements that no window reads": ((1, 2, 10, 10), (3, 2, 3, 3), {"stride": 4}),
    "padding beyond the window": ((1, 2, 3, 3), (3, 2, 2, 2), {"padding": 4, "stride": 3}),
}  # fmt: skip
GRADIENTS: dict[str, tuple[Form, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "to the input": (Form.TO_INPUT, (2, 6, 7, 6), (8, 6, 3, 3), {"spread": 2, "padding": 1}),
    "to the input, other strides": (Form.TO_INPUT, (3, 2, 4, 5), (5, 2, 3, 2),
                                    {"spread": (3, 2), "padding": ((2, 3), (0, 1))}),
    "to the input, along one length": (Form.TO_INPUT, (2, 3, 9), (4, 3, 4), {"spread": 2, "padding": 3}),
    "to the weights": (Form.TO_WEIGHTS, (6, 2, 13, 11), (8, 2, 7, 6), {"dilation": 2, "padding": 1}),
    "to the weights, of dilations": (Form.TO_WEIGHTS, (3, 4, 12, 12), (5, 4, 8, 8), {"stride": 2}),
    "to the weights, along one length": (Form.TO_WEIGHTS, (3, 4, 20), (5, 4, 18), {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Any:
    return apple_doubles.metal_device()


@pytest.fixture
def graphs() -> Iterator[Any]:
    """The module `MetalPerformanceShadersGraph`, as a test found it."""
    module = apple_doubles.graph_double()
    yield module
    module.sums_in_half = module.is_wrong = False
    module.continues = ""


@pytest.fixture
def double(graphs: Any) -> Iterator[Any]:
    """The module `Metal`, whose calls fail no more behind a test."""
    module = apple_doubles.metal_double()
    yield module
    module.failing = lambda what: None


def operands(image: tuple[int, ...], kernel: tuple[int, ...], dtype: Any = float32) -> tuple[Array, Array]:
    return numbers(dtype, *image) - dtype.numpy.type(1), numbers(dtype, *kernel) - dtype.numpy.type(1)


def in_float64(x: Array, w: Array, **attrs: Any) -> Array:
    with ys.options(device="cpu"):
        return conv(ys.asarray(x.astype(np.float64)), ys.asarray(w.astype(np.float64)), **attrs).numpy()


def close(got: Array, wide: Array, roundings: int = 32) -> None:
    eps = np.finfo(got.dtype).eps
    assert got.shape == wide.shape
    assert np.abs(got.astype(np.float64) - wide).max() <= roundings * eps * np.abs(wide).max()


def variant(device: Any, x: Array, w: Array, **attrs: Any) -> Any:
    return device.variants(join_of(conv(ys.asarray(x), ys.asarray(w), **attrs)))[GRAPH]


def has_variant(
    device: Any, image: tuple[int, ...], kernel: tuple[int, ...], dtype: Any = float32, **attrs: Any
) -> bool:
    x, w = (ys.zeros(shape, dtype=dtype) for shape in (image, kernel))
    ys.eval(x, w)
    return GRAPH in device.variants(join_of(conv(x, w, **attrs)))


# Results


@pytest.mark.parametrize("dtype", [float32, float16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", FORWARD)
def test_convolutions(name: str, dtype: Any, graphs: Any, shared: Any) -> None:
    image, kernel, attrs = FORWARD[name]
    x, w = operands(image, kernel, dtype)
    run, before = variant(shared, x, w, **attrs)(), graphs.encoded
    (made,) = run(shared.from_host(x), shared.from_host(w))
    close(shared.to_host(made), in_float64(x, w, **attrs))
    assert graphs.encoded == before + 1


@pytest.mark.parametrize("dtype", [float32, float16], ids=lambda d: d.name)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, dtype: Any, graphs: Any, shared: Any) -> None:
    form, image, kernel, attrs = GRADIENTS[name]
    x, w = operands(image, kernel, dtype)
    assert form_of(join_of(conv(ys.asarray(x), ys.asarray(w), **attrs)).calls[-1]) is form
    (made,) = variant(shared, x, w, **attrs)()(shared.from_host(x), shared.from_host(w))
    close(shared.to_host(made), in_float64(x, w, **attrs))


@pytest.mark.parametrize("name", FORWARD)
def test_what_gradients_of_convolutions_become(name: str, graphs: Any, shared: Any) -> None:
    """Each convolution of a backward pass that the library has is right, in its order of axes."""
    image, kernel, attrs = FORWARD[name]
    x, w = operands(image, kernel)

    def loss(x: Any, w: Any) -> Any:
        return ys.sum(conv(x, w, **attrs) ** 3)

    wide = [a.astype(np.float64) for a in (x, w)]
    with ys.options(device="cpu"):
        expected = [g.numpy() for g in ys.grad(loss, argnums=(0, 1))(*map(ys.asarray, wide))]
    with installed(shared) as chain, ys.options(device=chain, on_fallback="error"):
        made = [g.numpy() for g in ys.grad(loss, argnums=(0, 1))(ys.asarray(x), ys.asarray(w))]
    for got, reference in zip(made, expected, strict=True):
        close(got, reference, 256)


def test_one_array_as_both_operands(graphs: Any, shared: Any) -> None:
    x = numbers(float32, 3, 3, 4, 4)
    tensor = ys.asarray(x)
    region = join_of(conv(tensor, tensor, padding=2))
    (made,) = shared.variants(region)[GRAPH]()(shared.from_host(x))
    close(shared.to_host(made), in_float64(x, x, padding=2))


def test_constants_are_operands(graphs: Any, shared: Any) -> None:
    x = numbers(float32, 2, 3, 6, 6)
    region = join_of(conv(ys.asarray(x), ys.full((4, 3, 2, 2), 0.5, dtype=float32)))
    (made,) = shared.variants(region)[GRAPH]()(shared.from_host(x))
    close(shared.to_host(made), in_float64(x, np.full((4, 3, 2, 2), 0.5)))


def test_infinity_and_nan_are_passed_on(graphs: Any, shared: Any) -> None:
    x, w = operands((1, 2, 5, 5), (3, 2, 3, 3))
    x[0, 0, 0, 0], x[0, 1, 4, 4] = np.inf, np.nan
    (made,) = variant(shared, x, w, padding=1)()(shared.from_host(x), shared.from_host(w))
    wide = in_float64(x, w, padding=1)
    np.testing.assert_array_equal(np.isfinite(shared.to_host(made)), np.isfinite(wide))


# What is left to generated kernels


def test_refusals(shared: Any) -> None:
    small = (2, 4, 6, 6), (4, 4, 3, 3)
    assert has_variant(shared, *small)
    assert has_variant(shared, (1, 1, 40, 40), (1, 1, 31, 31))
    assert not has_variant(shared, (1, 1, 40, 40), (1, 1, 32, 1))
    assert not has_variant(shared, *small, dtype=bfloat16)
    assert not has_variant(shared, *small, dtype=ys.int32)
    assert not has_variant(shared, (1, 2, 4, 4, 4), (2, 2, 2, 2, 2))
    assert not has_variant(shared, *small, padding=((-1, 0), (0, 0)))
    assert not has_variant(shared, *small, padding=((0, -1), (0, 0)))
    assert not has_variant(shared, (2, 4, 6, 6), (4, 2, 3, 3), groups=2, spread=2)
    assert not has_variant(shared, *small, spread=2, stride=2)
    assert has_variant(shared, (1, 1, 1, 1), (2**16 - 1, 1, 1, 1))
    assert not has_variant(shared, (1, 1, 1, 1), (2**16, 1, 1, 1))
    assert not has_variant(shared, (2**16, 1, 1, 1), (1, 1, 1, 1))


def test_nothing_to_compute(shared: Any) -> None:
    with installed(shared) as chain, ys.options(device=chain, on_fallback="error"):
        x, w = ys.zeros((0, 3, 5, 5), dtype=float32), ys.zeros((4, 3, 3, 3), dtype=float32)
        assert conv(x, w).numpy().shape == (0, 4, 3, 3)
        assert conv(ys.zeros((2, 0, 5, 5), dtype=float32), ys.zeros((4, 0, 3, 3), dtype=float32)).numpy().max() == 0


def test_sums_in_float16_are_refused(graphs: Any) -> None:
    shapes = (2, 4, 6, 6), (4, 4, 3, 3)
    graphs.sums_in_half = True
    device = apple_doubles.metal_device()
    assert not has_variant(device, *shapes, dtype=float16)
    assert has_variant(device, *shapes)


def test_without_the_package_there_is_no_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolutions, "_package", lambda: None)
    device = apple_doubles.metal_device()
    assert not has_variant(device, (2, 4, 6, 6), (4, 4, 3, 3))
    x, w = operands((2, 4, 6, 6), (4, 4, 3, 3))
    with installed(device) as chain, ys.options(device=chain, on_fallback="error"):
        close(conv(ys.asarray(x), ys.asarray(w)).numpy(), in_float64(x, w))


def test_a_library_that_fails_in_qualification_is_not_used(graphs: Any, double: Any) -> None:
    family = "library windows float32"
    device = apple_doubles.metal_device()
    assert checked(device, family) == {}
    graphs.is_wrong = True
    assert family in checked(device, family)
    assert checked(device, "windows float32") == {}
    graphs.is_wrong = False
    wary: Any = MetalDevice(0, SimpleNamespace(verdict=Verdict(refused={family: "it crashed"})))  # type: ignore[arg-type]
    assert not has_variant(wary, (2, 4, 6, 6), (4, 4, 3, 3))
    assert has_variant(wary, (2, 4, 6, 6), (4, 4, 3, 3), dtype=float16)
    x, w = operands((2, 4, 6, 6), (4, 4, 3, 3))
    assert wary.supports(join_of(conv(ys.asarray(x), ys.asarray(w)))) is None
    assert "no library windows float32: it crashed" in wary.description


# Autotuning


def tuned(device: Any, x: Array, w: Array, runs: int = 4, **attrs: Any) -> None:
    """Run a convolution until its variants have been measured. Every result is right."""
    wide = np.maximum(in_float64(x, w, **attrs), 0)
    function = ys.jit(lambda x, w: ys.nn.relu(conv(x, w, **attrs)))
    with installed(device) as chain, ys.options(device=chain):
        for _ in range(runs):
            close(function(ys.asarray(x), ys.asarray(w)).numpy(), wide, 64)


WORK = (2, 8, 16, 16), (16, 8, 3, 3)
"""A convolution that is worth measuring."""


def failures() -> list[str]:
    """The reasons for which variants with a graph were given up."""
    return [f.message for record in trace.records for f in record.failures if "graph: " in f.message]


def test_autotuning_measures_it(graphs: Any) -> None:
    """Tuning records last: each test here has attributes of its own."""
    before = graphs.encoded
    trace.clear()
    tuned(apple_doubles.metal_device(), *operands(*WORK), padding=1)
    assert graphs.encoded > before
    assert failures() == []


def test_a_wrong_result_is_never_returned(graphs: Any) -> None:
    """Nothing runs the library before its result was compared."""
    graphs.is_wrong, before = True, graphs.encoded
    trace.clear()
    tuned(apple_doubles.metal_device(), *operands(*WORK), runs=20, padding=2)
    assert graphs.encoded > before
    assert failures()


@pytest.mark.parametrize(("what", "padding"), [("graph", 3), ("encode", 4)])
def test_a_library_that_raises_is_not_kept(what: str, padding: int, graphs: Any, double: Any) -> None:
    double.failing = lambda at: "it failed" if at == what else None
    trace.clear()
    tuned(apple_doubles.metal_device(), *operands(*WORK), runs=20, padding=padding)
    assert "it failed" in failures()[0]


def test_failures_are_what_they_mean(graphs: Any, double: Any) -> None:
    device = apple_doubles.metal_device()
    x, w = operands((2, 4, 6, 6), (4, 4, 3, 3))
    make, data = variant(device, x, w), [device.from_host(a) for a in (x, w)]
    run = make()
    double.failing = lambda at: "it failed" if at == "graph" else None
    with pytest.raises(CompileFailure, match="it failed"):
        make()
    for continues in ("", "before"):
        graphs.continues = continues
        double.failing = lambda at: "it failed" if at == "encode" else None
        with pytest.raises(LaunchFailure, match="it failed"):
            run(*data)
        double.failing = lambda at: None
        close(device.to_host(run(*data)[0]), in_float64(x, w))


# The queue


@pytest.mark.parametrize("continues", ["", "before", "behind"])
def test_a_command_buffer_that_the_library_has_committed(continues: str, graphs: Any, double: Any) -> None:
    """Other launches go on in the next one, in order; a failure of either is found."""
    device = apple_doubles.metal_device(garbage=False)
    x, w = operands((2, 4, 6, 6), (4, 4, 3, 3))
    graphs.continues = continues
    tensor = ys.asarray(x)
    region = join_of(ys.tanh(conv(ys.exp(tensor), ys.asarray(w))))
    run = device.variants(region)["separate, graph"]()
    data, wide = [device.from_host(a) for a in (x, w)], np.tanh(in_float64(np.exp(x.astype(np.float64)), w))

    def results(count: int) -> list[Array]:
        return [device.to_host(made) for made in [run(*data)[0] for _ in range(count)]]

    for result in results(80):
        close(result, wide)
    for failed in range(5):
        device.synchronize()
        counts = iter(range(100))
        double.failing = lambda at, failed=failed, counts=counts: (  # type: ignore[misc]
            "it failed" if at == "command" and next(counts) == failed else None
        )
        with pytest.raises(DeviceLost, match="it failed"):
            results(4)
        double.failing = lambda at: None
        close(results(1)[0], wide)


@pytest.mark.parametrize("continues", ["", "before", "behind"])
def test_replays_encode_it_again(continues: str, graphs: Any, double: Any) -> None:
    """An indirect command buffer cannot hold it: it stands between two of them."""
    device = apple_doubles.metal_device(garbage=False)
    x, w = operands((2, 4, 6, 6), (4, 4, 3, 3))
    graphs.continues = continues
    region = join_of(ys.tanh(conv(ys.exp(ys.asarray(x)), ys.asarray(w))))
    kernel = Replayed(device.variants(region)["separate, graph"](), device._queue)
    data = [device.from_host(a) for a in (x, w)]
    for _ in range(8):
        encoded, before = graphs.encoded, double.selectors.copy()
        (made,) = kernel(*data)
        close(device.to_host(made), np.tanh(in_float64(np.exp(x.astype(np.float64)), w)))
        del made
        gc.collect()
        assert graphs.encoded == encoded + 1
    assert dict(double.selectors - before) == {"useResources": 2, "executeCommandsInBuffer": 2}
    assert kernel.launched == "3 kernels"
    other = [x * 2, w + 1]
    close(device.to_host(kernel(*map(device.from_host, other))[0]),
          np.tanh(in_float64(np.exp(other[0].astype(np.float64)), other[1])))  # fmt: skip


def test_a_replay_that_fails_half_way(graphs: Any, double: Any) -> None:
    """The launches before are under way: the host's memory that they read is kept until they are done."""
    device = apple_doubles.metal_device()
    x, w = operands((2, 4, 6, 6), (4, 4, 3, 3))
    region = join_of(ys.tanh(conv(ys.exp(ys.asarray(x)), ys.asarray(w))))
    kernel = Replayed(device.variants(region)["separate, graph"](), device._queue)
    data = [device.from_host(a) for a in (x, w)]
    wide = np.tanh(in_float64(np.exp(x.astype(np.float64)), w))
    for _ in range(4):
        close(device.to_host(kernel(*data)[0]), wide)
    device.synchronize()
    double.failing = lambda at: "it failed" if at == "encode" else None
    kept = len(device._memory._waiting)
    with pytest.raises(LaunchFailure):
        kernel(*data)
    double.failing = lambda at: None
    assert kept == 0
    assert [things for _, things in device._memory._waiting] == [data]
    close(device.to_host(kernel(*data)[0]), wide)


def test_two_threads(graphs: Any) -> None:
    device = apple_doubles.metal_device(garbage=False)
    x, w = operands((2, 4, 6, 6), (4, 4, 3, 3))
    graphs.continues = "behind"
    region = join_of(ys.tanh(conv(ys.exp(ys.asarray(x)), ys.asarray(w))))
    kernel = Replayed(device.variants(region)["separate, graph"](), device._queue)
    wrong: list[BaseException] = []

    def work(seed: int) -> None:
        own = x * (1 + seed)
        wide = np.tanh(in_float64(np.exp(own.astype(np.float64)), w))
        try:
            for _ in range(20):
                close(device.to_host(kernel(device.from_host(own), device.from_host(w))[0]), wide)
        except BaseException as error:
            wrong.append(error)

    threads = [Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


@pytest.mark.parametrize("continues", ["", "behind"])
def test_no_object_is_leaked(continues: str, graphs: Any, double: Any) -> None:
    device = apple_doubles.metal_device(garbage=False)
    x, w = operands((1, 1, 3, 3), (1, 1, 2, 2))
    graphs.continues = continues
    run, data = variant(device, x, w)(), [device.from_host(a) for a in (x, w)]
    run(*data)
    device.synchronize()
    gc.collect()
    before = double.LIVE.copy()
    for _ in range(10_000 if not continues else 1_000):
        run(*data)
    device.synchronize()
    gc.collect()
    assert dict(double.LIVE - before) == {}
    del run
    gc.collect()
    assert double.LIVE["MPSGraphExecutable"] < before["MPSGraphExecutable"]


def test_the_runtime_survives(graphs: Any, double: Any) -> None:
    """Any call of the library and of Metal fails now and then."""
    device, countdown = apple_doubles.metal_device(), iter(range(10**6))
    x, w = operands(*WORK)
    wide = np.maximum(in_float64(x, w, padding=5), 0)
    function = ys.jit(lambda x, w: ys.nn.relu(conv(x, w, padding=5)))
    with installed(device) as chain, ys.options(device=chain):
        for n in range(24):
            graphs.continues = ("", "before", "behind")[n % 3]
            double.failing = lambda at: "it failed" if next(countdown) % 11 == 10 else None
            close(function(ys.asarray(x), ys.asarray(w)).numpy(), wide, 64)


# The double


def test_the_double_refuses_what_mpsgraph_refuses(graphs: Any, double: Any) -> None:
    graph, single = graphs.MPSGraph.alloc().init(), 0x10000000 | 32
    describe = getattr(graphs.MPSGraphConvolution2DOpDescriptor, convolutions._DESCRIPTOR)
    windows = describe(1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2)
    with pytest.raises(graphs.Abort, match="no such type"):
        graph.placeholderWithShape_dataType_name_([1, 1, 1, 1], 0x10000000 | 64, None)
    for values, reason in [
        ((0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 2), "at least 1"), ((1, 1, 1, 1, 1, 0, 0, -1, 0, 0, 0, 2), "non-negative"),
        ((1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 2), "no other layouts"),
    ]:  # fmt: skip
        with pytest.raises(graphs.Abort, match=reason):
            describe(*values)
    x, w = (graph.placeholderWithShape_dataType_name_(s, single, None) for s in ([1, 4, 5, 5], [2, 4, 3, 3]))
    forward = graph.convolution2DWithSourceTensor_weightsTensor_descriptor_name_
    made = forward(x, w, windows, None)
    assert made.shape() == [1, 2, 3, 3]
    with pytest.raises(graphs.Abort, match="channels mismatch"):
        forward(x, w, describe(1, 1, 1, 1, 2, 0, 0, 0, 0, 0, 0, 2), None)
    with pytest.raises(graphs.Abort, match="a tensor of nothing"):
        forward(w, graph.placeholderWithShape_dataType_name_([2, 4, 4, 4], single, None), windows, None)
    with pytest.raises(graphs.Abort, match="windows mismatch"):
        getattr(graph, convolutions._TO_INPUT)(made, w, [1, 4, 6, 5], windows, None)
    with pytest.raises(graphs.Abort, match="windows mismatch"):
        getattr(graph, convolutions._TO_WEIGHTS)(made, x, [2, 4, 2, 3], windows, None)
    gpu = graphs.MPSGraphDevice.deviceWithMTLDevice_(double.MTLCreateSystemDefaultDevice())
    types = [graphs.MPSGraphShapedType.alloc().initWithShape_dataType_(t.shape(), single) for t in (x, w)]
    options = graphs.MPSGraphCompilationDescriptor.alloc().init()
    compiled = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_
    with pytest.raises(graphs.Abort, match="Neural Engine"):
        compiled(gpu, dict(zip((x, w), types, strict=True)), [made], None, options)
    options.setOptimizationLevel_(0)
    options.setWaitForCompilationCompletion_(True)
    with pytest.raises(graphs.Abort, match="not fed"):
        compiled(gpu, {x: types[0]}, [made], None, options)
    with pytest.raises(graphs.Abort, match="another shape"):
        compiled(gpu, {x: types[1], w: types[0]}, [made], None, options)
    with pytest.raises(graphs.Abort, match="not large enough"):
        graphs.MPSGraphTensorData.alloc().initWithMTLBuffer_shape_dataType_(double.MTLBuffer(100), [26], single)


def test_the_double_adds_in_float16(graphs: Any, shared: Any) -> None:
    """So that the test of sums shows something."""
    ones = np.ones((1, 4096, 1, 1), np.float16)
    run = variant(shared, ones, ones)()
    assert shared.to_host(run(shared.from_host(ones), shared.from_host(ones))[0]).item() == 4096
    graphs.sums_in_half = True
    assert shared.to_host(run(shared.from_host(ones), shared.from_host(ones))[0]).item() == 2048
