"""The channel of a rank: its communications, one after another, while the rank computes.

`start` puts a communication in line, and `wait` returns its result. A thread runs them in the order of their starts, so
the order is the same on all ranks. A rank that waits for a communication that has not begun runs it itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from threading import Condition, Thread, current_thread
from time import perf_counter
from typing import Any, Final, final
from weakref import WeakKeyDictionary

from .._run.trace import Record, trace
from .communicator import BACKGROUND, Communicator
from .runtime import current

_IDLE: Final = 1.0
"""Seconds after which a thread without work ends."""
_NETWORK: Final = "network"
"""The row of communications in a profile."""


@final
class _Job:
    """A communication. It holds its arrays until it is done."""

    def __init__(self, name: str, work: Callable[[], Any]) -> None:
        self.name = name
        self.work: Callable[[], Any] | None = work
        self.made: Any = None
        self.error: BaseException | None = None

    def run(self, failed: BaseException | None) -> None:
        """Communicate, unless one before it has failed. The rank raises the error when it waits."""
        begin = perf_counter()
        try:
            if failed is not None:
                raise failed
            assert self.work is not None
            self.made = self.work()
        except BaseException as error:
            self.error = error
        milliseconds = (perf_counter() - begin) * 1e3
        trace.add(Record(self.name, _NETWORK, _NETWORK, milliseconds, 0, (), begin, current_thread().name))


@final
class Channel:
    """The communications of one rank.

    Examples
    --------
    >>> channel = Channel("rank 0")
    >>> ticket = channel.start("sum", lambda: 1 + 1)
    >>> channel.run("product", lambda: 2 * 3), channel.wait(ticket)
    (6, 2)
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = Condition()
        self._line: deque[_Job] = deque()
        self._running: _Job | None = None
        self._failed: BaseException | None = None
        """The error of a communication, until the rank raises it: nothing is sent behind it."""
        self._started: dict[int, _Job] = {}
        """The communications that nobody has waited for, by ticket."""
        self._tickets = count()
        self._has_thread = False
        self._is_awaited = False
        """True while the rank waits for the thread."""

    def start(self, name: str, work: Callable[[], Any], *, is_first: bool = False) -> int:
        """Put a communication in line. Returns a ticket for `wait`.

        The first communication of a plan drops the results of a plan that failed before it waited for them.
        """
        with self._changed:
            if is_first:
                self._started.clear()
                self._failed = None
            ticket = next(self._tickets)
            self._started[ticket] = self._put(name, work)
            if not self._has_thread:
                self._has_thread = True
                Thread(target=self._serve, name=f"communication of {self._name}", daemon=True).start()
            self._changed.notify_all()
        return ticket

    def wait(self, ticket: int) -> Any:
        """The result of a communication. Raises its error, and the error of one before it."""
        return self._finished(self._started.pop(ticket))

    def run(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of a communication that runs now, after all that were started."""
        with self._changed:
            job = self._put(name, work) if self._running or self._line or self._failed else None
        return work() if job is None else self._finished(job)

    def _put(self, name: str, work: Callable[[], Any]) -> _Job:
        job = _Job(name, work)
        self._line.append(job)
        return job

    def _finished(self, job: _Job) -> Any:
        with self._changed:
            while job.work is not None:
                if not self._ran_next():
                    self._is_awaited = True
                    self._changed.wait()
            self._is_awaited = False
            if job.error is not None:
                self._failed = None
                raise job.error
        return job.made

    def _ran_next(self) -> bool:
        """Run the first in line, unless another thread is at it, or none is there. The lock is held."""
        if self._running is not None or not self._line:
            return False
        job = self._running = self._line.popleft()
        self._changed.release()
        try:
            job.run(self._failed)
        finally:
            self._changed.acquire()
            self._running = job.work = None
            self._failed = job.error
            self._changed.notify_all()
        return True

    def _serve(self) -> None:
        BACKGROUND.is_computing = lambda: not self._is_awaited
        with self._changed:
            while self._ran_next() or self._line or self._changed.wait(_IDLE):
                if self._running is not None:
                    self._changed.wait()
            self._has_thread = False


_channels: Final[WeakKeyDictionary[Communicator, Channel]] = WeakKeyDictionary()


def channel() -> Channel:
    """The channel of this rank."""
    ranks = current()
    found = _channels.get(ranks)
    return found or _channels.setdefault(ranks, Channel(f"rank {ranks.members[ranks.rank]}"))
