"""pyopencl, loaded when a driver has been listed in a child process."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

FRESH_CACHES: Final = {"POCL_CACHE_DIR": "{scratch}/pocl", "CUDA_CACHE_PATH": "{scratch}/cuda"}
"""Where drivers keep what they have compiled, in child processes: an old result must not hide a new crash."""


@cache
def opencl() -> Any:
    """The package."""
    import pyopencl as cl

    # Drivers that have something to say about a program that they built say it here.
    warnings.filterwarnings("ignore", category=cl.CompilerWarning)
    return cl


def flattened(cl: Any) -> list[Any]:
    """The devices of all platforms that the system's loader knows, in order."""
    found = []
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # there is none
        return []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:
            continue  # a platform without a device says so with an error
    return found


def identity_of(cl: Any, device: Any) -> str:
    """The platform, the device and the driver, with their versions."""
    platform = device.platform
    return "\n".join([
        platform.name, platform.version, device.name, device.version, device.driver_version, cl.VERSION_TEXT,
    ])  # fmt: skip


def registered() -> str:
    """The identity of the installation: a list of devices holds as long as this does not change."""
    place = Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors"))
    files = sorted(place.glob("*")) if place.is_dir() else [place]
    return "\n".join([version("pyopencl"), *[f"{p} {p.stat().st_mtime_ns}" if p.exists() else str(p) for p in files]])
