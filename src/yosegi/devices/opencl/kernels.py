"""Regions as launches on an OpenCL queue."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

import numpy as np

from ...codegen.copies import copy_kernel
from ...codegen.dialect import Target
from ...codegen.kernels import NAME, Inputs
from ...codegen.kernels import Kernel as Generated
from ...codegen.loops import loop
from ...codegen.moves import moves
from ...codegen.reductions import reduction, second_stage
from ...device import Kernel
from ...errors import Unsupported
from ...fuse import Region, RegionKind, is_constant
from ...node import Call
from ...reference import bind
from .cache import Programs
from .dialect import OPENCL
from .errors import translated
from .memory import Data, Memory

_FEW: Final = 4096
"""Partial results that the host folds faster than a launch takes."""
_FREE: Final = frozenset({"reshape", "constant", "embedded"})


class Queue:
    """One device's in-order queue: what is launched returns at once, and runs in the order of the launches."""

    def __init__(self, cl: Any, queue: Any, programs: Programs, memory: Memory, name: str, target: Target) -> None:
        self.cl = cl
        self.queue = queue
        self.programs = programs
        self.memory = memory
        self.name = name
        self.target = target


class Launch:
    """A kernel that can be put into the queue, again and again, from any thread.

    Its sizes are set once; `buffers` come before them among its parameters.
    """

    def __init__(self, queue: Queue, generated: Generated, buffers: int) -> None:
        self._queue = queue
        cl = queue.cl
        program = queue.programs.get(generated.source)
        number = np.int64 if generated.long_sizes else np.int32
        with translated(cl, f"[{queue.name}] preparing a kernel"):
            self._kernel = cl.Kernel(program, NAME)
            for n, size in enumerate(generated.sizes):
                self._kernel.set_arg(buffers + n, number(size))
        groups = -(-generated.items // generated.group)
        self._range = ((groups * generated.group,), (generated.group,))
        self._lock = Lock()  # a kernel's parameters are part of it until it is in the queue

    def __call__(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put it into the queue."""
        queue = self._queue
        cl, kernel = queue.cl, self._kernel
        with translated(cl, f"[{queue.name}] launching a kernel"):
            with self._lock:
                for n, data in enumerate((*inputs, *outputs)):
                    kernel.set_arg(n, data.buffer)
                event = cl.enqueue_nd_range_kernel(queue.queue, kernel, *self._range)
            queue.queue.flush()
            foreign = [data for data in inputs if data.block is None]
            if foreign:
                queue.memory.keep(event, foreign)


def refusal(region: Region) -> str | None:
    """Why no kernel can be generated for a region, or `None`."""
    if region.kind in (RegionKind.LOOP, RegionKind.REDUCTION):
        return None
    name = region.calls[-1].op.name
    if region.kind is RegionKind.OPAQUE and (name in _FREE or moves(region.calls[-1]) is not None):
        return None
    return f"no OpenCL kernel for {name}"


def compile_region(region: Region, queue: Queue) -> Kernel:
    """The region as a function of its inputs' data."""
    if region.kind is RegionKind.LOOP:
        return _loop(region, queue)
    if region.kind is RegionKind.REDUCTION:
        return _reduction(region, queue)
    if region.kind is not RegionKind.OPAQUE:
        raise Unsupported(f"no way to run a {region.kind.value} as one kernel")
    return _movement(region, queue)


def _loop(region: Region, queue: Queue) -> Kernel:
    """Elementwise work: one launch."""
    memory = queue.memory
    specs = [region.graph.calls[e].spec for e in region.outputs]
    if not specs or not specs[0].size:
        return lambda *data: tuple([memory.new(s.shape, s.dtype) for s in specs])
    inputs = Inputs.of(region)
    constants = [memory.from_host(array) for array in inputs.constants]
    launch = Launch(queue, loop(region, inputs, OPENCL, queue.target), len(inputs.entries) + len(specs))

    def kernel(*data: Data) -> tuple[Data, ...]:
        made = tuple([memory.new(s.shape, s.dtype) for s in specs])
        launch([*[d.finished(memory) for d in data], *constants], made)
        return made

    return kernel


def _reduction(region: Region, queue: Queue) -> Kernel:
    """A reduction: one launch, and a last stage by the host or a second launch where a result has several slices."""
    memory, last = queue.memory, region.nodes[-1]
    call = region.graph.calls[last]
    specs = [region.graph.calls[e].spec for e in region.outputs]
    if not call.inputs[0].size:
        return lambda *data: tuple([_of_nothing(memory, region.graph.calls[e]) for e in region.outputs])
    inputs = Inputs.of(region)
    constants = [memory.from_host(array) for array in inputs.constants]
    made = reduction(region, inputs, OPENCL, queue.target)
    count = len(inputs.entries) + len(specs)
    first = Launch(queue, made.first, count)
    place = region.outputs.index(last)
    sliced = made.slices > 1
    few = memory.shared and made.slices * made.results <= _FEW
    second = Launch(queue, second_stage(made, OPENCL, queue.target), 2) if sliced and not few else None
    accumulated = (made.slices, made.results), made.fold.accumulated

    def kernel(*data: Data) -> tuple[Data, ...]:
        outputs = [memory.new(*accumulated) if sliced and n == place else memory.new(s.shape, s.dtype)
                   for n, s in enumerate(specs)]  # fmt: skip
        first([*[d.finished(memory) for d in data], *constants], outputs)
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


def _of_nothing(memory: Memory, call: Call) -> Data:
    """The value of a call on an array without elements."""
    if not call.spec.size:
        return memory.new(call.spec.shape, call.spec.dtype)
    with np.errstate(all="ignore"):
        value = np.asarray(bind(call)(np.empty(call.inputs[0].shape, call.inputs[0].dtype.numpy)))
    return memory.from_host(value.astype(call.spec.dtype.numpy))


def _movement(region: Region, queue: Queue) -> Kernel:
    """Elements in other places: strided copies into one result. A reshape is the same memory."""
    memory, entry = queue.memory, region.nodes[-1]
    call, args = region.graph.calls[entry], region.graph.args[entry]
    spec = call.spec
    if is_constant(region.graph, entry):
        value = memory.from_host(np.asarray(bind(call)(), spec.dtype.numpy))
        return lambda: (value,)
    sources = {a: memory.from_host(np.asarray(bind(region.graph.calls[a])()))
               for a in args if is_constant(region.graph, a)}  # fmt: skip
    steps = [(args[n], Launch(queue, copy_kernel(copy, spec.dtype, OPENCL, queue.target), 2))
             for n, copy in moves(call) or []]  # fmt: skip

    def kernel(*data: Data) -> tuple[Data, ...]:
        given = sources | {e: d.finished(memory) for e, d in zip(region.inputs, data, strict=True)}
        if call.op.name == "reshape":
            return (given[args[0]].reshaped(spec.shape),)
        made = memory.new(spec.shape, spec.dtype)
        for source, launch in steps:
            launch([given[source]], [made])
        return (made,)

    return kernel
