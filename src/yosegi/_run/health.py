"""Known failures: regions that a device failed on, and devices that failed altogether.

Entries expire, so that a device that has recovered is used again. An unsupported region never expires.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from .._schedule.fuse import Region
from ..errors import DeviceFailure, DeviceLost, OutOfMemory, Unsupported

EXPIRES_AFTER: Final = 60.0  # seconds


@dataclass(frozen=True, slots=True)
class Entry:
    """A reason, and the time until which it holds."""

    reason: str
    until: float


class Health:
    """The quarantine. Keys are a device's name, or a device's name and a region's key."""

    def __init__(self) -> None:
        self._entries: dict[Any, Entry] = {}
        self._lock = Lock()

    def note(self, device: str, region: Region | None, failure: DeviceFailure) -> None:
        """Remember a failure, for a time that depends on its class. Lack of memory is not remembered."""
        if isinstance(failure, OutOfMemory):
            return
        key = device if region is None or isinstance(failure, DeviceLost) else (device, region.key())
        until = float("inf") if isinstance(failure, Unsupported) else time.monotonic() + EXPIRES_AFTER
        with self._lock:
            self._entries[key] = Entry(f"{type(failure).__name__}: {failure}", until)

    def reason_against(self, device: str, region: Region) -> str | None:
        """Why this device should not be asked for this region now, or `None`."""
        if not self._entries:
            return None
        now = time.monotonic()
        for key in (device, (device, region.key())):
            entry = self._entries.get(key)
            if entry is not None:
                if entry.until > now:
                    return entry.reason
                with self._lock:
                    self._entries.pop(key, None)
        return None

    def reset(self) -> None:
        """Replace the lock in a forked child: a thread that does not exist there may hold it."""
        self._lock = Lock()

    def clear(self) -> None:
        """Forget everything: every device gets a new chance."""
        with self._lock:
            self._entries.clear()


health: Final = Health()
