"""Linear maps, dropout, and the fused patterns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from gradients import random
from torch_peer import check_against_torch

X, W, B, RESIDUAL = random((5, 4)), random((3, 4)), random((3,)), random((5, 3))
SCALE, SHIFT = random((4,)), random((4,), seed=1)
MEAN, VAR, GAMMA = random((3,), seed=2), np.abs(random((3,), seed=3)) + 0.5, random((3,), seed=4)

PEERS = {
    "linear": (ys.nn.linear, lambda f, x, w, b: f.linear(x, w, b), X, W, B),
    "linear-plain": (ys.nn.linear, lambda f, x, w: f.linear(x, w), random((2, 5, 4)), W),
    "linear-vector": (ys.nn.linear, lambda f, x, w, b: f.linear(x, w, b), X[0], W, B),
    "linear_residual_relu": (
        lambda x, w, r, b: ys.nn.linear_residual_relu(x, w, r, b),
        lambda f, x, w, r, b: f.relu(f.linear(x, w, b) + r), X, W, RESIDUAL, B),
    "gelu_linear": (ys.nn.gelu_linear, lambda f, x, w, b: f.linear(f.gelu(x), w, b), X, W, B),
    "layer_norm_linear": (
        ys.nn.layer_norm_linear,
        lambda f, x, w, b, g, h: f.linear(f.layer_norm(x, (4,), g, h), w, b), X, W, B, SCALE, SHIFT),
    "linear_batch_norm_relu": (
        lambda x, w, b, g: ys.nn.linear_batch_norm_relu(x, w, ys.asarray(MEAN), ys.asarray(VAR), b, weight=g),
        lambda f, x, w, b, g: f.relu(f.batch_norm(f.linear(x, w, b), b.new_tensor(MEAN), b.new_tensor(VAR), g)),
        X, W, B, GAMMA),
}  # fmt: skip


@pytest.mark.parametrize("name", PEERS)
def test_against_torch(name):
    check_against_torch(*PEERS[name], rtol=1e-8)


@pytest.mark.parametrize("name", PEERS)
def test_the_separate_ops_give_the_same(name):
    """A fused pattern is what its parts are: under jit, and in 16 bits within their precision."""
    ours, _, *arrays = PEERS[name]
    inputs = [ys.asarray(a) for a in arrays]
    np.testing.assert_allclose(ys.jit(ours)(*inputs), ours(*inputs), rtol=1e-12)
    half = ours(*[i.astype(ys.bfloat16) for i in inputs])
    if name != "linear_batch_norm_relu":  # whose statistics stay float64
        assert half.dtype is ys.bfloat16
    exact = ours(*[i.astype(ys.bfloat16).astype(ys.float64) for i in inputs]).numpy()
    np.testing.assert_allclose(half.astype(ys.float64), exact, rtol=0.05, atol=0.05 * np.abs(exact).max())


def test_of_an_empty_batch():
    assert ys.nn.linear(ys.zeros((0, 4)), ys.asarray(W), ys.asarray(B)).numpy().shape == (0, 3)
    slope = ys.grad(lambda w: ys.nn.linear(ys.zeros((0, 4)), w).sum())(ys.asarray(W))
    np.testing.assert_array_equal(slope, np.zeros_like(W))


# Dropout


@given(st.floats(0.01, 0.99), st.integers(0, 2**63))
def test_dropout_drops_its_share_and_scales_the_rest(rate, seed):
    x = random((40, 50)) + 10
    made = ys.nn.dropout(ys.asarray(x), rate, rng=ys.random.default_rng(seed)).numpy()
    kept = made != 0
    np.testing.assert_allclose(made[kept], (x / (1 - rate))[kept], rtol=1e-12)
    assert abs(kept.mean() - (1 - rate)) < 0.06


def test_dropout_is_a_draw_of_the_generator():
    x = ys.ones((100,))
    first, second = (ys.nn.dropout(x, 0.5, rng=ys.random.default_rng(3)).numpy() for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(ys.nn.dropout(x, 0.5, rng=3), first)
    rng = ys.random.default_rng(3)
    assert (ys.nn.dropout(x, 0.5, rng=rng).numpy() != ys.nn.dropout(x, 0.5, rng=rng).numpy()).any()
    ys.random.seed(5)
    once = ys.nn.dropout(x).numpy()
    ys.random.seed(5)
    np.testing.assert_array_equal(ys.nn.dropout(x), once)


def test_dropout_under_jit_draws_anew_and_as_without():
    x = ys.ones((1000,))
    rng, same = ys.random.default_rng(1), ys.random.default_rng(1)
    step = ys.jit(lambda x: ys.nn.dropout(x, 0.3, rng=rng))
    for _ in range(3):
        np.testing.assert_array_equal(step(x), ys.nn.dropout(x, 0.3, rng=same))


@pytest.mark.parametrize("device", [d.name for d in ys.devices()])
def test_every_device_drops_the_same(device):
    with ys.options(device=device):
        made = ys.nn.dropout(ys.ones((3, 70), dtype=ys.float32), 0.4, rng=ys.random.default_rng(9)).numpy()
    with ys.options(device="cpu"):
        wanted = ys.nn.dropout(ys.ones((3, 70)), 0.4, rng=ys.random.default_rng(9)).numpy()
    np.testing.assert_array_equal(made != 0, wanted != 0)


def test_the_gradient_of_dropout_goes_where_the_values_went():
    x = ys.ones((50,))
    value, back = ys.vjp(lambda x: ys.nn.dropout(x, 0.5, rng=ys.random.default_rng(2)), x)
    np.testing.assert_array_equal(back(ys.ones((50,)))[0], value)


def test_dropout_without_training():
    x = ys.asarray(X)
    rng = ys.random.default_rng(0)
    assert ys.nn.dropout(x, 0.5, rng=rng, training=False).tolist() == X.tolist()
    assert ys.nn.dropout(x, 0.0, rng=rng).tolist() == X.tolist()
    np.testing.assert_array_equal(
        ys.nn.dropout_linear(x, ys.asarray(W), ys.asarray(B), training=False),
        ys.nn.linear(x, ys.asarray(W), ys.asarray(B)),
    )
    assert repr(rng) == "Generator(seed=0, draws=0)"


def test_dropout_linear_is_both():
    x, w, b = (ys.asarray(a) for a in (X, W, B))
    whole = ys.nn.dropout_linear(x, w, b, rate=0.3, rng=7)
    np.testing.assert_allclose(whole, ys.nn.linear(ys.nn.dropout(x, 0.3, rng=7), w, b), rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: ys.nn.linear(ys.ones((2, 3)), ys.ones((3, 2))),
            r"\[linear\] expected w of shape \(outputs, 3\) for x",
        ),
        (lambda: ys.nn.linear(ys.ones(()), ys.ones((3, 2))), r"\[linear\] expected w of shape \(outputs, inputs\)"),
        (lambda: ys.nn.linear(ys.ones((2,)), ys.ones((3, 2)), ys.ones((2,))), r"\[linear\] expected b of shape \(3,\)"),
        (lambda: ys.nn.dropout(ys.ones((2,)), 1.0), r"\[dropout\] expected a rate from 0 to below 1, got 1.0"),
        (lambda: ys.nn.dropout(ys.ones((2,)), "x"), r"\[dropout\] expected rate as a real number"),
        (
            lambda: ys.nn.dropout_linear(ys.ones((2, 3)), ys.ones((2, 2)), rate=0.5),
            r"\[dropout_linear\] expected w of shape \(outputs, 3\)",
        ),
        (
            lambda: ys.nn.layer_norm_linear(ys.ones((2, 3)), ys.ones((4, 3)), weight=ys.ones((4,))),
            r"\[layer_norm_linear\] expected weight of shape \(3,\)",
        ),
    ],
)
def test_mistakes(call, told):
    with pytest.raises(ys.errors.UserError, match=told):
        call()
