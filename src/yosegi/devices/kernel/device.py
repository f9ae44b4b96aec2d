"""A device that runs generated kernels in an in-order queue: all but its memory, its launches and its compiler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from ..._run.device import Device, Kernel, Limits
from ..._run.drivers import Driver, Verdict
from ..._schedule.fuse import JOINED, Region
from ..._schedule.kernels import kernels_of
from ..._tensor.dtype import DType
from ..._tensor.op import OpKind
from .faults import watched
from .fused import PATTERNS, Fused
from .launching import Queue
from .machine import Library, Machine
from .qualification import difference, families, families_of, library_family
from .regions import compile_region, refusal

KINDS: Final = frozenset({
    OpKind.MOVEMENT, OpKind.ACTIVATION, OpKind.REDUCTION, OpKind.COMPLEX, OpKind.LINEAR_ALGEBRA, OpKind.NORMALISATION,
    OpKind.CONVOLUTION, OpKind.SOURCE, OpKind.RANDOM, OpKind.ORDER, OpKind.CONTROL,
})  # fmt: skip
"""The kinds of ops that have generated kernels."""


class QueueDevice(ABC):
    """A device with an in-order queue: its memory, and the copies between it and the host."""

    coalesces = True

    def __init__(self, queue: Queue, arrays: int) -> None:
        """A kernel takes `arrays`."""
        self.name = self.space = queue.name
        self._memory = queue.memory
        self._arrays = arrays

    @abstractmethod
    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""

    def _too_many_arrays(self, region: Region) -> str | None:
        """Why a kernel of a region takes more arrays than it can, or `None`."""
        arrays = max(len(part.inputs) + len(part.outputs) for part in region.parts)
        return f"{arrays} arrays are more than a kernel of this device takes" if arrays > self._arrays else None

    def fill_with_garbage(self) -> None:
        """Hand out memory full of ones from now on: whatever a kernel leaves out shows."""
        self._memory.fill_with_garbage()

    def from_host(self, array: Any) -> Any:
        """An array of the host, or a tuple of them, as data of this device: in place where memory is shared."""
        return each(self._memory.from_host, array)

    def to_host(self, data: Any) -> Any:
        """Data as an array of the host, or a tuple of them, when it is there: in place where memory is shared."""
        return each(self._memory.to_host, data)

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


class KernelDevice(QueueDevice):
    """A device whose kernels are all generated."""

    rank: int
    is_gpu: bool
    is_volatile: bool
    identity: str
    what: str
    """The hardware, in a few words."""

    def __init__(
        self,
        queue: Queue,
        driver: Driver | None,
        dtypes: Set[DType],
        arrays: int,
        tuned: str,
        library: Library | None = None,
    ) -> None:
        """`driver` knows the verdict, if there is one; a kernel takes `arrays`; `tuned` is the hardware and software
        that tuning records are for."""
        super().__init__(queue, arrays)
        self.limits = Limits(frozenset(dtypes), KINDS, natives=PATTERNS)
        self._queue = queue
        self._driver = driver
        machine = Machine(queue, self._compiled, self.supports, arrays, library, self._trusts_library)
        self._fused = Fused(machine, tuned)

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
        return reason or self._too_many_arrays(region)

    def _trusts_library(self, kind: str, dtype: DType) -> bool:
        """False if the library was found to get kernels of a kind and a dtype wrong."""
        return library_family(kind, dtype) not in self._verdict.refused

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

    def link_from(self, source: Device) -> None:  # there is no link to any device
        """Nothing comes directly: each device has a context of its own."""


def each(function: Callable[[Any], Any], value: Any) -> Any:
    """The data of an op with several outputs is a tuple."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)


def checked(device: KernelDevice, family: str) -> dict[str, str]:
    """The family of kernels, if a device gets it wrong, and how."""
    device.fill_with_garbage()  # a kernel that leaves something out shows it
    wrong = difference(device, family, lambda region: device.variants(region.parts[0]))
    return {} if wrong is None else {family: wrong}


def tried(driver: Driver, check: str, number: int, dtypes: Set[DType]) -> Verdict:
    """The verdict on a driver, by `check(number, family)` in child processes for every family of kernels of these
    dtypes."""
    return driver.tried(check, [number], families(dtypes))
