"""Programs of many kinds, for the question where each of them runs best: what people write, at sizes on both sides of
every line that a device's launch, its memory and its missing ops draw."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from ..._tensor.op import REGISTRY
from ..._tensor.tensor import Tensor
from ...ops.activation import gelu, relu
from ...ops.attention import scaled_dot_product_attention
from ...ops.conv import conv2d
from ...ops.creation import asarray
from ...ops.einsum import einsum
from ...ops.elementwise import abs, exp, log, sqrt, tanh, where
from ...ops.fft import fft
from ...ops.linear import linear
from ...ops.normal import layer_norm, softmax
from ...ops.pool import avg_pool2d, max_pool2d
from ...ops.reduce import cumulative_sum, max, mean, sum, var
from ...ops.shape import permute_dims
from ...ops.sort import argmax, sort
from . import models

_matmul: Final = REGISTRY["matmul"]


@dataclass(frozen=True, slots=True)
class Program:
    """A function of tensors, and the shapes of its inputs: parameters, then data, then indices. What it closes over
    (`weights`) comes last, and is the same in every run. Parameters and weights are scaled as for a model."""

    name: str
    family: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[int, ...], ...] = ()
    dtype: str = "float32"
    parameters: tuple[tuple[int, ...], ...] = ()
    indices: tuple[tuple[int, ...], ...] = ()
    below: int = 10
    """The bound of the indices."""

    def prepared(self) -> tuple[Callable[..., Any], list[Tensor]]:
        """The program with its weights, as a function, and inputs for it."""
        rng = np.random.default_rng(len(self.name))
        own = [self._scaled(rng, shape) for shape in self.weights]
        inputs = [self._scaled(rng, shape) for shape in self.parameters]
        inputs += [asarray(self._array(rng, shape)) for shape in self.shapes]
        inputs += [asarray(rng.integers(0, self.below, shape)) for shape in self.indices]
        return lambda *given: self.function(*given, *own), inputs

    @property
    def size(self) -> int:
        """The elements of its inputs and weights."""
        return builtins.sum(prod(shape) for shape in (*self.shapes, *self.weights, *self.parameters))

    def __str__(self) -> str:
        return self.name

    def _scaled(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Tensor:
        """A matrix or a kernel that leaves values as large as they are, or a vector of small numbers."""
        inputs = prod(shape[1:]) if len(shape) > 1 else 100
        return asarray((self._array(rng, shape) / inputs**0.5).astype(self.dtype))

    def _array(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return rng.normal(size=shape).astype(self.dtype)


def programs() -> list[Program]:
    """All of them."""
    return [
        *_chains(), *_products(), *_reductions(), *_layers(), *_networks(), *_models(), *_mixed(), *_interrupted(),
    ]  # fmt: skip


def _chain(length: int) -> Callable[[Tensor], Tensor]:
    def chain(x: Tensor) -> Tensor:
        for _ in range(length):
            x = tanh(x * 0.7 + 0.3) - x * x
        return x

    return chain


def _chains() -> Iterator[Program]:
    for length, sizes in ((1, (1_000, 60_000, 1_000_000, 8_000_000)), (6, (1_000, 60_000, 1_000_000, 4_000_000))):
        for size in sizes:
            yield Program(f"chain of {4 * length} ops, {size:,}", "elementwise", _chain(length), ((size,),))
    yield Program("x * y + x, 4,000,000", "elementwise", lambda x, y: x * y + x, ((4_000_000,),) * 2)
    yield Program("x + y, 200,000", "elementwise", lambda x, y: x + y, ((200_000,),) * 2)
    yield Program(
        "choices, 1,000,000",
        "elementwise",
        lambda x, y: where(x > y, sqrt(abs(x)), log(abs(y) + 1)),
        ((1_000_000,),) * 2,
    )
    yield Program("chain of 4 ops, float64, 1,000,000", "elementwise", _chain(1), ((1_000_000,),), dtype="float64")


def _products() -> Iterator[Program]:
    for n in (32, 128, 384, 1024):
        yield Program(f"product, {n}", "products", _matmul, ((n, n), (n, n)))
    yield Program("product, tall", "products", _matmul, ((4096, 64), (64, 64)))
    yield Program("product, wide", "products", _matmul, ((64, 64), (64, 8192)))
    yield Program("product, deep", "products", _matmul, ((64, 8192), (8192, 64)))
    yield Program("matrix times vector", "products", _matmul, ((2048, 2048), (2048,)))
    yield Program("products of a batch", "products", _matmul, ((64, 48, 48), (64, 48, 48)))
    yield Program("product, float64", "products", _matmul, ((384, 384), (384, 384)), dtype="float64")
    yield Program("product by a constant", "products", _matmul, ((256, 512),), ((512, 512),))


def _reductions() -> Iterator[Program]:
    for size in (1_000, 1_000_000, 8_000_000):
        yield Program(f"sum, {size:,}", "reductions", sum, ((size,),))
    yield Program("sums of rows", "reductions", lambda x: sum(x * x, axis=1), ((1024, 1024),))
    yield Program("sums of columns", "reductions", lambda x: sum(x * x, axis=0), ((1024, 1024),))
    yield Program(
        "largest of rows, and where", "reductions", lambda x: (max(x, axis=1), argmax(x, axis=1)), ((512, 512),)
    )
    yield Program("softmax", "reductions", softmax, ((512, 1024),))
    yield Program("variance of rows", "reductions", lambda x: var(x, axis=1), ((2048, 512),))


def _transformer(x: Tensor, qkv: Tensor, out: Tensor, up: Tensor, down: Tensor) -> Tensor:
    length, width = x.shape
    heads = 4
    parts = (layer_norm(x) @ qkv).reshape((length, 3, heads, width // heads))
    q, k, v = (permute_dims(parts[:, n], (1, 0, 2)) for n in range(3))
    mixed = permute_dims(scaled_dot_product_attention(q, k, v), (1, 0, 2)).reshape((length, width))
    x = x + mixed @ out
    return x + gelu(layer_norm(x) @ up) @ down


def _residual(x: Tensor, *weights: Tensor) -> Tensor:
    for a, b in zip(weights[::2], weights[1::2], strict=True):
        x = relu(x + relu(x @ a) @ b)
    return x


def _convolved(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return relu(x + conv2d(relu(conv2d(x, a, padding=1)), b, padding=1))


def _networks() -> Iterator[Program]:
    for length, width in ((8, 32), (32, 128), (128, 256), (256, 512)):
        weights = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
        yield Program(f"transformer block, {length} of {width}", "networks", _transformer, ((length, width),), weights)
    for batch, width, blocks in ((4, 32, 2), (32, 256, 2), (256, 512, 4)):
        square = ((width, width),) * (2 * blocks)
        yield Program(f"residual blocks, {batch} of {width}", "networks", _residual, ((batch, width),), square)
    for channels, size in ((8, 16), (32, 32)):
        kernels = ((channels, channels, 3, 3),) * 2
        name = f"residual block of convolutions, {channels} of {size} × {size}"
        yield Program(name, "networks", _convolved, ((1, channels, size, size),), kernels)


def _layers() -> Iterator[Program]:
    family = "layers"
    yield Program("gelu(x * w + b), 1,000,000", family, lambda x, w, b: gelu(x * w + b), ((1_000_000,),) * 3)
    yield Program("gelu(x * w + b), 30,000", family, lambda x, w, b: gelu(x * w + b), ((30_000,),) * 3)
    yield Program("max pooling, 3 by 2", family, lambda x: max_pool2d(x, 3, stride=2), ((4, 32, 112, 112),))
    yield Program("average pooling", family, lambda x: avg_pool2d(x, 2), ((4, 32, 112, 112),))
    yield Program("layer norm", family, layer_norm, ((1024, 768),), ((768,), (768,)))
    yield Program("attention", family, scaled_dot_product_attention, ((4, 8, 128, 64),) * 3)
    yield Program("attention, long", family, scaled_dot_product_attention, ((1, 4, 1024, 64),) * 3)
    yield Program(
        "convolution, 64 of 56 × 56", family, partial(conv2d, padding=1), ((1, 64, 56, 56),), ((64, 64, 3, 3),)
    )
    yield Program("convolution, 7 by 2", family, partial(conv2d, stride=2), ((4, 3, 112, 112),), ((32, 3, 7, 7),))
    yield Program("linear with a bias", family, linear, ((256, 768),), ((768, 768), (768,)))
    yield Program("sort", family, sort, ((1000, 256),))
    yield Program("fft", family, lambda x: abs(fft(x)), ((256, 1024),))
    yield Program("einsum", family, lambda a, b: einsum("bij,bjk->bik", a, b), ((16, 64, 64),) * 2)
    yield Program("rows by index", family, lambda x, i: x[i] * 2, ((5000, 128),), indices=((20_000,),), below=5000)
    yield Program("a window, scaled", family, lambda x: x[100:1900, 50:950] * 2 + 1, ((2000, 1000),))


def _models() -> Iterator[Program]:
    family, big = "models", models.GPT
    gpt, images = (models.GPT_BATCH,), models.CNN_BATCH
    label, words = ((images[0],),), models.GPT_BATCH

    def applied(model: models.Model) -> Callable[..., Tensor]:
        return lambda *given: model(given[:-1], given[-1])

    def inference(x: Tensor, *weights: Tensor) -> Tensor:
        return models.resnet(weights, x)

    yield Program("mlp", family, applied(models.mlp), (models.MLP_BATCH,), parameters=models.MLP)
    yield Program(
        "mlp, training step", family, models.gradient_step(models.mlp, len(models.MLP)), (models.MLP_BATCH,),
        parameters=models.MLP, indices=((models.MLP_BATCH[0],),),
    )  # fmt: skip
    yield Program("cnn", family, applied(models.cnn), (images,), parameters=models.CNN)
    yield Program(
        "cnn, training step", family, models.gradient_step(models.cnn, len(models.CNN)), (images,),
        parameters=models.CNN, indices=label,
    )  # fmt: skip
    yield Program("gpt", family, applied(models.gpt), (), parameters=big, indices=gpt, below=words[1])
    yield Program(
        "gpt, training step", family, models.adam_step(models.gpt, len(big)), (),
        parameters=big * 3, indices=gpt * 2, below=words[1],
    )  # fmt: skip
    for batch in (1, 8):
        yield Program(f"resnet-18, batch {batch}", family, inference, ((batch, 3, 224, 224),), models.RESNET)


def _mixed() -> Iterator[Program]:
    yield Program(
        "a large product, then small ops", "mixed",
        lambda x, w: tanh(mean(x @ w, axis=0) * 2 + 1) / 3, ((768, 768), (768, 768)),
    )  # fmt: skip
    yield Program(
        "small ops, then a large loop", "mixed",
        lambda x, s: tanh(x * sum(exp(s) / 2)) + x, ((4_000_000,), (100,)),
    )  # fmt: skip
    yield Program(
        "a large loop beside small ones", "mixed",
        lambda x, s: (exp(-x * x), tanh(s) * 2, sqrt(abs(s))), ((2_000_000,), (500,)),
    )  # fmt: skip
    yield Program(
        "small products between large loops", "mixed",
        lambda x, w: tanh(tanh(x) @ w) @ w + x, ((200_000, 4), (4, 4)),
    )  # fmt: skip
    yield Program("a loop that ends in many small ones", "mixed", _tapering, ((1_000_000,),))


def _tapering(x: Tensor) -> Tensor:
    while x.shape[0] > 1000:
        x = tanh(x[::4]) + 0.1
    return x


def _sorted_layers(count: int) -> Callable[[Tensor, Tensor], Tensor]:
    def layers(x: Tensor, w: Tensor) -> Tensor:
        for _ in range(count):
            x = sort(tanh(x @ w), axis=-1)
        return x

    return layers


def _interrupted() -> Iterator[Program]:
    family = "an op is missing"
    yield Program("sort between small loops", family, lambda x: exp(sort(tanh(x) * 2)) + 1, ((2_000,),))
    yield Program("sort between large loops", family, lambda x: exp(sort(tanh(x) * 2, axis=-1)), ((2000, 500),))
    yield Program("sort between products", family, lambda x, w: sort(x @ w, axis=-1) @ w, ((512, 256),), ((256, 256),))
    yield Program(
        "running totals between loops", family, lambda x: tanh(cumulative_sum(x * x, axis=1)), ((1000, 1000),)
    )
    yield Program("a transform between loops", family, lambda x: abs(fft(tanh(x) * 2)), ((400, 1024),))
    yield Program("60 layers with a sort after each, 32", family, _sorted_layers(60), ((32, 32),), ((32, 32),))
    yield Program("60 layers with a sort after each, 192", family, _sorted_layers(60), ((192, 192),), ((192, 192),))
