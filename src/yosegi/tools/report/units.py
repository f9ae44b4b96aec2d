"""Numbers as people read them: three figures, a unit, a thin space where thousands part."""

from __future__ import annotations

from datetime import datetime
from math import floor, isfinite, log10
from typing import Final

from ..bench.timing import Ratio

NO_BREAK: Final = "\u202f"
"""A narrow space that no line is broken at."""

_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def figures(value: float, digits: int = 3) -> str:
    """Three figures, never with an exponent where people do not expect one.

    >>> figures(0.012345), figures(12.3456), figures(1.0)
    ('0.0123', '12.3', '1.00')
    >>> figures(float("inf"))
    '∞'
    """
    if not isfinite(value):
        return "∞" if value > 0 else "–" if value != value else "−∞"
    if value == 0:
        return "0"
    size = floor(log10(abs(value)))
    if size < -4:
        return exponent(value)
    return f"{value:,.{max(0, digits - 1 - size)}f}"


def exponent(value: float) -> str:
    """An error, say: one figure behind the point and a power of ten.

    >>> exponent(0.00023989), exponent(0.0)
    ('2.4e-04', '0')
    """
    return "0" if value == 0 else f"{value:.1e}" if isfinite(value) else figures(value)


def seconds(value: float) -> str:
    """A time.

    >>> seconds(0.0123).replace(NO_BREAK, " "), seconds(4.2e-7).replace(NO_BREAK, " ")
    ('12.3 ms', '420 ns')
    """
    scale, unit = next(((s, u) for s, u in _TIMES if value >= s), _TIMES[-1])
    return f"{figures(value / scale)}{NO_BREAK}{unit}"


def nbytes(value: float) -> str:
    """An amount of memory, in powers of a thousand.

    >>> nbytes(8_002_056).replace(NO_BREAK, " ")
    '8 MB'
    """
    scale, unit = next(((s, u) for s, u in _BYTES if value >= s), _BYTES[-1])
    return f"{value / scale:,.0f}{NO_BREAK}{unit}" if value >= 1e3 * scale else f"{value / scale:.3g}{NO_BREAK}{unit}"


def rate(value: float, unit: str) -> str:
    """A rate per second, in units of 1e9.

    >>> rate(259.149e9, "GFLOP/s").replace(NO_BREAK, " ")
    '259 GFLOP/s'
    """
    return f"{figures(value / 1e9)}{NO_BREAK}{unit}"


def count(value: float) -> str:
    """How many, with a comma at every thousand; what was interpolated is rounded to two figures.

    >>> count(1_000_000), count(183_422.7)
    ('1,000,000', '180,000')
    """
    if value == int(value):
        return f"{int(value):,}"
    step = 10.0 ** (floor(log10(value)) - 1)
    return f"{round(round(value / step) * step):,}"


def short(value: float) -> str:
    """How many, where there is little room.

    >>> short(183_422.7), short(1_000_000), short(512), short(311.7)
    ('180k', '1M', '512', '310')
    """
    for scale, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= scale:
            return f"{float(f'{value / scale:.2g}'):g}{unit}"
    return f"{float(f'{value:.2g}') if value != int(value) else value:g}"


def percent(value: float | None) -> str:
    """A share.

    >>> percent(0.423), percent(0.0021), percent(51.6), percent(None)
    ('42%', '0.2%', '52 times', '')
    """
    if value is None:
        return ""
    if value > 3:
        return f"{value:,.0f} times"
    return f"{value:.1%}" if value < 0.0095 else f"{value:.0%}"


def times(ratio: Ratio | None) -> str:
    """A ratio with its interval.

    >>> times(Ratio(1.234, 1.1, 1.4))
    '1.23× (1.10 – 1.40)'
    """
    return "" if ratio is None else f"{figures(ratio.median)}× ({figures(ratio.low)} – {figures(ratio.high)})"


def plural(n: int, one: str, many: str = "") -> str:
    """A number of things.

    >>> plural(1, "case"), plural(2, "case")
    ('1 case', '2 cases')
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def listed(words: list[str]) -> str:
    """Words in a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def when(created: str) -> str:
    """A date for people; what is not a date stays as it is.

    >>> when("2026-11-15T05:23:29+00:00")
    '15 November 2026, 05:23 UTC'
    """
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%B %Y, %H:%M} {moment.tzname() or ''}".rstrip()


def drawn(most: int, total: int, what: str) -> str:
    """The note for a chart that cannot show everything.

    >>> drawn(24, 30, "programs"), drawn(24, 7, "programs")
    (' The first 24 of 30 programs are drawn; the table has them all.', '')
    """
    return f" The first {most:,} of {total:,} {what} are drawn; the table has them all." if total > most else ""
