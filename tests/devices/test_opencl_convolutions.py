"""Convolutions on the OpenCL device, as its target gets them and as a GPU does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import yosegi as ys
from opencl_regions import DEVICE, RNG, regions, run
from yosegi._graph.graph import capture, graph_of
from yosegi._run.device import Absent
from yosegi._schedule.fuse import fuse
from yosegi._tensor.dtype import ALL
from yosegi.codegen.c.dialect import Target
from yosegi.devices.kernel.fused import Fused
from yosegi.devices.kernel.machine import Machine
from yosegi.ops.conv import conv

pytestmark = pytest.mark.skipif(isinstance(DEVICE, Absent), reason=getattr(DEVICE, "reason", ""))
REAL = [d for d in ALL if d.is_integer or d.is_float]
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 10), (4, 3, 3, 3), {"padding": 1}),
    ((1, 8, 20, 18), (40, 4, 3, 2), {"stride": (2, 1), "padding": ((1, 0), (0, 2)), "dilation": (1, 2), "groups": 2}),
    ((2, 5, 40), (5, 1, 3), {"padding": 2, "groups": 5}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"stride": (1, 2, 1)}),
    ((2, 3, 5, 5), (70, 3, 3, 3), {"padding": 2, "spread": 2}),
    ((2, 6, 5, 5), (9, 6, 1, 1), {}),
    ((1, 0, 4, 4), (3, 0, 3, 3), {"padding": 1}),
    ((0, 2, 4, 4), (3, 2, 3, 3), {"padding": 1}),
]


def values(dtype: Any, *shape: int) -> Any:
    numbers = RNG.integers(0, 5, shape) if dtype.is_integer else RNG.normal(size=shape)
    return numbers.astype(dtype.numpy)


def close(got: Any, expected: Any, dtype: Any) -> None:
    assert got.shape == expected.shape
    if dtype.is_integer:
        np.testing.assert_array_equal(got, expected.astype(np.int64).astype(dtype.numpy))
        return
    size = np.abs(expected).max(initial=1e-30)
    error = np.abs(got.astype(np.float64) - expected).max(initial=0)
    assert error <= (2 if dtype.is_half else 32) * ys.finfo(dtype).eps * size


@pytest.mark.parametrize("dtype", REAL, ids=lambda d: d.name)
def test_every_dtype(dtype: Any) -> None:
    for image, kernel, attrs in SHAPES if dtype is ys.float32 else SHAPES[:2]:
        x, w = values(dtype, *image), values(dtype, *kernel)
        wide = [ys.asarray(a.astype(np.float64)) for a in (x, w)]
        close(run(conv(ys.asarray(x), ys.asarray(w), **attrs))[0], conv(*wide, **attrs).numpy(), dtype)


@pytest.mark.parametrize("target", ["as found", "a gpu"])
@pytest.mark.parametrize("number", range(len(SHAPES) - 1))
def test_every_way(number: int, target: str) -> None:
    machine = Machine(DEVICE.queue, DEVICE.compile, DEVICE.supports, 100)
    if target == "a gpu":
        machine.target = Target(group=64, cooperating=64, units=2)
    image, kernel, attrs = SHAPES[number]
    x, w = values(ys.float32, *image), values(ys.float32, *kernel)
    (region,) = fuse(graph_of(capture([conv(ys.asarray(x), ys.asarray(w), **attrs)._node])[0]))
    expected = conv(ys.asarray(x.astype(np.float64)), ys.asarray(w.astype(np.float64)), **attrs).numpy()
    variants = Fused(machine, "a machine").variants(region)
    assert {"naive", "16", "32"} <= variants.keys() or (0 in kernel and [*variants] == ["naive"])
    for make in variants.values():
        close(DEVICE.to_host(make()(DEVICE.from_host(x), DEVICE.from_host(w))[0]), expected, ys.float32)


def test_complex_numbers_are_refused_with_a_reason() -> None:
    x, w = (ys.asarray(np.ones(s, np.complex64)) for s in ((1, 2, 4, 4), (3, 2, 3, 3)))
    (region,) = regions(conv(x, w))
    assert DEVICE.supports(region) == "no product of complex64"
