"""The order of a unit's kernels, in which values live no longer than they must.

Kernels keep their order, but for those that free as much memory as they take: these run as soon as they can. So a
gradient is computed right behind the last value that it needs, and the update of a parameter right behind its gradient,
instead of all of them at the end. A result of the whole unit takes memory in any order, and does not count.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from .._tensor.node import Call
from .._tensor.role import Cut, View
from .fuse import Region

_LITTLE: Final = 1 << 16
"""Bytes that a kernel may take and still run early."""


def freeing_early(kernels: Sequence[Region], inputs: Iterable[int], outputs: Iterable[int]) -> list[Region]:
    """The kernels of a unit in another order in which they can run; the unit has these inputs and outputs."""
    return _Order(kernels, inputs, outputs).made()


class _Order:
    """Kernels that have run, and those that wait for others."""

    def __init__(self, kernels: Sequence[Region], inputs: Iterable[int], outputs: Iterable[int]) -> None:
        self._kernels = kernels
        self._owner: dict[int, int] = {}
        """The entry whose memory an entry is a view of."""
        self._users: dict[int, set[int]] = {}
        """The kernels that have yet to read an entry, or a view of it."""
        makers: dict[int, int] = {}
        self._missing: list[int] = []
        self._followers: list[list[int]] = [[] for _ in kernels]
        for n, kernel in enumerate(kernels):
            call = kernel.calls[-1]
            if len(kernel.nodes) == 1 and isinstance(call.op.role, View | Cut):
                self._owner[kernel.nodes[0]] = self._owned(kernel.graph.args[kernel.nodes[0]][0])
            for entry in kernel.inputs:
                self._users.setdefault(self._owned(entry), set()).add(n)
            needs = {makers[e] for e in kernel.inputs if e in makers}
            for other in needs:
                self._followers[other].append(n)
            self._missing.append(len(needs))
            makers |= dict.fromkeys(kernel.outputs, n)
        self._results = set(outputs)
        self._held = {self._owned(e) for e in (*inputs, *self._results)}
        """The entries that no kernel frees."""

    def made(self) -> list[Region]:
        """All kernels."""
        order: dict[int, None] = {}
        early = deque(n for n, missing in enumerate(self._missing) if not missing)
        for n in range(len(self._kernels)):
            while early:
                other = early.popleft()
                if other not in order and not self._missing[other] and self._growth(other) <= _LITTLE:
                    order[other] = None
                    early += self._run(other)
            if n not in order:
                order[n] = None
                early += self._run(n)
        return [self._kernels[n] for n in order]

    def _owned(self, entry: int) -> int:
        return self._owner.get(entry, entry)

    def _growth(self, number: int) -> int:
        """The bytes that a kernel takes, less those that nobody needs behind it."""
        kernel, calls = self._kernels[number], self._kernels[number].graph.calls
        made = [e for e in kernel.outputs if e not in self._owner and e not in self._results]
        freed = {self._owned(e) for e in kernel.inputs} - self._held
        gone = [e for e in freed if self._users[e] == {number}]
        return _nbytes(calls, made) - _nbytes(calls, gone)

    def _run(self, number: int) -> list[int]:
        """Note that a kernel has run; the kernels that may now run early."""
        found = []
        for other in self._followers[number]:
            self._missing[other] -= 1
            if not self._missing[other]:
                found.append(other)
        for entry in {self._owned(e) for e in self._kernels[number].inputs}:
            left = self._users[entry]
            left.discard(number)
            found += left if len(left) == 1 else ()
        return sorted(found)


def _nbytes(calls: Sequence[Call], entries: Iterable[int]) -> int:
    return sum(spec.nbytes for e in entries for spec in calls[e].outputs)
