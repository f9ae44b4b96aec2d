"""A transformer that learns to write Python, character by character, from the source of the standard library.

`yosegi launch -n 4 examples/train_char_transformer.py --parallel data` shares the batch among four processes,
`--parallel sharded` the batch, the weights and the optimiser's state, `--parallel tensor` the weights, and
`--parallel pipeline` the layers. The losses are the same up to rounding.
"""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
from common import arguments, console, optimizer_of, options, step_of, train

import yosegi as ys
from yosegi import distributed as dist
from yosegi import nn

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
LENGTH = 64


class Block(nn.Module):
    """Attention to the characters before, then a map of each character. `column` and `row` make the linear maps."""

    def __init__(self, width, heads, rng, column, row):
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = column(width, 3 * width, rng=rng), row(width, width, rng=rng)
        self.up, self.down = column(width, 4 * width, rng=rng), row(4 * width, width, rng=rng)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        parts = ys.reshape(self.qkv(self.norm1(x)), (batch, length, self.heads, 3, width // self.heads))
        q, k, v = ys.unstack(ys.permute_dims(parts, (3, 0, 2, 1, 4)))
        seen = ys.permute_dims(nn.scaled_dot_product_attention(q, k, v, is_causal=True), (0, 2, 1, 3))
        x = x + self.out(ys.reshape(seen, (batch, length, width)))
        return x + self.down(nn.gelu(self.up(self.norm2(x))))


class Embedding(nn.Module):
    """Characters and positions as vectors."""

    def __init__(self, rng, width):
        self.characters = nn.Embedding(len(CHARACTERS), width, rng=rng)
        self.positions = nn.Embedding(LENGTH, width, rng=rng)

    def forward(self, codes):
        return (self.characters(codes) + self.positions(ys.arange(codes.shape[1]))) * 0.3


def transformer(rng, width=96, heads=4, depth=2, column=nn.Linear, row=nn.Linear):
    """Vectors, blocks, and a score for each next character."""
    blocks = [Block(width, heads, rng, column, row) for _ in range(depth)]
    return nn.Sequential(
        Embedding(rng, width), *blocks, nn.LayerNorm(width), nn.Linear(width, len(CHARACTERS), rng=rng)
    )


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


def parallel(args, rng):
    """The optimiser of this rank, and the step, for a form of parallel training."""
    rate = ys.optim.warmup(ys.optim.cosine_decay(3e-3, args.steps), args.steps // 20 + 1)
    adamw = ys.optim.adamw(rate, weight_decay=0.05, mask=lambda path, p: p.ndim > 1)
    rule = ys.optim.chain(ys.optim.clip_by_norm(1.0), adamw)

    def step(optimizer, codes, following):
        value, grads = optimizer.value_and_grad(loss)(codes, following)
        return optimizer.step(grads), value

    if args.parallel == "data":
        return ys.optim.Chain(transformer(rng), rule), dist.data_parallel(step)
    if args.parallel == "sharded":
        return ys.optim.Chain(dist.sharded_parameters(transformer(rng)), rule), dist.data_parallel(step)
    mesh = dist.Mesh((dist.size(),), ("model" if args.parallel == "tensor" else "stage",))
    if args.parallel == "tensor":
        layers = {
            "column": partial(dist.ColumnParallelLinear, mesh=mesh),
            "row": partial(dist.RowParallelLinear, mesh=mesh),
        }
        return ys.optim.Chain(transformer(rng, **layers), rule), ys.jit(step)
    scores = partial(nn.cross_entropy, axis=-1)
    value_and_grad = dist.pipeline(scores, mesh, microbatches=4)

    def staged(optimizer, codes, following):
        value, grads = value_and_grad(optimizer.params, codes, following)
        squares = dist.from_local(ys.optim.global_norm(grads) ** 2, mesh, stage=dist.Partial())
        factor = ys.minimum(1 / (ys.sqrt(dist.all_reduce(squares)) + 1e-6), 1.0)  # the norm of all ranks together
        return optimizer.step(ys.tree_map(lambda g: g * factor, grads)), value

    return ys.optim.Chain(dist.stage_of(transformer(rng), mesh), adamw), staged


def train_parallel(args, rng, loader):
    """Train on all ranks. Rank 0 writes the losses to a file."""
    optimizer, step = parallel(args, rng)
    losses = []
    while len(losses) < args.steps:
        for batch in loader:
            optimizer, value = step(optimizer, *batch)
            ys.eval(optimizer)
            losses.append(float(value))
            if len(losses) == args.steps:
                break
    if dist.rank() == 0:
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "losses.json").write_text(json.dumps(losses), encoding="utf-8")
        recent = losses[-20:]
        print(f"loss {sum(recent) / len(recent):.4f} over the last {len(recent)} steps, {dist.size()} ranks")


def main():
    args = arguments("characters: a transformer", steps=600, parallel=("data", "sharded", "tensor", "pipeline"))
    codes = text_of_library()
    windows = codes[: (len(codes) - 1) // LENGTH * LENGTH + 1]
    batches = (windows[:-1].reshape(-1, LENGTH), windows[1:].reshape(-1, LENGTH))
    with options(args):
        rng = ys.random.default_rng(args.seed)
        loader = ys.training.Loader(batches, 16, shuffle=True, seed=args.seed, drop_last=True)
        if args.parallel is not None:
            train_parallel(args, rng, loader)
            return
        optimizer = train(args, optimizer_of(transformer(rng), args, lr=3e-3), loader, step_of(loss))
        console.print(written(optimizer.params.eval(), "def ", 200, rng), highlight=False, markup=False)


if __name__ == "__main__":
    main()
