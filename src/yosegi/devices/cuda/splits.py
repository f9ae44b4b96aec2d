"""Floats as sums of 16-bit ones, for products of these: of one, or of several that keep more bits than one has."""

from __future__ import annotations

from typing import Final

from ..._tensor.dtype import DType
from ..._tensor.precision import Precision
from ...codegen.c.builder import SizeParameters
from ...codegen.c.dialect import Dialect, Target
from ...codegen.c.kernel_source import NAME, Kernel

SPLIT_TERMS: Final[dict[Precision, tuple[tuple[int, int], ...]]] = {
    Precision.F16: ((0, 0),),
    Precision.BF16: ((0, 0),),
    Precision.BF16X2: ((1, 0), (0, 1), (0, 0)),
    Precision.BF16X3: ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0)),
}
"""The products of parts that are summed, least significant first; part 0 has the leading bits."""


def split_kernel(size: int, count: int, dtype: DType, dialect: Dialect, target: Target) -> Kernel:
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
    return Kernel(source, tuple(sizes.values.values()), sizes.is_long, size, target.group)
