"""The sizes of the processor's caches, as the system tells them."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Final

from ...codegen.llvm.blocking import Caches

_SYSTEM: Final = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NAMES: Final = ("SC_LEVEL1_DCACHE_SIZE", "SC_LEVEL2_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE")


@cache
def caches() -> Caches:
    """Those of this machine; usual sizes where nothing is told."""
    usual = Caches()
    told = _from_files(_SYSTEM) or _from_sysconf()
    first = told.get(1) or usual.first
    second = told.get(2) or max(first, usual.second)
    return Caches(first, second, told.get(3) or max(second, usual.shared))


def _from_files(folder: Path) -> dict[int, int]:
    """Sizes by level, from files of Linux."""
    found: dict[int, int] = {}
    try:
        for place in sorted(folder.glob("index*")):
            if (place / "type").read_text().strip() != "Instruction":
                text = (place / "size").read_text().strip()
                number, unit = text.rstrip("KMG"), text[-1]
                found[int((place / "level").read_text())] = int(number) * _UNITS.get(unit, 1)
    except (OSError, ValueError):
        return {}
    return found


def _from_sysconf() -> dict[int, int]:
    """Sizes by level, from the C library."""
    known = getattr(os, "sysconf_names", {})
    return {level: max(0, os.sysconf(name)) for level, name in enumerate(_NAMES, 1) if name in known}
