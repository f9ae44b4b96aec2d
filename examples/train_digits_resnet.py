"""A residual network that learns scikit-learn's digits: `pip install scikit-learn`, then run this file."""

from __future__ import annotations

import numpy as np
from common import arguments, console, optimizer_of, options, step_of, train
from sklearn.datasets import load_digits

import yosegi as ys
from yosegi import nn


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs, outputs, stride, rng):
        self.first = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False, rng=rng)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False, rng=rng)
        self.norm2 = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride=stride, rng=rng)

    def forward(self, x):
        y = nn.relu(self.norm1(self.first(x)))
        return nn.relu(self.norm2(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, three blocks, a mean over the image, and a linear map."""

    def __init__(self, rng, width=16):
        self.stem = nn.Conv2d(1, width, 3, padding=1, rng=rng)
        self.blocks = [
            Block(width, width, 1, rng),
            Block(width, 2 * width, 2, rng),
            Block(2 * width, 4 * width, 2, rng),
        ]
        self.head = nn.Linear(4 * width, 10, rng=rng)

    def forward(self, x):
        x = nn.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(ys.mean(x, axis=(2, 3)))


def loss(model, images, labels):
    return nn.cross_entropy(model(images), labels)


def main():
    args = arguments("digits: a residual network", steps=300)
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(images))
    held_out, rest = order[:360], order[360:]
    with options(args):
        model = ResNet(ys.random.default_rng(args.seed))
        batches = (images[rest], digits.target[rest])
        loader = ys.training.Loader(batches, 64, shuffle=True, seed=args.seed, drop_last=True)
        optimizer = train(args, optimizer_of(model, args, lr=5e-3), loader, step_of(loss))
        guesses = ys.argmax(ys.jit(optimizer.params.eval())(ys.asarray(images[held_out])), axis=1).numpy()
    for image, guess in zip(images[held_out][:3, 0], guesses, strict=False):
        rows = ["".join(" .:-=+*#%@"[min(9, int(v * 9.99))] * 2 for v in row) for row in image]
        console.print("\n".join(rows), f"\n  read as {guess}\n", highlight=False)
    accuracy = float(np.mean(guesses == digits.target[held_out]))
    console.print(f"accuracy {accuracy:.4f} on {len(held_out)} held-out digits")


if __name__ == "__main__":
    main()
