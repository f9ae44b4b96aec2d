"""Who may run a region: devices, each in the precisions that are admitted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .device import Device
from .fuse import Region
from .memory import HOST
from .precision import Precision

Refusals = tuple[tuple[str, str], ...]
"""Devices that do not get a region, by name, and why."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run a region: on a device, in a precision."""

    device: Device
    precision: Precision = Precision.FULL

    def __str__(self) -> str:
        return self.device.name if self.precision is Precision.FULL else f"{self.device.name} in {self.precision.value}"


def candidates_for(region: Region, chain: Iterable[Device]) -> tuple[list[Candidate], Refusals]:
    """The ways to run a region, in the order of the chain, and the devices that cannot, with their reasons.

    Every precision below the inputs' own has to be admitted here.
    """
    found: list[Candidate] = []
    refused: list[tuple[str, str]] = []
    for device in chain:
        reason = refusal(device, region)
        if reason is None:
            found.append(Candidate(device))
        else:
            refused.append((device.name, reason))
    return found, tuple(refused)


def refusal(device: Device, region: Region) -> str | None:
    """Why a device cannot have a region: its capabilities, or its own word.

    What failed before plays no part here: that passes, and plans are kept. A step that runs looks at it.
    """
    if device.space != HOST:
        limits = device.limits
        for n in region.nodes:
            call = region.graph.calls[n]
            op = call.op
            if op.decomposition is not None and op.name not in limits.natives:
                return f"it has no {op.name} of its own"
            if op.kind not in limits.kinds:
                return f"it has no {op.kind.value}"
            for s in (*call.inputs, *call.outputs):
                if s.dtype not in limits.dtypes:
                    return f"it has no {s.dtype.name}"
    return device.supports(region)
