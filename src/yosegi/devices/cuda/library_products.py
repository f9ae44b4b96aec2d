"""Products through cuBLAS: of matrices, of stacks of them, and of tensors whose indices come down to that; and those
over windows, through cuDNN. Floats are split into sums of 16-bit ones for products that keep more bits than one has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product as combinations
from math import prod
from typing import Final

import numpy as np

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.dtype import DType, bfloat16, complex128, float16, float32, float64
from ..._tensor.node import Call, Shape
from ..._tensor.precision import Precision
from ..._tensor.role import Contraction
from ...codegen.c.builder import SizeParameters
from ...codegen.c.copies import strides_of
from ...codegen.c.dialect import Dialect, Target
from ...codegen.c.kernel_source import NAME
from ...codegen.c.kernel_source import Kernel as Generated
from ..kernel.launching import arguments_of
from .blas import DATA_TYPES, SINGLE, Batch, Blas, Multiplied
from .convolutions import Convolutions
from .dialect import CUDA
from .launch import Launch, Queue, transposed
from .memory import Data

_DOUBLE: Final = 70
_TF32: Final = 77
_LARGEST: Final = 2**31 - 1
SPLIT_TERMS: Final[dict[Precision, tuple[tuple[int, int], ...]]] = {
    Precision.F16: ((0, 0),),
    Precision.BF16: ((0, 0),),
    Precision.BF16X2: ((1, 0), (0, 1), (0, 0)),
    Precision.BF16X3: ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)),
}
"""The products of parts that are summed, least significant first; part 0 has the leading bits."""


def split_kernel(size: int, count: int, dtype: DType, dialect: Dialect, target: Target) -> Generated:
    """The kernel that takes floats apart: each part is the rest before it, rounded to a 16-bit float."""
    sizes = SizeParameters(size, dialect)
    n, ctype = sizes(size), sizes.ctype
    pointers = [dialect.global_pointer.format(const="const ", type="float", name="a")]
    pointers += [dialect.global_pointer.format(const="", type="unsigned short", name=f"b{i}") for i in range(count)]
    lines = [f"const {ctype} at = {dialect.global_id};", f"if (at >= {n}) return;", "float rest = a[at];"]
    for i in range(count):
        lines += [
            f"const unsigned short p{i} = {dialect.half_bits[dtype].format(x='rest')};",
            f"b{i}[at] = p{i};",
        ]
        if i + 1 == count:
            break
        lines += [
            # Of a rest that is not finite nothing is left: the products of the other parts must not make it a NaN.
            f"rest = rest - rest == 0.0f ? rest - bits_as<float>((unsigned int)p{i} << 16) : 0.0f;",
        ]
    head = f"{dialect.kernel} {NAME}({', '.join([*pointers, *sizes.parameters()])})"
    source = "\n".join([dialect.header, head, "{", *lines, "}", ""])
    return Generated(source, tuple(sizes.values.values()), sizes.is_long, size, target.group)


@dataclass(frozen=True, slots=True)
class _Product:
    """C[batch, m, n] = A[batch, m, k] B[batch, k, n]; per operand the stack's shape, 1 where it is repeated."""

    batch: Shape
    left: Shape
    right: Shape
    m: int
    n: int
    k: int
    left_order: tuple[int, ...] | None = None
    """The order of axes in which the left operand has to be copied first, `None` for as it is."""
    right_order: tuple[int, ...] | None = None
    result_order: tuple[int, ...] | None = None
    """The order of axes of the result, from `result_shape`; `None` for as it is."""
    result_shape: Shape = ()


