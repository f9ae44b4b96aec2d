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
from ..._tensor.dtype import float32
from ..._tensor.node import Shape
from ..._tensor.precision import Precision
from ..._tune.projection import Projected
from ...codegen.llvm.bfloat16_units import BFloat16Unit
from ...codegen.llvm.blocking import BlockingPolicy
from ...codegen.llvm.fused_projections import row_bytes
from ...codegen.llvm.product import Product
from ...errors import CompileFailure
from .callables import Runtime
from .compiler import Compiler, HostMachine
from .operand_layout import Arrays, laid
from .product_calls import GeneratedProducts, Objects, ProductCall
from .results import Results
from .workspace import Spare

PARTS: Final = {Precision.BF16: 1, Precision.BF16X2: 2, Precision.BF16X3: 3}
"""How many bfloat16 numbers stand for one of an operand."""
FEATURES: Final = {BFloat16Unit.TILES: ("amx-tile", "amx-bf16", "avx512bf16"), BFloat16Unit.DOTS: ("avx512bf16",)}
"""The processor features of a unit's code, by LLVM's names; tiles are packed with the other unit's instructions."""
_LEAST: Final = 1 << 15
"""Products of elements below which nothing is gained."""
_LEAST_LINES: Final = 8
"""Rows or columns below which packing the other operand costs more than the product."""
_MOST_KNOWN: Final = 1024

Matmul = Callable[[Any, Any], Any]


def machine_for(unit: BFloat16Unit, machine: HostMachine) -> HostMachine:
    """The machine with the features that a unit needs, whether it reports them or not."""
    return machine.having(FEATURES[unit])


class HalfProducts:
    """Compiles and runs bfloat16 products for one machine."""

    precisions = frozenset(PARTS)

    def __init__(
        self, runtime: Runtime, unit: BFloat16Unit, results: Results, *, compiler: Compiler | None = None,
        policy: BlockingPolicy | None = None,
    ) -> None:  # fmt: skip
        """`compiler` makes code for the unit; one of its own, if none is given."""
        self.unit = unit
        self._compiler = compiler or Compiler(machine_for(unit, runtime.compiler.machine))
        self.generated = GeneratedProducts(Objects(runtime, self._compiler), unit, policy)
        self._results = results
        self._spare = Spare()
        self._known: dict[Any, Matmul | None] = {}

    @property
    def identity(self) -> str:
        """The unit, and the processor that code is made for."""
        return f"{self.unit.name} {self._compiler.machine.features}"

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
                kept.append(self.generated.packed(Product(float32, parts=parts), b))
            return known(a, kept[0])

        return multiply

    def projected(self, precision: Precision, vectors: int, draw: Callable[[int], Any]) -> Projected:
        """A function that multiplies two arrays at a precision, and projects the product on some random vectors.

        `draw` gives the vectors of a length. The function gives `None` for arrays that are not one product of matrices
        with contiguous rows or columns.
        """
        product = Product(float32, parts=PARTS[precision], projections=vectors)
        drawn: dict[int, Any] = {}
        known: dict[Any, ProductCall | None] = {}

        def multiply(a: Any, b: Any) -> tuple[Any, Any] | None:
            key = (a.shape, a.strides, b.shape, b.strides)
            if key not in known:
                known[key] = self._projected_call(product, a, b)
            bound = known[key]
            if bound is None or not (a.flags.aligned and b.flags.aligned):
                return None
            rows = prod(a.shape[:-1])
            if rows not in drawn:
                drawn[rows] = random_rows(draw(rows))
            out = self._results.any((*a.shape[:-1], b.shape[-1]), float32.numpy)
            sums = np.empty(3)
            workspace = self._spare.take(bound.workspace)
            bound.call(a, b, out, drawn[rows], sums, workspace)
            self._spare.give_back(workspace)
            return out, sums

        return multiply

    def _projected_call(self, product: Product, a: Any, b: Any) -> ProductCall | None:
        """A projected product of arrays such as these."""
        if a.ndim < 2 or b.ndim != 2 or any(x.dtype != np.float32 or 4 not in x.strides[-2:] for x in (a, b)):
            return None
        arrays = Arrays(a, b, (), (), (np.empty((*a.shape[:-1], b.shape[-1]), np.float32),))
        if laid(arrays).sizes.batches != 1:
            return None
        try:
            return self.generated.bound(product, arrays)
        except CompileFailure as failure:
            trace.failed("matmul", "cpu", failure)
            return None

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
                made = self._multiplier(Product(float32, parts=parts), a, b, kept=kept)
            except CompileFailure as failure:
                trace.failed("matmul", "cpu", failure)
        self._known[key] = made
        return made

    def _multiplier(self, product: Product, a: Any, b: Any, *, kept: bool) -> Matmul:
        left = np.atleast_2d(a)
        stack = np.broadcast_shapes(left.shape[:-2], b.shape[:-2])
        like = np.empty((*stack, left.shape[-2], b.shape[-1]), np.float32)
        bound = self.generated.bound(product, Arrays(left, b, (), (), (like,)), kept=kept)
        shape = (*stack, *a.shape[-2:-1], b.shape[-1])

        def multiply(a: Any, b: Any) -> Any:
            out = self._results.any(shape, float32.numpy)
            bound.call(a, b, out, self._results.any((bound.workspace,), np.dtype(np.uint8)))
            return out

        return multiply


def random_rows(vectors: Any) -> Any:
    """Random vectors as rows that are `row_bytes` apart."""
    made = np.zeros((vectors.shape[1], row_bytes(len(vectors)) // 4), np.float32)
    made[:, : len(vectors)] = vectors.T
    return made


def is_worth(a: Shape, b: Shape, *, kept: bool) -> bool:
    """Whether a product of arrays of these shapes gains by it. A prior, until it is measured."""
    m, n = (a[-2] if len(a) > 1 else 1), (b[-1] if len(b) > 1 else 1)
    if len(b) <= 2:  # all matrices of a stack are one
        m = prod(a[:-1])
    batch = prod(np.broadcast_shapes(a[:-2], b[:-2])) if len(b) > 2 else 1
    enough = m >= _LEAST_LINES or kept
    return enough and n >= _LEAST_LINES and batch * m * n * a[-1] >= _LEAST
