"""Products by NumPy's BLAS on our own threads, as calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ..._tensor.dtype import DType
from ...codegen.llvm.blas_kernels import AS_IT_IS, TURNED, library_source
from ...codegen.llvm.blocking import ProductSizes
from ...codegen.llvm.product import Product
from ...codegen.llvm.register_tiles import LINE
from .blas import Blas
from .callables import ALIGNED
from .compiler import Part
from .operand_layout import Arrays, OperandLayout, laid
from .product_calls import Objects, ProductCall

_SINGLE: Final = 1 << 17
"""Products of elements up to which one thread is faster than two."""
_SHARES: Final = 4
"""Chunks of a stack for each thread."""
_HOLD: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Library:
    """NumPy's BLAS, for one machine."""

    def __init__(self, objects: Objects, blas: Blas) -> None:
        self._objects = objects
        self._runtime = objects.runtime
        self._blas = blas

    def reads(self, product: Product, sizes: ProductSizes) -> bool:
        """Whether the library can read operands that lie so."""
        return None not in _lies(product, sizes)

    def bound(
        self, product: Product, arrays: Arrays, *, threads: int | None = None, needs: int = ALIGNED,
        fallback: Callable[..., Any],
    ) -> ProductCall | None:  # fmt: skip
        """A product of arrays such as these, which must have some flags; others go to `fallback`. Nothing, if the
        library cannot read them where they are. Raises `CompileFailure`."""
        where = laid(arrays)
        turned: dict[str, int] = {}
        if where.sizes.m == 1 < where.sizes.n and product.before is None and product.after is None:
            where, turned = _turned(where, product), {"left": product.right, "right": 0}
        sizes = where.sizes
        left, right = _lies(product, sizes)
        if left is None or right is None:
            return None
        threads = threads or self._runtime.threads
        plan, slot = self._cut(product, sizes, threads)
        parts = {"library": self._part(product.dtype)}
        if product.before is not None:
            parts["lines"] = self._objects.lines(product)
        if product.after is not None:
            parts["finish"] = self._objects.finish(product)
        codes = self._objects.made(parts)
        plan |= {name: codes[name][name] for name in ("lines", "finish") if name in parts} | {
            "multiply": self._blas.multiply[product.dtype], "guard": self._blas.guard,
            "get_threads": self._blas.get_threads, "set_threads": self._blas.set_threads,
            "turned_a": left[0], "row_a": left[1], "turned_b": right[0], "row_b": right[1],
            "apply": self._blas.apply[product.dtype] if sizes.n == 1 else 0,
        } | turned  # fmt: skip
        kernel, needed = codes["library"]["kernel"], list(codes.values())
        call = self._objects.call(product, where, plan, [], kernel, needed, needs, fallback)
        return ProductCall(call, LINE + slot * (threads * _SHARES if plan["by_batch"] else 1))

    def _cut(self, product: Product, sizes: ProductSizes, threads: int) -> tuple[dict[str, int], int]:
        """How the work is cut, and the bytes that a product needs beside its arrays."""
        item = product.dtype.itemsize
        threads = 1 if sizes.work * sizes.batches <= _SINGLE else threads
        by_batch = 0
        if sizes.batches > 1 and (sizes.batches >= 2 * threads or sizes.work <= _SINGLE):
            by_batch = -(-sizes.batches // (threads * _SHARES))
        share = -(-sizes.m // (1 if by_batch else threads))
        room = _lines(sizes.m * sizes.k * item) if product.before is not None else 0
        slot = room + (_lines(sizes.m * sizes.n * item) if product.holder is None else 0)
        plan = {
            "pool": self._runtime.pool if threads > 1 else 0, "copies_a": int(product.before is not None),
            "in_place": int(product.holder is not None), "share": share, "units": -(-sizes.m // share),
            "by_batch": by_batch, "room": room, "slot": slot,
        }  # fmt: skip
        return plan, slot

    @contextmanager
    def held(self, dtype: DType) -> Iterator[None]:
        """Have the library compute on the thread that calls it; by the code for products of a dtype."""
        code = self._objects.made({"library": self._part(dtype)})["library"]
        words = self._blas.guard, self._blas.get_threads, self._blas.set_threads
        _HOLD(code["hold"])(*words)
        try:
            yield
        finally:
            _HOLD(code["release"])(*words)

    def _part(self, dtype: DType) -> Part:
        target, long = self._objects.target, self._blas.long
        return self._objects.part(
            ("library", dtype.name, long), lambda: library_source(target, dtype, long=long), "kernel", "hold", "release"
        )


def _turned(where: OperandLayout, product: Product) -> OperandLayout:
    """A row times a matrix as the transposed matrix times a column, so that threads can share the work."""
    s = where.sizes
    sizes = ProductSizes(s.batches, s.n, s.m, s.k, s.b_n, s.b_k, s.a_k, s.a_m)
    return replace(where, sizes=sizes, rows=[product.dtype.itemsize])


_Lie = tuple[int, int]
"""How a matrix lies, in the library's words, and the elements from one line to the next."""


def _lies(product: Product, sizes: ProductSizes) -> tuple[_Lie | None, _Lie | None]:
    """How the operands lie; a left one that is copied first lies as it should."""
    item = product.dtype.itemsize
    left = (AS_IT_IS, sizes.k) if product.before is not None else _lie(sizes.a_m, sizes.a_k, sizes.m, sizes.k, item)
    return left, _lie(sizes.b_k, sizes.b_n, sizes.k, sizes.n, item)


def _lie(across: int, along: int, rows: int, columns: int, item: int) -> _Lie | None:
    for turned, line, step, length, count in (
        (AS_IT_IS, across, along, columns, rows), (TURNED, along, across, rows, columns),
    ):  # fmt: skip
        if count == 1:
            line = length * item  # there is no next one
        if (step == item or length == 1) and line % item == 0 and line >= length * item:
            return turned, line // item
    return None


def _lines(size: int) -> int:
    return (size + LINE - 1) // LINE * LINE
