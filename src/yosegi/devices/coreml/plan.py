"""Core ML's plan for a compiled model: the device of each op, and its share of the cost."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any, Final

from .library import core_ml

_SHOWN: Final = 8
"""Ops that are named, the costliest first."""
_SECONDS: Final = 10.0
_DEVICES: Final = {
    "MLCPUComputeDevice": "CPU", "MLGPUComputeDevice": "GPU", "MLNeuralEngineComputeDevice": "Neural Engine"
}  # fmt: skip


def described(path: Path, configuration: Any) -> str:
    """The plan in one line; empty where the system has none to show, before macOS 14.4."""
    core, foundation, objc = core_ml()
    if not hasattr(core, "MLComputePlan"):
        return ""
    with objc.autorelease_pool():
        ready, found = Event(), []

        def done(plan: Any, error: Any) -> None:
            found.append(plan)
            ready.set()

        url = foundation.NSURL.fileURLWithPath_(str(path))
        core.MLComputePlan.loadContentsOfURL_configuration_completionHandler_(url, configuration, done)
        if not ready.wait(_SECONDS) or found[0] is None:
            return ""
        (plan,) = found
        operations = plan.modelStructure().program().functions()["main"].block().operations()
        rows = sorted((_row(plan, operation) for operation in operations), reverse=True)
    shown = [f"{name} {cost:.0%} on {preferred} (of {supported})" for cost, name, preferred, supported in rows if cost]
    more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"one model: {', '.join(shown[:_SHOWN])}{more}"


def _row(plan: Any, operation: Any) -> tuple[float, str, str, str]:
    """The cost, the op, its device, and all devices that could run it. Constants have none."""
    usage = plan.computeDeviceUsageForMLProgramOperation_(operation)
    cost = plan.estimatedCostOfMLProgramOperation_(operation)
    if usage is None or cost is None:
        return 0.0, "", "", ""
    supported = ", ".join(_name(device) for device in usage.supportedComputeDevices())
    return float(cost.weight()), str(operation.operatorName()), _name(usage.preferredComputeDevice()), supported


def _name(device: Any) -> str:
    kind = type(device).__name__
    return _DEVICES.get(kind, kind)
