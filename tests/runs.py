"""Runs made up for tests."""

from __future__ import annotations

from typing import Any

from yosegi.tools.bench.document import Document, Result


def result(case: str, contender: str, device: str | None, sittings: Any, **fields: Any) -> Result:
    """A timed result."""
    seconds = tuple(tuple(float(t) for t in sitting) for sitting in sittings)
    mode = "" if device is None else "jit"
    given = {"suite": "made up", "name": case, "size": 1000, "dtype": "float32", "status": "ok", **fields}
    return Result(case=case, contender=contender, device=device, mode=mode, sittings=seconds, **given)


def document(results: list[Result], **fields: Any) -> Document:
    """A run of one device, called one."""
    machine = {
        "fingerprint": "f", "processor": "abacus", "threads": 2, "python": "3.11", "packages": {},
        "devices": [{"name": "one", "description": "made up"}], "absent": {},
    }  # fmt: skip
    sizes = (4_000, 40_000, 400_000, 4_000_000, 40_000_000)
    limits = {
        "copy": {who: {str(n): 10.0 for n in sizes} for who in ("one thread", "all threads")},
        "device_copy": {},
        "products": {"float32": {"gflops": 100.0, "by": "numpy"}},
    }  # fmt: skip
    settings = {"sittings": 4, "rounds": 6}
    given = {"created": "2026-01-01T00:00:00+00:00", "machine": machine, "limits": limits, "settings": settings}
    return Document(results=tuple(results), **{**given, **fields})
