"""Convolutions with weights larger than their result, as matrix products."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen.test_llvm_winograd import convolutions
from native_code import needs_llvm
from yosegi.devices.cpu.weight_gradients import is_gradient
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
