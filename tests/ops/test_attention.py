"""Attention."""

import numpy as np
import pytest

import yosegi as ys
from gradients import random
from torch_peer import check_against_torch
from yosegi._graph.expand import is_taken_whole
from yosegi._run.device import Limits
from yosegi._tensor.dtype import ALL
from yosegi._tensor.op import OpKind
from yosegi._tensor.options import policy_of
from yosegi._tensor.precision import Precision
from yosegi.ops.attention import _attention_gradient

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


def test_the_gradient_is_that_of_the_parts():
    """In every form of the inputs: other lengths, stacks that are repeated, masks, the gradient of an added mask."""
    arrays = random((2, 3, 5, 4)), random((3, 6, 4)), random((2, 1, 6, 7))
    for mask, is_causal in ((None, False), (None, True), (MASK, False), (random((2, 1, 1, 6)), False)):
        given = [ys.asarray(a) for a in (*arrays, *([] if mask is None else [mask]))]
        wanted = tuple(n for n, t in enumerate(given) if t.dtype.is_float)

        def whole(*t, is_causal=is_causal):
            return (attention(*t, is_causal=is_causal) ** 2).sum()

        def parts(q, k, v, *m, is_causal=is_causal):
            return ((ys.nn.attention_scores(q, k, *m, is_causal=is_causal) @ v) ** 2).sum()

        for ours, theirs in zip(ys.grad(whole, wanted)(*given), ys.grad(parts, wanted)(*given), strict=True):
            assert ours.shape == theirs.shape
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


def test_gradients_of_gradients_and_of_many_examples():
    q, k, v = (ys.asarray(a) for a in (Q, K, V))

    def slope(q):
        return ys.grad(lambda q: (attention(q, k, v, is_causal=True) ** 2).sum())(q)

    def slope_of_parts(q):
        return ys.grad(lambda q: ((ys.nn.attention_scores(q, k, is_causal=True) @ v) ** 2).sum())(q)

    second, expected = (ys.grad(lambda q, f=f: (f(q) * q).sum())(q) for f in (slope, slope_of_parts))
    np.testing.assert_allclose(second, expected, rtol=1e-8, atol=1e-11)
    many = ys.vmap(ys.grad(lambda q, k: (attention(q, k, v[0]) ** 2).sum()))(q, k)
    for n in range(2):
        one = ys.grad(lambda q, k: (attention(q, k, v[0]) ** 2).sum())(q[n], k[n])
        np.testing.assert_allclose(many[n], one, rtol=1e-9)


def test_gradients_of_nothing():
    for queries, keys in ((0, 3), (3, 0)):
        q, k, v = ys.ones((2, queries, 4)), ys.ones((2, keys, 4)), ys.ones((2, keys, 5))
        slopes = ys.grad(lambda *t: attention(*t, is_causal=True).sum(), (0, 1, 2))(q, k, v)
        assert [s.shape for s in slopes] == [(2, queries, 4), (2, keys, 4), (2, keys, 5)]
        assert all((s.numpy() == 0).all() for s in slopes)


class InHalf:
    """A device that has all composites, and regions in float16 alone."""

    name = space = "half"
    limits = Limits(
        frozenset(ALL),
        frozenset(OpKind),
        frozenset({"attention_gradient", "softmax"}),
        precisions=frozenset({Precision.F16}),
    )

    def supports(self, region):
        return None if region.precision is Precision.F16 else "full precision"


def test_who_takes_it_whole_where_fewer_bits_are_admitted():
    q = ys.ones((3, 4), dtype=ys.float32)
    gradient = _attention_gradient.outputs(q, q, q, q, q)[0]._node.inputs[0].call
    half, other = gradient.op.call((q.astype(ys.float16)._node.spec,) * 5, gradient.attrs), ys.nn.softmax(q)._node.call
    f16, adaptive, full = (policy_of(*p) for p in (("f16", 0.0), ("adaptive", 1e-2), ("f32", 0.0)))
    assert is_taken_whole(gradient, [InHalf()], f16)
    assert not is_taken_whole(gradient, [InHalf()], adaptive)
    assert not is_taken_whole(gradient, [InHalf()], full)
    assert not any(is_taken_whole(call, [InHalf()], f16) for call in (half, other))
