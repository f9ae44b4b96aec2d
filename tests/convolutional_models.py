"""Convolutional networks, written once for Yosegi and PyTorch: MobileNetV2, VGG-16 with a small head, two U-Nets.

A network is its parameters' shapes and a function of a library, parameters and images.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

import yosegi as ys

Network = tuple[list[tuple[int, ...]], Callable[..., Any], tuple[int, ...]]
"""The shapes of parameters, the function, and the shape of an image."""


@dataclass(frozen=True)
class Library:
    """The functions that networks call; those not listed have one name and signature in both libraries."""

    functions: Any
    joined: Callable[[Sequence[Any]], Any]
    larger: Callable[[Any], Any]
    mean: Callable[[Any], Any]


YOSEGI = Library(
    ys.nn, lambda parts: ys.concat(parts, axis=1), lambda x: ys.nn.interpolate(x, scale_factor=2.0, mode="nearest"),
    lambda x: ys.mean(x, axis=(2, 3)),
)  # fmt: skip
TORCH = Library(
    F, lambda parts: torch.cat(parts, 1), lambda x: F.interpolate(x, scale_factor=2.0, mode="nearest"),
    lambda x: x.mean((2, 3)),
)  # fmt: skip


class Shapes:
    """Collects the shapes of parameters, and gives each its number."""

    def __init__(self) -> None:
        self.all: list[tuple[int, ...]] = []

    def convolution(self, outputs: int, inputs: int, side: int) -> int:
        """The weights and the bias of a convolution."""
        self.all += [(outputs, inputs, side, side), (outputs,)]
        return len(self.all) - 2

    def linear(self, inputs: int, outputs: int) -> int:
        self.all += [(outputs, inputs), (outputs,)]
        return len(self.all) - 2


def mobilenet() -> Network:
    """MobileNetV2: depthwise convolutions between convolutions by kernels of one place."""
    shapes, width = Shapes(), 32
    stem, blocks = shapes.convolution(32, 3, 3), []
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for factor, outputs, count, first in rows:
        for n in range(count):
            stride, inner = first if n == 0 else 1, width * factor
            wider = shapes.convolution(inner, width, 1) if factor > 1 else None
            made = wider, shapes.convolution(inner, 1, 3), shapes.convolution(outputs, inner, 1), stride, inner
            blocks.append((*made, stride == 1 and width == outputs))
            width = outputs
    last, head = shapes.convolution(1280, 320, 1), shapes.linear(1280, 1000)

    def function(library: Library, p: Sequence[Any], x: Any) -> Any:
        f = library.functions
        x = f.relu6(f.conv2d(x, p[stem], p[stem + 1], stride=2, padding=1))
        for wider, middle, narrower, stride, groups, is_residual in blocks:
            y = x if wider is None else f.relu6(f.conv2d(x, p[wider], p[wider + 1]))
            y = f.relu6(f.conv2d(y, p[middle], p[middle + 1], stride=stride, padding=1, groups=groups))
            y = f.conv2d(y, p[narrower], p[narrower + 1])
            x = x + y if is_residual else y
        x = f.relu6(f.conv2d(x, p[last], p[last + 1]))
        return f.linear(library.mean(x), p[head], p[head + 1])

    return shapes.all, function, (3, 224, 224)


def vgg() -> Network:
    """VGG-16's convolutions, 3 × 3 and up to 512 wide, and a small head."""
    shapes, width, stages = Shapes(), 3, []
    for outputs, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        widths = [width, *[outputs] * count]
        stages.append([shapes.convolution(b, a, 3) for a, b in pairwise(widths)])
        width = outputs
    head = shapes.linear(512, 1000)

    def function(library: Library, p: Sequence[Any], x: Any) -> Any:
        f = library.functions
        for stage in stages:
            for n in stage:
                x = f.relu(f.conv2d(x, p[n], p[n + 1], padding=1))
            x = f.max_pool2d(x, 2)
        return f.linear(library.mean(x), p[head], p[head + 1])

    return shapes.all, function, (3, 224, 224)


def unet(*, transposed: bool) -> Network:
    """A U-Net, 32 to 256 wide, whose way up is transposed convolutions, or convolutions of repeated elements."""
    shapes, widths = Shapes(), (32, 64, 128, 256)
    down = [(shapes.convolution(b, a, 3), shapes.convolution(b, b, 3))
            for a, b in zip((3, *widths), widths, strict=False)]  # fmt: skip
    up = []
    for wide, narrow in zip(widths[:0:-1], widths[-2::-1], strict=True):
        if transposed:
            shapes.all += [(wide, narrow, 2, 2), (narrow,)]
            first = len(shapes.all) - 2
        else:
            first = shapes.convolution(narrow, wide, 3)
        up.append((first, shapes.convolution(narrow, wide, 3), shapes.convolution(narrow, narrow, 3)))
    head = shapes.convolution(2, widths[0], 1)

    def function(library: Library, p: Sequence[Any], x: Any) -> Any:
        f, kept = library.functions, []
        for number, stage in enumerate(down):
            x = f.max_pool2d(x, 2) if number else x
            for n in stage:
                x = f.relu(f.conv2d(x, p[n], p[n + 1], padding=1))
            kept.append(x)
        for (first, *stage), beside in zip(up, kept[-2::-1], strict=True):
            if transposed:
                x = f.conv_transpose2d(x, p[first], p[first + 1], stride=2)
            else:
                x = f.conv2d(library.larger(x), p[first], p[first + 1], padding=1)
            x = library.joined([beside, x])
            for n in stage:
                x = f.relu(f.conv2d(x, p[n], p[n + 1], padding=1))
        return f.conv2d(x, p[head], p[head + 1])

    return shapes.all, function, (3, 128, 128)


NETWORKS: dict[str, Network] = {
    "MobileNetV2": mobilenet(), "VGG-16": vgg(), "U-Net, transposed": unet(transposed=True),
    "U-Net, upsampled": unet(transposed=False),
}  # fmt: skip


class TorchNetwork(torch.nn.Module):
    """A network as a module of PyTorch."""

    def __init__(self, function: Callable[..., Any], parameters: Sequence[Any]) -> None:
        super().__init__()
        self.function = function
        self.p = torch.nn.ParameterList(map(torch.from_numpy, parameters))

    def forward(self, x: Any) -> Any:
        return self.function(TORCH, list(self.p), x)
