"""Products on the CPU by one of the ways to compute them: what the tests of products need."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import yosegi as ys
from native_code import RESULTS, always, region_of
from values import Array
from yosegi._run.trace import trace
from yosegi._tensor.dtype import DType, float32
from yosegi.devices.cpu.blas import numpy_blas
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.native_groups import Natives
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import APART, GENERATED, GENERATED_APART, LIBRARY, Variants

needs_blas = pytest.mark.skipif(numpy_blas() is None, reason="NumPy has another BLAS")
EACH_WAY = pytest.mark.parametrize(
    "way", [GENERATED, GENERATED_APART, *[pytest.param(w, marks=needs_blas) for w in (LIBRARY, APART)]]
)


@cache
def variants(model: str = "", threads: int = 2) -> Variants:
    """The ways of this machine, or of a lesser one that it can stand for."""
    host = HostMachine.host()
    machine = HostMachine(host.triple, model, "", host.version) if model else host
    return Variants(Natives(machine, Runtime(Compiler(machine), threads)), RESULTS)


def numbers(shape: tuple[int, ...], dtype: DType = float32, seed: int = 0) -> Array:
    """Between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(dtype.numpy)


def run(way: str, *tensors: ys.Tensor, arrays: list[Array] | None = None, by: Variants | None = None) -> list[Array]:
    """Results by one of the ways. It is an error if nothing becomes native."""
    region, given = region_of(*tensors)
    failures = len(trace.records)
    with always(way):
        kernel = native_function(region, by or variants())
    assert any(name.startswith("xn") for name in kernel.__globals__), "nothing became native"
    assert len(trace.records) == failures, trace.records[-1]
    made: tuple[Array, ...] = kernel(*(given if arrays is None else arrays))
    return list(made)


def exact(a: Array, b: Array) -> Array:
    """The product in double precision."""
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


def check(got: Array, expected: Array, terms: int) -> None:
    """Within the error of a sum of so many products of numbers up to one, and of what a few functions make of it.

    Partial sums grow like the root of their length, and so does the number of roundings that add up: their product is
    the number of terms. One of them left out is a thousand times more.
    """
    eps = float(np.finfo(got.dtype).eps)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=16 * eps, atol=4 * eps * (terms + 16))
