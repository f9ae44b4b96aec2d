"""CUDA's errors, of the driver, the runtime and the libraries, as failures of a device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ...errors import CompileFailure, DeviceFailure, DeviceLost, LaunchFailure, OutOfMemory

# The driver and the runtime share their numbers.
_NO_MEMORY: Final = {2}
_BUILD: Final = {200, 209, 218, 221, 222, 223, 300, 301, 500}  # no image, or none for this GPU; PTX; no such symbol
_LOST: Final = {
    3, 4, 46, 100, 101,  # not initialised, unloading, not available, none, not that one
    201, 214, 219, 220,  # no context; memory, or a link, with errors beyond correction
    700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999,  # what a kernel did: all work of the process is refused then
}  # fmt: skip
_LIBRARY_NO_MEMORY: Final = {3}  # of cuBLAS
_CONVOLUTIONS_NO_MEMORY: Final = {4003, 4004}  # of cuDNN
_SOLVER_NO_MEMORY: Final = {2}  # of cuSOLVER
_COMPILER_NO_MEMORY: Final = {1}  # of NVRTC


@contextmanager
def translated(doing: str) -> Iterator[None]:
    """Raise what CuPy raises inside as the failure it is."""
    try:
        yield
    except DeviceFailure:
        raise
    except MemoryError as error:
        raise OutOfMemory(f"{doing}: the host has no memory left") from error
    except (RuntimeError, NotImplementedError) as error:
        raise failure(error, doing) from error


def failure(error: Exception, doing: str) -> DeviceFailure:
    """The failure that an error of CuPy means: they all have a `status`, whose numbers depend on the library."""
    status, text = getattr(error, "status", None), f"{doing}: {error}"
    match type(error).__name__:
        case "CUBLASError":
            return OutOfMemory(text) if status in _LIBRARY_NO_MEMORY else LaunchFailure(text)
        case "CUSOLVERError":
            return OutOfMemory(text) if status in _SOLVER_NO_MEMORY else LaunchFailure(text)
        case "CUDNNError":
            return OutOfMemory(text) if status in _CONVOLUTIONS_NO_MEMORY else LaunchFailure(text)
        case "NVRTCError":
            return OutOfMemory(text) if status in _COMPILER_NO_MEMORY else CompileFailure(text)
    if status in _NO_MEMORY:
        return OutOfMemory(text)
    if status in _LOST:
        return DeviceLost(text)
    return CompileFailure(text) if status in _BUILD else LaunchFailure(text)
