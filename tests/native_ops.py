"""The table of what each device of this machine runs itself, and why not the rest.

python tests/native_ops.py            prints it as Markdown
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yosegi as ys
from samples import BUILT_BY_INDEXING, SAMPLES
from yosegi.fuse import Region, fuse
from yosegi.graph import capture, graph_of
from yosegi.op import REGISTRY
from yosegi.place import refusal
from yosegi.simplify import simplify


def regions() -> Iterator[tuple[str, Region]]:
    """Each op in the region that its first sample makes, in float32 where the sample is of floats."""
    for name, samples in SAMPLES.items():
        op, sample = REGISTRY[name], samples[0]
        inputs = [_single(ys.asarray(a)) for a in sample.arrays]
        node = op._node(tuple(inputs), sample.attrs)
        yield name, _region_of(name, node)
    for name, build in BUILT_BY_INDEXING.items():
        pending = _single(ys.asarray(SAMPLES["add"][0].arrays[0])) * 1.5
        yield name, _region_of(name, build(pending)._node)


def _single(x: Any) -> Any:
    return x.astype(ys.float32) if x.dtype == ys.float64 else x.astype(ys.complex64) if x.dtype == ys.complex128 else x


def _region_of(name: str, node: Any) -> Region:
    graph = graph_of(capture([node])[0])
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
    for name, region in regions():
        cells = []
        for device in devices:
            reason = refusal(device, region)
            counts[device.name] += reason is None
            cells.append(reason or "yes")
        rows += 1
        lines.append(f"| `{name}` | {REGISTRY[name].kind.value} | {' | '.join(cells)} |")
    totals = ", ".join(f"{name}: {n} of {rows}" for name, n in counts.items())
    return "\n".join([f"Native ops: {totals}.", "", *lines]) + "\n"


if __name__ == "__main__":
    print(table(), end="")
