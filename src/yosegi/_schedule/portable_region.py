"""Regions as plain data, on their way to a child process."""

from __future__ import annotations

from typing import Any

from .._graph.graph import Graph
from .._graph.portable import Plain, graph_as_plain, graph_of_plain
from .._tensor.op import leaf_call
from .._tensor.precision import Precision
from .fuse import Region, RegionKind


def region_as_plain(region: Region) -> Plain:
    """A region, with nothing of the graph that it is not made of."""
    graph = region.graph
    read = dict.fromkeys(a for n in region.nodes for a in graph.args[n])
    others = [a for a in read if a not in region.inputs and a not in region.nodes]
    entries = (*region.inputs, *others, *region.nodes)
    at = {entry: n for n, entry in enumerate(entries)}
    calls = [leaf_call(graph.calls[e].spec) if e in region.inputs else graph.calls[e] for e in entries]
    args = [() if e in region.inputs else tuple([at[a] for a in graph.args[e]]) for e in entries]
    own = Graph(tuple(calls), tuple(args), tuple([at[o] for o in region.outputs]))
    lists: dict[str, Any] = {
        name: [at[e] for e in getattr(region, name)] for name in ("nodes", "inputs", "outputs")
    }  # fmt: skip
    return {
        "graph": graph_as_plain(own), "kind": region.kind.value, "precision": region.precision.value,
        "repeats": region.repeats, **lists,
    }  # fmt: skip


def region_of_plain(data: Plain) -> Region:
    """The region that plain data describes."""
    nodes, inputs, outputs = (tuple(data[name]) for name in ("nodes", "inputs", "outputs"))
    return Region(
        graph_of_plain(data["graph"]), RegionKind(data["kind"]), nodes, inputs, outputs, data["repeats"],
        Precision(data["precision"]),
    )  # fmt: skip
