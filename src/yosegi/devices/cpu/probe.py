"""Native code is new to a machine once: it is tried in a child process first.

Processors say what they can do, and sometimes it is not so: the system may not keep the wide registers, or a hypervisor
may promise too much. Then the child dies, not the user's process. The verdict is kept with the compiled objects.
"""

from __future__ import annotations

import platform
from importlib.metadata import version

import numpy as np

from ... import store
from ...trial import attempt
from .compiler import Compiler, Machine
from .native import Runtime

_ELEMENTS = 4096


def verdict(machine: Machine) -> str | None:
    """Why native code must not run in this process, or `None` if it survived a trial."""
    found = [platform.python_version(), np.__version__, version("llvmlite"), machine.identity]
    trial = "yosegi.devices.cpu.probe:probe"
    failure = store.verdict("native", "\n".join(found), lambda: attempt(trial, machine.fields), keeps_timeouts=False)
    return None if failure is None else f"a trial in a child process failed: {failure}"


def probe(fields: list[str]) -> bool:
    """Compile and run a kernel of the machine's widest vectors, by all threads. Called in the child."""
    machine = Machine(*fields)
    runtime = Runtime(Compiler(machine))
    lanes = machine.vector_bytes // 4
    code = runtime.compiler.load(
        _KERNEL.replace("LANES", str(lanes)).replace("BYTES", str(machine.vector_bytes))
        + f"\nattributes #0 = {{ {machine.attributes} }}\n",
        ("kernel",),
    )
    x, y = np.linspace(-4, 4, _ELEMENTS, dtype=np.float32), np.zeros(_ELEMENTS, np.float32)
    call = runtime.call(code, 2, (), count=_ELEMENTS // lanes, chunk=4, fallback=lambda *arrays: None)
    call(x, y)
    assert np.array_equal(y, np.sqrt(np.abs(x)) * x + np.trunc(x)), "the results are wrong"
    return True


_KERNEL = """
define void @kernel(ptr %arguments, i64 %low, i64 %high) #0 {
entry:
  %p.x = getelementptr ptr, ptr %arguments, i64 1
  %p.y = getelementptr ptr, ptr %arguments, i64 2
  %x = load ptr, ptr %p.x
  %y = load ptr, ptr %p.y
  br label %next
next:
  %i = phi i64 [ %low, %entry ], [ %i1, %work ]
  %left = icmp slt i64 %i, %high
  br i1 %left, label %work, label %done
work:
  %at = mul i64 %i, BYTES
  %from = getelementptr i8, ptr %x, i64 %at
  %to = getelementptr i8, ptr %y, i64 %at
  %v = load <LANES x float>, ptr %from, align 4
  %size = call <LANES x float> @llvm.fabs.vLANESf32(<LANES x float> %v)
  %root = call <LANES x float> @llvm.sqrt.vLANESf32(<LANES x float> %size)
  %whole = fptosi <LANES x float> %v to <LANES x i32>
  %back = sitofp <LANES x i32> %whole to <LANES x float>
  %product = fmul <LANES x float> %root, %v
  %sum = fadd <LANES x float> %product, %back
  store <LANES x float> %sum, ptr %to, align 4
  %i1 = add i64 %i, 1
  br label %next
done:
  ret void
}
declare <LANES x float> @llvm.fabs.vLANESf32(<LANES x float>)
declare <LANES x float> @llvm.sqrt.vLANESf32(<LANES x float>)
"""
