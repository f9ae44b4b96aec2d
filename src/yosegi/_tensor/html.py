"""HTML for notebooks. Text and borders have the page's own colours, so that light and dark themes both work."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Sequence
from html import escape
from typing import Any, Final

import numpy as np

_SIDE: Final = 48  # the most elements along one side of a picture
_PIXELS: Final = 144  # its longer side on the page
_COLOURS: Final = {1: (31, 119, 180), -1: (230, 97, 0), 0: (128, 128, 128)}
"""The colours of elements above zero, below zero, and not finite."""


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts. Columns without any are left out."""
    places = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    head = "".join(f'<th style="text-align:left">{escape(heads[n])}</th>' for n in places)
    cell = '<td style="text-align:left;vertical-align:top;white-space:pre-wrap">'
    cells = (f"<tr>{''.join(f'{cell}{escape(row[n])}</td>' for n in places)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(cells)}</tbody></table>"


def heading(name: str, facts: str) -> str:
    """A line with a name and what it is."""
    return f"<div><strong>{escape(name)}</strong> {escape(facts)}</div>"


def preformatted(text: str) -> str:
    """A text with its line breaks."""
    return f"<pre>{escape(text)}</pre>"


def folded(title: str, body: str) -> str:
    """HTML that a click unfolds."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def picture(array: Any) -> str:
    """A small picture of an array's last two dimensions: blue above zero, orange below, grey if not finite, the more
    opaque the larger. A large matrix is shown by rows and columns at even distances."""
    while array.ndim > 2:
        array = array[0]
    array = np.atleast_2d(array)
    places = [np.linspace(0, n - 1, min(n, _SIDE)).astype(int) for n in array.shape]
    shown = array[np.ix_(*places)]
    values = np.abs(shown) if np.iscomplexobj(shown) else shown.astype(np.float64)
    is_finite = np.isfinite(values)
    size = np.abs(np.where(is_finite, values, 0.0))
    pixels = np.zeros((*values.shape, 4), np.uint8)
    for sign, colour in _COLOURS.items():
        pixels[(np.sign(values) == sign) & is_finite if sign else ~is_finite, :3] = colour
    pixels[..., 3] = np.where(is_finite, 255 * (size / (size.max(initial=0.0) or 1.0)), 255)
    zoom = max(1, _PIXELS // max(values.shape))
    height, width = (n * zoom for n in values.shape)
    return (
        f'<img width="{width}" height="{height}" alt="a picture of the values" style="image-rendering:pixelated;'
        f'border:1px solid currentColor" src="data:image/png;base64,{b64encode(_png(pixels)).decode()}">'
    )


def _png(pixels: Any) -> bytes:
    """Rows of RGBA pixels as a PNG file."""
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)  # 8 bits, RGBA, no interlacing
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
