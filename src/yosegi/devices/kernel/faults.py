"""Indices that kernels found to be out of range.

A kernel cannot raise. It records an index that is out of range in a table of its device, and the result of its unit is
not valid. The table does not say which run it was. So every unit that indexes has a span in time, from before its
first launch to after its last, and its results carry the span; so does everything that is computed from them. A look at
the table, after a wait, settles the units that were launched before: none of them failed, or any of them may have.
Reading a result whose unit may have failed raises the mistake, every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

import numpy as np

from ..._run.device import Kernel, Launched
from ..._schedule.fuse import Region
from ...codegen.c.op_programs import indexes
from ...codegen.c.stages import IndexBound
from ...errors import Unsupported, UserError
from ...ops.index_key import out_of_range

SITES: Final = 1024
"""Bounds that a device can distinguish."""
_MOST_MISTAKES: Final = 64
"""Mistakes that are kept apart. Older ones are merged."""


class Span(NamedTuple):
    """The ticks of a device's clock between which units ran."""

    begun: int
    """The clock before the first launch."""
    ended: int
    """The clock after the last launch."""


class _Mistake(NamedTuple):
    """A mistake of one of the units that ended after the tick `after` and began before the tick `before`."""

    after: int
    before: int
    error: UserError


class Suspect(Protocol):
    """Data that may depend on an index that is out of range."""

    span: Span | None
    """When the units ran that indexed to compute it; `None` if there were none."""


class Faults:
    """The bounds and the mistakes of one device.

    Its table has a row of two int64 for each bound: whether an index was out of range, and that index.
    """

    shape: Final = (SITES, 2)

    def __init__(self) -> None:
        self._sites: dict[IndexBound, int] = {}
        self._bounds: list[IndexBound] = []
        self._lock = Lock()
        self._looking = Lock()
        self._clock = 0
        self._last = 0
        """The end of the last unit that indexed."""
        self._settled = 0
        """Units that ended by then are settled."""
        self._mistakes: list[_Mistake] = []

    def site(self, bound: IndexBound) -> int:
        """The row of a bound: always the same one."""
        with self._lock:
            if bound not in self._sites:
                if len(self._bounds) == SITES:
                    raise Unsupported(f"indices with more than {SITES} different bounds")
                self._sites[bound] = len(self._bounds)
                self._bounds.append(bound)
            return self._sites[bound]

    @property
    def used(self) -> int:
        """The rows of the table that have a bound: the first ones."""
        return len(self._bounds)

    @property
    def is_idle(self) -> bool:
        """True if no unit has indexed so far."""
        return self._last == 0

    def is_settled(self, span: Span | None) -> bool:
        """True if it is known whether the units of a span have failed."""
        return span is None or span.ended <= self._settled

    def tick(self) -> int:
        """Advance the clock and return the time."""
        with self._lock:
            self._clock += 1
            return self._clock

    def end(self, begun: int) -> Span:
        """The span of a unit that indexes, after its last launch."""
        with self._lock:
            self._clock += 1
            self._last = self._clock
            return Span(begun, self._clock)

    def look(self, waited: int, read: Callable[[], Any], clear: Callable[[], None]) -> UserError | None:
        """Look at the table after a wait for the device, and settle the units that were launched before it.

        Parameters
        ----------
        waited : int
            The clock when the wait began.
        read : callable
            Returns the rows of the table.
        clear : callable
            Sets them to zero, before any kernel that is launched later.

        Returns
        -------
        UserError or None
            A mistake that was not known before.
        """
        with self._looking:
            error = self.mistake(read())
            if error is None:
                self._settled = max(self._settled, waited)
                return None
            clear()
            now = self.tick()
            self._mistakes.append(_Mistake(self._settled, now, error))
            if len(self._mistakes) > _MOST_MISTAKES:
                first, second = self._mistakes[:2]
                self._mistakes[:2] = [_Mistake(first.after, second.before, second.error)]
            self._settled = now
            return error

    def mistake(self, table: Any) -> UserError | None:
        """The mistake that a table shows, the first of them, or `None`."""
        found = np.flatnonzero(table[:, 0])
        if not found.size:
            return None
        row = int(found[0])
        bound, index = self._bounds[row], table[row : row + 1, 1]
        return out_of_range([index.view(np.uint64) if bound.is_unsigned else index], [bound.length], bound.of)

    def check(self, span: Span | None) -> None:
        """Raise the mistake of data that is known to be wrong."""
        if span is None or not self._mistakes:
            return
        for after, before, error in self._mistakes:
            if span.ended > after and span.begun < before:
                raise error.with_traceback(None)

    def merged(self, data: Iterable[Suspect]) -> Span | None:
        """The span of everything that is computed from data; `None` if all of it is settled. Raises its mistake."""
        begun, ended = self._clock, 0
        last = None
        for d in data:
            span = d.span
            if span is not None and span is not last:  # results of one unit share theirs
                last = span
                self.check(span)
                if span.ended > self._settled:
                    begun, ended = min(begun, span.begun), max(ended, span.ended)
        return Span(begun, ended) if ended else None


@dataclass(frozen=True, slots=True)
class Watched:
    """A compiled unit whose results carry the spans of the units that they depend on."""

    kernel: Kernel
    faults: Faults
    has_indices: bool

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        """Run it. Raises the mistake of an input that is known to be wrong."""
        faults = self.faults
        if faults.is_idle and not self.has_indices:
            return self.kernel(*data)
        span, begun = faults.merged(_flat(data)), faults.tick()
        made = self.kernel(*data)
        if self.has_indices:
            span = Span(begun if span is None else span.begun, faults.end(begun).ended)
        for d in _flat(made):
            d.span = span
        return made

    @property
    def launched(self) -> str:
        """How the kernel is launched; empty if it does not report it."""
        return self.kernel.launched if isinstance(self.kernel, Launched) else ""


def watched(kernel: Kernel, region: Region, faults: Faults) -> Watched:
    """The kernel of a region, watched for indices that are out of range."""
    return Watched(kernel, faults, any(map(indexes, region.calls)))


def _flat(data: Sequence[Any]) -> Sequence[Suspect]:
    """Data, and the parts of data of several outputs."""
    if tuple not in map(type, data):
        return data
    return [part for d in data for part in (d if isinstance(d, tuple) else (d,))]
