"""Fused against separate: what it gains to run a pattern as one program and not op by op."""

from __future__ import annotations

from typing import Any, Final

from ..bench.document import Result
from ..bench.runners import JIT, SEPARATE
from ..bench.timing import Ratio
from . import theme
from .charts import MOST_ROWS, Data, intervals, tips
from .contenders import Player
from .digest import Digest, speed_over
from .parts import Figure, Row, Section, Table, key
from .speed import sized
from .units import count, drawn, figures, plural, seconds, times

_LOOK: Final = (
    "Right of the line, the pattern is faster as one program; left of it, slower. Bars: the 95% interval of the ratio. "
    "A row for each pattern, from the smallest size at its top to the largest."
)

Pair = tuple[Result, Result, Ratio]
"""Fused, separate, and how many times the speed of separate fused has."""


def section(digest: Digest) -> Section:
    """A figure for each device."""
    made = [f for n, device in enumerate(digest.devices) if (f := _figure(digest, n, device)) is not None]
    lead = (
        "Seven patterns that networks are made of, each run as one program and op by op on the same device, in the "
        "same rounds. Fusing saves the way through memory, but a large product can lose more by a poorer kernel than "
        "it gains."
    )
    if not made:
        lead = "No device of this run has a pattern timed both ways."
    return Section("fusion", "Fused against separate", lead, list(made))


def pairs(digest: Digest, device: str) -> list[Pair]:
    """The patterns that a device ran both ways."""
    found = []
    for results in digest.cases.values():
        variants = {r.mode: r for r in results if r.suite == "patterns" and r.device == device}
        if JIT in variants and SEPARATE in variants:
            found.append((variants[JIT], variants[SEPARATE], speed_over(variants[JIT], variants[SEPARATE])))
    return found


def _figure(digest: Digest, n: int, device: Player) -> Figure | None:
    found = pairs(digest, device.name)
    if not found:
        return None
    sizes = sorted({fused.size for fused, _, _ in found})
    tones = {size: f"var(--step-{min(i, theme.STEPS - 1)})" for i, size in enumerate(sizes)}
    data: Data = [_dot(device, *pair) for pair in found]
    look: dict[str, Any] = {
        "color": {"field": "part", "type": "nominal", "legend": None,
                  "scale": {"domain": sizes, "range": [tones[s] for s in sizes]}}
    }  # fmt: skip
    rows = list(dict.fromkeys(fused.name for fused, _, _ in found))
    spec = intervals(
        f"Fused against separate on {device.name}", digest.players, data, rows=rows, parts=sizes,
        title="times the speed of op by op", look=look, where=(),
        tooltip=tips(row="pattern", size_text="size", times="fused", fused="as one", separate="op by op"),
    )  # fmt: skip
    legend = key([(tones[s], "circle", f"{count(s)} × {count(s)}") for s in sizes])
    said = _LOOK + drawn(MOST_ROWS, len(rows), "patterns")
    return Figure(
        f"fusion-{n}", device.name, said, _finding(device.name, found), spec, _table(device.name, found), legend
    )


def _dot(device: Player, fused: Result, separate: Result, ratio: Ratio) -> dict[str, Any]:
    return {
        "who": device.name, "row": fused.name, "part": fused.size, "median": ratio.median, "low": ratio.low,
        "high": ratio.high, "size_text": sized(fused.size, True), "times": times(ratio),
        "fused": seconds(fused.timing.median), "separate": seconds(separate.timing.median),
    }  # fmt: skip


def _finding(device: str, found: list[Pair]) -> str:
    faster = [p for p in found if p[2].low > 1]
    slower = [p for p in found if p[2].high < 1]
    text = f"On {device}, fusing is faster in {len(faster)} of {plural(len(found), 'case')} and slower in {len(slower)}"
    if not faster:
        return f"{text}."
    fused, _, ratio = max(faster, key=lambda p: p[2].median)
    gain = figures(ratio.median, 2)
    return f"{text}; it gains most in {fused.name} at {sized(fused.size, True)}: {gain} times the speed."


def _table(device: str, found: list[Pair]) -> Table:
    rows = [
        Row(
            (f.name, sized(f.size, True), seconds(f.timing.median), seconds(s.timing.median), times(ratio)),
            tone="good" if ratio.low > 1 else "bad" if ratio.high < 1 else "",
        )
        for f, s, ratio in found
    ]
    headings = ("pattern", "#size", "#as one", "#op by op", "#fused, times the speed (95% interval)")
    return Table(f"Fused against separate on {device}", headings, rows)
