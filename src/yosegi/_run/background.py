"""Slow compilers at work in the background, while another device serves.

One thread, started when it is needed, does the jobs. Work that runs once is never compiled: a program whose shapes
change with every step would keep the compiler busy for nothing. A job that takes longer than `LIMIT` counts as failed,
and another thread does the jobs behind it. When the process ends, the current job gets a moment to finish, and the
others are dropped.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from math import inf
from threading import Condition, Event, Lock, Thread, current_thread, get_native_id, local
from time import monotonic
from typing import Final, Generic, TypeVar

from ..errors import CompileFailure, NotReady
from .shutdown import join

T = TypeVar("T")

LIMIT: Final = 60.0
"""Seconds that a job may take."""
_NICE: Final = 10
"""The priority of compiling in the background: below that of the program's own computation."""
_LINE: Final = 16  # jobs that may wait; with more, most would no longer be needed when they begin


class Job(Generic[T]):
    """A value that the first thread to start makes, once, within a time limit."""

    def __init__(self, make: Callable[[], T], limit: float | None = None) -> None:
        """`limit` is in seconds, `LIMIT` by default; `inf` for work with deadlines of its own."""
        self._make: Callable[[], T] | None = make
        self._limit = LIMIT if limit is None else limit
        self._lock = Lock()
        self._done = Event()
        self._until: float | None = None
        self._made: T | None = None
        self._failure: BaseException | None = None
        self._asked = False
        self.in_line = False

    @property
    def is_done(self) -> bool:
        """True if the value has been made, or making it failed."""
        return self._done.is_set()

    @property
    def is_made(self) -> bool:
        """True if the value has been made."""
        return self.is_done and self._failure is None

    @property
    def seconds_left(self) -> float:
        """Seconds until it is overdue; the whole limit if it has not begun."""
        return self._limit if self._until is None else max(0.0, self._until - monotonic())

    @property
    def is_overdue(self) -> bool:
        """True if it has exceeded its limit, and is not done yet."""
        return not self.seconds_left and not self.is_done

    def result(self) -> T:
        """The result, or the exception that was raised. Starts the job if no thread has.

        Raises `CompileFailure` if it takes longer than the limit. The job continues, because native code cannot be
        stopped; if it returns later, there is a result from then on.
        """
        if not self.is_done:
            if self._limit == inf:
                self.run()
                self._done.wait()
            else:
                self.start()
                self._done.wait(self.seconds_left)
        if not self.is_done:
            raise CompileFailure(f"it did not return within {self._limit:g} s")
        if self._failure is not None:
            raise self._failure
        return self._made  # type: ignore[return-value]

    def result_if_ready(self) -> T:
        """The result, if the job is done or overdue. Raises `NotReady` otherwise; the second request starts the job in
        the background."""
        if self.is_done or self.is_overdue:
            return self.result()
        if not self._asked:
            self._asked = True
            raise NotReady("compiled in the background once it runs again")
        raise NotReady("compiling in the background" if background.add(self) else "many wait to be compiled before it")

    def start(self) -> None:
        """Begin it in a thread of its own, under the caller's options, unless it has begun."""
        make = self._begun()
        if make is None:
            return
        context = copy_context()

        def work() -> None:
            context.run(self._run, make)

        try:
            Thread(target=work, name="yosegi compiler", daemon=True).start()
        except RuntimeError:  # the process ends, or has too many threads
            work()

    def run(self) -> None:
        """Do it in this thread, unless it has begun."""
        make = self._begun()
        if make is not None:
            self._run(make)

    def _begun(self) -> Callable[[], T] | None:
        """The function to call, for the first thread that asks."""
        with self._lock:
            make, self._make = self._make, None
            if make is not None:
                self._until = monotonic() + self._limit
            return make

    def _run(self, make: Callable[[], T]) -> None:
        try:
            self._made = make()
        except BaseException as failure:
            self._failure = failure
        self._done.set()


class _ThreadMode(local):
    """True if a thread waits for compilers."""

    only_ready = False


_thread: Final = _ThreadMode()


@contextmanager
def only_ready() -> Iterator[None]:
    """Raise `NotReady` in this thread instead of compiling or measuring."""
    before, _thread.only_ready = _thread.only_ready, True
    try:
        yield
    finally:
        _thread.only_ready = before


def check_ready(what: str) -> None:
    """Raise `NotReady` if this thread must not wait."""
    if _thread.only_ready:
        raise NotReady(f"{what} would take a while")


def side_by_side(makers: Sequence[Callable[[], T]], most: int) -> list[T]:
    """Call functions in up to `most` threads, under the caller's options, and return their results in order.

    Compilers release the interpreter's lock, so that several of them use several cores.
    """
    count = min(most, len(makers))
    if count < 2 or _thread.only_ready:
        return [make() for make in makers]
    with ThreadPoolExecutor(count, "yosegi compiler") as pool:
        return [made.result() for made in [pool.submit(copy_context().run, make) for make in makers]]


class Background:
    """The queue of jobs, and the thread that does them."""

    def __init__(self) -> None:
        self.reset()
        atexit.register(self.close)

    def reset(self) -> None:
        """Begin anew in a forked child, where the thread does not exist and may have held the lock."""
        self._changed = Condition()
        self._line: deque[Job[object]] = deque()
        self._thread: Thread | None = None
        self._job: Job[object] | None = None
        """The current job of the thread."""
        self._is_closed = False

    def add(self, job: Job[T]) -> bool:
        """Put a job into the queue, unless it is there already. Returns True if it is in the queue."""
        with self._changed:
            self._relieve()
            if not job.in_line:
                if len(self._line) >= _LINE or self._is_closed:
                    return False
                job.in_line = True
                self._line.append(job)  # type: ignore[arg-type]
                if self._thread is None:
                    self._start()
            return True

    def wait(self) -> None:
        """Wait until no job is running, except overdue ones."""
        with self._changed:
            while self._thread is not None:
                self._changed.wait(LIMIT if self._job is None else self._job.seconds_left)
                self._relieve()

    def close(self) -> None:
        """At the end of the process: drop the waiting jobs, and wait a moment for the current one."""
        with self._changed:
            self._is_closed = True
            self._line.clear()
            thread = self._thread
        if thread is not None:
            join([thread])

    def _relieve(self) -> None:
        """Abandon a thread that hangs in a job: another thread does the waiting jobs."""
        if self._job is not None and self._job.is_overdue:
            self._thread = self._job = None
            if self._line:
                self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        self._thread = Thread(target=self._work, name="yosegi compiler", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        with suppress(AttributeError, OSError):  # of a thread alone, on Linux
            os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICE)
        while True:
            with self._changed:
                if self._thread is not current_thread():  # it has been relieved
                    return
                self._job = None
                if not self._line:
                    self._thread = None
                    self._changed.notify_all()
                    return
                job = self._job = self._line.popleft()
            job.run()


background: Final = Background()
