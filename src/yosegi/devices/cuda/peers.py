"""How the GPUs of several ranks exchange data: by NCCL where each rank has a GPU of its own, else through memory that
processes of one host share. The ranks decide together, and try the way before they use it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from ..._run.device import Ranks
from ..._tensor.dtype import DType, uint8
from ..._tensor.role import Traffic
from ...errors import DeviceFailure, Unsupported
from .launch import Queue
from .nccl import NCCL, library
from .shared_memory import SharedMemory
from .traffic import Table, everything

if TYPE_CHECKING:
    from .device import CUDADevice

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_TRIED: Final = 64
"""Bytes that each rank sends to all when an engine is tried."""


class Peers(Protocol):
    """An engine that exchanges data between the GPUs of a group of ranks."""

    stands_alone: bool
    """True if the host takes part, so that an exchange is no launch that can be recorded."""

    def exchange(self, table: Table) -> Callable[..., None]:
        """An exchange of bytes, as a function of the source, the target, and values that are made before."""

    def native(self, traffic: Traffic, count: int, dtype: DType) -> Callable[..., None] | None:
        """A collective of the engine's own, as such a function; `None` if it has none with the expected results."""


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """The connection of a device to those of other ranks."""

    device: CUDADevice
    peers: Peers

    def __str__(self) -> str:
        return f"{self.peers} on {self.device.name}"


def connected(queue: Queue, ranks: Ranks) -> Peers:
    """The best engine that works between all ranks. Raises `Unsupported` on all of them if there is none."""
    known = _described(queue, ranks)
    reasons = []
    for name, make, refusal in (
        ("NCCL", NCCL, _against_nccl(known)),
        ("CUDA IPC", SharedMemory, _against_sharing(known)),
    ):
        peers: Any = None
        if refusal is None:
            peers, refusal = _tried(make, queue, ranks)
        if refusal is None:
            return peers  # type: ignore[no-any-return]
        reasons.append(f"no {name}: {refusal}")
    raise Unsupported("; ".join(reasons))


def _described(queue: Queue, ranks: Ranks) -> list[dict[str, str]]:
    """For each rank its host, its GPU, and why it has no NCCL."""
    try:
        library()
        reason = ""
    except DeviceFailure as failure:
        reason = str(failure)
    boot = _BOOT.read_text(encoding="utf-8").strip() if _BOOT.exists() else ""
    own = {
        "host": f"{socket.gethostname()} {boot}",
        "gpu": str(queue.runtime.deviceGetPCIBusId(queue.number)),
        "nccl": reason,
    }
    texts = ranks.all_gather(np.frombuffer(json.dumps(own).encode(), np.uint8))
    return [json.loads(text.tobytes()) for text in texts]


def _against_nccl(known: list[dict[str, str]]) -> str | None:
    missing = next((f"rank {n}: {each['nccl']}" for n, each in enumerate(known) if each["nccl"]), None)
    if missing is None and len({(each["host"], each["gpu"]) for each in known}) < len(known):
        return "several ranks share a GPU"
    return missing


def _against_sharing(known: list[dict[str, str]]) -> str | None:
    return None if len({each["host"] for each in known}) == 1 else "the ranks are on several hosts"


def _tried(make: Any, queue: Queue, ranks: Ranks) -> tuple[Any, str | None]:
    """An engine that has sent some bytes between all ranks, or the reason of a rank against it."""
    peers, reason = None, ""
    try:
        peers = make(queue, ranks)
    except (DeviceFailure, RuntimeError) as error:
        reason = f"{type(error).__name__}: {error}"
    refusal = _first(reason, ranks)
    if refusal is None:
        assert peers is not None
        try:
            reason = _difference(peers, queue, ranks)
        except (DeviceFailure, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}"
        refusal = _first(reason, ranks)
    return peers, refusal


def _first(reason: str, ranks: Ranks) -> str | None:
    """The first reason of any rank."""
    reasons = [each.tobytes().decode() for each in ranks.all_gather(np.frombuffer(reason.encode(), np.uint8))]
    return next((f"rank {n}: {each}" for n, each in enumerate(reasons) if each), None)


def _difference(peers: Peers, queue: Queue, ranks: Ranks) -> str:
    """Why an engine is no good, "" if all ranks get what all have sent."""
    memory, sizes = queue.memory, [_TRIED] * ranks.size
    exchange = peers.exchange(everything("init", ranks.rank, sizes))
    for run in range(3):
        source = memory.from_host(np.full(_TRIED, 16 * run + ranks.rank, np.uint8))
        target = memory.new((_TRIED * ranks.size,), uint8)
        exchange(source, target)
        expected = np.repeat(np.arange(ranks.size, dtype=np.uint8) + np.uint8(16 * run), _TRIED)
        if not np.array_equal(memory.to_host(target), expected):
            return "bytes that were sent did not arrive"
    return ""
