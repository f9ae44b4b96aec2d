"""Matrix products of arrays: generated kernels, or NumPy's BLAS, whichever is faster here.

Which one is, depends on sizes and layouts, and on whose BLAS it is: the first time that a product of some class comes,
both are timed, and the faster one serves that class from then on.

NumPy's BLAS has threads of its own. A product is done by the one or by the others, never by both; but nothing here
waits for theirs to rest before ours begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from threading import Lock
from time import perf_counter
from typing import Any, Final

import numpy as np

from ...codegen.llvm.blocking import Cut, Sizes, cut
from ...codegen.llvm.nest import Target
from ...codegen.llvm.products import Product, plan_words, product_source
from ...codegen.llvm.tiles import LINE, TileShape, tile_shape
from ...dtype import DType, float32, float64
from .caches import caches
from .compiler import Code
from .native import ALIGNED, Call, Runtime

_DTYPES: Final[dict[Any, DType]] = {np.dtype(np.float32): float32, np.dtype(np.float64): float64}
_ROUNDS: Final = 3
"""How often each way is timed."""
_PATIENCE: Final = 1 << 30
"""Products of elements, for arrays of certain shapes and strides, from which it pays to compile and to race."""
_MOST_KNOWN: Final = 4096
_MOST_SPARE: Final = 4
_LETS_GO: Final = 1 << 17
"""Products of elements from which other Python threads may run meanwhile."""

Matmul = Callable[[Any, Any], Any]


class Bound:
    """A product of arrays of certain shapes and strides.

    >>> bound(a, b, *sides, out)  # doctest: +SKIP
    """

    def __init__(self, call: Call, plan: Cut, table: Any, products: Products) -> None:
        self._call = call
        self._table = table
        self._products = products
        self.plan = plan

    def __call__(self, *arrays: Any) -> None:
        """Of a, b, the sides and the result, all of the shapes and strides that this was made for."""
        if not self.plan.workspace:
            self._call(*arrays, self._table, self._table)
            return
        work = self._products.take(self.plan.workspace)
        self._call(*arrays, self._table, work)
        self._products.give_back(work)


class Products:
    """What makes and runs products, for one machine."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        machine = runtime.compiler.machine
        self._target = Target(machine.vector_bytes, machine.attributes, machine.converts_halves)
        is_x86 = machine.triple.startswith(("x86_64", "i686"))
        self._registers = 32 if machine.vector_bytes == 64 or not is_x86 else 16
        self._codes: dict[Product, Code] = {}
        self._spare: list[Any] = []
        self._known: dict[Any, Matmul] = {}
        self._done: dict[Any, int] = {}
        self._faster: dict[Any, bool] = {}
        self._lock = Lock()

    # Kernels

    def shape(self, dtype: DType) -> TileShape:
        """The tiles of products of a dtype."""
        return tile_shape(self._target, dtype, self._registers)

    def code(self, product: Product) -> Code:
        """The compiled functions of a product. Raises `CompileFailure`."""
        code = self._codes.get(product)
        if code is None:
            source = product_source(product, self._target, self._registers)
            code = self._codes[product] = self.runtime.compiler.load(source, ("kernel", "pack"))
        return code

    def bound(
        self, product: Product, a: Any, b: Any, sides: Sequence[Any], out: Any, *, kept: bool = False,
        threads: int | None = None,
    ) -> Bound:  # fmt: skip
        """A product for arrays such as these: stacks of matrices that broadcast to the stack of `out`.

        The result's rows lie one behind the other. Sides have the shape of the result, or a size of one where they
        are repeated. If `kept`, what is given for b when it is called comes from `packed`.
        """
        if out.strides[-1] != out.itemsize and out.shape[-1] > 1:
            raise ValueError("the elements of a row of the result must lie side by side")
        batch = out.shape[:-2]
        m, k = a.shape[-2:]
        n = b.shape[-1]
        stacked = [np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b, *sides, out)]
        sizes = Sizes(prod(batch), m, n, k, *a.strides[-2:], *b.strides[-2:])
        plan = cut(product, self.shape(product.dtype), sizes, caches(), threads or self.runtime.threads, kept=kept)
        table = _offsets(batch, [x.strides[:-2] for x in stacked])
        words = self._words(sizes, plan, out.strides[-2], kept=kept)
        rows = [0 if x.shape[-2] == 1 and m > 1 else x.strides[-2] for x in sides]
        call = self.runtime.call(
            self.code(product), 5 + len(sides), plan_words(words, rows), count=1, chunk=1, needs=ALIGNED,
            lets_go=sizes.batches * m * n * k >= _LETS_GO, fallback=_not_aligned,
        )  # fmt: skip
        return Bound(call, plan, table, self)

    def packed(self, product: Product, b: Any) -> Any:
        """A right operand, copied as products with `kept` want it."""
        k, n = b.shape
        shape = self.shape(product.dtype)
        sizes = Sizes(1, 0, n, k, 0, 0, *b.strides)
        plan = cut(product, shape, sizes, caches(), 1)
        to = self._aligned(-(-n // shape.columns) * shape.columns * max(1, k) * b.itemsize)
        words = self._words(sizes, plan, 0, kept=False)
        code = self.code(product)
        pack = Code({"kernel": code["pack"]}, code)
        call = self.runtime.call(pack, 2, plan_words(words, ()), count=1, chunk=1, needs=ALIGNED, fallback=_not_aligned)
        call(b, to)
        return to

    def _words(self, sizes: Sizes, plan: Cut, c_m: int, *, kept: bool) -> dict[str, int]:
        return {
            "pool": self.runtime.pool if plan.threads > 1 else 0, "spread": self.runtime.code["spread"],
            "batches": sizes.batches, "m": sizes.m, "n": sizes.n, "k": sizes.k, "depth": plan.depth,
            "blocks": max(1, -(-sizes.k // plan.depth)), "band": plan.band, "tall": plan.tall, "wide": plan.wide,
            "a_m": sizes.a_m, "a_k": sizes.a_k, "b_k": sizes.b_k, "b_n": sizes.b_n, "c_m": c_m,
            "copies_a": int(plan.copies_a), "copies_b": int(plan.copies_b), "kept_b": int(kept),
            "by_batch": plan.by_batch, "room": plan.room, "slot": plan.slot,
        }  # fmt: skip

    # Workspace: kept, because fresh memory costs more than small products

    def take(self, size: int) -> Any:
        """Memory of at least so many bytes, which nobody else has."""
        try:
            work = self._spare.pop()
        except IndexError:
            return self._aligned(size)
        return work if work.nbytes >= size else self._aligned(size)

    def give_back(self, work: Any) -> None:
        """Memory that is no longer needed."""
        if len(self._spare) < _MOST_SPARE:
            self._spare.append(work)

    @staticmethod
    def _aligned(size: int) -> Any:
        raw = np.empty(size + LINE, np.uint8)
        return raw[-raw.ctypes.data % LINE :]

    # Products of arrays

    def matmul(self, a: Any, b: Any) -> Any:
        """The product, as NumPy defines it, of arrays of one dtype."""
        key = (a.shape, a.strides, b.shape, b.strides, a.dtype)
        known = self._known.get(key)
        if known is None:
            if len(self._known) + len(self._done) >= _MOST_KNOWN:
                self._known.clear()
                self._done.clear()
            done = self._done[key] = self._done.get(key, 0) + max(a.size * b.shape[-1], b.size * a.shape[0])
            if done < _PATIENCE:
                return by_numpy(a, b)
            known = self._known[key] = self._chosen(a, b)
        return known(a, b)

    def _chosen(self, a: Any, b: Any) -> Matmul:
        """The faster way for such arrays."""
        generated = self.generated(a, b)
        if generated is None:
            return by_numpy
        kind = _kind(a, b)
        with self._lock:
            if kind not in self._faster:
                self._faster[kind] = _seconds(generated, a, b) < _seconds(by_numpy, a, b)
        return generated if self._faster[kind] else by_numpy

    def generated(self, a: Any, b: Any) -> Matmul | None:
        """The product of arrays such as these by a generated kernel, if there is one."""
        dtype = _DTYPES.get(a.dtype)
        if dtype is None or a.dtype != b.dtype or not (a.flags.aligned and b.flags.aligned):
            return None
        wide, deep = _matrices(a, b)
        batch = np.broadcast_shapes(wide.shape[:-2], deep.shape[:-2])
        full = (*batch, wide.shape[-2], deep.shape[-1])
        if not prod(full):
            return None
        shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *a.shape[-2:-1], *b.shape[1:][-1:])
        bound = self.bound(Product(dtype), wide, deep, (), np.empty(full, a.dtype))

        def product(a: Any, b: Any) -> Any:
            out = np.empty(shape, a.dtype)
            bound(a, b, out)
            return out

        return product


def by_numpy(a: Any, b: Any) -> Any:
    """The product by NumPy; of a stack with one matrix, all rows at once, where NumPy would call BLAS for each."""
    if a.ndim > 2 and b.ndim == 2:
        return np.matmul(a.reshape(prod(a.shape[:-1]), a.shape[-1]), b).reshape(*a.shape[:-1], b.shape[-1])
    return np.matmul(a, b)


def _matrices(a: Any, b: Any) -> tuple[Any, Any]:
    """Vectors as matrices; a stack of the left alone as one matrix, if its rows are evenly apart."""
    a = a[None, :] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 else b
    if a.ndim > 2 and b.ndim == 2:
        rows = a.view()
        try:
            rows.shape = (prod(a.shape[:-1]), a.shape[-1])
        except AttributeError:
            return a, b
        return rows, b
    return a, b


def _offsets(batch: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> Any:
    """Where each matrix of a stack begins in each array, in bytes."""
    indices = np.indices(batch, np.int64).reshape(len(batch), prod(batch))
    apart = np.array(strides, np.int64).reshape(len(strides), len(batch))
    return np.ascontiguousarray((apart @ indices).T)


def _kind(a: Any, b: Any) -> tuple[Any, ...]:
    """The class of a product: sizes within a factor of about 1.4, and how the matrices lie."""
    a, b = _matrices(a, b)
    numbers = (prod(a.shape[:-2]), prod(b.shape[:-2]), *a.shape[-2:], b.shape[-1])
    sizes = tuple(round(2 * float(np.log2(max(1, n)))) for n in numbers)
    return (a.dtype, *sizes, *[x.itemsize in x.strides[-1:] for x in (a, b)])


def _seconds(product: Matmul, a: Any, b: Any) -> float:
    """The best of some rounds, after one that is not counted."""
    product(a, b)
    best = float("inf")
    for _ in range(_ROUNDS):
        start = perf_counter()
        product(a, b)
        best = min(best, perf_counter() - start)
    return best


def _not_aligned(*arrays: Any) -> None:
    raise ValueError("expected arrays that are aligned to their elements")
