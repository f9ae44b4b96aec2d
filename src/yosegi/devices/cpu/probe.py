"""Native code is new to a machine once: it is tried under a guard first.

Processors say what they can do, and sometimes it is not so: the system may not keep the wide registers, or a hypervisor
may promise too much. The verdict is kept with the compiled objects.
"""

from __future__ import annotations

import platform

import numpy as np

from ..._tune import store
from ..._tune.comparison import disagreement
from .compiler import Compiler, HostMachine
from .guard import survives

_ELEMENTS = 4096


def verdict(machine: HostMachine) -> str | None:
    """Why native code must not run in this process, or `None` if it survived a trial."""
    found = [platform.python_version(), np.__version__, machine.identity]
    return store.verdict("native", "\n".join(found), lambda: probe(machine))


def probe(machine: HostMachine) -> str | None:
    """Compile and run a kernel of the machine's widest vectors, with the kinds of instruction that kernels are made of;
    why it does not work, or `None`."""
    compiler = Compiler(machine)
    lanes = machine.vector_bytes // 4
    halves = _HALVES if machine.converts_halves else "  %half.back = fadd <LANES x float> %v, zeroinitializer"
    text = _KERNEL.replace("HALVES", halves).replace("LANES", str(lanes)).replace("COUNT", str(_ELEMENTS - 1))
    text = text.replace("ZEROS", f"<{lanes} x float> zeroinitializer")
    code = compiler.load(f"{text}\nattributes #0 = {{ {machine.attributes} }}\n", ("kernel",))
    x, y = np.linspace(-4, 4, _ELEMENTS, dtype=np.float32), np.zeros(_ELEMENTS, np.float32)
    if not survives(compiler, code, "kernel", x.ctypes.data, y.ctypes.data, _ELEMENTS // lanes):
        return f"this processor does not have the instructions of {machine.model} that it reports (SIGILL)"
    half = x.astype(np.float16).astype(np.float32) if machine.converts_halves else x
    expected = np.sqrt(np.abs(x)) * x + 3 * np.trunc(x) + half
    expected[-1] = 0  # behind the mask
    return None if disagreement([expected], [y], 64) is None else "the results of a trial are wrong"


_HALVES = """  %half = fptrunc <LANES x float> %v to <LANES x half>
  %half.back = fpext <LANES x half> %half to <LANES x float>"""

_KERNEL = """
define void @kernel(ptr %x, ptr %y, i64 %high) #0 {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i1, %work ]
  %left = icmp slt i64 %i, %high
  br i1 %left, label %work, label %done
work:
  %at = mul i64 %i, LANES
  %from = getelementptr float, ptr %x, i64 %at
  %to = getelementptr float, ptr %y, i64 %at
  %mask = call <LANES x i1> @llvm.get.active.lane.mask.vLANESi1.i64(i64 %at, i64 COUNT)
  %v = call <LANES x float> @llvm.masked.load.vLANESf32.p0(ptr %from, i32 4, <LANES x i1> %mask, ZEROS)
  %size = call <LANES x float> @llvm.fabs.vLANESf32(<LANES x float> %v)
  %root = call <LANES x float> @llvm.sqrt.vLANESf32(<LANES x float> %size)
  %whole = fptosi <LANES x float> %v to <LANES x i32>
  %twice = shl <LANES x i32> %whole, splat (i32 1)
  %thrice = add <LANES x i32> %twice, %whole
  %short = trunc <LANES x i32> %thrice to <LANES x i16>
  %wide = sext <LANES x i16> %short to <LANES x i32>
  %back = sitofp <LANES x i32> %wide to <LANES x float>
  %product = call <LANES x float> @llvm.fma.vLANESf32(<LANES x float> %root, <LANES x float> %v, <LANES x float> %back)
HALVES
  %sum = fadd <LANES x float> %product, %half.back
  call void @llvm.masked.store.vLANESf32.p0(<LANES x float> %sum, ptr %to, i32 4, <LANES x i1> %mask)
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}
declare <LANES x float> @llvm.fabs.vLANESf32(<LANES x float>)
declare <LANES x float> @llvm.sqrt.vLANESf32(<LANES x float>)
declare <LANES x float> @llvm.fma.vLANESf32(<LANES x float>, <LANES x float>, <LANES x float>)
declare <LANES x i1> @llvm.get.active.lane.mask.vLANESi1.i64(i64, i64)
declare <LANES x float> @llvm.masked.load.vLANESf32.p0(ptr, i32, <LANES x i1>, <LANES x float>)
declare void @llvm.masked.store.vLANESf32.p0(<LANES x float>, ptr, i32, <LANES x i1>)
"""
