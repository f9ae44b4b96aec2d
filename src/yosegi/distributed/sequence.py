"""Graph → graph in which the communications have one order, the same on all ranks, and leave time for other work.

A communication comes as early as its value can be there: the gradients of the last layers are sent while the backward
pass computes those of the first. Where other work can run beside it, it becomes two ops, a start and a wait.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from .._graph.graph import Graph
from .._schedule.fuse import connection_of, in_order_of_needs
from .._tensor.node import Call
from .._tensor.op import leaf
from .._tensor.role import View
from .communication import STARTS, all_gather, wait
from .layout import Mesh

Ready: TypeAlias = tuple[int, int]
"""The moment at which a communication can begin: the ops on the longest path to it, and its number. Both are counted in
the graph of whole values, so all ranks find the same."""

_WORK: Final = 1 << 14
"""Elements of other work from which a communication is worth a thread of its own."""
_FULL: Final = 16
"""A bucket is full if its bytes take so many times as long as a message without any."""


def bucket_size(mesh: Mesh, axis: int) -> float:
    """The bytes of a full bucket. A message costs its latency, and a thread that takes over."""
    costs = mesh.costs[axis]
    return _FULL * (costs["all_reduce"].latency + costs["handover"].latency) * costs["all_reduce"].bandwidth


def depths(graph: Graph) -> list[int]:
    """For each entry the ops on the longest path to it."""
    found: list[int] = []
    for args in graph.args:
        found.append(1 + max([found[a] for a in args], default=-1))
    return found


def uses(graph: Graph, depths: Sequence[int]) -> list[int]:
    """For each entry the depth at which it is read. A view is read where its first reader is."""
    found = list(depths)
    first = [len(graph.calls)] * len(graph.calls)
    for entry in reversed(range(len(graph.calls))):
        if isinstance(graph.calls[entry].op.role, View):
            found[entry] = max(first[entry], depths[entry])
        for a in graph.args[entry]:
            first[a] = min(first[a], found[entry])
    return found


def in_sequence(graph: Graph, ready: Mapping[int, Ready]) -> Graph:
    """The graph with each communication reading the result, or the ticket, of the one before."""
    bits = {entry: 1 << n for n, entry in enumerate(ready)}
    above = _above(graph.args, bits)
    order = _order(above, bits, ready)
    behind = _behind_uses(graph, above, bits, order)
    needed = [(*args, *behind.get(n, ())) for n, args in enumerate(graph.args)]
    split = _worth_splitting(graph, needed, bits, order)
    entries = [n for n, call in enumerate(graph.calls) if call.op is leaf]
    needs = {n: set(needed[n]) for n in (*entries, *order, *range(len(graph.calls)))}
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []
    at: dict[int, int] = {}
    last: list[int] = []
    for entry in in_order_of_needs(needs):
        call, read = graph.calls[entry], [at[a] for a in needed[entry]]
        if entry in ready:
            op = STARTS[call.op] if entry in split else call.op
            read += last
            last = [len(calls)]
            calls.append(op.call(tuple([calls[a].spec for a in read]), call.attrs))
            args.append(tuple(read))
            if entry in split:
                calls.append(wait.call((calls[-1].spec,), {"made": call.spec}))
                args.append((len(calls) - 2,))
        else:
            calls.append(call)
            args.append(tuple(read))
        at[entry] = len(calls) - 1
    return Graph(tuple(calls), tuple(args), tuple([at[o] for o in graph.outputs]))


def _above(needed: Sequence[Sequence[int]], bits: Mapping[int, int]) -> list[int]:
    """For each entry the communications that it needs, as the bits of a number."""
    found: list[int] = []
    for entries in needed:
        above = 0
        for a in entries:
            above |= found[a] | bits.get(a, 0)
        found.append(above)
    return found


def _behind_uses(
    graph: Graph, above: Sequence[int], bits: Mapping[int, int], order: Sequence[int]
) -> dict[int, list[int]]:
    """For each gather the ops that use earlier ones and come before it, so that no more than a bucket is ahead of its
    use. Elementwise ops do not count: they are fused."""
    user: list[int | None] = [None] * len(graph.calls)
    for entry in reversed(range(len(graph.calls))):
        call = graph.calls[entry]
        for a in graph.args[entry]:
            if isinstance(call.op.role, View):
                user[a] = user[entry]
            elif call.op.scalar is None and entry not in bits:
                user[a] = entry
    found: dict[int, list[int]] = {}
    ahead: deque[int] = deque()
    before = 0
    for entry in order:
        if graph.calls[entry].op is all_gather:
            attrs = graph.calls[entry].attrs
            full = bucket_size(attrs["mesh"], attrs["axis"])
            while len(ahead) > 1 and sum([graph.calls[e].spec.nbytes for e in ahead]) > full:
                use = user[ahead.popleft()]
                if use is not None and use < entry and not above[use] & ~before:
                    found.setdefault(entry, []).append(use)
            ahead.append(entry)
        before |= bits[entry]
    return found


def _order(above: Sequence[int], bits: Mapping[int, int], ready: Mapping[int, Ready]) -> list[int]:
    """The communications, each behind those that it needs, and otherwise as they can begin."""
    left = sorted(ready, key=ready.__getitem__)
    order: list[int] = []
    done = 0
    while left:
        entry = next(e for e in left if not above[e] & ~done)
        left.remove(entry)
        order.append(entry)
        done |= bits[entry]
    return order


def _worth_splitting(
    graph: Graph, needed: Sequence[Sequence[int]], bits: Mapping[int, int], order: Sequence[int]
) -> set[int]:
    """The communications beside which enough other work can run: work that does not need them, and that neither they
    nor those before them need. Elementwise ops do not count: most are fused with work that needs them. A device runs
    its own communication beside other work."""
    above = _above(needed, bits)
    number = {entry: n for n, entry in enumerate(order)}
    first = [len(order)] * len(graph.calls)
    for entry in reversed(range(len(graph.calls))):
        first[entry] = min(first[entry], number.get(entry, len(order)))
        for a in needed[entry]:
            first[a] = min(first[a], first[entry])
    sizes: Counter[tuple[int, int]] = Counter()
    for entry, call in enumerate(graph.calls):
        if call.inputs and entry not in number and call.op.scalar is None and not isinstance(call.op.role, View):
            sizes[first[entry], above[entry]] += max([s.size for s in (*call.inputs, *call.outputs)])
    beside: Counter[int] = Counter()
    for (before, communicated), size in sizes.items():
        beside.update({entry: size for entry in order[:before] if not communicated & bits[entry]})
    on_host = {entry for entry in order if connection_of(graph.calls[entry]) is None}
    return {entry for entry, size in beside.items() if size >= _WORK and entry in on_host}
