"""Fourier transforms by cuFFT, as launches that are recorded and captured like generated kernels.

An op becomes steps: the axes brought into another order, a call of cuFFT along neighbouring axes, a factor. cuFFT's
plans are made, with their workspace, when the op is compiled: a launch allocates nothing and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import CDLL, c_int, c_void_p
from dataclasses import dataclass
from functools import cache
from math import prod, sqrt
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._run.device import Kernel
from ..._schedule.fuse import Region, fuse
from ..._tensor.dtype import DType, complex64, complex128, float32, float64, real_of
from ..._tensor.node import Call, Shape
from ..._tensor.op import convert, leaf_call
from ..._tensor.role import Transform
from ...codegen.c.builder import INT_LIMIT
from ...codegen.c.kernel_source import NAME
from ...codegen.c.kernel_source import Kernel as Generated
from ..kernel.launching import arguments_of
from .blas import loaded
from .dialect import CUDA
from .errors import translated
from .launch import Launch, Queue, transposed
from .library_ops import memory_from_pool
from .memory import Data

_LARGEST: Final = 2**31 - 1
_MOST_AXES: Final = 3
_TYPES: Final = {
    "C2C": (complex64, complex64), "R2C": (float32, complex64), "C2R": (complex64, float32),
    "Z2Z": (complex128, complex128), "D2Z": (float64, complex128), "Z2D": (complex128, float64),
}  # fmt: skip
"""cuFFT's names of transforms, with the dtypes that go in and come out."""
_GROUP: Final = 256


@dataclass(frozen=True, slots=True)
class Ordered:
    """The axes of an array in another order, as a copy."""

    shape: Shape
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FourierPass:
    """One call of cuFFT, along neighbouring axes of an array, which are its first or its last."""

    kind: str
    is_inverse: bool
    sizes: tuple[int, ...]
    """The numbers that are transformed along each of them."""
    given: tuple[int, ...]
    """The elements along each before."""
    made: tuple[int, ...]
    """The elements along each after."""
    stride: int
    """The distance of neighbours along the last of them, in elements."""
    batch: int
    shape: Shape
    """That of the result."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """All numbers times a factor, in place."""

    factor: float
    size: int
    """How many they are."""


Step = Ordered | FourierPass | Scaled


def is_transform(call: Call) -> bool:
    """True if the call is a Fourier transform."""
    return isinstance(call.op.role, Transform)


def transform_refusal(call: Call) -> str | None:
    """Why cuFFT has no plan for a transform, or `None`."""
    return None if max(call.inputs[0].size, call.spec.size) <= _LARGEST else "more elements than cuFFT counts"


def steps_of(call: Call) -> list[Step]:
    """A transform of at least one element in steps."""
    x, made, attrs = call.inputs[0], call.spec, call.attrs
    is_double = float64 in (x.dtype, real_of(x.dtype))
    steps: list[Step] = []
    if call.op.role is Transform.COMPLEX:
        axes, is_inverse, count = attrs["axes"], attrs["inverse"], prod(x.shape[a] for a in attrs["axes"])
        for run in _runs(sorted(axes)):
            sizes = x.shape[run[0] : run[-1] + 1]
            steps += _along(x.shape, run, "Z2Z" if is_double else "C2C", is_inverse, sizes, sizes)
    else:
        axis, is_inverse = attrs["axis"], call.op.role is Transform.FROM_HALF
        count = attrs["n"] if is_inverse else x.shape[axis]
        kind = ("Z2D" if is_double else "C2R") if is_inverse else ("D2Z" if is_double else "R2C")
        steps = _along(x.shape, (axis,), kind, is_inverse, (count,), (made.shape[axis],))
    factor = {"backward": 1 / count if is_inverse else 1.0, "ortho": 1 / sqrt(count),
              "forward": 1.0 if is_inverse else 1 / count}[attrs["norm"]]  # fmt: skip
    return [*steps, Scaled(factor, made.size)] if factor != 1 else steps


def _runs(axes: Sequence[int]) -> list[tuple[int, ...]]:
    """Axes in runs of neighbours, as many as cuFFT takes at once."""
    runs: list[tuple[int, ...]] = []
    for axis in axes:
        if runs and runs[-1][-1] == axis - 1 and len(runs[-1]) < _MOST_AXES:
            runs[-1] = (*runs[-1], axis)
        else:
            runs.append((axis,))
    return runs


def _along(
    shape: Shape, run: tuple[int, ...], kind: str, is_inverse: bool, sizes: tuple[int, ...], made: tuple[int, ...]
) -> list[Step]:
    first, end = run[0], run[-1] + 1
    given = shape[first:end]
    outer, inner = prod(shape[:first]), prod(shape[end:])
    spoils = kind in ("C2R", "Z2D")  # cuFFT may write into what it reads
    if not spoils and 1 in (outer, inner):
        return [
            FourierPass(
                kind, is_inverse, sizes, given, made, inner, outer * inner, (*shape[:first], *made, *shape[end:])
            )
        ]
    others = (*range(first), *range(end, len(shape)))
    order = (*others, *run)
    result = (*[shape[a] for a in others], *made)
    steps: list[Step] = [Ordered(shape, order)]
    steps.append(FourierPass(kind, is_inverse, sizes, given, made, 1, outer * inner, result))
    if inner > 1:
        steps.append(Ordered(result, tuple(int(a) for a in np.argsort(order))))
    return steps


def compile_transform(region: Region, queue: Queue, compile_loop: Callable[[Region], Kernel]) -> Kernel:
    """The region of a transform as a function of its input's data."""
    memory, call = queue.memory, region.calls[-1]
    out = call.spec
    if not out.size:
        return lambda *data: (memory.new(out.shape, out.dtype),)
    arguments = arguments_of(region, memory)
    launches: list[Callable[[Data], Data]] = []
    dtype = call.inputs[0].dtype
    if dtype.is_half:
        half = call.inputs[0]
        graph = Graph((leaf_call(half), convert.call((half,), {"dtype": float32})), ((), (0,)), (1,))
        widen = compile_loop(fuse(graph)[0])
        launches.append(lambda data: widen(data)[0])
        dtype = float32
    for step in steps_of(call):
        launches.append(_launcher(queue, step, dtype))
        dtype = _TYPES[step.kind][1] if isinstance(step, FourierPass) else dtype

    def kernel(*data: Data) -> tuple[Data, ...]:
        value = arguments(data)[0]
        for launch in launches:
            value = launch(value)
        return (value.reshaped(out.shape),)

    return kernel


