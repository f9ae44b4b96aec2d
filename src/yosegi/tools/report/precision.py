"""Precision: what a smaller dtype costs in error and brings in speed, and what it costs to get there."""

from __future__ import annotations

from math import isfinite
from statistics import median
from typing import Any, Final

from ..bench.document import Result
from .charts import ABOVE, MOST_ROWS, Data, Spec, chart, colour, intervals, layer, log_axis, shape, span, texts, tips
from .contenders import name_of
from .digest import Digest, is_whole
from .html import tag
from .parts import Block, Figure, Row, Section, Table
from .speed import MOST_FIGURES, in_squares, quartiles, sized
from .units import count, drawn, exponent, figures, rate, seconds

EXACT: Final = 1e-17
"""Where no error at all is drawn: a logarithmic axis has no zero."""
_SHORT: Final = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def section(digest: Digest) -> Section:
    """A figure for each program, then one for each size of conversions."""
    blocks: list[Block] = []
    programs: dict[tuple[str, int], list[Result]] = {}
    conversions: dict[int, list[Result]] = {}
    for r in digest.document.results:
        if is_whole(r) and r.suite == "precision":
            programs.setdefault((r.name, r.size), []).append(r)
        elif is_whole(r) and r.suite == "conversion" and r.status == "ok":
            conversions.setdefault(r.size, []).append(r)
    for n, ((name, _), results) in enumerate(list(programs.items())[:MOST_FIGURES]):
        if timed := [r for r in results if r.status == "ok" and r.error is not None and isfinite(r.error)]:
            blocks.append(_figure(digest, n, name, results, timed))
    if conversions:
        blocks.append(tag("h3", "What a conversion costs", class_="part"))
        blocks += [
            _conversion(digest, n, size, results)
            for n, (size, results) in enumerate(list(conversions.items())[:MOST_FIGURES])
        ]
    lead = (
        "The largest error, over the largest value of the result computed in float64, against speed. A smaller dtype "
        "is worth having where it moves a point up by more than it moves it to the right."
    )
    if not blocks:
        lead = "This run has no timed case of another precision and no conversion."
    return Section("precision", "Precision", lead, blocks, filtered=True)


def _figure(digest: Digest, n: int, name: str, results: list[Result], timed: list[Result]) -> Figure:
    title = f"{name}, {sized(timed[0].size, in_squares(timed[0]))}"
    return Figure(
        f"precision-{n}",
        title,
        "Up is faster, left is more precise. Lines join one contender's dtypes. A result beyond the tolerance of its "
        "dtype is wrong: it has no speed, and stands in the table only.",
        _finding(timed),
        _spec(digest, title, timed),
        _table(title, results),
    )


def _spec(digest: Digest, title: str, timed: list[Result]) -> Spec:
    data: Data = [
        {
            "who": name_of(r), "x": max(r.error or 0.0, EXACT), "y": _speed(r), "dtype": r.dtype,
            "error_text": exponent(r.error or 0.0), "rate_text": rate(_speed(r) * 1e9, "GFLOP/s"),
            "time_text": seconds(r.timing.median),
        }
        for r in timed
    ]  # fmt: skip
    x_domain = span([EXACT, 0.1, *(d["x"] for d in data)], 0.05)
    low, high = span([d["y"] for d in data], 0.08)
    y_domain = low, high * (high / low) ** 0.14
    ticks = [EXACT, 1e-14, 1e-11, 1e-8, 1e-5, 1e-2]
    label = f"datum.value <= {EXACT * 1.5} ? 'exact' : format(datum.value, '.0e')"
    x = log_axis("x", x_domain, "largest error", values=ticks, labelExpr=label)
    y = log_axis("y", y_domain, "GFLOP/s", **ABOVE, grid=True)
    middles = {k: median(d["x"] for d in data if d["dtype"] == k) for k in {r.dtype for r in timed}}
    names = [{"x": middles[k], "name": _SHORT.get(k, k)} for k in sorted(middles, key=lambda k: middles[k])]
    look = {"x": x, "y": y, "color": colour(digest.players)}
    tooltip = tips(who="contender", dtype="dtype", error_text="error", rate_text="speed", time_text="median")
    line = {"type": "line", "strokeWidth": 1, "opacity": 0.4, "aria": False}
    dot = {"type": "point", "filled": True, "size": 58, "opacity": 0.95}
    word = {"fontWeight": 600, "color": "var(--soft)", "baseline": "top"}
    layers = [
        layer(line, {**look, "order": {"field": "x"}}),
        layer(dot, {**look, "shape": shape(digest.players), "tooltip": tooltip}),
        *texts(names[::2], {"x": x, "y": {"value": 2}}, word),
        *texts(names[1::2], {"x": x, "y": {"value": 15}}, word),
    ]
    return chart(f"Error against speed of {title}", digest.players, data, layers, 270)


