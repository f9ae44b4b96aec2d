"""Which of the processor's units for bfloat16 products can be used.

What a processor says of itself decides nothing. Some hypervisors announce what they do not have, and some hide what
works; the system must be asked for the registers of tiles, and may refuse. So a unit is tried under a guard, and its
products must come out right; the verdict is kept.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..._tensor.dtype import bfloat16, float32
from ..._tune import store
from ...codegen.llvm.bfloat16_units import SQUARE, BFloat16Unit, trial_source
from ...codegen.llvm.blocking import BFLOAT16
from ...codegen.llvm.product import Product
from .callables import Runtime
from .compiler import Compiler, HostMachine
from .guard import survives
from .half_calls import FEATURES, PARTS, HalfProducts, machine_for
from .operand_layout import Arrays
from .results import Results, lined_up

_WORDS: Final = {"amx-tile": "amx_tile", "amx-bf16": "amx_bf16", "avx512bf16": "avx512_bf16"}
"""Linux's words for LLVM's features."""
_ARCH_PRCTL: Final = 158  # the number of that system call on x86-64
_REQUEST_PERMISSION: Final = 0x1023
_TILE_DATA: Final = 18
_SIZES: Final = ((96, 80, 200), (37, 45, 700))


@dataclass(frozen=True, slots=True)
class Found:
    """The unit to use, if there is one, and why others are not used."""

    unit: BFloat16Unit | None
    reason: str

    def __str__(self) -> str:
        if self.unit is None:
            return f"no bf16 products ({self.reason})"
        return f"bf16 products on {self.unit.value}{f' ({self.reason})' if self.reason else ''}"


def find(machine: HostMachine) -> Found:
    """The best unit that works in this process."""
    if not machine.triple.startswith("x86_64"):
        return Found(None, "there are no kernels for this architecture")
    if machine.vector_bytes < 64 or not machine.features:
        return Found(None, f"not with {machine.model}'s vectors")
    reasons: list[str] = []
    for unit in BFloat16Unit:
        hidden = not all(machine.has(feature) or _WORDS[feature] in flags() for feature in FEATURES[unit])
        reason = failure(machine, unit)
        if reason is None:
            return Found(unit, "; ".join([*reasons, *["the processor does not report it, but it works"] * hidden]))
        reasons.append(f"{unit.value}: {'not reported, and ' if hidden else ''}{reason}")
    return Found(None, "; ".join(reasons))


def failure(machine: HostMachine, unit: BFloat16Unit) -> str | None:
    """Why a unit cannot be used in this process, or `None`."""
    return (permission() if unit is BFloat16Unit.TILES else None) or verdict(machine, unit)


@cache
def flags(path: str = "/proc/cpuinfo") -> frozenset[str]:
    """The words by which Linux describes the processor; none on other systems."""
    try:
        with Path(path).open(encoding="ascii", errors="replace") as lines:
            words = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    except OSError:
        words = ""
    return frozenset(words.split())


@cache
def permission() -> str | None:
    """Ask the system for the registers of tiles, for all threads of this process; why it refuses, or `None`.

    Only Linux wants to be asked.
    """
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA) == 0:
        return None
    return f"the system does not give out its registers: {os.strerror(ctypes.get_errno())}"


def verdict(machine: HostMachine, unit: BFloat16Unit) -> str | None:
    """Why a unit must not be used, or `None` if it survived a trial."""
    found = [platform.python_version(), np.__version__, platform.release(), machine.identity, *sorted(flags())]
    return store.verdict(f"bf16-{unit.name.lower()}", "\n".join(found), lambda: probe(machine, unit))


def probe(machine: HostMachine, unit: BFloat16Unit) -> str | None:
    """Run a unit's instructions under a guard, then products by all threads at all precisions; why a unit does not
    work, or `None`."""
    compiler = Compiler(machine_for(unit, machine))
    code = compiler.load(trial_source(unit, compiler.machine.attributes), ("kernel",))
    operand, out = lined_up(2 * SQUARE), lined_up(4 * SQUARE)
    operand[:] = out[:] = 0
    if not survives(compiler, code, "kernel", operand.ctypes.data, operand.ctypes.data, out.ctypes.data):
        return "this processor does not have its instructions (SIGILL)"
    try:
        policy = replace(BFLOAT16, single_work=0)  # several threads, however small a product is
        check(HalfProducts(Runtime(Compiler(machine), 2), unit, Results(), policy=policy))
    except AssertionError as wrong:
        return str(wrong)
    return None


def check(products: HalfProducts) -> None:
    """Raise unless products come out right, at all precisions."""
    rng = np.random.default_rng(0)
    for parts in PARTS.values():
        for m, n, k in _SIZES:
            a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
            out = np.full((m, n), np.nan, np.float32)
            bound = products.generated.bound(Product(float32, parts=parts), Arrays(a, b, (), (), (out,)))
            bound.call(a, b, out, np.empty(bound.workspace, np.uint8))
            wanted = expected(a, b, parts)
            error = np.linalg.norm(out - wanted) / np.linalg.norm(wanted)
            assert error < LARGEST_ERRORS[parts], f"the results are wrong: a relative error of {error:.1e}"


def expected(a: Any, b: Any, parts: int) -> Any:
    """The product, in float64, that a product with so many parts comes close to: of rounded operands, if it has one."""
    if parts == 1:
        a, b = a.astype(bfloat16.numpy), b.astype(bfloat16.numpy)
    return a.astype(np.float64) @ b.astype(np.float64)


LARGEST_ERRORS: Final = {1: 1e-6, 2: 1e-5, 3: 1e-6}
"""Over the norm of that, for numbers without a pattern."""
