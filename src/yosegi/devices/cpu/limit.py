"""A limit on the host memory that results may take, when the user has set one."""

from __future__ import annotations

import gc
import weakref
from collections import deque
from typing import Any

from ...device import Kernel
from ...errors import OutOfMemory
from ...fuse import Region


class Account:
    """The bytes of results that are alive. NumPy allocates them; here they are only counted."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._in_use = 0
        self._returned: deque[int] = deque()  # filled by finalizers, which may run in the middle of anything: no locks

    def in_use(self) -> int:
        """Bytes of live results."""
        while self._returned:
            self._in_use -= self._returned.popleft()
        return self._in_use

    def limited(self, kernel: Kernel, region: Region) -> Kernel:
        """The kernel, refused when its results would not fit."""
        specs = [s for o in region.outputs for s in region.graph.calls[o].outputs]
        needed = sum(s.nbytes for s in specs)

        def checked(*data: Any) -> tuple[Any, ...]:
            if self.in_use() + needed > self.limit:
                gc.collect()
                if self.in_use() + needed > self.limit:
                    shown = ", ".join(map(repr, specs))
                    raise OutOfMemory(
                        f"{shown} needs {needed} bytes beside {self.in_use()} in use; the limit is {self.limit} "
                        "(YOSEGI_MEMORY_LIMIT)"
                    )
            made = kernel(*data)
            for array in made:
                if getattr(array, "base", self) is None:  # memory of its own; views are counted with their owner
                    self._in_use += array.nbytes
                    weakref.finalize(array, self._returned.append, array.nbytes)
            return made

        return checked
