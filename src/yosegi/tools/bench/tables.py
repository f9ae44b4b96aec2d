"""A run, and a comparison of two, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .compare import SAME, Change, Comparison
from .document import Document, Result

_COLOURS = {"faster": "green", "slower": "red", "no difference": "dim"}


def show(console: Console, document: Document) -> None:
    """Every case, then the peaks, then what did not take part and why."""
    machine = document.machine
    console.print(f"{machine['processor']}, {machine['threads']} threads for everyone")
    for suite, results in groupby(document.results, key=lambda r: r.suite):
        console.print(_suite(document, suite, list(results)))
    console.print(_peaks(document))
    for name, reason in document.skipped.items():
        console.print(f"{name}: skipped, {reason}", highlight=False, markup=False)


def _suite(document: Document, suite: str, results: list[Result]) -> Table:
    table = Table(title=suite)
    for heading in ("case", "size", "contender"):
        table.add_column(heading)
    for heading in ("median", "avg", "min", "max", "spread", "GFLOP/s", "GB/s", "of limit", "× NumPy's speed", "error"):
        table.add_column(heading, justify="right")
    previous = ""
    for r in results:
        case = "" if r.case == previous else f"{r.name} {'' if r.dtype == 'float32' else r.dtype}"
        previous = r.case
        if r.status != "ok":
            table.add_row(case, f"{r.size:,}", r.contender, f"[yellow]{r.status}[/]: {escape(r.reason)}")
            continue
        rounds = r.timing.rounds
        table.add_row(
            case, f"{r.size:,}", r.contender, milliseconds(r.timing.median), milliseconds(sum(rounds) / len(rounds)),
            milliseconds(min(rounds)), milliseconds(max(rounds)), f"{r.timing.spread:.0%}",
            *_rates(r), _percent(r.of_limit), _speedup(document, r), "" if r.error is None else f"{r.error:.0e}",
        )  # fmt: skip
    return table


def _rates(r: Result) -> tuple[str, str]:
    seconds = r.timing.median
    return tuple(f"{n / seconds / 1e9:.3g}" if n else "" for n in (r.flops, r.nbytes))  # type: ignore[return-value]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _speedup(document: Document, r: Result) -> str:
    yardstick = document.yardstick(r.case)
    return "" if yardstick is None or yardstick is r else str(yardstick.timing.ratio_to(r.timing))


def milliseconds(seconds: float) -> str:
    """A time, with its unit."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def _peaks(document: Document) -> Table:
    table = Table(title="peaks")
    for heading in ("contender", "best GFLOP/s", "in", "best GB/s", "in"):
        table.add_column(heading)
    for contender, flops, bytes_ in peaks(document):
        table.add_row(contender, *flops, *bytes_)
    return table


def peaks(document: Document) -> Iterator[tuple[str, tuple[str, str], tuple[str, str]]]:
    """For each contender the highest rates it reached, with the case."""
    timed = [r for r in document.results if r.status == "ok" and r.suite != "transfer"]
    for contender in dict.fromkeys(r.contender for r in timed):
        own = [r for r in timed if r.contender == contender]
        most = max(own, key=lambda r: r.flops / r.timing.median)
        fastest = max(own, key=lambda r: r.nbytes / r.timing.median)
        yield (
            contender,
            (f"{most.flops / most.timing.median / 1e9:.3g}", most.case),
            (f"{fastest.nbytes / fastest.timing.median / 1e9:.3g}", fastest.case),
        )


def show_comparison(console: Console, comparison: Comparison) -> None:
    """The cases that changed, and the count of the others."""
    table = Table(title="after against before")
    for heading in ("case", "contender", "before", "after", "times as long (95% interval)", ""):
        table.add_column(heading)
    changed = [c for c in comparison.changes if c.verdict != SAME]
    for c in sorted(changed, key=lambda c: -c.ratio.median):
        table.add_row(*_change(c))
    if changed:
        console.print(table)
    for text, names in {
        "only in the first, or no longer right": comparison.gone,
        "only in the second": comparison.appeared,
    }.items():
        if names:
            console.print(f"{text}: {', '.join(names)}")
    counts = {v: sum(c.verdict == v for c in comparison.changes) for v in _COLOURS}
    console.print(", ".join(f"{n} {verdict}" for verdict, n in counts.items()))


def _change(c: Change) -> tuple[str, ...]:
    verdict = f"[{_COLOURS[c.verdict]}]{c.verdict}[/]"
    return c.case, c.contender, milliseconds(c.before), milliseconds(c.after), str(c.ratio), verdict
