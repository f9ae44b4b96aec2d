"""Pooling, against PyTorch and against the definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from gradients import check_gradient, random
from torch_peer import check_against_torch

LENGTHS, KERNEL = (9, 8, 7), (3, 2, 3)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding", "dilation"), [(None, 0, 1), (1, 1, 1), (2, 1, 2)])
def test_max_pool_against_torch(rank, stride, padding, dilation):
    name = f"max_pool{rank}d"
    check_against_torch(
        lambda x: getattr(ys.nn, name)(x, KERNEL[:rank], stride, padding, dilation),
        lambda f, x: getattr(f, name)(x, KERNEL[:rank], stride, padding, dilation),
        random((2, 3, *LENGTHS[:rank])),
    )  # fmt: skip


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(("stride", "padding"), [(None, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("counted", [True, False])
def test_avg_pool_against_torch(rank, stride, padding, counted):
    name = f"avg_pool{rank}d"
    check_against_torch(
        lambda x: getattr(ys.nn, name)(x, KERNEL[:rank], stride, padding, counted),
        lambda f, x: getattr(f, name)(x, KERNEL[:rank], stride, padding, count_include_pad=counted),
        random((2, 3, *LENGTHS[:rank])),
    )  # fmt: skip


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2), st.integers(0, 3), st.sampled_from("fi"))
def test_the_largest_of_each_window(kernel, stride, padding, extra, kind):
    padding = min(padding, kernel // 2)
    x = (random((2, 3, kernel + extra)) * 100).astype({"f": np.float32, "i": np.int16}[kind])
    low = -np.inf if kind == "f" else np.iinfo(np.int16).min
    wide = np.pad(x, ((0, 0), (0, 0), (padding, padding)), constant_values=low)
    starts = range(0, wide.shape[2] - kernel + 1, stride)
    expected = np.stack([wide[..., a : a + kernel].max(-1) for a in starts], -1)
    made = ys.nn.max_pool1d(ys.asarray(x), kernel, stride, padding)
    assert made.dtype == x.dtype
    np.testing.assert_array_equal(made, expected)


def test_ties_share_the_gradient():
    slope = ys.grad(lambda x: ys.nn.max_pool1d(x, 2).sum())(ys.zeros((1, 1, 4)))
    assert slope.tolist() == [[[0.5, 0.5, 0.5, 0.5]]]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: ys.nn.max_pool2d(x * x, 3, 1, 1) ** 2,
        lambda x: ys.nn.avg_pool2d(x * x, 3, 2, 1, count_include_pad=False) ** 2,
    ],
)
def test_gradients_of_the_gradients(function):
    check_gradient(lambda x: ys.grad(lambda x: function(x).sum())(x), random((2, 2, 5, 4)), rtol=1e-4)


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16])
def test_16_bit_floats(dtype):
    x = ys.full((1, 1, 64, 64), 100.0, dtype=dtype)
    mean, largest = ys.nn.avg_pool2d(x, 64), ys.nn.max_pool2d(x, 2)
    assert (mean.dtype, mean.tolist(), largest.dtype) == (dtype, [[[[100.0]]]], dtype)
    assert float(largest[0, 0, 0, 0]) == 100


def test_shapes_at_the_edge():
    x = ys.asarray(random((3, 6, 6)))
    np.testing.assert_array_equal(ys.nn.max_pool2d(x, 2), ys.nn.max_pool2d(x[None], 2)[0])
    assert ys.nn.max_pool2d(ys.zeros((0, 3, 6, 6)), 2).numpy().shape == (0, 3, 3, 3)
    assert ys.nn.avg_pool2d(ys.zeros((0, 3, 6, 6)), 2).numpy().shape == (0, 3, 3, 3)
    assert ys.grad(lambda x: ys.nn.max_pool2d(x, 2).sum())(ys.zeros((0, 3, 6, 6))).numpy().shape == (0, 3, 6, 6)
    assert np.isnan(ys.nn.max_pool1d(ys.asarray([[[1.0, float("nan")]]]), 2).numpy()).all()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: ys.nn.max_pool2d(ys.ones((1, 1, 3, 3)), 4),
            r"\[max_pool2d\] expected spatial lengths that hold a wind",
        ),
        (lambda: ys.nn.max_pool2d(ys.ones((1, 1, 9, 9)), 2, padding=2), r"\[max_pool2d\] expected padding of at most"),
        (lambda: ys.nn.avg_pool2d(ys.ones((9, 9)), 2), r"\[avg_pool2d\] expected x of 4 dimensions"),
        (lambda: ys.nn.max_pool1d(ys.ones((1, 2, 9)), (2, 2)), r"\[max_pool1d\] expected kernel_size as a number"),
        (
            lambda: ys.nn.max_pool1d(ys.ones((1, 2, 9), dtype=ys.complex64), 2),
            r"\[max_pool1d\] expected a real numeric",
        ),
        (lambda: ys.nn.avg_pool1d(ys.ones((1, 2, 9)), 2, padding=((0, 2),)), r"\[avg_pool1d\] expected padding of at"),
    ],
)
def test_mistakes(call, told):
    with pytest.raises(ys.errors.UserError, match=told):
        call()
