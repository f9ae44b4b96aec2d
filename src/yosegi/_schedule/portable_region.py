"""Regions for other processes: as plain data for a child process, and as a digest for records on disk."""

from __future__ import annotations

import hashlib
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from .._graph.graph import Graph
from .._graph.portable import Plain, graph_as_plain, graph_of_plain
from .._tensor.node import Call
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


def digest(region: Region) -> str:
    """The calls of a region and how they are wired, as a short text. The values of its constants play no part."""
    graph = region.graph
    at = {entry: f"%{n}" for n, entry in enumerate((*region.inputs, *region.nodes))}
    words = [_word(graph.calls[i]) for i in region.inputs]
    for n in region.nodes:
        words.append(_word(graph.calls[n]))
        words += [at[a] if a in at else _word(graph.calls[a]) for a in graph.args[n]]
    words += [at[o] for o in region.outputs]
    return hashlib.blake2b("\n".join(words).encode(), digest_size=12).hexdigest()


_words: Final[WeakKeyDictionary[Call, str]] = WeakKeyDictionary()


def _word(call: Call) -> str:
    word = _words.get(call)
    if word is None:
        attrs = {name: _described(value) for name, value in call.attrs.items() if name not in ("space", "pinned")}
        word = _words[call] = f"{call.op.name} {attrs} {call.outputs}"
    return word


def _described(value: Any) -> str:
    return f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else repr(value)
