"""The last sections: the machine's limits, overhead, transfers and memory as tables, who was not there, all results."""

from __future__ import annotations

from ..bench.document import Result
from .digest import Digest, speed_over
from .html import Markup, joined, tag
from .parts import MOST_ROWS, Block, Row, Section, Table
from .speed import in_squares, sized
from .units import count, exponent, figures, nbytes, percent, plural, rate, seconds, times


def machine(digest: Digest) -> Section:
    """The limits of the machine, and the costs beside arithmetic: calls, transfers, memory."""
    tables = [
        _bandwidths(digest), _products(digest), _overhead(digest), _transfers(digest), _memory(digest), _skipped(digest)
    ]  # fmt: skip
    lead = "What the cases are judged by, measured in the same run, and the costs that are not arithmetic."
    return Section("machine", "Limits and costs", lead, [t for t in tables if t.rows])


def _bandwidths(digest: Digest) -> Table:
    limits = digest.document.limits
    columns = {f"copy, {name}": table for name, table in limits["copy"].items()}
    columns |= {f"simplest kernel on {name}": table for name, table in limits["device_copy"].items()}
    sizes = sorted({int(n) for table in columns.values() for n in table})
    rows = [
        Row((nbytes(n), *[rate(t[str(n)] * 1e9, "GB/s") if str(n) in t else "" for t in columns.values()]))
        for n in sizes
    ]
    headings = ("array", *[f"#{name}" for name in columns])
    return Table("Memory's limits: bytes read and written, the best of several tries", headings, rows)


def _products(digest: Digest) -> Table:
    rows = [
        Row((dtype, rate(product["gflops"] * 1e9, "GFLOP/s"), product["by"]))
        for dtype, product in digest.document.limits["products"].items()
    ]
    headings = ("dtype", "#best product, 1,024 × 1,024", "by")
    return Table("Arithmetic's limits: the fastest product of any library that is installed", headings, rows)


def _overhead(digest: Digest) -> Table:
    own = [r for r in digest.timed if r.suite == "overhead"]
    rows = []
    for r in own:
        yardstick = _yardstick(digest, r)
        ratio = None if yardstick is None else speed_over(yardstick, r)
        rows.append(Row((r.contender, seconds(r.timing.median), times(ratio))))
    work = f" ({own[0].name} on {count(own[0].size)} elements)" if own else ""
    headings = ("contender", "#median", "#times as long as NumPy (95% interval)")
    return Table(f"Overhead: the cost of a call with next to nothing to compute{work}", headings, rows)


def _transfers(digest: Digest) -> Table:
    own = sorted((r for r in digest.timed if r.suite == "transfer" and r.device), key=lambda r: (r.name, r.size))
    rows = [
        Row((r.device or "", r.name, nbytes(r.nbytes / 2), seconds(r.timing.median), _moved(digest, r))) for r in own
    ]
    headings = ("device", "direction", "#bytes", "#median", "#speed")
    return Table("Transfers between host and device", headings, rows)


def _moved(digest: Digest, r: Result) -> str:
    """The speed of a transfer; what is faster than any copy on this machine was none."""
    speed = r.nbytes / 2 / r.timing.median
    limits = [v for t in digest.document.limits["copy"].values() for v in t.values()]
    return "shared, not copied" if limits and speed > 2e9 * max(limits) else rate(speed, "GB/s")


def _memory(digest: Digest) -> Table:
    rows = [
        Row(
            (
                r.contender,
                r.name,
                sized(r.size, False),
                nbytes(r.peak_bytes),
                f"{figures(r.peak_bytes / (r.nbytes / 3))}×",
            )
        )
        for r in digest.timed
        if r.suite == "memory" and r.peak_bytes and r.nbytes
    ]
    headings = ("contender", "program", "#size", "#at most, beyond its inputs", "#over one array")
    return Table("Memory: the most that was held at a time", headings, rows)


def _skipped(digest: Digest) -> Table:
    rows = [Row((str(name), str(reason))) for name, reason in digest.document.skipped.items()]
    return Table("Peers that are not there, and how to get them", ("who", "why, and what brings it"), rows)


# All results


def results(digest: Digest) -> Section:
    """Every result, with controls to find some of them."""
    if not digest.document.results:
        return Section("results", "All results", "There are none.")
    rows = [_row(digest, r) for r in digest.document.results[:MOST_ROWS]]
    headings = (
        "case", "contender", "#median", "#average", "#least", "#most", "#spread", "#GFLOP/s", "#GB/s", "#of the limit",
        "#× NumPy's speed", "#error", "status",
    )  # fmt: skip
    total = len(digest.document.results)
    table = Table("Every result of the run", headings, rows, id="all-results", total=total)
    blocks: list[Block] = [_controls(digest), table]
    lead = f"{plural(total, 'result')}. Spread is the middle half of the rounds over their median."
    return Section("results", "All results", lead, blocks)


def _controls(digest: Digest) -> Markup:
    suites = list(dict.fromkeys(r.suite for r in digest.document.results))
    statuses = list(dict.fromkeys(r.status for r in digest.document.results))
    return tag(
        "form",
        _choice("Suite", "suite", suites),
        _choice("Status", "status", statuses),
        tag("label", "Text in case or contender ", tag("input", type="search", id="find-text", autocomplete="off")),
        tag("p", id="find-count", role="status"),
        class_="controls", id="find",
    )  # fmt: skip


def _choice(title: str, name: str, values: list[str]) -> Markup:
    options = [tag("option", "all", value=""), *[tag("option", v, value=v) for v in values]]
    return tag("label", f"{title} ", tag("select", *options, id=f"find-{name}"))


def _row(digest: Digest, r: Result) -> Row:
    case = f"{r.suite}/{r.name} {r.dtype} {sized(r.size, in_squares(r))}"
    error = "" if r.error is None else exponent(r.error)
    tone = "bad" if r.status == "wrong" else ""
    if r.status != "ok":
        reason = r.reason if len(r.reason) <= 300 else f"{r.reason[:299]}…"
        said = joined(tag("b", r.status), f": {reason}" if reason else "")
        return Row((case, r.contender, *[""] * 9, error, said), tone=tone)
    rounds, median = r.timing.rounds, r.timing.median
    yardstick = _yardstick(digest, r)
    speed = "" if yardstick is None else figures(yardstick.timing.median / median)
    return Row((
        case, r.contender, *[seconds(t) for t in (median, sum(rounds) / len(rounds), min(rounds), max(rounds))],
        percent(r.timing.spread), *[figures(n / median / 1e9) if n else "" for n in (r.flops, r.nbytes)],
        percent(r.of_limit), speed, error, "ok",
    ))  # fmt: skip


def _yardstick(digest: Digest, r: Result) -> Result | None:
    return next((o for o in digest.cases.get(r.case, []) if o.contender == "numpy" and o is not r), None)
