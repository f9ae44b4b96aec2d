"""OpenCL's errors as failures of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from ...errors import CompileFailure, DeviceFailure, DeviceLost, LaunchFailure, OutOfMemory

# By number: the names differ between the versions of the standard, the numbers do not.
_NOT_AVAILABLE: Final = {-2, -1}
_NO_MEMORY: Final = {-4, -5, -6, -61}  # allocation failure, out of resources, out of host memory, buffer too large
_BUILD: Final = {-3, -11, -12, -15, -16, -17, -42, -43, -44, -45, -46, -47, -48}


@contextmanager
def translated(cl: Any, doing: str) -> Iterator[None]:
    """Raise what pyopencl raises inside as the failure it is."""
    try:
        yield
    except cl.Error as error:
        raise failure(error, doing) from error
    except MemoryError as error:
        raise OutOfMemory(f"{doing}: the host has no memory left") from error


def failure(error: Any, doing: str) -> DeviceFailure:
    """The failure that a pyopencl error means."""
    code = getattr(error, "code", None)
    text = f"{doing}: {error}"
    if code in _NO_MEMORY:
        return OutOfMemory(text)
    if code in _NOT_AVAILABLE:
        return DeviceLost(text)
    return CompileFailure(text) if code in _BUILD else LaunchFailure(text)
