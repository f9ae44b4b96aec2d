"""A plan as text: the device of each step, its predicted times on all devices, and its last run."""

from __future__ import annotations

from html import escape
from itertools import groupby
from typing import Any, Final

from ..errors import NotReady

_LINE: Final = 12  # ops that a line shows


class Explanation:
    """A plan as text. `print` it, display it in a notebook, or call `to_json()`."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._told = told

    def to_json(self) -> dict[str, Any]:
        """The explanation as plain data."""
        return self._told

    def __str__(self) -> str:
        lines = []
        for i, step in enumerate(self._told["steps"]):
            lines.append(f"step {i} on {_where(step)}: {_shown(step['ops'], step['composites'])}")
            lines.append(f"  {', '.join(step['inputs']) or 'nothing'} → {', '.join(step['outputs'])}")
            lines += [f"  {line}" for line in _kernels(step)]
            lines += [f"  {line}" for line in (*_times(step), *_rejected(step), *_actual(step), *_launched(step))]
        lines += self._totals()
        return "\n".join(lines) or "nothing to compute: the values are there"

    __repr__ = __str__

    def _totals(self) -> list[str]:
        """The predicted time of the plan and of each single device; nothing if no devices were compared."""
        singles = self._told["singles"]
        if not singles:
            return []
        predicted, measured = self._told["predicted"], self._told["measured_ms"]
        parts = ", ".join(f"{name} {predicted[f'{name}_ms']:.3f}" for name in ("compute", "conversion", "transfer"))
        ran = "" if measured is None else f", measured {measured:.3f} ms"
        lines = [f"in all: predicted {predicted['total_ms']:.3f} ms ({parts}){ran}"]
        for single in singles:
            told = "measured in parts" if single["is_measured"] else "predicted"
            lines.append(f"  all it can on {single['device']}: {single['total_ms']:.3f} ms {told}")
        return lines

    def _repr_html_(self) -> str:
        heads = ("step", "device", "ops", "kernels", "in → out", "takes", "not on", "ran")
        rows = []
        for i, step in enumerate(self._told["steps"]):
            flow = f"{', '.join(step['inputs'])} → {', '.join(step['outputs'])}"
            not_on = [line.removeprefix("not on ") for line in _rejected(step)]
            lists = ("; ".join(lines) for lines in (_times(step), not_on, [*_actual(step), *_launched(step)]))
            ops = _shown(step["ops"], step["composites"])
            cells = (str(i), _where(step), ops, "; ".join(_kernels(step)), flow, *lists)
            rows.append("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")
        head = "".join(f"<th>{h}</th>" for h in heads)
        totals = "".join(f"<p>{escape(line.strip())}</p>" for line in self._totals())
        return f"<table><tr>{head}</tr>{''.join(rows)}</table>{totals}"


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
    """The kernels of a step in a line."""
    kernels = step["kernels"]
    if not kernels:
        return []
    words = ["+".join(ops) if len(ops) <= _LINE else f"{'+'.join(ops[:3])}+… ({len(ops)} ops)" for ops in kernels]
    text = " | ".join(words if len(words) <= _LINE else [*words[: _LINE - 1], "…"])
    return [f"{len(kernels)} kernel{'s' if len(kernels) > 1 else ''}: {text}"]


def _times(step: dict[str, Any]) -> list[str]:
    """The predicted time of the step on its device, unless it comes from a prior."""
    chosen = step["candidates"][0]
    is_known = not chosen["is_prior"] or chosen["measured_ms"] is not None or chosen["error"] is not None
    return [_told(chosen)] if is_known else []


def _told(candidate: dict[str, Any]) -> str:
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
            lines.append(f"not {where}: {candidate['reason']} ({_told(candidate)})")
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
