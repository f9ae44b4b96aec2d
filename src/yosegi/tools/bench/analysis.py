"""A run as a document in words: what is fast, what is not, what holds each case back and what would lift it.

It is written from measured figures alone, so that it can be made again whenever they change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from .compare import THRESHOLD
from .document import Document, Result
from .runners import CACHED, JIT, SEPARATE
from .tables import milliseconds
from .timing import Ratio

_NEAR = 0.6
"""The share of the machine's limit from which a case counts as being there."""
_CALL_SHARE = 0.3
"""The share of its time that a call costs by itself from which the call is what holds a case."""

HINTS = {
    "call": ("the call itself", "fewer, larger calls; a plan that is captured and replayed"),
    "memory": ("memory bandwidth", "moving fewer bytes: fusing with what comes before or behind, a smaller dtype"),
    "arithmetic": ("arithmetic", "a lower precision where the tolerance allows it; faster units"),
    "kernel (memory)": ("the kernel, short of memory bandwidth", "one pass over memory, vectors, all threads"),
    "kernel (arithmetic)": ("the kernel, short of the best product measured", "blocking, packing, a better library"),
}
"""What can hold a case back: in words, and what lifts it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One device in one case."""

    result: Result
    speedup: Ratio | None
    """Over NumPy."""
    best_peer: tuple[str, Ratio] | None
    """The fastest peer that is right, and how much faster than it the device is."""
    bottleneck: str


def findings(document: Document) -> Iterator[Finding]:
    """Every timed case of every device, used as one program."""
    call = _call_seconds(document)
    for r in document.results:
        if r.status != "ok" or r.mode != JIT:
            continue
        yardstick = document.yardstick(r.case)
        speedup = None if yardstick is None else yardstick.timing.ratio_to(r.timing)
        others = [o for o in document.of_case(r.case) if o.device is None and o.status == "ok"]
        fastest = min(others, key=lambda o: o.timing.median, default=None)
        best = None if fastest is None else (fastest.contender, fastest.timing.ratio_to(r.timing))
        yield Finding(r, speedup, best, bottleneck(r, call.get(r.device or "", 0.0)))


def _call_seconds(document: Document) -> dict[str, float]:
    """What a jitted call costs on each device when there is next to nothing to compute."""
    own = [r for r in document.results if r.suite == "overhead" and r.mode == JIT and r.status == "ok" and r.device]
    return {r.device: r.timing.median for r in own if r.device}


def bottleneck(r: Result, call: float) -> str:
    """What holds a result back: a key of `HINTS`."""
    near = r.of_limit is not None and r.of_limit >= _NEAR
    if not near and call >= _CALL_SHARE * r.timing.median:
        return "call"
    return r.bound if near else f"kernel ({r.bound})"


def performance(document: Document) -> str:
    """The document, in Markdown."""
    found = list(findings(document))
    parts = [_head(document), _fast_and_slow(found), _limits(document)]
    parts += [_suite(suite, list(group)) for suite, group in groupby(found, key=lambda f: f.result.suite)]
    parts += [_fusion(document), _overhead(document), _not_timed(document)]
    return "\n\n".join(p for p in parts if p) + "\n"


def _head(document: Document) -> str:
    m = document.machine
    versions = ", ".join(f"{name} {version}" for name, version in m["packages"].items())
    devices = "\n".join(f"- `{d['name']}`: {d['description']}" for d in m["devices"])
    return f"""# Performance

Written by `yosegi bench analyse` from one run ({document.created}); do not edit. To make it again:

```sh
yosegi bench --against all --json bench.json
yosegi bench analyse bench.json --output docs/performance.md
```

{m["processor"]}, {m["threads"]} threads for everyone, Python {m["python"]}, {versions}.

{devices}

Times are medians over {document.settings["sittings"]} sittings, ratios are taken within a round, with the 95%
interval of a bootstrap over the sittings. Every result was checked against float64 before it was timed. On a shared
machine the ratios mean something, the times little."""


def _fast_and_slow(found: list[Finding]) -> str:
    compared = [f for f in found if f.best_peer is not None]
    if not compared:
        return ""
    ahead = [f for f in compared if f.best_peer and f.best_peer[1].low > 1 + THRESHOLD]
    behind = [f for f in compared if f.best_peer and f.best_peer[1].high < 1 / (1 + THRESHOLD)]
    lines = [
        "## What is fast, what is not",
        "",
        f"Of {len(compared)} cases (each device counts), {len(ahead)} are faster than every contender outside, "
        f"{len(behind)} slower than the best of them, {len(compared) - len(ahead) - len(behind)} level with it.",
    ]
    for title, chosen in {"Furthest ahead": ahead[:], "Furthest behind": behind[:]}.items():
        chosen.sort(key=lambda f: f.best_peer[1].median if f.best_peer else 0, reverse=title.endswith("ahead"))
        if chosen:
            lines += ["", f"**{title}:**", ""]
            lines += [f"- {_named(f.result)}: {_against(f)}; held by {HINTS[f.bottleneck][0]}" for f in chosen[:8]]
    return "\n".join(lines)


