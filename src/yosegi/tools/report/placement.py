"""The placement of a program: which step ran on which device, what flowed between them, and what refused."""

from __future__ import annotations

from typing import Any

from .digest import Digest
from .flow import FlowNode, drawing
from .html import Markup, joined, tag
from .parts import Block, Row, Section, Table, key
from .units import listed, nbytes, plural, seconds

MOST_BOXES = 60
"""A larger program is shown as a table only."""


def section(digest: Digest) -> Section:
    """The graph, and the same in words."""
    given = digest.document.placement
    steps = [s for s in given.get("steps", []) if isinstance(s, dict)] if isinstance(given.get("steps"), list) else []
    lead = (
        "A small network's forward pass over all devices. Each box is a step that ran as one piece, in the colour of "
        "its device; lines are values on their way, dashed where they go from one device to another."
    )
    if not steps:
        return Section("placement", "Placement of a program", "This run has no program whose placement was recorded.")
    blocks: list[Block] = [tag("p", "The program: ", tag("code", str(given.get("program", "not named"))))]
    blocks.append(tag("p", finding(steps), class_="finding"))
    if len(steps) <= MOST_BOXES:
        blocks += _graph(digest, steps)
    blocks.append(_table(steps))
    return Section("placement", "Placement of a program", lead, blocks)


def _graph(digest: Digest, steps: list[dict[str, Any]]) -> list[Block]:
    colours = {p.name: p.colour for p in digest.devices}
    nodes = [_node(s, colours) for s in steps]
    used = list(dict.fromkeys(n.device for n in nodes))
    graph = drawing(nodes, f"Placement: {plural(len(steps), 'step')} on {listed(used)}; the table below says the same.")
    made: list[Block] = [key([(colours.get(d, "var(--soft)"), "square", d) for d in used])]
    made.append(
        tag("div", graph, class_="scroll graph", tabindex="0", role="region", aria_label="The placement as a graph")
    )
    if not any("reads" in s for s in steps):
        made.append(tag("p", "This file does not say which step reads which, so no lines are drawn.", class_="note"))
    return made


def _actual(step: dict[str, Any]) -> dict[str, Any]:
    return step["actual"] if isinstance(step.get("actual"), dict) else {}


def _device(step: dict[str, Any]) -> str:
    return str(_actual(step).get("device") or step.get("device") or "?")


def _ops(step: dict[str, Any]) -> str:
    return " ".join(map(str, step.get("ops") or ["?"]))


def _time(step: dict[str, Any]) -> str:
    taken = _actual(step).get("milliseconds")
    return seconds(taken / 1e3) if isinstance(taken, (int, float)) and taken > 0 else ""


def _moved(step: dict[str, Any]) -> str:
    moved = _actual(step).get("bytes_moved")
    return nbytes(moved) if isinstance(moved, (int, float)) and moved > 0 else ""


def _reads(step: dict[str, Any]) -> tuple[int, ...]:
    given = step.get("reads")
    return tuple(i for i in given if isinstance(i, int) and i >= 0) if isinstance(given, list) else ()


def _node(step: dict[str, Any], colours: dict[str, str]) -> FlowNode:
    moved = _moved(step)
    detail = ", ".join(t for t in (_time(step), f"{moved} moved" if moved else "") if t) or "not run"
    return FlowNode(_ops(step), detail, _device(step), colours.get(_device(step), "var(--soft)"), _reads(step))


def finding(steps: list[dict[str, Any]]) -> str:
    """How many steps ran where, and how often the work changed devices."""
    counts: dict[str, int] = {}
    for s in steps:
        counts[_device(s)] = counts.get(_device(s), 0) + 1
    crossed = sum(_device(steps[i]) != _device(s) for s in steps for i in _reads(s) if i < len(steps))
    where = listed([f"{n} on {device}" for device, n in counts.items()])
    refused = {
        str(r.get("device")): str(r.get("reason")) for s in steps for r in s.get("refused", []) if isinstance(r, dict)
    }
    text = f"{plural(len(steps), 'step')}: {where}"
    if len(counts) > 1 and any("reads" in s for s in steps):
        text += f"; {plural(crossed, 'value')} {'goes' if crossed == 1 else 'go'} from one device to another"
    if refused:
        text += "; " + listed([f"{device} refused some ({reason})" for device, reason in refused.items()])
    return f"{text}."


def _table(steps: list[dict[str, Any]]) -> Table:
    rows = [
        Row((
            str(n), _device(s), _ops(s), ", ".join(str(i) for i in _reads(s)) or "inputs only",
            f"{', '.join(map(str, s.get('inputs', [])))} → {', '.join(map(str, s.get('outputs', [])))}",
            _time(s), _moved(s) or "nothing", _why(s),
        ))
        for n, s in enumerate(steps)
    ]  # fmt: skip
    headings = ("step", "device", "ops", "reads step", "in → out", "#time", "#moved", "why not elsewhere, what failed")
    return Table("The placement in words: every step, in order", headings, rows)


def _why(step: dict[str, Any]) -> Markup:
    refused = [f"not {r.get('device')}: {r.get('reason')}" for r in step.get("refused", []) if isinstance(r, dict)]
    failed = [
        f"failed on {f.get('device')}: {f.get('kind')}: {f.get('message')}"
        for f in _actual(step).get("failures", [])
        if isinstance(f, dict)
    ]
    return joined("; ".join(refused + failed))
