"""Matrix products of float32 arrays with bfloat16 numbers inside, for those who asked for it.

A product is computed so where the processor has an instruction for it and the work is worth packing; one that is
small, or a matrix with a vector, is left to its reference body, which keeps all bits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from ..._run.trace import trace
from ..._tensor.dtype import DType, float32
from ..._tensor.node import Shape
from ..._tensor.precision import Precision
from ..._tune.store import package_digest
from ...codegen.llvm.bfloat16_units import PANEL, STEP, BFloat16Unit, step_bytes
from ...codegen.llvm.half_blocking import USUAL, Blocking, HalfSizes, HalfWorkSplit, cut, gains_by_threads
from ...codegen.llvm.half_products import half_product_source
from ...codegen.llvm.half_words import PLAN, HalfProduct
from ...errors import CompileFailure
from .callables import ALIGNED, Call, Runtime
from .compiler import Code, Compiler, HostMachine, Part
from .operand_layout import Arrays, OperandLayout, laid
from .results import LARGE, Results, lined_up

PARTS: Final = {Precision.BF16: 1, Precision.BF16X2: 2, Precision.BF16X3: 3}
"""How many bfloat16 numbers stand for one of an operand."""
FEATURES: Final = {BFloat16Unit.TILES: ("amx-tile", "amx-bf16", "avx512bf16"), BFloat16Unit.DOTS: ("avx512bf16",)}
"""The processor features of a unit's code, by LLVM's names; tiles are packed with the other unit's instructions."""
_LEAST: Final = 1 << 15
"""Products of elements below which nothing is gained."""
_LEAST_LINES: Final = 8
"""Rows or columns below which packing the other operand costs more than the product."""
_MOST_KNOWN: Final = 1024
_MOST_SPARE: Final = 4
_SPARE: Final = 1 << 24
"""Bytes up to which a workspace is kept here; larger ones come from the pool of results, which gives way to others."""
_LETS_GO: Final = 1 << 20
"""Products of elements from which other Python threads may run meanwhile."""

_FUNCTIONS: Final = ("kernel", "keep")

Matmul = Callable[[Any, Any], Any]


def machine_for(unit: BFloat16Unit, machine: HostMachine) -> HostMachine:
    """The machine with the features that a unit needs, whether it reports them or not."""
    return machine.having(FEATURES[unit])


def _not_aligned(*arrays: Any) -> None:
    raise ValueError("expected arrays that are aligned to their elements")


class HalfProductCall:
    """A product of arrays of certain shapes and strides.

    >>> bound(a, b, *sides, out)  # doctest: +SKIP
    """

    def __init__(self, call: Call, plan: HalfWorkSplit, products: HalfProducts) -> None:
        self.call = call
        """Takes the workspace behind the others."""
        self.plan = plan
        self._products = products

    def __call__(self, *arrays: Any) -> None:
        """Of a, b, the sides and the result, all of the shapes and strides that this was made for."""
        work = self._products.take(self.plan.workspace)
        self.call(*arrays, work)
        self._products.give_back(work)


