"""Speed against size: a chart for each program, with the sizes at which one device overtakes another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import exp, log
from typing import Any, Final

import numpy as np

from ..bench.document import Result
from .charts import ABOVE, SHOWN, Spec, chart, colour, dash, layer, log_axis, shape, span, texts, tips
from .contenders import Player
from .digest import Digest, Group, speed_over
from .parts import Figure, Row, Section, Table
from .units import count, figures, percent, rate, seconds, short

SUITES: Final = ("matmul", "elementwise", "reduction", "convolution")
MOST_FIGURES: Final = 24
_HEIGHT: Final = 250
_MUCH: Final = 4
"""Operations per byte from which a program is rated by its arithmetic and not by its traffic."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where one overtakes another."""

    size: float
    seconds: float
    """The seconds of both at that size."""
    ahead: str
    """The contender that is faster from there on."""
    behind: str
    certain: bool
    """True if the sizes on both sides tell the two apart from noise."""


def crossings(a: Sequence[Result], b: Sequence[Result], names: tuple[str, str]) -> Iterator[Crossing]:
    """Where two series cross: between two measured sizes, straight lines in logarithms of size and time."""
    others = {r.size: r for r in b}
    shared = [(r, others[r.size]) for r in a if r.size in others]
    apart = [(x, y, log(x.timing.median / y.timing.median)) for x, y in shared]
    apart = [point for point in apart if point[2] != 0]
    for (x0, y0, d0), (x1, y1, d1) in pairwise(apart):
        if (d0 < 0) == (d1 < 0):
            continue
        t = d0 / (d0 - d1)
        ahead, behind = names if d1 < 0 else names[::-1]
        certain = all(is_distinguished(x, y) for x, y in ((x0, y0), (x1, y1)))
        size = exp(log(x0.size) + t * log(x1.size / x0.size))
        both = exp(log(x0.timing.median) + t * log(x1.timing.median / x0.timing.median))
        yield Crossing(size, both, ahead, behind, certain)


def is_distinguished(one: Result, other: Result) -> bool:
    """True if the interval of the ratio leaves out 1."""
    ratio = speed_over(one, other)
    return not ratio.low <= 1 <= ratio.high


def device_crossings(digest: Digest, series: dict[str, list[Result]]) -> list[Crossing]:
    """All crossings of devices with each other, smallest first."""
    names = [p.name for p in digest.devices if p.name in series]
    found = [c for a, b in combinations(names, 2) for c in crossings(series[a], series[b], (a, b))]
    return sorted(found, key=lambda c: c.size)


def in_squares(r: Result) -> bool:
    """True if its size is the side of square matrices."""
    return r.suite in ("matmul", "patterns") or r.name == "matmul"


def sized(size: float, squares: bool) -> str:
    """A size in words.

    >>> sized(512, True), sized(1000, False)
    ('512 × 512', '1,000 elements')
    """
    return f"{count(size)} × {count(size)}" if squares else f"{count(size)} elements"


def section(digest: Digest) -> Section:
    """A figure for each group."""
    groups = digest.groups(*SUITES)
    domains = {unit: span(_rates_of(groups, unit)) for unit in ("GB/s", "GFLOP/s")}
    made = [_figure(digest, n, g, s, domains) for n, (g, s) in enumerate(groups.items()) if n < MOST_FIGURES]
    lead = (
        "How much each contender gets done per second as the work grows. Small work is held by the cost of a call, "
        "large work by memory or arithmetic; where the lines of two devices cross, the better device changes."
    )
    if not groups:
        lead = "This run has no timed case of a product, an elementwise program or a sum."
    elif len(groups) > MOST_FIGURES:
        lead += f" The first {MOST_FIGURES} of {len(groups)} programs are drawn; the last section has them all."
    return Section("speed", "Speed against size", lead, list(made), filtered=True)


def unit_of(series: dict[str, list[Result]]) -> str:
    """The unit in which the speed of a group is counted: arithmetic where there is much of it per byte."""
    largest = max((r for results in series.values() for r in results), key=lambda r: r.size)
    return "GFLOP/s" if largest.flops > _MUCH * largest.nbytes else "GB/s"


def work(r: Result, unit: str) -> float:
    """The work of a call, in 1e9 of the unit."""
    return (r.flops if unit == "GFLOP/s" else float(r.nbytes)) / 1e9


