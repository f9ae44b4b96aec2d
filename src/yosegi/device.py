"""What a device is, and which ones this machine has.

A device lives in a folder of its own under `devices/`, which nothing else names. The folder's `discover()` gives the
devices it finds, or one `Absent` with the reason; each says itself where in the machine's chain it stands.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from .dtype import DType
from .errors import ArgumentError
from .fuse import Region

Kernel = Callable[..., tuple[Any, ...]]
"""A compiled region: the data of its inputs in, the data of its outputs out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can hold and compute."""

    dtypes: frozenset[DType]
    max_dimensions: int | None = None


class Device(Protocol):
    """One device of this machine."""

    name: str
    rank: int
    """Its place in the chain: lower is asked first. The last one, which can do everything, has the highest."""
    space: str
    """The memory its kernels take their data from and leave it in."""
    description: str
    limits: Limits

    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""

    def compile(self, region: Region) -> Kernel:
        """Code for a region that it supports."""

    def memory(self) -> tuple[int, int]:
        """Bytes free and bytes in all."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Absent:
    """A device that this machine could have, and why it does not."""

    name: str
    reason: str


@cache
def discovered() -> tuple[Device | Absent, ...]:
    """All that the folders under `devices/` found, or did not find, in the order of the chain."""
    package = importlib.import_module("yosegi.devices")
    found: list[Device | Absent] = []
    for module in pkgutil.iter_modules(package.__path__):
        discover: Callable[[], Iterable[Device | Absent]] = importlib.import_module(
            f"yosegi.devices.{module.name}"
        ).discover
        found.extend(discover())
    return tuple(sorted(found, key=lambda d: (isinstance(d, Absent), getattr(d, "rank", 0))))


@cache
def devices() -> tuple[Device, ...]:
    """The chain of this machine: the first that can run an operation gets it; the last can run all.

    >>> import yosegi as ys
    >>> ys.devices()[-1].name
    'cpu'
    """
    return tuple(d for d in discovered() if not isinstance(d, Absent))


def device_named(name: Any) -> Device:
    """A present device, by name; raises with the list of those present, and why that one is absent."""
    wanted = str(name)
    for device in devices():
        if wanted in (device.name, "auto"):
            return device
    present = ", ".join(d.name for d in devices())
    reason = next((f": {d.reason}" for d in discovered() if isinstance(d, Absent) and d.name == wanted), "")
    raise ArgumentError(f"[device] expected one of {present}, got {wanted!r}{reason}")


def first_supporting(region: Region, chain: Sequence[Device]) -> tuple[Device, tuple[tuple[str, str], ...]]:
    """The first device of the chain that can run the region, and those that cannot with their reasons."""
    refused: list[tuple[str, str]] = []
    for device in chain:
        reason = device.supports(region)
        if reason is None:
            return device, tuple(refused)
        refused.append((device.name, reason))
    raise AssertionError(f"no device runs {region}; the last of a chain must run everything: {refused}")
