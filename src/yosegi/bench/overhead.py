"""What an operation costs beside its arithmetic: a chain of ten elementwise ops on 16 elements.

At this size the arithmetic is nothing, and what is timed is the way through the library.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..evaluate import eval
from ..jit import jit
from ..op import REGISTRY
from ..ops.creation import asarray
from .timing import Timing, race

OPS = 10
ELEMENTS = 16
CACHED, REPLAYED = "yosegi, plan cache", "yosegi, jit"


def chain(exp: Callable[[Any], Any], tanh: Callable[[Any], Any], x: Any, y: Any) -> Any:
    """Ten elementwise ops."""
    a = (x + y) * x
    b = (a - y) * a
    c = (exp(b) + x) * y
    return tanh(c - x) + y


@dataclass(frozen=True, slots=True)
class Overhead:
    """The result: seconds per chain of each contender, and the reasons for those that are missing."""

    timings: dict[str, Timing]
    skipped: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As plain data: microseconds per chain, and times NumPy's with the quartiles."""
        base = self.timings["numpy"]
        return {
            "benchmark": "overhead",
            "ops": OPS,
            "elements": ELEMENTS,
            "results": {
                name: {"microseconds": t.median * 1e6, "times_numpy": t.ratio_to(base)}
                for name, t in self.timings.items()
            },
            "skipped": self.skipped,
        }


def measure(*, rounds: int = 40, calls: int = 300) -> Overhead:
    """Race the contenders that are installed. Each one's result is checked before it is timed."""
    rng = np.random.default_rng(0)
    xa, ya = (rng.uniform(-1, 1, ELEMENTS).astype(np.float32) for _ in range(2))
    expected = chain(np.exp, np.tanh, xa.astype(np.float64), ya.astype(np.float64))
    x, y = asarray(xa), asarray(ya)
    exp, tanh = REGISTRY["exp"], REGISTRY["tanh"]
    replay = jit(lambda a, b: chain(exp, tanh, a, b))

    def cached() -> Any:
        result = chain(exp, tanh, x, y)
        eval(result)
        return result

    contenders: dict[str, Callable[[], Any]] = {
        "numpy": lambda: chain(np.exp, np.tanh, xa, ya),
        CACHED: cached,
        REPLAYED: lambda: replay(x, y),
    }
    skipped: dict[str, str] = {}
    for name, contender in {"torch": _torch, "jax": _jax}.items():
        try:
            contenders |= contender(importlib.import_module(name), xa, ya)
        except ImportError as error:
            skipped[name] = f"not installed ({error})"
    for name, call in contenders.items():
        np.testing.assert_allclose(np.asarray(call()), expected, rtol=1e-5, err_msg=f"{name} computes something else")
    return Overhead(race(contenders, rounds=rounds, calls=calls), skipped)


def _torch(torch: Any, xa: Any, ya: Any) -> dict[str, Callable[[], Any]]:
    x, y = torch.from_numpy(xa), torch.from_numpy(ya)
    return {"torch, eager": lambda: chain(torch.exp, torch.tanh, x, y)}


def _jax(jax: Any, xa: Any, ya: Any) -> dict[str, Callable[[], Any]]:
    x, y = jax.numpy.asarray(xa), jax.numpy.asarray(ya)
    jitted = jax.jit(lambda a, b: chain(jax.numpy.exp, jax.numpy.tanh, a, b))
    return {"jax, jit": lambda: jitted(x, y).block_until_ready()}
