"""A tensor's values in memory: one logical buffer with replicas, and transfers by the cheapest route.

Nothing is copied between the host and a device that shares its memory. Some devices copy data directly from another
device. All other pairs go through the host. The route of each pair of memories is found once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Protocol

from ...errors import DeviceFailure, OutOfMemory, ValuesLost

HOST: Final = "host"
"""The name of main memory, where data is a NumPy array (or a tuple of them, for an op of several outputs)."""


class Buffer:
    """Values that will never change, in one memory or several.

    `data` is what kernels take in the memory named `space`, where the values were made. Replicas in other memories are
    added as they are needed. Values never change, so no replica is ever stale. A buffer is
    pinned if the user has put it, or one of its sources, into a device's memory: then work on it runs there.
    """

    __slots__ = ("__weakref__", "_replicas", "data", "depth", "is_pinned", "space")

    def __init__(self, data: Any, space: str = HOST, is_pinned: bool = False, depth: int = 0) -> None:
        self.data = data
        self.space = space
        self.is_pinned = is_pinned
        self.depth = depth
        """The length of the history of values that only a device has."""
        self._replicas: dict[str, Any] | None = None  # most buffers never have one

    def on(self, space: str) -> Any:
        """The data in a memory, or `None` if there is no replica."""
        if self.space == space:
            return self.data
        return None if self._replicas is None else self._replicas.get(space)

    def add(self, space: str, data: Any) -> None:
        """Note a replica."""
        if self._replicas is None:
            self._replicas = {}
        # A lost device's memory gets a new name, "device/number": replicas under the old ones are dead.
        device = space.partition("/")[0]
        for dead in [s for s in list(self._replicas) if s.partition("/")[0] == device]:
            self._replicas.pop(dead, None)
        self._replicas[space] = data

    def spaces(self) -> tuple[str, ...]:
        """The memories that have the values."""
        return (self.space, *(self._replicas or ()))

    def without(self, space: str) -> Buffer | None:
        """The buffer without a lost memory; `None` if no replica is left. Other threads may read the old object."""
        left = {s: self.on(s) for s in self.spaces() if s != space}
        if not left:
            return None
        home = HOST if HOST in left else next(iter(left))
        buffer = Buffer(left.pop(home), home, self.is_pinned and home != HOST)
        for other, data in left.items():
            buffer.add(other, data)
        return buffer


class Method(Enum):
    """The routes of a transfer."""

    ZERO_COPY = "zero-copy"
    COPY = "copy"
    PEER = "device to device"
    STAGED = "staged through the host"


class Endpoint(Protocol):
    """The methods of a device that transfers use."""

    space: str
    is_volatile: bool

    def from_host(self, array: Any) -> Any: ...
    def to_host(self, data: Any) -> Any: ...
    def link_from(self, source: Any) -> Callable[[Any], Any] | None: ...


@dataclass(slots=True)
class TransferCounts:
    """The transfers and bytes since the start, by method."""

    count: Counter[Method] = field(default_factory=Counter)
    nbytes: Counter[Method] = field(default_factory=Counter)


class Transfers:
    """The transfer manager.

    `endpoint` returns the device that works in a memory. `lost` is called when a memory no longer gives its values, and
    returns the exception to raise: this is the source's failure, never the target's.
    """

    def __init__(self, endpoint: Callable[[str], Endpoint], lost: Callable[[str, DeviceFailure], ValuesLost]) -> None:
        self._endpoint = endpoint
        self._lost = lost
        self.traffic = TransferCounts()
        self.method = lru_cache(maxsize=256)(self._method)

    def _method(self, source: str, target: str) -> Method:
        try:
            if HOST not in (source, target):
                return Method.STAGED if self._link(source, target) is None else Method.PEER
            device = self._endpoint(target if source == HOST else source)
        except DeviceFailure:
            return Method.COPY if HOST in (source, target) else Method.STAGED  # lost since
        return Method.COPY if device.is_volatile else Method.ZERO_COPY

    def _link(self, source: str, target: str) -> Callable[[Any], Any] | None:
        return self._endpoint(target).link_from(self._endpoint(source))

    def fetch(self, buffer: Buffer, target: str, nbytes: int) -> tuple[Any, int]:
        """The buffer's data in a memory, and how many bytes were copied for it. The replica is kept."""
        data = buffer.on(target)
        if data is not None:
            return data, 0
        # What the host has comes from there: it waits for no other device's work.
        source = HOST if buffer.on(HOST) is not None else buffer.space
        method = self.method(source, target)
        if method is Method.PEER:
            data = self._from_peer(buffer, source, target)
        if data is None:
            array = buffer.on(HOST) if source == HOST else self._from_device(buffer, source)
            data = array if target == HOST else self._endpoint(target).from_host(array)
            method = Method.STAGED if method is Method.PEER else method
        if target != HOST:
            buffer.add(target, data)
        moved = 0 if method is Method.ZERO_COPY else nbytes
        self.traffic.count[method] += 1
        self.traffic.nbytes[method] += moved
        return data, moved

    def _from_peer(self, buffer: Buffer, source: str, target: str) -> Any | None:
        """The data, copied directly from another device; `None` if the copy fails. It is unknown then which of the two
        devices failed; the copies through the host show it. Lack of memory is the target's failure."""
        try:
            link = self._link(source, target)
            return None if link is None else link(buffer.on(source))
        except OutOfMemory:
            raise
        except DeviceFailure:
            return None

    def _from_device(self, buffer: Buffer, source: str) -> Any:
        try:
            array = self._endpoint(source).to_host(buffer.on(source))
        except DeviceFailure as failure:
            array = buffer.on(HOST)  # another thread may have been faster
            if array is None:
                raise self._lost(source, failure) from failure
        buffer.add(HOST, array)
        return array
