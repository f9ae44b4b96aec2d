"""Products of matrices compared with their random projections, by generated code."""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.dtype import float32
from ..._tensor.role import Contraction
from ..._tune.store import package_digest
from ...codegen.llvm.projections import BLOCK, ROWS, VECTORS, projection_source
from .callables import ALIGNED, Call, Runtime
from .compiler import Code, Part

_FUNCTIONS: Final = ("rows", "columns")
_SPREADS: Final = 1 << 16
"""Numbers from which several threads are faster than one."""
_LETS_GO: Final = 1 << 20
"""Numbers from which other Python threads may run meanwhile."""


class Projections:
    """Compiles projection kernels."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls: dict[Any, Call] = {}
        self._vectors: tuple[Any, Any] = None, None

    def kernel(self, region: Region, otherwise: Kernel) -> Kernel:
        """A projection's region as a kernel. What is not a product of float32 arrays with one matrix as its right
        operand, or lies otherwise, goes to another kernel."""
        a, b, c, r = (region.graph.calls[n].spec for n in region.inputs)
        is_matmul = all(call.op.role is Contraction.MATRICES for call in region.calls[:3])
        if not is_matmul or b.ndim != 2 or a.ndim < 2 or {s.dtype for s in (a, b, c)} != {float32}:
            return otherwise
        if r.shape[1] != VECTORS:
            return otherwise
        rows, length, width = prod(a.shape[:-1]), a.shape[-1], b.shape[-1]

        def project(a: Any, b: Any, c: Any, r: Any) -> tuple[Any, ...]:
            try:
                left, made = _matrix(a, rows, length), _matrix(c, rows, width)
                folded = self._folded(_matrix(b, length, width), self._transposed(r))
                return (self._compared(made, self._transposed(r), left, folded),)
            except _LiesOtherwise:
                return otherwise(a, b, c, r)

        return project

    def _transposed(self, r: Any) -> Any:
        """The random vectors one after the other. There are few such matrices, and one at a time."""
        known, made = self._vectors
        if known is not r:
            made = np.ascontiguousarray(r.T)
            self._vectors = r, made
        return made

    def _folded(self, b: Any, vectors: Any) -> Any:
        """B·R, one vector after the other."""
        if b.strides[1] == 4:
            folded = np.empty((VECTORS + 1, b.shape[0]), np.float32)
            self._rows(b.shape[0], (b.strides[0], b.shape[1]), (0, 0))(b, vectors, b, b, folded)
            return folded
        folded = np.zeros((VECTORS, b.shape[0]), np.float32)
        self._columns(b.shape[0], b.strides[1], b.shape[1])(b, vectors, folded)
        return np.negative(folded, out=folded)

    def _compared(self, c: Any, vectors: Any, a: Any, folded: Any) -> Any:
        """The Gram matrix of C·R − A·(B·R), and behind it the sum of C's squares."""
        if c.strides[1] != 4:
            raise _LiesOtherwise
        made = np.empty((VECTORS + 1, len(c)), np.float32)
        if a.strides[1] == 4:
            self._rows(len(c), (c.strides[0], c.shape[1]), (a.strides[0], a.shape[1]))(c, vectors, a, folded, made)
        else:
            self._rows(len(c), (c.strides[0], c.shape[1]), (0, 0))(c, vectors, c, c, made)
            self._columns(len(c), a.strides[1], a.shape[1])(a, folded, made)
        difference = made[:VECTORS]
        sums = np.empty(VECTORS * VECTORS + 1)
        sums[:-1] = np.dot(difference, difference.T).ravel()
        sums[-1] = made[VECTORS].sum(dtype=np.float64)
        return sums

    # Calls of generated code

    @cached_property
    def _code(self) -> Code:
        compiler = self._runtime.compiler
        target = compiler.machine.target
        words = f"{package_digest()}\nprojections"
        return compiler.load_all([Part(words, lambda: projection_source(target), _FUNCTIONS)])[0]

    def _rows(self, rows: int, x: tuple[int, int], y: tuple[int, int]) -> Call:
        return self._call("rows", 5, (*x, *y, rows), -(-rows // ROWS), rows * (x[1] + y[1]))

    def _columns(self, rows: int, apart: int, length: int) -> Call:
        return self._call("columns", 3, (apart, length, 0, 0, rows), -(-rows // BLOCK), rows * length)

    def _call(self, name: str, arrays: int, sizes: tuple[int, ...], units: int, work: int) -> Call:
        known = self._calls.get((name, sizes))
        if known is None:
            chunk = -(-units // (4 * self._runtime.threads)) if work > _SPREADS else units
            known = self._calls[name, sizes] = self._runtime.call(
                Code({"kernel": self._code[name]}, self._code), arrays, sizes, count=units, chunk=max(1, chunk),
                needs=ALIGNED, lets_go=work >= _LETS_GO, fallback=_lies_otherwise,
            )  # fmt: skip
        return known


class _LiesOtherwise(Exception):
    """An array's elements lie as no generated code wants them."""


def _lies_otherwise(*arrays: Any) -> None:
    raise _LiesOtherwise


def _matrix(array: Any, rows: int, length: int) -> Any:
    """An array as a matrix with contiguous rows or columns, without a copy."""
    if array.ndim > 2:
        if not array.flags.c_contiguous:
            raise _LiesOtherwise
        array = array.reshape(rows, length)
    if 4 not in array.strides:
        raise _LiesOtherwise
    return array
