"""A Metal device."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, Final, final

from ..._run.drivers import Driver
from ..._schedule.fuse import Region
from ..._tensor.dtype import ALL, complex128, float64
from ...codegen.c.dialect import Target
from ..kernel.device import KernelDevice, checked
from .commands import Commands, metal
from .launch import Programs, Queue
from .memory import Memory

DTYPES: Final = frozenset(ALL) - {float64, complex128}
"""The language has no double. bfloat16 is computed in float32, which every GPU has."""
_ARRAYS: Final = 30  # of the 31 buffers that a kernel takes, one has its sizes
_UNITS: Final = 64  # threadgroups that run side by side: Metal does not report the number of cores


@final
class MetalDevice(KernelDevice):
    """One GPU, with a queue of its own, in memory that it shares with the host."""

    rank = 200
    is_gpu = True
    is_volatile = True

    def __init__(self, number: int, driver: Driver | None = None) -> None:
        """Without a `driver` nothing is known to be wrong."""
        device = metal()[0].MTLCopyAllDevices()[number]
        commands = Commands(device.newCommandQueue())
        memory = Memory(device, commands, f"metal:{number}")
        self.identity = identity_of(device)
        self.what = f"{device.name()}, {memory.total >> 20} MiB, no float64"
        group = int(device.maxThreadsPerThreadgroup().width)
        target = Target(width=4, group=min(256, group), cooperating=min(128, group), units=_UNITS, blocked=False)
        queue = Queue(memory.name, target, memory, commands, Programs(device, self.identity))
        super().__init__(queue, driver, DTYPES, _ARRAYS, self.identity)

    def _prepare(self, region: Region) -> None:
        """Metal compiles in a process of its own: a crash there is an error here."""


def identity_of(device: Any) -> str:
    """The GPU, the system, which brings the compiler, and pyobjc."""
    return f"{device.name()}\n{platform.platform()}\n{metal()[1].__version__}"


_tried: Final = cache(MetalDevice)


def check(number: int, family: str) -> dict[str, str]:
    """In a child process: the family of kernels, if a device gets it wrong, and how."""
    return checked(_tried(number), family)
