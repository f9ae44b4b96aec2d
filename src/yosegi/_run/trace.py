"""The trace: a record of every step that ran, of which the last are kept, and counts of all."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final

from .._tensor.environment import setting

log: Final = logging.getLogger("yosegi")
"""One line per placement (info), one per failure (warning). Silent unless the user sets up logging or YOSEGI_LOG."""

log.addHandler(logging.NullHandler())
_level = setting("YOSEGI_LOG")
if _level is not None:
    log.addHandler(logging.StreamHandler())
    log.setLevel(_level)


@dataclass(frozen=True, slots=True)
class Failure:
    """A device that was tried before, and what it said."""

    device: str
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """One step as it ran."""

    ops: str
    planned: str
    """The device the plan had for it."""
    device: str
    """The device it ran on."""
    milliseconds: float
    """From the start of its transfers until its launch returned; a device may still have been working then."""
    bytes_moved: int
    failures: tuple[Failure, ...] = ()
    start: float = 0.0
    """By `perf_counter`."""
    thread: str = ""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "ops": self.ops,
            "planned": self.planned,
            "device": self.device,
            "milliseconds": self.milliseconds,
            "bytes_moved": self.bytes_moved,
            "failures": [{"device": f.device, "kind": f.kind, "message": f.message} for f in self.failures],
        }


class Trace:
    """The last records, and how many steps have run on each device."""

    def __init__(self, length: int = 1000) -> None:
        self.records: deque[Record] = deque(maxlen=length)
        self.profiles: tuple[list[Record], ...] = ()
        """Lists that get every record. While there is one, no step is left out, and each waits for its device."""
        self._steps: Counter[str] = Counter()
        self._lock = Lock()

    def add(self, record: Record) -> None:
        """Note a step."""
        self.records.append(record)
        for records in self.profiles:
            records.append(record)
        with self._lock:
            self._steps[record.device] += 1

    def aside(self, record: Record) -> None:
        """Note work that is no step."""
        self.records.append(record)

    def failed(self, ops: str, device: str, failure: Exception) -> None:
        """Note a part of a step that did not get the code it was to get; the device ran it another way."""
        what = Failure(device, type(failure).__name__, str(failure))
        self.records.append(Record(ops, device, device, 0.0, 0, (what,)))
        log.warning("%s on %s: %s: %s", ops, device, what.kind, what.message)

    def steps(self) -> dict[str, int]:
        """How many steps have run where, leaving out plans that are a single step in host memory, and replays by `jit`
        of such as are one step on a device."""
        with self._lock:
            return dict(self._steps)

    def reset(self) -> None:
        """In a forked child: the lock may have been held by a thread that is not there."""
        self._lock = Lock()

    def clear(self) -> None:
        """Begin anew."""
        self.records.clear()
        with self._lock:
            self._steps.clear()


trace: Final = Trace()
