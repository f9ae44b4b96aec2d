"""A driver that is new to this machine is tried in a child process first: some end the process they are loaded into.

The verdict is kept beside the programs, by the version of pyopencl and the drivers that are registered.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...store import cache_folder, written
from ...trial import attempt

_KERNEL = "__kernel void add_one(__global int *x) { x[get_global_id(0)] += 1; }"


def verdict() -> str | None:
    """Why OpenCL must not be touched in this process, or `None` if it survived a trial."""
    path = cache_folder() / f"opencl-trial-{_registered()}.json"
    with suppress(OSError, ValueError):
        known: str | None = json.loads(path.read_text(encoding="utf-8"))["failure"]
        return known
    outcome = attempt("yosegi.devices.opencl.probe:probe")
    written(path, json.dumps({"failure": outcome.failure}).encode())
    return outcome.failure


def _registered() -> str:
    """What is installed, as a short name: the verdict holds as long as this does not change."""
    folder = Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors"))
    drivers = (
        [f"{p.name} {p.stat().st_mtime_ns}" for p in sorted(folder.glob("*"))] if folder.is_dir() else [str(folder)]
    )
    return hashlib.sha256("\n".join([version("pyopencl"), *drivers]).encode()).hexdigest()[:16]


def probe() -> list[str]:
    """Build and run a small kernel on every device; their names. Called in the child."""
    import numpy as np
    import pyopencl as cl

    names = []
    for platform in cl.get_platforms():
        for device in platform.get_devices():
            names.append(device.name)
            _run(cl, np, device)
    return names


def _run(cl: Any, np: Any, device: Any) -> None:
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    data = np.arange(16, dtype=np.int32)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    buffer = cl.Buffer(context, flags, hostbuf=data)
    cl.Program(context, _KERNEL).build().add_one(queue, (16,), None, buffer)
    cl.enqueue_copy(queue, data, buffer)
    queue.finish()
