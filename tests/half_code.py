"""Products with bfloat16 numbers inside on a machine without a unit for them: what the tests of such products need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import yosegi as ys
from matrix_emulation import EmulatingCompiler
from native_code import NATIVES, RESULTS, always, region_of
from values import Array
from yosegi._run.device import host_device
from yosegi._run.trace import trace
from yosegi._schedule.fuse import Region
from yosegi._tensor.dtype import bfloat16
from yosegi._tensor.precision import Precision
from yosegi.codegen.llvm.bfloat16_units import BFloat16Unit
from yosegi.devices.cpu.bfloat16_support import Found
from yosegi.devices.cpu.bfloat16_support import expected as exact
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.device import Cpu
from yosegi.devices.cpu.half_calls import PARTS, HalfProducts
from yosegi.devices.cpu.reduced import Reduced
from yosegi.devices.cpu.results import Results
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import Variants

PRECISIONS = pytest.mark.parametrize("precision", PARTS, ids=lambda p: p.value)
LARGEST = {1: 2e-6, 2: 2e-5, 3: 2e-6}
"""The relative error of a result that may be left to sums and functions; that of the precisions themselves is 2e-3 for
one part."""


def emulating(unit: BFloat16Unit = BFloat16Unit.TILES) -> HalfProducts:
    """Products by a unit that is emulated."""
    compiler: Any = EmulatingCompiler(Compiler(HostMachine.host()))
    assert NATIVES.runtime is not None
    return HalfProducts(NATIVES.runtime, unit, Results(), compiler=compiler)


def reduced_by(products: HalfProducts) -> Reduced:
    """The reduced precisions of a processor where such products were found."""
    reduced = Reduced(NATIVES, RESULTS)
    reduced._found, reduced._products = Found(products.unit, ""), products
    return reduced


@contextmanager
def host_with(products: HalfProducts) -> Iterator[None]:
    """The host's device, as if such products had been found there."""
    reduced = host_device().reduced  # type: ignore[attr-defined]
    plans = import_module("yosegi._run.evaluate")._plans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduced, "_found", Found(products.unit, ""))
        patch.setattr(reduced, "_products", products)
        plans.clear()  # what was planned before has its code
        yield
        plans.clear()


def halved(x: Array) -> Array:
    """Numbers rounded to bfloat16, in float64."""
    return x.astype(bfloat16.numpy).astype(np.float64)


# Programs


@cache
def variants(unit: BFloat16Unit = BFloat16Unit.TILES) -> Variants:
    """The ways to compute products with a unit that is emulated."""
    return Variants(NATIVES, RESULTS, reduced_by(emulating(unit)))


def numbers(*shape: int, seed: int = 0) -> Array:
    """Between -1 and 1."""
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def compiled(
    precision: Precision, *tensors: ys.Tensor, way: str | None = None, by: Variants | None = None
) -> tuple[Any, list[Array]]:
    """A program as a kernel, and the arrays it reads; it is an error if anything fails on the way."""
    region, arrays = region_of(*tensors)
    failures = len(trace.records)
    region = replace(region, precision=precision)
    if way is None:
        kernel = native_function(region, by or variants())
    else:
        with always(f"in {precision.value}, {way}"):
            kernel = native_function(region, by or variants())
    assert len(trace.records) == failures, trace.records[-1]
    return kernel, arrays


def calls_of(kernel: Any) -> list[str]:
    """The functions that a kernel calls: native ones begin with n, others with f."""
    return sorted(n.removeprefix("x") for n in kernel.__code__.co_names if n[:2] in ("xn", "xf"))


def error(got: Array, wanted: Array) -> float:
    """Relative, of the whole array."""
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def check(got: Array, program: Callable[[Array], Array], a: Array, b: Array, parts: int, *, largest: float = 0) -> None:
    """The result of a program that is computed from a product, against float64; of rounded operands, if parts is 1."""
    wanted = program(exact(a, b, parts))
    assert got.shape == wanted.shape
    assert got.dtype == np.float32
    assert error(got, wanted) <= (largest or LARGEST[parts])
    if parts == 1:
        assert error(got, program(exact(a, b, 3))) > 3e-4, "it was computed in full"


def with_constants(function: Callable[[ys.Tensor], ys.Tensor], x: Array, monkeypatch: pytest.MonkeyPatch) -> Region:
    """The region that a jitted function becomes."""
    regions: list[Region] = []
    made = Cpu.compile
    with monkeypatch.context() as patch:
        patch.setattr(Cpu, "compile", lambda self, region: regions.append(region) or made(self, region))
        with ys.options(device="cpu"):
            ys.jit(function)(ys.asarray(x)).numpy()
    return regions[-1]
