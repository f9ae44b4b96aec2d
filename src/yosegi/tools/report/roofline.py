"""The roofline: how near each case comes to what the machine can do, by memory or by arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from math import log10
from typing import Any, Final

from ..bench.document import Result
from .charts import ABOVE, MOST_MARKS, Data, Spec, chart, layer, log_axis, span, texts, tips
from .contenders import Player
from .digest import Digest, is_whole
from .parts import Block, Figure, Row, Section, Table, key
from .speed import in_squares, sized
from .units import drawn, figures, nbytes, percent, plural, rate, seconds

_HEIGHT: Final = 360
_SUITES: Final = {
    "matmul": ("square", "products"),
    "elementwise": ("circle", "elementwise"),
    "reduction": ("triangle-up", "reductions"),
    "convolution": ("triangle-down", "convolutions"),
    "patterns": ("diamond", "fused patterns"),
    "precision": ("cross", "other precisions"),
}
"""The suites that are drawn: a shape, and what they are called."""
_LABELLED: Final = ("elementwise", "reduction")
_ROOM: Final = (0.13, 0.055)
"""The part of the chart's width and height that a label needs for itself."""
_BEYOND: Final = 1.1
"""A share of the limit above that is no longer noise: the limit is not one."""
_NEAR: Final = 0.12
"""Level roofs that differ by less, in powers of ten, share their name's place."""

Roofs = list[tuple[str, float]]
"""Each with its name."""


def section(digest: Digest) -> Section:
    """A figure for each device."""
    made: list[Block] = []
    for n, device in enumerate(digest.devices):
        cases = [r for r in digest.timed if r.device == device.name and is_whole(r) and r.suite in _SUITES]
        cases = [r for r in cases if r.flops > 0 and r.nbytes > 0]
        if cases:
            made.append(_figure(digest, n, device, cases))
    lead = (
        "Every case has so much arithmetic for each byte that it must move. The slanted roofs are what memory allows, "
        "the level ones what the best library reaches in products, all measured in the same run. A case on its roof "
        "cannot be faster without moving less or computing less."
    )
    if not made:
        lead = "No device of this run has a timed case with both arithmetic and traffic."
    return Section("roofline", "Roofline", lead, made)


def roofs(limits: dict[str, Any], owner: str) -> tuple[Roofs, Roofs]:
    """Memory roofs in GB/s and compute roofs in GFLOP/s, highest first, each with its name.

    The host has two of memory: its best, which a cache gives, and that of the largest array. Of a device with memory of
    its own only memory is known: the products that were measured are the host's.
    """
    if owner:
        best_copy = max(limits["device_copy"][owner].values(), default=0.0)
        return [("memory", best_copy)] if best_copy > 0 else [], []
    best: dict[int, float] = {}
    for table in limits["copy"].values():
        for size, speed in table.items():
            best[int(size)] = max(best.get(int(size), 0.0), speed)
    memory = []
    if best:
        top = max(best, key=lambda n: best[n])
        memory = [(f"caches ({nbytes(2 * top)})", best[top])] if best[top] > 1.2 * best[max(best)] else []
        memory.append((f"memory ({nbytes(2 * max(best))})", best[max(best)]))
        memory = [roof for roof in memory if roof[1] > 0]
    compute = [(f"{dtype}, by {p['by']}", p["gflops"]) for dtype, p in limits["products"].items() if p["gflops"] > 0]
    return memory, sorted(compute, key=lambda c: -c[1])


def _figure(digest: Digest, n: int, device: Player, cases: list[Result]) -> Figure:
    owner = digest.limit_of(device.name)
    memory, compute = roofs(digest.document.limits, owner)
    suites = [s for s in _SUITES if any(r.suite == s for r in cases)]
    look = "Further up is faster; look at the distance to the roof above. Lines join the sizes of one program."
    unknown = " The arithmetic that this device could do is not known." if owner else ""
    return Figure(
        f"roofline-{n}",
        device.name,
        look + drawn(MOST_MARKS, len(cases), "cases") + unknown,
        _finding(device.name, cases),
        _spec(digest, device, cases[:MOST_MARKS], memory, compute),
        _table(device.name, cases),
        legend=key([(device.colour, _SUITES[s][0], _SUITES[s][1]) for s in suites]),
        wide=True,
    )


def _intensity(r: Result) -> float:
    return r.flops / r.nbytes


def _speed(r: Result) -> float:
    return r.flops / r.timing.median / 1e9


