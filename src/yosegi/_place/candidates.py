"""Candidates for a region: devices, each in the precisions that the policy admits.

`candidates_for` takes a region and the chain of devices, and returns the candidates with the reasons against the other
devices. `CandidateTable` calls it for a placement, and `Step` when a candidate has failed and another must take over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from .._graph.float64 import widened
from .._run.device import Device
from .._run.memory import HOST
from .._schedule.fuse import Region, attends, connection_of, is_composite
from .._tensor.precision import IN_FULL, Policy, Precision
from .._tune.certificate import precisions_for

Refusals = tuple[tuple[str, str], ...]
"""Devices without a candidate, by name, with the reason."""


@dataclass(frozen=True, slots=True, eq=False)  # identity makes the look-up of kernels fast
class Candidate:
    """A device and a precision in which it can run a region. `of` makes one object for each pair."""

    device: Device
    precision: Precision

    @classmethod
    def of(cls, device: Device, precision: Precision = Precision.FULL) -> Candidate:
        """Return the candidate of a device and a precision."""
        return _CANDIDATES.setdefault((id(device), precision), cls(device, precision))

    def __str__(self) -> str:
        return self.device.name if self.precision is Precision.FULL else f"{self.device.name} in {self.precision.value}"


_CANDIDATES: Final[dict[tuple[int, Precision], Candidate]] = {}
"""Candidates by the identity of their devices, which they keep alive, and by precision."""


def candidates_for(
    region: Region, chain: Iterable[Device], policy: Policy = IN_FULL
) -> tuple[list[Candidate], Refusals]:
    """The candidates for a region, in the order of the chain, and the refusals of the other devices.

    A device that can run it in several precisions has them in the order of `precisions_for`.
    """
    found: list[Candidate] = []
    refused: list[tuple[str, str]] = []
    precisions = precisions_for(region, policy)
    in_float64 = widened(region) if Precision.F64 in precisions else None
    if region.precision is not Precision.FULL:
        region = replace(region, precision=Precision.FULL)
    for device in chain:
        reason = refusal(device, region)
        if reason is None and in_float64 is not None and Precision.FULL not in precisions:
            reason = refusal(device, in_float64)  # only float64 is admitted
        if reason is not None and not attends(region.calls[0]):  # attention may be native in fewer bits only
            refused.append((device.name, reason))
            continue
        able = [p for p in precisions if _supports(device, region, in_float64, p, reason)]
        found += [Candidate.of(device, p) for p in able]
        if not able:
            refused.append((device.name, reason or "not in an admitted precision"))
    return found, tuple(refused)


def _supports(
    device: Device, region: Region, in_float64: Region | None, precision: Precision, reason: str | None
) -> bool:
    """True if a device supports a region in a precision; `reason` is its refusal in full precision."""
    if precision is Precision.FULL:
        return reason is None
    if precision is Precision.F64:
        return in_float64 is not None and refusal(device, in_float64) is None
    if precision not in device.limits.precisions or (is_composite(region) and not _is_native(device, region)):
        return False
    return device.supports(replace(region, precision=precision)) is None


def _is_native(device: Device, region: Region) -> bool:
    return region.calls[0].op.name in device.limits.natives


def refusal(device: Device, region: Region) -> str | None:
    """The reason why a device does not support a region, by its capabilities or by `supports`; `None` if it does.

    Earlier failures do not count: they expire, and plans are kept. A running step looks at them.
    """
    for n in region.nodes:
        connection = connection_of(region.graph.calls[n])
        if connection is not None and connection.device is not device:
            return f"its ranks exchange it by {connection}"
    if device.space != HOST:
        limits = device.limits
        for n in region.nodes:
            call = region.graph.calls[n]
            op = call.op
            if op.decomposition is not None and op.name not in limits.natives:
                return f"it has no {op.name} of its own"
            if op.kind not in limits.kinds and connection_of(call) is None:
                return f"it has no {op.kind.value}"
            for s in (*call.inputs, *call.outputs):
                if s.dtype not in limits.dtypes:
                    return f"it has no {s.dtype.name}"
    return device.supports(region)
