"""Whole models in plain user code. `regret` compares their placements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ..._tensor.tensor import Tensor
from ..._trace.grad import value_and_grad
from ...ops.activation import gelu, relu
from ...ops.attention import scaled_dot_product_attention
from ...ops.conv import conv2d
from ...ops.elementwise import sqrt
from ...ops.linear import linear
from ...ops.loss import cross_entropy
from ...ops.normal import layer_norm
from ...ops.pool import max_pool2d
from ...ops.reduce import mean
from ...ops.shape import permute_dims, reshape

Shape = tuple[int, ...]
Model = Callable[[Sequence[Tensor], Tensor], Tensor]
"""Parameters and a batch → logits."""

_WIDTH, _HEADS, _LAYERS, _WORDS, _LENGTH, _BATCH = 256, 4, 4, 256, 128, 4


def _linear(inputs: int, outputs: int) -> tuple[Shape, ...]:
    return (outputs, inputs), (outputs,)


# A transformer for text

_BLOCK: Final = (
    *((_WIDTH,),) * 2, *_linear(_WIDTH, 3 * _WIDTH), *_linear(_WIDTH, _WIDTH),
    *((_WIDTH,),) * 2, *_linear(_WIDTH, 4 * _WIDTH), *_linear(4 * _WIDTH, _WIDTH),
)  # fmt: skip
GPT: Final = ((_WORDS, _WIDTH), *_BLOCK * _LAYERS, (_WIDTH,), (_WIDTH,), *_linear(_WIDTH, _WORDS))
GPT_BATCH: Final = (_BATCH, _LENGTH)


def gpt(parameters: Sequence[Tensor], words: Tensor) -> Tensor:
    """The logits of the next word, for each word of a batch; as many layers as there are parameters for."""
    embedding, *blocks, scale, shift, head, bias = parameters
    x = embedding[words]
    for n in range(0, len(blocks), len(_BLOCK)):
        x = _block(x, *blocks[n : n + len(_BLOCK)])
    return linear(layer_norm(x, scale, shift), head, bias)


def _block(x: Tensor, *p: Tensor) -> Tensor:
    batch, length, width = x.shape
    parts = reshape(linear(layer_norm(x, p[0], p[1]), p[2], p[3]), (batch, length, 3, _HEADS, width // _HEADS))
    q, k, v = (permute_dims(parts[:, :, n], (0, 2, 1, 3)) for n in range(3))
    mixed = permute_dims(scaled_dot_product_attention(q, k, v, is_causal=True), (0, 2, 1, 3))
    x = x + linear(reshape(mixed, (batch, length, width)), p[4], p[5])
    return x + linear(gelu(linear(layer_norm(x, p[6], p[7]), p[8], p[9])), p[10], p[11])


# A residual network for pictures

_STAGES: Final = (
    (64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1),
)  # fmt: skip


def _norm(channels: int) -> tuple[Shape, ...]:
    return (channels,), (channels,)


def _residual_shapes(inputs: int, outputs: int, stride: int) -> tuple[Shape, ...]:
    shapes = ((outputs, inputs, 3, 3), *_norm(outputs), (outputs, outputs, 3, 3), *_norm(outputs))
    return (*shapes, (outputs, inputs, 1, 1)) if stride > 1 else shapes


RESNET: Final = (
    (64, 3, 7, 7), *_norm(64), *[s for stage in _STAGES for s in _residual_shapes(*stage)], *_linear(512, 1000)
)  # fmt: skip


def _normed(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """A batch norm of inference, as a scale and a shift of each channel."""
    return x * reshape(scale, (-1, 1, 1)) + reshape(shift, (-1, 1, 1))


def resnet(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """ResNet-18: the logits of pictures."""
    p = iter(parameters)
    x = relu(_normed(conv2d(x, next(p), stride=2, padding=3), next(p), next(p)))
    x = max_pool2d(x, 3, stride=2, padding=1)
    for _, _, stride in _STAGES:
        y = relu(_normed(conv2d(x, next(p), stride=stride, padding=1), next(p), next(p)))
        y = _normed(conv2d(y, next(p), padding=1), next(p), next(p))
        x = relu(y + (conv2d(x, next(p), stride=stride) if stride > 1 else x))
    return linear(mean(x, axis=(2, 3)), next(p), next(p))


# Small networks

CNN: Final = ((16, 3, 3, 3), (16,), (32, 16, 3, 3), (32,), *_linear(32 * 8 * 8, 10))
CNN_BATCH: Final = (32, 3, 32, 32)
MLP: Final = (*_linear(784, 512), *_linear(512, 512), *_linear(512, 10))
MLP_BATCH: Final = (128, 784)


def cnn(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """Two convolutions with pooling, and a linear map."""
    a, b, c, d, w, bias = parameters
    x = max_pool2d(relu(conv2d(x, a, b, padding=1)), 2)
    x = max_pool2d(relu(conv2d(x, c, d, padding=1)), 2)
    return linear(reshape(x, (x.shape[0], -1)), w, bias)


def mlp(parameters: Sequence[Tensor], x: Tensor) -> Tensor:
    """Three linear maps."""
    a, b, c, d, e, f = parameters
    return linear(relu(linear(relu(linear(x, a, b)), c, d)), e, f)


# Training


def _loss(model: Model, x: Tensor, labels: Tensor) -> Callable[[list[Tensor]], Tensor]:
    def loss(parameters: list[Tensor]) -> Tensor:
        logits = model(parameters, x)
        return cross_entropy(reshape(logits, (-1, logits.shape[-1])), reshape(labels, (-1,)))

    return loss


def gradient_step(model: Model, count: int) -> Callable[..., tuple[Tensor, ...]]:
    """A step of gradient descent: parameters, a batch and its labels → the loss and new parameters."""

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        parameters, (x, labels) = given[:count], given[count:]
        loss, slopes = value_and_grad(_loss(model, x, labels))(list(parameters))
        return loss, *[p - 0.01 * g for p, g in zip(parameters, slopes, strict=True)]

    return step


def adam_step(model: Model, count: int) -> Callable[..., tuple[Tensor, ...]]:
    """A step of AdamW: parameters, first moments, roots of second moments, a batch and its labels → the loss, and the
    new ones of all three."""

    def step(*given: Tensor) -> tuple[Tensor, ...]:
        parameters, first, roots = (given[n * count : (n + 1) * count] for n in range(3))
        x, labels = given[3 * count :]
        loss, slopes = value_and_grad(_loss(model, x, labels))(list(parameters))
        first = tuple([0.9 * m + 0.1 * g for m, g in zip(first, slopes, strict=True)])
        roots = tuple([sqrt(0.999 * r * r + 0.001 * g * g) for r, g in zip(roots, slopes, strict=True)])
        new = [p - 1e-3 * (m / (r + 1e-8) + 0.01 * p) for p, m, r in zip(parameters, first, roots, strict=True)]
        return loss, *new, *first, *roots

    return step
