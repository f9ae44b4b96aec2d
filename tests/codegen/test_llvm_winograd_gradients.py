"""Gradients by 3 × 3 weights with few products, against sums over windows in float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from codegen.test_llvm_winograd import convolutions, normal, wide
from native_code import needs_llvm
from values import Array
from yosegi.devices.cpu.compiler import HostMachine
from yosegi.devices.cpu.convolutions import Convolutions
from yosegi.devices.cpu.winograd_gradients import GradientPolicy, WinogradGradient, can_be_filtered
from yosegi.ops.windows import Pads, Windows

pytestmark = needs_llvm

CHANNELS = (1, 3, 17, 65, 130)
PADDINGS: tuple[Pads, ...] = (
    ((0, 0), (0, 0)), ((1, 1), (1, 1)), ((2, 2), (2, 2)), ((0, 2), (1, 0)), ((3, 0), (0, 4)), ((-1, 2), (1, -1)),
)  # fmt: skip


def case(
    channels: int,
    outputs: int,
    images: int,
    windows: tuple[int, int],
    padding: Pads,
    step: int,
    dtype: Any = np.float32,
) -> tuple[Array, Array, Windows]:  # fmt: skip
    """Operands and windows of the gradient of a convolution with so many windows a step apart, as it is computed: of
    views of the input and of the result's gradient."""
    sizes = [max(1, (n - 1) * step + 3 - low - high) for n, (low, high) in zip(windows, padding, strict=True)]
    own = tuple(
        (low, (n - 1) * step + 3 - low - size) for n, (low, _), size in zip(windows, padding, sizes, strict=True)
    )
    x, w = normal((images, channels, *sizes), dtype), normal((images, outputs, *windows), dtype, 1)
    return x.swapaxes(0, 1), w.swapaxes(0, 1), Windows(windows, (1, 1), own, (step, step), (1, 1))


def close(got: Array, x: Array, w: Array, windows: Windows) -> None:
    """Within a few roundings of a sum of so many numbers of a normal distribution."""
    expected = wide(x, w, windows)
    assert (got.shape, got.dtype) == (expected.shape, x.dtype)
    tolerance = 32 * float(np.finfo(x.dtype).eps) * (4 + np.prod(w.shape[1:]) ** 0.5)
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("padding", PADDINGS, ids=str)
def test_sizes(padding: Pads, step: int) -> None:
    sizes = [(4, 3), (5, 7), (8, 8), (3, 40), (33, 5), (17, 18)]
    for n, windows in enumerate(sizes):
        x, w, own = case(CHANNELS[n % 5], CHANNELS[(n + 2) % 5], 1 + 2 * n, windows, padding, step)
        close(convolutions(2).filtered(x, w, own)(x, w), x, w, own)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("channels", CHANNELS)
def test_channels(channels: int, dtype: Any) -> None:
    for n, outputs in enumerate(CHANNELS):
        x, w, own = case(channels, outputs, 5, (7, 6), PADDINGS[1], 1 + n % 2, dtype)
        close(convolutions(2).filtered(x, w, own)(x, w), x, w, own)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 9), st.tuples(st.integers(1, 12), st.integers(1, 40)),
    st.tuples(*[st.tuples(st.integers(-2, 4), st.integers(-2, 4))] * 2), st.integers(1, 2), st.booleans(),
)  # fmt: skip
def test_any_windows(
    channels: int, outputs: int, images: int, windows: tuple[int, int], padding: Pads, step: int, backwards: bool
) -> None:
    x, w, own = case(channels, outputs, images, windows, padding, step)
    if backwards:  # images and channels
        x, w = (np.flip(np.flip(a, (0, 1)).copy(), (0, 1)) for a in (x, w))
    assert can_be_filtered(x, w, own, 1)
    close(convolutions(2).filtered(x, w, own)(x, w), x, w, own)


