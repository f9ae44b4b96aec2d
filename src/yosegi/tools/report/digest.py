"""A run, sorted for the questions that the sections ask."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

from ..bench.document import Document, Result
from ..bench.runners import JIT
from ..bench.timing import Ratio
from .contenders import Player, name_of, players

Group = tuple[str, str, str]
"""A suite, a name in it, and a dtype: what differs in size alone."""


class Digest:
    """The data of the sections."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.players = players(document)
        self.timed = [r for r in document.results if r.status == "ok"]

    @cached_property
    def devices(self) -> list[Player]:
        """Yosegi's."""
        return [p for p in self.players if p.is_device]

    @cached_property
    def cases(self) -> dict[str, list[Result]]:
        """The timed results of each case."""
        found: dict[str, list[Result]] = defaultdict(list)
        for r in self.timed:
            found[r.case].append(r)
        return dict(found)

    def groups(self, *suites: str) -> dict[Group, dict[str, list[Result]]]:
        """For each group of these suites: every player's timed results, used as one program, by size.

        A case without arithmetic or without traffic has no speed and is left out.
        """
        found: dict[Group, dict[str, list[Result]]] = {}
        for r in self.timed:
            if r.suite in suites and is_whole(r) and r.flops > 0 and r.nbytes > 0:
                found.setdefault((r.suite, r.name, r.dtype), {}).setdefault(name_of(r), []).append(r)
        for series in found.values():
            for results in series.values():
                results.sort(key=lambda r: r.size)
        return found

    def limit_of(self, device: str) -> str:
        """Whose limits hold for a device: its own, or the host's, which is the empty name."""
        return device if device in self.document.limits["device_copy"] else ""


def is_whole(r: Result) -> bool:
    """True if a result is of the program as one: what peers do, and devices when they are not asked otherwise."""
    return r.device is None or r.mode == JIT


def speed_over(one: Result, other: Result) -> Ratio:
    """How many times the other's speed one has, round by round: those of a case took turns."""
    return other.timing.ratio_to(one.timing)
