"""The trace: records of the last steps that ran, and counts of all steps."""

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
    """A device that was tried before, and its error."""

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
    """Milliseconds from the start of its transfers until its launch returned. The device may still work then."""
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
        """Lists that get every record. While there is one, every step is recorded and waits for its device."""
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
        """Record work that is not a step."""
        self.records.append(record)

    def failed(self, ops: str, device: str, failure: Exception) -> None:
        """Record that a part of a step did not get its intended code; the device ran another variant."""
        what = Failure(device, type(failure).__name__, str(failure))
        self.records.append(Record(ops, device, device, 0.0, 0, (what,)))
        log.warning("%s on %s: %s: %s", ops, device, what.kind, what.message)

    def steps(self) -> dict[str, int]:
        """The number of steps on each device. Plans of a single step in host memory, and replays by `jit` of plans of a
        single step, are not counted."""
        with self._lock:
            return dict(self._steps)

    def reset(self) -> None:
        """Replace the lock in a forked child: a thread that does not exist there may hold it."""
        self._lock = Lock()

    def clear(self) -> None:
        """Begin anew."""
        self.records.clear()
        with self._lock:
            self._steps.clear()


trace: Final = Trace()
