"""Slow compilers at work in the background, while another device serves.

One thread does it, and is there only when it is needed. What runs once is never compiled: a program whose shapes
change with every step would keep the compiler busy for nothing. When the process ends, the job at hand is finished
(compilers do not survive being cut off) and the others are dropped.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition, Event, Lock, Thread, local
from typing import Final, Generic, TypeVar

from .errors import NotReady

T = TypeVar("T")

_LINE: Final = 16  # jobs that may wait: of more, most would not be needed any more when their turn comes


class Job(Generic[T]):
    """Something to be made once, by whichever thread comes first."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._lock = Lock()
        self._done = Event()
        self._made: T | None = None
        self._failure: BaseException | None = None
        self._asked = False
        self.in_line = False

    @property
    def is_done(self) -> bool:
        """Whether it has been made, or could not be."""
        return self._done.is_set()

    def result(self) -> T:
        """What was made, or the exception that came instead; made here and now if nobody has begun."""
        self.run()
        if self._failure is not None:
            raise self._failure
        return self._made  # type: ignore[return-value]

    def result_if_ready(self) -> T:
        """The same, if it is done. Otherwise `NotReady`; from the second time on, the job is in the background."""
        if self.is_done:
            return self.result()
        if not self._asked:
            self._asked = True
            raise NotReady("compiled in the background once it runs again")
        raise NotReady("compiling in the background" if background.add(self) else "many wait to be compiled before it")

    def run(self) -> None:
        """Do it, or wait for the thread that does."""
        with self._lock:
            if self._make is None:
                return
            try:
                self._made = self._make()
            except BaseException as failure:
                self._failure = failure
            self._make = None
            self._done.set()


class _Thread(local):
    """What belongs to one thread."""

    only_ready = False


_thread: Final = _Thread()


@contextmanager
def only_ready() -> Iterator[None]:
    """In this thread, let everything that has to be compiled or measured first raise `NotReady` instead."""
    before, _thread.only_ready = _thread.only_ready, True
    try:
        yield
    finally:
        _thread.only_ready = before


def check_ready(what: str) -> None:
    """Raise `NotReady` if this thread is to wait for nothing."""
    if _thread.only_ready:
        raise NotReady(f"{what} would take a while")


class Background:
    """The line of jobs, and the thread that does them."""

    def __init__(self) -> None:
        self.reset()
        atexit.register(self.close)

    def reset(self) -> None:
        """Nothing is under way. In a forked child: the thread is not there, and the lock may have been held by it."""
        self._changed = Condition()
        self._line: deque[Job[object]] = deque()
        self._thread: Thread | None = None
        self._is_closed = False

    def add(self, job: Job[T]) -> bool:
        """Put a job in line, unless it is there already; whether it is."""
        with self._changed:
            if not job.in_line:
                if len(self._line) >= _LINE or self._is_closed:
                    return False
                job.in_line = True
                self._line.append(job)  # type: ignore[arg-type]
                if self._thread is None:
                    self._thread = Thread(target=self._work, name="yosegi compiler", daemon=True)
                    self._thread.start()
            return True

    def wait(self) -> None:
        """Until nothing is under way."""
        with self._changed:
            self._changed.wait_for(lambda: self._thread is None)

    def close(self) -> None:
        """At the end of the process: drop what waits, and wait for what is being made."""
        with self._changed:
            self._is_closed = True
            self._line.clear()
        self.wait()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._line:
                    self._thread = None
                    self._changed.notify_all()
                    return
                job = self._line.popleft()
            job.run()


background: Final = Background()
