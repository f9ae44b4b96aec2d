"""Values that macOS reports of the machine: it has no files for that, as Linux has."""

from __future__ import annotations

import ctypes
import sys


def sysctl(name: str) -> bytes:
    """A value of the system, as it lies in memory; nothing if the system has no value of that name."""
    if sys.platform != "darwin":
        return b""
    read, size = ctypes.CDLL(None).sysctlbyname, ctypes.c_size_t()
    if read(name.encode(), None, ctypes.byref(size), None, ctypes.c_size_t(0)):
        return b""
    value = ctypes.create_string_buffer(size.value)
    failed = read(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return b"" if failed else value.raw[: size.value]


def sysctl_text(name: str) -> str:
    """A text of the system's."""
    return sysctl(name).partition(b"\0")[0].decode(errors="replace")


def sysctl_number(name: str) -> int:
    """A number of the system's; 0 if it has none of that name."""
    return int.from_bytes(sysctl(name), "little")
