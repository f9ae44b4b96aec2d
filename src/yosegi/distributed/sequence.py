"""Graph → graph in which the communications have one order, the same on all ranks, and leave time for other work.

A communication comes as early as its value can be there: the gradients of the last layers are sent while the backward
pass computes those of the first. Where other work can run beside it, it becomes two ops, a start and a wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from .._graph.graph import Graph
from .._schedule.fuse import connection_of, in_order_of_needs
from .._tensor.node import Call
from .._tensor.op import leaf
from .._tensor.role import View
from .communication import STARTS, wait

Ready: TypeAlias = tuple[int, int]
"""The moment at which a communication can begin: the ops on the longest path to it, and its number. Both are counted in
the graph of whole values, so all ranks find the same."""

_WORK: Final = 1 << 14
"""Elements of other work from which a communication is worth a thread of its own."""


def depths(graph: Graph) -> list[int]:
    """For each entry the ops on the longest path to it."""
    found: list[int] = []
    for args in graph.args:
        found.append(1 + max([found[a] for a in args], default=-1))
    return found


def in_sequence(graph: Graph, ready: Mapping[int, Ready]) -> Graph:
    """The graph with each communication reading the result, or the ticket, of the one before."""
    above = _above(graph, ready)
    order = _order(above, ready)
    split = _worth_splitting(graph, above, ready, order)
    entries = [n for n, call in enumerate(graph.calls) if call.op is leaf]
    needs = {n: set(graph.args[n]) for n in (*entries, *order, *range(len(graph.calls)))}
    calls: list[Call] = []
    args: list[tuple[int, ...]] = []
    at: dict[int, int] = {}
    last: list[int] = []
    for entry in in_order_of_needs(needs):
        call, read = graph.calls[entry], [at[a] for a in graph.args[entry]]
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


def _above(graph: Graph, ready: Mapping[int, Ready]) -> list[int]:
    """For each entry the communications that it needs, as the bits of a number."""
    bits = {entry: 1 << n for n, entry in enumerate(ready)}
    found: list[int] = []
    for args in graph.args:
        needed = 0
        for a in args:
            needed |= found[a] | bits.get(a, 0)
        found.append(needed)
    return found


def _order(above: Sequence[int], ready: Mapping[int, Ready]) -> list[int]:
    """The communications, each behind those that it needs, and otherwise as they can begin."""
    bits = {entry: 1 << n for n, entry in enumerate(ready)}
    left = sorted(ready, key=ready.__getitem__)
    order: list[int] = []
    done = 0
    while left:
        entry = next(e for e in left if not above[e] & ~done)
        left.remove(entry)
        order.append(entry)
        done |= bits[entry]
    return order


def _worth_splitting(graph: Graph, above: Sequence[int], ready: Mapping[int, Ready], order: Sequence[int]) -> set[int]:
    """The communications beside which enough other work can run: work that does not need them, and that neither they
    nor those before them need. Elementwise ops do not count: most are fused with work that needs them. A device runs
    its own communication beside other work."""
    number = {entry: n for n, entry in enumerate(order)}
    first = [len(order)] * len(graph.calls)
    for entry in reversed(range(len(graph.calls))):
        first[entry] = min(first[entry], number.get(entry, len(order)))
        for a in graph.args[entry]:
            first[a] = min(first[a], first[entry])
    sizes: Counter[tuple[int, int]] = Counter()
    for entry, call in enumerate(graph.calls):
        if call.inputs and entry not in number and call.op.scalar is None and not isinstance(call.op.role, View):
            sizes[first[entry], above[entry]] += max([s.size for s in (*call.inputs, *call.outputs)])
    bits = {entry: 1 << n for n, entry in enumerate(ready)}
    beside: Counter[int] = Counter()
    for (before, needed), size in sizes.items():
        beside.update({entry: size for entry in order[:before] if not needed & bits[entry]})
    on_host = {entry for entry in order if connection_of(graph.calls[entry]) is None}
    return {entry for entry, size in beside.items() if size >= _WORK and entry in on_host}
