"""A graph as few kernels: products with all that is elementwise around them, rows, and regions for the rest.

A product takes what is behind it as far as that is elementwise and of its shape, and what is before it down to memory.
Of what remains, everything that goes row by row is one kernel. So a pattern of layers, whatever its ops are called, is
one kernel or two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..._graph.graph import Graph
from ..._schedule.fuse import Region, fuse, is_constant, is_exact_conversion, multiplies
from ..._tensor.dtype import float32
from ..._tensor.node import Spec, spec
from ..._tensor.op import REGISTRY, convert, leaf_call
from ..._tensor.precision import Precision
from ..._tensor.role import Arithmetic, View
from .contractions import FusedContraction, Output, contraction
from .dialect import Dialect, Target
from .expressions import Sum
from .frames import inputs_of
from .kernel_source import Inputs, Kernel
from .naive import naive_product
from .rowwise import Rows, elementwise_rows, rows_of, rowwise
from .shared_tiles import tiled_product, tiles
from .sliding import Slide, slide_kernel
from .unit_tiles import unit_product, unit_tiles


@dataclass(frozen=True, slots=True)
class Rest:
    """Regions of a smaller graph. `entries` maps each of its entries to that of the whole graph."""

    regions: tuple[Region, ...]
    entries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LibraryProduct:
    """A product that a vendor's library computes, with what it does around it."""

    product: FusedContraction
    rank: int = 0
    """How many of the library's algorithms for it are expected to be faster."""
    precision: Precision = Precision.FULL
    """The precision to which its operands may be rounded."""


@dataclass(frozen=True, slots=True)
class PartialSums:
    """A product on a matrix unit whose sum is in several parts, computed side by side. Their results are the entry
    `PARTS`: an array with the parts along its first axis."""

    product: FusedContraction
    parts: int
    spec: Spec


PARTS: Final = -1

PlannedKernel = FusedContraction | Rows | Slide | Rest | LibraryProduct | PartialSums


@dataclass(frozen=True, slots=True)
class Rendered:
    """A kernel's source, what it reads, constants last, and the entries that it writes."""

    kernel: Kernel
    inputs: Inputs
    outputs: tuple[int, ...]


NAIVE: Final = "naive"
_EVEN: Final = 4
"""Results that are stored at once begin at multiples of so many."""


def product_variants(products: Sequence[FusedContraction], dialect: Dialect, target: Target) -> tuple[str, ...]:
    """The variants of all of some products on a target, by name. Where there is nothing to sum, tiles would read
    what is not there."""
    if any(not p.extents[2] for p in products):
        return (NAIVE,)
    on_units = [unit_tiles(product, dialect) for product in products]
    return (NAIVE, *tiles(target), *[name for name in on_units[0] if all(name in own for own in on_units)])


def prior(product: FusedContraction, dialect: Dialect) -> str:
    """The variant that is used until variants have been measured."""
    least = min(product.extents)
    if on_unit := list(unit_tiles(product, dialect)):
        return on_unit[1] if least >= 512 else on_unit[0] if least >= 16 else NAIVE
    if product.slides:
        return "32" if least >= 32 else "16" if least >= 8 else NAIVE
    return "32" if least >= 256 else "16" if least >= 128 else NAIVE


def rendered(
    graph: Graph, planned: FusedContraction | Rows | Slide | PartialSums, dialect: Dialect, target: Target, variant: str
) -> Rendered:
    """A planned kernel with its source; of a product, this variant."""
    if isinstance(planned, PartialSums):
        product = planned.product
        kernel = unit_product(graph, product, dialect, unit_tiles(product, dialect)[variant], planned.parts)
        return Rendered(kernel, inputs_of(graph, product.expressions), (PARTS,))
    written = tuple(o.entry for o in planned.outputs)
    if isinstance(planned, Slide):
        return Rendered(slide_kernel(graph, planned, dialect, target), inputs_of(graph, planned.reads), written)
    if isinstance(planned, Rows):
        inputs = inputs_of(graph, [o.expression for o in planned.outputs])
        return Rendered(rowwise(graph, planned, dialect, target), inputs, written)
    if variant == NAIVE:
        kernel = naive_product(graph, planned, dialect, target)
    elif (tile := unit_tiles(planned, dialect).get(variant)) is not None:
        kernel = unit_product(graph, planned, dialect, tile)
    else:
        kernel = tiled_product(graph, planned, dialect, tiles(target)[variant])
    return Rendered(kernel, inputs_of(graph, planned.expressions), written)


def planned_kernels(graph: Graph) -> list[PlannedKernel]:
    """The graph, cut; in an order in which it can run. Raises `Unsupported` if a product is more than one kernel."""
    made: list[PlannedKernel] = []
    known: frozenset[int] = frozenset()
    for entry, call in enumerate(graph.calls):
        if multiplies(call):
            product = contraction(graph, entry, _shown(graph, entry, _behind(graph, entry)), known)
            made.append(product)
            known |= {o.entry for o in product.outputs}
    return made + _remaining(graph, known)