def _launcher(queue: Queue, step: Step, dtype: DType) -> Callable[[Data], Data]:
    """A step as a function of data of a dtype."""
    if isinstance(step, Ordered):
        return transposed(queue, step.shape, step.order, dtype)
    if isinstance(step, FourierPass):
        transformed = Transformed(queue, step)
        shape, made = step.shape, _TYPES[step.kind][1]

        def transform(data: Data) -> Data:
            result = queue.memory.new(shape, made)
            transformed(data, result)
            return result

        return transform
    real = real_of(dtype)
    scaling = Launch(queue, _scaling(step.size * dtype.itemsize // real.itemsize, real, step.factor), 1)

    def scale(data: Data) -> Data:
        scaling([], [data])
        return data

    return scale


def _scaling(count: int, dtype: DType, factor: float) -> Generated:
    is_long = count >= INT_LIMIT
    size, number = "long long" if is_long else "int", CUDA.types[dtype]
    source = f"""{CUDA.header}
{CUDA.kernel} {NAME}({number}* __restrict__ x, const {size} n)
{{
    const {size} i = ({size})blockIdx.x * {_GROUP} + threadIdx.x;
    if (i < n) x[i] *= ({number}){factor!r};
}}
"""
    return Generated(source, (count,), is_long, count, _GROUP)


@cache
def _set_stream() -> Any:
    function = CDLL(loaded("libcufft.so")).cufftSetStream
    function.argtypes = (c_int, c_void_p)
    return function


class Transformed:
    """A call of cuFFT, which can be launched again and again, as a generated kernel can."""

    def __init__(self, queue: Queue, step: FourierPass) -> None:
        self._queue = queue
        distances = (1, 1) if step.stride > 1 else (prod(step.given), prod(step.made))
        with translated(f"[{queue.name}] planning a transform"), queue.lock:
            queue.runtime.setDevice(queue.number)
            cufft = queue.cupy.cuda.cufft
            with memory_from_pool(queue), queue.stream:
                self._plan = cufft.PlanNd(
                    step.sizes, step.given, step.stride, distances[0], step.made, step.stride, distances[1],
                    getattr(cufft, f"CUFFT_{step.kind}"), step.batch, "C", 0, None,
                )  # fmt: skip
        self._execute = getattr(cufft, f"exec{step.kind}")
        self._check = cufft.check_result
        is_complex = step.kind in ("C2C", "Z2Z")
        self._direction = (cufft.CUFFT_INVERSE if step.is_inverse else cufft.CUFFT_FORWARD,) if is_complex else ()
        self._written = 2 if step.kind in ("C2R", "Z2D") else 1

    def __call__(self, given: Data, made: Data) -> None:
        """Put it into the stream."""
        queue = self._queue
        with translated(f"[{queue.name}] transforming"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([given.pointer, made.pointer])
        queue.note(self, (given, made), self._written)

    def at(self, pointers: list[int]) -> None:
        """Launch by addresses, on the current device. Raises CuPy's own errors."""
        handle = self._plan.handle
        self._check(_set_stream()(handle, self._queue.pointer))
        self._execute(handle, *pointers, *self._direction)
