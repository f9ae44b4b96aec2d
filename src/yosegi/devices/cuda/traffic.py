"""The tables by which the GPUs of several ranks exchange bytes: which rank sends which bytes to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""The first byte in the sender's source, and the number of bytes."""


@dataclass(frozen=True, slots=True)
class Table:
    """One exchange of bytes, which all ranks know as a whole.

    Each rank gets the bytes of all ranks one after another, in the order of ranks.
    """

    name: str
    """The collective, for errors."""
    rank: int
    sent: tuple[tuple[Span, ...], ...]
    """For each rank, what it sends to each rank."""

    @property
    def received(self) -> list[int]:
        """The bytes that this rank gets from each rank."""
        return [row[self.rank][1] for row in self.sent]

    @property
    def starts(self) -> list[int]:
        """The places in the target of what comes from each rank."""
        return starts(self.received)

    def extent(self, rank: int) -> int:
        """The bytes of a rank's source up to the last that another rank gets."""
        return max((begin + n for to, (begin, n) in enumerate(self.sent[rank]) if n and to != rank), default=0)

    @property
    def is_empty(self) -> bool:
        """True if no rank sends anything."""
        return not any(n for row in self.sent for _, n in row)


def starts(sizes: Sequence[int]) -> list[int]:
    """The place of each part, if parts of these sizes lie one after another.

    >>> starts([3, 0, 2])
    [0, 3, 3]
    """
    return [0, *accumulate(sizes)][: len(sizes)]


def everything(name: str, rank: int, sizes: Sequence[int]) -> Table:
    """Each rank sends all it has, of so many bytes, to all ranks."""
    return Table(name, rank, tuple([((0, n),) * len(sizes) for n in sizes]))


def shares(name: str, rank: int, sizes: Sequence[int]) -> Table:
    """Each rank cuts what it has into parts of these bytes, and sends part i to rank i."""
    return Table(name, rank, (tuple(zip(starts(sizes), sizes, strict=True)),) * len(sizes))


def blocks(name: str, rank: int, sizes: Sequence[Sequence[int]]) -> Table:
    """Each rank sends blocks of `sizes[rank]` bytes to the ranks, one after another."""
    return Table(name, rank, tuple([tuple(zip(starts(row), row, strict=True)) for row in sizes]))


def from_root(name: str, rank: int, size: int, root: int, nbytes: int) -> Table:
    """One rank sends all it has to all ranks."""
    return Table(name, rank, tuple([((0, nbytes if r == root else 0),) * size for r in range(size)]))
