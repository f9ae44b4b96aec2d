"""The fastest of several ways to compute something on this machine: measured once, remembered, and never a wrong one.

Each candidate's result is compared with the reference's before it is timed. Those that are right are timed in turns, so
that what drifts on the machine falls on all of them alike. The winner is remembered for everything of its kind, here
and by later processes. Which candidates there are, on what they are tried, and what their kind is, the caller says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log2
from threading import RLock
from time import perf_counter, sleep
from typing import Any, Final

import numpy as np

from .errors import PlanRefused
from .options import current
from .store import Programs

Kernel = Callable[..., Sequence[Any]]
"""Takes arrays, gives arrays."""
Turn = Callable[[Any, Sequence[Any], int], float]
"""How many seconds a call of a kernel takes with these arguments, of so many calls."""

_LEAST_ROUNDS: Final = 3
_ROUNDS: Final = 5
_SECONDS: Final = 0.05
"""How long candidates are timed, about; each that is not hopeless has its least rounds in any case."""
_TURN: Final = 2e-4
"""Seconds of a turn: a shorter one is mostly the clock."""
_HOPELESS: Final = 2.0
"""How many times the best one's time a candidate may take to get another turn."""
_TIE: Final = 0.02
"""A candidate that is faster by less than this share does not come before one that is named before it."""
_STRAY: Final = 1e-5
"""The share of elements that may differ: where a function has a step, a sum may fall to either side of it."""


def back_to_back(kernel: Kernel, arguments: Sequence[Any], calls: int) -> float:
    """Seconds a call took. One call more goes before, to bring code and data into the caches."""
    kernel(*arguments)
    start = perf_counter()
    for _ in range(calls):
        kernel(*arguments)
    return (perf_counter() - start) / calls


@dataclass(frozen=True, slots=True)
class Trial:
    """How candidates are tried."""

    arguments: Callable[[], Sequence[Any]]
    """Made when something is to be measured, not before."""
    reference: Kernel
    roundings: float = 64
    """How many times the spacing of the largest numbers of a result an element may be off."""
    settle: float = 0.0
    """Seconds before each turn, in which whoever was before comes to rest."""
    turn: Turn = back_to_back
    """Another clock, for calls that return before their work is done."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out about the candidates for work of a kind."""

    winner: str | None
    """Nobody, if all have failed."""
    seconds: dict[str, float]
    """What a call took, of those that were timed."""
    refused: dict[str, str]
    """Why others are out: they failed, or their results were wrong."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The winner's kernel, if there is a winner, and why it won."""

    kernel: Kernel | None
    verdict: Verdict


class Choices:
    """The choices of one machine."""

    def __init__(self, identity: str) -> None:
        """`identity` tells whatever times depend on: the machine, how many threads there are, which versions."""
        self._stored = Programs("choices", identity)
        self._known: dict[str, Verdict] = {}
        self._lock = RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def best(self, kind: str, candidates: Mapping[str, Callable[[], Kernel]], trial: Trial) -> Chosen:
        """The best candidate for work of a kind.

        Candidates make their kernels when they are asked to. Among equals, the first is chosen. If all of them fail,
        that is not remembered.
        """
        name = self._stored.name(kind)
        if current().deterministic:
            return _first(candidates, trial)
        with self._lock:  # two that measure at the same time would measure each other; one may do so inside another
            known = self._known.get(kind) or _adopted.get(name) or self._read(kind)
            refused: dict[str, str] = {}
            if known is not None and known.winner is not None and known.winner in candidates:
                kernel = _made(known.winner, candidates, refused)
                if kernel is not None:
                    self._known[kind] = known
                    _decided[name] = known.winner
                    return Chosen(kernel, known)
            chosen = _measured({n: c for n, c in candidates.items() if n not in refused}, trial, refused)
            if chosen.verdict.winner is not None:
                self._known[kind] = chosen.verdict
                self._write(kind, chosen.verdict)
                _decided[name] = chosen.verdict.winner
            return chosen

    def known(self, kind: str) -> Verdict | None:
        """What was found for work of a kind, here or by an earlier process."""
        if current().deterministic:
            return None
        with self._lock:
            name = self._stored.name(kind)
            found = self._known.get(kind) or _adopted.get(name) or self._read(kind)
            if found is not None and found.winner is not None:
                self._known[kind] = found
                _decided[name] = found.winner
            return found

    def _read(self, kind: str) -> Verdict | None:
        """What an earlier process has found. A file that does not tell is set aside."""
        name = self._stored.name(kind)
        stored = self._stored.get(name)
        if stored is None:
            return None
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            found = json.loads(stored)
            seconds = {str(n): float(s) for n, s in found["seconds"].items()}
            return Verdict(str(found["winner"]), seconds, {str(n): str(r) for n, r in found["refused"].items()})
        self._stored.reject(name)
        return None

    def _write(self, kind: str, verdict: Verdict) -> None:
        found = {"kind": kind, "winner": verdict.winner, "seconds": verdict.seconds, "refused": verdict.refused}
        self._stored.put(self._stored.name(kind), json.dumps(found, indent=1).encode())

    def _after_fork(self) -> None:
        """In a forked child: the lock may have been held by a thread that is not there."""
        self._lock = RLock()


_decided: Final[dict[str, str]] = {}
_adopted: Final[dict[str, Verdict]] = {}


def decisions() -> dict[str, str]:
    """Who was chosen in this process, by the name of what for."""
    return dict(_decided)


def adopt(made: Mapping[str, str]) -> None:
    """Choose as was chosen elsewhere. Raises `PlanRefused` where this process has chosen otherwise already."""
    for name, winner in made.items():
        if _decided.get(name, winner) != winner:
            raise PlanRefused(
                f"[load_plan] the plan was made with the kernel {winner!r}, where this process has chosen "
                f"{_decided[name]!r}; load it before such work is done"
            )
    _adopted.update({name: Verdict(winner, {}, {}) for name, winner in made.items()})