@pytest.mark.parametrize("policy", [GradientPolicy(16, 1), GradientPolicy(32, 7), GradientPolicy(1000, 1000)], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_however_the_work_is_cut(threads: int, policy: GradientPolicy) -> None:
    x, w, own = case(40, 70, 6, (13, 10), PADDINGS[1], 1)
    owner = convolutions(threads)
    made = WinogradGradient(owner.runtime, owner.results, owner.spare, x, w, own, _must_not_run, policy)
    close(made(x, w), x, w, own)


def test_memory_that_holds_no_numbers() -> None:
    """What is left in reused memory is never read."""
    x, w, own = case(20, 33, 3, (7, 9), PADDINGS[1], 2)
    owner = convolutions(2)
    made = owner.filtered(x, w, own)
    expected = made(x, w)
    for block in [owner.spare.take(1) for _ in range(4)]:
        block[:] = 0xFF
        owner.spare.give_back(block)
    made._direct = _must_not_run
    np.testing.assert_array_equal(made(x, w), expected)


def test_several_callers_at_once() -> None:
    x, w, own = case(64, 64, 8, (16, 16), PADDINGS[1], 1)
    made = convolutions(2).filtered(x, w, own)
    expected = made(x, w)
    with ThreadPoolExecutor(6) as pool:
        for got in pool.map(lambda _: made(x, w), range(40)):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.skipif(
    not HostMachine.host().triple.startswith("x86_64"), reason="names a processor of another architecture"
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("model", ["x86-64-v3", "x86-64"])
def test_lesser_processors(model: str, dtype: Any) -> None:
    for n, (channels, outputs) in enumerate([(1, 65), (17, 3), (65, 17), (3, 130)]):
        x, w, own = case(channels, outputs, 3, (5 + n, 9 - n), PADDINGS[n], 1 + n % 2, dtype)
        close(convolutions(2, model).filtered(x, w, own)(x, w), x, w, own)


@pytest.mark.parametrize("step", [1, 2])
def test_the_error_is_no_larger_than_that_of_plain_sums(step: int) -> None:
    x, w, own = case(64, 64, 32, (16, 16), PADDINGS[1], step)
    owner, expected = convolutions(2), wide(x, w, own)
    plain, filtered = (
        float(np.sqrt(np.mean((way(x, w) - expected) ** 2)))
        for way in (owner.multiplied(x, w, own), owner.filtered(x, w, own))
    )
    assert filtered < plain < 1e-6 * float(np.std(expected))


# What is not finite


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (3, 10), (8, 8)])
def test_what_is_no_number_stays_where_it_is(place: tuple[int, int], value: float) -> None:
    x, w, own = case(5, 8, 2, (9, 11), ((0, 0), (0, 0)), 1)
    owner = convolutions(2)
    made, direct = owner.filtered(x, w, own), owner.bound(x, np.ascontiguousarray(w), own, 1)
    for array in (x, w):
        before = array[1, 1, *place]
        array[1, 1, *place] = value
        np.testing.assert_array_equal(made(x, w), direct(x, np.ascontiguousarray(w)))
        array[1, 1, *place] = before
    close(made(x, w), x, w, own)  # nothing is left of the call before


def test_numbers_near_the_largest() -> None:
    """Sums of them overflow, where those over windows would not."""
    x, w, own = case(3, 4, 1, (8, 8), ((0, 0), (0, 0)), 1)
    x[...], w[...] = 0, 0.25
    x[0, 0, 4, 5:7] = 3e38
    owner = convolutions(2)
    got = owner.filtered(x, w, own)(x, w)
    assert np.isfinite(got).all()
    np.testing.assert_array_equal(got, owner.bound(x, np.ascontiguousarray(w), own, 1)(x, np.ascontiguousarray(w)))


def _must_not_run(x: Array, w: Array) -> Array:
    raise AssertionError("everything was finite")


# Who is asked


def test_what_it_is_asked_for() -> None:
    x, w, own = case(4, 4, 2, (8, 8), PADDINGS[1], 1)
    assert can_be_filtered(x, w, own, 1)
    assert not can_be_filtered(x, w, own, 2)
    assert not can_be_filtered(x[..., ::-1], w, own, 1)
    assert not can_be_filtered(x, w[..., ::2, :], own, 1)
    assert not can_be_filtered(x, w, Windows((8, 8), (1, 1), ((1, 2), (1, 1)), (1, 1), (1, 1)), 1)
    assert not can_be_filtered(x, w, Windows((8, 8), (2, 2), own.padding, (1, 1), (1, 1)), 1)
    assert not can_be_filtered(*case(4, 4, 2, (8, 8), PADDINGS[1], 3), 1)
    assert not can_be_filtered(x[0], w[0], Windows((8,), (1,), ((1, 1),), (1,), (1,)), 1)


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_a_program_are_computed_by_it(stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    owner = Convolutions.filtered

    def filtered(self: Convolutions, *arrays: Any) -> Any:
        asked.append(arrays)
        return owner(self, *arrays)

    monkeypatch.setattr(Convolutions, "filtered", filtered)
    x, w = normal((2, 16, 21, 20)), normal((24, 16, 3, 3), seed=1)
    gradient = ys.jit(ys.grad(lambda w, x: ys.sum(ys.nn.conv2d(x, w, padding=1, stride=stride) ** 2)))
    with ys.options(device="cpu"):
        got = gradient(ys.asarray(w), ys.asarray(x)).numpy()
        expected = gradient(ys.asarray(w.astype(np.float64)), ys.asarray(x.astype(np.float64))).numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert asked
