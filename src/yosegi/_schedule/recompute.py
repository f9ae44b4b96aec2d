"""Element-wise values that are computed again where they are read late, instead of being kept.

The backward half of a training step reads values of the forward half. Those that are a few element-wise ops away from
values that are kept anyway take memory for nothing: the kernel that reads them can compute them from the kept ones, in
registers. It reads one array in place of another, so that the cost is arithmetic alone, of few enough ops to take less
time than memory does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from .._graph.graph import Graph
from .._tensor.node import Call
from .._tensor.role import Arithmetic, Cut, Reduction, View
from .fuse import Region

FAR: Final = 48
"""Ops between two others from which the later one reads late: a layer has about as many."""
_SLACK: Final = 4
"""A value may be kept longer to compute another again, by one in so many of the ops for which the other is not kept."""
_CHAIN: Final = 8
"""Ops that compute a value again in registers, at most."""
_SHORT: Final = 3
"""Sums and products that compute a value again in memory, at most: for a matrix product, say."""


class Recomputed(NamedTuple):
    """A region that computes some values again, and the entries that are to stay where they are read."""

    region: Region
    late: frozenset[int]
    """Entries that a kernel more than `FAR` ops before them must not take, though it has what they read."""


def recomputed(region: Region, least: int) -> Recomputed:
    """The region with copies of cheap values of at least so many bytes for those that read them late."""
    return _Recomputation(region, least).made()


class _Recomputation:
    """The values of a region: those that are kept, and those that are computed again."""

    def __init__(self, region: Region, least: int) -> None:
        self._region, self._graph, self._least = region, region.graph, least
        self._nodes = sorted(region.nodes)
        """The entries in the order of the program. `fuse` has moved late ops to the first value that they read."""
        self._place = {entry: n for n, entry in enumerate(self._nodes)}
        self._readers = self._all_readers()
        self._last = {e: max(places) for e, places in self._places().items()}
        """Where each value is read for the last time."""
        self._last |= dict.fromkeys(region.outputs, len(self._nodes))
        self._again: dict[int, frozenset[int]] = {}
        """Values whose late readers get a copy, and the entries that are computed again for it."""

    def made(self) -> Recomputed:
        """The region, written anew if that saves anything."""
        for entry in self._nodes:
            self._decide(entry)
        return _Writer(self._region, self._place, self._again, self._stays()).made()

    def _all_readers(self) -> dict[int, list[tuple[int, int | None]]]:
        """For each entry the places where it is read, and the reader: `None` through a view that is made before."""
        readers: dict[int, list[tuple[int, int | None]]] = {}
        for entry in reversed(self._nodes):
            is_moved = isinstance(self._graph.calls[entry].op.role, View | Cut)
            for a in self._graph.args[entry]:
                own = readers.setdefault(a, [])
                own.append((self._place[entry], entry))
                if is_moved:
                    is_late = self._place[entry] - self._place.get(a, 0) > FAR
                    own += [(place, entry if is_late else None) for place, _ in readers.get(entry, ())]
        return readers

    def _places(self) -> dict[int, list[int]]:
        return {entry: [place for place, _ in readers] for entry, readers in self._readers.items()}

    def _decide(self, entry: int) -> None:
        """Keep a value for its late readers, or have them compute it again."""
        if not self._is_large(entry):
            return
        if self._is_read_late_in_forms(entry):
            self._last[entry] = max(self._last[r] for _, r in self._readers[entry] if r is not None and r in self._last)
            return
        late = self._late_readers(entry)
        last = self._last.get(entry, 0)
        chain = self._chain(entry, last - (last - self._place[entry]) // _SLACK) if late else None
        if chain is not None and (self._is_short(chain) or all(self._fuses(entry, reader) for reader in late)):
            self._again[entry] = chain

    def _late_readers(self, entry: int) -> list[int]:
        """The late readers of a value; none if it has to be kept for one of them, or is a result of the region."""
        late = [reader for place, reader in self._readers.get(entry, ()) if place - self._place[entry] > FAR]
        return (
            [] if None in late or self._last.get(entry, 0) >= len(self._nodes) else [r for r in late if r is not None]
        )

    def _is_short(self, chain: frozenset[int]) -> bool:
        """True if computing a value again costs no more than another pass over memory does."""
        return len(chain) <= _SHORT and all(isinstance(self._graph.calls[e].op.role, Arithmetic) for e in chain)

    def _is_fused_late(self, entry: int) -> bool:
        late = self._late_readers(entry)
        return bool(late) and all(self._fuses(entry, reader) for reader in late)

    def _is_read_late_in_forms(self, entry: int) -> bool:
        """True if several late values are an op away from an entry, which then is better kept than they are."""
        readers = {r for _, r in self._readers.get(entry, ()) if r is not None and self._fuses(entry, r)}
        forms = [r for r in readers if self._is_large(r) and self._is_fused_late(r)]
        return len(forms) > 1 and all(self._chain(r, self._place[entry]) is not None for r in forms)

    def _chain(self, entry: int, until: int) -> frozenset[int] | None:
        """The entries that compute an entry again from values that are kept up to a place at least; `None` if it takes
        too many, or something else than element-wise ops."""
        found: set[int] = set()
        waiting = [entry]
        while waiting:
            here = waiting.pop()
            if here in found:
                continue
            found.add(here)
            if len(found) > _CHAIN or not _is_elementwise(self._graph.calls[here]):
                return None
            waiting += [a for a in self._graph.args[here] if not self._is_there(a, until)]
        return frozenset(found)

    def _is_there(self, entry: int, until: int) -> bool:
        """True for a value that is in memory up to a place, or may be at little cost."""
        if entry not in self._place or not self._is_large(entry):
            return True
        return entry not in self._again and self._last.get(entry, -1) >= until

    def _is_large(self, entry: int) -> bool:
        return sum(spec.nbytes for spec in self._graph.calls[entry].outputs) >= self._least

    def _fuses(self, entry: int, reader: int) -> bool:
        """True if a reader computes the entry with its own elements, so that it need not be in memory."""
        call, shape = self._graph.calls[reader], self._graph.calls[entry].spec.shape
        if isinstance(call.op.role, Reduction):
            return call.inputs[0].shape == shape
        return _is_elementwise(call) and call.spec.shape == shape

    def _stays(self) -> frozenset[int]:
        """The large values of late readers whose operands are all there when the readers run."""

        def has_all(entry: int) -> bool:
            place = self._place[entry]
            args = [a for a in self._graph.args[entry] if a in self._place and self._is_large(a)]
            late = [a for a in args if place - self._place[a] > FAR]
            return bool(late) and all(a in self._again or self._last[a] >= place for a in late)

        return frozenset(e for e in self._nodes if self._is_large(e) and has_all(e))


class _Writer:
    """A region under construction, with copies of some entries."""

    def __init__(
        self, region: Region, place: dict[int, int], again: dict[int, frozenset[int]], stays: frozenset[int]
    ) -> None:
        self._region, self._old, self._place = region, region.graph, place
        self._again, self._stays = again, stays
        self._calls: list[Call] = []
        self._args: list[tuple[int, ...]] = []
        self._origins: list[str] = []
        self._new: dict[int, int] = {}
        self._copies: dict[int, tuple[int, int]] = {}
        """The last copy of an entry, and the place that it was made for."""
        self._late: set[int] = set()

    def made(self) -> Recomputed:
        region, old = self._region, self._old
        if not self._again and not self._stays:
            return Recomputed(region, frozenset())
        for entry in region.inputs:
            self._add(entry, ())
        for entry in self._place:
            at = self._place[entry]
            args = tuple([self._read(a, at) for a in old.args[entry]])
            self._new[entry] = self._add(entry, args)
            if entry in self._stays:
                self._late.add(self._new[entry])
        outputs = tuple([self._new[o] for o in region.outputs])
        graph = Graph(tuple(self._calls), tuple(self._args), outputs, tuple(self._origins) if old.origins else ())
        inputs = tuple([self._new[i] for i in region.inputs])
        own = {self._new[n] for n in region.nodes}.union(self._late)
        nodes = tuple([n for n in range(len(self._calls)) if n in own])
        return Recomputed(
            replace(region, graph=graph, nodes=nodes, inputs=inputs, outputs=outputs, regions=()), frozenset(self._late)
        )

    def _read(self, entry: int, at: int) -> int:
        """The entry that a reader at a place gets."""
        if entry not in self._place:
            return self._new[entry] if entry in self._new else self._add(entry, ())
        if entry in self._again and at - self._place[entry] > FAR:
            return self._copy(entry, at, self._again[entry])
        return self._new[entry]

    def _copy(self, entry: int, at: int, chain: frozenset[int]) -> int:
        """The entry, computed again for a reader at a place with all of a chain that it needs."""
        known = self._copies.get(entry)
        if known is not None and at - known[1] <= FAR:
            return known[0]
        args = [self._copy(a, at, chain) if a in chain else self._read(a, at) for a in self._old.args[entry]]
        made = self._put(entry, tuple(args))
        self._copies[entry] = made, at
        self._late.add(made)
        return made

    def _add(self, entry: int, args: tuple[int, ...]) -> int:
        made = self._new[entry] = self._put(entry, args)
        return made

    def _put(self, entry: int, args: tuple[int, ...]) -> int:
        self._calls.append(self._old.calls[entry])
        self._args.append(args)
        self._origins.append(self._old.origins[entry] if self._old.origins else "")
        return len(self._calls) - 1


def _is_elementwise(call: Call) -> bool:
    return call.op.scalar is not None and len(call.outputs) == 1
