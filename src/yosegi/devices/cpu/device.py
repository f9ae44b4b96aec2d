"""The CPU device."""

from __future__ import annotations

import os
import platform
from typing import Any

import numpy as np

from ...device import Device, Kernel, Limits
from ...dtype import ALL
from ...fuse import Region
from ...memory import HOST
from ...memory.pool import memory_limit
from ...op import OpKind
from ...precision import Precision
from ...store import processor
from .limit import Account
from .natives import Natives
from .reduced import Reduced
from .results import Results
from .stages import compile_region
from .ways import Ways


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
        self.results = Results()
        self.account = None if limit is None else Account(limit, self.results)
        self.natives = Natives(results=self.results)
        self.reduced = Reduced(self.natives, self.results)
        self.limits = Limits(frozenset(ALL), frozenset(OpKind), precisions=self.reduced)
        self._ways = Ways(self.natives, self.results, self.reduced)

    @property
    def description(self) -> str:
        """What it is, and what its kernels are."""
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
        kernel = compile_region(region, self._ways, self.reduced.body)
        return kernel if self.account is None else self.account.limited(kernel, region)

    def from_host(self, array: Any) -> Any:
        """The same array."""
        return array

    def to_host(self, data: Any) -> Any:
        """The same array."""
        return data

    def link_from(self, source: Device) -> None:
        """Nothing comes directly: it works in the host's memory."""

    def synchronize(self) -> None:
        """Nothing to wait for: its kernels return when they are done."""

    def trim(self) -> int:
        """Give back the memory of results that are gone."""
        return self.results.pool.trim()

    def statistics(self) -> dict[str, int | None]:
        """Of large results; under a limit, of all."""
        pool = self.results.pool.statistics()
        found: dict[str, int | None] = {"in_use": pool.in_use, "cached": pool.cached, "peak": pool.peak}
        return found if self.account is None else found | {"in_use": self.account.in_use(), "limit": self.account.limit}

    def memory(self) -> tuple[int, int]:
        """Main memory, as the system reports it; zeros where it does not."""
        if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
            return 0, 0
        page = os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * page
        free = os.sysconf("SC_AVPHYS_PAGES") * page if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
        return free, total

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<device {self.name}: {self.description}>"
