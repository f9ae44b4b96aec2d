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
        inputs = [ys.asarray(_single(a)) for a in sample.arrays]
        attrs = {k: ys.float32 if v is ys.float64 else v for k, v in sample.attrs.items()}
        node = op._node(tuple(inputs), attrs)
        yield name, _region_of(name, node)
    for name, build in BUILT_BY_INDEXING.items():
        pending = ys.asarray(_single(SAMPLES["add"][0].arrays[0])) * 1.5
        yield name, _region_of(name, build(pending)._node)


def _single(array: Any) -> Any:
    halved = {"float64": "float32", "complex128": "complex64"}.get(array.dtype.name)
    return array.astype(halved) if halved else array


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
