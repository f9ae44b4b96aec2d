"""CUDA through CuPy: every NVIDIA GPU of this machine."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from typing import Any

from ..._run.device import Absent, Device
from .device import CUDADevice
from .probe import verdict


def discover() -> Iterable[Device | Absent]:
    """The GPUs in order; why there are none, otherwise. Never raises."""
    if find_spec("cupy") is None:
        return (Absent("cuda:0", "CuPy is not installed; install yosegi[cuda]"),)
    failure = verdict(_installed())
    if failure is not None:
        return (Absent("cuda:0", f"a trial in a child process failed: {failure}"),)
    try:
        import cupy

        runtime = cupy.cuda.runtime
        count, current = runtime.getDeviceCount(), runtime.getDevice()
    except Exception as error:  # a broken installation raises more than ImportError
        return (Absent("cuda:0", f"CuPy finds no GPU ({error})"),)
    found = [_device(cupy, number) for number in range(count)]
    with suppress(RuntimeError):  # of a GPU that does not work
        runtime.setDevice(current)  # which the user's own code may rely on
    return found or (Absent("cuda:0", "there is no NVIDIA GPU"),)


def _device(cupy: Any, number: int) -> Device | Absent:
    try:
        return CUDADevice(cupy, number)
    except Exception as error:
        return Absent(f"cuda:{number}", f"it does not work ({error})")


def _installed() -> str:
    """The packages that CuPy comes from, with their versions."""
    try:
        return " ".join(f"{name} {version(name)}" for name in packages_distributions().get("cupy", ()))
    except PackageNotFoundError:
        return "of unknown origin"