def _first(candidates: Mapping[str, Callable[[], Kernel]], trial: Trial) -> Chosen:
    """The first candidate that is right, whatever it takes: the same one every time."""
    refused: dict[str, str] = {}
    for name, make in candidates.items():
        chosen = _measured({name: make}, trial, refused)
        if chosen.verdict.winner is not None:
            return chosen
    return Chosen(None, Verdict(None, {}, refused))


def size_class(*sizes: int) -> str:
    """Sizes as a kind: those within a factor of about 1.4 are of one.

    >>> size_class(1000, 3) == size_class(1024, 3) != size_class(2048, 3)
    True
    """
    return "x".join(str(round(2 * log2(n)) if n else "none") for n in sizes)


def _made(name: str, candidates: Mapping[str, Callable[[], Kernel]], refused: dict[str, str]) -> Kernel | None:
    """A candidate's kernel; nothing if it fails, which is noted."""
    try:
        return candidates[name]()
    except Exception as failure:  # whatever it is, the others can do the same work
        refused[name] = f"{type(failure).__name__}: {failure}"
        return None


def _measured(candidates: Mapping[str, Callable[[], Kernel]], trial: Trial, refused: dict[str, str]) -> Chosen:
    kernels = {name: kernel for name in candidates if (kernel := _made(name, candidates, refused)) is not None}
    seconds: dict[str, float] = {}
    if kernels:
        arguments = trial.arguments()
        _check(kernels, arguments, trial, refused)
        seconds = dict.fromkeys(kernels, 0.0)
        if len(kernels) > 1:
            seconds = _race(kernels, arguments, trial, refused)
    if not seconds:
        return Chosen(None, Verdict(None, {}, refused))
    least = min(seconds.values())
    name = next(n for n, s in seconds.items() if s <= least * (1 + _TIE))
    return Chosen(kernels[name], Verdict(name, seconds if len(seconds) > 1 else {}, refused))


def _check(kernels: dict[str, Kernel], arguments: Sequence[Any], trial: Trial, refused: dict[str, str]) -> None:
    """Drop those that fail, or whose results are wrong.

    The reference comes last, and all results live until then: one that writes nothing must not find the right result in
    the memory that it is given.
    """
    results = {}
    for name, kernel in kernels.items():
        try:
            results[name] = kernel(*arguments)
        except Exception as failure:
            refused[name] = f"{type(failure).__name__}: {failure}"
    expected = trial.reference(*arguments)
    for name, got in results.items():
        reason = disagreement(expected, got, trial.roundings)
        if reason is not None:
            refused[name] = reason
    for name in set(kernels) & set(refused):
        del kernels[name]


def _race(
    kernels: Mapping[str, Kernel], arguments: Sequence[Any], trial: Trial, refused: dict[str, str]
) -> dict[str, float]:
    """Seconds a call takes at best, by candidates; those that fail are noted."""
    taken: dict[str, float] = {}
    calls: dict[str, int] = dict.fromkeys(kernels, 1)
    running = list(kernels)
    begin = perf_counter()
    for number in range(_ROUNDS):
        if number >= _LEAST_ROUNDS and perf_counter() - begin > _SECONDS:
            break
        for name in running[number % len(running) :] + running[: number % len(running)]:
            if trial.settle:
                sleep(trial.settle)
            try:
                once = trial.turn(kernels[name], arguments, calls[name])
            except Exception as failure:
                refused[name] = f"{type(failure).__name__}: {failure}"
                taken.pop(name, None)
                calls.pop(name)
                continue
            calls[name] = max(1, round(_TURN / max(once, 1e-9)))
            taken[name] = min(once, taken.get(name, once))
        if not taken:
            break
        running = [n for n in running if n in taken]
        if number:  # one slow turn may be the machine's
            running = [n for n in running if taken[n] <= _HOPELESS * min(taken.values())]
    return {name: taken[name] for name in kernels if name in taken}


def disagreement(expected: Sequence[Any], got: Sequence[Any], roundings: float) -> str | None:
    """Why results are not the expected ones, or `None`.

    Numbers may differ by so many roundings of the largest finite one, whatever is not a number must be the same.
    """
    if len(got) != len(expected):
        return f"it gave {len(got)} results, not {len(expected)}"
    for number, (mine, reference) in enumerate(zip(got, expected, strict=True)):
        made, wanted = np.asarray(mine), np.asarray(reference)
        if (made.shape, made.dtype) != (wanted.shape, wanted.dtype):
            return f"result {number} was {made.dtype}{made.shape}, not {wanted.dtype}{wanted.shape}"
        wrong = _wrong(made, wanted, roundings)
        if np.count_nonzero(wrong) > _STRAY * wrong.size:
            place = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            count = np.count_nonzero(wrong)
            return f"{count} elements of result {number} were wrong: {made[place]} at {place}, not {wanted[place]}"
    return None


def _wrong(made: Any, wanted: Any, roundings: float) -> Any:
    """Which elements are wrong."""
    if wanted.dtype.kind in "biu":
        return made != wanted
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    made, reference = made.astype(wide), wanted.astype(wide)
    finite = np.isfinite(reference)
    eps = float(np.finfo(wanted.dtype).eps) if wanted.dtype.kind in "fc" else 2.0**-7  # bfloat16 is not NumPy's own
    largest = float(np.max(np.abs(reference[finite]), initial=0.0))
    with np.errstate(invalid="ignore"):
        close = np.abs(made - reference) <= roundings * eps * largest
    same = (made == reference) | (np.isnan(made) & np.isnan(reference))
    return ~np.where(finite, close, same)
