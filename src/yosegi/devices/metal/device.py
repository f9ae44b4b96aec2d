"""A Metal device."""

from __future__ import annotations

import platform
from functools import cache
from typing import Any, Final, final

from ..._run.device import Kernel
from ..._run.drivers import Driver
from ..._schedule.fuse import Region
from ..._tensor.dtype import ALL, complex128, float64
from ...codegen.c.dialect import Dialect, Target
from ...codegen.c.kernel_source import NAME
from ..kernel.device import KernelDevice, checked
from ..kernel.faults import watched
from .commands import Commands, metal, pool
from .dialect import MSL, msl
from .launch import Queue
from .library import shaders_of
from .memory import Memory
from .programs import Programs, library_of
from .replay import Replayed

DTYPES: Final = frozenset(ALL) - {float64, complex128}
"""The language has no double. 16-bit floats are computed in float32, which every GPU has."""
_ARRAYS: Final = 30  # of the 31 buffers that a kernel takes, one has its sizes
_UNITS: Final = 64  # threadgroups that run side by side: Metal does not report the number of cores

_APPLE9: Final = 1009
"""MTLGPUFamilyApple9: the M3. Older GPUs crash in an indirect command buffer whose pipelines no encoder has had."""
_BFLOAT: Final = f"""#include <metal_stdlib>
{MSL.kernel} {NAME}({", ".join(["device bfloat* x [[buffer(0)]]", *MSL.built_in])})
{{ *x = bfloat(float(*x)); }}
"""


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
        target = Target(group=min(256, group), cooperating=min(128, group), units=_UNITS)
        queue = Queue(
            memory.name, device, _language(device), target, memory, commands, Programs(device, self.identity),
            binds_pipelines=not device.supportsFamily_(_APPLE9),
        )  # fmt: skip
        self._metal_queue = queue
        super().__init__(queue, driver, DTYPES, _ARRAYS, self.identity, shaders_of(device, queue))

    def compile(self, region: Region) -> Kernel:
        """The region as commands that are encoded once."""
        return watched(Replayed(self._compiled(region), self._metal_queue), region, self._memory.faults)

    def trim(self) -> int:
        """Give back what recordings and the pool keep."""
        for replayed in list(self._metal_queue.replays):
            replayed.forget()
        return super().trim()

    def _prepare(self, region: Region) -> None:
        """Metal compiles in a process of its own: a crash there is an error here."""


def identity_of(device: Any) -> str:
    """The GPU, the system, which brings the compiler, and pyobjc."""
    return f"{device.name()}\n{platform.platform()}\n{metal()[1].__version__}"


def _language(device: Any) -> Dialect:
    """The language of a GPU. Simdgroup matrices are there from the M1 on; bfloat also needs a system that knows it, and
    so its compiler is asked."""
    families = metal()[0]
    has_bfloat = bool(device.supportsFamily_(families.MTLGPUFamilyApple6))
    if has_bfloat:
        with pool():
            has_bfloat = library_of(device, _BFLOAT)[0] is not None
    return msl(has_matrices=bool(device.supportsFamily_(families.MTLGPUFamilyApple7)), has_bfloat=has_bfloat)


_tried: Final = cache(MetalDevice)


def check(number: int, family: str) -> dict[str, str]:
    """In a child process: the family of kernels, if a device gets it wrong, and how."""
    return checked(_tried(number), family)
