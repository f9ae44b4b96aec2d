"""Softmax and the norms."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from gradients import check_gradient, random
from torch_peer import check_against_torch

X, ROW, COLUMN = random((4, 6)), random((6,)), random((6,), seed=1)
IMAGES, CHANNELS, SPREAD = random((3, 4, 5, 2)), random((4,)), np.abs(random((4,), seed=1)) + 0.5

PEERS = {
    "softmax": (lambda x: ys.nn.softmax(x, 0), lambda f, x: f.softmax(x, 0), X),
    "log_softmax": (ys.nn.log_softmax, lambda f, x: f.log_softmax(x, -1), X),
    "layer_norm": (ys.nn.layer_norm, lambda f, x, w, b: f.layer_norm(x, (6,), w, b), X, ROW, COLUMN),
    "layer_norm-plain": (
        lambda x: ys.nn.layer_norm(x, axis=(-2, -1), eps=0.1), lambda f, x: f.layer_norm(x, (5, 2), eps=0.1), IMAGES),
    "rms_norm": (ys.nn.rms_norm, lambda f, x, w: f.rms_norm(x, (6,), w, eps=1e-6), X, ROW),
    "group_norm": (
        lambda x, w, b: ys.nn.group_norm(x, 2, w, b), lambda f, x, w, b: f.group_norm(x, 2, w, b), IMAGES, CHANNELS,
        SPREAD),
    "instance_norm": (lambda x: ys.nn.group_norm(x, 4), lambda f, x: f.instance_norm(x), IMAGES),
    "batch_norm": (
        ys.nn.batch_norm, lambda f, x, m, v, w, b: f.batch_norm(x, m, v, w, b), IMAGES, CHANNELS, SPREAD,
        CHANNELS * 2, SPREAD * 3),
    "batch_norm_train": (
        lambda x, w, b: ys.nn.batch_norm_train(x, w, b)[0],
        lambda f, x, w, b: f.batch_norm(x, None, None, w, b, training=True), IMAGES, CHANNELS, SPREAD),
}  # fmt: skip


@pytest.mark.parametrize("name", [n for n in PEERS if n != "batch_norm"])
def test_against_torch(name):
    check_against_torch(*PEERS[name], rtol=1e-7)


def test_batch_norm_against_torch():
    ours, theirs, x, mean, var, weight, bias = PEERS["batch_norm"]
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    given = [torch.tensor(a) for a in (mean, var)]  # by which PyTorch has no gradient
    stats = [ys.asarray(a) for a in (mean, var)]
    check_against_torch(
        lambda x, w, b: ours(x, *stats, w, b), lambda f, x, w, b: theirs(f, x, *given, w, b), x, weight, bias
    )
    check_gradient(ours, x, mean, var, weight, bias, rtol=1e-5)


@given(
    hnp.arrays(
        np.float64, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5), elements=st.floats(-1e6, 1e6)
    ),
    st.data(),
)
def test_softmax_adds_up_to_one(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    made = ys.nn.softmax(ys.asarray(x), axis=axis)
    assert made.shape == x.shape
    if x.shape[axis]:
        np.testing.assert_allclose(made.numpy().sum(axis), 1, rtol=1e-12)
        with np.errstate(divide="ignore"):
            logs = [np.log(made.numpy()), ys.nn.log_softmax(ys.asarray(x), axis).numpy()]
        np.testing.assert_allclose(*[np.maximum(part, -700) for part in logs], rtol=1e-9, atol=1e-9)


def test_softmax_where_exponentials_overflow():
    assert ys.nn.softmax(ys.asarray([1e4, 0.0, -1e4])).tolist() == [1, 0, 0]
    assert ys.nn.log_softmax(ys.asarray([1e4, 0.0])).tolist() == [0, -1e4]
    assert ys.nn.softmax(ys.asarray([0.0, float("-inf")])).tolist() == [1, 0]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 0, 4)])
def test_of_nothing(shape):
    x = ys.zeros(shape)
    for made in (ys.nn.softmax(x), ys.nn.log_softmax(x), ys.nn.layer_norm(x), ys.nn.rms_norm(x)):
        assert made.numpy().shape == shape


@given(st.integers(1, 4), st.integers(2, 9), st.floats(0.1, 100))
def test_layer_norm_has_mean_0_and_variance_1(rows, columns, scale):
    x = random((rows, columns)) * scale + 3
    made = ys.nn.layer_norm(ys.asarray(x), eps=0.0).numpy()
    np.testing.assert_allclose(made.mean(-1), 0, atol=1e-9)
    np.testing.assert_allclose(made.var(-1), 1, rtol=1e-9)


def test_layer_norm_of_large_numbers_close_together():
    x = ys.asarray(1e6 + random((2, 8)), dtype=ys.float32)
    assert float(ys.max(ys.abs(ys.nn.layer_norm(x)))) < 4


def test_batch_statistics_are_returned():
    made, mean, var = ys.nn.batch_norm_train(ys.asarray(IMAGES))
    np.testing.assert_allclose(mean, IMAGES.mean((0, 2, 3)))
    np.testing.assert_allclose(var, IMAGES.var((0, 2, 3)))
    np.testing.assert_allclose(made, ys.nn.batch_norm(ys.asarray(IMAGES), mean, var), rtol=1e-12)
    half = ys.asarray(IMAGES).astype(ys.float16)
    made, mean, var = ys.nn.batch_norm_train(half, ys.ones((4,), dtype=ys.float16))
    assert (made.dtype, mean.dtype, var.dtype) == (ys.float16, ys.float32, ys.float32)
    last, _, _ = ys.nn.batch_norm_train(ys.asarray(np.moveaxis(IMAGES, 1, -1)), axis=-1)
    np.testing.assert_allclose(np.moveaxis(last.numpy(), -1, 1), ys.nn.batch_norm_train(ys.asarray(IMAGES))[0])


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: ys.nn.softmax(ys.ones((2, 3)), 2), r"\[softmax\] expected an axis from -2 to 1"),
        (lambda: ys.nn.softmax(ys.ones((2,), dtype=ys.complex64)), r"\[softmax\] expected a real floating dtype"),
        (lambda: ys.nn.layer_norm(ys.ones((2, 3)), ys.ones((2,))), r"\[layer_norm\] expected weight of shape \(3,\)"),
        (lambda: ys.nn.layer_norm(ys.ones((2, 3)), (3,)), r"\[layer_norm\] expected a tensor or a number, got tuple"),
        (lambda: ys.nn.layer_norm(ys.ones(())), r"\[layer_norm\] expected an axis"),
        (lambda: ys.nn.rms_norm(ys.ones((2, 3)), axis=()), r"\[rms_norm\] expected at least one axis"),
        (lambda: ys.nn.group_norm(ys.ones((2, 3, 4)), 2), r"\[group_norm\] expected num_groups that divides the 3"),
        (lambda: ys.nn.group_norm(ys.ones((2,)), 1), r"\[group_norm\] expected x of shape \(batch, channels"),
        (
            lambda: ys.nn.batch_norm(ys.ones((2, 3)), ys.ones((3,)), ys.ones((2,))),
            r"\[batch_norm\] expected var of shape \(3,\)",
        ),
        (lambda: ys.nn.batch_norm_train(ys.ones((2, 3)), ys.ones((2,))), r"\[batch_norm_train\] expected weight of"),
        (lambda: ys.nn.layer_norm(ys.ones((2, 3)), eps="x"), r"\[layer_norm\] expected eps as a real number"),
    ],
)
def test_mistakes(call, told):
    with pytest.raises(ys.errors.UserError, match=told):
        call()
