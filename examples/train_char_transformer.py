"""A transformer that learns to write Python, character by character, from the source of the standard library."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from common import arguments, console, optimizer_of, options, step_of, train

import yosegi as ys
from yosegi import nn

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
LENGTH = 64


class Block(nn.Module):
    """Attention to the characters before, then a map of each character."""

    def __init__(self, width, heads, rng):
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, rng=rng), nn.Linear(width, width, rng=rng)
        self.up, self.down = nn.Linear(width, 4 * width, rng=rng), nn.Linear(4 * width, width, rng=rng)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        parts = ys.reshape(self.qkv(self.norm1(x)), (batch, length, 3, self.heads, width // self.heads))
        q, k, v = ys.unstack(ys.permute_dims(parts, (2, 0, 3, 1, 4)))
        seen = ys.permute_dims(nn.scaled_dot_product_attention(q, k, v, is_causal=True), (0, 2, 1, 3))
        x = x + self.out(ys.reshape(seen, (batch, length, width)))
        return x + self.down(nn.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Characters and positions as vectors, blocks, and a score for each next character."""

    def __init__(self, rng, width=96, heads=4, depth=2):
        self.characters = nn.Embedding(len(CHARACTERS), width, rng=rng)
        self.positions = nn.Embedding(LENGTH, width, rng=rng)
        self.blocks = [Block(width, heads, rng) for _ in range(depth)]
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS), rng=rng)

    def forward(self, codes):
        x = (self.characters(codes) + self.positions(ys.arange(codes.shape[1]))) * 0.3
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(model, codes, following):
    return nn.cross_entropy(model(codes), following, axis=-1)


def text_of_library(limit=1_000_000):
    """The source of the standard library's modules, as codes of characters."""
    code_of = {c: n for n, c in enumerate(CHARACTERS)}
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    text = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files)[:limit]
    return np.array([code_of[c] for c in text if c in code_of], np.int32)


def written(model, start, count, rng):
    """Characters drawn one by one, each by its scores."""
    scores = ys.jit(model)
    codes = [CHARACTERS.index(c) for c in start]
    for _ in range(count):
        window = codes[-LENGTH:]
        last = len(window) - 1
        padded = ys.asarray(np.array([window + [0] * (LENGTH - len(window))], np.int32))
        codes.append(int(rng.categorical(scores(padded)[0, last] / 0.8)))
    return "".join(CHARACTERS[n] for n in codes)


def main():
    args = arguments("characters: a transformer", steps=600)
    codes = text_of_library()
    windows = codes[: (len(codes) - 1) // LENGTH * LENGTH + 1]
    batches = (windows[:-1].reshape(-1, LENGTH), windows[1:].reshape(-1, LENGTH))
    with options(args):
        rng = ys.random.default_rng(args.seed)
        loader = ys.training.Loader(batches, 16, shuffle=True, seed=args.seed, drop_last=True)
        optimizer = train(args, optimizer_of(Transformer(rng), args, lr=3e-3), loader, step_of(loss))
        console.print(written(optimizer.params.eval(), "def ", 200, rng), highlight=False, markup=False)


if __name__ == "__main__":
    main()
