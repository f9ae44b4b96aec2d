"""Drivers that are not ours: which may be used on this machine, and how far their compilers are trusted.

A driver is qualified once, in child processes: see `qualification`. What was found is a `Verdict`, kept on disk by the
driver's version, the processor and the version of Yosegi. A driver that came through without a crash is trusted: its
compiler runs in this process. One that crashed on some kernels loses these, and compiles everything else in a child
process too, where each new program runs once before it runs here (`Driver.prove`). One that fails too often is
withdrawn, until somebody forgets the verdict.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from math import inf
from pathlib import Path
from threading import Lock
from typing import Any, Final

from .._graph import decode
from .._tensor.environment import setting
from .._tune.store import cache_folder, checked, digest_of, locked, package_digest, processor, written
from ..errors import CompileFailure
from .background import Job
from .child import ChildResult, Worker

_FEW: Final = 3
"""Crashes, or calls that do not return, after which a driver is withdrawn."""
_WORKERS: Final = 2
"""Child processes that qualify a driver side by side."""
_FAMILY: Final = 40.0  # seconds that a family of kernels may take in a qualification, on a busy machine too
_PROOF: Final = 30.0  # seconds that a program may take to be compiled and run once
_FORMAT: Final = 1
_LATEST: Final = 1e11  # seconds since 1970 that a calendar can show
_FOLDER: Final = "drivers"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a driver's qualification on this machine."""

    failure: str | None = None
    """Why it is withdrawn, if it is."""
    refused: dict[str, str] = field(default_factory=dict)
    """Families of kernels, or rows of a table, that it computes wrongly or crashes on, with the reason."""
    crashes: tuple[str, ...] = ()
    """Kernels that ended a child process, or did not return."""
    programs: dict[str, str] = field(default_factory=dict)
    """Programs that failed in a child process, by their digests, and how: none is tried twice."""
    more: dict[str, dict[str, str]] = field(default_factory=dict)
    """Further tables of texts that a device keeps."""
    since: float = 0.0
    """When that was found out, in seconds since 1970."""

    @classmethod
    def of(cls, data: Any, device: str, identity: str, keeps: Sequence[str] = ()) -> Verdict:
        """The verdict in a file, of this device. Raises `Malformed` if it is something else."""
        form, name, own, failure, refused, crashes, programs, more, since = decode.record(
            data, "", "format", "device", "identity", *[f.name for f in fields(cls)]
        )
        decode.integer(form, "format", _FORMAT, _FORMAT)
        decode.one_of(name, "device", (device,))
        decode.one_of(own, "identity", (identity,))
        tables = zip(keeps, decode.record(more, "more", *keeps), strict=True)
        return cls(
            _reason(failure, "failure"),
            decode.texts(refused, "refused"),
            tuple(decode.each(crashes, "crashes", decode.text)),
            decode.texts(programs, "programs"),
            {key: decode.texts(table, f"more.{key}") for key, table in tables},
            decode.number(since, "since", 0, _LATEST),
        )

    @property
    def is_trusted(self) -> bool:
        """True if the driver's compiler may run in this process, and its results need no check: it never crashed, got
        nothing wrong, and nobody asked for isolation."""
        is_good = self.failure is None and not self.crashes and not self.refused
        return is_good and not setting("YOSEGI_ISOLATE", False)

    def after(self, what: str, outcome: ChildResult) -> Verdict:
        """The verdict after a call that ended a child process."""
        crashes = (*self.crashes, f"{what}: {outcome.failure}")
        failure = self.failure
        if len(crashes) >= _FEW:
            failure = f"{len(crashes)} crashes, the last in {crashes[-1]}"
        return replace(self, crashes=crashes, failure=failure, since=time.time())


