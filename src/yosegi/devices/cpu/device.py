"""The CPU device."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import cached_property
from importlib import import_module
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ..._place.cost_model import HOST_PRIOR, works_of
from ..._run.device import Absent, Device, Kernel, Limits
from ..._run.memory import HOST
from ..._schedule.fuse import Region
from ..._tensor.dtype import ALL
from ..._tensor.environment import memory_limit
from ..._tensor.op import OpKind
from ..._tensor.precision import Precision
from ..._tune.projection import Projected
from ..._tune.store import processor
from .kernel import numpy_function
from .limit import Account
from .results import Results

if TYPE_CHECKING:
    from .native_groups import Natives
    from .reduced import Reduced
    from .tiered import Stages

_LOADING: Final = 0.05
"""Seconds that loading the code generator takes, about: NumPy serves a kernel until it has run for as long."""


class Cpu:
    """This machine's processor and main memory."""

    name = "cpu"
    rank = 1000
    space = HOST
    is_gpu = False
    is_volatile = False
    coalesces = True

    def __init__(self) -> None:
        limit = memory_limit(self.name)
        self.account = None if limit is None else Account(limit, self.results)
        self.limits = Limits(frozenset(ALL), frozenset(OpKind), precisions=_Precisions(self), unit=None)

    @cached_property
    def results(self) -> Results:
        """Memory for the results of native kernels. NumPy's kernels need none."""
        return Results()

    @cached_property
    def stages(self) -> Stages:
        """The compiler of kernels. It is loaded when it is first needed: a small program never waits for it."""
        made: Stages = import_module(".tiered", __package__).Stages(self.results)
        return made

    @property
    def natives(self) -> Natives:
        """The native compiler."""
        return self.stages.natives

    @property
    def reduced(self) -> Reduced:
        """Products in reduced precisions."""
        return self.stages.reduced

    @property
    def description(self) -> str:
        """The processor, and the version of its kernels."""
        return f"{platform.machine()}, {os.cpu_count()} cores, {self.natives}, {self.reduced}"

    @property
    def identity(self) -> str:
        """The processor, NumPy's version, and what its kernels are."""
        return "\n".join([processor(), f"NumPy {np.__version__}", str(self.natives)])

    def supports(self, region: Region) -> str | None:
        """Everything: reference bodies are defined for every op. Some products in a reduced precision, too."""
        return None if region.precision is Precision.FULL else self.reduced.refusal(region)

    def compile(self, region: Region) -> Kernel:
        """A Python function that calls native code and reference bodies."""
        runs = 0 if region.repeats or region.precision is not Precision.FULL else _runs_before_loading(region)
        kernel = _Waiting(self, region, runs).kernel if runs > 1 else self.stages.compiled(region)
        return kernel if self.account is None else self.account.limited(kernel, region)

    def projected(self, region: Region, vectors: int, draw: Callable[[int], Any]) -> Projected | None:
        """The product of two inputs in a reduced precision, with its projections. Under a memory limit there is none:
        results are counted where kernels are called."""
        return None if self.account is not None else self.reduced.projected(region, vectors, draw)

    def kernels(self, region: Region) -> Sequence[Region]:
        """The native kernels of a region, once it is compiled, and the ops that NumPy computes."""
        return self.stages.kernels(region)

    def from_host(self, array: Any) -> Any:
        """The array itself: the memory is the host's."""
        return array

    def to_host(self, data: Any) -> Any:
        """The array itself: the memory is the host's."""
        return data

    def link_from(self, source: Device) -> None:
        """Nothing comes directly: it works in the host's memory."""

    def synchronize(self) -> None:
        """Nothing to wait for: its kernels return when they are done."""

    def trim(self) -> int:
        """Give back the memory of results that are gone."""
        return self.results.trim()

    def statistics(self) -> dict[str, int | None]:
        """Of large results; under a limit, of all."""
        pool = self.results.pool.statistics()
        found: dict[str, int | None] = {"in_use": pool.in_use, "cached": self.results.cached, "peak": pool.peak}
        return found if self.account is None else found | {"in_use": self.account.in_use(), "limit": self.account.limit}

    def memory(self) -> tuple[int, int]:
        """Main memory, as the system reports it; zeros where it does not."""
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return 0, 0
        page = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page
        free = os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
        return free, total

    def __repr__(self) -> str:
        return self.name


def discover() -> Iterable[Device | Absent]:
    """The CPU is always there."""
    return (Cpu(),)


def _runs_before_loading(region: Region) -> int:
    """How often a region has to run until loading the code generator takes no longer than that."""
    seconds = sum(HOST_PRIOR.region(work, coalesces=True) for work in works_of(region.graph, [region]))
    return ceil(_LOADING / seconds) if seconds else 1


class _Waiting:
    """A kernel of NumPy calls, for which the code generator is not worth loading yet."""

    def __init__(self, cpu: Cpu, region: Region, runs: int) -> None:
        self._cpu, self._region, self._left = cpu, region, runs
        self.kernel = numpy_function(region, tick=self._tick)

    def _tick(self) -> None:
        self._left -= 1
        if not self._left:
            self._cpu.stages.compiled(self._region, self.kernel)


class _Precisions(Set[Precision]):
    """The precisions of a device's products, determined when they are first read."""

    def __init__(self, cpu: Cpu) -> None:
        self._cpu = cpu

    @classmethod
    def _from_iterable(cls, found: Iterable[Precision]) -> Set[Precision]:  # type: ignore[override]
        return frozenset(found)  # what set operations make of it

    def __contains__(self, precision: object) -> bool:
        return precision is not Precision.FULL and precision in self._cpu.reduced.precisions

    def __iter__(self) -> Iterator[Precision]:
        return iter(self._cpu.reduced.precisions)

    def __len__(self) -> int:
        return len(self._cpu.reduced.precisions)
