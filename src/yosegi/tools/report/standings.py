"""Where each device stands against each peer, over all cases that both have right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..bench.compare import THRESHOLD
from ..bench.document import Result
from ..bench.timing import Ratio, middle, resampled_medians
from .charts import colour, intervals, shape, tips
from .digest import Digest, is_whole
from .parts import Figure, Row, Table, key
from .units import count, figures, plural, times

_LEFT_OUT: Final = ("transfer", "memory", "overhead")
"""Suites whose figures are not a program's speed."""
MOST_PAIRS: Final = 5_000
"""Beyond that many pairs of results, only the first cases are looked at: each takes a millisecond or two."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A device against a peer."""

    device: str
    peer: str
    cases: int
    speed: Ratio
    """The geometric mean, over the cases, of how many times the peer's speed the device has."""
    faster: int
    slower: int
    suites: dict[str, float]
    """The mean for each suite."""


def standings(digest: Digest) -> list[Standing]:
    """Every device against every peer with which it shares a case."""
    shared: dict[tuple[str, str], list[tuple[Result, Result]]] = {}
    pairs = 0
    for results in digest.cases.values():
        own = [r for r in results if r.device and is_whole(r) and r.suite not in _LEFT_OUT]
        for r in own:
            for other in results:
                if not other.device and pairs < MOST_PAIRS:
                    shared.setdefault((r.device or "", other.contender), []).append((r, other))
                    pairs += 1
    order = [p.name for p in digest.players]
    keys = sorted(shared, key=lambda k: (order.index(k[1]), order.index(k[0])))
    return [_standing(*k, shared[k]) for k in keys]


def _standing(device: str, peer: str, pairs: list[tuple[Result, Result]]) -> Standing:
    logs: list[Any] = []
    faster = slower = 0
    rng = np.random.default_rng(0)
    suites: dict[str, list[float]] = {}
    for own, other in pairs:
        ratios = [np.asarray(o) / np.asarray(s) for s, o in zip(own.sittings, other.sittings, strict=True)]
        draws = rng.permutation(resampled_medians(ratios))  # the luck of one case is not that of the next
        low, high = np.quantile(draws, [0.025, 0.975])
        faster += bool(low > 1 + THRESHOLD)
        slower += bool(high < 1 / (1 + THRESHOLD))
        logs.append(np.log(draws))
        suites.setdefault(own.suite, []).append(float(np.log(middle(ratios))))
    low, median, high = np.exp(np.quantile(np.mean(logs, axis=0), [0.025, 0.5, 0.975]))
    overall = Ratio(float(median), float(low), float(high))
    by_suite = {suite: float(np.exp(np.mean(values))) for suite, values in suites.items()}
    return Standing(device, peer, len(pairs), overall, faster, slower, by_suite)


def figure(digest: Digest) -> Figure | None:
    """The chart of all standings."""
    found = standings(digest)
    if not found:
        return None
    peers = list(dict.fromkeys(s.peer for s in found))
    devices = [p for p in digest.devices if any(s.device == p.name for s in found)]
    data: list[dict[str, Any]] = [
        {
            "who": s.device, "part": s.device, "row": s.peer, "median": s.speed.median, "low": s.speed.low,
            "high": s.speed.high, "times": times(s.speed), "cases": count(s.cases), "split": _split(s),
        }
        for s in found
    ]  # fmt: skip
    spec = intervals(
        "Each device's speed over each peer's", digest.players, data, rows=peers, parts=[p.name for p in devices],
        step=15, title="times the peer's speed", where=(),
        look={"color": colour(digest.players), "shape": shape(digest.players)},
        tooltip=tips(who="device", row="peer", times="times its speed", cases="cases", split="of them"),
    )  # fmt: skip
    return Figure(
        "standings",
        "Against the peers",
        "Right of the line a device is faster than the peer, in the geometric mean over all cases that both got right. "
        f"Bars: the 95% interval.{_first(found)}",
        finding(found),
        spec,
        _table(found),
        legend=key([(p.colour, p.shape, p.name) for p in devices]),
        wide=True,
    )


def _first(found: list[Standing]) -> str:
    looked_at = sum(s.cases for s in found)
    return f" The first {MOST_PAIRS:,} pairs of results were looked at." if looked_at >= MOST_PAIRS else ""


def _split(s: Standing) -> str:
    return f"{s.faster} faster, {s.slower} slower, {s.cases - s.faster - s.slower} level"


def finding(found: list[Standing]) -> str:
    """The best and the worst of them."""
    best, worst = (choose(found, key=lambda s: s.speed.median) for choose in (max, min))
    ahead, behind = (figures(s.speed.median, 2) for s in (best, worst))
    first = f"{best.device} has {ahead} times the speed of {best.peer} over {plural(best.cases, 'case')}"
    if best is worst:
        return f"{first} ({_split(best)})."
    return f"{first}, the best standing of all; the poorest is {worst.device} at {behind} times {worst.peer}'s."


def _table(found: list[Standing]) -> Table:
    suites = list(dict.fromkeys(suite for s in found for suite in s.suites))
    rows = [
        Row(
            (s.device, s.peer, count(s.cases), times(s.speed), count(s.faster), count(s.slower),
             *[f"{figures(s.suites[suite])}×" if suite in s.suites else "" for suite in suites]),
            tone="good" if s.speed.low > 1 + THRESHOLD else "bad" if s.speed.high < 1 / (1 + THRESHOLD) else "",
        )
        for s in found
    ]  # fmt: skip
    overall = ("device", "peer", "#cases", "#times its speed (95% interval)", "#faster", "#slower")
    headings = (*overall, *[f"#{s}" for s in suites])
    return Table("Each device against each peer, over all cases and by suite", headings, rows)