def _rates_of(groups: dict[Group, dict[str, list[Result]]], unit: str) -> Iterator[float]:
    for series in groups.values():
        if unit_of(series) == unit:
            yield from (work(r, unit) / r.timing.median for results in series.values() for r in results)


def quartiles(r: Result) -> tuple[float, float]:
    """The seconds that a quarter of the rounds is above of, and below of."""
    low, high = np.quantile(r.timing.rounds, [0.25, 0.75])
    return float(high), float(low)


def _figure(
    digest: Digest, n: int, group: Group, series: dict[str, list[Result]], domains: dict[str, tuple[float, float]]
) -> Figure:
    _, name, dtype = group
    unit = unit_of(series)
    crossed = device_crossings(digest, series)
    title = name if dtype == "float32" else f"{name}, {dtype}"
    present = [p for p in digest.players if p.name in series]
    return Figure(
        f"speed-{n}",
        title,
        "Higher is faster. Bands and bars: the middle half of the rounds. Rings: where one device overtakes another.",
        finding(digest, series, crossed, unit),
        _spec(title, digest.players, present, series, crossed, unit, domains[unit]),
        _table(title, present, series, unit),
    )


def _spec(
    title: str, players: Sequence[Player], present: Sequence[Player], series: dict[str, list[Result]],
    crossed: list[Crossing], unit: str, domain: tuple[float, float],
) -> Spec:  # fmt: skip
    data = [_point(p, r, unit) for p in present for r in series[p.name]]
    squares = in_squares(next(iter(series.values()))[0])
    sizes = sorted({r.size for results in series.values() for r in results})
    x = log_axis("size", span(sizes, 0.04), "side of the matrices" if squares else "elements", labelFlush=True)
    if len(sizes) <= 8:
        x["axis"]["values"] = sizes
    x["axis"]["format"] = "d" if squares else "~s"
    y = log_axis("rate", domain, unit, **ABOVE, grid=True)
    tooltip = tips(who="contender", size_text="size", rate_text="speed", time_text="median", limit_text="of the limit")
    look = {"x": x, "y": y, "color": colour(players)}
    spread = {**look, "y": {**y, "field": "low"}, "y2": {"field": "high"}}
    points = {**look, "shape": shape(players), "tooltip": tooltip}
    own, others = (SHOWN, "datum.is_device"), (SHOWN, "!datum.is_device")
    work_at = {r.size: work(r, unit) for results in series.values() for r in results}
    rings = [_ring(c, _between(work_at, c.size) / c.seconds, sizes) for c in crossed]
    layers = [
        layer({"type": "area", "opacity": 0.16, "aria": False, "clip": True}, spread, where=own),
        layer({"type": "rule", "opacity": 0.45, "aria": False, "clip": True}, spread, where=others),
        layer({"type": "line", "strokeWidth": 1.3, "aria": False}, {**look, "strokeDash": dash(players)}, where=others),
        layer({"type": "point", "filled": True, "size": 24, "opacity": 1}, points, where=others),
        layer({"type": "line", "strokeWidth": 2.6, "aria": False}, look, where=own),
        layer({"type": "point", "filled": True, "size": 52, "opacity": 1}, points, where=own),
        *(_crossing_layers(rings, x, y) if rings else ()),
    ]
    return chart(f"Speed of {title} against size, in {unit}", players, data, layers, _HEIGHT)


def _point(player: Player, r: Result, unit: str) -> dict[str, Any]:
    slow, fast = quartiles(r)
    done = work(r, unit)
    return {
        "who": player.name, "is_device": player.is_device, "size": r.size, "rate": done / r.timing.median,
        "low": done / slow, "high": done / fast, "size_text": sized(r.size, in_squares(r)),
        "rate_text": rate(done / r.timing.median * 1e9, unit), "time_text": seconds(r.timing.median),
        "limit_text": percent(r.of_limit) or "not known",
    }  # fmt: skip


def _between(known: dict[int, float], size: float) -> float:
    """A value at a size in between, straight in logarithms."""
    sizes = sorted(known)
    return float(np.exp(np.interp(log(size), np.log(sizes), np.log([known[s] for s in sizes]))))