def _spec(digest: Digest, device: Player, cases: list[Result], memory: Roofs, compute: Roofs) -> Spec:
    left, right = span([_intensity(r) for r in cases], 0.12)
    if compute:  # room for the names of the roofs, where no case is
        right *= (right / left) ** 0.16
    heights = [_speed(r) for r in cases]
    tops = [c for _, c in compute] or [max([*heights, *(right * gb for _, gb in memory)])]
    lowest = min([*heights, *(c for _, c in compute)])
    bottom, top = span([lowest, max([*tops, *heights])], 0.08)
    lines = list(_roof_lines(memory, compute, (left, right), (bottom, top)))
    x = log_axis("x", (left, right), "operations per byte")
    y = log_axis("y", (bottom, top), "GFLOP/s", **ABOVE, grid=True)
    shapes = {"domain": list(_SUITES), "range": [s for s, _ in _SUITES.values()]}
    tooltip = tips(name="program", size_text="size", rate_text="speed", limit_text="of the limit", bound="held by")
    place: Spec = {"x": x, "y": y}
    point = {
        **place,
        "shape": {"field": "suite", "type": "nominal", "legend": None, "scale": shapes},
        "tooltip": tooltip,
    }
    way = {**place, "detail": {"field": "group"}, "order": {"field": "size"}}
    path = {"type": "line", "strokeWidth": 1, "opacity": 0.35, "color": device.colour, "aria": False}
    roof = {"type": "line", "strokeWidth": 1.6, "color": "var(--accent)", "aria": False, "clip": True}
    dot = {"type": "point", "filled": True, "size": 58, "color": device.colour, "opacity": 0.9}
    slope = f"-atan2(height / {log10(top / bottom)}, width / {log10(right / left)}) * 180 / PI"
    level = {"align": "right", "dx": -2, "dy": -8, "color": "var(--accent)"}
    slanted = {"align": "left", "dy": -8, "angle": {"expr": slope}, "color": "var(--accent)"}
    names = {"align": "left", "dx": 8, "opacity": {"expr": "width < 460 ? 0 : 1"}}
    layers = [
        layer(roof, {**place, "detail": {"field": "name"}}, data=lines, where=()),
        layer(path, way, where=()),
        layer(dot, point, where=()),
        *texts(_level_names(compute, right), place, level),
        *texts(_slanted_names(memory, lines), place, slanted),
        *texts(list(_labels(cases, (left, right), (bottom, top))), place, names),
    ]
    return chart(f"Roofline of {device.name}", digest.players, [_point(device, r) for r in cases], layers, _HEIGHT)


def _point(device: Player, r: Result) -> dict[str, Any]:
    return {
        "who": device.name, "x": _intensity(r), "y": _speed(r), "suite": r.suite, "size": r.size,
        "group": f"{r.suite} {r.name} {r.dtype}", "name": r.name if r.dtype == "float32" else f"{r.name}, {r.dtype}",
        "size_text": sized(r.size, in_squares(r)), "rate_text": rate(_speed(r) * 1e9, "GFLOP/s"),
        "limit_text": percent(r.of_limit) or "not known", "bound": r.bound or "not known",
    }  # fmt: skip


def _roof_lines(
    memory: Roofs, compute: Roofs, x: tuple[float, float], y: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    highest = max((c for _, c in compute), default=y[1])
    fastest = max((m for _, m in memory), default=0.0)
    for name, gb in memory:
        start, end = max(x[0], y[0] / gb), min(x[1], highest / gb)
        if start < end:
            yield {"name": name, "x": start, "y": start * gb}
            yield {"name": name, "x": end, "y": end * gb}
    for name, flops in compute:
        start = max(x[0], flops / fastest) if fastest else x[0]
        if start < x[1]:
            yield {"name": name, "x": start, "y": flops}
            yield {"name": name, "x": x[1], "y": flops}


def _level_names(compute: Roofs, right: float) -> Data:
    """Names at the right ends of level roofs; two that are near to each other share a line."""
    made: Data = []
    for name, flops in compute:
        if made and log10(made[-1]["y"] / flops) < _NEAR:
            made[-1]["name"] += f"; {name}"
        else:
            made.append({"name": name, "x": right, "y": flops})
    return made


def _slanted_names(memory: Roofs, lines: Data) -> Data:
    """Names along slanted roofs, from their lower ends."""
    made: Data = []
    for name, gb in memory:
        ends = [line for line in lines if line["name"] == name]
        if ends:
            x = ends[0]["x"] * (ends[1]["x"] / ends[0]["x"]) ** 0.02
            made.append({"name": f"{name}: {figures(gb)} GB/s", "x": x, "y": x * gb})
    return made


def _labels(cases: list[Result], x: tuple[float, float], y: tuple[float, float]) -> Iterator[dict[str, Any]]:
    """The largest of each program is named, where there is room for it."""
    taken: list[tuple[float, float]] = []
    largest = {(r.suite, r.name): r for r in sorted(cases, key=lambda r: r.size) if r.suite in _LABELLED}
    for r in sorted(largest.values(), key=lambda r: -_speed(r)):
        at = (log10(_intensity(r) / x[0]) / log10(x[1] / x[0]), log10(_speed(r) / y[0]) / log10(y[1] / y[0]))
        if all(abs(at[0] - a) > _ROOM[0] or abs(at[1] - b) > _ROOM[1] for a, b in taken):
            taken.append(at)
            yield {"x": _intensity(r), "y": _speed(r), "name": r.name}


def _finding(device: str, cases: list[Result]) -> str:
    judged = [(r, r.of_limit) for r in cases if r.of_limit is not None]
    if not judged:
        return f"{device}: {plural(len(cases), 'case')}, no limit to judge them by."
    near = sum(share >= 0.5 for _, share in judged)
    within = [j for j in judged if j[1] <= _BEYOND]
    beyond = len(judged) - len(within)
    text = f"{near} of {plural(len(judged), 'case')} on {device} reach half of their roof or more"
    if within:
        best, share = max(within, key=lambda j: j[1])
        kind = "" if best.dtype == "float32" else f" {best.dtype}"
        text += f"; {best.name}{kind} at {sized(best.size, in_squares(best))} comes nearest with {percent(share)}"
    if beyond:
        goes = "goes" if beyond == 1 else "go"
        text += f"; {plural(beyond, 'case')} {goes} beyond, where the measured limit is poor itself"
    return f"{text}."


def _table(device: str, cases: list[Result]) -> Table:
    rows = [
        Row((
            r.name, r.dtype, sized(r.size, in_squares(r)), figures(_intensity(r)), rate(_speed(r) * 1e9, "GFLOP/s"),
            seconds(r.timing.median), r.bound, percent(r.of_limit),
        ))
        for r in cases
    ]  # fmt: skip
    headings = ("program", "dtype", "#size", "#operations per byte", "#speed", "#median", "held by", "#of the limit")
    return Table(f"Roofline of {device}", headings, rows)
