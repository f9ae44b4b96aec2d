"""Products with bfloat16 numbers inside on a machine without a unit for them: what the tests of such products need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from matrix_emulation import EmulatingCompiler
from native_code import NATIVES, RESULTS
from values import Array
from yosegi.codegen.llvm.units import Unit
from yosegi.device import host_device
from yosegi.devices.cpu.compiler import Compiler, Machine
from yosegi.devices.cpu.halves import HalfProducts
from yosegi.devices.cpu.reduced import Reduced
from yosegi.devices.cpu.results import Results
from yosegi.devices.cpu.units import Found
from yosegi.dtype import bfloat16


def emulating(unit: Unit = Unit.TILES) -> HalfProducts:
    """Products by a unit that is emulated."""
    compiler: Any = EmulatingCompiler(Compiler(Machine.host()))
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
    plans = import_module("yosegi.evaluate")._plans
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduced, "_found", Found(products.unit, ""))
        patch.setattr(reduced, "_products", products)
        plans.clear()  # what was planned before has its code
        yield
        plans.clear()


def halved(x: Array) -> Array:
    """Numbers rounded to bfloat16, in float64."""
    return x.astype(bfloat16.numpy).astype(np.float64)
