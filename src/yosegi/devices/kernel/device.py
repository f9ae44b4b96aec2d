"""A device that runs generated kernels in an in-order queue: all but its memory, its launches and its compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict
from functools import partial
from math import inf
from typing import Any, Final

from ..._run.background import Job
from ..._run.device import Absent, Device, Found, Kernel, Limits, Pending
from ..._run.drivers import Driver, Verdict
from ..._schedule.fuse import JOINED, Region
from ..._schedule.kernels import kernels_of
from ..._tensor.dtype import DType
from ..._tensor.op import OpKind
from .faults import watched
from .fused import PATTERNS, Fused
from .machine import Machine
from .qualification import difference, families, families_of
from .regions import Queue, compile_region, refusal

_KINDS: Final = frozenset({
    OpKind.MOVEMENT, OpKind.ACTIVATION, OpKind.REDUCTION, OpKind.COMPLEX, OpKind.LINEAR_ALGEBRA, OpKind.NORMALISATION,
    OpKind.CONVOLUTION, OpKind.SOURCE, OpKind.RANDOM, OpKind.ORDER, OpKind.CONTROL,
})  # fmt: skip


class KernelDevice(ABC):
    """One device, with a queue of its own."""

    rank: int
    is_gpu: bool
    is_volatile: bool
    coalesces = True
    identity: str
    what: str
    """The hardware, in a few words."""

    def __init__(self, queue: Queue, driver: Driver | None, dtypes: Set[DType], arrays: int, tuned: str) -> None:
        """`driver` knows the verdict, if there is one; a kernel takes `arrays`; `tuned` is the hardware and software
        that tuning records are for."""
        self.name = self.space = queue.name
        self.limits = Limits(frozenset(dtypes), _KINDS, natives=PATTERNS)
        self._queue = queue
        self._driver = driver
        self._arrays = arrays
        self._memory = queue.memory
        self._fused = Fused(Machine(queue, self._compiled, self.supports, arrays), tuned)

    @abstractmethod
    def _prepare(self, region: Region) -> None:
        """Called before a region is compiled."""

    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""
        specs = [s for call in region.calls for s in (*call.inputs, *call.outputs)]
        lacking = next((s.dtype for s in specs if s.dtype not in self.limits.dtypes), None)
        if lacking is not None:
            return f"no {lacking.name} on this device"
        reason = self._found_wrong(region) or refusal(region, self._fused, self._queue.language)
        arrays = max(len(part.inputs) + len(part.outputs) for part in region.parts)
        if reason is None and arrays > self._arrays:
            return f"{arrays} arrays are more than a kernel of this device takes"
        return reason

    @property
    def description(self) -> str:
        """The hardware, and the errors of its driver."""
        return "; ".join([self.what, *[f"no {family}: {why}" for family, why in self._verdict.refused.items()]])

    @property
    def _verdict(self) -> Verdict:
        return Verdict() if self._driver is None or self._driver.verdict is None else self._driver.verdict

    def _found_wrong(self, region: Region) -> str | None:
        """Why the driver was found to be no good for a region, or `None`."""
        refused = self._verdict.refused
        wrong = sorted(families_of(region) & refused.keys()) if refused else ()
        return f"its {wrong[0]} failed when the driver was qualified: {refused[wrong[0]]}" if wrong else None

    def compile(self, region: Region) -> Kernel:
        """The region as launches of generated kernels."""
        return watched(self._compiled(region), region, self._memory.faults)

    def _compiled(self, region: Region) -> Kernel:
        self._prepare(region)
        return compile_region(region, self._queue, self._fused)

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

    def link_from(self, source: Device) -> None:  # noqa: B027  # there is no link to any device
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
        """Give back what the pool keeps."""
        return self._memory.trim()

    def __repr__(self) -> str:
        return self.name


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """The data of an op with several outputs is a tuple."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


def checked(device: KernelDevice, family: str) -> dict[str, str]:
    """The family of kernels, if a device gets it wrong, and how."""
    device.fill_with_garbage()  # a kernel that leaves something out shows it
    wrong = difference(device, family, lambda region: device.variants(region.parts[0]))
    return {} if wrong is None else {family: wrong}


def found(
    driver: Driver, description: str, check: str, number: int, dtypes: Set[DType], make: Callable[[], Device],
    *, is_gpu: bool,
) -> Found:  # fmt: skip
    """The device of a driver that has a verdict; otherwise `Pending`, until `check(number, family)` was called in child
    processes for every family of kernels of these dtypes."""

    def made() -> Device | Absent:
        if driver.absence is not None:
            return Absent(driver.name, driver.absence)
        try:
            return make()
        except Exception as error:  # a broken installation raises whatever it likes
            return Absent(driver.name, f"it does not work: {type(error).__name__}: {error}")

    def qualified() -> Device | Absent:
        driver.qualified(lambda driver: driver.tried(check, [number], families(dtypes)))
        return made()

    return made() if driver.verdict is not None else Pending(driver.name, description, is_gpu, Job(qualified, inf))
