"""The machine a result comes from: what it is, and what it can do at most.

The limits are measured in the same run as the cases: how fast memory is copied, by one thread and by all, and how fast
the installed libraries multiply. A case is judged against them, not against a data sheet.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

from ..._run.api import eval
from ..._run.child import attempt
from ..._run.device import Absent, Device, discovered
from ..._run.memory import HOST
from ..._run.sysctl import sysctl_text
from ..._tensor.environment import setting
from ..._tensor.op import REGISTRY
from ..._tensor.options import options
from ..._tune.timing import seconds_of
from ...ops.creation import asarray

COPY_SIZES: Final = (4_000, 40_000, 400_000, 4_000_000, 40_000_000)
"""Bytes of the array that is copied."""
_PRODUCT: Final = 1024
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers for them
_PACKAGES: Final = ("yosegi", "numpy", "ml_dtypes", "torch", "jax", "onnxruntime", "openvino", "pyopencl", "llvmlite")


def threads() -> int:
    """The threads that everyone gets: the cores this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(allowed, int(setting("YOSEGI_THREADS", allowed)))


def processor() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return sysctl_text("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def description() -> dict[str, Any]:
    """The machine, its devices and the versions that take part, with a fingerprint of the hardware."""
    found: list[dict[str, str]] = []
    absent: dict[str, str] = {}
    for device in discovered():
        if isinstance(device, Absent):
            absent[device.name] = device.reason
        else:
            found.append({"name": device.name, "description": device.description})
    hardware = {
        "processor": processor(),
        "architecture": platform.machine(),
        "system": platform.system(),
        "threads": threads(),
        "devices": [d["name"] for d in found],
    }
    return {
        "fingerprint": sha256(json.dumps(hardware, sort_keys=True).encode()).hexdigest()[:16],
        **hardware,
        "release": platform.release(),
        "memory_bytes": _memory(),
        "python": platform.python_version(),
        "packages": {name: v for name in _PACKAGES if (v := _version(name)) is not None},
        "devices": found,
        "absent": absent,
    }


def steady_memory() -> None:
    """Have the allocator keep what is freed, from the start.

    glibc gets there by itself, sooner or later: the limits are the ones its adaptation ends at. Until then some results
    are made of fresh pages and others are not, by luck, for every contender.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # another allocator: nothing to settle
    for parameter, nbytes in ((_MMAP_THRESHOLD, 32 << 20), (_TRIM_THRESHOLD, 256 << 20)):
        mallopt(parameter, nbytes)


def _memory() -> int:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def limits(chosen: list[Device]) -> dict[str, Any]:
    """The limits of this machine. Times are the best of several: a limit is not an average."""
    everyone = threads()
    return {
        "copy": {
            "one thread": {str(n): _copied(n, 1) for n in COPY_SIZES},
            "all threads": {str(n): _copied(n, everyone) for n in COPY_SIZES},
        },
        "device_copy": {d.name: _device_copy(d) for d in chosen if d.space != HOST and d.is_volatile},
        "products": _products(),
    }


def _best(call: Callable[[], object], seconds: float = 0.03) -> float:
    call()
    best, begin = float("inf"), perf_counter()
    while perf_counter() - begin < seconds:
        best = min(best, seconds_of(call))
    return best


def _copied(nbytes: int, workers: int) -> float:
    """GB/s of copying so many bytes: read and written."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    if workers == 1:
        return 2 * nbytes / _best(lambda: np.copyto(target, source)) / 1e9
    parts = [slice(a, b) for a, b in pairwise([nbytes * n // workers for n in range(workers + 1)])]
    with ThreadPoolExecutor(workers) as pool:  # NumPy lets go of the interpreter's lock while it copies

        def copy() -> None:
            for _ in pool.map(lambda part: np.copyto(target[part], source[part]), parts):
                pass

        return 2 * nbytes / _best(copy) / 1e9


def _device_copy(device: Device) -> dict[str, float]:
    """GB/s of the simplest kernel on a device, per bytes of its array."""
    negative = REGISTRY["negative"]
    made = {}
    for nbytes in COPY_SIZES[2:]:
        with options(device=device.name):
            x = asarray(np.ones(nbytes // 4, np.float32)).to_device(device)

            def copy(x: Any = x) -> None:
                eval(negative(x))
                device.synchronize()

            made[str(nbytes)] = 2 * nbytes / _best(copy) / 1e9
    return made


@cache
def _products() -> dict[str, dict[str, Any]]:
    """Per precision the best product that an installed library reaches, in GFLOP/s, and which one that is."""
    made: dict[str, dict[str, Any]] = {}
    for dtype in ("float64", "float32"):
        made[dtype] = {"gflops": product_speed("numpy", dtype), "by": "numpy"}
    if _version("torch") is not None:
        # In a child process: on some machines a library's product in 16 bits ends the process.
        for dtype in ("float64,float32", "float16", "bfloat16"):
            speeds = attempt(f"{__name__}:product_speeds", "torch", dtype, timeout=20.0).result or {}
            for name, speed in speeds.items():
                if speed > made.get(name, {"gflops": 0.0})["gflops"]:
                    made[name] = {"gflops": speed, "by": "torch"}
    return made


def product_speeds(library: str, dtypes: str) -> dict[str, float]:
    """GFLOP/s of a library's products, for several precisions."""
    return {dtype: product_speed(library, dtype) for dtype in dtypes.split(",")}


def product_speed(library: str, dtype: str) -> float:
    """GFLOP/s of a library's square product."""
    n = _PRODUCT
    if library == "numpy":
        a = np.ones((n, n), dtype)
        out = np.empty_like(a)
        return 2.0 * n**3 / _best(lambda: np.matmul(a, a, out=out), 0.15) / 1e9
    torch = importlib.import_module(library)
    torch.set_num_threads(threads())
    x = torch.ones((n, n), dtype=getattr(torch, dtype))
    return float(2.0 * n**3 / _best(lambda: x @ x, 0.15) / 1e9)


def bandwidth(limits: dict[str, Any], device: str, nbytes: int) -> float:
    """GB/s at which a footprint of so many bytes is moved at most: in the host's caches and memory as measured at the
    nearest size, in a device's own memory at its best."""
    own = limits["device_copy"].get(device)
    if own:
        return float(max(own.values()))
    nearest = str(min(COPY_SIZES, key=lambda n: abs(np.log(max(nbytes / 2, 1) / n))))
    return float(max(table[nearest] for table in limits["copy"].values()))


def bound(limits: dict[str, Any], device: str, dtype: str, flops: float, nbytes: int) -> tuple[float, str]:
    """The seconds a case takes at least on this machine, and what holds it: memory or arithmetic.

    On a device with memory of its own only memory is known: the products measured are the host's.
    """
    memory = nbytes / bandwidth(limits, device, nbytes) / 1e9 if nbytes else 0.0
    product = limits["products"].get(dtype)
    compute = flops / product["gflops"] / 1e9 if product and device not in limits["device_copy"] else 0.0
    return (compute, "arithmetic") if compute > memory else (memory, "memory")
