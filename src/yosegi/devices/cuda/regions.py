"""Regions as launches on a CUDA stream."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ..._graph.reference import bind, of_nothing
from ..._run.device import Kernel
from ..._schedule.fuse import JOINED, Region, RegionKind, is_composite, is_constant
from ..._tensor.options import current
from ..._tensor.precision import Precision
from ..._tensor.role import Placing, is_view
from ...codegen.c.copies import copy_kernel
from ...codegen.c.kernel_source import Inputs
from ...codegen.c.loop_kernels import loop
from ...codegen.c.moves import is_free, moves
from ...codegen.c.op_programs import has_program, is_computed_once, program
from ...codegen.c.op_programs import refusal as program_refusal
from ...codegen.c.reductions import reduction, second_stage
from ...codegen.c.stages import FAULTS, Setting
from ...errors import Unsupported
from ..kernel.fused import Fused, is_sliding
from ..kernel.sequences import sequence
from .dialect import CUDA
from .fourier import compile_transform, is_transform, transform_refusal
from .launch import Launch, Queue
from .library_products import LibraryProducts
from .memory import Data
from .projections import projection


def refusal(region: Region, products: LibraryProducts, fused: Fused) -> str | None:
    """Why there is no kernel for a region, or `None`."""
    for part in region.parts:
        if part.kind in (RegionKind.LOOP, RegionKind.REDUCTION):
            continue
        call = part.calls[-1]
        if part.kind is RegionKind.CONTRACTION:
            reason = products.refusal(call)
            if reason is not None and part.precision is Precision.FULL:  # as all that is generated is
                reason = fused.refusal(part)
        elif is_composite(part) or is_sliding(part):
            reason = fused.refusal(part)
        elif is_transform(call):
            reason = transform_refusal(call)
        elif has_program(call):
            reason = program_refusal(call)
        else:
            has_kernel = is_free(call) or is_computed_once(call) or moves(call) is not None
            reason = None if has_kernel else f"no CUDA kernel for {call.op.name}"
        if reason is not None:
            return reason
    return None


def compile_region(region: Region, queue: Queue, products: LibraryProducts, fused: Fused) -> Kernel:
    """The region as a function of its inputs' data."""
    if region.kind is RegionKind.PROJECTION and (made := projection(region, queue, CUDA)) is not None:
        return made
    if region.kind in JOINED:
        return sequence(region, fused, lambda part: compile_region(part, queue, products, fused))
    is_product = region.kind is RegionKind.CONTRACTION and region.precision in (Precision.FULL, Precision.TF32)
    if is_composite(region) or (is_product and fused.refusal(region) is None):
        return fused.compiled(region)
    return compile_plain(region, queue, products, fused)


def compile_plain(region: Region, queue: Queue, products: LibraryProducts, fused: Fused) -> Kernel:
    """The region as a function, without variants: products are the library's where it has them."""
    if region.kind is RegionKind.LOOP:
        return _loop(region, queue)
    if region.kind is RegionKind.REDUCTION:
        return _reduction(region, queue)
    if region.kind is RegionKind.CONTRACTION:
        return products.compiled(region) if products.refusal(region.calls[-1]) is None else fused.compiled(region)
    if is_sliding(region):
        return fused.compiled(region)
    if is_transform(region.calls[-1]):
        return compile_transform(region, queue, partial(_loop, queue=queue))
    return _program(region, queue) if has_program(region.calls[-1]) else _movement(region, queue)


def _loop(region: Region, queue: Queue) -> Kernel:
    """Elementwise work: one launch."""
    memory = queue.memory
    specs = [region.graph.calls[e].spec for e in region.outputs]
    if not specs or not specs[0].size:
        return lambda *data: tuple([memory.new(s.shape, s.dtype) for s in specs])
    inputs = Inputs.of(region)
    constants = [memory.from_host(array) for array in inputs.constants]
    launch = Launch(queue, loop(region, inputs, CUDA, queue.target), len(inputs.entries), len(specs))

    def kernel(*data: Data) -> tuple[Data, ...]:
        made = tuple([memory.new(s.shape, s.dtype) for s in specs])
        launch(*data, *constants, *made)
        return made

    return kernel


