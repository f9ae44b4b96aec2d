"""Products by NumPy's BLAS on our own threads, as calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from ..._tensor.dtype import DType
from ...codegen.llvm.blas_kernels import NOT_TRANSPOSED, TRANSPOSED, library_source
from ...codegen.llvm.blocking import FLOATS, ProductSizes, shared, whole_lines
from ...codegen.llvm.product import Product
from ...codegen.llvm.register_tiles import LINE
from .blas import Blas
from .callables import ALIGNED
from .compiler import Part
from .operand_layout import Arrays, OperandLayout, laid
from .product_calls import Objects, ProductCall

_HOLD: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Library:
    """NumPy's BLAS, for one machine."""

    def __init__(self, objects: Objects, blas: Blas) -> None:
        self._objects = objects
        self._runtime = objects.runtime
        self._blas = blas

    def reads(self, product: Product, sizes: ProductSizes) -> bool:
        """Whether the library can read operands that lie so."""
        return None not in _orders(product, sizes)

    def bound(
        self, product: Product, arrays: Arrays, *, threads: int | None = None, needs: int = ALIGNED,
        fallback: Callable[..., Any],
    ) -> ProductCall | None:  # fmt: skip
        """A product of arrays such as these, which must have some flags; others go to `fallback`. Nothing, if the
        library cannot read them where they are. Raises `CompileFailure`."""
        where = laid(arrays)
        exchanged: dict[str, int] = {}
        if where.sizes.m == 1 < where.sizes.n and product.before is None and product.after is None:
            where, exchanged = _transposed(where, product), {"left": product.right, "right": 0}
        sizes = where.sizes
        left, right = _orders(product, sizes)
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
            "transposed_a": left[0], "row_a": left[1], "transposed_b": right[0], "row_b": right[1],
            "apply": self._blas.apply[product.dtype] if sizes.n == 1 else 0,
        } | exchanged  # fmt: skip
        kernel, needed = codes["library"]["kernel"], list(codes.values())
        room = LINE + slot * (threads * FLOATS.chunks if plan["by_batch"] else 1)
        made = self._objects.kernel(product, where, plan, [], kernel, needed, room)
        return self._objects.call(made, needs, fallback)

    def _cut(self, product: Product, sizes: ProductSizes, threads: int) -> tuple[dict[str, int], int]:
        """How the work is cut, and the bytes that a product needs beside its arrays."""
        item = product.dtype.itemsize
        threads, by_batch = shared(sizes.work, sizes.batches, threads)
        share = -(-sizes.m // (1 if by_batch else threads))
        room = whole_lines(sizes.m * sizes.k * item) if product.before is not None else 0
        slot = room + (whole_lines(sizes.m * sizes.n * item) if product.holder is None else 0)
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


def _transposed(where: OperandLayout, product: Product) -> OperandLayout:
    """A row times a matrix as the transposed matrix times a column, so that threads can share the work."""
    s = where.sizes
    sizes = ProductSizes(s.batches, s.n, s.m, s.k, s.b_n, s.b_k, s.a_k, s.a_m)
    return replace(where, sizes=sizes, rows=[product.dtype.itemsize])


_MatrixOrder = tuple[int, int]
"""How a matrix lies, in the library's words, and the elements from one line to the next."""


def _orders(product: Product, sizes: ProductSizes) -> tuple[_MatrixOrder | None, _MatrixOrder | None]:
    """How the operands lie; a left one that is copied first lies as it should."""
    item = product.dtype.itemsize
    left = _order(sizes.a_m, sizes.a_k, sizes.m, sizes.k, item)
    right = _order(sizes.b_k, sizes.b_n, sizes.k, sizes.n, item)
    return left if product.before is None else (NOT_TRANSPOSED, sizes.k), right


def _order(across: int, along: int, rows: int, columns: int, item: int) -> _MatrixOrder | None:
    for word, line, step, length, count in (
        (NOT_TRANSPOSED, across, along, columns, rows), (TRANSPOSED, along, across, rows, columns),
    ):  # fmt: skip
        if count == 1:
            line = length * item  # there is no next one
        if (step == item or length == 1) and line % item == 0 and line >= length * item:
            return word, line // item
    return None
