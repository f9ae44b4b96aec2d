"""The timer of all measurements: autotuning, calibration, learning and benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from statistics import median
from time import perf_counter
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TURN: Final = (1e-3, 9)  # seconds for which a turn's runs go on, and how many they are at most
_LONG: Final = (5e-3, 0.2)  # seconds of a run, beyond which a turn is two runs, and one


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The result of a function, and the seconds that it took."""
    start = perf_counter()
    made = work()
    return made, perf_counter() - start


def seconds_of(
    call: Callable[..., object], *arguments: Any, calls: int = 1, wait: Callable[[], object] | None = None
) -> float:
    """Seconds of a call, the average of several in a row. With `wait`, from an idle device until it is idle again."""
    if wait is not None:
        wait()
    start = perf_counter()
    for _ in range(calls):
        call(*arguments)
    if wait is not None:
        wait()
    return (perf_counter() - start) / calls


def runs_of_a_turn(seconds: float) -> int:
    """The number of runs of this length that make a turn."""
    (least, most), (long, longer) = _TURN, _LONG
    few = 3 if seconds < long else 2 if seconds < longer else 1
    return max(few, min(most, ceil(least / max(seconds, 1e-9))))


def turn_of(run: Callable[[], float]) -> float:
    """The median of a turn's runs but the first, which finds threads asleep and caches cold. `run` gives seconds."""
    taken = [run()]
    while len(taken) < runs_of_a_turn(min(taken)):
        taken.append(run())
    return median(taken[1:] or taken)
