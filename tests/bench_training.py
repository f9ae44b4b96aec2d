"""Training steps through modules and optimisers, beside PyTorch: blocks of steps in turns, medians in milliseconds.

    PYTHONPATH=tests python tests/bench_training.py [--device cpu] [--precision f32] [--steps 8] [--turns 5] [--compile]
        [--model resnet]

Two models: a transformer (6 layers, 384 wide, 256 long, batch 8) with AdamW, and ResNet-18's shapes at 32 by 32 pixels,
batch 32, with SGD. Both libraries begin with the same weights; the losses of the first steps must agree.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn as tnn
from torch.nn import functional as F

import yosegi as ys
from yosegi import nn

WIDTH, HEADS, DEPTH, CODES, LENGTH, BATCH = 384, 6, 6, 256, 256, 8
IMAGES, CLASSES = 32, 10
RNG = np.random.default_rng(0)


class Block(nn.Module):
    def __init__(self, rng: Any) -> None:
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH, rng=rng), nn.Linear(WIDTH, WIDTH, rng=rng)
        self.f1, self.f2 = nn.Linear(WIDTH, 4 * WIDTH, rng=rng), nn.Linear(4 * WIDTH, WIDTH, rng=rng)

    def forward(self, x: Any) -> Any:
        parts = ys.reshape(self.qkv(self.n1(x)), (BATCH, LENGTH, 3, HEADS, WIDTH // HEADS))
        q, k, v = ys.unstack(ys.permute_dims(parts, (2, 0, 3, 1, 4)))
        seen = ys.permute_dims(nn.scaled_dot_product_attention(q, k, v, is_causal=True), (0, 2, 1, 3))
        x = x + self.o(ys.reshape(seen, (BATCH, LENGTH, WIDTH)))
        return x + self.f2(nn.gelu(self.f1(self.n2(x))))


class Transformer(nn.Module):
    def __init__(self, rng: Any) -> None:
        self.e, self.p = nn.Embedding(CODES, WIDTH, rng=rng), nn.Embedding(LENGTH, WIDTH, rng=rng)
        self.b = [Block(rng) for _ in range(DEPTH)]
        self.n, self.h = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CODES, rng=rng)

    def forward(self, codes: Any) -> Any:
        x = self.e(codes) + self.p.weight
        for block in self.b:
            x = block(x)
        return self.h(self.n(x))


class TorchBlock(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = tnn.LayerNorm(WIDTH), tnn.LayerNorm(WIDTH)
        self.qkv, self.o = tnn.Linear(WIDTH, 3 * WIDTH), tnn.Linear(WIDTH, WIDTH)
        self.f1, self.f2 = tnn.Linear(WIDTH, 4 * WIDTH), tnn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.n1(x)).view(BATCH, LENGTH, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.o(seen.reshape(BATCH, LENGTH, WIDTH))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class TorchTransformer(tnn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.p = tnn.Embedding(CODES, WIDTH), tnn.Embedding(LENGTH, WIDTH)
        self.b = tnn.ModuleList(TorchBlock() for _ in range(DEPTH))
        self.n, self.h = tnn.LayerNorm(WIDTH), tnn.Linear(WIDTH, CODES)

    def forward(self, codes: Any) -> Any:
        x = self.e(codes) + self.p.weight
        for block in self.b:
            x = block(x)
        return self.h(self.n(x)).transpose(1, 2)


def resnet_of(m: Any, base: type, sequential: Any, relu: Any, mean: Any, options: dict[str, Any]) -> Any:
    """ResNet-18 for small images, in the modules of either library."""

    class Residual(base):  # type: ignore[misc, valid-type]
        def __init__(self, given: int, made: int, stride: int) -> None:
            base.__init__(self)
            self.c1 = m.Conv2d(given, made, 3, stride, 1, bias=False, **options)
            self.c2 = m.Conv2d(made, made, 3, 1, 1, bias=False, **options)
            self.n1, self.n2 = m.BatchNorm2d(made), m.BatchNorm2d(made)
            same = stride == 1 and given == made
            down = m.Conv2d(given, made, 1, stride, bias=False, **options) if not same else None
            self.down = None if down is None else sequential(down, m.BatchNorm2d(made))

        def forward(self, x: Any) -> Any:
            made = self.n2(self.c2(relu(self.n1(self.c1(x)))))
            return relu(made + (x if self.down is None else self.down(x)))

    class ResNet(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            base.__init__(self)
            self.stem, self.norm = m.Conv2d(3, 64, 3, 1, 1, bias=False, **options), m.BatchNorm2d(64)
            widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
            widths += [(128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
            self.blocks = sequential(*[Residual(*w) for w in widths])
            self.head = m.Linear(512, CLASSES, **options)

        def forward(self, x: Any) -> Any:
            return self.head(mean(self.blocks(relu(self.norm(self.stem(x))))))

    return ResNet()


def ours(model: Any, optimizer: Callable[[Any], Any], x: Any, y: Any) -> Callable[[], float]:
    """A step of Yosegi."""

    def loss(model: Any, x: Any, y: Any) -> Any:
        return nn.cross_entropy(model(x), y, axis=-1)

    @ys.jit
    def step(held: Any, x: Any, y: Any) -> Any:
        (value, model), grads = nn.value_and_grad(held.params, loss, has_state=True)(x, y)
        return held.step(grads, params=model), value

    held = [optimizer(model)]

    def run() -> float:
        held[0], value = step(held[0], x, y)
        return float(value)

    return run


def theirs(model: Any, optimizer: Any, x: Any, y: Any, *, is_compiled: bool) -> Callable[[], float]:
    """A step of PyTorch."""
    call = torch.compile(model) if is_compiled else model

    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return run


def in_turns(contenders: dict[str, Callable[[], float]], steps: int, turns: int) -> None:
    """Time blocks of steps in turns, after a warm-up in which the losses are compared."""
    losses = {name: [run() for _ in range(12)] for name, run in contenders.items()}
    first = next(iter(losses.values()))
    for name, own in losses.items():
        np.testing.assert_allclose(own[:3], first[:3], rtol=2e-2, err_msg=name)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, run in contenders.items():
            run()
            start = perf_counter()
            for _ in range(steps):
                run()
            times[name].append((perf_counter() - start) / steps * 1e3)
    base = median(times["PyTorch"])
    for name, own in times.items():
        print(f"  {name:20} {median(own):8.2f} ms ({min(own):.2f} to {max(own):.2f}), {base / median(own):.2f} times")


def cases() -> list[tuple[str, Any, Any, Any, Any, Any, Any]]:
    """Both models: a name, functions that make the model and its peer, inputs, targets, and the optimisers."""
    codes, following = (RNG.integers(0, CODES, (BATCH, LENGTH)) for _ in range(2))
    pixels = RNG.standard_normal((IMAGES, 3, 32, 32), np.float32)
    labels = RNG.integers(0, CLASSES, IMAGES)
    rng = ys.random.default_rng(0)
    return [
        ("transformer", lambda: Transformer(rng), TorchTransformer, codes, following,
         lambda m: ys.optim.AdamW(m, lr=1e-3), lambda p: torch.optim.AdamW(p, 1e-3)),
        ("ResNet-18, 32 x 32",
         lambda: resnet_of(nn, nn.Module, nn.Sequential, nn.relu, lambda x: ys.mean(x, axis=(2, 3)), {"rng": rng}),
         lambda: resnet_of(tnn, tnn.Module, tnn.Sequential, F.relu, lambda x: x.mean((2, 3)), {}), pixels, labels,
         lambda m: ys.optim.SGD(m, lr=0.01, momentum=0.9), lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--model", default="", help="a part of a model's name; without one, both")
    args = parser.parse_args()
    place = "cuda" if args.device.startswith("cuda") else "cpu"
    torch.set_num_threads(2 if place == "cpu" else torch.get_num_threads())
    torch.manual_seed(0)
    for title, make, make_peer, x, y, rule, peer_rule in cases():
        if args.model.lower() not in title.lower():
            continue
        print(title)
        peer = make_peer()
        model = make().load_state_dict({k: v.numpy() for k, v in peer.state_dict().items()})
        with ys.options(device=args.device, precision=args.precision, tol=args.tol):
            contenders = {"Yosegi": ours(model, rule, ys.asarray(x), ys.asarray(y))}
            for name in ("PyTorch", "PyTorch compiled")[: 1 + args.compile]:
                twin = make_peer()
                twin.load_state_dict(peer.state_dict())
                twin = twin.to(place)
                given = [torch.from_numpy(a).to(place) for a in (x, y)]
                contenders[name] = theirs(twin, peer_rule(twin.parameters()), *given, is_compiled=name != "PyTorch")
            in_turns(contenders, args.steps, args.turns)


if __name__ == "__main__":
    main()
