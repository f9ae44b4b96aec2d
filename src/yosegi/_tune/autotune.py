"""Autotuning: variants of the same work are compared with the reference and timed, and the fastest correct one wins.

Devices call it, through `records`, with kernels by name and their arguments; the result names the winner and the
reasons against the others. Candidates whose results are right take turns. A disturbance of the machine concerns all
candidates of a round, so a candidate's time counts in relation to the best of the same round. The rounds of a sitting
are not independent and count once: a small lead needs another sitting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final

from ..errors import NoSuchVariant, OutOfMemory
from .comparison import disagreement
from .timing import seconds_of

Kernel = Callable[..., Sequence[Any]]
"""Takes arrays, gives arrays."""
Turn = Callable[[Any, Sequence[Any], int], float]
"""How many seconds a call of a kernel takes with these arguments, of so many calls."""
Sitting = tuple[Mapping[str, float], ...]
"""Seconds that a call took, by candidates, in each round."""


@dataclass(frozen=True, slots=True)
class TuningPolicy:
    """The effort of autotuning, and the leads that decide it."""

    least_rounds: int = 3
    most_rounds: int = 12
    sitting_seconds: float = 0.3
    """The length of a sitting, about; it ends earlier if one candidate has a clear lead."""
    turn_seconds: float = 2e-4
    """The length of a turn: a shorter one is mostly the clock."""
    long_call_seconds: float = 5e-3
    """A call of this length does not depend on the state of the caches."""
    hopeless_ratio: float = 2.0
    """A candidate that takes longer than so many times the best one's time gets no third turn."""
    tie_share: float = 0.02
    """A lead below this share of the time is a tie."""
    close_share: float = 0.15
    """A candidate that is slower than the winner by less than this share might be faster after all."""
    most_sittings: int = 3
    """The number of sittings after which the record stands."""
    runs_per_sitting: int = 200
    """Calls of a winner, or turns if those are longer, that are worth another sitting."""


_POLICY: Final = TuningPolicy()


def back_to_back(kernel: Kernel, arguments: Sequence[Any], calls: int) -> float:
    """Seconds of a call, of so many in a row."""
    return seconds_of(kernel, *arguments, calls=calls)


@dataclass(frozen=True, slots=True)
class TrialSetup:
    """The settings of a trial."""

    arguments: Callable[[], Sequence[Any]]
    """Made when something is to be measured, not before."""
    reference: Kernel
    roundings: float = 64
    """The largest error of an element, in units of the spacing of the result's largest numbers."""
    settle: float = 0.0
    """Seconds before each turn, in which the threads of the variant before come to rest."""
    turn: Turn = back_to_back
    """The clock. Calls that return before their work is done need one of the device."""
    tie: float = _POLICY.tie_share
    """A candidate that is faster by less than this share does not come before one that is named before it."""
    seconds: float = _POLICY.sitting_seconds
    """The length of a sitting, about; it ends earlier if one candidate has a clear lead."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a candidate is out: it failed, or its results were wrong."""

    reason: str
    lasts: bool = True
    """False if the candidate may succeed the next time, when there may be more memory."""

    @classmethod
    def of(cls, failure: Exception) -> Refusal:
        """The refusal of a candidate that raised this exception."""
        return cls(f"{type(failure).__name__}: {failure}", not isinstance(failure, (OutOfMemory, MemoryError)))


@dataclass(frozen=True, slots=True)
class TuningResult:
    """The result of autotuning one kind of work."""

    winner: str | None
    """`None` if all variants have failed."""
    refused: dict[str, Refusal]
    """Why others are out."""
    sittings: tuple[Sitting, ...] = ()
    """All that was measured; nothing if there was nobody to be compared with."""

    @property
    def seconds(self) -> dict[str, float]:
        """The best time of a call, by variants."""
        found: dict[str, float] = {}
        for sitting in self.sittings:
            for name, taken in _best(sitting).items():
                found[name] = min(taken, found.get(name, taken))
        return found

    @property
    def contenders(self) -> list[str]:
        """The winner, and those that might be faster after all."""
        return [] if self.winner is None else _leading(self.sittings, self.refused)

    @property
    def is_open(self) -> bool:
        """True if another sitting could turn it over."""
        return len(self.contenders) > 1 and len(self.sittings) < _POLICY.most_sittings

    @property
    def runs(self) -> int:
        """After how many calls of the winner another sitting is cheap beside them."""
        taken = self.seconds.get(self.winner or "", _POLICY.turn_seconds)
        return round(_POLICY.runs_per_sitting * max(1.0, _POLICY.turn_seconds / max(taken, 1e-9)))


