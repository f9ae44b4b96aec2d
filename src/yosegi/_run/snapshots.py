"""Histories of values in a device's memory, and the snapshots that end them.

A value that only a device has keeps its history: the nodes from which it can be computed again after the device is
lost. A snapshot copies the value to the host and ends the history. A thread of its own takes it beside the program's
work, and taking snapshots takes at most a small share of the time.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock, RLock, Thread
from time import perf_counter
from typing import Any, Final

from .._tensor.node import Node, drop_history
from .device import Saves, owner_of
from .forks import in_forked_child
from .memory import HOST, Buffer
from .run import to_host
from .shutdown import join
from .trace import Record, log, trace


@dataclass(frozen=True, slots=True)
class HistoryPolicy:
    """The lengths at which histories end. The length counts the evaluations that a history holds."""

    kept: int = 4
    """Histories shorter than this are kept as they are."""
    long: int = 32
    """From this length on, a snapshot is taken as soon as one is due."""
    longest: int = 128
    """At this length the program waits for a snapshot."""
    memory_share: int = 8
    """The results in a history take at most one part in so many of a device's memory."""
    bytes_per_evaluation: int = 8 << 20
    """So many bytes from the host count as one more evaluation: the history holds them."""
    snapshot_share: float = 0.02
    """The share of the time that taking snapshots may take."""


_POLICY: Final = HistoryPolicy()


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
                self._next = perf_counter() + (perf_counter() - start) / _POLICY.snapshot_share
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
            self._next = perf_counter() + seconds / _POLICY.snapshot_share
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


def depth_after(buffers: Iterable[Buffer | None], moved: int = 0) -> int:
    """The length of the history of values that are made of these buffers and of `moved` bytes from the host."""
    return 1 + max([b.depth for b in buffers if b is not None], default=0) + moved // _POLICY.bytes_per_evaluation


def shorten(
    nodes: Sequence[Node], buffers: Sequence[Buffer], depth: int, source: Node | None, *, holds: bool = True
) -> None:
    """Copy values that only a device has to the host, if their history has become long, and end the history.

    Until the host has the values, the history is needed: the device may be lost, or may report later that the work
    has failed. The program waits for the copies only if the history has become very long. `source` is the node whose
    outputs all nodes are, if there is one; it gets the values in their place. `holds` is False if the history holds
    nothing in the device's memory.
    """
    if depth < _POLICY.kept:
        return
    space = next(b.space for b in buffers if b.space is not HOST)
    device = owner_of(space)
    if device is None or not device.is_volatile:  # bringing values to the host costs nothing
        for node, buffer in zip(nodes, buffers, strict=True):
            if buffer.space is not HOST:
                to_host(buffer)
                buffer.depth = 0
                _keep_values([node], [buffer], [buffer.on(HOST)])
        return
    few, most = _history_limits(space, sum(n.spec.nbytes for n in nodes) if holds else 0)
    if depth >= most:
        snapshots.wait()
    elif depth < few or not snapshots.is_due:
        return
    keep = partial(_keep_values, nodes, buffers) if source is None else partial(_keep_outputs, source)
    if snapshots.begin(buffers, sum(n.spec.nbytes for n in nodes), keep):
        for buffer in buffers:
            buffer.depth = 0


@lru_cache(1024)  # a memory's size does not change; when it is lost, it gets a new name
def _history_limits(space: str, nbytes: int) -> tuple[int, int]:
    """The length from which a snapshot is taken if one is due, and the length from which it is taken in any case.

    No history of such results may hold more than a share of the device's memory.
    """
    device = owner_of(space)
    room = _POLICY.longest if device is None else device.memory()[1] // _POLICY.memory_share // max(1, nbytes)
    return max(2, min(_POLICY.long, room)), max(2, min(_POLICY.longest, room))


HISTORY_LOCK: Final = RLock()
"""Held while the history of a value ends, and while a value is found to be lost."""


def _keep_values(nodes: Sequence[Node], buffers: Sequence[Buffer], arrays: Sequence[Any]) -> None:
    """Give nodes their values on the host, and end their history."""
    with HISTORY_LOCK:
        for node, buffer, array in zip(nodes, buffers, arrays, strict=True):
            if node.buffer is buffer and buffer.space is not HOST:  # neither lost nor computed again meanwhile
                kept = Buffer(buffer.data, buffer.space, buffer.is_pinned)
                kept.add(HOST, array)
                node.buffer = kept
                drop_history(node)


def _keep_outputs(source: Node, arrays: Sequence[Any]) -> None:
    """Give a node the values of its outputs on the host, and end its history."""
    with HISTORY_LOCK:
        if source.buffer is None:
            source.buffer = Buffer(tuple(arrays) if len(arrays) > 1 else arrays[0])
        drop_history(source)