def _named(r: Result) -> str:
    return f"`{r.device}` {r.name} {r.dtype} {r.size:,}"


def _against(f: Finding) -> str:
    if f.best_peer is None:
        return ""
    name, ratio = f.best_peer
    return f"{ratio} × the speed of {name}"


def _limits(document: Document) -> str:
    tables = {f"copy, {who}": table for who, table in document.limits["copy"].items()}
    tables |= {f"`{name}`, its simplest kernel": table for name, table in document.limits["device_copy"].items()}
    rows = [
        f"| {what} | {', '.join(f'{_bytes(int(n))}: {speed:.0f}' for n, speed in table.items())} GB/s |"
        for what, table in tables.items()
    ]
    for dtype, product in document.limits["products"].items():
        rows.append(f"| product, {dtype} | {product['gflops']:.0f} GFLOP/s, by {product['by']} |")
    return "\n".join(
        ["## The machine's limits, measured in the same run", "", "| what | at most |", "|---|---|", *rows]
    )


def _bytes(n: int) -> str:
    return f"{n // 1_000_000} MB" if n >= 1_000_000 else f"{n // 1000} kB"


def _suite(suite: str, found: list[Finding]) -> str:
    lines = [
        f"## {suite}",
        "",
        "| case | device | median | × NumPy's speed | against the best outside | of limit | held by |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for f in found:
        r = f.result
        share = "" if r.of_limit is None else f"{r.of_limit:.0%}"
        case = f"{r.name} {r.dtype} {r.size:,}"
        cells = (case, f"`{r.device}`", milliseconds(r.timing.median), str(f.speedup or ""), _against(f), share)
        lines.append(f"| {' | '.join(cells)} | {HINTS[f.bottleneck][0]} |")
    lines.append("")
    for key in dict.fromkeys(f.bottleneck for f in found):
        lines.append(f"- Held by {HINTS[key][0]}: what would lift it: {HINTS[key][1]}.")
    return "\n".join(lines)


def _fusion(document: Document) -> str:
    lines = []
    for fused in document.results:
        if fused.suite != "patterns" or fused.mode != JIT or fused.status != "ok":
            continue
        separate = [r for r in document.of_case(fused.case) if r.device == fused.device and r.mode == SEPARATE]
        if separate and separate[0].status == "ok":
            ratio = separate[0].timing.ratio_to(fused.timing)
            lines.append(f"| {fused.name} | {fused.size:,} | `{fused.device}` | {ratio} |")
    head = [
        "## Fused against separate",
        "",
        "| pattern | size | device | fused, times the speed of op by op |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *lines]) if lines else ""


def _overhead(document: Document) -> str:
    own = [r for r in document.results if r.suite == "overhead" and r.status == "ok"]
    if not own:
        return ""
    head = ["## The cost of a call", "", f"{own[0].name} on {own[0].size} elements: the arithmetic is nothing.", "",
            "| contender | µs | times NumPy's time |", "|---|---|---|"]  # fmt: skip
    yardstick = document.yardstick(own[0].case)
    for r in own:
        ratio = "" if yardstick is None else str(r.timing.ratio_to(yardstick.timing))
        note = " (built anew every time)" if r.mode == CACHED else ""
        head.append(f"| {r.contender}{note} | {r.timing.median * 1e6:.1f} | {ratio} |")
    return "\n".join(head)


def _not_timed(document: Document) -> str:
    lines = []
    others = [r for r in document.results if r.status != "ok"]
    for (contender, status, reason), group in groupby(
        sorted(others, key=lambda r: (r.contender, r.status, r.reason)), key=lambda r: (r.contender, r.status, r.reason)
    ):
        cases = [r.case for r in group]
        shown = ", ".join(cases[:3]) + (f" and {len(cases) - 3} more" if len(cases) > 3 else "")
        lines.append(f"- {contender}, {status}: {reason} ({shown})")
    lines += [f"- {name}: skipped, {reason}" for name, reason in document.skipped.items()]
    return "\n".join(["## What was not timed, and why", "", *lines]) if lines else ""
