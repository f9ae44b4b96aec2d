"""OpenVINO's rows for convolutions and pooling, against the reference: every kind of window, and special values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from openvino_regions import DEVICE, needed, reason, reference, run
from yosegi._tensor.op import REGISTRY

pytestmark = needed
RNG = np.random.default_rng(11)


def numbers(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def check(made: ys.Tensor) -> None:
    """The model gives the reference's result, NaN and infinities in the same places."""
    (got,), (expected,) = run(made), reference(made)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, expected))
    scale = np.max(np.abs(expected[finite]), initial=0)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=1e-5, atol=2e-6 * scale)


@st.composite
def convolutions(draw: Any) -> ys.Tensor:
    """Any convolution that has a result: 1 to 3 dimensions, groups, strides or spread elements, uneven padding."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    inside, outside = (draw(st.integers(1, 5)) for _ in range(2))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    dilation = tuple(draw(st.integers(1, 2)) for _ in range(rank))
    stride = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    spread = (1,) * rank
    if draw(st.booleans()):
        stride, spread = spread, stride
    padding = tuple((draw(st.integers(-1, 3)), draw(st.integers(-1, 3))) for _ in range(rank))
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    lengths = [e + 2 + draw(st.integers(0, 6)) for e in extent]
    x = numbers(draw(st.integers(1, 3)), groups * inside, *lengths)
    w = numbers(groups * outside, inside, *kernel)
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "spread": spread}
    return REGISTRY["conv"](ys.asarray(x), ys.asarray(w), **attrs)


@given(convolutions())
@settings(max_examples=80)
def test_any_convolution(made: ys.Tensor) -> None:
    refused = reason(made)
    if refused is None:
        check(made)
    else:
        assert refused == "it has no such padding of elements that stand apart"
        assert max(made._node.call.attrs["spread"]) > 1


CHANNELS = [(64, 64, 3, 1), (32, 48, 1, 1), (32, 32, 3, 32), (3, 16, 7, 1), (16, 64, 5, 4)]


@pytest.mark.parametrize(("inputs", "outputs", "kernel", "groups"), CHANNELS)
def test_convolutions_of_many_channels(inputs: int, outputs: int, kernel: int, groups: int) -> None:
    x, w, b = numbers(2, inputs, 17, 19), numbers(outputs, inputs // groups, kernel, kernel), numbers(outputs)
    for stride in (1, 2):
        check(ys.nn.conv2d(ys.asarray(x), ys.asarray(w), ys.asarray(b), stride, kernel // 2, groups=groups))


def test_what_is_no_number_spreads_as_far_as_its_windows() -> None:
    x, w = numbers(2, 16, 9, 9), ys.asarray(numbers(16, 16, 3, 3))
    x[0, 3, 4, 4], x[1, 0, 0, 0] = np.nan, np.inf
    check(ys.nn.conv2d(ys.asarray(x), w, padding=1))
    check(ys.nn.relu(ys.nn.conv2d(ys.asarray(x), w, padding=1)))


TRANSPOSED = [(1, 0, 0, 1), (2, 1, 1, 1), (3, 0, 2, 1), (2, 2, 0, 2)]


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "extra", "dilation"), TRANSPOSED)
def test_transposed_convolutions(rank: int, stride: int, padding: int, extra: int, dilation: int) -> None:
    transpose = getattr(ys.nn, f"conv_transpose{rank}d")
    for groups in (1, 2):
        x, w = ys.asarray(numbers(2, 4, *[5] * rank)), ys.asarray(numbers(4, 3, *[3] * rank))
        attrs = (None, stride, padding, extra, groups, dilation)
        with ys.options(device=DEVICE.name, on_fallback="error"):
            made = transpose(x, w, *attrs)
            assert {step.device.name for step in ys.plan(made).steps} == {DEVICE.name}
            got = made.numpy()
        with ys.options(device="cpu"):
            np.testing.assert_allclose(got, transpose(x, w, *attrs).numpy(), rtol=1e-5, atol=1e-5)


# Pools


@st.composite
def pools(draw: Any) -> tuple[str, ys.Tensor]:
    """Any pool, over numbers of which some are none, or infinite."""
    rank = draw(st.integers(1, 3))
    kernel = [draw(st.integers(1, 4)) for _ in range(rank)]
    stride = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    name = draw(st.sampled_from(["max_pool", "avg_pool"]))
    dilation = [draw(st.integers(1, 2)) if name == "max_pool" else 1 for _ in range(rank)]
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = tuple((draw(st.integers(0, e // 2)), draw(st.integers(0, e // 2))) for e in extent)
    x = numbers(2, 3, *[e + draw(st.integers(0, 6)) for e in extent])
    for value in (np.nan, np.inf, -np.inf):
        x.reshape(-1)[draw(st.lists(st.integers(0, x.size - 1), max_size=2))] = value
    attrs: dict[str, Any] = {"kernel_size": tuple(kernel), "stride": stride, "padding": padding}
    attrs |= {"dilation": tuple(dilation)} if name == "max_pool" else {"count_include_pad": draw(st.booleans())}
    return name, REGISTRY[name](ys.asarray(x), **attrs)


@given(pools())
@settings(max_examples=60)
def test_any_pool(case: tuple[str, ys.Tensor]) -> None:
    check(case[1])


def test_a_pool_of_nothing_but_infinities() -> None:
    for value in (-np.inf, np.inf, np.nan):
        check(ys.nn.max_pool2d(ys.asarray(np.full((1, 20, 8, 8), value, np.float32)), 3, padding=1))


def test_means_of_windows_that_would_lose_digits() -> None:
    x = ys.asarray(np.ones((1, 1, 40, 40), np.float32))
    assert reason(ys.nn.avg_pool2d(x, 30)) == "it would lose digits over 900 elements"
    assert reason(ys.nn.avg_pool2d(x, 20)) is None
