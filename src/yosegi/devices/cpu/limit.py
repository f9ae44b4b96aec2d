"""A limit on the host memory that results may take, when the user has set one."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from threading import Lock
from typing import Any

import numpy as np

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ...errors import OutOfMemory
from .results import Results


class Account:
    """The bytes of results that are alive. Others allocate them; here they are only counted."""

    def __init__(self, limit: int, results: Results) -> None:
        self.limit = limit
        self._results = results
        self._in_use = 0
        self._known: set[int] = set()
        self._lock = Lock()
        # Filled by finalizers, which may run in the middle of anything: no locks there.
        self._returned: deque[tuple[int, int]] = deque()

    def in_use(self) -> int:
        """Bytes of live results."""
        with self._lock:
            while self._returned:
                owner, nbytes = self._returned.popleft()
                self._known.discard(owner)
                self._in_use -= nbytes
            return self._in_use

    def limited(self, kernel: Kernel, region: Region) -> Kernel:
        """The kernel, refused when its results would not fit."""
        specs = [s for o in region.outputs for s in region.graph.calls[o].outputs]
        needed = sum(s.nbytes for s in specs)

        def checked(*data: Any) -> tuple[Any, ...]:
            if self.in_use() + self._results.cached + needed > self.limit:
                self._results.trim()
            if self.in_use() + needed > self.limit:
                gc.collect()
                if self.in_use() + needed > self.limit:
                    shown = ", ".join(map(repr, specs))
                    raise OutOfMemory(
                        f"{shown} needs {needed} bytes beside {self.in_use()} in use; the limit is {self.limit} "
                        "(YOSEGI_MEMORY_LIMIT)"
                    )
            made = kernel(*data)
            given = {id(_owner(d)) for d in data}
            for array in made:
                owner = _owner(array)
                if isinstance(owner, np.ndarray) and id(owner) not in given:
                    self._count(owner)
            return made

        return checked

    def _count(self, owner: Any) -> None:
        """Count an array that owns its memory, once; views of it take nothing."""
        with self._lock:
            if id(owner) not in self._known:
                self._known.add(id(owner))
                self._in_use += owner.nbytes
                weakref.finalize(owner, self._returned.append, (id(owner), owner.nbytes))


def _owner(array: Any) -> Any:
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    return array
