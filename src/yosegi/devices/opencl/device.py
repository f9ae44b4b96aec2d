"""An OpenCL device."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from ..._place.work import digest
from ..._run.device import Device, Kernel, Limits
from ..._run.drivers import Driver, Verdict
from ..._schedule.fuse import JOINED, Region
from ..._schedule.kernels import kernels_of
from ..._schedule.portable_region import region_as_plain
from ..._tensor.dtype import ALL, complex128, float64
from ..._tensor.op import OpKind
from ...codegen.c.dialect import Target
from ..kernel.faults import watched
from ..kernel.fused import PATTERNS, Fused
from ..kernel.qualification import families_of
from .cache import Programs
from .launch import Queue
from .machine import Machine
from .memory import Memory
from .regions import compile_region, refusal

_KINDS: Final = frozenset({
    OpKind.MOVEMENT, OpKind.ACTIVATION, OpKind.REDUCTION, OpKind.COMPLEX, OpKind.LINEAR_ALGEBRA, OpKind.NORMALISATION,
    OpKind.CONVOLUTION, OpKind.SOURCE, OpKind.RANDOM, OpKind.ORDER, OpKind.CONTROL,
})  # fmt: skip

_PROBE: Final = "yosegi.devices.opencl.probe"
_SIZES: Final = 32  # parameters left for sizes and for constants of a program


class OpenCL:
    """One device of an OpenCL platform, with a queue of its own."""

    rank = 300
    coalesces = True

    def __init__(self, cl: Any, device: Any, number: int, driver: Driver | None = None) -> None:
        """Without a `driver`, which knows what was found of it, everything is compiled here: in child processes."""
        self._number = number
        self._driver = driver
        self.name = self.space = f"opencl:{number}"
        self.is_gpu = bool(device.type & cl.device_type.GPU)
        self.is_volatile = not device.host_unified_memory
        context = cl.Context([device])
        queue = cl.CommandQueue(context, device)
        extensions = device.extensions.split()
        missing = set() if "cl_khr_fp64" in extensions else {float64, complex128}
        self.limits = Limits(frozenset(ALL) - missing, _KINDS, natives=PATTERNS)
        units = int(device.max_compute_units)
        self._what = f"{device.name.strip()}, {units} units, {device.version.strip()}"
        self._arrays = int(device.max_parameter_size) // 8 - _SIZES
        self._memory = Memory(cl, context, queue, device, self.name)
        rounded = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        options = ("-cl-std=CL1.2", "-w", *(["-cl-fp32-correctly-rounded-divide-sqrt"] if rounded else []))
        target = _target(device, is_cpu=bool(device.type & cl.device_type.CPU))
        programs = Programs(cl, context, device, options, is_trusted=self._is_trusted)
        self.identity = f"{programs.identity}\n{units} units"
        self.queue = Queue(cl, queue, programs, self._memory, self.name, target)
        identity = f"{self._what}\n{device.driver_version}\n{device.platform.version}"
        identity += "" if self._is_trusted else "\ncompiled in a child process"
        self._fused = Fused(Machine(self.queue, self._compiled, self.supports, self._arrays), identity)

    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""
        specs = [s for call in region.calls for s in (*call.inputs, *call.outputs)]
        lacking = next((s.dtype for s in specs if s.dtype not in self.limits.dtypes), None)
        if lacking is not None:
            return f"no {lacking.name} on this device"
        reason = self._found_wrong(region) or refusal(region, self._fused)
        arrays = max(len(part.inputs) + len(part.outputs) for part in region.parts)
        if reason is None and arrays > self._arrays:
            return f"{arrays} arrays are more than a kernel of this device takes"
        return reason

    @property
    def description(self) -> str:
        """The device, the errors of its driver, and whether the driver is trusted."""
        verdict = self._verdict
        wrong = [f"no {family}: {why}" for family, why in verdict.refused.items()]
        trust = [] if self._is_trusted else ["compiled in child processes"]
        return "; ".join([self._what, *wrong, *trust])

    @property
    def _verdict(self) -> Verdict:
        return Verdict() if self._driver is None or self._driver.verdict is None else self._driver.verdict

    @property
    def _is_trusted(self) -> bool:
        return self._driver is None or self._verdict.is_trusted

    def _found_wrong(self, region: Region) -> str | None:
        """Why the driver was found to be no good for a region, or `None`."""
        refused = self._verdict.refused
        wrong = sorted(families_of(region) & refused.keys()) if refused else ()
        return f"its {wrong[0]} failed when the driver was qualified: {refused[wrong[0]]}" if wrong else None

    def compile(self, region: Region) -> Kernel:
        """The region as launches of generated kernels. A driver that is not trusted compiles in a child process."""
        return watched(self._compiled(region), region, self._memory.faults)

    def _compiled(self, region: Region) -> Kernel:
        if not self._is_trusted:
            assert self._driver is not None
            wanted = self._number, region_as_plain(region)
            for source, code in self._driver.prove(str(region), digest(region), f"{_PROBE}:prove", *wanted):
                self.queue.programs.adopt(source, b64decode(code))
        return compile_region(region, self.queue, self._fused)

    def kernels(self, region: Region) -> list[Region]:
        """The kernels of a region, in order."""
        return kernels_of(region, self._fused.fusion)

    def variants(self, region: Region) -> Mapping[str, Callable[[], Kernel]]:
        """Every variant of a product or a composite, by name."""
        return self._fused.variants(region)

    def parts(self, region: Region) -> list[tuple[Region, Callable[[], Kernel]]]:
        """The parts of a region, each with what compiles it as a part."""
        compiled = self._fused.compiled
        return [(p, partial(compiled if p.kind in JOINED else self._compiled, p)) for p in self.kernels(region)]

    def fill_with_garbage(self) -> None:
        """Hand out memory full of ones from now on: whatever a kernel leaves out shows."""
        self._memory.fill_with_garbage()

    def from_host(self, array: Any) -> Any:
        """An array of the host, or a tuple of them, as data of this device: in place where memory is shared."""
        return _each(self._memory.from_host, array)

    def to_host(self, data: Any) -> Any:
        """Data as an array of the host, or a tuple of them, when it is there: in place where memory is shared."""
        return _each(self._memory.to_host, data)

    def link_from(self, source: Device) -> None:
        """Nothing comes directly: each device has a context of its own."""

    def synchronize(self) -> None:
        """Wait until the queue is empty. Raises the user's mistake, if an index was out of range."""
        mistake = self._memory.look_for_faults()
        if mistake is not None:
            raise mistake

    def statistics(self) -> dict[str, int | None]:
        """The statistics of its memory pool."""
        return asdict(self._memory.statistics())

    def memory(self) -> tuple[int, int]:
        """The bytes that the limit, or the device, leaves free, and the total."""
        return self._memory.statistics().room(self._memory.total)

    def trim(self) -> int:
        """Return the free memory of the pool to the system."""
        return self._memory.trim()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<device {self.name}: {self.description}>"


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The data of an op with several outputs is a tuple."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


def _target(device: Any, *, is_cpu: bool) -> Target:
    units, group = int(device.max_compute_units), int(device.max_work_group_size)
    if is_cpu:
        return Target(width=16, group=min(64, group), cooperating=min(16, group), units=units, blocked=True)
    power = 1 << (min(128, group).bit_length() - 1)
    return Target(width=4, group=min(256, group), cooperating=power, units=4 * units, blocked=False)
