"""Language: recurrent models, transformers, generation, word vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn as tnn
from torch.nn import functional as F

import yosegi as ys

from .program import (
    PROGRAMS,
    RNG,
    Program,
    add_function,
    add_inference,
    add_training,
    both,
    evaluated,
    integers,
    normal,
)

WORDS = 2000


def recurrent(kind: str, layers: int, outputs: int) -> Any:
    """A language model, or a classifier of sequences, over a recurrent layer."""

    def make(lib: Any) -> Any:
        ours = lib.nn is ys.nn

        class Model(lib.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                lib.nn.Module.__init__(self)
                self.e = lib.nn.Embedding(WORDS, 128, **lib.rng)
                settings = lib.rng if ours else {"batch_first": True}
                self.r = getattr(lib.nn, kind)(128, 256, layers, **settings)
                self.h = lib.nn.Linear(256, outputs, **lib.rng)

            def forward(self, words: Any) -> Any:
                made = self.r(self.e(words))[0]
                return self.h(made if outputs == WORDS else made[:, -1])

        return Model()

    return both(make)


def losses_of_words() -> tuple[Any, Any]:
    return (
        lambda m, x, y: ys.nn.cross_entropy(m(x), y, axis=-1),
        lambda m, x, y: F.cross_entropy(m(x).transpose(1, 2), y),
    )


def add_recurrent() -> None:
    words, following = integers(WORDS, 16, 48), integers(WORDS, 16, 48)
    rules = (lambda m: ys.optim.Adam(m, lr=1e-3), lambda p: torch.optim.Adam(p, 1e-3))
    add_training(
        "LSTM language model, training", recurrent("LSTM", 2, WORDS), losses_of_words(), rules, [words, following]
    )
    add_inference("GRU classifier, forward", *recurrent("GRU", 1, 10), [integers(WORDS, 32, 100)])


def encoder(dropout: float, padded: bool) -> Any:
    """A transformer in the manner of BERT, from the layers of each library."""

    class Model(ys.nn.Module):
        def __init__(self) -> None:
            rng = ys.random.default_rng(0)
            self.e, self.p = ys.nn.Embedding(WORDS, 256, rng=rng), ys.nn.Embedding(128, 256, rng=rng)
            self.l = [ys.nn.TransformerEncoderLayer(256, 4, 1024, dropout, ys.nn.gelu, rng=rng) for _ in range(4)]
            self.n = ys.nn.LayerNorm(256)

        def forward(self, words: Any, present: Any) -> Any:
            x = self.n(self.e(words) + self.p.weight)
            for layer in self.l:
                x = layer(x, mask=present[:, None, None, :]) if padded else layer(x)
            return x * present[..., None]

    class Peer(tnn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e, self.p = tnn.Embedding(WORDS, 256), tnn.Embedding(128, 256)
            self.l = tnn.ModuleList(
                tnn.TransformerEncoderLayer(256, 4, 1024, dropout, F.gelu, batch_first=True) for _ in range(4)
            )
            self.n = tnn.LayerNorm(256)

        def forward(self, words: Any, present: Any) -> Any:
            x = self.n(self.e(words) + self.p.weight)
            for layer in self.l:
                x = layer(x, src_key_padding_mask=~present) if padded else layer(x)
            return x * present[..., None]

    return Model(), Peer()


def add_encoder() -> None:
    words, lengths = integers(WORDS, 8, 128), RNG.integers(40, 129, (8, 1))
    present = np.arange(128) < lengths
    add_inference("BERT encoder with padding, forward", *encoder(0.0, True), [words, present])
    losses = (
        lambda m, x, p, y: ys.nn.cross_entropy(m(x, p)[:, 0, :10], y),
        lambda m, x, p, y: F.cross_entropy(m(x, p)[:, 0, :10], y),
    )
    rules = (lambda m: ys.optim.AdamW(m, lr=1e-4), lambda p: torch.optim.AdamW(p, 1e-4))
    batch = [words, present, integers(10, 8)]
    add_training("BERT classifier with padding and dropout, training", encoder(0.1, True), losses, rules, batch, 0.3)


LLAMA = {"width": 256, "heads": 8, "shared": 2, "hidden": 704, "depth": 4}


def llama_weights() -> list[Any]:
    c = LLAMA
    rows = c["width"] + 2 * c["shared"] * (c["width"] // c["heads"])
    shapes = [(rows, c["width"]), (c["width"], c["width"]), (2 * c["hidden"], c["width"]), (c["width"], c["hidden"])]
    layers = [normal(*s, scale=s[1] ** -0.5) for _ in range(c["depth"]) for s in shapes]
    return [normal(WORDS, c["width"]), *layers]


def llama(xp: Any, rotate: Any, attend: Any, norm: Any, silu: Any) -> Any:
    """A decoder with RMS norms, rotary positions, grouped queries and gated linear units. `attend` keeps the cache."""
    heads, shared, hidden = LLAMA["heads"], LLAMA["shared"], LLAMA["hidden"]

    def forward(words: Any, embedding: Any, *layers: Any, caches: Any = None, start: Any = 0) -> Any:
        x, kept = embedding[words], []
        batch, length, width = x.shape
        size = width // heads
        for n in range(0, len(layers), 4):
            qkv, out, up, down = layers[n : n + 4]
            parts = xp.reshape(norm(x) @ qkv.T, (batch, length, heads + 2 * shared, size))
            parts = xp.swapaxes(parts, 1, 2)
            q, k, v = parts[:, :heads], parts[:, heads : heads + shared], parts[:, heads + shared :]
            q, k = rotate(q, start), rotate(k, start)
            seen, cache = attend(q, k, v, None if caches is None else caches[n // 4], start)
            kept.append(cache)
            x = x + xp.reshape(xp.swapaxes(seen, 1, 2), (batch, length, width)) @ out.T
            gate = norm(x) @ up.T
            x = x + (silu(gate[..., :hidden]) * gate[..., hidden:]) @ down.T
        made = norm(x) @ embedding.T
        return made if caches is None else (made, kept)

    return forward


def our_attention(q: Any, k: Any, v: Any, cache: Any, start: Any) -> Any:
    mask = None
    if cache is not None:
        at = slice(None), slice(None), slice(start, start + 1) if isinstance(start, int) else start
        k, v = cache[0].at[at].set(k[:, :, 0]), cache[1].at[at].set(v[:, :, 0])
        cache, mask = (k, v), ys.arange(k.shape[2]) <= start
    k, v = (ys.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
    return ys.nn.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None), cache


def our_rotation(x: Any, start: Any) -> Any:
    return ys.nn.rotary_embedding(x, start + ys.arange(x.shape[2]))


def their_attention(q: Any, k: Any, v: Any, cache: Any, start: Any) -> Any:
    if cache is not None:
        cache[0][:, :, start], cache[1][:, :, start] = k[:, :, 0], v[:, :, 0]
        k, v = cache[0][:, :, : start + 1], cache[1][:, :, : start + 1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=cache is None, enable_gqa=True), cache


def their_rotation(x: Any, start: Any) -> Any:
    half = x.shape[-1] // 2
    angles = (start + torch.arange(x.shape[2]))[:, None] * 10000.0 ** (torch.arange(half) * (-1 / half))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


OURS = llama(ys, our_rotation, our_attention, ys.nn.rms_norm, ys.nn.silu)
THEIRS = llama(torch, their_rotation, their_attention, lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6), F.silu)


def add_llama() -> None:
    arrays = llama_weights()
    add_function("LLaMA decoder, forward", OURS, THEIRS, [integers(WORDS, 2, 128), *arrays])
    shape = (2, LLAMA["shared"], 96, LLAMA["width"] // LLAMA["heads"])

    @ys.jit
    def one(word: Any, start: Any, caches: Any, arrays: Any) -> Any:
        made, caches = OURS(word, *arrays, caches=caches, start=start)
        return ys.argmax(made[:, -1:], axis=-1), caches

    def ours() -> Any:
        given = [ys.asarray(a) for a in arrays]

        def run() -> Any:
            caches = [(ys.zeros(shape, dtype=ys.float32),) * 2 for _ in range(LLAMA["depth"])]
            word, words = ys.asarray(np.asarray([[3], [5]])), []
            for n in range(32):
                word, caches = one(word, n, caches, given)
                words.append(word)
            return evaluated(ys.concat(words, axis=1))

        return run

    def theirs(wrap: Any, dtype: Any) -> Any:
        given, call = [torch.from_numpy(a).to(dtype) for a in arrays], wrap(THEIRS)

        def run() -> Any:
            with torch.no_grad():
                caches = [
                    (torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(LLAMA["depth"])
                ]
                word, words = torch.tensor([[3], [5]]), []
                for n in range(32):
                    word = call(word, *given, caches=caches, start=n)[0][:, -1:].argmax(-1)
                    words.append(word)
                return torch.cat(words, 1)

        return run

    PROGRAMS.append(Program("LLaMA decoder, 32 tokens by a cache", ours, theirs))


def top_p(xp: Any, softmax: Any, cumsum: Any, take: Any, sort: Any) -> Any:
    """The words that make up the first 0.9 of the probability, and one of them by an even number."""

    def sample(scores: Any, even: Any) -> Any:
        ordered, places = sort(softmax(scores / 0.8, -1))
        total = cumsum(ordered, -1)
        kept = xp.where(total - ordered < 0.9, ordered, xp.zeros_like(ordered))
        sums = cumsum(kept, -1)
        at = xp.sum(sums < even * sums[:, -1:], -1)
        return take(places, at[:, None]), xp.sum(kept, -1)

    return sample


def add_sampling() -> None:
    def our_sort(x: Any) -> Any:
        places = ys.argsort(x, axis=-1, descending=True)
        return ys.take_along_axis(x, places, axis=-1), places

    ours = top_p(
        ys,
        ys.nn.softmax,
        lambda x, axis: ys.cumulative_sum(x, axis=axis),
        lambda x, at: ys.take_along_axis(x, at, axis=-1),
        our_sort,
    )
    theirs = top_p(
        torch,
        torch.softmax,
        torch.cumsum,
        lambda x, at: torch.gather(x, 1, at),
        lambda x: torch.sort(x, -1, descending=True),
    )
    even = RNG.random((16, 1), np.float32)
    add_function("Top-p sampling, 16 of 32,000 words", ours, theirs, [normal(16, 32000, scale=3.0), even])


def add_word_vectors() -> None:
    """Skip-gram with negative samples, and plain gradient descent."""
    rows, width, batch, negatives = 20_000, 128, 1024, 5
    centre, context, other = (integers(rows, batch), integers(rows, batch), integers(rows, batch, negatives))
    tables = normal(rows, width, scale=0.1), normal(rows, width, scale=0.1)

    def ours() -> Any:
        def loss(tables: Any, a: Any, b: Any, c: Any) -> Any:
            x = tables[0][a]
            near, far = ys.sum(x * tables[1][b], axis=1), ys.sum(x[:, None] * tables[1][c], axis=2)
            return -ys.mean(ys.nn.log_sigmoid(near)) - ys.mean(ys.sum(ys.nn.log_sigmoid(-far), axis=1))

        @ys.jit
        def step(tables: Any, a: Any, b: Any, c: Any) -> Any:
            value, grads = ys.value_and_grad(loss)(tables, a, b, c)
            return ys.tree_map(lambda t, g: t - 5.0 * g, tables, grads), value

        held, given = [tuple(map(ys.asarray, tables))], [ys.asarray(a) for a in (centre, context, other)]

        def run() -> Any:
            held[0], value = step(held[0], *given)
            return float(value)

        return run

    def theirs(wrap: Any, dtype: Any) -> Any:
        held = [torch.from_numpy(t.copy()).to(dtype).requires_grad_() for t in tables]
        given, rule = [torch.from_numpy(a) for a in (centre, context, other)], torch.optim.SGD(held, 5.0)

        def loss(a: Any, b: Any, c: Any) -> Any:
            x = F.embedding(a, held[0])
            near = (x * F.embedding(b, held[1])).sum(1)
            far = (x[:, None] * F.embedding(c, held[1])).sum(2)
            return -F.logsigmoid(near).mean() - F.logsigmoid(-far).sum(1).mean()

        call = wrap(loss)

        def run() -> Any:
            rule.zero_grad(set_to_none=True)
            value = call(*given)
            value.backward()
            rule.step()
            return float(value.detach())

        return run

    PROGRAMS.append(Program("Word vectors with negative samples, training", ours, theirs, 1e-3))


def add_all() -> None:
    add_recurrent()
    add_encoder()
    add_llama()
    add_sampling()
    add_word_vectors()
