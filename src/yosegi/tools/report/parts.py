"""The elements of a page: sections of figures, tables and notices; and how each becomes HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from .contenders import Player
from .html import Markup, joined, tag
from .units import plural

MOST_ROWS: Final = 2000
"""A table with more says so and stops: the file has the rest."""
_LONG: Final = 28
"""A column with a longer cell than that gets room to be read in."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: cells, whose they are (for the filter), and whether they are good or bad news."""

    cells: tuple[str, ...]
    who: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that scrolls in itself when the page is narrow. Headings that begin with `#` are above numbers."""

    caption: str
    headings: tuple[str, ...]
    rows: Sequence[Row]
    id: str = ""
    total: int = 0
    """How many rows there would be, if not all were made."""

    def html(self) -> Markup:
        """The table, in a region that the keyboard can scroll."""
        numeric = [h.startswith("#") for h in self.headings]
        head = [
            tag("th", h.lstrip("#"), scope="col", class_=_right(n)) for h, n in zip(self.headings, numeric, strict=True)
        ]
        shown = self.rows[:MOST_ROWS]
        longest = [max((len(row.cells[n]) for row in shown), default=0) for n in range(len(numeric))]
        kinds = ["n" if n else "long" if width > _LONG else None for n, width in zip(numeric, longest, strict=True)]
        body = [_row(row, kinds) for row in shown]
        caption = self.caption
        total = max(self.total, len(self.rows))
        if total > MOST_ROWS:
            caption += f" (the first {MOST_ROWS:,} of {total:,} rows; the file has them all)"
        table = tag("table", tag("caption", tag("span", caption)), tag("thead", tag("tr", *head)), tag("tbody", *body))
        return tag(
            "div", table, class_="scroll", tabindex="0", role="region", aria_label=self.caption, id=self.id or None
        )


def _row(row: Row, kinds: list[str | None]) -> Markup:
    first, *rest = row.cells
    cells = [tag("th", first, scope="row")]
    cells += [tag("td", cell, class_=kind) for cell, kind in zip(rest, kinds[1:], strict=True)]
    return tag("tr", *cells, data_who=row.who or None, class_=row.tone or None)


def _right(numeric: bool) -> str | None:
    return "n" if numeric else None


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, with what to look for, what was found, and its data as a table."""

    id: str
    title: str
    look: str
    finding: str
    spec: dict[str, Any]
    table: Table
    legend: Markup | None = None
    wide: bool = False

    def html(self) -> Markup:
        """The figure; the chart is drawn into it by the page's script."""
        return tag(
            "figure",
            tag("h3", self.title, id=f"{self.id}-title"),
            tag("p", self.finding, class_="finding", id=f"{self.id}-finding"),
            self.legend or tag("div"),
            tag("div", class_="chart", id=self.id),
            tag("figcaption", self.look),
            _folded(self.table),
            class_="wide" if self.wide else None,
            aria_labelledby=f"{self.id}-title",
            aria_describedby=f"{self.id}-finding",
        )


def _folded(table: Table) -> Markup:
    return tag("details", tag("summary", f"As a table ({plural(len(table.rows), 'row')})"), table.html())


@dataclass(frozen=True, slots=True)
class Notice:
    """Something to be seen first: good, bad, or a warning."""

    tone: str
    title: str
    lines: Sequence[str] = ()
    folded: bool = False
    """True if the lines are there only when asked for."""

    def html(self) -> Markup:
        """A box with a sign that does not need its colour."""
        sign = {"good": "✓", "bad": "✗", "warn": "!"}[self.tone]
        head = joined(tag("span", sign, class_="sign", aria_hidden="true"), tag("strong", self.title))
        items = tag("ul", *[tag("li", line) for line in self.lines]) if self.lines else None
        body = [tag("details", tag("summary", head), items)] if self.folded else [tag("p", head), items]
        return tag("div", *body, class_=f"notice {self.tone}", role="note")


Block = Figure | Table | Notice | Markup


@dataclass(frozen=True, slots=True)
class Section:
    """A chapter of the page."""

    id: str
    title: str
    lead: str
    blocks: list[Block] = field(default_factory=list)
    filtered: bool = False
    """True if the reader can choose whom to see: then it has the legend of all contenders."""

    @property
    def figures(self) -> list[Figure]:
        """The charts of the section."""
        return [b for b in self.blocks if isinstance(b, Figure)]

    def html(self, players: Sequence[Player]) -> Markup:
        """The section. Figures next to each other share a grid."""
        parts: list[str] = []
        grid: list[Figure] = []
        for block in [*self.blocks, Markup()]:
            if isinstance(block, Figure):
                grid.append(block)
                continue
            if grid:
                parts.append(tag("div", *[f.html() for f in grid], class_="figures"))
                grid = []
            parts.append(block if isinstance(block, Markup) else block.html())
        heading = tag("h2", self.title, id=f"{self.id}-heading")
        legend = contender_legend(self.id, players) if self.filtered and self.figures else None
        return tag(
            "section", heading, tag("p", self.lead, class_="lead"), legend, *parts,
            id=self.id, aria_labelledby=f"{self.id}-heading",
        )  # fmt: skip


def contender_legend(section: str, players: Sequence[Player]) -> Markup:
    """A box to tick for each contender, with its colour, shape and dash: legend and filter in one."""
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", name=f"{section}-who", value=p.name, checked=True, data_filter=True),
            swatch(p.colour, p.shape, p.dash, line=True, width=2.5 if p.is_device else 1.4),
            tag("span", p.name),
        )
        for p in players
    ]
    return tag("fieldset", tag("legend", "Contenders shown"), *boxes, class_="legend")


def key(entries: Sequence[tuple[str, str, str]]) -> Markup:
    """A legend that is only looked at: colour, shape and text of each entry."""
    return tag(
        "p",
        *[tag("span", swatch(colour, shape), tag("span", text), class_="entry") for colour, shape, text in entries],
        class_="legend",
    )


_SHAPES: Final = {
    "circle": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
    "square": "M-3.5,-3.5h7v7h-7Z",
    "diamond": "M0,-5L5,0L0,5L-5,0Z",
    "triangle-up": "M0,-4.5L4.5,3.5H-4.5Z",
    "triangle-down": "M0,4.5L4.5,-3.5H-4.5Z",
    "cross": "M-1.6,-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3Z",
}


def swatch(colour: str, shape: str, dash: tuple[int, ...] = (), *, line: bool = False, width: float = 1.5) -> Markup:
    """A little picture of how something is drawn."""
    reach = 14 if line else 6
    dashes = " ".join(map(str, dash)) or None
    stroke = tag("line", x1=-reach, x2=reach, stroke=colour, stroke_width=width, stroke_dasharray=dashes)
    mark = tag("path", d=_SHAPES[shape], fill=colour)
    view = {"viewBox": f"{-reach} -6 {2 * reach} 12", "width": 2 * reach, "height": 12}
    return tag("svg", stroke if line else None, mark, **view, aria_hidden="true", focusable="false")
