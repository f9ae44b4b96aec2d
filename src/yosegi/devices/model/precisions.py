"""Whether a device's lower precisions are any good on this machine: tried in a child process, and measured there.

A driver's word is only a hint. It may announce a precision that ends the process, take one and compute in another, or
compute it by a loop that is many times slower than float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._schedule.fuse import Region, RegionKind
from ..._tensor.dtype import bfloat16, float16, float32, float_info
from ..._tensor.node import Call, spec
from ..._tensor.op import REGISTRY, embedded, leaf_call
from ..._tensor.precision import Precision
from ..._tune.timing import seconds_of
from .device import ModelDevice

_EPS: Final = {Precision.F16: float_info(float16).eps, Precision.BF16: float_info(bfloat16).eps}
_SHAPES: Final[dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]]] = {
    "matrix product": ("matmul", (256, 512), (512, 512), {}),
    "convolution": ("conv", (1, 64, 28, 28), (64, 64, 3, 3), {"padding": 1}),
}
_ROUNDS: Final = 7
_GAIN: Final = 1.1  # less is within what such a measurement is worth


def reason_against(device: ModelDevice, name: str) -> str | None:
    """Why a precision, by its name, is not to be used, or `None` if it is right and faster. Called in a child."""
    precision = Precision(name)
    gains: dict[str, float] = {}
    for title, region, x, exact in _products():
        full, reduced = (device.compile(replace(region, precision=p)) for p in (Precision.FULL, precision))
        off = float(np.max(np.abs(reduced(x)[0] - exact)) / np.max(np.abs(exact)))
        if not off <= _EPS[precision]:
            return f"its {title} was off by {off:.0e} of the largest value when it was tried here"
        if np.array_equal(reduced(x)[0], full(x)[0]):
            return "it computes in float32 all the same"
        gains[title] = median([seconds_of(full, x) / seconds_of(reduced, x) for _ in range(_ROUNDS)])
    if max(gains.values()) >= _GAIN:
        return None
    return "no gain: " + ", ".join(f"{gain:.2g} of float32's speed for a {title}" for title, gain in gains.items())


def _products() -> Iterator[tuple[str, Region, Any, Any]]:
    """A product of each kind by a constant: its name, the region, the other operand, and the result in float64."""
    rng = np.random.default_rng(0)
    for title, (name, shape, constant_shape, attrs) in _SHAPES.items():
        x, w = (rng.standard_normal(n, np.float32) for n in (shape, constant_shape))
        given, held = spec(shape, float32), spec(constant_shape, float32)
        call = REGISTRY[name].call((given, held), attrs)
        calls = (leaf_call(given), Call(embedded, {"array": w}, (), (held,)), call)
        region = Region(Graph(calls, ((), (), (0, 1)), (2,)), RegionKind.CONTRACTION, (2,), (0,), (2,))
        yield title, region, x, bind(call)(x.astype(np.float64), w.astype(np.float64))
