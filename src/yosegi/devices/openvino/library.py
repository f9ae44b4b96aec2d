"""OpenVINO, loaded when it is first needed, and set up so that it changes nothing behind the user's back.

- Its package reports to Google Analytics whenever it is imported. Here it does not: that is not ours to decide.
- It chooses the precision of inference by itself, bf16 where the processor has it, and dies on machines that announce
  bf16 but cannot do it. Here every model gets its precision, and the mode that keeps to it.
- A process that was forked from one that used it hangs when it ends, in the destructor of OpenVINO's core. There it is
  never destroyed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any, Final

from ..._run.forks import in_forked_child
from ..._tensor.environment import setting
from ..._tensor.precision import Precision

REDUCED: Final = (Precision.F16, Precision.BF16)
"""The precisions below float32 that OpenVINO has, where its plugin has them."""
_HINTS: Final = {Precision.FULL: "f32", Precision.F16: "f16", Precision.BF16: "bf16"}
_TELEMETRY: Final = "openvino_telemetry"


@cache
def openvino() -> Any:
    """The package."""
    before = sys.modules.get(_TELEMETRY)
    sys.modules[_TELEMETRY] = None  # type: ignore[assignment]  # its import fails, and OpenVINO goes on without it
    try:
        import openvino
    finally:
        if before is None:
            del sys.modules[_TELEMETRY]
        else:
            sys.modules[_TELEMETRY] = before
    return openvino


@cache
def opset() -> Any:
    """The operations that models are made of."""
    openvino()
    from openvino import opset15

    return opset15


@cache
def core() -> Any:
    """The OpenVINO core, which compiles models."""
    made = openvino().Core()
    in_forked_child(lambda: ctypes.pythonapi.Py_IncRef(ctypes.py_object(made)))
    return made


def settings(plugin: str, precision: Precision = Precision.FULL) -> dict[str, Any]:
    """How models are compiled for a plugin ("CPU", "GPU", …), out of what that plugin knows."""
    wanted = {
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "EXECUTION_MODE_HINT": "ACCURACY" if precision is Precision.FULL else "PERFORMANCE",
        "CPU_DENORMALS_OPTIMIZATION": False,
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "1",
        "INFERENCE_NUM_THREADS": str(threads()),
        "ENABLE_CPU_PINNING": False,  # a pinned thread waits for its core when another process, or pool, has it
    }
    known = core().get_property(plugin, "SUPPORTED_PROPERTIES")
    return {name: value for name, value in wanted.items() if name in known}


def threads() -> int:
    """How many threads a model may use: YOSEGI_THREADS, or the processors this process may run on."""
    chosen: int | None = setting("YOSEGI_THREADS")
    if chosen is not None:
        return chosen
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
