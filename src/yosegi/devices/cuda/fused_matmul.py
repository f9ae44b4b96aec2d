"""Products with what is around them in one launch, through cuBLASLt.

Its descriptions are columns first. A matrix of rows is its transpose there: C = A B is asked for as Cᵀ = Bᵀ Aᵀ, so that
a bias for each of our columns is one for each of its rows, which is what it has.
"""

from __future__ import annotations

from ctypes import CDLL, Structure, byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p, sizeof
from functools import cache
from typing import Any, Final
from weakref import finalize

from ..._tensor.dtype import DType, float32
from ...errors import CompileFailure
from ..kernel.matrices import Matrices, Matrix
from .blas import DATA_TYPES, Blas, loaded
from .errors import translated
from .launch import WORKSPACE
from .memory import Data

_TRANSPOSE_FIRST, _TRANSPOSE_SECOND, _EPILOGUE, _BIAS = 3, 4, 7, 8
"""cublasLtMatmulDescAttributes_t."""
_TURNED: Final = 1
_NOTHING, _ADDS_BIAS = 1, 4
"""cublasLtEpilogue_t."""
_STACK, _STRIDE = 5, 6
"""cublasLtMatrixLayoutAttribute_t."""
_MOST_WORKSPACE, _SUMS = 1, 3
"""cublasLtMatmulPreferenceAttributes_t."""
_WIDE_SUMS: Final = 3
"""cublasLtReductionScheme_t: where a sum is cut in parts, they are added up in its own type, never in the result's."""


class _Found(Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8), ("workspace", c_size_t), ("state", c_int), ("waves", c_float),
        ("reserved", c_int * 4),
    )  # fmt: skip


@cache
def _library() -> Any:
    return CDLL(loaded("libcublasLt.so"))


class FusedMatmul:
    """Such a product, which can be launched again and again, as a generated kernel can."""

    def __init__(self, blas: Blas, wanted: Matrices, rank: int, compute: int) -> None:
        """By the algorithm that the library expects to be the fastest but for `rank` others, or the last that it has.
        Raises `CompileFailure` if it has none. `compute`: what it sums in, and may round operands to."""
        self._blas, self._wanted = blas, wanted
        queue = blas.queue
        with translated(f"[{queue.name}] preparing a product"):
            queue.runtime.setDevice(queue.number)
            self._handle = c_void_p(blas.handle)  # which is one of this library too
            self._description = self._made("MatmulDesc", compute, DATA_TYPES[float32])
            self._set("MatmulDesc", self._description, _TRANSPOSE_FIRST, c_int32(_TURNED * wanted.right.is_turned))
            self._set("MatmulDesc", self._description, _TRANSPOSE_SECOND, c_int32(_TURNED * wanted.left.is_turned))
            epilogue = _NOTHING if wanted.bias is None else _ADDS_BIAS
            self._set("MatmulDesc", self._description, _EPILOGUE, c_int32(epilogue))
            m, n, k, dtype = wanted.m, wanted.n, wanted.k, wanted.dtype
            self._first = self._layout(wanted.right, n, k, wanted.operand)
            self._second = self._layout(wanted.left, k, m, wanted.operand)
            self._result = self._layout(Matrix(-1, False, n, m * n), n, m, dtype)
            self._algorithm = self._chosen(rank)
        self._scale, self._onto = c_float(wanted.scale), c_float(wanted.residual is not None)

    def __call__(self, *data: Data) -> None:
        """Put it into the stream: for both operands, what there is of bias and residual, and the result."""
        queue = self._blas.queue
        with translated(f"[{queue.name}] multiplying"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([d.pointer for d in data])
        queue.note(self, data, 1)

    def at(self, pointers: list[int]) -> None:
        """Launch by addresses, on the current device. Raises CuPy's own errors."""
        left, right, *around, into = pointers
        if self._wanted.bias is not None:
            self._set("MatmulDesc", self._description, _BIAS, c_void_p(around[0]))
        onto = around[-1] if self._wanted.residual is not None else into
        self._do(
            "cublasLtMatmul", self._handle, self._description, byref(self._scale), c_void_p(right), self._first,
            c_void_p(left), self._second, byref(self._onto), c_void_p(onto), self._result, c_void_p(into), self._result,
            byref(self._algorithm), c_void_p(self._blas.queue.workspace), c_size_t(WORKSPACE),
            c_void_p(self._blas.queue.pointer),
        )  # fmt: skip

    def _chosen(self, rank: int) -> Any:
        preference = self._made("MatmulPreference")
        for attribute, value in ((_MOST_WORKSPACE, c_uint64(WORKSPACE)), (_SUMS, c_int32(_WIDE_SUMS))):
            self._set("MatmulPreference", preference, attribute, value)
        found, count = (_Found * (rank + 1))(), c_int()
        status = _library().cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._description, self._first, self._second, self._result, self._result, preference,
            len(found), byref(found), byref(count),
        )  # fmt: skip
        if status or not count.value:
            raise CompileFailure(f"cuBLAS has no algorithm for {self._wanted}: status {status}")
        return found[count.value - 1].algorithm

    def _layout(self, matrix: Matrix, rows: int, columns: int, dtype: DType) -> Any:
        """A matrix as the library sees it: `rows` and `columns` are those of the product's operand, columns first."""
        if matrix.is_turned:
            rows, columns = columns, rows
        shape = (c_uint64(rows), c_uint64(columns), c_int64(matrix.pitch))
        made = self._made("MatrixLayout", DATA_TYPES[dtype], *shape)
        self._set("MatrixLayout", made, _STACK, c_int32(self._wanted.count))
        self._set("MatrixLayout", made, _STRIDE, c_int64(matrix.stride))
        return made

    def _made(self, kind: str, *arguments: Any) -> c_void_p:
        """Something of the library's, for as long as this object lives."""
        made = c_void_p()
        self._do(f"cublasLt{kind}Create", byref(made), *arguments)
        finalize(self, getattr(_library(), f"cublasLt{kind}Destroy"), made)
        return made

    def _set(self, kind: str, of: c_void_p, attribute: int, value: Any) -> None:
        self._do(f"cublasLt{kind}SetAttribute", of, attribute, byref(value), c_size_t(sizeof(value)))

    def _do(self, name: str, *arguments: Any) -> None:
        self._blas.check(getattr(_library(), name)(*arguments))
