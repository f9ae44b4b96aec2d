"""A plan as text: the device of each step, its predicted times on all devices, and its last run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from .._tensor.html import preformatted, table
from ..errors import NotReady

_LINE: Final = 12  # ops that a line shows, and kernels that a step shows
_SPECS: Final = 6  # inputs or outputs that are listed one by one


class Explanation:
    """A plan as text. `print` it, display it in a notebook, or call `to_json()`."""

    def __init__(self, report: dict[str, Any]) -> None:
        self._report = report

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return self._report

    def __str__(self) -> str:
        lines = []
        for i, step in enumerate(self._report["steps"]):
            lines.append(f"step {i} on {_where(step)}: {_shown(step['ops'], step['composites'])}")
            lines.append(f"  {_flow(step)}")
            lines += [f"  {line}" for line in _kernels(step)]
            lines += [f"  {line}" for line in (*_times(step), *_rejected(step), *_actual(step), *_launched(step))]
        lines += [*self._classes(), *self._totals()]
        if self._report["launched"]:
            lines.append(f"all steps, certified together: {self._report['launched']}")
        return "\n".join(lines) or "nothing to compute: the values are there"

    __repr__ = __str__

    def _classes(self) -> list[str]:
        """The shares of devices and classes of work in the predicted time; nothing where there is one of them."""
        devices, tasks = Counter[str](), Counter[str]()
        for step in self._report["steps"]:
            for work in step["works"]:
                devices[step["device"]] += work["predicted_ms"]
                tasks[work["task"]] += work["predicted_ms"]
        return [
            f"by {what}: " + ", ".join(f"{name} {_share(ms, shares.total())}" for name, ms in shares.most_common())
            for what, shares in (("device", devices), ("class", tasks))
            if len(shares) > 1
        ]

    def _totals(self) -> list[str]:
        """The predicted time of the plan and of each single device; nothing if no devices were compared."""
        singles = self._report["singles"]
        if not singles:
            return []
        predicted, measured = self._report["predicted"], self._report["measured_ms"]
        parts = ", ".join(f"{name} {predicted[f'{name}_ms']:.3f}" for name in ("compute", "conversion", "transfer"))
        ran = "" if measured is None else f", measured {measured:.3f} ms"
        lines = [f"in all: predicted {predicted['total_ms']:.3f} ms ({parts}){ran}"]
        for single in singles:
            source = "measured in parts" if single["is_measured"] else "predicted"
            lines.append(f"  all it can on {single['device']}: {single['total_ms']:.3f} ms {source}")
        return lines

    def _repr_html_(self) -> str:
        heads = ("step", "device", "ops", "kernels", "in → out", "takes", "not on", "ran")
        rows = []
        for i, step in enumerate(self._report["steps"]):
            not_on = [line.removeprefix("not on ") for line in _rejected(step)]
            lists = ("; ".join(lines) for lines in (_times(step), not_on, [*_actual(step), *_launched(step)]))
            ops = _shown(step["ops"], step["composites"])
            rows.append((str(i), _where(step), ops, "\n".join(_kernels(step)), _flow(step), *lists))
        totals = [*self._classes(), *self._totals()]
        return table(heads, rows) + (preformatted("\n".join(totals)) if totals else "")


def counted(n: int, noun: str) -> str:
    """A number of things."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def shortened(specs: Sequence[str]) -> str:
    """Shapes and dtypes in a line: each if they are few, else how many there are of the most frequent."""
    if len(specs) <= _SPECS:
        return ", ".join(specs) or "nothing"
    kinds = Counter(specs).most_common()
    words = [f"{n} × {spec}" if n > 1 else spec for spec, n in kinds[:_SPECS]]
    return f"{len(specs)} values ({', '.join(words)}{', …' if len(kinds) > _SPECS else ''})"


def _flow(step: dict[str, Any]) -> str:
    return f"{shortened(step['inputs'])} → {shortened(step['outputs'])}"


def _share(part: float, whole: float) -> str:
    return f"{part / (whole or 1):.0%}"


