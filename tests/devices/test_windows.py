"""Convolutions and pools, and their gradients, on every device that generates kernels: nothing of them falls back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from samples import SAMPLES
from yosegi._run.trace import trace
from yosegi._tensor.op import REGISTRY
from yosegi.ops.conv import conv

RNG = np.random.default_rng(14)
DEVICES = [d.name for d in ys.devices() if d.name.partition(":")[0] in ("opencl", "cuda", "metal")]
EACH = pytest.mark.parametrize("device", DEVICES)
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 10), (4, 3, 3, 3), {"padding": 1}),
    ((1, 8, 20, 18), (40, 4, 3, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2), "groups": 2}),
    ((2, 5, 40), (5, 1, 3), {"padding": 2, "groups": 5}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"stride": (1, 2, 1)}),
    ((2, 6, 5, 5), (9, 6, 1, 1), {}),
]


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def close(got: Any, expected: Any) -> None:
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= 64 * ys.finfo(ys.float32).eps * np.abs(expected).max()


def on_device(device: str, made: Callable[..., Any], *arrays: Any) -> list[Any]:
    """Results of which every step ran on the device."""
    trace.clear()
    with ys.options(device=device, on_fallback="error"):
        results = [t.numpy() for t in made(*[ys.asarray(a) for a in arrays])]
    assert {record.device for record in trace.records} == {device}
    return results


def on_host(made: Callable[..., Any], *arrays: Any) -> list[Any]:
    with ys.options(device="cpu"):
        return [t.numpy() for t in made(*[ys.asarray(a.astype(np.float64)) for a in arrays])]


@EACH
@pytest.mark.parametrize("name", ["conv", "conv_transpose", "avg_pool", "max_pool", "windowed", "overlapped"])
def test_nothing_of_it_falls_back(name: str, device: str) -> None:
    for sample in SAMPLES[name]:
        arrays = [np.asarray(a).astype(np.float32) for a in sample.arrays]

        def made(*tensors: ys.Tensor, attrs: Any = sample.attrs) -> Any:
            return (REGISTRY[name](*tensors, **attrs),)

        for got, expected in zip(on_device(device, made, *arrays), on_host(made, *arrays), strict=True):
            close(got, expected)


@EACH
@pytest.mark.parametrize(("image", "kernel", "attrs"), SHAPES)
def test_gradients(image: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any], device: str) -> None:
    x, w = normal(*image), normal(*kernel)
    gradients = ys.grad(lambda x, w: ys.sum(ys.tanh(conv(x, w, **attrs))), argnums=(0, 1))
    for got, expected in zip(on_device(device, gradients, x, w), on_host(gradients, x, w), strict=True):
        close(got, expected)


@EACH
def test_gradients_of_the_largest(device: str) -> None:
    x = np.round(normal(2, 3, 9, 10), 1)  # with ties

    def total(x: ys.Tensor) -> ys.Tensor:
        return ys.sum(ys.nn.max_pool2d(x, 3, stride=2, padding=1) ** 2)

    def gradient(x: ys.Tensor) -> tuple[ys.Tensor]:
        return (ys.grad(total)(x),)

    close(on_device(device, gradient, x)[0], on_host(gradient, x)[0])
