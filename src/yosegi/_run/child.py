"""Child processes for drivers and compilers: a crash there is a reason here.

Drivers and compilers can end a process with a signal, take all its memory, or never return. A `Worker` is a child
process that calls functions on request, `worker.call("package.module:function", argument)`, and reports how each call
went. A child that dies, or passes a deadline, is replaced by the next call.
"""

from __future__ import annotations

import atexit
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Any, Final
from weakref import WeakSet

from .forks import in_forked_child
from .shutdown import seconds_left

_TIMEOUT: Final = 60.0  # seconds
_PATIENCE: Final = 8  # a child that other processes keep from running gets this multiple of its deadline
_GRACE: Final = 5  # seconds after a deadline until a child ends itself, if its parent has died
_NICE: Final = 10  # the user's own work comes first
_IN_CHILD: Final = "YOSEGI_IN_CHILD"
_LINE: Final = 200  # characters of a driver's last words that are reported


@dataclass(frozen=True, slots=True)
class ChildResult:
    """The result of a call in a child process, or the reason why there is none."""

    result: Any = None
    failure: str | None = None
    died: bool = field(default=False, compare=False)
    """True if the call ended the child, or passed its deadline."""
    timed_out: bool = field(default=False, compare=False)
    """True if the call passed its deadline: it may succeed later, on a less busy machine."""


class Closed(Exception):
    """This process ends, and its children with it: the call has no outcome."""


def _processor_seconds(pid: int) -> float:
    """Seconds of processor time of a process and of its finished children; 0 where the system has no such figure."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        return sum(map(int, text.rpartition(")")[2].split()[11:15])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return 0.0


class Worker:
    """A child process that calls functions, one at a time, from any thread. It starts with the first call."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        """`environment` holds the variables that differ from this process's. `{scratch}` in it stands for a folder of
        the child's own, where it also keeps its caches: files of earlier processes hide nothing there."""
        self._own = {"YOSEGI_CACHE_DIR": "{scratch}", "XDG_CACHE_HOME": "{scratch}", **(environment or {})}
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._replies: SimpleQueue[str | None] = SimpleQueue()
        self._log: Any = None
        _workers.add(self)

    def call(self, function: str, *arguments: Any, timeout: float = _TIMEOUT) -> ChildResult:
        """Call `module:function` with arguments that JSON can hold.

        Parameters
        ----------
        function: its module and its name; the result must be something that JSON can hold.
        arguments: passed to it.
        timeout: seconds after which the child is killed; on a busy machine, where it hardly gets to run, up to
            `_PATIENCE` times as many.
        """
        with self._lock:
            if _ending.is_set():
                raise Closed
            try:
                process = self._started()
                request = json.dumps({"function": function, "arguments": arguments, "seconds": _PATIENCE * timeout})
                assert process.stdin is not None
                process.stdin.write(request + "\n")
                process.stdin.flush()
            except OSError as error:
                self._end()
                return ChildResult(failure=f"no child process could be started: {error}", died=True)
            try:
                reply = self._reply(process.pid, timeout)
            except Empty:
                self._end()
                return ChildResult(failure=f"it did not return within {timeout:g} s", died=True, timed_out=True)
            if _ending.is_set():
                raise Closed
            if reply is None:
                return ChildResult(failure=self._last_words(), died=True)
            return ChildResult(**json.loads(reply))

    def _reply(self, pid: int, timeout: float) -> str | None:
        """The child's answer. Raises `Empty` if it hangs: it has used half of the time, or no processor time at all."""
        for _ in range(_PATIENCE):
            before = _processor_seconds(pid)
            with suppress(Empty):
                return self._replies.get(timeout=timeout)
            if not timeout / 100 < _processor_seconds(pid) - before < timeout / 2:
                break
        raise Empty

    def close(self) -> None:
        """End the child process. A later call starts another."""
        self._end()

    def __del__(self) -> None:
        self._end()

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        if os.environ.get(_IN_CHILD):
            raise OSError("a child process starts no other")
        self._end()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the child does
        path = os.pathsep.join(p for p in sys.path if p)
        self._scratch = tempfile.TemporaryDirectory(prefix="yosegi-", ignore_cleanup_errors=True)
        own = {name: value.replace("{scratch}", self._scratch.name) for name, value in self._own.items()}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import {__name__} as child; child.serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, _IN_CHILD: "1", "PYTHONPATH": path, **own},
        )  # fmt: skip
        replies: SimpleQueue[str | None] = SimpleQueue()
        self._replies = replies
        Thread(target=_read, args=(self._process.stdout, replies), name="yosegi child", daemon=True).start()
        return self._process

    def _last_words(self) -> str:
        """How the child ended, with the last line that it printed."""
        process = self._process
        assert process is not None
        try:
            code = process.wait(timeout=_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            code = -9
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().decode(errors="replace").splitlines() if line.strip()]
        said = f": {lines[-1][:_LINE]}" if lines else ""
        self._end()
        how = f"with {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        return f"it ended the process {how}{said}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(OSError):
                process.kill()
            with suppress(subprocess.TimeoutExpired):  # a driver can keep even a killed process
                process.wait(seconds_left() if _ending.is_set() else _GRACE)
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    if pipe is not None:
                        pipe.close()
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def forget(self) -> None:
        """In a forked process: the child belongs to the parent."""
        self._lock = Lock()
        self._process = self._log = None
        if self._scratch is not None:
            self._scratch._finalizer.detach()  # type: ignore[attr-defined]  # the parent's, too
            self._scratch = None


