"""Native code is new to a machine once: it is tried under a guard first.

Processors say what they can do, and sometimes it is not so: the system may not keep the wide registers, or a hypervisor
may promise too much. The verdict is kept with the compiled objects.
"""

from __future__ import annotations

import platform

import numpy as np

from ..._tensor.dtype import float16, float32, int16, int32
from ..._tune.comparison import disagreement
from ..._tune.store import verdict as stored_verdict
from ...codegen.llvm.builder import LlvmBuilder
from ...codegen.llvm.integers import mul, shifted, sub
from ...codegen.llvm.ir import Module
from ...codegen.llvm.load_store import lanes_below, load, store
from ...codegen.llvm.nest import VectorTarget
from .compiler import Compiler, HostMachine
from .guard import survives

_ELEMENTS = 4096


def verdict(machine: HostMachine) -> str | None:
    """Why native code must not run in this process, or `None` if it survived a trial."""
    found = [platform.python_version(), np.__version__, machine.identity]
    return stored_verdict("native", "\n".join(found), lambda: probe(machine))


def probe(machine: HostMachine) -> str | None:
    """Compile and run a kernel of the machine's widest vectors, with the kinds of instruction that kernels are made of;
    why it does not work, or `None`."""
    compiler = Compiler(machine)
    lanes = machine.vector_bytes // 4
    code = compiler.load(_kernel_source(machine.target, lanes), ("kernel",))
    x, y = np.linspace(-4, 4, _ELEMENTS, dtype=np.float32), np.zeros(_ELEMENTS, np.float32)
    if not survives(compiler, code, "kernel", x.ctypes.data, y.ctypes.data, _ELEMENTS // lanes):
        return f"this processor does not have the instructions of {machine.model} that it reports (SIGILL)"
    half = x.astype(np.float16).astype(np.float32) if machine.converts_halves else x
    expected = np.sqrt(np.abs(x)) * x + 3 * np.trunc(x) + half
    expected[-1] = 0  # behind the mask
    return None if disagreement([expected], [y], 64) is None else "the results of a trial are wrong"


def _kernel_source(target: VectorTarget, lanes: int) -> str:
    """The module of `kernel(x, y, high)`: y = sqrt(|x|) * x + 3 * trunc(x) + x, in so many vectors. The last x is
    rounded to float16 where there are instructions for it. A mask leaves out the last element."""
    module = Module(converts_halves=target.converts_halves)
    code = module.function("kernel", (("ptr", "x"), ("ptr", "y"), ("i64", "high")))
    k = LlvmBuilder(code, lanes)
    with code.loop(0, "%high") as loop:
        at = mul(code, loop.index, lanes)
        mask = lanes_below(k, sub(code, str(_ELEMENTS - 1), at))
        x, to = (shifted(code, base, mul(code, at, 4)) for base in ("%x", "%y"))
        v = load(k, float32, x, mask)
        whole = k.converted(v, int32)
        thrice = k.converted(k.add(k.shl(whole, k.const(1, whole)), whole), int16)
        made = k.fma(k.sqrt(k.abs(v)), v, k.converted(k.converted(thrice, int32), float32))
        half = k.convert(k.rounded(k.convert(v, float16)), float32) if target.converts_halves else v
        store(k, k.add(made, half), to, mask)
    code.ret()
    return module.text(target.attributes)
