"""Tuning records: the fastest correct variant of each kind of work on this machine, measured and remembered.

Devices call `TuningRecords.best` with candidates, arguments to try them on, and the kind of the work. A known winner
is returned at once; otherwise `autotune` measures. The winner serves all work of its kind, in this process and later
ones.

A small lead may have been luck. It is measured again when the winner has run so often that this costs little, and the
results of both measurements are kept. A process keeps its choice, so that its results and plans do not change; the next
process begins with the choice of all measurements. After a few of them the choice is final.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from math import log2
from threading import RLock, local
from typing import Any, Final

from .._graph import decode
from .._graph.decode import LONGEST_TIME, Malformed
from .._run.background import check_ready
from .._run.forks import in_forked_child
from .._tensor.options import current
from ..errors import PlanRefused
from .autotune import Kernel, Refusal, Sitting, TrialSetup, TuningResult, autotuned, made
from .store import Programs, package_digest

Candidates = Mapping[str, Callable[[], Kernel]]
"""Functions that make the kernels of the candidates, by name."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The winner's kernel, if there is a winner, and why it won."""

    kernel: Kernel | None
    verdict: TuningResult
    again: Callable[[], None] | None = None
    """Measures once more, for later processes; there is nothing to be called if the choice stands."""

    def watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A callable that runs the winner. After enough calls, the variants close to it are measured once more."""
        return call if self.again is None else _Watched(call, self.verdict.runs, self.again)


class _Watched:
    """A call that is counted."""

    def __init__(self, call: Callable[..., Any], runs: int, again: Callable[[], None]) -> None:
        self._call = call
        self._again = again
        self._last = runs - 1
        self._count = count().__next__  # no two threads get the same number

    def __call__(self, *arguments: Any) -> Any:
        result = self._call(*arguments)
        if self._count() == self._last:
            self._again()
        return result


class TuningRecords:
    """The tuning records of one machine."""

    def __init__(self, identity: str) -> None:
        """`identity` names what times depend on beside the sources of this package: the machine, how many threads there
        are, versions of libraries."""
        self._stored = Programs("choices", f"{package_digest()}\n{identity}")
        self._known: dict[str, TuningResult] = {}
        self._absent: set[str] = set()
        """Kinds for which there was no file: a program asks for one kind many times."""
        self._lock = RLock()
        in_forked_child(self._after_fork)

    def best(self, kind: str, candidates: Candidates, trial: TrialSetup) -> Tuned:
        """The best candidate for work of a kind.

        Among equals, the first is chosen. If all of them fail, that is not remembered.
        """
        name = self._stored.name(kind)
        if current().deterministic:
            chosen = _first(candidates, trial)
            if chosen.verdict.winner is not None:
                _decide(name, chosen.verdict.winner, is_fixed=True)
            return chosen
        with self._lock:  # two that measure at the same time would measure each other; one may do so inside another
            known = self._known.get(kind) or _adopted.get(name) or self._stored_for(kind)
            refused: dict[str, Refusal] = {}
            if known is not None and known.winner is not None and known.winner in candidates:
                kernel = made(known.winner, candidates, refused)
                if kernel is not None:
                    self._known[kind] = known
                    _decide(name, known.winner)
                    return self._chosen(kernel, known, kind, candidates, trial)
            check_ready("choosing the fastest kernel")
            verdict, kernel = autotuned({n: c for n, c in candidates.items() if n not in refused}, trial, refused)
            if verdict.winner is not None:
                self._known[kind] = verdict
                self._write(kind, verdict)
                _decide(name, verdict.winner)
            return self._chosen(kernel, verdict, kind, candidates, trial)

    def known(self, kind: str) -> TuningResult | None:
        """The result for a kind of work, from this process or an earlier one. A caller that uses it calls `take`."""
        if current().deterministic:
            return None
        with self._lock:
            name = self._stored.name(kind)
            found = self._known.get(kind) or _adopted.get(name) or self._stored_for(kind)
            if found is not None and found.winner is not None:
                self._known[kind] = found
            return found

    def take(self, kind: str, winner: str) -> None:
        """Note who does the work of a kind in this process: who was known, or another, if that could not be had."""
        _decide(self._stored.name(kind), winner)

    def _chosen(
        self, kernel: Kernel | None, verdict: TuningResult, kind: str, candidates: Candidates, trial: TrialSetup
    ) -> Tuned:
        if not verdict.is_open:
            return Tuned(kernel, verdict)
        return Tuned(kernel, verdict, lambda: self._measure_again(kind, candidates, trial))

    def _measure_again(self, kind: str, candidates: Candidates, trial: TrialSetup) -> None:
        """Measure the close candidates in another sitting, for later processes.

        It runs inside a user's call that has its result already: a failure here does not concern the call.
        """
        if current().deterministic:
            return
        with self._lock:
            known = self._read(kind)  # other processes may have measured meanwhile
            if known is None or not known.is_open:
                return
            close = {name: candidates[name] for name in known.contenders if name in candidates}
            with suppress(Exception):
                verdict, _ = autotuned(close, trial, dict(known.refused), known.sittings)
                if verdict.winner is not None:
                    self._write(kind, verdict)

    def _stored_for(self, kind: str) -> TuningResult | None:
        """The record of an earlier process, looked for once."""
        found = None if kind in self._absent else self._read(kind)
        if found is None:
            self._absent.add(kind)
        return found

    def _read(self, kind: str) -> TuningResult | None:
        """The result of an earlier process. A malformed file is set aside."""
        name = self._stored.name(kind)
        stored = self._stored.get(name)
        if stored is None:
            return None
        with suppress(Malformed):
            return _verdict_of(decode.loads(stored), kind)
        self._stored.reject(name)
        return None

    def _write(self, kind: str, verdict: TuningResult) -> None:
        lasting = {name: refusal.reason for name, refusal in verdict.refused.items() if refusal.lasts}
        found = {"kind": kind, "winner": verdict.winner, "refused": lasting, "sittings": verdict.sittings}
        self._stored.put(self._stored.name(kind), json.dumps(found, indent=1).encode())

    def _after_fork(self) -> None:
        """Replace the lock in a forked child: a thread that does not exist there may hold it."""
        self._lock = RLock()


def _verdict_of(data: Any, kind: str) -> TuningResult:
    """The tuning record for work of a kind. Raises `Malformed`."""
    own, winner, reasons, sittings = decode.record(data, "", "kind", "winner", "refused", "sittings")
    decode.one_of(own, "kind", (kind,))
    refused = {name: Refusal(reason) for name, reason in decode.texts(reasons, "refused").items()}
    if decode.text(winner, "winner") in refused:
        raise Malformed("a winner that is not refused", winner, "winner")
    return TuningResult(winner, refused, tuple(decode.each(sittings, "sittings", _sitting_of)))


def _sitting_of(data: Any, place: str) -> Sitting:
    return tuple(decode.each(data, place, partial(decode.table, read=_time_of)))


def _time_of(data: Any, place: str) -> float:
    return decode.number(data, place, 0, LONGEST_TIME)


_decided: Final[dict[str, str]] = {}
_fixed: Final[dict[str, str]] = {}
"""The winners in deterministic runs, which may differ for the same work."""
_adopted: Final[dict[str, TuningResult]] = {}


class _ThreadNotes(local):
    """The tuning records that a thread collects."""

    noted: dict[str, str] | None = None


_thread: Final = _ThreadNotes()


def _decide(name: str, winner: str, *, is_fixed: bool = False) -> None:
    (_fixed if is_fixed else _decided)[name] = winner
    if _thread.noted is not None:
        _thread.noted[name] = winner


@contextmanager
def noting() -> Iterator[dict[str, str]]:
    """The winners that this thread chooses meanwhile, by the name of the work."""
    before, _thread.noted = _thread.noted, {}
    try:
        yield _thread.noted
    finally:
        _thread.noted = before


def decisions(*, is_fixed: bool = False) -> dict[str, str]:
    """The winners of this process, by the name of the work: by measurement, or in deterministic runs."""
    return dict(_fixed if is_fixed else _decided)


@contextmanager
def adopting(made: Mapping[str, str]) -> Iterator[None]:
    """Choose as was chosen elsewhere, from now on unless the block raises. Raises `PlanRefused` where this process has
    chosen otherwise already, or has adopted another choice."""
    taken = {name: str(verdict.winner) for name, verdict in _adopted.items()} | _decided
    _agree(made, taken, "load it before such work is done")
    new = {name: TuningResult(winner, {}) for name, winner in made.items() if name not in _adopted}
    _adopted.update(new)
    try:
        yield
    except BaseException:
        for name in new:
            _adopted.pop(name, None)
        raise


def confirm(adopted: Mapping[str, str], chosen: Mapping[str, str]) -> None:
    """Raise `PlanRefused` where what was adopted could not be had, so that another was chosen."""
    _agree(adopted, chosen, "the plan's own cannot be had here")


def _agree(made: Mapping[str, str], chosen: Mapping[str, str], remark: str) -> None:
    for name, winner in made.items():
        if chosen.get(name, winner) != winner:
            raise PlanRefused(
                f"[load_plan] the plan was made with the kernel {winner!r}, where this process has chosen "
                f"{chosen[name]!r}; {remark}"
            )


def _first(candidates: Candidates, trial: TrialSetup) -> Tuned:
    """The first candidate that is right, whatever it takes: the same one every time."""
    refused: dict[str, Refusal] = {}
    for name, make in candidates.items():
        verdict, kernel = autotuned({name: make}, trial, refused)
        if kernel is not None:
            return Tuned(kernel, verdict)
    return Tuned(None, TuningResult(None, refused))


def size_class(*sizes: int) -> str:
    """Sizes as a kind: those within a factor of about 1.4 are of one.

    >>> size_class(1000, 3) == size_class(1024, 3) != size_class(2048, 3)
    True
    """
    return "x".join(str(round(2 * log2(n)) if n else "none") for n in sizes)