class Driver:
    """The driver of one device."""

    def __init__(
        self, name: str, identity: str, environment: dict[str, str] | None = None, keeps: Sequence[str] = ()
    ) -> None:
        """`name` is that of the device, `identity` its hardware and versions, `environment` for child processes; a
        verdict `keeps` these tables in `more`."""
        self.name = name
        self._identity = identity
        self._environment = environment or {}
        self._keeps = keeps
        self._lock = Lock()
        self._worker = Worker(self._environment)
        short = digest_of(identity, processor(), package_digest())
        self._path = cache_folder() / _FOLDER / f"{name.replace(':', '-')}-{short}.json"
        self.verdict = self._read()

    def _read(self) -> Verdict | None:
        return checked(self._path, lambda data: Verdict.of(data, self.name, self._identity, self._keeps))

    def _record(self, verdict: Verdict) -> None:
        self.verdict = verdict
        written(self._path, json.dumps(self._content(verdict), indent=1).encode())

    def _content(self, verdict: Verdict) -> dict[str, Any]:
        return {"format": _FORMAT, "device": self.name, "identity": self._identity, **asdict(verdict)}

    @property
    def _progress(self) -> Path:
        """The file of a qualification that is under way."""
        return self._path.with_suffix(".progress")

    def _begun(self, data: Any) -> tuple[list[str], Verdict]:
        done, verdict = decode.record(data, "", "done", "verdict")
        return decode.each(done, "done", decode.text), Verdict.of(verdict, self.name, self._identity)

    @property
    def absence(self) -> str | None:
        """Why the driver is withdrawn, since when, and how to try it again; `None` if it is not."""
        if self.verdict is None or self.verdict.failure is None:
            return None
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.verdict.since))
        again = f"`yosegi devices --forget {self.name}` tries it again"
        return f"its driver is withdrawn since {since}: {self.verdict.failure}; {again}"

    def qualified(self, qualify: Callable[[Driver], Verdict]) -> Verdict:
        """The verdict, from disk or by a qualification; one process at a time makes one."""
        with self._lock, locked(self._path):
            if self.verdict is None:
                self.verdict = self._read()
            if self.verdict is None:
                self._record(replace(qualify(self), since=time.time()))
            assert self.verdict is not None
            return self.verdict

    def tried(self, function: str, arguments: Sequence[Any], families: Sequence[str]) -> Verdict:
        """The verdict of `function(*arguments, family)` for all families, in child processes side by side: it returns
        what is refused from then on, and why. What is done when the process ends is done for the next one."""
        done, verdict = checked(self._progress, self._begun) or ([], Verdict())
        lock = Lock()
        waiting = [family for family in families if family not in done]

        def work() -> None:
            nonlocal verdict
            worker = Worker(self._environment)
            with closing(worker):
                while True:
                    with lock:
                        if not waiting or verdict.failure is not None:
                            return
                        family = waiting.pop(0)
                    outcome = worker.call(function, *arguments, family, timeout=_FAMILY)
                    refused = outcome.result if outcome.failure is None else {family: outcome.failure}
                    with lock:
                        if outcome.died:
                            verdict = verdict.after(family, outcome)
                        verdict = replace(verdict, refused={**verdict.refused, **refused})
                        done.append(family)
                        content = json.dumps({"done": done, "verdict": self._content(verdict)}, indent=1)
                        written(self._progress, content.encode())

        jobs = [Job(work, inf) for _ in range(_WORKERS)]  # calls have deadlines
        for job in jobs:
            job.start()
        for job in jobs:
            job.result()
        with suppress(OSError):
            self._progress.unlink()
        lost = [family for family in families if family in verdict.refused]
        if verdict.failure is None and len(lost) > len(families) // 2:
            reason = f"{len(lost)} of {len(families)} families of kernels failed, {lost[0]}: {verdict.refused[lost[0]]}"
            return replace(verdict, failure=reason)
        return verdict

    def attempt(self, function: str, *arguments: Any) -> ChildResult:
        """The outcome of a call in a child process. It does not count for the verdict."""
        return self._worker.call(function, *arguments, timeout=_FAMILY)

    def prove(self, title: str, digest: str, function: str, *arguments: Any) -> Any:
        """The result of `function(*arguments)` in a child process, for a driver that is not trusted: it compiles a
        program and runs it once. Raises `CompileFailure` if that fails. No program is tried again after it has."""
        with self._lock:
            verdict = self.verdict or Verdict()
            reason = verdict.failure or verdict.programs.get(digest)
            if reason is not None:
                raise CompileFailure(f"[{self.name}] compiling {title} in a child process: {reason}")
            outcome = self._worker.call(function, *arguments, timeout=_PROOF)
            if outcome.failure is None:
                return outcome.result
            if outcome.died:
                verdict = verdict.after(title, outcome)
            self._record(replace(verdict, programs={**verdict.programs, digest: outcome.failure}))
            raise CompileFailure(f"[{self.name}] compiling {title} in a child process: {outcome.failure}")


def remembered(
    name: str, identity: str, call: Callable[[], ChildResult], check: Callable[[Any, str], object]
) -> ChildResult:
    """The outcome of a call in a child process that was made before, or is made now and kept: for the same identity,
    processor and version. A call that passed its deadline is made again the next time, and so is one whose result in
    the file does not pass `check(result, place)`, which raises `Malformed`."""
    path = cache_folder() / _FOLDER / f"{name}-{digest_of(identity, processor(), package_digest())}.json"

    def outcome_of(data: Any) -> ChildResult:
        result, failure = decode.record(data, "", "result", "failure")
        if _reason(failure, "failure") is None:
            check(result, "result")
        return ChildResult(result, failure)

    known = checked(path, outcome_of)
    if known is not None:
        return known
    with locked(path):
        outcome = call()
        if not outcome.timed_out:
            written(path, json.dumps({"result": outcome.result, "failure": outcome.failure}).encode())
    return outcome


def _reason(value: Any, place: str) -> str | None:
    return None if value is None else decode.text(value, place)


def forget(name: str) -> int:
    """Forget the verdicts on a device's driver, so that it is qualified anew; how many there were.

    >>> forget("no-such-device:0")
    0
    """
    folder, pattern = cache_folder() / _FOLDER, name.replace(":", "-")
    found = list(folder.glob(f"{pattern}*.json"))
    for path in (*found, *folder.glob(f"{pattern}*.progress")):
        with suppress(OSError):
            path.unlink()
    return len(found)
