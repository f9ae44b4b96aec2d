"""Regions as launches on the in-order queue of a kernel device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from ..._graph.reference import bind, of_nothing
from ..._run.background import side_by_side
from ..._run.device import Kernel
from ..._schedule.fuse import JOINED, Region, RegionKind, is_composite, is_constant
from ..._schedule.kernels import kernels_of
from ..._tensor.op import pick
from ..._tensor.options import current
from ..._tensor.role import View
from ...codegen.c.copies import copy_kernel
from ...codegen.c.kernel_source import Inputs
from ...codegen.c.loop_kernels import loop
from ...codegen.c.moves import is_free, moves
from ...codegen.c.op_programs import has_program, is_computed_once, program
from ...codegen.c.op_programs import refusal as program_refusal
from ...codegen.c.reductions import reduction, second_stage
from ...codegen.c.stages import Setting
from ...errors import Unsupported
from .fused import Fused, is_sliding
from .launching import Queue, arguments_of, launched, programmed
from .memory import Data

_FEW: Final = 4096
"""Partial results that the host folds faster than a launch takes."""


def refusal(region: Region, fused: Fused, language: str) -> str | None:
    """Why no kernels can be generated for a region, or `None`."""
    return next(filter(None, (_refusal(part, fused, language) for part in region.parts)), None)


def _refusal(region: Region, fused: Fused, language: str) -> str | None:
    if region.kind is RegionKind.CONTRACTION or is_composite(region) or is_sliding(region):
        return fused.refusal(region)
    return None if region.calls[-1].op is pick else generated_refusal(region, language)


def generated_refusal(region: Region, language: str) -> str | None:
    """Why there is no kernel for a region without variants, or `None`."""
    call = region.calls[-1]
    if region.kind in (RegionKind.LOOP, RegionKind.REDUCTION):
        return None
    if has_program(call):
        return program_refusal(call)
    has_kernel = is_free(call) or is_computed_once(call) or moves(call) is not None
    return None if has_kernel else f"no {language} kernel for {call.op.name}"


def compile_region(region: Region, queue: Queue, fused: Fused, *, in_unit: bool = False) -> Kernel:
    """The region, which may be part of a unit, as a function of its inputs' data."""
    if region.kind in JOINED:
        return sequence(region, fused, lambda part: compile_region(part, queue, fused, in_unit=True))
    if region.kind is RegionKind.CONTRACTION or is_composite(region) or is_sliding(region):
        return fused.compiled(region)
    return _picked(region) if region.calls[-1].op is pick else compile_generated(region, queue, in_unit=in_unit)


def compile_generated(region: Region, queue: Queue, *, in_unit: bool = False) -> Kernel:
    """A region without variants as a function of its inputs' data."""
    if region.kind is RegionKind.LOOP:
        return compile_loop(region, queue)
    if region.kind is RegionKind.REDUCTION:
        return _reduction(region, queue, in_unit=in_unit)
    return _program(region, queue) if has_program(region.calls[-1]) else _movement(region, queue)


def _picked(region: Region) -> Kernel:
    """One output of an op that has several."""
    entry = region.nodes[-1]
    place, index = region.inputs.index(region.graph.args[entry][0]), region.calls[-1].attrs["index"]
    return lambda *data: (data[place][index],)


def compile_loop(region: Region, queue: Queue) -> Kernel:
    """Elementwise work: one launch."""
    memory = queue.memory
    specs = [region.graph.calls[e].spec for e in region.outputs]
    if not specs or not specs[0].size:
        return lambda *data: tuple([memory.new(s.shape, s.dtype) for s in specs])
    inputs = Inputs.of(region)
    constants = [memory.from_host(array) for array in inputs.constants]
    launch = queue.launch(loop(region, inputs, queue.dialect, queue.target), len(inputs.entries) + len(specs))
    return launched(launch, constants, [(s.shape, s.dtype) for s in specs], memory)


