"""Indices that kernels found to be out of range.

A kernel cannot raise. It notes an index outside in a table of its device, at the site of the bound that was missed;
whoever next waits for the device looks at the table, and raises the mistake there, in the words of the reference body.
"""

from __future__ import annotations

from threading import Lock
from typing import Any, Final

import numpy as np

from ...codegen.c.stages import Bound
from ...errors import Unsupported, UserError
from ...ops.index_key import out_of_range

SITES: Final = 1024
"""Bounds that a device can distinguish."""


class Faults:
    """The sites of one device's table, which has a row of two int64 for each: whether an index was outside, and it."""

    shape: Final = (SITES, 2)

    def __init__(self) -> None:
        self._sites: dict[Bound, int] = {}
        self._bounds: list[Bound] = []
        self._lock = Lock()

    def site(self, bound: Bound) -> int:
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

    def mistake(self, table: Any) -> UserError | None:
        """The mistake that a table shows, the first of them, or `None`."""
        found = np.flatnonzero(table[:, 0])
        if not found.size:
            return None
        row = int(found[0])
        bound, index = self._bounds[row], table[row : row + 1, 1]
        return out_of_range([index.view(np.uint64) if bound.is_unsigned else index], [bound.length], bound.of)
