"""The common parts of charts: Vega-Lite specifications as plain data, for the look and for the axes.

Every chart is as wide as its place, takes its colours from the style sheet, and has one parameter, `shown`, that the
boxes of the legend set: the contenders that are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil, floor, log10
from typing import Any, Final

from .contenders import Player
from .theme import FONT

Spec = dict[str, Any]
Data = list[dict[str, Any]]

CONFIG: Final[Spec] = {
    "background": None,
    "font": FONT,
    "padding": {"left": 2, "right": 8, "top": 4, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)", "titleColor": "var(--soft)", "gridColor": "var(--grid)",
        "domainColor": "var(--line)", "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        "labelPadding": 5, "titlePadding": 8, "ticks": False, "domain": False, "labelOverlap": True,
    },
    "axisX": {"domain": True, "grid": False},
    "text": {"color": "var(--ink)", "font": FONT},
}  # fmt: skip
"""The look, once for all charts."""

MOST_ROWS: Final = 40
MOST_MARKS: Final = 1500
"""Rows of a chart and marks in it: with more, nobody sees anything and browsers are slow."""

SHOWN: Final = "indexof(shown, datum.who) >= 0"


def chart(description: str, players: Sequence[Player], data: Data, layers: Iterable[Spec], height: int) -> Spec:
    """A chart of layers over the same data."""
    return {
        "description": description,
        "width": "container",
        "height": height,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "params": [{"name": "shown", "value": [p.name for p in players]}],
        "data": {"values": data},
        "layer": list(layers),
    }


def layer(mark: Spec, encoding: Spec, *, data: Data | None = None, where: Sequence[str] = (SHOWN,)) -> Spec:
    """A layer of a chart, for the rows of its data that pass the filters."""
    made: Spec = {"mark": mark, "encoding": encoding}
    if where:
        made["transform"] = [{"filter": condition} for condition in where]
    if data is not None:
        made["data"] = {"values": data}
    return made


def line_at(value: float, axis: str) -> Spec:
    """A line across the whole chart at a value of an axis."""
    mark = {"type": "rule", "color": "var(--soft)", "strokeWidth": 1.2, "aria": False}
    return layer(mark, {axis: {"field": "at", "type": "quantitative"}}, data=[{"at": value}], where=())


def texts(data: Data, place: Spec, look: Spec, *, field: str = "name", where: Sequence[str] = ()) -> list[Spec]:
    """Words on a ground of their own, so that lines and points behind do not disturb them."""
    text = {"type": "text", "fontSize": 12, "aria": False, "baseline": "middle", **look}
    ground = {**text, "color": "var(--card)", "stroke": "var(--card)", "strokeWidth": 4, "strokeJoin": "round"}
    encoding = {**place, "text": {"field": field}}
    return [layer(mark, encoding, data=data, where=where) for mark in (ground, text)] if data else []


def colour(players: Sequence[Player]) -> Spec:
    """Colour by contender."""
    return _by_name(players, [p.colour for p in players])


def shape(players: Sequence[Player]) -> Spec:
    """Shape by contender."""
    return _by_name(players, [p.shape for p in players])


def dash(players: Sequence[Player]) -> Spec:
    """Dashes by contender."""
    return _by_name(players, [list(p.dash) or [1, 0] for p in players])


def _by_name(players: Sequence[Player], looks: list[Any]) -> Spec:
    scale = {"domain": [p.name for p in players], "range": looks}
    return {"field": "who", "type": "nominal", "scale": scale, "legend": None}


def tips(**fields: str) -> list[Spec]:
    """The fields that a pointer over a mark shows, each with its title."""
    return [{"field": name, "type": "nominal", "title": title} for name, title in fields.items()]


# Axes


def log_axis(field: str, domain: tuple[float, float], title: str, **more: Any) -> Spec:
    """A logarithmic axis with round figures at its ticks."""
    axis = {"title": title, "values": ticks(*domain), "format": "~g", **more}
    return {
        "field": field, "type": "quantitative", "axis": axis,
        "scale": {"type": "log", "domain": list(domain), "nice": False},
    }  # fmt: skip


ABOVE: Final = {"titleAngle": 0, "titleAlign": "left", "titleAnchor": "end", "titleX": -28, "titleY": -10}
"""For an axis on the left: its title lies flat above it."""


def span(values: Iterable[float], margin: float = 0.06) -> tuple[float, float]:
    """The domain of a logarithmic axis: all values, and a little room at both ends.

    >>> span([1.0, 100.0], 0.5)
    (0.1, 1000.0)
    """
    logs = [log10(v) for v in values if v > 0] or [0.0]
    room = max(max(logs) - min(logs), 0.3) * margin
    return 10 ** (min(logs) - room), 10 ** (max(logs) + room)


def ticks(low: float, high: float) -> list[float]:
    """Powers of ten between two values; where they are few, what lies between them too.

    >>> ticks(0.5, 2000.0)
    [1.0, 10.0, 100.0, 1000.0]
    >>> ticks(0.37, 1.7)
    [0.5, 0.7, 1.0, 1.5]
    >>> ticks(0.8, 21.0)
    [1.0, 2.0, 5.0, 10.0, 20.0]
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7), (1, 1.1, 1.2, 1.3, 1.5, 1.7, 2, 3, 4, 5, 6, 7, 8, 9)):
        found = [float(f"{s:g}e{p}") for p in powers for s in steps]
        found = [v for v in found if low <= v <= high]
        if len(found) >= 4:
            break
    while len(found) > 9:
        found = found[::2]
    if len(found) < 3:  # too near to each other for round figures in this sense
        found = [low * (high / low) ** (i / 3) for i in range(1, 3)]
        found = [float(f"{v:.3g}") for v in found]
    return found


# Dots with intervals


def intervals(
    description: str, players: Sequence[Player], data: Data, *, rows: Sequence[str], parts: Sequence[Any], title: str,
    look: Spec, tooltip: list[Spec], where: Sequence[str] = (SHOWN,), even: bool = True, step: int = 11,
) -> Spec:  # fmt: skip
    """A dot and its interval for each part of each row, on a logarithmic axis; 1 is marked where it means even.

    `data` has `row`, `part`, `median`, `low` and `high`; `look` is how dots differ (colour, shape).
    """
    rows = rows[:MOST_ROWS]
    data = [d for d in data if d["row"] in rows]
    extremes = [v for d in data for v in (d["low"], d["high"])] + ([0.8, 1.25] if even else [])
    domain = span(extremes)
    x = log_axis("median", domain, title, grid=True, orient="bottom")
    y: Spec = {
        "field": "row", "type": "nominal", "sort": list(rows), "title": None,
        "scale": {"paddingInner": 0.3, "paddingOuter": 0.15},
        "axis": {"labelLimit": 150, "labelColor": "var(--ink)", "domain": False, "labelFontSize": 12.5},
    }  # fmt: skip
    offset = {"field": "part", "type": "nominal", "sort": list(parts), "scale": {"domain": list(parts)}}
    bar = {"type": "rule", "strokeWidth": 1.6, "opacity": 0.65, "aria": False}
    dot = {"type": "point", "filled": True, "size": 46, "opacity": 1}
    low = {"x": {"field": "low", "type": "quantitative"}, "x2": {"field": "high"}, "color": look["color"]}
    layers = [
        *([line_at(1, "x")] if even else []),
        layer(bar, {"y": y, "yOffset": offset, **low}, where=where),
        layer(dot, {"x": x, "y": y, "yOffset": offset, "tooltip": tooltip, **look}, where=where),
    ]
    return chart(description, players, data, layers, max(80, len(rows) * (len(parts) * step + 8) + 10))
