"""What a device is, and which ones this machine has.

A device lives in a folder of its own under `devices/`, which nothing else names. The folder's `discover()` gives the
devices it finds, or `Absent` with the reason; each says itself where in the machine's chain it stands.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any, Protocol

from .dtype import DType
from .errors import ArgumentError
from .fuse import Region
from .memory import HOST
from .op import OpKind
from .options import DEVICE_CHECKS
from .precision import Precision
from .speed import Speed

Kernel = Callable[..., tuple[Any, ...]]
"""A compiled region: the data of its inputs in, the data of its outputs out, all in the device's space.

It may return before the work is done; `Device.to_host` and `Device.synchronize` wait for it.
"""

Link = Callable[[Any], Any]
"""Takes the data of another device, and gives the same in a device's own space.

It may return before the data is there, and before the work that makes it is done: both devices keep the order.
"""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can hold and compute: the capabilities by which work is routed."""

    dtypes: frozenset[DType]
    kinds: frozenset[OpKind]
    """The operation classes it has anything for; `supports` decides on each region."""
    natives: frozenset[str] = frozenset()
    """The composite ops it has a version of its own of: it gets these whole, and any others in parts."""
    compiles_slowly: bool = False
    """Whether another device should serve while it compiles."""
    prior: Speed | None = None
    """How fast it is taken to be until it is measured; `None` for a device of which nothing special is known."""
    precisions: Set[Precision] = frozenset()
    """The precisions below the inputs' own in which it can compute products, where that is faster there. A device that
    has to find out may do so when somebody looks."""


class Device(Protocol):
    """One device of this machine.

    Its methods raise a `DeviceFailure` of the right class when the device cannot, and nothing else.
    """

    name: str
    rank: int
    """Its place in the chain: lower is asked first. The last one, which can do everything, has the highest."""
    space: str
    """The memory its kernels take their data from and leave it in; devices that share memory share the name.

    When the device is lost the runtime gives its memory a new name: nothing finds the old replicas any more.
    """
    is_gpu: bool
    is_volatile: bool
    """Whether what is in its memory is gone when the device is."""
    coalesces: bool
    """Whether neighbouring regions are better compiled as one unit: then a call costs a launch, however large it is."""
    limits: Limits

    @property
    def identity(self) -> str:
        """Its hardware, its driver and the libraries it works through: what was measured of it holds for these. Empty
        for a device of which nothing should be kept."""

    @property
    def description(self) -> str:
        """What it is, in a line."""

    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""

    def compile(self, region: Region) -> Kernel:
        """Code for a region that it supports."""

    def from_host(self, array: Any) -> Any:
        """An array that nobody will write to any more, as data in the device's space; the same memory if it can be."""

    def to_host(self, data: Any) -> Any:
        """Data in the device's space as a host array, when it is there; the same memory if it can be."""

    def link_from(self, source: Device) -> Link | None:
        """How it takes data directly out of another device's memory; `None` where that goes through the host."""

    def synchronize(self) -> None:
        """Wait until all work given to it is done."""

    def memory(self) -> tuple[int, int]:
        """Bytes free and bytes in all."""

    def trim(self) -> int:
        """Give back memory that is kept for reuse; how many bytes that were."""

    def statistics(self) -> dict[str, int | None]:
        """What it knows of the memory it gave out: bytes in use, kept for reuse, at most in use since it was trimmed
        (`peak`), the limit."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Absent:
    """A device that this machine could have, and why it does not."""

    name: str
    reason: str


_found: list[tuple[Device | Absent, ...]] = []
_looking = RLock()


def discovered() -> tuple[Device | Absent, ...]:
    """All that the folders under `devices/` found, or did not find, in the order of the chain.

    They are looked for once, by whoever comes first: two devices of one name would not know each other's memory.
    """
    if not _found:
        with _looking:
            if not _found:
                _found.append(_looked_for())
    return _found[0]


def _looked_for() -> tuple[Device | Absent, ...]:
    package = importlib.import_module("yosegi.devices")
    found: list[Device | Absent] = []
    for module in pkgutil.iter_modules(package.__path__):
        try:
            discover: Callable[[], Iterable[Device | Absent]]
            discover = importlib.import_module(f"yosegi.devices.{module.name}").discover
            found.extend(discover())
        except Exception as error:  # whatever a driver does, the other devices are there
            found.append(Absent(module.name, f"looking for it failed: {type(error).__name__}: {error}"))
    if os.environ.get("YOSEGI_DISABLE_GPU") == "1":
        disabled = "a GPU, and YOSEGI_DISABLE_GPU=1 is set"
        found = [Absent(d.name, disabled) if not isinstance(d, Absent) and d.is_gpu else d for d in found]
    return tuple(sorted(found, key=lambda d: (isinstance(d, Absent), getattr(d, "rank", 0))))


@cache
def devices() -> tuple[Device, ...]:
    """The chain of this machine: the first that can run an operation gets it; the last can run all.

    >>> import yosegi as ys
    >>> ys.devices()[-1].name
    'cpu'
    """
    return tuple(d for d in discovered() if not isinstance(d, Absent))


def owner_of(space: str) -> Device | None:
    """The device that works in a memory; `None` if that is gone."""
    return next((d for d in devices() if d.space == space), None)


def is_linked(source: str, target: str) -> bool:
    """Whether what is in one memory gets to another without the host."""
    giver, taker = owner_of(source), owner_of(target)
    return giver is not None and taker is not None and taker.link_from(giver) is not None


def host_device() -> Device:
    """The last device of the chain: it computes in host memory, and can do everything."""
    return next(d for d in reversed(devices()) if d.space == HOST)


@cache
def chain_named(name: str) -> tuple[Device, ...]:
    """The devices that a name stands for, in the order in which they are asked.

    "auto" is the whole chain, "a:0" one device, "a:0+b:0" a device with the one that takes what it cannot do. The host
    ends every chain: work never stops because a device cannot do something.
    """
    chosen = devices() if name == "auto" else tuple(device_named(part) for part in name.split("+"))
    return chosen if chosen[-1] is host_device() else (*chosen, host_device())


def device_named(name: Any) -> Device:
    """A present device, by name; raises with the list of those present, and why that one is absent."""
    wanted = str(name)
    for device in devices():
        if device.name in (wanted, f"{wanted}:0"):
            return device
    present = ", ".join(d.name for d in devices())
    reason = next((f": {d.reason}" for d in discovered() if isinstance(d, Absent) and d.name.startswith(wanted)), "")
    raise ArgumentError(f"[device] expected one of {present}, got {wanted!r}{reason}")


def _after_fork() -> None:
    """In a forked child: the thread that looked for devices is not there."""
    global _looking
    _looking = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

DEVICE_CHECKS.append(chain_named)
