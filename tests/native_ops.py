"""The table of the ops that each device of this machine runs natively, with the reasons against the others.

python tests/native_ops.py [table.md …]            prints it as Markdown, with the columns of tables of other machines
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yosegi as ys
from samples import BUILT_BY_INDEXING, SAMPLES
from yosegi._graph.expand import expand
from yosegi._graph.graph import Graph, capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._place.candidates import refusal
from yosegi._run.device import Device
from yosegi._schedule.fuse import Region, fuse
from yosegi._tensor.op import REGISTRY


def graphs() -> Iterator[tuple[str, Graph]]:
    """Each op in the graph that its first sample makes, in float32 where the sample is of floats."""
    for name, samples in SAMPLES.items():
        op, sample = REGISTRY[name], samples[0]
        inputs = [ys.asarray(_single(a)) for a in sample.arrays]
        attrs = {k: ys.float32 if v is ys.float64 else v for k, v in sample.attrs.items()}
        yield name, graph_of(capture([op._node(tuple(inputs), attrs)])[0])
    for name, build in BUILT_BY_INDEXING.items():
        pending = ys.asarray(_single(SAMPLES["add"][0].arrays[0])) * 1.5
        yield name, graph_of(capture([build(pending)._node])[0])


def _single(array: Any) -> Any:
    halved = {"float64": "float32", "complex128": "complex64"}.get(array.dtype.name)
    return array.astype(halved) if halved else array


def cell(name: str, graph: Graph, device: Device) -> str:
    """True entries are "yes", "native" or "decomposed" for a composite; otherwise the reason of the refusal."""
    if REGISTRY[name].decomposition is None:
        return refusal(device, _region_of(name, graph)) or "yes"
    expanded = expand(graph, (device,))
    reasons = [refusal(device, region) for region in fuse(simplify(expanded))]
    native = any(call.op.name == name for call in expanded.calls)
    return next((r for r in reasons if r is not None), "native" if native else "decomposed")


def _region_of(name: str, graph: Graph) -> Region:
    for made in (fuse(simplify(graph)), fuse(graph)):
        for region in made:
            if any(call.op.name == name for call in region.calls):
                return region
    raise AssertionError(f"no region has {name}")


def columns_of(page: Path) -> dict[str, dict[str, str]]:
    """The cells of a table, by devices and by ops."""
    rows = [line.strip("| ").split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    head, _, *body = rows
    return {device: {row[0].strip("`"): row[2 + n] for row in body} for n, device in enumerate(head[2:])}


def table(others: Sequence[Path] = ()) -> str:
    """The Markdown table; `others` are tables of other machines, whose devices come first."""
    made = dict(graphs())
    own = {device.name: {name: cell(name, graph, device) for name, graph in made.items()} for device in ys.devices()}
    columns = {name: cells for page in others for name, cells in columns_of(page).items() if name not in own} | own
    head = [f"| op | class | {' | '.join(columns)} |", "|---|---|" + "---|" * len(columns)]
    rows = [f"| `{name}` | {REGISTRY[name].kind.value} | {' | '.join(c.get(name, '') for c in columns.values())} |"
            for name in made]  # fmt: skip
    totals = [f"{device}: {sum(word in ('yes', 'native', 'decomposed') for word in cells.values())} of {len(made)}"
              for device, cells in columns.items()]  # fmt: skip
    return "\n".join([f"Native ops: {', '.join(totals)}.", "", *head, *rows]) + "\n"


if __name__ == "__main__":
    print(table([Path(name) for name in sys.argv[1:]]), end="")