def _reduction(region: Region, queue: Queue, *, in_unit: bool) -> Kernel:
    """A reduction: one launch, and a last stage by the host or a second launch where a result has several slices. In a
    unit it is a launch: the host would keep the device waiting."""
    memory, last = queue.memory, region.nodes[-1]
    call = region.graph.calls[last]
    specs = [region.graph.calls[e].spec for e in region.outputs]
    if not call.inputs[0].size:
        return lambda *data: tuple([memory.from_host(of_nothing(region.graph.calls[e])) for e in region.outputs])
    inputs = Inputs.of(region)
    constants = [memory.from_host(array) for array in inputs.constants]
    made = reduction(region, inputs, queue.dialect, queue.target)
    count = len(inputs.entries) + len(specs)
    first = queue.launch(made.first, count)
    place = region.outputs.index(last)
    sliced = made.slices > 1
    few = memory.shared and not in_unit and made.slices * made.results <= _FEW
    second = queue.launch(second_stage(made, queue.dialect, queue.target), 2) if sliced and not few else None
    accumulated = (made.slices, made.results), made.fold.accumulated

    def kernel(*data: Any) -> tuple[Any, ...]:
        outputs = [memory.new(*accumulated) if sliced and n == place else memory.new(s.shape, s.dtype)
                   for n, s in enumerate(specs)]  # fmt: skip
        first([*data, *constants], outputs)
        if sliced:
            partials, spec = outputs[place], specs[place]
            if second is None:
                outputs[place] = Data.unfinished(
                    spec.shape, spec.dtype, lambda: made.fold.on_host(memory.to_host(partials)).reshape(spec.shape)
                )
            else:
                outputs[place] = memory.new(spec.shape, spec.dtype)
                second([partials], [outputs[place]])
        return tuple(outputs)

    return kernel


def _movement(region: Region, queue: Queue) -> Kernel:
    """Elements in other places: strided copies into one result. A reshape is the same memory."""
    memory, entry = queue.memory, region.nodes[-1]
    call = region.graph.calls[entry]
    spec = call.spec
    if is_constant(region.graph, entry) or is_computed_once(call):
        value = memory.from_host(np.asarray(bind(call)(), spec.dtype.numpy))
        return lambda *data: (value,)
    arguments = arguments_of(region, memory)
    copies = moves(call)
    is_reshape = call.op.role is View.RESHAPED
    if copies is None and not is_reshape:
        raise Unsupported(f"no {queue.language} kernel for {call.op.name}")
    steps = [(n, queue.launch(copy_kernel(copy, spec.dtype, queue.dialect, queue.target), 2))
             for n, copy in copies or []]  # fmt: skip

    def kernel(*data: Any) -> tuple[Any, ...]:
        given = arguments(data)
        if is_reshape:
            return (memory.reshaped(given[0], spec.shape),)
        made = memory.new(spec.shape, spec.dtype)
        for n, launch in steps:
            launch([given[n]], [made])
        return (made,)

    return kernel


def _program(region: Region, queue: Queue) -> Kernel:
    """An op with kernels of its own: its launches, in order. The data of several outputs is a tuple."""
    memory, call = queue.memory, region.calls[-1]
    spec = call.spec
    if not spec.size:
        return lambda *data: (memory.new(spec.shape, spec.dtype),)
    arguments = arguments_of(region, memory)
    made = program(call, Setting(queue.dialect, queue.target, memory.faults.site, current().deterministic))
    run = programmed(call, made, lambda kernel, inputs, outputs: queue.launch(kernel, inputs + outputs), memory)

    def kernel(*data: Any) -> tuple[Any, ...]:
        results = run(arguments(data))
        return (tuple(results) if len(results) > 1 else results[0],)

    return kernel


def sequence(region: Region, fused: Fused, compile_part: Callable[[Region], Kernel]) -> Kernel:
    """A unit as its kernels, in order."""
    parts = kernels_of(region, fused.fusion)
    makers = [partial(fused.compiled if p.kind is RegionKind.SEQUENCE else compile_part, p) for p in parts]
    kernels = side_by_side(makers, fused.compilers)
    fused.prepare(kernels)
    return in_order(region, parts, kernels)


def in_order(region: Region, parts: Sequence[Region], kernels: Sequence[Kernel]) -> Kernel:
    """The kernels of a region's parts, one after the other. A value that no later part reads is let go of, so that its
    memory serves again."""
    last = {e: n for n, part in enumerate(parts) for e in part.inputs}
    kept = set(region.outputs)
    drops = [[e for e in (*p.inputs, *p.outputs) if last.get(e, n) == n and e not in kept] for n, p in enumerate(parts)]

    def kernel(*data: Any) -> tuple[Any, ...]:
        values = dict(zip(region.inputs, data, strict=True))
        for part, run, dropped in zip(parts, kernels, drops, strict=True):
            values.update(zip(part.outputs, run(*[values[i] for i in part.inputs]), strict=True))
            for entry in dropped:
                values.pop(entry, None)
        return tuple([values[o] for o in region.outputs])

    return kernel