def attempt(function: str, *arguments: Any, timeout: float = _TIMEOUT) -> ChildResult:
    """Call `module:function` in a child process of its own; see `Worker.call`."""
    with temporary() as worker:
        return worker.call(function, *arguments, timeout=timeout)


@contextmanager
def temporary() -> Iterator[Worker]:
    """A worker that ends with the block."""
    worker = Worker()
    try:
        yield worker
    finally:
        worker.close()


_workers: Final[WeakSet[Worker]] = WeakSet()


_ending: Final = Event()


def close_all() -> None:
    """End all children, at the end of this process: a compiler that hangs must not keep it."""
    _ending.set()
    for worker in list(_workers):
        worker.close()


def _after_fork() -> None:
    for worker in list(_workers):
        worker.forget()


atexit.register(close_all)
in_forked_child(_after_fork)


def _read(pipe: Any, replies: SimpleQueue[str | None]) -> None:
    with suppress(ValueError, OSError):  # closed meanwhile
        for line in pipe:
            replies.put(line)
    replies.put(None)


# In the child


def serve() -> None:
    """Answer requests until there are no more. Output of drivers goes to the log, not among the replies."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _restrict()
    for line in sys.stdin:
        request = json.loads(line)
        _alarm(math.ceil(request["seconds"]) + _GRACE)
        replies.write(json.dumps(_reply(request["function"], request["arguments"])) + "\n")
        replies.flush()
        _alarm(0)


def _reply(function: str, arguments: list[Any]) -> dict[str, Any]:
    module, _, name = function.partition(":")
    try:
        return {"result": getattr(importlib.import_module(module), name)(*arguments)}
    except SystemExit as error:
        return {"failure": str(error)}
    except BaseException as error:
        return {"failure": f"{type(error).__name__}: {error}"}


def _alarm(seconds: int) -> None:
    if hasattr(signal, "alarm"):
        signal.alarm(seconds)  # by default it ends the process


def _restrict() -> None:
    """Lower this process's priority, leave no core dump, and be the first to be ended when memory runs out."""
    with suppress(OSError, AttributeError):
        os.nice(_NICE)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")
    try:
        import resource
    except ImportError:  # Windows
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        resource.setrlimit(resource.RLIMIT_DATA, (half, half))
