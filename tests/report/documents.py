"""Runs of the benchmark, made up: their times follow from a few costs, so that what the report must find is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from yosegi.tools.bench.document import Document, Result

SIZES = (1_000, 10_000, 100_000, 1_000_000)
SQUARES = (64, 256, 1024)
COSTS = {
    "numpy": (1e-6, 1.0e-9),
    "cpu": (3e-6, 1.2e-9),
    "opencl:0": (9e-5, 0.3e-9),
    "torch": (5e-6, 0.6e-9),
}
"""Seconds of a call, and for each unit of work."""
NOISE = (0.98, 1.0, 1.01, 1.02, 0.99)


def result(
    contender: str,
    suite: str,
    name: str,
    size: int,
    seconds: float,
    *,
    dtype: str = "float32",
    mode: str = "jit",
    **more: Any,
) -> Result:
    """A timed result; a contender with a colon or called cpu is a device of Yosegi's."""
    device = contender if contender == "cpu" or ":" in contender else None
    label = f"{contender}, {mode}" if device else contender
    sittings = tuple(tuple(seconds * n for n in NOISE) for _ in range(3))
    made = Result(
        f"{suite}/{name}/{dtype}/{size}", suite, name, size, dtype, label, device, mode if device else "", "ok",
        error=1e-7, tolerance=1e-5, flops=float(size), nbytes=12 * size, sittings=sittings, limit_seconds=seconds / 2,
        bound="memory",
    )  # fmt: skip
    return replace(made, **more)


def not_right(made: Result, status: str, reason: str) -> Result:
    """The same, but not timed."""
    return replace(made, status=status, reason=reason, sittings=(), limit_seconds=None, error=float("inf"))


def document(results: tuple[Result, ...] | None = None, **more: Any) -> Document:
    """A run of every suite, or of the given results."""
    made = Document(
        created="2026-11-15T05:23:29+00:00",
        machine={
            "fingerprint": "0123456789abcdef", "processor": "A processor", "threads": 2, "system": "Linux",
            "architecture": "x86_64", "release": "6", "memory_bytes": 8_000_000_000, "python": "3.11.7",
            "packages": {"numpy": "2.4.6", "torch": "2.13.0"},
            "devices": [{"name": "opencl:0", "description": "a GPU"}, {"name": "cpu", "description": "2 cores"}],
            "absent": {"cuda": "no driver"},
        },
        limits={
            "copy": {"one thread": {"4000": 13.0, "400000": 80.0, "40000000": 20.0},
                     "all threads": {"4000": 0.2, "400000": 6.0, "40000000": 40.0}},
            "device_copy": {"opencl:0": {"400000": 60.0, "40000000": 200.0}},
            "products": {"float32": {"gflops": 250.0, "by": "torch"}, "float16": {"gflops": 60.0, "by": "torch"}},
        },
        settings={"sittings": 3, "rounds": 5, "filter": "*"},
        results=tuple(every_suite()) if results is None else results,
        skipped={"jax": "not installed; pip install jax"},
        placement=placement(),
    )  # fmt: skip
    return replace(made, **more)


def every_suite() -> Iterator[Result]:
    """Each suite, on two devices and two others."""
    for who, (call, each) in COSTS.items():
        for name, steps in {"add": 1, "gelu": 5}.items():
            for n in SIZES:
                yield result(who, "elementwise", name, n, call + steps * each * n)
        for n in SIZES:
            yield result(who, "reduction", "sum", n, call + each * n)
        for n in SQUARES:
            products = {"flops": 2.0 * n**3, "nbytes": 12 * n * n, "bound": "arithmetic"}
            made = result(who, "matmul", "matmul", n, call + each * n**3 / 30, **products)
            yield made if who != "opencl:0" else not_right(made, "elsewhere", "it has no linear algebra")
            for mode, extra in (("jit", 1.0), ("separate", 1.6)):
                if mode == "jit" or who in ("cpu", "opencl:0"):
                    yield result(who, "patterns", "gelu+linear", n, (call + each * n * n) * extra, mode=mode)
        for n in (10_000, 1_000_000):
            yield result(who, "conversion", "to float16", n, call + each * n / 2)
        for dtype, error, gain in (("float64", 0.0, 0.5), ("float32", 1e-7, 1.0), ("float16", 3e-4, 1.5)):
            made = result(who, "precision", "gelu", 100_000, (call + each * 1e5) / gain, dtype=dtype, error=error)
            yield made if (who, dtype) != ("torch", "float16") else not_right(made, "wrong", "its largest error is 0.5")
        yield result(who, "overhead", "10 ops", 16, call, nbytes=0, limit_seconds=None)
        if who in ("cpu", "opencl:0", "numpy"):
            yield result(who, "memory", "chain", 1_000_000, call + each * 1e6, peak_bytes=8_000_000)
    for direction in ("upload", "download"):
        for n in SIZES:
            yield result("opencl:0", "transfer", direction, n, 1e-5 + 1e-9 * n, mode=direction)


def placement() -> dict[str, Any]:
    """A program of four steps on two devices."""

    def step(device: str, ops: list[str], reads: list[int], **more: Any) -> dict[str, Any]:
        actual = {"device": device, "milliseconds": 1.5, "bytes_moved": 4096 if reads else 0, "failures": []}
        return {
            "device": device, "ops": ops, "inputs": ["float32[4]"], "outputs": ["float32[4]"], "refused": [],
            "actual": actual, "reads": reads, **more,
        }  # fmt: skip

    refused = [{"device": "opencl:0", "reason": "it has no linear algebra"}]
    return {
        "program": "relu(x @ w) @ v",
        "steps": [
            step("opencl:0", ["permute_dims"], []),
            step("opencl:0", ["subtract", "mean"], []),
            step("cpu", ["matmul"], [0, 1], refused=refused),
            step("opencl:0", ["maximum"], [1, 2]),
        ],
    }


def slowed(run: Document, factor: float, part: str) -> Document:
    """The same run, with what has this in its case slower on every device."""
    return replace(run, results=tuple(_slowed(r, factor) if part in r.case and r.device else r for r in run.results))


def _slowed(r: Result, factor: float) -> Result:
    return replace(r, sittings=tuple(tuple(t * factor for t in s) for s in r.sittings))
