"""Pieces of a graph for devices that compile subgraphs.

A call to such a device costs what many small ops cost on the host. Cut into small pieces by ops it does not have, a
model runs slower there than without it. So regions are ordered to stand together by device, each piece is looked at as
a whole, and one that is not worth a call goes with its neighbours. The device says what is worth one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from typing import Final

from .composite import decomposed
from .device import Device, Partitions
from .fuse import Region, RegionKind, is_constant
from .graph import Graph
from .node import Call

_STEP_LIMIT: Final = 256  # ops a step; keeps compile time linear, and lets long chains share compiled code
_PER_ELEMENT: Final = 10  # operations of a product that take as long as one op on one element, memory included


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a region may run, best first, and which devices were asked before and refused."""

    region: Region
    candidates: tuple[Device, ...]
    refused: tuple[tuple[str, str], ...]

    @property
    def device(self) -> Device:
        """The first candidate."""
        return self.candidates[0]


def work(region: Region) -> int:
    """About how much there is to compute: the multiplications and additions of products, and the rest in such."""
    return sum(map(_work_of, region.calls))


def _work_of(call: Call) -> int:
    if call.op.decomposition is not None:
        return sum(_work_of(inner) for inner, _ in decomposed(call).steps)
    if call.op.name == "matmul":
        return 2 * call.spec.size * call.inputs[0].shape[-1]
    if call.op.name == "conv":
        return 2 * call.spec.size * prod(call.inputs[1].shape[1:])
    if call.op.name == "einsum":
        terms = call.attrs["subscripts"].partition("->")[0].split(",")
        lengths: dict[str, int] = {}
        for term, given in zip(terms, call.inputs, strict=True):
            for label, length in zip(term, given.shape, strict=True):
                lengths[label] = max(length, lengths.get(label, 1))
        return 2 * prod(lengths.values())
    return _PER_ELEMENT * max((s.size for s in (*call.inputs, *call.outputs)), default=0)


def products_with_constants(graph: Graph, regions: Sequence[Region]) -> frozenset[int]:
    """The products with an operand that is the same in every run, by their entries: a compiler can prepare it once."""
    products = [r.nodes[-1] for r in regions if r.kind is RegionKind.CONTRACTION]
    if not products:
        return frozenset()
    fixed = [is_constant(graph, 0)]
    for entry, args in enumerate(graph.args[1:], 1):
        fixed.append(is_constant(graph, entry) or (bool(args) and all(fixed[a] for a in args)))
    return frozenset(p for p in products if any(fixed[a] for a in graph.args[p]))


def together(choices: Sequence[Choice]) -> list[Choice]:
    """The choices in an order in which those on one device stand together as far as what they read allows."""
    if len({c.device.name for c in choices}) <= 1:
        return list(choices)
    maker = {entry: i for i, c in enumerate(choices) for entry in c.region.nodes}
    needs = [{maker[entry] for entry in c.region.inputs if entry in maker} for c in choices]
    missing = [len(needed) for needed in needs]
    readers: list[list[int]] = [[] for _ in choices]
    for i, needed in enumerate(needs):
        for n in needed:
            readers[n].append(i)
    ready: dict[str, list[int]] = {c.device.name: [] for c in choices}
    for i, count in enumerate(missing):
        if not count:
            heappush(ready[choices[i].device.name], i)
    order: list[Choice] = []
    device = choices[0].device.name
    while len(order) < len(choices):
        if not ready[device]:  # on to the device whose turn it would have been
            device = min((name for name in ready if ready[name]), key=lambda name: ready[name][0])
        i = heappop(ready[device])
        order.append(choices[i])
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready[choices[reader].device.name], reader)
    return order


def groups(choices: Sequence[Choice]) -> Iterator[list[Choice]]:
    """Neighbours to be compiled as one unit: on one device that wants it so, up to a number of ops."""
    group: list[Choice] = []
    size = 0
    for choice in choices:
        ops = len(choice.region.nodes)
        fits = group and group[0].device is choice.device and size + ops <= _STEP_LIMIT
        if fits and choice.device.coalesces:
            group.append(choice)
            size += ops
        else:
            if group:
                yield group
            group, size = [choice], ops
    if group:
        yield group


def not_worth_a_call(
    choices: Sequence[Choice], products: frozenset[int], *, named: bool
) -> list[tuple[Region, Device, str]]:
    """The regions that should not run on their first candidate after all, that device, and why."""
    pieces: dict[str, list[list[Choice]]] = {}
    for group in groups(choices):
        if group[0].device.limits.partitions is not None:
            pieces.setdefault(group[0].device.name, []).append(group)
    found: list[tuple[Region, Device, str]] = []
    for own in pieces.values():
        device = own[0][0].device
        assert device.limits.partitions is not None
        reasons = _reasons(own, device.limits.partitions, products, named)
        for group, reason in zip(own, reasons, strict=True):
            if reason is not None:
                found += [(c.region, device, reason) for c in group]
    return found


def _reasons(
    pieces: list[list[Choice]], worth: Partitions, products: frozenset[int], named: bool
) -> Iterator[str | None]:
    """For each piece that a device would get, why it should not."""
    amounts = [sum(work(c.region) for c in piece) for piece in pieces]
    enough = sorted(amounts)[-worth.most :][0]
    for piece, amount in zip(pieces, amounts, strict=True):
        entries = [n for c in piece for n in c.region.nodes]
        if named and len(pieces) == 1:
            yield None
        elif amount < worth.least_work:
            yield f"a piece of {len(entries)} ops with so little work is not worth a call"
        elif not named and len(products.intersection(entries)) < worth.least_products:
            yield f"a piece with fewer than {worth.least_products} products by constants, and it was not named"
        else:
            yield f"of {len(pieces)} pieces it gets the {worth.most} largest" if amount < enough else None
