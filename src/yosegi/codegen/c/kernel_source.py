"""Generated kernels and their common parts: sizes as parameters, inputs, and a region's calls as text.

Sizes and strides are parameters of the kernel, not part of its text, so that one program serves every shape of a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._graph.reference import bind
from ..._schedule.fuse import Region, is_constant
from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ..scalar.access import Dimension
from ..scalar.primitives import Primitives
from ..scalar.value import Value
from .builder import CBuilder
from .dialect import Dialect

NAME = "kernel_"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A program with one kernel. Its parameters: inputs, constants, outputs, sizes."""

    source: str
    sizes: tuple[int, ...]
    long_sizes: bool
    """True if sizes are 64-bit."""
    items: int
    """Threads; their number is rounded up to whole blocks."""
    group: int


@dataclass(frozen=True, slots=True)
class Inputs:
    """The arrays that a region's loop reads: its inputs, then its constants of more than one element."""

    entries: tuple[int, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[DType, ...]
    constants: tuple[Any, ...]
    """The values of those entries that are constants."""

    @classmethod
    def of(cls, region: Region) -> Inputs:
        """A region's."""
        graph = region.graph
        read = dict.fromkeys(a for n in region.nodes for a in graph.args[n])
        arrays = {a: np.asarray(bind(graph.calls[a])()) for a in read if is_constant(graph, a)}
        large = {a: array for a, array in arrays.items() if array.size != 1}
        entries = (*region.inputs, *large)
        specs = [graph.calls[e].spec for e in entries]
        return cls(entries, tuple(s.shape for s in specs), tuple(s.dtype for s in specs), tuple(large.values()))


def evaluated(region: Region, nodes: Sequence[int], k: Primitives, load: Callable[[int], Value]) -> dict[int, Value]:
    """The values of a region's elementwise calls on the elements that `load` gives."""
    graph = region.graph
    values: dict[int, Value] = {}

    def operand(entry: int) -> Value:
        if entry not in values:
            call = graph.calls[entry]
            is_number = is_constant(graph, entry) and call.spec.size == 1
            number = np.asarray(bind(call)()).reshape(()).item() if is_number else None
            values[entry] = k.literal(number, call.spec.dtype) if is_number else load(entry)
        return values[entry]

    for entry in nodes:
        call = graph.calls[entry]
        assert call.op.scalar is not None
        values[entry] = k.rounded(call.op.scalar(k, *[operand(a) for a in graph.args[entry]], **call.attrs))
    if not nodes:
        for entry in graph.args[region.nodes[-1]]:
            operand(entry)
    return values


def offsets(indices: Sequence[str], dims: Sequence[Dimension], count: int, size: Callable[[int], str]) -> list[str]:
    """For each of `count` inputs, and last for the loop's own shape: the place that these indices lead to."""
    made = []
    for n in range(count + 1):
        strides = [d.whole if n == count else d.strides[n] for d in dims]
        terms = [f"{i} * {size(s)}" for i, s in zip(indices, strides, strict=True) if s]
        made.append(" + ".join(terms) or "0")
    return made


def decomposed(k: CBuilder, ctype: str, index: str, dims: Sequence[Dimension], size: Callable[[int], str]) -> list[str]:
    """The indices along each dimension, from the number of an element."""
    indices: list[str] = []
    for place, dim in reversed(list(enumerate(dims))):
        if place == 0:
            indices.append(index)
            continue
        n = size(dim.size)
        whole = k.let(ctype, f"{index} / {n}")
        indices.append(k.let(ctype, f"{index} - {whole} * {n}"))
        index = whole
    return indices[::-1]


def assembled(k: CBuilder, inputs: Sequence[DType], outputs: Sequence[DType], items: int, group: int) -> Kernel:
    """The kernel whose body the builder has, for so many threads in blocks."""
    pointers = [_pointer(k.dialect, "const ", d, f"a{n}") for n, d in enumerate(inputs)]
    pointers += [_pointer(k.dialect, "", d, f"b{n}") for n, d in enumerate(outputs)]
    place, sizes = k.dialect.parameter_place, k.sizes
    own = [f"{p}{place.format(n=n)}" for n, p in enumerate([*pointers, *sizes.parameters()])]
    head = f"{k.dialect.kernel} {k.bounds}{NAME}({', '.join([*own, *k.dialect.built_in])})"
    body = [*sizes.lines(), *k.shared_arrays, *k.lines]
    source = "\n".join([k.dialect.header, *k.declarations.values(), head, "{", *body, "}", ""])
    return Kernel(source, tuple(sizes.values.values()), sizes.is_long, items, group)


def _pointer(dialect: Dialect, const: str, dtype: DType, name: str) -> str:
    """A parameter that points to elements."""
    return dialect.global_pointer.format(const=const, type=dialect.stored[dtype], name=name)