def _speed(r: Result) -> float:
    return max(r.flops, 1.0) / r.timing.median / 1e9


def _finding(timed: list[Result]) -> str:
    """The cost of the smallest error on the best device, and the gain or loss of a half."""
    own = [r for r in timed if r.device]
    single = min((r for r in own if r.dtype == "float32"), key=lambda r: r.timing.median, default=None)
    said = []
    for dtype in ("float16", "bfloat16"):
        half = min((r for r in own if r.dtype == dtype), key=lambda r: r.timing.median, default=None)
        if half is not None and single is not None:
            gain = figures(single.timing.median / half.timing.median, 2)
            said.append(
                f"{dtype} on {half.device} has {gain} times the speed of float32 on {single.device}, "
                f"with an error of {exponent(half.error or 0.0)} and not {exponent(single.error or 0.0)}"
            )
    if said:
        return f"At its best, {'; '.join(said)}."
    best = min(own or timed, key=lambda r: r.timing.median)
    return f"{best.dtype} on {name_of(best)} is the fastest, with an error of {exponent(best.error or 0.0)}."


def _table(title: str, results: list[Result]) -> Table:
    rows = []
    for r in results:
        ok = r.status == "ok"
        error = "" if r.error is None else exponent(r.error)
        rows.append(Row((
            name_of(r), r.dtype, error, "" if r.tolerance is None else exponent(r.tolerance),
            rate(_speed(r) * 1e9, "GFLOP/s") if ok else "", seconds(r.timing.median) if ok else "",
            "right" if ok else f"{r.status}: {r.reason}",
        ), name_of(r), "bad" if r.status == "wrong" else ""))  # fmt: skip
    headings = ("contender", "dtype", "#largest error", "#tolerance", "#speed", "#median", "result")
    return Table(f"{title}: error and speed", headings, rows)


# Conversions


def _conversion(digest: Digest, n: int, size: int, results: list[Result]) -> Figure:
    rows = list(dict.fromkeys(_way(r) for r in results))
    names = [p.name for p in digest.players if any(name_of(r) == p.name for r in results)]
    data = [_dot(r) for r in results]
    spec = intervals(
        f"Cost of conversions of {count(size)} elements", digest.players, data, rows=rows, parts=names, even=False,
        step=9, title="nanoseconds per element", look={"color": colour(digest.players), "shape": shape(digest.players)},
        tooltip=tips(who="contender", row="conversion", each="per element", time_text="median"),
    )  # fmt: skip
    cells = [
        Row((d["who"], d["row"], d["each"], d["time_text"], exponent(r.error or 0.0)), d["who"])
        for d, r in zip(data, results, strict=True)
    ]
    headings = ("contender", "conversion", "#per element", "#median", "#error")
    table = Table(f"Conversions of {count(size)} elements", headings, cells)
    look = "Left is cheaper. Bars: the middle half of the rounds." + drawn(MOST_ROWS, len(rows), "conversions")
    return Figure(f"conversion-{n}", sized(size, False), look, _cost(results), spec, table)


def _way(r: Result) -> str:
    return f"{r.dtype} → {r.name.removeprefix('to ')}"


def _each(r: Result) -> float:
    return r.timing.median / r.size * 1e9


def _dot(r: Result) -> dict[str, Any]:
    slow, fast = quartiles(r)
    return {
        "who": name_of(r), "part": name_of(r), "row": _way(r), "median": _each(r), "low": fast / r.size * 1e9,
        "high": slow / r.size * 1e9, "each": f"{figures(_each(r))} ns", "time_text": seconds(r.timing.median),
    }  # fmt: skip


def _cost(results: list[Result]) -> str:
    own = [r for r in results if r.device] or results
    least, most = (choose(own, key=_each) for choose in (min, max))
    return (
        f"The cheapest is {_way(least)} on {name_of(least)} at {figures(_each(least))} ns per element, "
        f"the dearest {_way(most)} on {name_of(most)} at {figures(_each(most))} ns."
    )
