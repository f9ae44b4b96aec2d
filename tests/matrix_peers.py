"""Other libraries' products, each timed in a process of its own, in turns with ours.

Some die with SIGILL where the tile palette is hidden, and pools of threads would fight over the cores. A process that
waits for its turn sleeps.

    python tests/matrix_peers.py "torch bf16" [path of a library with MKL]      answers "512" with the seconds and error
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from yosegi._tensor.dtype import bfloat16
from yosegi.tools.bench.timing import Contender, race

PEERS = ("numpy f32", "torch f32", "torch bf16", "mkl bf16")
_OF_TORCH = "libtorch_cpu.so"
Array = Any
Call = Callable[[], Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    """Numbers without a pattern."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def error(got: Array, wanted: Array) -> float:
    """Over the norm of the whole."""
    return float(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))


def exact(a: Array, b: Array, rows: int = 256) -> tuple[Array, Array]:
    """Some rows of a product in float64, and which: all of them would take long."""
    picked = np.unique(np.linspace(0, a.shape[-2] - 1, min(rows, a.shape[-2])).astype(int))
    return a[picked].astype(np.float64) @ b.astype(np.float64), picked


def seconds_of(call: Call) -> float:
    """A turn: the median of some calls in a row, after one that nobody counts."""
    return race({"": Contender(call)}, rounds=1)[""].median


class Gone(Exception):
    """Why a peer does not answer."""


class Peer:
    """A library in a process of its own, which multiplies when it is asked to."""

    def __init__(self, name: str, mkl: str | None = None) -> None:
        """Raises `Gone` if it is not installed."""
        library = _mkl_library(mkl) if name.startswith("mkl") else ""
        if library is None or (name.startswith("torch") and find_spec("torch") is None):
            raise Gone("not installed; pip install mkl or torch, or --mkl PATH")
        settings = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self._child = subprocess.Popen(
            [sys.executable, __file__, name, library], env=settings, text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def multiplied(self, n: int) -> tuple[float, float]:
        """The seconds of a product of n × n, and its error; raises `Gone` if the process has ended."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        try:
            print(n, file=self._child.stdin, flush=True)
            seconds, wrong = json.loads(self._child.stdout.readline())
        except (BrokenPipeError, json.JSONDecodeError):
            raise Gone(f"its process ended with {self._child.wait()}") from None
        return seconds, wrong

    def leave(self) -> None:
        """End the process."""
        self._child.kill()
        self._child.wait()


def _mkl_library(given: str | None) -> str | None:
    """A library with MKL's functions: as given, where `pip install mkl` puts it, or PyTorch's, which has them too."""
    places = [given] if given else [str(p) for p in Path(sys.prefix, "lib").glob("libmkl_rt.so*")]
    torch = find_spec("torch")
    if not given and torch is not None and torch.origin is not None:
        places.append(str(Path(torch.origin).with_name("lib") / _OF_TORCH))
    return next((p for p in places if Path(p).exists()), None)


# In the child


def _answers(name: str, library: str) -> None:
    made: dict[int, tuple[Call, float]] = {}
    for line in sys.stdin:
        n = int(line)
        if n not in made:
            a, b = numbers(n, n), numbers(n, n, seed=1)
            call, result = _product(name, a, b, library)
            wanted, rows = exact(a, b)
            made[n] = call, error(result()[rows], wanted)
        call, wrong = made[n]
        print(json.dumps((seconds_of(call), wrong)), flush=True)


def _product(name: str, a: Array, b: Array, library: str) -> tuple[Call, Call]:
    """A call, and one that gives its result in float32."""
    if name == "numpy f32":
        return lambda: a @ b, lambda: a @ b
    return _mkl(a, b, library) if name == "mkl bf16" else _torch(a, b, name.split()[1])


def _torch(a: Array, b: Array, kind: str) -> tuple[Call, Call]:
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    x, y = (torch.from_numpy(v).to(dtype) for v in (a, b))
    return lambda: x @ y, lambda: (x @ y).to(torch.float32).numpy()


def _mkl(a: Array, b: Array, library: str) -> tuple[Call, Call]:
    """cblas_gemm_bf16bf16f32: operands that are bfloat16 already, a float32 result."""
    if Path(library).name == _OF_TORCH:
        import torch  # brings what the library needs

        torch.set_num_threads(len(os.sched_getaffinity(0)))
    gemm = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL).cblas_gemm_bf16bf16f32
    n = a.shape[0]
    x, y = (v.astype(bfloat16.numpy) for v in (a, b))
    out = np.empty((n, n), np.float32)
    size = ctypes.c_int(n)  # libmkl_rt takes 32-bit sizes unless it is told otherwise
    given = [ctypes.c_int(101), ctypes.c_int(111), ctypes.c_int(111), size, size, size, ctypes.c_float(1),
             ctypes.c_void_p(x.ctypes.data), size, ctypes.c_void_p(y.ctypes.data), size, ctypes.c_float(0),
             ctypes.c_void_p(out.ctypes.data), size]  # fmt: skip

    def call(kept: Any = (x, y)) -> Array:
        gemm(*given)
        return out

    return call, call


if __name__ == "__main__":
    _answers(*sys.argv[1:3])
