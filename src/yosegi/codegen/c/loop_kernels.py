"""Loop regions as kernels: elementwise work, each value through memory once.

On GPUs, `coalesced` writes them. Elsewhere a work item computes one vector of neighbouring results. The last vector of
a row begins early enough to fit, so that some elements are computed twice and none is left for scalar code. Where the
innermost dimension is shorter than a vector, repeated inputs are gathered lane by lane.
"""

from __future__ import annotations

from math import prod

from ..._schedule.fuse import Region
from ..scalar.access import Dimension, dimensions, gather, load, store
from ..scalar.value import Value
from .builder import CBuilder
from .coalesced import coalesced_loop
from .dialect import Dialect, Target
from .kernel_source import (
    SMALL,
    Inputs,
    Kernel,
    SizeParameters,
    assembled,
    decomposed,
    dtypes_of,
    evaluated,
    offsets,
    widest,
)


def loop(region: Region, inputs: Inputs, dialect: Dialect, target: Target) -> Kernel:
    """The kernel of a loop region of at least one element."""
    if not target.blocked:
        return coalesced_loop(region, inputs, dialect, target)
    shape = region.graph.calls[region.nodes[0]].spec.shape
    total = prod(shape)
    dims = dimensions(shape, inputs.shapes) or [Dimension(1, (0,) * len(inputs.shapes), 1)]
    inner = dims[-1].size
    width = 1 if total <= SMALL else widest(dialect, target, dtypes_of(region), total)
    gathers = inner < width
    sizes = SizeParameters(max(total, 1), dialect)
    k = CBuilder(dialect, width)
    item = k.let(sizes.ctype, dialect.global_id)
    if width == 1 or gathers:
        items = -(-total // width)
        places = _flat(k, sizes, dims, item, total)
    else:
        chunks = -(-inner // width)
        items = total // inner * chunks
        places = _rows(k, sizes, dims, item, chunks, items)
    values = evaluated(region, region.nodes, k, lambda e: _read(k, inputs, dims, places, inputs.entries.index(e)))
    for n, entry in enumerate(region.outputs):
        store(k, values[entry], f"b{n}", places[-1][0])
    outputs = [region.graph.calls[e].spec.dtype for e in region.outputs]
    source = assembled(k, inputs.dtypes, outputs, sizes)
    return Kernel(source, tuple(sizes.values.values()), sizes.is_long, items, target.group)


def _flat(k: CBuilder, sizes: SizeParameters, dims: list[Dimension], item: str, total: int) -> list[list[str]]:
    """For each input, and last for the results: the places of an item's elements, one per lane or the first."""
    count = len(dims[0].strides)
    n = sizes(total)
    k.lines.append(f"if ({item} * {k.width} >= {n}) return;")
    first = item if k.width == 1 else k.let(sizes.ctype, f"min({item} * {k.width}, {n} - {k.width})")
    if len(dims) == 1:
        return [[first]] * (count + 1)
    lanes: list[list[str]] = []
    for lane in range(k.width):
        index = first if lane == 0 else k.let(sizes.ctype, f"{first} + {lane}")
        # In vectors the sizes are part of the text: dividing by a number that the compiler knows is far cheaper.
        known = str if k.width > 1 else sizes
        lanes.append(offsets(decomposed(k, sizes.ctype, index, dims, known), dims, count, known))
    return [[lane[n] for lane in lanes] for n in range(count)] + [[first]]


def _rows(
    k: CBuilder, sizes: SizeParameters, dims: list[Dimension], item: str, chunks: int, items: int
) -> list[list[str]]:
    """For each input, and last for the results: the first place of a thread's elements, which are neighbours."""
    ctype, inner = sizes.ctype, dims[-1]
    k.lines.append(f"if ({item} >= {sizes(items)}) return;")
    row = "0"
    chunk = item
    if len(dims) > 1:
        n = sizes(chunks)
        row = k.let(ctype, f"{item} / {n}")
        chunk = f"({item} - {row} * {n})"
    at = k.let(ctype, f"min({chunk} * {k.width}, {sizes(inner.size)} - {k.width})")
    outer = dims[:-1]
    starts = offsets(decomposed(k, ctype, row, outer, sizes), outer, len(inner.strides), sizes)
    places = []
    for start, stride in zip(starts, (*inner.strides, inner.whole), strict=True):
        places.append([k.let(ctype, f"{start} + {at}" if stride else start)])
    return places


def _read(k: CBuilder, inputs: Inputs, dims: list[Dimension], places: list[list[str]], n: int) -> Value:
    dtype, at = inputs.dtypes[n], places[n]
    if prod(inputs.shapes[n]) == 1:
        return gather(k, dtype, f"a{n}", ["0"])
    if [d.strides[n] for d in dims] == [d.whole for d in dims]:
        return load(k, dtype, f"a{n}", places[-1][0])
    if len(at) == k.width or dims[-1].strides[n] == 0:
        return gather(k, dtype, f"a{n}", at)
    return load(k, dtype, f"a{n}", at[0])
