"""Graph → graph in which small all-reduces are joined: one message costs less than many.

All-reduces with the same ranks, combination and dtype are joined if none of them needs the result of another, in the
order in which they can begin. So the first bucket is sent while the backward pass still computes the values of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import Any

from .._graph.graph import Graph
from .._tensor.node import Call
from ..ops.index import slice_view
from ..ops.shape import concatenate, reshape
from .communication import all_reduce
from .sequence import Ready, bucket_size


def in_buckets(
    graph: Graph, nbytes: Mapping[int, int], ready: Mapping[int, Ready]
) -> tuple[Graph, Mapping[int, Ready]]:
    """The graph with all-reduces joined up to the size of a bucket, and the moments of its communications.

    `nbytes` has the sizes of the all-reduces, and `ready` the moments of all communications, the same on all ranks.
    """
    buckets = [b for b in _buckets(graph, nbytes, ready) if len(b) > 1]
    if not buckets:
        return graph, ready
    bucket_of = {entry: n for n, bucket in enumerate(buckets) for entry in bucket}
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []
    at: dict[int, int] = {}
    joined: dict[int, int] = {}

    def put(call: Call, *given: int) -> int:
        calls.append(call)
        args.append(given)
        return len(calls) - 1

    for entry in _order(graph, buckets, bucket_of):
        if entry not in bucket_of:
            at[entry] = put(graph.calls[entry], *[at[a] for a in graph.args[entry]])
        elif entry not in at:
            joined[bucket_of[entry]] = _join(graph, buckets[bucket_of[entry]], put, calls, at)
    sent = {entry: at[entry] for entry in ready if entry not in bucket_of}
    sent |= {entry: joined[n] for entry, n in bucket_of.items()}
    moments: dict[int, Ready] = {}
    for entry, place in sent.items():
        moments[place] = max(moments.get(place, ready[entry]), ready[entry])
    return Graph(tuple(calls), tuple(args), tuple([at[o] for o in graph.outputs])), moments


def _buckets(graph: Graph, nbytes: Mapping[int, int], ready: Mapping[int, Ready]) -> list[list[int]]:
    """The all-reduces of each bucket. Those that follow as many others cannot need each other."""
    levels: list[int] = []
    for args in graph.args:
        levels.append(max([levels[a] + (a in nbytes) for a in args], default=0))
    found: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for entry in sorted(nbytes, key=ready.__getitem__):
        call = graph.calls[entry]
        key = (levels[entry], call.spec.dtype, *[value for name, value in call.attrs.items() if name != "why"])
        bucket, size = filling.get(key, ([], 0))
        if not bucket or size + nbytes[entry] > bucket_size(call.attrs["mesh"], call.attrs["axis"]):
            bucket, size = [], 0
            found.append(bucket)
        bucket.append(entry)
        filling[key] = bucket, size + nbytes[entry]
    return found


def _order(graph: Graph, buckets: list[list[int]], bucket_of: dict[int, int]) -> list[int]:
    """The entries, each behind its arguments, and behind the arguments of its bucket; otherwise as they were."""
    needs = [
        {a for member in (buckets[bucket_of[e]] if e in bucket_of else [e]) for a in graph.args[member]}
        for e in range(len(graph.calls))
    ]
    readers: list[list[int]] = [[] for _ in needs]
    for entry, needed in enumerate(needs):
        for a in needed:
            readers[a].append(entry)
    missing = [len(needed) for needed in needs]
    ready = [entry for entry, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        entry = heappop(ready)
        order.append(entry)
        for reader in readers[entry]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return order


def _join(graph: Graph, bucket: list[int], put: Any, calls: list[Call], at: dict[int, int]) -> int:
    """Write one all-reduce of all values of a bucket, and the values again. Returns the all-reduce."""
    first = graph.calls[bucket[0]]
    flat = []
    for entry in bucket:
        source = at[graph.args[entry][0]]
        flat.append(put(reshape.call((calls[source].spec,), {"shape": (-1,)}), source))
    joined = put(concatenate.call(tuple([calls[f].spec for f in flat]), {"axis": 0}), *flat)
    why = f"{len(bucket)} values in a message"
    reduced = put(all_reduce.call((calls[joined].spec,), first.attrs | {"why": why}), joined)
    begin = 0
    for entry in bucket:
        s = graph.calls[entry].spec
        part = put(slice_view.call((calls[reduced].spec,), {"key": ((begin if s.size else 0, s.size, 1),)}), reduced)
        at[entry] = put(reshape.call((calls[part].spec,), {"shape": s.shape}), part)
        begin += s.size
    return int(reduced)
