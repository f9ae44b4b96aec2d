"""Attention."""

import numpy as np
import pytest

import yosegi as ys
from gradients import random
from torch_peer import check_against_torch

Q, K, V = random((2, 3, 5, 4)), random((2, 3, 6, 4)), random((2, 3, 6, 7))
MASK = random((5, 6)) > 0
MASK[:, 2] = True

attention = ys.nn.scaled_dot_product_attention


@pytest.mark.parametrize("mask", [None, MASK, random((2, 1, 5, 6))], ids=["all", "bool", "added"])
def test_against_torch(mask):
    arrays = (Q, K, V) if mask is None else (Q, K, V, mask)
    check_against_torch(attention, lambda f, *a: f.scaled_dot_product_attention(*a), *arrays, rtol=1e-8)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_causal_against_torch(scale):
    check_against_torch(
        lambda q, k, v: attention(q, k, v, is_causal=True, scale=scale),
        lambda f, q, k, v: f.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale),
        Q, K, V, rtol=1e-8,
    )  # fmt: skip


def test_scores_are_what_attention_weighs_by():
    q, k, v = (ys.asarray(a) for a in (Q, K, V))
    scores = ys.nn.attention_scores(q, k, ys.asarray(MASK))
    np.testing.assert_allclose(scores.numpy().sum(-1), 1, rtol=1e-12)
    assert (scores.numpy()[..., ~MASK] == 0).all()
    np.testing.assert_allclose(scores @ v, attention(q, k, v, ys.asarray(MASK)), rtol=1e-12)


def test_a_row_that_may_look_nowhere_sees_nothing():
    mask = MASK.copy()
    mask[1] = False
    q, k, v = (ys.asarray(a) for a in (Q, K, V))
    made = attention(q, k, v, ys.asarray(mask)).numpy()
    assert (made[..., 1, :] == 0).all()
    slopes = ys.grad(lambda q, k, v: attention(q, k, v, ys.asarray(mask)).sum(), argnums=(0, 1, 2))(q, k, v)
    for slope in slopes:
        assert np.isfinite(slope.numpy()).all()
    assert (slopes[0].numpy()[..., 1, :] == 0).all()


@pytest.mark.parametrize("dtype", [ys.float16, ys.bfloat16, ys.float32])
def test_dtypes(dtype):
    made = attention(*[ys.asarray(a).astype(dtype) for a in (Q, K, V)], is_causal=True)
    assert made.dtype is dtype
    exact = attention(*[ys.asarray(a).astype(dtype).astype(ys.float64) for a in (Q, K, V)], is_causal=True).numpy()
    np.testing.assert_allclose(made.astype(ys.float64), exact, rtol=0.03, atol=0.03)


def test_large_scores_in_16_bits():
    q = ys.full((2, 64), 40.0, dtype=ys.float16)  # products of 102,400 before they are scaled
    assert ys.nn.attention_scores(q, q).tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: attention(ys.ones((2, 3)), ys.ones((2, 4)), ys.ones((2, 3))), "expected q and k of as many features"),
        (lambda: attention(ys.ones((2, 3)), ys.ones((2, 3)), ys.ones((3, 3))), "expected v of shape"),
        (lambda: attention(ys.ones((3,)), ys.ones((2, 3)), ys.ones((2, 3))), "expected q of shape"),
        (
            lambda: attention(ys.ones((2, 3)), ys.ones((2, 3)), ys.ones((2, 3)), ys.ones((2, 2)), is_causal=True),
            "expected a mask or is_causal=True, got both",
        ),
        (
            lambda: attention(ys.ones((2, 3)), ys.ones((2, 3)), ys.ones((2, 3)), ys.ones((2, 2), dtype=ys.int32)),
            "expected a mask of bool or of a real floating dtype, got int32",
        ),
    ],
)
def test_mistakes(call, told):
    with pytest.raises(ys.errors.UserError, match=rf"\[scaled_dot_product_attention\] {told}"):
        call()
