"""The table of the ops that each device of this machine runs natively, with the reasons against the others.

python tests/native_ops.py            prints it as Markdown
"""

from __future__ import annotations

from collections.abc import Iterator
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


def table() -> str:
    """The Markdown table."""
    devices = ys.devices()
    lines = [
        f"| op | class | {' | '.join(d.name for d in devices)} |",
        "|---|---|" + "---|" * len(devices),
    ]
    counts = dict.fromkeys((d.name for d in devices), 0)
    rows = 0
    for name, graph in graphs():
        cells = [cell(name, graph, device) for device in devices]
        for device, word in zip(devices, cells, strict=True):
            counts[device.name] += word in ("yes", "native", "decomposed")
        rows += 1
        lines.append(f"| `{name}` | {REGISTRY[name].kind.value} | {' | '.join(cells)} |")
    totals = ", ".join(f"{name}: {n} of {rows}" for name, n in counts.items())
    return "\n".join([f"Native ops: {totals}.", "", *lines]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
