"""Who may run a region: devices, each in the precisions that are admitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from .device import Device
from .fuse import Region, is_checked, multiplies
from .memory import HOST
from .precision import IN_FULL, Policy, Precision
from .wide import widened

Refusals = tuple[tuple[str, str], ...]
"""Devices that do not get a region, by name, and why."""


@dataclass(frozen=True, slots=True, eq=False)  # kernels are looked up by it in every call: it is what it is
class Candidate:
    """A way to run a region: on a device, in a precision. Made by `of`, one object for each."""

    device: Device
    precision: Precision

    @classmethod
    def of(cls, device: Device, precision: Precision = Precision.FULL) -> Candidate:
        """The one of a device and a precision."""
        return _CANDIDATES.setdefault((id(device), precision), cls(device, precision))

    def __str__(self) -> str:
        return self.device.name if self.precision is Precision.FULL else f"{self.device.name} in {self.precision.value}"


_CANDIDATES: Final[dict[tuple[int, Precision], Candidate]] = {}
"""By the identity of devices, which they keep alive: whatever these say of equality and hashes."""


def candidates_for(
    region: Region, chain: Iterable[Device], policy: Policy = IN_FULL
) -> tuple[list[Candidate], Refusals]:
    """The ways to run a region, in the order of the chain, and the devices that cannot, with their reasons.

    A device that can run it in several precisions has them in the order of the policy, then its inputs' own, then
    float64, which is another region to it.
    """
    found: list[Candidate] = []
    refused: list[tuple[str, str]] = []
    others = _admitted(region, policy)
    wide = widened(region) if Precision.F64 in others else None
    if region.precision is not Precision.FULL:
        region = replace(region, precision=Precision.FULL)
    for device in chain:
        reason = refusal(device, region)
        if reason is not None:
            refused.append((device.name, reason))
            continue
        found += [Candidate.of(device, precision) for precision in others if _supports(device, region, precision)]
        found.append(Candidate.of(device))
        if wide is not None and refusal(device, wide) is None:
            found.append(Candidate.of(device, Precision.F64))
    return found, tuple(refused)


def _supports(device: Device, region: Region, precision: Precision) -> bool:
    has = precision in device.limits.precisions
    return has and device.supports(replace(region, precision=precision)) is None


def _admitted(region: Region, policy: Policy) -> Sequence[Precision]:
    """The precisions other than its own in which a region may be computed: fewer bits are for products."""
    if not policy.precisions or not is_checked(region):
        return ()
    if any(multiplies(call) for call in region.calls):
        return policy.precisions
    return [p for p in policy.precisions if p is Precision.F64]


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
