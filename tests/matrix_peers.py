"""Other libraries' products, each timed in a process of its own.

Some die with SIGILL where the tile palette is hidden, and pools of threads would fight over the cores. A process prints
a line of JSON for each figure.

    python tests/matrix_peers.py "torch bf16" 512,1024 [path of a library with MKL]
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from yosegi.bench.timing import Contender, race
from yosegi.dtype import bfloat16

PRODUCT, FUSED = "product", "relu(x@w+b+r)"
FUSED_SIZES = (128, 1024)
PEERS = ("torch f32", "torch bf16", "mkl bf16")
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


def row(what: str, n: int, contender: str, seconds: float, wrong: float | None) -> dict[str, Any]:
    """A figure."""
    return {"what": what, "n": n, "contender": contender, "microseconds": seconds * 1e6,
            "gflops": 2 * n**3 / seconds / 1e9, "error": wrong}  # fmt: skip


def measured_by_peers(sizes: tuple[int, ...], mkl: str | None) -> Iterator[dict[str, Any]]:
    """The figures of all peers, or why there are none."""
    library = _mkl_library(mkl)
    for name in PEERS:
        if name == "mkl bf16" and library is None:
            yield {"contender": name, "failure": "no MKL; pip install mkl or torch, or --mkl PATH"}
            continue
        command = [sys.executable, __file__, name, ",".join(map(str, sizes)), *([library] if library else [])]
        settings = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        try:
            child = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            yield {"contender": name, "failure": "it took more than a minute"}
            continue
        yield from [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
        if child.returncode:
            said = child.stderr.strip().splitlines()[-1:] or [f"exit status {child.returncode}"]
            yield {"contender": name, "failure": said[0]}


def _mkl_library(given: str | None) -> str | None:
    """A library with MKL's functions: as given, where `pip install mkl` puts it, or PyTorch's, which has them too."""
    places = [given] if given else [str(p) for p in Path(sys.prefix, "lib").glob("libmkl_rt.so*")]
    torch = find_spec("torch")
    if not given and torch is not None and torch.origin is not None:
        places.append(str(Path(torch.origin).with_name("lib") / _OF_TORCH))
    return next((p for p in places if Path(p).exists()), None)


# In the child


def _figures(name: str, sizes: list[int], library: str) -> Iterator[dict[str, Any]]:
    for n in sizes:
        a, b = numbers(n, n), numbers(n, n, seed=1)
        call, result = _mkl(a, b, library) if name == "mkl bf16" else _torch(a, b, name.split()[1])
        timing = race({name: Contender(call)}, rounds=9, seconds=3)[name]
        wanted, rows = exact(a, b)
        yield row(PRODUCT, n, name, timing.median, error(result()[rows], wanted))
    if name == "torch f32":
        yield from _torch_fused()


def _torch(a: Array, b: Array, kind: str) -> tuple[Call, Call]:
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    x, y = (torch.from_numpy(v).to(dtype) for v in (a, b))
    return lambda: x @ y, lambda: (x @ y).to(torch.float32).numpy()


def _torch_fused() -> Iterator[dict[str, Any]]:
    import torch

    for n in FUSED_SIZES:
        shapes = (n, n), (n, n), (1, n), (n, n)
        x, w, b, r = (torch.from_numpy(numbers(*shape, seed=i)) for i, shape in enumerate(shapes))
        call = lambda x=x, w=w, b=b, r=r: torch.relu(torch.addmm(b, x, w) + r)
        yield row(FUSED, n, "torch f32", race({"": Contender(call)}, rounds=15, seconds=2)[""].median, None)


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
    for line in _figures(sys.argv[1], [int(n) for n in sys.argv[2].split(",")], (sys.argv[3:] or [""])[0]):
        print(json.dumps(line), flush=True)
