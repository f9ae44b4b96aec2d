"""Variants of convolutions: weight gradients by planes, one product of copied windows, remainders of a spread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.test_llvm_winograd import convolutions
from native_code import needs_llvm
from yosegi.devices.cpu.column_products import fits
from yosegi.devices.cpu.compiler import HostMachine
from yosegi.devices.cpu.depthwise_calls import is_depthwise
from yosegi.devices.cpu.point_convolutions import is_pointwise
from yosegi.devices.cpu.spread_convolutions import is_spread
from yosegi.devices.cpu.weight_gradients import is_gradient
from yosegi.devices.cpu.workspace import Spare
from yosegi.ops.windows import Windows, convolved

pytestmark = needs_llvm

RNG = np.random.default_rng(3)


@st.composite
def cases(draw: Any) -> tuple[Any, Any, Windows]:
    """Operands and windows whose result has a few places, in one to three dimensions."""
    rank, dtype = draw(st.integers(1, 3)), draw(st.sampled_from([np.float32, np.float64]))
    number = st.integers(1, 3)
    counts, strides, dilations = ([draw(number) for _ in range(rank)] for _ in range(3))
    kernel = [draw(st.integers(count + 1, 6)) for count in counts]
    extents = [(c - 1) * s + (k - 1) * d + 1 for c, s, k, d in zip(counts, strides, kernel, dilations, strict=True)]
    sizes, padding = [], []
    for extent in extents:  # what the padding takes from a side, the input has more
        low, high = draw(st.integers(-2, 2)), draw(st.integers(-2, 2))
        sizes.append(max(1, extent - low - high))
        padding.append((low, extent - low - sizes[-1]))
    images = draw(st.integers(1, 4))
    x = RNG.standard_normal((draw(st.integers(1, 9)), images, *sizes)).astype(dtype)
    w = RNG.standard_normal((draw(st.integers(1, 9)), images, *kernel)).astype(dtype)
    return x, w, Windows(tuple(kernel), tuple(strides), tuple(padding), tuple(dilations), (1,) * rank)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_it_gives_what_the_reference_gives(case: tuple[Any, Any, Windows]) -> None:
    x, w, windows = case
    assert is_gradient(x, w, windows, 1)
    got = convolutions(2).multiplied(x, w, windows)(x, w)
    wanted = convolved(x.astype(float), w.astype(float), windows, 1)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=np.finfo(x.dtype).eps * 4 * np.prod(w.shape[1:]))


@pytest.mark.parametrize("wrong", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_not_finite_stays_where_it_belongs(wrong: float) -> None:
    """It must not meet the zeros around the planes."""
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((4, 3, 9, 9), (5, 3, 7, 7)))
    x[1, 2, 0, 0] = wrong  # which one place of the result reads
    windows = Windows((7, 7), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1))
    got = convolutions(2).multiplied(x, w, windows)(x, w)
    np.testing.assert_array_equal(np.isfinite(got), np.isfinite(convolved(x, w, windows, 1)))
    assert np.isfinite(got).sum() == got.size - 5


def test_threads_do_not_share_memory() -> None:
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((16, 8, 20, 20), (12, 8, 18, 18)))
    made = convolutions(2).multiplied(x, w, Windows((18, 18), (1, 1), ((0, 0), (0, 0)), (1, 1), (1, 1)))
    inputs = [x + n for n in range(8)]
    expected = [made(one, w) for one in inputs]
    with ThreadPoolExecutor(4) as pool:
        for got, one in zip(pool.map(lambda one: made(one, w), inputs), expected, strict=True):
            np.testing.assert_array_equal(got, one)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lengths", [(7,), (5, 9), (3, 4, 6)])
@pytest.mark.parametrize(("batch", "channels", "outputs"), [(1, 5, 40), (3, 70, 9), (2, 1, 1)])
def test_kernels_of_one_place(lengths: tuple[int, ...], batch: int, channels: int, outputs: int, dtype: Any) -> None:
    ones = (1,) * len(lengths)
    windows = Windows(ones, ones, ((0, 0),) * len(ones), ones, ones)
    x = RNG.standard_normal((2 * batch, channels, *lengths)).astype(dtype)[::2]
    w = RNG.standard_normal((channels, outputs, *ones)).astype(dtype).swapaxes(0, 1)
    assert is_pointwise(x, windows, 1)
    wanted = convolved(x.astype(float), w.astype(float), windows, 1)
    for made in (convolutions(2).points(x, w), convolutions(1).points(x, w)):
        got = made(x, w)
        assert (got.shape, got.dtype) == (wanted.shape, x.dtype)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=np.finfo(x.dtype).eps * 8 * channels)


@st.composite
def depthwise_cases(draw: Any) -> tuple[Any, Any, Windows]:
    """Operands of depthwise convolutions, some of whose windows lie outside the input."""
    kernel, stride = steps(draw, 2, 1, 5), steps(draw, 2, 1, 2)
    padding = tuple((draw(st.integers(-1, 4)), draw(st.integers(-1, 4))) for _ in range(2))
    sizes = [draw(st.integers(max(1, k - low - high), 40)) for k, (low, high) in zip(kernel, padding, strict=True)]
    dtype, channels = draw(st.sampled_from([np.float32, np.float64])), draw(st.integers(1, 5))
    x = RNG.standard_normal((2 * draw(st.integers(1, 3)), channels, *sizes)).astype(dtype)[::-2, ::-1]
    w = RNG.standard_normal((channels, 1, *kernel)).astype(dtype)
    return x, w, Windows(kernel, stride, padding, (1, 1), (1, 1))


@settings(max_examples=60, deadline=None)
@given(depthwise_cases())
def test_depthwise_convolutions(case: tuple[Any, Any, Windows]) -> None:
    x, w, windows = case
    assert is_depthwise(x, w, windows, len(w))
    wanted = convolved(x.astype(float), w.astype(float), windows, len(w))
    for threads in (1, 2):
        got = convolutions(threads).channels(x, w, windows)(x, w)
        assert (got.shape, got.dtype) == (wanted.shape, x.dtype)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=np.finfo(x.dtype).eps * 4 * np.prod(w.shape[1:]))


@pytest.mark.skipif(
    not HostMachine.host().triple.startswith("x86_64"), reason="names a processor of another architecture"
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("model", ["x86-64-v3", "x86-64"])
def test_depthwise_convolutions_on_lesser_processors(model: str, stride: int, dtype: Any) -> None:
    windows = Windows((3, 5), (stride, stride), ((1, 1), (2, 2)), (1, 1), (1, 1))
    x, w = (RNG.standard_normal(shape).astype(dtype) for shape in ((2, 5, 11, 23), (5, 1, 3, 5)))
    wanted = convolved(x.astype(float), w.astype(float), windows, 5)
    got = convolutions(2, model).channels(x, w, windows)(x, w)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=np.finfo(dtype).eps * 60)


@pytest.mark.parametrize("wrong", [np.inf, np.nan])
def test_what_is_not_finite_stays_in_its_channel(wrong: float) -> None:
    windows = Windows((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    x, w = (RNG.standard_normal(shape).astype(np.float32) for shape in ((2, 5, 9, 9), (5, 1, 3, 3)))
    x[1, 2, 0, 8] = wrong
    got = convolutions(2).channels(x, w, windows)(x, w)
    assert not np.isfinite(got[1, 2, :2, 7:]).any()
    assert np.isfinite(got).sum() == got.size - 4


def test_which_convolutions_are_depthwise() -> None:
    x, w, one, none = np.zeros((2, 3, 8, 8), np.float32), np.zeros((3, 1, 3, 3), np.float32), (1, 1), ((0, 0), (0, 0))
    plain = Windows((3, 3), one, none, one, one)
    assert is_depthwise(x, w, plain, 3)
    assert not is_depthwise(x, np.zeros((6, 1, 3, 3), np.float32), plain, 3)
    assert not is_depthwise(x, w, plain, 1)
    assert not is_depthwise(x[..., ::2], w, plain, 3)
    assert not is_depthwise(x, w, Windows((3, 3), (3, 1), none, one, one), 3)
    assert not is_depthwise(x, w, Windows((3, 3), one, none, (1, 2), one), 3)
    assert not is_depthwise(x, w, Windows((3, 3), one, none, one, (2, 1)), 3)
    assert not is_depthwise(x, w, Windows((7, 7), one, none, one, one), 3)


def test_which_kernels_have_one_place() -> None:
    x, one, none = np.zeros((2, 3, 8, 8), np.float32), (1, 1), ((0, 0), (0, 0))
    assert is_pointwise(x, Windows(one, one, none, (2, 2), one), 1)
    assert not is_pointwise(x, Windows(one, one, none, one, one), 3)
    assert not is_pointwise(x, Windows((1, 2), one, none, one, one), 1)
    assert not is_pointwise(x, Windows(one, (2, 1), none, one, one), 1)
    assert not is_pointwise(x, Windows(one, one, ((0, 0), (1, 0)), one, one), 1)
    assert not is_pointwise(x, Windows(one, one, none, one, (1, 2)), 1)
    assert not is_pointwise(x[..., ::2], Windows(one, one, none, one, one), 1)


def steps(draw: Any, rank: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(rank))


@st.composite
def convolved_cases(draw: Any) -> tuple[Any, Any, Windows, int]:
    """Operands, windows with a stride or elements that stand apart, and groups."""
    rank, dtype = draw(st.integers(1, 3)), draw(st.sampled_from([np.float32, np.float64]))
    groups, is_spread = draw(st.sampled_from([1, 1, 2])), draw(st.booleans())
    kernel, sizes, dilation = steps(draw, rank, 1, 4), steps(draw, rank, 1, 8), steps(draw, rank, 1, 3)
    stride, spread = (1,) * rank, (1,) * rank
    if is_spread:
        spread = (draw(st.integers(2, 3)), *steps(draw, rank - 1, 1, 3))
    else:
        stride = steps(draw, rank, 1, 3)
    padding = []
    for k, n, d, s in zip(kernel, sizes, dilation, spread, strict=True):
        low = draw(st.integers(-1, 3))
        padding.append((low, max(draw(st.integers(-1, 3)), (k - 1) * d - (n - 1) * s - low)))  # there is a window
    x = RNG.standard_normal((draw(st.integers(1, 4)), 2 * draw(st.integers(1, 4)), *sizes)).astype(dtype)
    w = RNG.standard_normal((2 * draw(st.integers(1, 9)), x.shape[1] // groups, *kernel)).astype(dtype)
    if draw(st.booleans()):
        x = np.asfortranarray(x)
    return x, w, Windows(kernel, stride, tuple(padding), dilation, spread), groups


@settings(max_examples=120, deadline=None)
@given(convolved_cases(), st.booleans())
def test_remainders_and_columns_give_what_the_reference_gives(
    case: tuple[Any, Any, Windows, int], copied: bool
) -> None:
    x, w, windows, groups = case
    wanted = convolved(x.astype(float), w.astype(float), windows, groups)
    owner = convolutions(2)
    assert is_spread(windows) != fits(x, w, windows, 1)
    if is_spread(windows):
        made = owner.remainders(x, w, windows, groups, copied=copied)
    elif groups == 1:
        made = owner.columns(x, w, windows)
    else:
        assert not fits(x, w, windows, groups)
        return
    for _ in range(2):  # the second run works in memory that the first has left
        tolerance = np.finfo(x.dtype).eps * 4 * np.prod(w.shape[1:])
        np.testing.assert_allclose(made(x, w), wanted, rtol=0, atol=tolerance)


def test_spare_memory_goes_to_the_request_that_it_fits() -> None:
    """A small request took the large block, and the next large one got new pages."""
    spare = Spare()
    large, small = spare.take(1 << 20), spare.take(100)
    spare.give_back(large)
    spare.give_back(small)
    assert spare.take(50) is small
    assert spare.take(1 << 19) is large
    assert spare.take(50).nbytes == 50
