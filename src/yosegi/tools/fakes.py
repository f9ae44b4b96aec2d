"""A device for tests, in a memory of its own: what devices of other libraries do wrong can be tried without one.

A `FakeDevice` computes by reference bodies. Its data is a `FakeArray`, which no other device understands, so that a
forgotten transfer shows at once. Subclasses take one ability away.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import numpy as np

from .._graph.reference import outputs_of
from .._run import device as registry
from .._run.device import Kernel, Limits, Link
from .._run.health import health
from .._run.run import transfers
from .._schedule.fuse import Region
from .._tensor.dtype import ALL, DType
from .._tensor.op import OpKind, pick

_numbers: Final = count()


class FakeArray:
    """An array in a fake device's memory."""

    def __init__(self, array: Any, owner: FakeDevice) -> None:
        self.array = array
        self.owner = owner
        self.shape, self.dtype = array.shape, array.dtype
        owner.live += array.nbytes

    def __del__(self) -> None:
        self.owner.live -= self.array.nbytes


class FakeDevice:
    """A device that works. Subclasses take one thing away."""

    rank = 100
    is_gpu = True
    coalesces = False
    description = "made up for tests"
    identity = ""

    def __init__(
        self,
        *,
        is_volatile: bool = True,
        dtypes: frozenset[DType] = frozenset(ALL),
        natives: frozenset[str] = frozenset(),
    ) -> None:
        self.name = self.space = f"fake{next(_numbers)}:0"
        self.is_volatile = is_volatile
        self.limits = Limits(dtypes, frozenset(OpKind) - {OpKind.DISTRIBUTED}, natives)
        self.live = 0
        self.runs = 0
        self.compiled: list[str] = []

    def supports(self, region: Region) -> str | None:
        many = any(len(call.outputs) > 1 or call.op is pick for call in region.calls)
        return "it has no ops of several outputs" if many else None

    def compile(self, region: Region) -> Kernel:
        self.compiled.append(str(region))

        def kernel(*data: FakeArray) -> tuple[FakeArray, ...]:
            self.before_run(region)
            for d in data:
                assert isinstance(d, FakeArray), f"{self.name} was given {type(d).__name__}"
                assert d.owner is self, f"{self.name} was given data of {d.owner.name}"
            self.runs += 1
            return tuple(self.allocated(made) for made in outputs_of(region, [d.array for d in data]))

        return kernel

    def before_run(self, region: Region) -> None:
        """Where subclasses fail."""

    def allocated(self, array: Any) -> FakeArray:
        """An array in this device's memory."""
        return FakeArray(array, self)

    def from_host(self, array: Any) -> FakeArray:
        return self.allocated(np.array(array))

    def to_host(self, data: FakeArray) -> Any:
        assert data.owner is self
        return data.array.copy()

    def link_from(self, source: Any) -> Link | None:
        return None

    def synchronize(self) -> None: ...

    def memory(self) -> tuple[int, int]:
        return 1 << 30, 1 << 30

    def trim(self) -> int:
        return 0

    def statistics(self) -> dict[str, int | None]:
        return {"in_use": self.live}

    def __repr__(self) -> str:
        return self.name


@contextmanager
def installed(*fakes: FakeDevice, alone: bool = False) -> Iterator[str]:
    """Make the fakes part of this machine, or with the host all of it; gives the name of the chain they form."""
    found = registry._registry
    real = found.folders, found.is_done
    registry.discovered()
    folder = registry._Folder("fakes")
    folder.found = fakes
    kept = {name: f for name, f in real[0].items() if not alone or name == found.host}

    def clear() -> None:
        transfers.method.cache_clear()
        registry.refresh()
        health.clear()

    found.folders, found.is_done = {"fakes": folder, **kept}, True
    clear()
    try:
        yield "+".join(f.name for f in fakes)
    finally:
        found.folders, found.is_done = real
        clear()