def autotuned(
    candidates: Mapping[str, Callable[[], Kernel]], trial: TrialSetup, refused: dict[str, Refusal],
    earlier: tuple[Sitting, ...] = (),
) -> tuple[TuningResult, Kernel | None]:  # fmt: skip
    """Autotune: the result of this sitting and earlier ones, and the winner's kernel.

    Candidates make their kernels when they are asked to. What is known to be `refused` is out; more may come to it.
    """
    kernels = {name: kernel for name in candidates if (kernel := made(name, candidates, refused)) is not None}
    sittings = earlier
    if kernels:
        arguments = trial.arguments()
        _check(kernels, arguments, trial, refused)
        if len(kernels) > 1:
            sittings = (*earlier, _benchmark(kernels, arguments, trial, refused))
    scores = _scores(sittings, refused)
    running = {name: scores.get(name, 1.0) for name in kernels if name not in refused}
    if not running:
        return TuningResult(None, refused, sittings), None
    least = min(running.values())
    winner = next(n for n, score in running.items() if score <= least * (1 + trial.tie))
    return TuningResult(winner, refused, sittings), kernels[winner]


def made(name: str, candidates: Mapping[str, Callable[[], Kernel]], refused: dict[str, Refusal]) -> Kernel | None:
    """A candidate's kernel; nothing if it fails, which is noted, or if there is none, which is not."""
    try:
        return candidates[name]()
    except NoSuchVariant:
        return None
    except Exception as failure:  # whatever it is, the others can do the same work
        refused[name] = Refusal.of(failure)
        return None


def _best(sitting: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The best time of a call in a sitting, by variants."""
    names = dict.fromkeys(name for taken in sitting for name in taken)
    return {name: min(taken[name] for taken in sitting if name in taken) for name in names}


def _scores(sittings: Sequence[Sequence[Mapping[str, float]]], refused: Mapping[str, Refusal]) -> dict[str, float]:
    """How many times the best one's time of the same round a candidate took, in the middle round of the middle
    sitting."""
    ratios: dict[str, list[float]] = {}
    for sitting in sittings:
        beside: dict[str, list[float]] = {}
        for taken in sitting:
            there = {name: seconds for name, seconds in taken.items() if name not in refused}
            for name, seconds in there.items():
                beside.setdefault(name, []).append(seconds / max(min(there.values()), 1e-12))
        for name, found in beside.items():
            ratios.setdefault(name, []).append(median(found))
    return {name: median(found) for name, found in ratios.items()}


def _leading(sittings: Sequence[Sequence[Mapping[str, float]]], refused: Mapping[str, Refusal]) -> list[str]:
    """The candidates that are not clearly slower than another, neither by their median nor by their best time. If the
    two disagree, other work has disturbed the measurement."""
    scores = _scores(sittings, refused)
    best = _best([taken for sitting in sittings for taken in sitting])
    most, longest = (
        ((1 + _POLICY.close_share) * min(of[n] for n in scores) for of in (scores, best)) if scores else (0.0, 0.0)
    )
    return [name for name, score in scores.items() if score <= most or best[name] <= longest]


def _check(
    kernels: dict[str, Kernel], arguments: Sequence[Any], trial: TrialSetup, refused: dict[str, Refusal]
) -> None:
    """Drop those that fail, or whose results are wrong.

    The reference comes last, and all results live until then: one that writes nothing must not find the right result in
    the memory that it is given.
    """
    results = {}
    for name, kernel in kernels.items():
        try:
            results[name] = kernel(*arguments)
        except Exception as failure:
            refused[name] = Refusal.of(failure)
    expected = trial.reference(*arguments)
    for name, got in results.items():
        reason = disagreement(expected, got, trial.roundings)
        if reason is not None:
            refused[name] = Refusal(reason)
    for name in set(kernels) & set(refused):
        del kernels[name]


def _benchmark(
    kernels: Mapping[str, Kernel], arguments: Sequence[Any], trial: TrialSetup, refused: dict[str, Refusal]
) -> Sitting:
    """Time the candidates in rounds until one has a clear lead or the time is over. Failures go into `refused`."""
    rounds: list[dict[str, float]] = []
    running = list(kernels)
    last: dict[str, float] = {}
    begin = perf_counter()
    while running and len(rounds) < _POLICY.most_rounds:
        number = len(rounds)
        if number >= _POLICY.least_rounds and (len(running) == 1 or perf_counter() - begin > trial.seconds):
            break
        rounds.append({})
        for name in running[number % len(running) :] + running[: number % len(running)]:
            if trial.settle:
                sleep(trial.settle)
            try:
                rounds[-1][name] = last[name] = _turn(kernels[name], arguments, trial, last.get(name))
            except Exception as failure:
                refused[name] = Refusal.of(failure)
        running = [name for name in running if name not in refused]
        if number and number + 1 < _POLICY.least_rounds:  # one slow turn may be the machine's
            best = _best(rounds)
            running = [name for name in running if best[name] <= _POLICY.hopeless_ratio * min(best[n] for n in running)]
        elif number:
            leading = _leading([rounds], refused)
            running = [name for name in running if name in leading]
    return tuple(rounds)


def _turn(kernel: Kernel, arguments: Sequence[Any], trial: TrialSetup, before: float | None) -> float:
    """Seconds a call takes in this turn, if it took so many in the turn before. Short ones are made several times, and
    one call more goes before, to bring code and data into the caches."""
    if before is None or before < _POLICY.long_call_seconds:
        kernel(*arguments)
    return trial.turn(
        kernel, arguments, 1 if before is None else max(1, round(_POLICY.turn_seconds / max(before, 1e-9)))
    )
