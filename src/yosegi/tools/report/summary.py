"""The first section: what is wrong before what is fast, then the machine, the headline figures and the peaks."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any, Final

from ..bench.document import Document, Result
from ..bench.tables import peaks
from . import standings
from .digest import Digest, is_whole
from .html import Markup, tag
from .parts import Block, Notice, Row, Section, Table, swatch
from .speed import in_squares, sized
from .units import NO_BREAK, count, listed, nbytes, plural, when

_WORDS: Final = {
    "ok": "right and timed",
    "wrong": "wrong",
    "failed": "failed",
    "elsewhere": "run by another device",
    "skipped": "skipped",
}


def section(digest: Digest) -> Section:
    """Everything that a reader wants to know first."""
    document = digest.document
    blocks: list[Block] = [*_verdicts(document), _facts(document)]
    headline = standings.figure(digest)
    if headline is not None:
        blocks.append(headline)
    blocks += [_devices(digest), _peaks(digest), _versions(document)]
    return Section("summary", "Summary", _lead(document), [b for b in blocks if b])


def _lead(document: Document) -> str:
    if not document.results:
        return "This run has no results: nothing matched its filter."
    counts = Counter(r.status for r in document.results)
    said = [f"{count(counts[s])} {words}" for s, words in _WORDS.items() if counts[s]]
    cases = len({r.case for r in document.results})
    return f"{plural(cases, 'case')}, {plural(len(document.results), 'result')}: {listed(said)}."


def _verdicts(document: Document) -> list[Block]:
    """Wrong results, first those of devices, then those of peers; or that there are none."""
    wrong = [r for r in document.results if r.status == "wrong"]
    own, others = [r for r in wrong if r.device], [r for r in wrong if not r.device]
    made: list[Block] = []
    if own:
        text = f"{plural(len(own), 'result')} of Yosegi's {'is' if len(own) == 1 else 'are'} wrong, and not timed"
        made.append(Notice("bad", text, _grouped(own)))
    elif any(r.device and r.status == "ok" for r in document.results):
        right = sum(r.status == "ok" and r.device is not None for r in document.results)
        made.append(
            Notice("good", f"No wrong result by Yosegi: {count(right)} were checked against float64 and then timed")
        )
    if others:
        text = f"{plural(len(others), 'result')} of peers {'is' if len(others) == 1 else 'are'} wrong, and not timed"
        made.append(Notice("warn", text, _grouped(others)))
    failed = [r for r in document.results if r.status == "failed"]
    if failed:
        made.append(Notice("warn", f"{plural(len(failed), 'result')} failed", _reasons(failed), folded=True))
    return made


def _grouped(results: list[Result], most: int = 6) -> list[str]:
    """A line for each contender and program. A mistake that repeats at several sizes is one line."""

    def same(r: Result) -> tuple[str, str, str]:
        return r.contender, f"{r.suite}/{r.name}", r.dtype

    lines = []
    for (contender, name, dtype), group in groupby(sorted(results, key=same), key=same):
        found = list(group)
        sizes = ", ".join(count(r.size) for r in sorted(found, key=lambda r: r.size))
        lines.append(f"{contender}: {name} {dtype} at {sizes}: {_cut(found[-1].reason, 140)}")
    return [*lines[:most], *([f"and {len(lines) - most} more lines in the last section"] if len(lines) > most else [])]


def _reasons(results: list[Result]) -> list[str]:
    """A line for each contender and reason, with the programs it is the reason for."""
    found: dict[tuple[str, str], list[str]] = {}
    for r in results:
        found.setdefault((r.contender, r.reason), []).append(f"{r.suite}/{r.name}")
    return [
        f"{contender}, {plural(len(names), 'case')} ({', '.join(dict.fromkeys(names))}): {_cut(reason, 300)}"
        for (contender, reason), names in found.items()
    ]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _facts(document: Document) -> Markup:
    m, s = document.machine, document.settings
    memory = m.get("memory_bytes")
    facts = {
        "Processor": m["processor"],
        "Threads, for everyone": str(m["threads"]),
        "Memory": nbytes(memory) if isinstance(memory, int) and memory > 0 else "not known",
        "System": " ".join(str(m[k]) for k in ("system", "release", "architecture") if m.get(k)) or "not known",
        "Measured": when(document.created),
        "Each case": _effort(s),
        "Filter": "" if s.get("filter", "*") == "*" else str(s["filter"]),
        "Fingerprint": m["fingerprint"],
    }
    pairs = [tag("div", tag("dt", name), tag("dd", str(value))) for name, value in facts.items() if value]
    return tag("dl", *pairs, class_="facts")


def _effort(settings: dict[str, Any]) -> str:
    sittings, rounds = settings.get("sittings"), settings.get("rounds")
    if not isinstance(sittings, int) or not isinstance(rounds, int):
        return ""
    return f"{plural(sittings, 'sitting')} of up to {plural(rounds, 'round')}"


def _devices(digest: Digest) -> Table:
    m = digest.document.machine
    looks = {p.name: p for p in digest.devices}
    rows = []
    for d in m["devices"]:
        mark = swatch(looks[d["name"]].colour, looks[d["name"]].shape) if d["name"] in looks else None
        rows.append(Row((tag("span", mark, d["name"], class_="entry"), d["description"])))
    absent = m.get("absent")
    if isinstance(absent, dict):
        rows += [Row((str(name), f"absent: {reason}")) for name, reason in absent.items()]
    return Table(
        "Devices, in the order in which they are asked", ("device", "what it is, or why it is not there"), rows
    )


def _peaks(digest: Digest) -> Block:
    """The best results of contenders that run programs as one call."""
    whole = {r.contender for r in digest.timed if is_whole(r) and r.suite != "transfer"}
    if not whole:
        return Markup()
    names = {r.case: f"{r.name}, {sized(r.size, in_squares(r))}" for r in digest.timed}
    rows = [
        Row((who, f"{flops}{NO_BREAK}GFLOP/s", names[most], f"{traffic}{NO_BREAK}GB/s", names[fastest]))
        for who, (flops, most), (traffic, fastest) in peaks(digest.document)
        if who in whole
    ]
    headings = ("contender", "#most arithmetic", "in", "#most traffic", "in")
    return Table("Peaks: the best that each contender reached in any case", headings, rows)


def _versions(document: Document) -> Markup:
    m = document.machine
    versions = {"Python": m.get("python"), **m["packages"]}
    items = [tag("li", f"{name} ", tag("b", str(v))) for name, v in versions.items() if v]
    return tag("div", tag("h3", "Versions", class_="part"), tag("ul", *items, class_="versions"))
