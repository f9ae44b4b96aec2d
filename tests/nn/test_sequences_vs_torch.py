"""Attention, transformer layers and recurrent layers against PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from layer_peer import array, compare
from yosegi import nn

torch = pytest.importorskip("torch", reason="PyTorch, the peer of these tests, is not installed")
tnn = torch.nn


class First(tnn.Module):
    """A module of PyTorch whose first result counts, under its own parameter names."""

    def __init__(self, inner, **kwargs):
        super().__init__()
        self.inner, self.kwargs = inner, kwargs

    def forward(self, *args):
        made = self.inner(*args, **self.kwargs)
        return made[0] if isinstance(made, tuple) else made


class Ours(nn.Module):
    """The same for a module of ours."""

    def __init__(self, inner, kwargs):
        self.inner, self.kwargs = inner, tuple(kwargs.items())

    def forward(self, *args):
        made = self.inner(*args, **dict(self.kwargs))
        return made[0] if isinstance(made, tuple) else made


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("settings", [{}, {"num_layers": 2, "bidirectional": True}, {"bias": False}], ids=str)
def test_recurrent_layers(kind, settings):
    theirs = getattr(tnn, kind)(3, 4, batch_first=True, **settings)
    compare(Ours(getattr(nn, kind)(3, 4, **settings), {}), First(theirs), array(2, 5, 3))


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_the_state_of_recurrent_layers_goes_on(kind):
    layer, x = getattr(nn, kind)(3, 4, num_layers=2, rng=0), ys.asarray(array(2, 6, 3))
    whole, last = layer(x)
    first, state = layer(x[:, :4])
    second, state = layer(x[:, 4:], state)
    np.testing.assert_allclose(ys.concat([first, second], axis=1).numpy(), whole.numpy(), rtol=1e-5, atol=1e-6)
    for a, b in zip(ys.tree_leaves(state), ys.tree_leaves(last), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_attention(bias):
    theirs = tnn.MultiheadAttention(8, 2, bias=bias, batch_first=True)
    inputs = array(2, 5, 8), array(2, 3, 8, seed=1), array(2, 3, 8, seed=2)
    compare(Ours(nn.MultiHeadAttention(8, 2, bias=bias), {}), First(theirs, need_weights=False), *inputs)


def test_causal_attention():
    hidden = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    theirs = tnn.MultiheadAttention(8, 2, batch_first=True)
    x = array(2, 5, 8)

    class Self(First):
        def forward(self, x):
            return self.inner(x, x, x, attn_mask=hidden)[0]

    compare(Ours(nn.MultiHeadAttention(8, 2), {"is_causal": True}), Self(theirs), x)


def test_grouped_queries_share_keys_and_values():
    """Attention with two key and value heads is attention with four, whose rows stand twice."""
    shared = nn.MultiHeadAttention(8, 4, num_kv_heads=2, rng=0)
    q, k, v = (shared.in_proj_weight[a:b] for a, b in ((0, 8), (8, 12), (12, 16)))
    rows = [np.repeat(t.numpy().reshape(2, 2, 8), 2, axis=0).reshape(8, 8) for t in (k, v)]
    whole = nn.MultiHeadAttention(8, 4, rng=0).replace(
        in_proj_weight=ys.asarray(np.concatenate([q.numpy(), *rows])), out_proj=shared.out_proj
    )
    x = ys.asarray(array(2, 5, 8))
    np.testing.assert_allclose(shared(x).numpy(), whole(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"num_kv_heads": 1, "rotary_base": 100.0}], ids=str)
def test_a_cache_gives_what_the_whole_sequence_gives(settings):
    layer, x = nn.MultiHeadAttention(8, 2, rng=0, **settings), ys.asarray(array(2, 6, 8))
    step = ys.jit(lambda m, x, cache: m(x, cache=cache))
    cache, rows = layer.cache(2, 10), []
    for part in (x[:, :3], x[:, 3:4], x[:, 4:5], x[:, 5:6]):
        row, cache = step(layer, part, cache)
        rows.append(row)
    assert len(step.plans) == 2
    assert int(cache.used) == 6
    made = ys.concat(rows, axis=1).numpy()
    np.testing.assert_allclose(made, layer(x, is_causal=True).numpy(), rtol=1e-5, atol=1e-5)


def test_rotary_scores_depend_on_distances_alone():
    q, k = array(1, 6, 8), array(1, 6, 8, seed=1)
    at = ys.arange(6)
    scores = [(nn.rotary_embedding(q, at + s) @ nn.rotary_embedding(k, at + s).mT).numpy() for s in (0, 7)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-4, atol=1e-5)
    pairs = q[..., :4] + 1j * q[..., 4:]
    turned = pairs * np.exp(1j * np.arange(6)[:, None] * 10000.0 ** (-np.arange(4) / 4))
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(nn.rotary_embedding(q).numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_layers(norm_first):
    settings = {"dropout": 0.0, "norm_first": norm_first}
    theirs = tnn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu", **settings)
    compare(nn.TransformerEncoderLayer(8, 2, 16, activation=nn.gelu, **settings), theirs, array(2, 5, 8))
    theirs = tnn.TransformerDecoderLayer(8, 2, 16, batch_first=True, **settings)
    compare(nn.TransformerDecoderLayer(8, 2, 16, **settings), theirs, array(2, 5, 8), array(2, 3, 8, seed=1))


def test_an_encoder_layer_with_a_cache():
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, rng=0).eval(), ys.asarray(array(1, 4, 8))
    cache, rows = layer.self_attn.cache(1, 4), []
    for n in range(4):
        row, cache = layer(x[:, n : n + 1], cache=cache)
        rows.append(row.numpy())
    np.testing.assert_allclose(np.concatenate(rows, 1), layer(x, is_causal=True).numpy(), rtol=1e-4, atol=1e-5)
