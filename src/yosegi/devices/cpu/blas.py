"""NumPy's own BLAS, for products by the threads of our pool.

OpenBLAS keeps threads of its own. After a product they look for more work for 20 to 120 ms, and any other user of the
cores meanwhile gets half of them. So our threads call it themselves, each for some rows, while it is held to one
thread: a count, which is put back before anybody can see it, but for what other threads of the program multiply at the
same moment. Which library NumPy brings is found out at run time; where it is another, or not found, there is none.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..._run.forks import in_forked_child
from ..._tensor.dtype import DType, float32, float64
from .callables import address_of

_FOLDERS: Final = ("../numpy.libs", ".dylibs", "../numpy/.dylibs", ".libs")
"""Where NumPy's wheels have their libraries, from its own folder."""
_THREADS_OF_ITS_OWN: Final = 1
"""The result of `get_parallel` for a build with plain threads. A build with OpenMP counts threads for each caller."""


class Guard(ctypes.Structure):
    """The words that those share who hold the library to one thread: `codegen.llvm.blas_kernels` has what they mean."""

    _fields_ = [("lock", ctypes.c_int64), ("inside", ctypes.c_int64), ("threads", ctypes.c_int64)]


@dataclass(frozen=True, slots=True)
class Blas:
    """A library's functions, by their addresses."""

    multiply: dict[DType, int]
    apply: dict[DType, int]
    """A matrix times a vector."""
    get_threads: int
    set_threads: int
    guard: int
    long: bool
    """Whether its integers have 64 bits."""
    config: str


@cache
def numpy_blas() -> Blas | None:
    """The library that NumPy multiplies with, if it is one that can be held to one thread."""
    for path in _libraries():
        with suppress(OSError, AttributeError):
            found = _opened(ctypes.CDLL(str(path)))
            if found is not None:
                return found
    return None


def _libraries() -> Iterator[Path]:
    here = Path(np.__file__).parent
    for folder in _FOLDERS:
        with suppress(OSError):
            yield from (here / folder / name for name in sorted(os.listdir(here / folder)) if "openblas" in name)


def _opened(library: Any) -> Blas | None:
    for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", "")):

        def symbol(name: str, prefix: str = prefix, suffix: str = suffix) -> Any:
            return getattr(library, f"{prefix}{name}{suffix}")

        try:
            config = symbol("openblas_get_config")
        except AttributeError:
            continue
        config.restype = ctypes.c_char_p
        text = config().decode(errors="replace")
        if symbol("openblas_get_parallel")() != _THREADS_OF_ITS_OWN:
            return None
        put = symbol("openblas_set_num_threads")
        return Blas(
            {float32: address_of(symbol("cblas_sgemm")), float64: address_of(symbol("cblas_dgemm"))},
            {float32: address_of(symbol("cblas_sgemv")), float64: address_of(symbol("cblas_dgemv"))},
            address_of(symbol("openblas_get_num_threads")), address_of(put), _new_guard(put),
            "USE64BITINT" in text, text,
        )  # fmt: skip
    return None


def _new_guard(put: Any) -> int:
    """Words that are never freed: kernels use them as long as there are any."""
    guard = Guard()
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(guard))

    def forget() -> None:
        """In a forked child no thread uses the library or holds the lock."""
        if guard.inside:
            put(ctypes.c_int(guard.threads))
        ctypes.memset(ctypes.addressof(guard), 0, ctypes.sizeof(guard))

    in_forked_child(forget)
    return ctypes.addressof(guard)