def _reduction(region: Region, queue: Queue) -> Kernel:
    """A reduction: one launch, and a second one where a result has several slices."""
    memory, last = queue.memory, region.nodes[-1]
    call = region.graph.calls[last]
    specs = [region.graph.calls[e].spec for e in region.outputs]
    if not call.inputs[0].size:
        return lambda *data: tuple([memory.from_host(of_nothing(region.graph.calls[e])) for e in region.outputs])
    inputs = Inputs.of(region)
    constants = [memory.from_host(array) for array in inputs.constants]
    made = reduction(region, inputs, CUDA, queue.target)
    first = Launch(queue, made.first, len(inputs.entries), len(specs))
    place = region.outputs.index(last)
    second = Launch(queue, second_stage(made, CUDA, queue.target), 1, 1) if made.slices > 1 else None
    accumulated = (made.slices, made.results), made.fold.accumulated

    def kernel(*data: Data) -> tuple[Data, ...]:
        outputs = [memory.new(*accumulated) if second is not None and n == place else memory.new(s.shape, s.dtype)
                   for n, s in enumerate(specs)]  # fmt: skip
        first(*data, *constants, *outputs)
        if second is not None:
            partials, spec = outputs[place], specs[place]
            outputs[place] = memory.new(spec.shape, spec.dtype)
            second(partials, outputs[place])
        return tuple(outputs)

    return kernel


def _movement(region: Region, queue: Queue) -> Kernel:
    """Elements in other places: strided copies into one result. A reshape is the same memory."""
    memory, entry = queue.memory, region.nodes[-1]
    call, args = region.graph.calls[entry], region.graph.args[entry]
    spec = call.spec
    if is_constant(region.graph, entry) or is_computed_once(call):
        value = memory.from_host(np.asarray(bind(call)(), spec.dtype.numpy))
        return lambda *data: (value,)
    copies = moves(call)
    is_reshape = is_view(call.op.role, Placing.RESHAPED)
    if copies is None and not is_reshape:
        raise Unsupported(f"no CUDA kernel for {call.op.name}")
    sources = {a: memory.from_host(np.asarray(bind(region.graph.calls[a])()))
               for a in args if is_constant(region.graph, a)}  # fmt: skip
    steps = [
        (args[n], Launch(queue, copy_kernel(copy, spec.dtype, CUDA, queue.target), 1, 1)) for n, copy in copies or []
    ]

    def kernel(*data: Data) -> tuple[Data, ...]:
        given = sources | dict(zip(region.inputs, data, strict=True))
        if is_reshape:
            return (given[args[0]].reshaped(spec.shape),)
        made = memory.new(spec.shape, spec.dtype)
        for source, launch in steps:
            launch(given[source], made)
        return (made,)

    return kernel


def _program(region: Region, queue: Queue) -> Kernel:
    """An op with kernels of its own: its launches, in order. The data of several outputs is a tuple."""
    memory, entry = queue.memory, region.nodes[-1]
    call, args = region.graph.calls[entry], region.graph.args[entry]
    spec = call.spec
    if not spec.size:
        return lambda *data: (memory.new(spec.shape, spec.dtype),)
    sources = {a: memory.from_host(np.asarray(bind(region.graph.calls[a])()))
               for a in args if is_constant(region.graph, a)}  # fmt: skip
    made = program(call, Setting(CUDA, queue.target, memory.faults.site, current().deterministic))
    steps = [(Launch(queue, s.kernel, len(s.reads), len(s.writes)), (*s.reads, *s.writes)) for s in made.stages]
    rooms = (*[(s.shape, s.dtype) for s in call.outputs], *made.scratch)
    last = len(args) + len(call.outputs)

    def kernel(*data: Data) -> tuple[Any, ...]:
        given = sources | dict(zip(region.inputs, data, strict=True))
        arrays = [*[given[a] for a in args], *[memory.new(*room) for room in rooms]]
        for launch, slots in steps:
            launch(*[memory.fault_table() if slot == FAULTS else arrays[slot] for slot in slots])
        results = tuple(arrays[len(args) : last])
        return (results if len(results) > 1 else results[0],)

    return kernel
