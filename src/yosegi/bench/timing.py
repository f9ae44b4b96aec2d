"""Fair timing: contenders take turns in one process, and what counts is the ratio of two in the same round."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds a call took, one figure per round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle round."""
        return statistics.median(self.rounds)

    def ratio_to(self, other: Timing) -> tuple[float, float, float]:
        """How many times the other's time: the median over rounds, and the middle half of the rounds (quartiles)."""
        ratios = sorted(a / b for a, b in zip(self.rounds, other.rounds, strict=True))
        low, _, high = statistics.quantiles(ratios, n=4)
        return statistics.median(ratios), low, high


def race(contenders: Mapping[str, Callable[[], object]], *, rounds: int = 40, calls: int = 500) -> dict[str, Timing]:
    """Time each contender for `calls` calls in every round, after a warm-up round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    enabled = gc.isenabled()
    gc.disable()
    try:
        for number in range(rounds + 1):
            for name, call in contenders.items():
                start = perf_counter()
                for _ in range(calls):
                    call()
                if number:
                    seconds[name].append((perf_counter() - start) / calls)
            gc.collect()
    finally:
        if enabled:
            gc.enable()
    return {name: Timing(tuple(s)) for name, s in seconds.items()}