class LibraryProducts:
    """The products of one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.convolutions = Convolutions(queue)

    @cached_property
    def blas(self) -> Blas:
        """Opened when the first product is compiled."""
        return Blas(self._queue)

    def refusal(self, call: Call) -> str | None:
        """Why there is no product for a call, or `None`."""
        if call.op.role is Contraction.WINDOWS:
            return self.convolutions.refusal(call)
        if not isinstance(call.op.role, Contraction):
            return f"no CUDA kernel for {call.op.name}"
        if call.spec.dtype not in DATA_TYPES:
            return f"cuBLAS has no product of {call.spec.dtype.name}"
        made = _product(call)
        if made is None:
            return f"the indices {call.attrs['subscripts']} are more than a product of matrices"
        return None if max(made.m, made.n, made.k, prod(made.batch)) <= _LARGEST else "more rows than cuBLAS counts"

    def compiled(self, region: Region) -> Kernel:
        """The product of a region, at its precision."""
        if region.calls[-1].op.role is Contraction.WINDOWS:
            return self.convolutions.compiled(region)
        queue, memory = self._queue, self._queue.memory
        call = region.calls[-1]
        spec, made = call.spec, _product(call)
        assert made is not None
        arguments = arguments_of(region, memory)
        if not (spec.size and made.k):
            zeros = np.zeros(spec.shape, spec.dtype.numpy)
            return lambda *data: (memory.from_host(zeros),)
        before = [transposed(queue, call.inputs[n].shape, order, spec.dtype)
                  for n, order in enumerate((made.left_order, made.right_order))]  # fmt: skip
        after = transposed(queue, made.result_shape, made.result_order, spec.dtype)
        run = self._multiplied(made, spec.dtype, region.precision)

        def kernel(*data: Data) -> tuple[Data, ...]:
            left, right = (transpose(operand) for transpose, operand in zip(before, arguments(data), strict=True))
            result = memory.new(spec.shape, spec.dtype)
            run(left, right, result)
            return (after(result).reshaped(spec.shape),)

        return kernel

    def _multiplied(self, made: _Product, dtype: DType, precision: Precision) -> Callable[[Data, Data, Data], None]:
        terms = SPLIT_TERMS.get(precision) if dtype is float32 else None
        if terms is None:
            return self._launch(made, dtype, dtype, compute_type(dtype, precision))
        queue, memory = self._queue, self._queue.memory
        count = 1 + max(max(pair) for pair in terms)
        sizes = prod(made.left) * made.m * made.k, prod(made.right) * made.k * made.n
        half = float16 if precision is Precision.F16 else bfloat16
        first, further = (self._launch(made, half, float32, SINGLE, adds=adds) for adds in (False, True))
        splits = [Launch(queue, split_kernel(size, count, half, CUDA, queue.target), 1 + count) for size in sizes]

        def run(a: Data, b: Data, c: Data) -> None:
            parts = [[memory.new((size,), half) for _ in range(count)] for size in sizes]
            for split, whole, own in zip(splits, (a, b), parts, strict=True):
                split([whole], own)
            for number, (i, j) in enumerate(terms):
                (further if number else first)(parts[0][i], parts[1][j], c)

        return run

    def _launch(self, made: _Product, operand: DType, result: DType, compute: int, *, adds: bool = False) -> Multiplied:
        """The product by cuBLAS; with `adds` it is added to what the result holds."""
        kinds = DATA_TYPES[operand], DATA_TYPES[result]
        batches = _stacks(made, (operand.itemsize, operand.itemsize, result.itemsize))
        return Multiplied(self.blas, batches, kinds, compute, is_double=compute == _DOUBLE, adds=adds)


def compute_type(dtype: DType, precision: Precision) -> int:
    """The compute type of cuBLAS: cublasComputeType_t."""
    if dtype in (float64, complex128):
        return _DOUBLE
    return _TF32 if precision is Precision.TF32 and dtype is float32 else SINGLE


def _stacks(p: _Product, sizes: tuple[int, int, int]) -> list[Batch]:
    """The calls that a stack of products takes; `sizes` are the bytes of an element of A, B and C.

    The innermost dimension of the stack is one call's; the others too, where all operands go on alike.
    """
    areas = p.m * p.k, p.k * p.n, p.m * p.n
    per = [[0 if n == 1 else s * area for n, s in zip(shape, strides_of(shape), strict=True)]
           for shape, area in zip((p.left, p.right, p.batch), areas, strict=True)]  # fmt: skip
    inner = len(p.batch)
    count, strides = 1, (0, 0, 0)
    while inner:
        here = tuple(s[inner - 1] for s in per)
        if count > 1 and here != tuple(s * count for s in strides):
            break
        if p.batch[inner - 1] > 1:
            strides = here if count == 1 else strides  # type: ignore[assignment]
            count *= p.batch[inner - 1]
        inner -= 1
    calls = []
    for index in combinations(*[range(n) for n in p.batch[:inner]]):
        at = [size * sum(i * s for i, s in zip(index, own, strict=False)) for own, size in zip(per, sizes, strict=True)]
        calls.append(Batch(p.m, p.n, p.k, (at[0], at[1], at[2]), strides, count))
    return calls


def _product(call: Call) -> _Product | None:
    return _of_matrices(call) if call.op.role is Contraction.MATRICES else _of_indices(call)


def _of_matrices(call: Call) -> _Product:
    a, b = (s.shape for s in call.inputs)
    left = (1, *a) if len(a) == 1 else a
    right = (*b, 1) if len(b) == 1 else b
    (m, k), n = left[-2:], right[-1]
    if len(right) == 2 and len(left) > 2:  # one product of all rows
        return _Product((), (), (), prod(left[:-1]), n, k)
    depth = max(len(left), len(right)) - 2
    stacks = [(1,) * (depth + 2 - len(s)) + s[:-2] for s in (left, right)]
    batch = tuple(max(x, y) if 0 not in (x, y) else 0 for x, y in zip(*stacks, strict=True))
    return _Product(batch, stacks[0], stacks[1], m, n, k)


def _of_indices(call: Call) -> _Product | None:
    """Two operands with each index once: those of both and the result are a stack, those of both alone are summed."""
    given, _, wanted = call.attrs["subscripts"].replace(" ", "").partition("->")
    terms = given.split(",")
    if len(terms) != 2 or "." in given or any(len(set(t)) != len(t) for t in (*terms, wanted)):
        return None
    sizes: dict[str, int] = {}
    for term, spec in zip(terms, call.inputs, strict=True):
        for label, size in zip(term, spec.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                return None  # one of them is repeated
    left, right = terms
    if any(label not in wanted and (label in left) != (label in right) for label in sizes):
        return None  # summed over in one operand alone
    batch = [x for x in wanted if x in left and x in right]
    rows = [x for x in left if x not in right]
    columns = [x for x in right if x not in left]
    summed = [x for x in left if x in right and x not in wanted]
    return _Product(
        (prod(sizes[x] for x in batch),) * bool(batch),
        *((prod(sizes[x] for x in batch),) * bool(batch),) * 2,
        m=prod(sizes[x] for x in rows), n=prod(sizes[x] for x in columns), k=prod(sizes[x] for x in summed),
        left_order=_order(left, [*batch, *rows, *summed]),
        right_order=_order(right, [*batch, *summed, *columns]),
        result_order=_order("".join([*batch, *rows, *columns]), list(wanted)),
        result_shape=tuple(sizes[x] for x in (*batch, *rows, *columns)),
    )  # fmt: skip


def _order(labels: str, wanted: Sequence[str]) -> tuple[int, ...] | None:
    order = tuple(labels.index(x) for x in wanted)
    return None if order == tuple(range(len(labels))) else order
