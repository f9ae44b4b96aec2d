"""Metal, for GPUs of Apple: its language is there, so that every kernel can be written in it; what launches is not."""

from __future__ import annotations

import platform
from collections.abc import Iterable

from ..._run.device import Absent, Device


def discover() -> Iterable[Device | Absent]:
    """No device, and why. Never raises."""
    if platform.system() != "Darwin":
        return (Absent("metal:0", "only Apple's systems have it"),)
    return (Absent("metal:0", "its kernels can be written, but nothing launches them yet"),)
