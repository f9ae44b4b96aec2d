"""An OpenCL device."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final, final

from ..._run.drivers import Driver
from ..._schedule.fuse import Region
from ..._schedule.portable_region import digest, region_as_plain
from ..._tensor.dtype import ALL, DType, complex128, float64
from ...codegen.c.dialect import Target
from ..kernel.device import KernelDevice
from .cache import Programs
from .launch import Queue
from .memory import Memory

_PROBE: Final = "yosegi.devices.opencl.probe"
_SIZES: Final = 32  # parameters left for sizes and for constants of a program


@final
class OpenCL(KernelDevice):
    """One device of an OpenCL platform, with a queue of its own. A driver that is not trusted compiles in a child
    process."""

    rank = 300

    def __init__(self, cl: Any, device: Any, number: int, driver: Driver | None = None) -> None:
        """Without a `driver`, which knows what was found of it, everything is compiled here: in child processes."""
        self._number = number
        self._driver = driver
        self.is_gpu = bool(device.type & cl.device_type.GPU)
        self.is_volatile = not device.host_unified_memory
        context = cl.Context([device])
        queue = cl.CommandQueue(context, device)
        units = int(device.max_compute_units)
        hardware = f"{device.name.strip()}, {units} units, {device.version.strip()}"
        self.what = hardware if self._is_trusted else f"{hardware}; compiled in child processes"
        rounded = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        options = ("-cl-std=CL1.2", "-w", *(["-cl-fp32-correctly-rounded-divide-sqrt"] if rounded else []))
        target = _target(device, is_cpu=bool(device.type & cl.device_type.CPU))
        programs = Programs(cl, context, device, options, is_trusted=self._is_trusted)
        self.identity = f"{programs.identity}\n{units} units"
        memory = Memory(cl, context, queue, device, f"opencl:{number}")
        self.queue = Queue(cl, queue, programs, memory, memory.name, target)
        identity = f"{hardware}\n{device.driver_version}\n{device.platform.version}"
        identity += "" if self._is_trusted else "\ncompiled in a child process"
        dtypes = dtypes_of(has_doubles="cl_khr_fp64" in device.extensions.split())
        super().__init__(self.queue, driver, dtypes, int(device.max_parameter_size) // 8 - _SIZES, identity)

    @property
    def _is_trusted(self) -> bool:
        return self._driver is None or self._verdict.is_trusted

    def _prepare(self, region: Region) -> None:
        if not self._is_trusted:
            assert self._driver is not None
            wanted = self._number, region_as_plain(region)
            for source, code in self._driver.prove(str(region), digest(region), f"{_PROBE}:prove", *wanted):
                self.queue.programs.adopt(source, b64decode(code))


def dtypes_of(*, has_doubles: bool) -> frozenset[DType]:
    """The dtypes of a device."""
    return frozenset(ALL) - (frozenset() if has_doubles else {float64, complex128})


def _target(device: Any, *, is_cpu: bool) -> Target:
    units, group = int(device.max_compute_units), int(device.max_work_group_size)
    if is_cpu:
        return Target(group=min(64, group), cooperating=min(16, group), units=units)
    power = 1 << (min(128, group).bit_length() - 1)
    return Target(group=min(256, group), cooperating=power, units=4 * units)