def _where(step: dict[str, Any]) -> str:
    return str(step["device"]) if step["precision"] == "full" else f"{step['device']} in {step['precision']}"


def _shown(ops: list[str], composites: list[str]) -> str:
    """The ops in a line, those of a composite behind its name; where there are many, its name alone."""
    short = len(ops) > _LINE
    words: list[str] = []
    for composite, group in groupby(zip(ops, composites, strict=True), key=lambda pair: pair[1]):
        names = [name for name, _ in group]
        words += names if not composite else [composite] if short else [f"{composite}({' '.join(names)})"]
    text = " ".join(words if len(words) <= _LINE else [*words[: _LINE - 1], "…"])
    return f"{text} ({len(ops)} ops)" if short else text


def _kernels(step: dict[str, Any]) -> list[str]:
    """The kernels of a step: equal ones in one line with their predicted time and share, in order of their first run.
    Of many, the largest."""
    if len(step["kernels"]) < 2:
        return [f"1 kernel: {_title(ops)}" for ops in step["kernels"]]
    times, counts = Counter[str](), Counter[str]()
    for ops, work in zip(step["kernels"], step["works"], strict=True):
        times[_title(ops)] += work["predicted_ms"]
        counts[_title(ops)] += 1
    shown = {title for title, _ in times.most_common(_LINE)}
    rows = [(f"{counts[t]} × {t}" if counts[t] > 1 else t, times[t]) for t in times if t in shown]
    if len(times) > len(shown):
        others = counts.total() - sum(counts[t] for t in shown)
        rows.append((f"{counted(others, 'other')}", times.total() - sum(times[t] for t in shown)))
    prior = " by a prior" if step["candidates"][0]["is_prior"] else ""
    lines = [f"  {ms:8.3f} ms {_share(ms, times.total()):>4}  {title}" for title, ms in rows]
    return [f"{len(step['kernels'])} kernels, predicted{prior}:", *lines]


def _title(ops: list[str]) -> str:
    return "+".join(ops) if len(ops) <= _LINE else f"{'+'.join(ops[:3])}+… ({len(ops)} ops)"


def _times(step: dict[str, Any]) -> list[str]:
    """The predicted time of the step on its device, unless it comes from a prior."""
    if step["messages"]:
        return list(step["messages"])
    chosen = step["candidates"][0]
    is_known = not chosen["is_prior"] or chosen["measured_ms"] is not None or chosen["error"] is not None
    return [_sentence(chosen)] if is_known else []


def _sentence(candidate: dict[str, Any]) -> str:
    prior = ", a prior" if candidate["is_prior"] else ""
    measured = "" if candidate["measured_ms"] is None else f", measured {candidate['measured_ms']:.3f} ms"
    error = "" if candidate["error"] is None else f", error {candidate['error']:.1e}"
    return f"predicted {candidate['predicted_ms']:.3f} ms{prior}{measured}{error}"


def _rejected(step: dict[str, Any]) -> list[str]:
    refused = {r["device"] for r in step["refused"]}
    lines = [f"not on {r['device']}: {r['reason']}" for r in step["refused"]]
    for candidate in step["candidates"][1:]:
        if candidate["device"] not in refused:
            where = (
                f"in {candidate['precision']}" if candidate["device"] == step["device"] else f"on {_where(candidate)}"
            )
            lines.append(f"not {where}: {candidate['reason']} ({_sentence(candidate)})")
    return lines


def _actual(step: dict[str, Any]) -> list[str]:
    actual = step["actual"]
    if actual is None:
        return []
    lines = [
        f"not yet on {f['device']}: {f['message']}"
        if f["kind"] == NotReady.__name__
        else f"failed on {f['device']}: {f['kind']}: {f['message']}"
        for f in actual["failures"]
    ]
    moved = f", {actual['bytes_moved']:,} bytes moved" if actual["bytes_moved"] else ""
    return [*lines, f"ran on {actual['device']} in {actual['milliseconds']:.3f} ms{moved}"]


def _launched(step: dict[str, Any]) -> list[str]:
    return [step["launched"]] if step["launched"] else []
