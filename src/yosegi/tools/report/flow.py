"""A program's placement as a graph: its steps as boxes in the colour of their device, in layers from top to bottom.

Layers by the longest way from the start, what has no input as late as it can be; lines that pass layers get a place in
each of them; places are put in order by the mean of their neighbours', a few times down and up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from .html import Markup, tag

BOX, NARROW, HEIGHT, GAP, RISE = 180, 16, 62, 20, 40
"""Widths of a box and of a line's place, height of a box, and the room between."""
_SWEEPS: Final = 6
_LETTERS: Final = 23


@dataclass(frozen=True, slots=True)
class FlowNode:
    """A step: what its box says, and its device's colour."""

    title: str
    detail: str
    device: str
    colour: str
    reads: tuple[int, ...] = ()


@dataclass(slots=True)
class _Place:
    """A place in a layer: of a box, or of a line between boxes."""

    node: int | None
    above: list[_Place] = field(default_factory=list)
    below: list[_Place] = field(default_factory=list)
    x: float = 0.0

    @property
    def width(self) -> int:
        return NARROW if self.node is None else BOX


def layers(reads: Sequence[Sequence[int]]) -> list[int]:
    """The layer of each step: below all that it reads; what reads nothing just above the first that reads it.

    >>> layers([(), (), (1,), (0, 2)])
    [1, 0, 1, 2]
    """
    depth = [0] * len(reads)
    for n, inputs in enumerate(reads):
        depth[n] = max((depth[i] + 1 for i in inputs if i < n), default=0)
    for n, inputs in enumerate(reads):
        readers = [depth[m] for m, others in enumerate(reads) if n in others]
        if not inputs and readers:
            depth[n] = min(readers) - 1
    return depth


def _arranged(nodes: Sequence[FlowNode]) -> tuple[list[list[_Place]], list[list[_Place]]]:
    """The layers, and the route of each line through them."""
    depth = layers([n.reads for n in nodes])
    rows: list[list[_Place]] = [[] for _ in range(max(depth, default=-1) + 1)]
    boxes = [_Place(n) for n in range(len(nodes))]
    for n, box in enumerate(boxes):
        rows[depth[n]].append(box)
    variants = []
    for n, node in enumerate(nodes):
        for source in node.reads:
            if source < n:
                between = [_Place(None) for _ in range(depth[source] + 1, depth[n])]
                for level, place in enumerate(between, depth[source] + 1):
                    rows[level].append(place)
                way = [boxes[source], *between, boxes[n]]
                for a, b in pairwise(way):
                    a.below.append(b)
                    b.above.append(a)
                variants.append(way)
    return rows, variants


def _ordered(rows: list[list[_Place]]) -> float:
    """Put each layer in order and give every place its middle; the width of all."""
    _spread(rows)
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else reversed(rows):
            wanted = {id(p): _mean(p.above if down else p.below, p.x) for p in row}
            row.sort(key=lambda p: wanted[id(p)])
        _spread(rows)
    width = max((_row_width(row) for row in rows), default=0.0)
    for row in rows:  # a line's place stands straight below what it comes from, where there is room
        for n, place in enumerate(row):
            if place.node is None and place.above:
                left = row[n - 1].x + (row[n - 1].width + place.width) / 2 + 4 if n else place.width / 2
                right = (
                    row[n + 1].x - (row[n + 1].width + place.width) / 2 - 4
                    if n + 1 < len(row)
                    else width - place.width / 2
                )
                place.x = min(max(place.above[0].x, left), max(left, right))
    return width


def _mean(neighbours: list[_Place], otherwise: float) -> float:
    return sum(p.x for p in neighbours) / len(neighbours) if neighbours else otherwise


def _row_width(row: list[_Place]) -> float:
    return sum(p.width for p in row) + GAP * (len(row) - 1)


def _spread(rows: list[list[_Place]]) -> None:
    widest = max((_row_width(row) for row in rows), default=0.0)
    for row in rows:
        x = (widest - _row_width(row)) / 2
        for place in row:
            place.x = x + place.width / 2
            x += place.width + GAP


def drawing(nodes: Sequence[FlowNode], title: str) -> Markup:
    """The graph as SVG, in its natural size."""
    rows, variants = _arranged(nodes)
    width = _ordered(rows)
    level = {id(p): n for n, row in enumerate(rows) for p in row}

    def y(place: _Place) -> float:
        return level[id(place)] * (HEIGHT + RISE)

    lines = [_line([(p.x, y(p)) for p in way], _crosses(nodes, way)) for way in variants]
    boxes = [_box(nodes[p.node], p.node, p.x - BOX / 2, y(p)) for row in rows for p in row if p.node is not None]
    height = max(len(rows) * (HEIGHT + RISE) - RISE, 1)
    return tag(
        "svg", tag("title", title), *lines, *boxes,
        viewBox=f"-2 -2 {width + 4:g} {height + 4}", width=f"{width + 4:g}", height=height + 4, role="img",
        class_="flow",
    )  # fmt: skip


def _crosses(nodes: Sequence[FlowNode], way: list[_Place]) -> bool:
    first, last = way[0].node, way[-1].node
    return first is not None and last is not None and nodes[first].device != nodes[last].device


def _line(points: list[tuple[float, float]], crosses: bool) -> Markup:
    """A smooth line from the foot of the first box through all layers to the head of the last."""
    x, top = points[0]
    d = f"M{x:g},{top + HEIGHT:g}"
    for n, ((x0, y0), (x1, y1)) in enumerate(pairwise(points)):
        start, end = y0 + HEIGHT, y1
        middle = (start + end) / 2
        d += f"C{x0:g},{middle:g} {x1:g},{middle:g} {x1:g},{end:g}"
        if n < len(points) - 2:
            d += f"V{end + HEIGHT:g}"
    return tag("path", d=d, class_="edge crosses" if crosses else "edge")


def _box(node: FlowNode, number: int, x: float, y: float) -> Markup:
    shown = node.title if len(node.title) <= _LETTERS else f"{node.title[: _LETTERS - 1]}…"
    return tag(
        "g",
        tag("title", f"step {number} on {node.device}: {node.title}"),
        tag("rect", width=BOX, height=HEIGHT, rx=6, class_="box"),
        tag("rect", width=BOX, height=HEIGHT, rx=6, fill=node.colour, fill_opacity="0.1", stroke=node.colour),
        tag("rect", width=5, height=HEIGHT, rx=2, fill=node.colour),
        tag("text", shown, x=15, y=20, class_="what"),
        tag("text", f"{number} · {node.device}", x=15, y=37, fill=node.colour, class_="where"),
        tag("text", node.detail, x=15, y=53, class_="cost"),
        transform=f"translate({x:g},{y:g})",
    )
