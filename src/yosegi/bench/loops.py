"""A fused loop against the memory's limit and NumPy: gelu(x * w + b) on ten million float32."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import pi, sqrt
from typing import Any

import numpy as np

from ..device import device_named
from ..jit import jit
from ..op import REGISTRY
from ..ops.creation import asarray
from ..options import options
from .timing import Timing, race

ELEMENTS = 10_000_000
_BYTES = 4 * 4 * ELEMENTS  # three arrays read, one written


def gelu_loop(tanh: Callable[[Any], Any], x: Any, w: Any, b: Any) -> Any:
    """gelu(x * w + b), by tanh."""
    z = x * w + b
    return 0.5 * z * (1.0 + tanh(sqrt(2 / pi) * (z + 0.044715 * z * z * z)))


@dataclass(frozen=True, slots=True)
class Loops:
    """Seconds of the copy, of NumPy and of each device, and the error of each device's result."""

    timings: dict[str, Timing]
    errors: dict[str, float]

    def rows(self) -> list[dict[str, Any]]:
        """One row per contender: milliseconds, GB/s, times the copy limit, times NumPy's speed, error."""
        # The copy moves half the bytes of the loop's footprint: one array read, one written.
        limit = Timing(tuple(2 * s for s in self.timings["copy"].rounds))
        rows = []
        for name, timing in self.timings.items():
            if name != "copy":
                rows.append({
                    "contender": name,
                    "milliseconds": timing.median * 1e3,
                    "gigabytes_per_second": _BYTES / timing.median / 1e9,
                    "times_copy_limit": timing.ratio_to(limit),
                    "times_numpy_speed": self.timings["numpy"].ratio_to(timing),
                    "error_over_largest": self.errors.get(name),
                })  # fmt: skip
        return rows


def measure(devices: list[str], *, rounds: int = 7) -> Loops:
    """Race the devices, NumPy and a copy. A result that is off is an error, not a time."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(size=ELEMENTS).astype(np.float32) for _ in range(3))
    target = np.empty_like(x)
    sample = slice(0, 100_000)
    exact = gelu_loop(np.tanh, *[a[sample].astype(np.float64) for a in (x, w, b)])
    tanh = REGISTRY["tanh"]
    contenders: dict[str, Callable[[], Any]] = {
        "copy": _copy(target, x),
        "numpy": lambda: gelu_loop(np.tanh, x, w, b),
    }
    errors: dict[str, float] = {}
    for name in devices:
        call = _on_device(name, tanh, [asarray(a) for a in (x, w, b)])
        result = np.asarray(call())[sample]
        errors[name] = float(np.max(np.abs(result - exact)) / np.max(np.abs(exact)))
        assert errors[name] < 1e-6, f"{name} computes something else: error {errors[name]:.1e}"
        contenders[name] = call
    return Loops(race(contenders, rounds=rounds, calls=1), errors)


def _copy(target: Any, source: Any) -> Callable[[], None]:
    """A copy by all cores: NumPy lets go of the interpreter's lock while it copies."""
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    edges = [ELEMENTS * n // threads for n in range(threads + 1)]
    parts = [slice(a, b) for a, b in pairwise(edges)]
    pool = ThreadPoolExecutor(threads)

    def copy() -> None:
        for _ in pool.map(lambda part: np.copyto(target[part], source[part]), parts):
            pass

    return copy


def _on_device(name: str, tanh: Callable[[Any], Any], inputs: list[Any]) -> Callable[[], Any]:
    device = device_named(name)
    with options(device=name):
        inputs = [t.to_device(device) for t in inputs]
    compiled = jit(lambda x, w, b: gelu_loop(tanh, x, w, b))

    def call() -> Any:
        with options(device=name):
            result = compiled(*inputs)
            device.synchronize()
        return result

    return call
