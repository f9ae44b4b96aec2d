"""Before and after: two runs, with what became slower on top."""

from __future__ import annotations

from math import ceil
from typing import Any, Final

from ..bench.compare import FASTER, SAME, SLOWER, Change, Comparison, compare
from ..bench.document import Document
from .charts import ABOVE, MOST_MARKS, Data, Spec, chart, layer, line_at, log_axis, span, texts, tips
from .contenders import name_of
from .digest import Digest
from .html import Markup
from .parts import Block, Figure, Notice, Row, Section, Table, key
from .units import figures, plural, seconds, times, when

MOST_NAMED: Final = 30
"""The number of changes that are drawn with their names. The table has all changes."""
_LOOKS: Final = {
    SLOWER: ("var(--bad)", "triangle-up"),
    FASTER: ("var(--good)", "triangle-down"),
    SAME: ("var(--soft)", "circle"),
}
_TONES: Final = {SLOWER: "bad", FASTER: "good", SAME: ""}
_TIP: Final = tips(case="case", contender="contender", times="takes", before="before", after="after", verdict="verdict")
_ORDER: Final = (SLOWER, FASTER, SAME)


def section(digest: Digest, before: Document) -> Section:
    """The comparison. Runs of two machines are compared all the same, with a notice."""
    after = digest.document
    comparison = compare(before, after, across=True)
    blocks: list[Block] = []
    if before.machine["fingerprint"] != after.machine["fingerprint"]:
        blocks.append(Notice("warn", "The two runs come from different machines: what differs may be the machine.", [
            f"before: {_machine(before)}", f"after: {_machine(after)}",
        ]))  # fmt: skip
    blocks += _lost_and_found(comparison)
    found = sorted(comparison.changes, key=lambda c: (_ORDER.index(c.verdict), -abs(_distance(c))))
    if found:
        owners = {r.contender: name_of(r) for r in after.results}
        named = [c for c in found if c.verdict != SAME][:MOST_NAMED]
        if named:
            blocks.append(_named(digest, named, owners, sum(c.verdict != SAME for c in found)))
        blocks.append(_all(digest, found, owners))
    lead = (
        f"This run against the one of {when(before.created)}. Each time is taken over NumPy's in the same round, so "
        "that what made the whole machine slow plays no part; a difference counts when its whole 95% "
        "interval lies beyond 5%."
    )
    if not found:
        lead += " The two have no case in common."
    return Section("changes", "Before and after", lead, blocks)


def _distance(c: Change) -> float:
    return c.ratio.median if c.ratio.median > 1 else 1 / c.ratio.median


def _machine(document: Document) -> str:
    m = document.machine
    return f"{m['processor']}, {plural(m['threads'], 'thread')} (fingerprint {m['fingerprint']})"


def _lost_and_found(comparison: Comparison) -> list[Block]:
    found: list[Block] = []
    for tone, text, names in (
        ("bad", "no longer right, or not in this run", comparison.gone),
        ("good", "right in this run only", comparison.appeared),
    ):
        if names:
            shown = [*names[:8], *([f"and {len(names) - 8} more"] if len(names) > 8 else [])]
            found.append(Notice(tone, f"{plural(len(names), 'result')} {text}", shown))
    return found


def _row(c: Change, owners: dict[str, str]) -> dict[str, Any]:
    return {
        "who": owners.get(c.contender, c.contender), "case": c.case, "contender": c.contender,
        "label": f"{c.case}, {c.contender}", "median": c.ratio.median, "low": c.ratio.low, "high": c.ratio.high,
        "verdict": c.verdict, "times": f"{times(c.ratio)} as long",
        "before": seconds(c.before), "after": seconds(c.after),
    }  # fmt: skip


def _looks() -> dict[str, Spec]:
    def by(n: int) -> Spec:
        scale = {"domain": list(_LOOKS), "range": [look[n] for look in _LOOKS.values()]}
        return {"field": "verdict", "type": "nominal", "scale": scale, "legend": None}

    return {"color": by(0), "shape": by(1)}


