"""Pictures of losses as SVG files, which every browser shows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from ..errors import ArgumentError

_WIDTH: Final = 720
_HEIGHT: Final = 400
_MARGIN: Final = 56
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed")


def save_curve(
    path: str | os.PathLike[str], curves: Mapping[str, Sequence[tuple[float, float]]], *, title: str = "loss"
) -> None:
    """Draw curves into an SVG file.

    Parameters
    ----------
    path : path
        The file.
    curves : mapping
        The points (step, value) of each curve by its name.
    title : str
        The title of the picture.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import yosegi as ys
    >>> file = Path(tempfile.mkdtemp()) / "loss.svg"
    >>> ys.training.save_curve(file, {"train": [(0, 2.0), (1, 1.0), (2, 0.7)]})
    >>> file.read_text().startswith("<svg")
    True
    """
    points = [point for curve in curves.values() for point in curve]
    if not points:
        raise ArgumentError("[save_curve] expected at least one point, got none")
    (left, right), (low, high) = (_range([p[axis] for p in points]) for axis in (0, 1))

    def place(x: float, y: float) -> str:
        across = _MARGIN + (x - left) / (right - left) * (_WIDTH - 2 * _MARGIN)
        down = _HEIGHT - _MARGIN - (y - low) / (high - low) * (_HEIGHT - 2 * _MARGIN)
        return f"{across:.1f},{down:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="none">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _label(_WIDTH / 2, 24, title, "middle", size=16),
    ]
    for n in range(5):
        x, y = left + (right - left) * n / 4, low + (high - low) * n / 4
        parts.append(f'<polyline stroke="#e5e7eb" points="{place(left, y)} {place(right, y)}"/>')
        parts.append(_label(_MARGIN - 8, float(place(x, y).split(",")[1]) + 4, f"{y:.4g}", "end"))
        parts.append(_label(float(place(x, y).split(",")[0]), _HEIGHT - _MARGIN + 20, f"{x:.4g}", "middle"))
    for n, (name, curve) in enumerate(curves.items()):
        colour = _COLOURS[n % len(_COLOURS)]
        line = " ".join(place(x, y) for x, y in curve)
        parts.append(f'<polyline stroke="{colour}" stroke-width="1.5" points="{line}"/>')
        parts.append(_label(_WIDTH - _MARGIN, 24 + 16 * n, name, "end", colour))
    Path(path).write_text("\n".join([*parts, "</svg>\n"]), encoding="utf-8")


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _label(x: float, y: float, text: str, anchor: str, colour: str = "#374151", size: int = 12) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
    )