def _ring(c: Crossing, at: float, sizes: Sequence[int]) -> dict[str, Any]:
    right = log(c.size / sizes[0]) > 0.6 * log(sizes[-1] / sizes[0])
    return {
        "size": c.size, "rate": at, "ahead": c.ahead, "behind": c.behind, "right": right,
        "text": short(c.size) if c.certain else f"{short(c.size)}?",
        "said": f"{c.ahead} overtakes {c.behind}", "size_text": f"about {count(c.size)}",
        "certain": "yes" if c.certain else "within the noise",
    }  # fmt: skip


def _crossing_layers(rings: list[dict[str, Any]], x: Spec, y: Spec) -> Iterator[Spec]:
    both = ("indexof(shown, datum.ahead) >= 0 && indexof(shown, datum.behind) >= 0",)
    tooltip = tips(said="crossing", size_text="size", certain="certain")
    rule = {"type": "rule", "strokeDash": [2, 3], "color": "var(--ink)", "opacity": 0.55, "aria": False}
    ring = {"type": "point", "size": 130, "filled": True, "fill": "var(--card)", "stroke": "var(--ink)", "opacity": 1}
    yield layer(rule, {"x": x}, data=rings, where=both)
    yield layer({**ring, "strokeWidth": 1.8}, {"x": x, "y": y, "tooltip": tooltip}, data=rings, where=both)
    for right, align, dx in ((True, "right", -6), (False, "left", 6)):
        side = [r for r in rings if r["right"] == right]
        look = {"align": align, "dx": dx, "fontWeight": 600}
        yield from texts(side, {"x": x, "y": {"value": 8}}, look, field="text", where=both)


def finding(digest: Digest, series: dict[str, list[Result]], crossed: list[Crossing], unit: str) -> str:
    """A summary of the chart, in a sentence or two."""
    own = [p.name for p in digest.devices if p.name in series]
    squares = in_squares(next(iter(series.values()))[0])
    said = []
    for c in crossed[:2]:
        doubt = "" if c.certain else " (within the noise)"
        said.append(f"{c.ahead} overtakes {c.behind} at about {sized(c.size, squares)}{doubt}")
    everywhere = set.intersection(*[{r.size for r in series[name]} for name in own]) if own else set()
    if not crossed and len(own) > 1 and everywhere:
        at_most = {name: r for name in own for r in series[name] if r.size == max(everywhere)}
        fastest = min(own, key=lambda name: at_most[name].timing.median)
        said.append(f"{fastest} is the fastest device at every size that all of them ran")
    last = max(r.size for results in series.values() for r in results)
    at_last = {name: r for name, results in series.items() for r in results if r.size == last}
    mine = min((n for n in own if n in at_last), key=lambda n: at_last[n].timing.median, default=None)
    if mine is not None:
        said.append(_standing(at_last, mine, last, squares, unit))
    text = "; ".join(said) or "no device has a right result here"
    return f"{text if text.startswith(tuple(own)) else text[0].upper() + text[1:]}."


def _standing(at_last: dict[str, Result], mine: str, last: int, squares: bool, unit: str) -> str:
    r = at_last[mine]
    reached = f"at {sized(last, squares)} {mine} reaches {rate(work(r, unit) / r.timing.median * 1e9, unit)}"
    others = [n for n, o in at_last.items() if o.device is None]
    if not others:
        return reached
    best = min(others, key=lambda n: at_last[n].timing.median)
    times = figures(speed_over(r, at_last[best]).median, 2)
    return f"{reached}, {times} times the speed of {best}, the fastest peer"


def _table(title: str, present: Sequence[Player], series: dict[str, list[Result]], unit: str) -> Table:
    rows = []
    for p in present:
        for r in series[p.name]:
            slow, fast = quartiles(r)
            done = work(r, unit) * 1e9
            rows.append(Row((
                p.name, sized(r.size, in_squares(r)), rate(done / r.timing.median, unit),
                f"{figures(done / slow / 1e9)} – {figures(done / fast / 1e9)}", seconds(r.timing.median),
                percent(r.of_limit),
            ), p.name))  # fmt: skip
    headings = ("contender", "#size", "#speed", "#middle half of the rounds", "#median", "#of the limit")
    return Table(f"{title}: speed by size", headings, rows)
