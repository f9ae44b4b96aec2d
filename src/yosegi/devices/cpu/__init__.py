"""The CPU: native kernels where they can be had, NumPy's reference bodies for the rest. It ends every chain."""

from __future__ import annotations

from collections.abc import Iterable

from ..._run.device import Absent, Device
from .device import Cpu


def discover() -> Iterable[Device | Absent]:
    """The CPU is always there."""
    return (Cpu(),)
