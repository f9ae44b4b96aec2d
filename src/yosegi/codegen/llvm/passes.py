"""The passes of a group over its rows, and the entries that each computes.

A value that a later pass needs is computed again where that is cheap; else it is kept, in memory of the size of a row
that stays in the core's cache.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import prod
from typing import Final

import numpy as np

from ..._graph.reference import bind
from ..._schedule.fuse import is_constant
from ..._schedule.groups import Group, reduces, runs
from ..._tensor.dtype import DType, float32
from ..._tensor.node import Call
from ..scalar.value import Value
from .builder import LlvmBuilder
from .folding import Folding, Running, folding_of

_CHEAP: Final = frozenset({
    "add", "subtract", "multiply", "negative", "positive", "abs", "square", "maximum", "minimum", "where", "convert",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_not",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_invert", "real_part", "imag_part", "conjugate", "broadcast_to",
    "floor", "ceil", "trunc", "round", "isnan", "copysign",
})  # fmt: skip
_DEAR: Final = 8
"""The cost, in cheap ops, from which a value is kept."""
_ROOM: Final = 1 << 18
"""Bytes of values that a unit of work may keep: they are on its thread's stack."""

Read = Callable[[int, int], Value]
"""The operand that an op reads: `read(op, entry)`."""


def is_dear(call: Call) -> bool:
    """Whether an elementwise op is many instructions."""
    return call.op.scalar is not None and call.op.name not in _CHEAP


class Passes:
    """The passes of a group."""

    def __init__(self, group: Group, beside: int = 1) -> None:
        """`beside`: how many rows are worked on together."""
        self.group = group
        calls, nodes, passes = group.graph.calls, group.nodes, group.passes
        is_inner = {n for n in nodes if group.is_whole(n) or reduces(calls[n])}
        self.count = 1 + max((passes[n] for n in is_inner), default=0)
        length = prod(group.space[a] for a in group.axes)
        self._row = length * beside
        self.foldings: list[dict[int, Folding]] = [
            {n: folding_of(calls[n], length) for n in nodes if reduces(calls[n]) and passes[n] == p}
            for p in range(self.count)
        ]
        """The reductions of each pass."""
        self.running = {n: Running(calls[n]) for n in nodes if runs(calls[n])}
        self.stored = [[n for n in group.outputs if group.is_whole(n) and passes[n] == p] for p in range(self.count)]
        self.rows = [[n for n in nodes if not group.is_whole(n) and passes[n] == p] for p in range(self.count)]

    @cached_property
    def kept(self) -> frozenset[int]:
        """The whole values that a later pass loads."""
        group = self.group
        costs: dict[int, int] = {}
        found: set[int] = set()
        room = _ROOM
        for entry in group.nodes:
            if not group.is_whole(entry):
                continue
            name = group.graph.calls[entry].op.name
            own = 1 if name in _CHEAP else _DEAR
            cost = own + sum(costs.get(a, 0) for a in group.graph.args[entry])
            later = any(entry in group.graph.args[n] and group.passes[n] > group.passes[entry] for n in group.nodes)
            size = self._row * self.dtype(entry).itemsize
            if later and ((cost >= _DEAR and size <= room) or entry in self.running):
                found.add(entry)
                room -= size
            costs[entry] = 0 if entry in found else cost
        return frozenset(found)

    def needed(self, number: int) -> list[int]:
        """The whole values that a pass computes or loads, in order."""
        group = self.group
        wanted = {group.graph.args[n][0] for n in self.foldings[number]} | set(self.stored[number])
        wanted |= {n for n in self.kept if group.passes[n] == number}
        for entry in reversed(group.nodes):
            if entry in wanted and group.is_whole(entry) and not self.loads(entry, number):
                wanted.update(group.graph.args[entry])
        return [n for n in group.nodes if n in wanted and group.is_whole(n)]

    def loads(self, entry: int, number: int) -> bool:
        """Whether a pass finds a whole value where an earlier one has left it."""
        return entry in self.kept and self.group.passes[entry] < number

    def uses(self, number: int) -> list[tuple[int, int]]:
        """The operands, as (op, entry), that a pass reads and that are no whole values of the group."""
        group, graph = self.group, self.group.graph
        users = [n for n in self.needed(number) if not self.loads(n, number)] + list(self.foldings[number])
        found = [(n, a) for n in users for a in graph.args[n]]
        return [(n, a) for n, a in found if a not in group.passes or not group.is_whole(a)]

    def computed(self, k: LlvmBuilder, entry: int, read: Read) -> Value:
        """The value of an elementwise op, on the operands that `read` gives."""
        call, args = self.group.graph.calls[entry], self.group.graph.args[entry]
        if call.op.scalar is None:
            return read(entry, args[0])  # a reshape of rows: the same numbers
        return k.rounded(call.op.scalar(k, *[read(entry, a) for a in args], **call.attrs))

    def number(self, k: LlvmBuilder, entry: int) -> Value | None:
        """The value of an entry that is a number of the graph's own."""
        call = self.group.graph.calls[entry]
        if not is_constant(self.group.graph, entry) or call.spec.size != 1:
            return None
        return k.literal(np.asarray(bind(call)()).reshape(()).item(), call.spec.dtype)

    def dtype(self, entry: int) -> DType:
        """The dtype in which a value is kept for later passes: the one that it is computed in."""
        dtype = self.group.graph.calls[entry].spec.dtype
        return float32 if dtype.is_half else dtype