def in_parts_of_sum(graph: Graph, parts: int, *, of_halves: bool = False) -> list[PlannedKernel] | None:
    """The kernels with the sum of the only product in several parts, which a second kernel adds up. `None` if the
    product has no such form. `of_halves` as for `contraction`."""
    entries = [entry for entry, call in enumerate(graph.calls) if multiplies(call)]
    if len(entries) != 1:
        return None
    (entry,) = entries
    plain, wanted = contraction(graph, entry, (entry,), of_halves=of_halves), graph.calls[entry].spec
    if plain.row_values or plain.summed is not float32 or wanted.size % _EVEN:
        return None
    total = Sum(float32)
    output = Output(PARTS, total, plain.outputs[0].strides)
    made = spec((parts, *wanted.shape), float32)
    added = REGISTRY["sum"].call((made,), {"axis": (0,), "dtype": float32, "keepdims": False})
    calls, keys = [leaf_call(made), added], [PARTS, entry]
    if wanted.dtype is not float32:
        calls.append(convert.call((added.spec,), {"dtype": wanted.dtype}))
        keys.insert(1, PARTS - 1)
    last = len(calls) - 1
    small = Graph(tuple(calls), ((), *[(n,) for n in range(last)]), (last,))
    sums = PartialSums(replace(plain, total=total, result=float32, outputs=(output,)), parts, made)
    return [sums, Rest(tuple(fuse(small)), tuple(keys)), *_remaining(graph, frozenset({entry}))]


def library_kernels(
    graph: Graph, takes: Callable[[FusedContraction], bool], *, converts: bool = False
) -> list[PlannedKernel] | None:
    """The kernels with the products of a library, which takes as much of the prologue and epilogue as it can. The
    remaining elementwise and row work is in kernels of its own. `None` if the library does not take all products. A
    library that `converts` reads 16-bit operands of float32 products."""
    made: list[PlannedKernel] = []
    known: frozenset[int] = frozenset()
    for entry, call in enumerate(graph.calls):
        if not multiplies(call):
            continue
        for operand in graph.args[entry]:
            source = _source(graph, operand, converts=converts)
            if source not in known and graph.args[source]:
                made += _remaining(replace(graph, outputs=(source,)), known)
                known |= {source}
        behind = _behind(graph, entry)
        ends = [_shown(graph, entry, {n for n in behind if n <= last}) for last in sorted(behind, reverse=True)]
        product = next(filter(takes, (contraction(graph, entry, end, known) for end in ends)), None)
        if product is None:
            return None
        made.append(LibraryProduct(product))
        known |= {o.entry for o in product.outputs}
    return made + _remaining(graph, known)


def _source(graph: Graph, entry: int, *, converts: bool) -> int:
    """An operand without its permutation of axes and its factor; if asked, the 16-bit array that it is made of."""
    while True:
        call, args = graph.calls[entry], graph.args[entry]
        if call.op.role is View.PERMUTED or (converts and is_exact_conversion(call)):
            entry = args[0]
            continue
        factors = [a for a in args if is_constant(graph, a) and not graph.calls[a].spec.ndim]
        if call.op.role is not Arithmetic.TIMES or len(factors) != 1:
            return entry
        (entry,) = [a for a in args if a not in factors]


def _remaining(graph: Graph, known: frozenset[int]) -> list[PlannedKernel]:
    """The entries that remain to be computed for the outputs."""
    made: list[PlannedKernel] = []
    while True:
        rows = rows_of(graph, _needed(graph, known), known)
        if rows is None:
            break
        made.append(rows)
        known |= {o.entry for o in rows.outputs}
    for entry in graph.outputs:
        rows = None if entry in known else elementwise_rows(graph, entry, known)
        if rows is not None:
            made.append(rows)
            known |= {entry}
    if not set(graph.outputs) <= known:
        made.append(_rest(graph, known))
    return made


def _behind(graph: Graph, product: int) -> set[int]:
    """The product and the elementwise entries of its shape that are made of it."""
    shape = graph.calls[product].spec.shape
    inside = {product}
    for entry in range(product + 1, len(graph.calls)):
        call = graph.calls[entry]
        if call.op.scalar is not None and call.spec.shape == shape and inside & set(graph.args[entry]):
            others = _before(graph, [a for a in graph.args[entry] if a not in inside], inside)
            if all(graph.calls[o].op.scalar is not None or not graph.args[o] or o < product for o in others):
                inside.add(entry)
    return inside


def _before(graph: Graph, entries: Sequence[int], stop: set[int]) -> set[int]:
    """All that entries are made of, down to some others."""
    found: set[int] = set()
    waiting = list(entries)
    while waiting:
        entry = waiting.pop()
        if entry not in found and entry not in stop:
            found.add(entry)
            waiting += graph.args[entry]
    return found


def _shown(graph: Graph, product: int, inside: set[int]) -> list[int]:
    """Of a product and what is behind it: what others read, or want."""
    read = {a for n, args in enumerate(graph.args) if n not in inside for a in args}
    return sorted(n for n in inside if n in read or n in graph.outputs)


def _needed(graph: Graph, known: frozenset[int]) -> list[int]:
    """The entries that the outputs need, with some entries known; in order."""
    return sorted(_before(graph, [o for o in graph.outputs if o not in known], set(known)))


def _rest(graph: Graph, known: frozenset[int]) -> Rest:
    needed = _needed(graph, known)
    read = {a for n in needed for a in graph.args[n]} & known
    entries = tuple(sorted({*needed, *read, *(known & set(graph.outputs))}))
    at = {entry: n for n, entry in enumerate(entries)}
    calls = [leaf_call(graph.calls[e].spec) if e in known else graph.calls[e] for e in entries]
    args = [() if e in known else tuple([at[a] for a in graph.args[e]]) for e in entries]
    outputs = [at[o] for o in graph.outputs if o not in known]
    small = Graph(tuple(calls), tuple(args), tuple(outputs))
    return Rest(tuple(fuse(small)), entries)
