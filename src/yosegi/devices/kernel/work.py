"""The kernels of a product or a composite: a region cut into planned kernels, and these as one function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..._graph.expand import in_parts
from ..._graph.graph import Graph
from ..._run.device import Kernel
from ..._schedule.fuse import JOINED, Region, RegionKind, fuse, is_composite, is_constant, multiplies
from ..._tensor.dtype import float32
from ..._tensor.node import Call
from ..._tensor.role import AttentionGradient
from ...codegen.c.contractions import FusedContraction, contraction
from ...codegen.c.fused_kernels import LibraryProduct, PartialSums, PlannedKernel, Rest, planned_kernels, rendered
from ...codegen.c.kernel_source import Kernel as Generated
from ...codegen.c.sliding import slide_of, slides
from ...codegen.c.stages import KernelProgram, Stage
from ...errors import Unsupported
from .half_operands import HALVES
from .launching import KernelMachine, arguments_of, constants_of, launched, programmed


@dataclass(frozen=True, slots=True)
class PlannedRegion:
    """A region as a graph, and the kernels that it is cut into."""

    graph: Graph
    kernels: tuple[PlannedKernel, ...]
    native: Call | None = None
    """The composite, if it stays whole only for kernels of its own."""

    @classmethod
    def of(cls, region: Region) -> PlannedRegion:
        """The work of a region. Raises `Unsupported`."""
        own = in_parts(region)
        if is_composite(region) or region.kind in JOINED:
            if not all(s.size for call in own.graph.calls for s in (*call.inputs, *call.outputs)):
                raise Unsupported("there is nothing to compute")
            if is_composite(region) and isinstance(region.calls[0].op.role, AttentionGradient):
                return cls(own.graph, (apart(own.graph),), region.calls[0])
            return cls(own.graph, tuple(planned_kernels(own.graph)))
        entry = own.graph.outputs[0]
        if slides(own.graph.calls[entry]):
            return cls(own.graph, (slide_of(own.graph, entry),))
        if not multiplies(own.graph.calls[entry]):
            raise Unsupported("it is no product any more")
        product = contraction(own.graph, entry, (entry,), of_halves=region.precision in HALVES)
        return cls(own.graph, (product,))

    @property
    def size(self) -> int:
        """Products of elements; where there are none, elements of results."""
        products = [p for p in self.kernels if isinstance(p, FusedContraction)]
        if not products:
            return sum(self.graph.calls[o].spec.size for o in self.graph.outputs)
        return sum(prod(p.extents) * prod(r.size for r in p.batch) for p in products)


def multiplies_halves(work: PlannedRegion) -> bool:
    """True for products of 16-bit floats with float32 results."""
    products = [p for p in work.kernels if isinstance(p, FusedContraction)]
    return all(p.left.dtype.is_half and p.result is float32 for p in products) and bool(products)


def apart(graph: Graph) -> Rest:
    """A graph as regions, each a kernel of its own."""
    return Rest(tuple(fuse(graph)), tuple(range(len(graph.calls))))


def steps_of(
    graph: Graph,
    cut: Sequence[PlannedKernel],
    machine: KernelMachine,
    variant: str,
    product: Callable[[], Kernel] | None = None,
) -> Kernel:
    """The kernels of a cut, in order. `product` makes the kernel of a product that is a region of its own."""
    memory = machine.memory
    steps: list[tuple[Callable[..., Sequence[Any]], tuple[int, ...], tuple[int, ...]]] = []
    fixed: dict[int, Any] = {}
    for planned in cut:
        if isinstance(planned, Rest):
            for region in planned.regions:
                reads, writes = (tuple(planned.entries[e] for e in own) for own in (region.inputs, region.outputs))
                if product is not None and region.kind is RegionKind.CONTRACTION:
                    steps.append((product(), reads, writes))
                else:
                    steps.append((machine.compile(region), reads, writes))
            continue
        if isinstance(planned, LibraryProduct):
            reads, launch = machine.multiplier(planned)
            fixed |= constants_of(graph, reads, memory)
            outputs = tuple(o.entry for o in planned.product.outputs)
            rooms = [(s.shape, s.dtype) for s in [graph.calls[e].spec for e in outputs]]
            steps.append((launched(launch, (), rooms, memory), reads, outputs))
            continue
        made = rendered(graph, planned, machine.dialect, machine.target, variant)
        reads = tuple(e for e in made.inputs.entries if not is_constant(graph, e))
        constants = [memory.from_host(array) for array in made.inputs.constants]
        specs = [planned.spec] if isinstance(planned, PartialSums) else [graph.calls[e].spec for e in made.outputs]
        launch = machine.launcher(made.kernel, len(made.inputs.entries), len(specs))
        rooms = [(s.shape, s.dtype) for s in specs]
        steps.append((launched(launch, constants, rooms, memory), reads, made.outputs))
    inputs, outputs = graph.inputs, graph.outputs

    def kernel(*data: Any) -> tuple[Any, ...]:
        values = fixed | dict(zip(inputs, data, strict=True))
        for run, reads, writes in steps:
            values.update(zip(writes, run(*[values[e] for e in reads]), strict=True))
        return tuple([values[o] for o in outputs])

    return kernel


def one_kernel(call: Call, written: Callable[[], Generated]) -> KernelProgram:
    """One kernel for a call."""
    count = len(call.inputs)
    return KernelProgram((Stage(written(), tuple(range(count)), (count,)),))


def attention(region: Region, machine: KernelMachine, written: Callable[[], KernelProgram]) -> Kernel:
    """Attention, or its gradient, by a program; the region may hold the picks of its outputs."""
    (call, *picks), entry = region.calls, region.nodes[0]
    arguments = arguments_of(region, machine.memory, entry)
    run = programmed(call, written(), machine.launcher, machine.memory)
    index = dict(zip(region.nodes, [0, *[pick.attrs["index"] for pick in picks]], strict=True))
    results = [index[o] for o in region.outputs]

    def kernel(*data: Any) -> tuple[Any, ...]:
        outputs = run(arguments(data))
        return tuple([outputs[n] for n in results])

    return kernel
