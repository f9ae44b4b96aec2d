"""cuBLAS through its C interface, so that its products can be recorded and captured like generated kernels.

CuPy's binding refuses while a stream is captured, and takes longer to call. The library is the one CuPy has loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, addressof, c_double, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..._tensor.dtype import DType, bfloat16, complex64, complex128, float16, float32, float64
from .errors import translated
from .launch import WORKSPACE, Queue
from .memory import Data

DATA_TYPES: Final[dict[DType, int]] = {float32: 0, float64: 1, float16: 2, complex64: 4, complex128: 5, bfloat16: 14}
"""cudaDataType_t."""
SINGLE: Final = 68
"""cublasComputeType_t: sums in float. Nothing is lowered unless another one is asked for."""
_NO_SHORT_SUMS: Final = 16
"""cublasMath_t: partial sums of 16-bit products stay in float."""
_DEFAULT_ALGORITHM: Final = -1
_NOT_TURNED: Final = 0
_MATRIX: Final = (c_void_p, c_int, c_int, c_int64)  # where it is, its numbers, its rows' and its matrices' distance


class Blas:
    """A handle of the library."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        with translated(f"[{queue.name}] opening cuBLAS"):
            queue.runtime.setDevice(queue.number)
            self._errors = queue.cupy.cuda.cublas
            self.handle = self._errors.create()
            self._errors.setMathMode(self.handle, _NO_SHORT_SUMS)
            library = CDLL(loaded("libcublas.so"))
        self._set_stream = library.cublasSetStream_v2
        self._set_stream.argtypes = (c_void_p, c_void_p)
        self._set_workspace = library.cublasSetWorkspace_v2
        self._set_workspace.argtypes = (c_void_p, c_void_p, c_size_t)
        self.multiply = library.cublasGemmStridedBatchedEx
        self.multiply.argtypes = (
            c_void_p, c_int, c_int, c_int, c_int, c_int, c_void_p, *_MATRIX, *_MATRIX, c_void_p, *_MATRIX,
            c_int, c_int, c_int,
        )  # fmt: skip
        self._stream = -1

    def follow(self) -> None:
        """Let products go to where launches go now."""
        queue = self.queue
        if self._stream != queue.pointer:
            self.check(self._set_stream(self.handle, queue.pointer))
            self.check(self._set_workspace(self.handle, queue.workspace, WORKSPACE))
            self._stream = queue.pointer

    def check(self, status: int) -> None:
        """Raise CuPy's error for a status that is one."""
        if status:
            raise self._errors.CUBLASError(status)


def loaded(name: str) -> str:
    """The file of a library that this process has loaded, or its name, for the system to look for."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return name
    return next((line.split()[-1] for line in lines if f"/{name}" in line), name)


@dataclass(frozen=True, slots=True)
class Batch:
    """Products at equal distances: C[i] = A[i] B[i] for `count` matrices, rows first, or C[i] += A[i] B[i]."""

    m: int
    n: int
    k: int
    places: tuple[int, int, int]
    """Where the first ones begin, in bytes."""
    strides: tuple[int, int, int]
    """In elements."""
    count: int


class Multiplied:
    """Products that can be launched, again and again, as a generated kernel can.

    cuBLAS takes columns first. A matrix of rows is its transpose there, so that C = A B is asked for as Cᵀ = Bᵀ Aᵀ,
    with the operands in the other order and nothing moved.
    """

    def __init__(
        self, blas: Blas, batches: Sequence[Batch], kinds: tuple[int, int], compute: int, *, is_double: bool, adds: bool
    ) -> None:
        self._blas = blas
        scale = c_double if is_double else c_float
        # A complex number is two of `scale`: the second is 0.
        self._one, self._onto = (scale * 2)(1, 0), (scale * 2)(int(adds), 0)
        one, onto = addressof(self._one), addressof(self._onto)
        operand, result = kinds
        head = (blas.handle, _NOT_TURNED, _NOT_TURNED)
        self._calls = [
            (b.places, (*head, b.n, b.m, b.k, one), (operand, b.n, b.strides[1]), (operand, b.k, b.strides[0], onto),
             (result, b.n, b.strides[2], b.count, compute, _DEFAULT_ALGORITHM))
            for b in batches
        ]  # fmt: skip

    def __call__(self, left: Data, right: Data, into: Data) -> None:
        """Put them into the stream."""
        queue = self._blas.queue
        with translated(f"[{queue.name}] multiplying"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([left.pointer, right.pointer, into.pointer])
        queue.note(self, (left, right, into), 1)

    def at(self, pointers: list[int]) -> None:
        """Launch by addresses, on the current device. Raises CuPy's own errors."""
        blas = self._blas
        left, right, into = pointers
        blas.follow()
        for places, head, second, first, last in self._calls:
            blas.check(
                blas.multiply(*head, right + places[1], *second, left + places[0], *first, into + places[2], *last)
            )
