"""Before and after: two runs of the same cases, distinguished from noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import ArgumentError
from .document import Document, Result
from .timing import Ratio, middle, resampled_medians

THRESHOLD: Final = 0.05
Yardsticks = dict[str, Result]
"""NumPy's result of each case."""
FASTER, SLOWER, SAME = "faster", "slower", "no difference"


@dataclass(frozen=True, slots=True)
class Change:
    """The times of a contender in a case, before and after."""

    case: str
    contender: str
    before: float
    after: float
    """Median seconds."""
    ratio: Ratio
    """After over before, each over NumPy's time in the same round: above 1 is slower."""
    verdict: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that the two runs have in common, and what they do not."""

    changes: tuple[Change, ...]
    appeared: tuple[str, ...]
    """The cases that only the second run has right."""
    gone: tuple[str, ...]
    """The cases that only the first run has right: wrong, failed or missing in the second."""

    @property
    def regressions(self) -> list[Change]:
        """The cases that became slower."""
        return [c for c in self.changes if c.verdict == SLOWER]


def compare(before: Document, after: Document, *, threshold: float = THRESHOLD, across: bool = False) -> Comparison:
    """Compare two runs. A case is slower when the whole interval of its ratio lies beyond the threshold.

    Both runs must come from one machine, unless `across` says that this is meant.
    """
    mine, theirs = before.machine["fingerprint"], after.machine["fingerprint"]
    if mine != theirs and not across:
        raise ArgumentError(
            f"[compare] expected two runs from one machine, got {_machine(before)} and {_machine(after)}; "
            "say --across-machines if you mean it"
        )
    first, second = _right(before), _right(after)
    yardsticks = _yardsticks(before), _yardsticks(after)
    changes = tuple(_change(*yardsticks, first[key], second[key], threshold) for key in first if key in second)
    return Comparison(
        changes,
        tuple(" ".join(key) for key in second if key not in first),
        tuple(" ".join(key) for key in first if key not in second),
    )


def _machine(document: Document) -> str:
    m = document.machine
    names = ", ".join(d["name"] for d in m["devices"])
    return f"{m['processor']} with {m['threads']} threads and {names} ({m['fingerprint']})"


def _right(document: Document) -> dict[tuple[str, str], Result]:
    """The timed results of devices: peers and the yardstick are what they are measured against."""
    return {(r.case, r.contender): r for r in document.results if r.status == "ok" and r.device is not None}


def _yardsticks(document: Document) -> Yardsticks:
    return {r.case: r for r in document.results if r.contender == "numpy" and r.status == "ok"}


def _change(a: Yardsticks, b: Yardsticks, before: Result, after: Result, threshold: float) -> Change:
    first, second = _against_yardstick(a, before), _against_yardstick(b, after)
    rng = np.random.default_rng(0)  # the runs are independent, so their samples are paired at random
    draws = rng.permutation(resampled_medians(second)) / rng.permutation(resampled_medians(first))
    low, high = np.quantile(draws, [0.025, 0.975])
    ratio = Ratio(middle(second) / middle(first), float(low), float(high))
    if ratio.low > 1 + threshold:
        verdict = SLOWER
    elif ratio.high < 1 / (1 + threshold):
        verdict = FASTER
    else:
        verdict = SAME
    return Change(before.case, before.contender, before.timing.median, after.timing.median, ratio, verdict)


def _against_yardstick(yardsticks: Yardsticks, result: Result) -> list[Any]:
    """Times over NumPy's in the same round: what makes the whole machine slow for a while plays no part."""
    yardstick = yardsticks.get(result.case)
    if yardstick is None:
        return [np.asarray(s) for s in result.sittings]
    return [np.asarray(s) / np.asarray(y) for s, y in zip(result.sittings, yardstick.sittings, strict=True)]
