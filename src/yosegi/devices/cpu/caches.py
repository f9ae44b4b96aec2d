"""The sizes of the processor's caches, as the system reports them."""

from __future__ import annotations

from functools import cache
from itertools import count
from typing import Final

from ..._run.sysctl import sysctl_number
from ...codegen.llvm.blocking import Caches

_SYSTEM: Final = "/sys/devices/system/cpu/cpu0/cache"
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@cache
def caches() -> Caches:
    """The cache sizes of this machine; usual sizes if the system does not report them."""
    usual = Caches()
    reported = _reported(_SYSTEM) or _reported_by_macos()
    first = reported.get(1) or usual.first
    return Caches(first, reported.get(2) or max(first, usual.second))


def _reported(folder: str) -> dict[int, int]:
    """Sizes by level, from files of Linux; nothing if one of them cannot be understood."""
    found: dict[int, int] = {}
    for number in count():
        place = f"{folder}/index{number}"
        try:
            if _line(f"{place}/type") != "Instruction":
                size = _line(f"{place}/size")
                found[int(_line(f"{place}/level"))] = int(size.rstrip("KMG")) * _UNITS.get(size[-1:], 1)
        except OSError:
            return found
        except ValueError:
            return {}
    raise AssertionError("there is no last number")


def _reported_by_macos() -> dict[int, int]:
    """Sizes by level, of the fast cores where there are two kinds: some of these share their second cache."""
    for cores in ("hw.perflevel0.", "hw."):
        first, second = (sysctl_number(f"{cores}{name}") for name in ("l1dcachesize", "l2cachesize"))
        if first and second:
            sharing = sysctl_number(f"{cores}cpusperl2") or 1
            return {1: first, 2: second // sharing}
    return {}


def _line(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline().strip()
