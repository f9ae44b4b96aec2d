"""Sample arrays for the kernels of a product, and their expected results.

Elements of the left operand are fractions with as many digits as a product leaves room for, and those of the right one
are powers of two with a sign, or zero: so every sum is exact, in whatever order it is made, and all kernels must give
the same bits, up to what comes before and after; but one that computes in less than the operands' precision is found
out. In a reduced precision it is the product of rounded operands that must come out. Sums are about as large as one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, log2, sqrt
from typing import Any, Final

import numpy as np

from ..._schedule.fuse import Region
from ..._tensor.dtype import bfloat16, bool_, float16, float32, float64
from ..._tensor.node import Spec
from ..._tune.autotune import Kernel
from ...codegen.llvm.fused_product import Cluster, view_of
from .kernel import numpy_function, reference_body

_DIGITS: Final = {float32: 12, float64: 27, float16: 6, bfloat16: 4}
"""Binary digits of a fraction: half of those that a number has, more than half of those of the next narrower one."""


def samples(cluster: Cluster, inputs: tuple[int, ...]) -> list[Any]:
    """An array for each of some entries that a cluster reads."""
    rng = np.random.default_rng()  # other numbers every time: what lies in memory that is used again is not a result
    calls = cluster.graph.calls
    left, right = (view_of(cluster.graph, e).entry for e in (cluster.left, cluster.right))
    made = []
    for entry in inputs:
        is_right = entry == right and entry != left
        made.append(_signs(calls[entry].spec, cluster.depth, rng) if is_right else _fractions(calls[entry].spec, rng))
    return made


def roundings(cluster: Cluster, parts: int = 0) -> float:
    """How many roundings a result may be off, where sums are not exact: because of what comes before the product, or
    because an operand is a constant. `parts`: of how many bfloat16 numbers an operand is made, if it is."""
    # What comes before may differ in a last bit, and then fall to the other side where it is rounded: by one in the
    # last place of all parts.
    flipped = 2.0 ** (24 - 8 * parts) if parts and cluster.before is not None else 0.0
    return 64 + 4 * sqrt(cluster.depth) + flipped


def reference(region: Region, cluster: Cluster, parts: int = 0) -> Kernel:
    """A cluster by NumPy, as a function of the arrays of its region: the product of operands that are each rounded to
    the sum of so many bfloat16 numbers, if they are."""

    def body(region: Region, entry: int) -> Callable[..., Any]:
        plain = reference_body(region, entry)
        if not parts or entry != cluster.entry:
            return plain
        return lambda left, right: plain(rounded(left, parts), rounded(right, parts))

    return numpy_function(region, body=body)


def rounded(x: Any, parts: int) -> Any:
    """An array of float32 as the sum of so many bfloat16 numbers; what is not finite is all in the last of them."""
    made = np.zeros_like(x)
    for part in range(parts):
        own = (x - made).astype(bfloat16.numpy).astype(x.dtype)
        made += own if part == parts - 1 else np.where(np.isfinite(own), own, 0)
    return made


def _signs(spec: Spec, depth: int, rng: np.random.Generator) -> Any:
    size = 2.0 ** -ceil(log2(depth) / 2)
    return rng.integers(-1, 2, spec.shape, np.int8).astype(spec.dtype.numpy) * spec.dtype.numpy.type(size)


def _fractions(spec: Spec, rng: np.random.Generator) -> Any:
    dtype = spec.dtype
    if dtype is bool_:
        return rng.integers(0, 2, spec.shape, np.int8).astype(bool)
    if dtype not in _DIGITS:
        return rng.integers(0, 4, spec.shape, np.int8).astype(dtype.numpy)
    whole = 1 << _DIGITS[dtype]
    numbers = rng.integers(1 - whole, whole, spec.shape, np.int32)
    return (numbers / np.float64(whole)).astype(dtype.numpy)