class HalfProducts:
    """Compiles and runs bfloat16 products for one machine."""

    precisions = frozenset(PARTS)

    def __init__(
        self, runtime: Runtime, unit: BFloat16Unit, results: Results, *, compiler: Compiler | None = None,
        blocking: Blocking = USUAL,
    ) -> None:  # fmt: skip
        """`compiler` makes code for the unit; one of its own, if none is given."""
        self.runtime = runtime
        self.unit = unit
        self.blocking = blocking
        self._compiler = compiler or Compiler(machine_for(unit, runtime.compiler.machine))
        self._results = results
        self._spare: list[Any] = []
        self._known: dict[Any, Matmul | None] = {}

    @property
    def identity(self) -> str:
        """The unit, and the processor that code is made for."""
        return f"{self.unit.name} {self._compiler.machine.features}"

    # Kernels

    def code(self, product: HalfProduct) -> Code:
        """The compiled functions of a product. Raises `CompileFailure`."""

        def write() -> str:
            return half_product_source(product, self.unit, self._compiler.machine.target)

        words = product.words
        if words is None:
            return self._compiler.load(write(), _FUNCTIONS)
        return self._compiler.load_all([Part(f"{package_digest()}\n{self.unit.name}\n{words}", write, _FUNCTIONS)])[0]

    def bound(
        self, product: HalfProduct, arrays: Arrays, *, kept: bool = False, threads: int | None = None,
        needs: int = ALIGNED, fallback: Callable[..., Any] = _not_aligned,
    ) -> HalfProductCall:  # fmt: skip
        """A product of arrays such as these, which must have some flags; others go to `fallback`. Raises
        `CompileFailure`.

        The result has elements. If `kept`, b is one matrix, and what is given for it when it is called comes from
        `packed`.
        """
        (out,) = arrays.outs
        if out.strides[-1] != out.itemsize and out.shape[-1] > 1:
            raise ValueError("the elements of a row of the result must lie side by side")
        where = laid(arrays)
        sizes = _sizes(product, where)
        if kept and not sizes.b_shared:
            raise ValueError("a stack of right operands cannot be kept")
        if threads is None:
            threads = self.runtime.threads if gains_by_threads(product, sizes) else 1
        plan = cut(product, sizes, self.blocking, threads, kept=kept)
        *sides, out_row = where.rows
        work = sizes.batches * sizes.m * sizes.n * sizes.k
        call = self.runtime.call(
            self.code(product), product.arrays + 1, [*self._words(plan, out_row), *sides, *where.offsets],
            count=1, chunk=1, needs=needs, lets_go=work >= _LETS_GO, fallback=fallback,
        )  # fmt: skip
        return HalfProductCall(call, plan, self)

    def packed(self, product: HalfProduct, b: Any) -> Any:
        """A right operand, packed as products with `kept` want it."""
        k, n = b.shape
        sizes = HalfSizes(1, PANEL, n, k, k, 1, *_elements(product.b, *b.strides[::-1]), True, True)
        plan = cut(product, sizes, self.blocking, self.runtime.threads)
        to = self._memory(-(-n // PANEL) * -(-k // STEP) * step_bytes(product.parts))
        code = self.code(product)
        keep = Code({"kernel": code["keep"]}, code)
        words = [*self._words(plan, 0), *[0] * (len(product.sides) + product.arrays)]
        call = self.runtime.call(keep, 2, words, count=1, chunk=1, needs=ALIGNED, fallback=_not_aligned)
        call(b, to)
        return to

    def _words(self, plan: HalfWorkSplit, c_row: int) -> list[int]:
        runtime = self.runtime
        more = {"pool": runtime.pool if plan.threads > 1 else 0, "spread": runtime.code["spread"], "c_row": c_row}
        words = plan.words | more
        return [words[name] for name in PLAN]

    # Workspace: kept, because fresh memory costs more than small products

    def take(self, size: int) -> Any:
        """Memory of at least so many bytes, which nobody else has."""
        if size <= _SPARE:
            try:
                work = self._spare.pop()
            except IndexError:
                return self._memory(size)
            if work.nbytes >= size:
                return work
        return self._memory(size)

    def give_back(self, work: Any) -> None:
        """Memory that is no longer needed."""
        if work.nbytes <= _SPARE and len(self._spare) < _MOST_SPARE:
            self._spare.append(work)

    def _memory(self, size: int) -> Any:
        if size >= LARGE:
            return self._results.new((size,), np.uint8, size)
        return lined_up(size)

    # Products of arrays

    def product(self, precision: Precision, reference: Matmul, *, is_kept: bool = False) -> Matmul:
        """A function that multiplies two arrays at a precision, as NumPy defines it.

        What is not worth it goes to the `reference`. `is_kept` says that the second is the same matrix every time: it
        is packed once.
        """
        parts = PARTS[precision]
        kept: list[Any] = []

        def multiply(a: Any, b: Any) -> Any:
            known = self._known_for(parts, a, b, kept=is_kept)
            if known is None or not (a.flags.aligned and b.flags.aligned):
                return reference(a, b)
            if not is_kept:
                return known(a, b)
            if not kept:
                kept.append(self.packed(HalfProduct(parts=parts), b))
            return known(a, kept[0])

        return multiply

    def _known_for(self, parts: int, a: Any, b: Any, *, kept: bool) -> Matmul | None:
        """The product of arrays such as these; `None` if it is not worth it, or LLVM fails on it."""
        key = (parts, kept, a.shape, a.strides, a.dtype, b.shape, b.strides, b.dtype)
        known = self._known.get(key, ...)
        if known is not ...:
            return known
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        is_odd = any(x.dtype != np.float32 or any(s % 4 for s in x.strides) for x in (a, b))
        made = None
        if not is_odd and is_worth(a.shape, b.shape, kept=kept):
            try:
                made = self._multiplier(HalfProduct(parts=parts), a, b, kept=kept)
            except CompileFailure as failure:
                trace.failed("matmul", "cpu", failure)
        self._known[key] = made
        return made

    def _multiplier(self, product: HalfProduct, a: Any, b: Any, *, kept: bool) -> Matmul:
        left = np.atleast_2d(a)
        stack = np.broadcast_shapes(left.shape[:-2], b.shape[:-2])
        like = np.empty((*stack, left.shape[-2], b.shape[-1]), np.float32)
        bound = self.bound(product, Arrays(left, b, (), (), (like,)), kept=kept)
        shape = (*stack, *a.shape[-2:-1], b.shape[-1])

        def multiply(a: Any, b: Any) -> Any:
            out = self._results.any(shape, float32.numpy)
            bound(a, b, out)
            return out

        return multiply


def is_worth(a: Shape, b: Shape, *, kept: bool) -> bool:
    """Whether a product of arrays of these shapes gains by it. A prior, until it is measured."""
    m, n = (a[-2] if len(a) > 1 else 1), (b[-1] if len(b) > 1 else 1)
    if len(b) <= 2:  # all matrices of a stack are one
        m = prod(a[:-1])
    batch = prod(np.broadcast_shapes(a[:-2], b[:-2])) if len(b) > 2 else 1
    enough = m >= _LEAST_LINES or kept
    return enough and n >= _LEAST_LINES and batch * m * n * a[-1] >= _LEAST


def _sizes(product: HalfProduct, where: OperandLayout) -> HalfSizes:
    """The sizes of arrays that lie so."""
    s = where.sizes
    starts = np.reshape(where.offsets, (s.batches, product.arrays))
    shared = [bool(np.all(starts[:, n] == starts[:1, n])) for n in range(2)]
    left, right = _elements(product.a, s.a_m, s.a_k), _elements(product.b, s.b_n, s.b_k)
    return HalfSizes(s.batches, s.m, s.n, s.k, *left, *right, *shared)


def _elements(dtype: DType, line: int, along: int) -> tuple[int, int]:
    """Bytes as elements. Raises `CompileFailure` if they are not: such operands are copied."""
    if line % dtype.itemsize or along % dtype.itemsize:
        raise CompileFailure(f"expected strides that are multiples of an element, got {(line, along)}")
    return line // dtype.itemsize, along // dtype.itemsize
