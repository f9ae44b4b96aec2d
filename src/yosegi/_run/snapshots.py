"""Snapshots for survival: values that only a device has are copied to the host now and then, beside the program's work.

A value in a device's memory keeps its history, so that it can be made again after the device is lost. A snapshot ends
that history: from then on, the host has the values. A thread of its own takes it, while the program goes on; the device
makes it possible that no work waits for the copies. Taking snapshots takes at most a small share of the time.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from threading import Lock, Thread
from time import perf_counter
from typing import Any, Final

from .device import Saves, owner_of
from .forks import in_forked_child
from .memory import HOST, Buffer
from .shutdown import join
from .trace import Record, log, trace

_SHARE: Final = 0.02
"""The share of the time that taking snapshots may take."""


class Snapshots:
    """The snapshots of this process. One is taken at a time."""

    def __init__(self) -> None:
        self._thread: Thread | None = None
        self._next = 0.0
        self._count = self._nbytes = 0
        self._seconds = 0.0
        self._lock = Lock()

    @property
    def is_due(self) -> bool:
        """True if a snapshot may begin: none is under way, and enough time has passed since the last ones."""
        return self._thread is None and perf_counter() >= self._next

    def begin(self, buffers: Sequence[Buffer], nbytes: int, keep: Callable[[list[Any]], None]) -> bool:
        """Begin to copy values to the host. `keep` gets the arrays in another thread, unless that fails.

        Returns False if the snapshot cannot begin: another is under way, or a device refuses.
        """
        with self._lock:
            if self._thread is not None:
                return False
            start = perf_counter()
            by_space: dict[str, list[int]] = {}
            for n, buffer in enumerate(buffers):
                by_space.setdefault(buffer.space, []).append(n)
            try:
                parts = [(at, _saving(space, [buffers[n].data for n in at])) for space, at in by_space.items()]
            except Exception as failure:  # whatever a device raises: the history stays as it is
                log.info("no snapshot: %s: %s", type(failure).__name__, str(failure))
                self._next = perf_counter() + (perf_counter() - start) / _SHARE
                return False
            where = "+".join(sorted({space.partition("/")[0] for space in by_space if space != HOST}))
            self._thread = Thread(target=self._take, args=(parts, where, nbytes, keep, start), daemon=True)
            try:
                self._thread.start()  # while others wait for the lock: who sees a thread may join it
            except BaseException as failure:
                self._thread = None
                if not isinstance(failure, RuntimeError):
                    raise
                log.info("no snapshot: %s", str(failure))  # the system gives no more threads
                return False
        return True

    def _take(
        self, parts: list[tuple[list[int], Callable[[], list[Any]]]], where: str, nbytes: int,
        keep: Callable[[list[Any]], None], start: float,
    ) -> None:  # fmt: skip
        try:
            found = {n: array for at, copied in parts for n, array in zip(at, copied(), strict=True)}
            keep([found[n] for n in range(len(found))])
            seconds = perf_counter() - start
            self._count += 1
            self._nbytes += nbytes
            trace.aside(Record("snapshot for survival", where, where, seconds * 1e3, nbytes, start=start))
        except Exception as failure:
            log.info("a snapshot failed: %s: %s", type(failure).__name__, str(failure))
        finally:
            parts.clear()
            seconds = perf_counter() - start
            self._seconds += seconds
            self._next = perf_counter() + seconds / _SHARE
            self._thread = None

    def wait(self) -> None:
        """Wait until no snapshot is under way."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def statistics(self) -> dict[str, float]:
        """The number of snapshots since the start, their bytes, and the seconds that they took beside other work."""
        return {"count": self._count, "bytes": self._nbytes, "seconds": self._seconds}

    def reset(self) -> None:
        """In a forked child: the thread is not there, and the lock may have been held."""
        self._lock, self._thread = Lock(), None

    def close(self) -> None:
        """At the end of the process: wait a moment for the one that is under way."""
        thread = self._thread
        if thread is not None:
            join([thread])


def _saving(space: str, data: list[Any]) -> Callable[[], list[Any]]:
    """A function that gives data as arrays of the host, to be called in another thread."""
    if space == HOST:
        return lambda: data
    device = owner_of(space)
    if device is None:
        raise LookupError(f"the memory {space} is gone")
    if isinstance(device, Saves) and tuple not in map(type, data):
        return device.saving(data)
    return lambda: list(map(device.to_host, data))


snapshots: Final = Snapshots()
atexit.register(snapshots.close)
in_forked_child(snapshots.reset)