def _named(digest: Digest, named: list[Change], owners: dict[str, str], total: int) -> Figure:
    """Each with its name above its interval: names are long and a phone is narrow."""
    data: Data = [{**_row(c, owners), "rank": n} for n, c in enumerate(named)]
    domain = span([v for c in named for v in (c.ratio.low, c.ratio.high)] + [0.9, 1.1], 0.05)
    x = log_axis("median", domain, "times as long as before", grid=True, orient="top")
    y = {"field": "rank", "type": "ordinal", "axis": None, "scale": {"paddingInner": 0, "paddingOuter": 0}}
    look = _looks()
    bar = {"type": "rule", "strokeWidth": 2, "opacity": 0.6, "yOffset": 7, "aria": False}
    dot = {"type": "point", "filled": True, "size": 60, "opacity": 1, "yOffset": 7}
    guide = {"type": "rule", "color": "var(--grid)", "yOffset": 7, "aria": False}
    low = {"field": "low", "type": "quantitative"}
    label = {"align": "left", "dy": -9, "limit": {"expr": "width"}}
    layers = [
        line_at(1, "x"),
        layer(guide, {"y": y, "x": {"value": 0}, "x2": {"value": "width"}}, where=()),
        *texts(data, {"x": {"value": 0}, "y": y}, label, field="label"),
        layer(bar, {"y": y, "x": low, "x2": {"field": "high"}, "color": look["color"]}, where=()),
        layer(dot, {"x": x, "y": y, "tooltip": _TIP, **look}, where=()),
    ]
    spec = chart("Cases that changed", digest.players, data, layers, 36 * len(named))
    shown = "" if total == len(named) else f" The {len(named)} largest of {total} are drawn."
    return Figure(
        "changes-named",
        "What changed",
        "Slower cases first, the largest change on top. Right of the line a case takes longer than before. "
        f"Bars: the 95% interval.{shown}",
        _finding(named),
        spec,
        _table("What changed", named, owners),
        legend=_key(),
        wide=True,
    )


def _all(digest: Digest, found: list[Change], owners: dict[str, str]) -> Figure:
    """All ratios in a row, from the slowest to the fastest."""
    ranked = list(enumerate(sorted(found, key=lambda c: -c.ratio.median), 1))
    each = ceil(len(ranked) / MOST_MARKS)
    data: Data = [{**_row(c, owners), "rank": n} for n, c in ranked[::each]]
    domain = span([v for c in found for v in (c.ratio.low, c.ratio.high)] + [0.9, 1.1], 0.05)
    y = log_axis("median", domain, "times as long", **ABOVE, grid=True)
    x = {
        "field": "rank", "type": "quantitative", "title": "cases, slowest first", "axis": {"labels": False},
        "scale": {"domain": [0, len(found) + 1], "nice": False},
    }  # fmt: skip
    look = _looks()
    spread = {"x": x, "y": {"field": "low", "type": "quantitative"}, "y2": {"field": "high"}, "color": look["color"]}
    dot = {"type": "point", "filled": True, "size": 26, "opacity": 1}
    layers = [
        line_at(1, "y"),
        layer({"type": "rule", "opacity": 0.35, "aria": False}, spread, where=()),
        layer(dot, {"x": x, "y": y, "tooltip": _TIP, **look}, where=()),
    ]
    spec = chart("All cases, before and after", digest.players, data, layers, 240)
    counts = {v: sum(c.verdict == v for c in found) for v in _ORDER}
    return Figure(
        "changes-all",
        "All cases",
        "Every case of both runs, from the one that became slowest to the one that became fastest."
        + (f" One in {each} is drawn." if each > 1 else ""),
        f"Of {plural(len(found), 'case')}, {counts[SLOWER]} are slower, {counts[FASTER]} faster and {counts[SAME]} "
        "show no difference.",
        spec,
        _table("All cases, before and after", found, owners),
        legend=_key(),
        wide=True,
    )


def _key() -> Markup:
    return key([(colour, shape, verdict) for verdict, (colour, shape) in _LOOKS.items()])


def _finding(named: list[Change]) -> str:
    worst = [c for c in named if c.verdict == SLOWER]
    best = [c for c in named if c.verdict == FASTER]
    said = []
    if worst:
        said.append(
            f"{worst[0].case} on {worst[0].contender} lost most: {figures(worst[0].ratio.median, 2)} times as long"
        )
    if best:
        said.append(
            f"{best[0].case} on {best[0].contender} gained most: {figures(best[0].ratio.median, 2)} times as long"
        )
    return f"{'; '.join(said)}."


def _table(title: str, found: list[Change], owners: dict[str, str]) -> Table:
    rows = [
        Row(
            (c.verdict, c.case, c.contender, seconds(c.before), seconds(c.after), times(c.ratio)),
            owners.get(c.contender, ""), _TONES[c.verdict],
        )
        for c in found
    ]  # fmt: skip
    return Table(title, ("verdict", "case", "contender", "#before", "#after", "#times as long (95% interval)"), rows)
