"""Blocks of real models on OpenVINO: one partition each, the same numbers as a model written for OpenVINO itself."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from openvino_regions import DEVICE, needed
from yosegi._place.plan import Plan
from yosegi.devices.openvino.library import core, openvino, opset, settings

pytestmark = needed
RNG = np.random.default_rng(14)
CHANNELS, WIDTH, HEADS = 16, 32, 4


def numbers(*shape: int, scale: float = 1.0) -> Any:
    return (scale * RNG.normal(size=shape)).astype(np.float32)


def planned(function: Callable[..., Any], *inputs: Any, device: str) -> tuple[Any, Plan]:
    """What a jitted function gives on a device, and its plan."""
    jitted = ys.jit(function)
    with ys.options(device=device, on_fallback="error"):
        result = jitted(*map(ys.asarray, inputs)).numpy()
    (replay,) = jitted._replays.values()
    return result, replay.plan


def direct(build: Callable[[Any, Any], Any], x: Any) -> Any:
    """A model written for OpenVINO: its result."""
    o = opset()
    given = o.parameter(list(x.shape), np.float32)
    model = openvino().Model([o.result(build(o, given))], [given], "direct")
    return core().compile_model(model, "CPU", settings("CPU"))([x])[0]


def check(function: Callable[..., Any], build: Callable[[Any, Any], Any], x: Any) -> None:
    """One step, on the device, with the numbers of the host and of the model written directly."""
    got, plan = planned(function, x, device=DEVICE.name)
    assert [step.device.name for step in plan.steps] == [DEVICE.name]
    expected, _ = planned(function, x, device="cpu")
    scale = np.max(np.abs(expected))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=4e-6 * scale)
    np.testing.assert_allclose(got, direct(build, x), rtol=1e-4, atol=4e-6 * scale)


# A residual block

KERNELS = [numbers(CHANNELS, CHANNELS, 3, 3, scale=0.1) for _ in range(2)]
NORMS = [(numbers(CHANNELS), RNG.uniform(0.5, 2, CHANNELS).astype(np.float32), numbers(CHANNELS), numbers(CHANNELS))
         for _ in range(2)]  # fmt: skip


def residual(x: Any) -> Any:
    """A basic block of a ResNet."""
    first, second = (
        lambda x, w=w, norm=norm: ys.nn.batch_norm(ys.nn.conv2d(x, ys.asarray(w), padding=1), *map(ys.asarray, norm))
        for w, norm in zip(KERNELS, NORMS, strict=True)
    )
    return ys.nn.relu(second(ys.nn.relu(first(x))) + x)


def residual_directly(o: Any, x: Any) -> Any:
    made = x
    for n, (w, (mean, var, weight, bias)) in enumerate(zip(KERNELS, NORMS, strict=True)):
        made = o.convolution(made, o.constant(w), [1, 1], [1, 1], [1, 1], [1, 1])
        made = o.batch_norm_inference(made, *map(o.constant, (weight, bias, mean, var)), 1e-5)
        made = o.relu(made if n == 0 else o.add(made, x))
    return made


def test_a_residual_block_is_one_partition() -> None:
    check(residual, residual_directly, numbers(2, CHANNELS, 12, 12))


def test_a_norm_goes_into_the_kernel_of_the_convolution() -> None:
    """What is constant is folded: of the two nothing is left to run but a convolution, and what it is laid out by."""
    kernel, norm = ys.asarray(KERNELS[0]), tuple(map(ys.asarray, NORMS[0]))
    _, plan = planned(
        lambda x: ys.nn.batch_norm(ys.nn.conv2d(x, kernel, padding=1), *norm),
        numbers(2, CHANNELS, 12, 12),
        device=DEVICE.name,
    )
    assert plan.sole_step is not None
    compiled: Any = plan.sole_step.kernels[plan.sole_step.candidate]
    nodes = compiled._request.request.get_compiled_model().get_runtime_model().get_ordered_ops()
    run = [node.get_rt_info()["layerType"].astype(str) for node in nodes]
    assert [kind for kind in run if kind not in ("Input", "Const", "Reshape", "Reorder", "Output")] == ["Convolution"]


def test_a_whole_small_network_is_one_partition() -> None:
    first, last = numbers(CHANNELS, 3, 7, 7, scale=0.1), numbers(10, CHANNELS)

    def network(x: Any) -> Any:
        x = ys.nn.max_pool2d(ys.nn.relu(ys.nn.conv2d(x, ys.asarray(first), stride=2, padding=3)), 3, 2, 1)
        x = ys.nn.avg_pool2d(residual(x), 4)
        logits = ys.nn.linear(ys.reshape(x, (x.shape[0], -1)), ys.asarray(np.tile(last, (1, 4))))
        return ys.argmax(ys.nn.softmax(logits), axis=-1)

    x = numbers(3, 3, 32, 32)
    got, plan = planned(network, x, device=DEVICE.name)
    assert [step.device.name for step in plan.steps] == [DEVICE.name]
    np.testing.assert_array_equal(got, planned(network, x, device="cpu")[0])


# A transformer block

SQUARE = [numbers(WIDTH, WIDTH, scale=WIDTH**-0.5) for _ in range(4)]
WIDE, NARROW = numbers(4 * WIDTH, WIDTH, scale=WIDTH**-0.5), numbers(WIDTH, 4 * WIDTH, scale=WIDTH**-0.5)
VECTORS = {name: numbers(WIDTH) for name in ("scale1", "shift1", "scale2", "shift2", "out", "narrow")}
BIAS = numbers(4 * WIDTH)


def split(x: Any) -> Any:
    """The heads as a dimension of their own."""
    return ys.permute_dims(ys.reshape(x, (*x.shape[:2], HEADS, WIDTH // HEADS)), (0, 2, 1, 3))


def transformer(x: Any) -> Any:
    """A block with the norms before what they norm for, and causal attention."""
    query, key, value, out = map(ys.asarray, SQUARE)
    v = {name: ys.asarray(vector) for name, vector in VECTORS.items()}
    y = ys.nn.layer_norm(x, v["scale1"], v["shift1"])
    heads = [split(ys.nn.linear(y, w)) for w in (query, key, value)]
    seen = ys.permute_dims(ys.nn.scaled_dot_product_attention(*heads, is_causal=True), (0, 2, 1, 3))
    x = x + ys.nn.linear(ys.reshape(seen, x.shape), out, v["out"])
    y = ys.nn.layer_norm(x, v["scale2"], v["shift2"])
    y = ys.nn.gelu(ys.nn.linear(y, ys.asarray(WIDE), ys.asarray(BIAS)))
    return x + ys.nn.linear(y, ys.asarray(NARROW), v["narrow"])


def transformer_directly(o: Any, x: Any) -> Any:
    batch, length, _ = x.get_output_shape(0)
    c = {name: o.constant(vector) for name, vector in VECTORS.items()}

    def norm(x: Any, n: int) -> Any:
        made = o.mvn(x, o.constant(np.array([2])), True, 1e-5, "INSIDE_SQRT")
        return o.add(o.multiply(made, c[f"scale{n}"]), c[f"shift{n}"])

    def shaped(x: Any, *shape: int) -> Any:
        return o.reshape(x, o.constant(np.array(shape)), False)

    def swapped(x: Any) -> Any:
        return o.transpose(x, o.constant(np.array([0, 2, 1, 3])))

    y = norm(x, 1)
    heads = [shaped(o.matmul(y, o.constant(w), False, True), batch, length, HEADS, WIDTH // HEADS) for w in SQUARE[:3]]
    seen = o.scaled_dot_product_attention(*map(swapped, heads), causal=True)
    seen = o.matmul(shaped(swapped(seen), batch, length, WIDTH), o.constant(SQUARE[3]), False, True)
    x = o.add(x, o.add(seen, c["out"]))
    y = o.gelu(o.add(o.matmul(norm(x, 2), o.constant(WIDE), False, True), o.constant(BIAS)), "erf")
    return o.add(x, o.add(o.matmul(y, o.constant(NARROW), False, True), c["narrow"]))


def test_a_transformer_block_is_one_partition() -> None:
    check(transformer, transformer_directly, numbers(2, 24, WIDTH))


@pytest.mark.parametrize("masked", [False, True])
def test_a_block_with_other_parts_is_one_partition(masked: bool) -> None:
    allowed = ys.asarray(RNG.random((24, 24)) < 0.7) if masked else None

    def block(x: Any) -> Any:
        y = ys.nn.rms_norm(x, ys.asarray(VECTORS["scale1"]))
        heads = [split(ys.nn.linear(y, ys.asarray(w))) for w in SQUARE[:3]]
        scores = ys.nn.attention_scores(heads[0], heads[1], allowed, scale=1 / sqrt(WIDTH))
        x = x + ys.reshape(ys.permute_dims(scores @ heads[2], (0, 2, 1, 3)), x.shape)
        y = ys.nn.silu(ys.nn.linear(x, ys.asarray(WIDE))) * ys.nn.linear(x, ys.asarray(WIDE))
        return ys.nn.log_softmax(x + ys.nn.linear(y, ys.asarray(NARROW)))

    x = numbers(2, 24, WIDTH)
    got, plan = planned(block, x, device=DEVICE.name)
    assert [step.device.name for step in plan.steps] == [DEVICE.name]
    np.testing.assert_allclose(got, planned(block, x, device="cpu")[0], rtol=1e-4, atol=1e-4)


def test_a_model_is_its_without_being_named() -> None:
    """Two convolutions by constants, of some size, are a model."""
    kernels = [ys.asarray(numbers(64, 64, 3, 3, scale=0.05)) for _ in range(2)]

    def network(x: Any) -> Any:
        for w in kernels:
            x = ys.nn.relu(ys.nn.conv2d(x, w, padding=1))
        return x

    _, plan = planned(network, numbers(1, 64, 28, 28), device="auto")
    assert [step.device.name for step in plan.steps] == [DEVICE.name]
