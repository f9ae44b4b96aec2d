"""Convolutions through cuDNN, where it is installed, on tensors as they lie: each of its engines is a variant.

What it lacks, padding that differs from side to side, generated kernels have. For gradients tensors are copied into the
order of axes that it wants.
"""

from __future__ import annotations

from ctypes import byref, c_void_p
from functools import cached_property
from typing import Any, Final

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.dtype import DType, bfloat16, float16, float32, float64
from ..._tensor.node import Call, Shape
from ..._tensor.precision import Precision
from ...codegen.c.copies import strides_of
from ...errors import CompileFailure, LaunchFailure, NoSuchVariant
from ..kernel.convolutions import Form, exchanged, form_of, form_refusal, library_convolution
from ..kernel.launching import arguments_of
from .cudnn import (
    CONVOLUTION_MODE,
    DATA_TYPE,
    DESCRIPTORS,
    DOUBLE,
    INTEGERS,
    SINGLE,
    Attribute,
    CUDNNError,
    Descriptor,
    do,
    library_refusal,
)
from .engines import Engine, EnginePlan, graph_of, usable
from .errors import translated
from .launch import Queue, transposed
from .memory import Data

ENGINES: Final = 6
"""So many are measured: the one that the library expects to be the fastest often is not."""

_DATA_TYPES: Final[dict[DType, int]] = {float32: 0, float64: 1, float16: 2, bfloat16: 9}
"""cudnnDataType_t."""
_NOT_TURNED_AROUND: Final = 1
"""cudnnConvolutionMode_t: what deep learning calls a convolution."""
_WINDOWS, _TENSOR = 1, 17
"""cudnnBackendDescriptorType_t."""

_WINDOWS_SUMS: Final = Attribute(100, DATA_TYPE)
_WINDOWS_MODE: Final = Attribute(101, CONVOLUTION_MODE)
_WINDOWS_DILATIONS: Final = Attribute(102, INTEGERS)
_WINDOWS_STRIDES: Final = Attribute(103, INTEGERS)
_WINDOWS_PADS_AFTER: Final = Attribute(104, INTEGERS)
_WINDOWS_PADS_BEFORE: Final = Attribute(105, INTEGERS)
_WINDOWS_LENGTHS: Final = Attribute(106, INTEGERS)
_TENSOR_ALIGNMENT: Final = Attribute(900, INTEGERS)
_TENSOR_DTYPE: Final = Attribute(901, DATA_TYPE)
_TENSOR_SHAPE: Final = Attribute(902, INTEGERS)
_TENSOR_STRIDES: Final = Attribute(903, INTEGERS)
_TENSOR_NUMBER: Final = Attribute(906, INTEGERS)

_ALIGNMENT: Final = 16
"""Bytes: what engines load at a time. The pool's blocks are aligned to more."""
_TENSORS: Final = (1, 2, 3)
"""The numbers of the input, the weights and the result in a graph."""
_LARGEST: Final = 2**31 - 1

_OPERATIONS: Final[dict[Form, tuple[int, tuple[int, ...]]]] = {
    Form.FORWARD: (10, (704, 703, 705, 702, 700, 701)),
    Form.TO_WEIGHTS: (11, (716, 717, 715, 714, 712, 713)),
    Form.TO_INPUT: (12, (711, 709, 710, 708, 706, 707)),
}
"""Operations: cudnnBackendDescriptorType_t, and the attributes, cudnnBackendAttributeName_t: input, second operand,
result, windows, factor, and the factor of the numbers that the result is added to."""


class Convolutions:
    """The convolutions of one device."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._stream = -1
        self._known: tuple[Call, bool, list[Engine], list[str]] | None = None

    def refusal(self, call: Call) -> str | None:
        """Why there is none for a call, or `None`."""
        reason = library_refusal()
        if reason is not None:
            return reason
        if call.spec.dtype not in _DATA_TYPES:
            return f"cuDNN has no convolution of {call.spec.dtype.name}"
        if max(s.size for s in (*call.inputs, call.spec)) > _LARGEST:
            return "more elements than cuDNN counts"
        return form_refusal(call, "cuDNN", pads_sides_alike=True)

    def compiled(self, region: Region, rank: int | None = None) -> Kernel:
        """The convolution of a region, at its precision: by the engine for which `rank` others are expected to be
        faster, or the first that can be made.

        Raises `CompileFailure` if there is none, and `NoSuchVariant` if there are fewer."""
        memory, call = self._queue.memory, region.calls[-1]
        doing = f"[{self._queue.name}] preparing a convolution"
        try:
            with translated(doing), self._queue.lock:
                self._queue.runtime.setDevice(self._queue.number)
                plan = self._plan(call, rank, rounds=region.precision is Precision.TF32)
        except LaunchFailure as failure:
            raise CompileFailure(str(failure)) from failure
        launch = _Convolution(self, plan)
        arguments = arguments_of(region, memory)
        spec, form, queue = call.spec, form_of(call), self._queue
        lengths = range(2, spec.ndim)
        order = (1, 0, *lengths)
        shapes = [given.shape for given in call.inputs]
        if form is Form.TO_WEIGHTS:
            shape = exchanged(spec.shape)
            before = [transposed(queue, given, order, spec.dtype) for given in shapes]
            after = transposed(queue, shape, order, spec.dtype)
        else:
            shape, swapped = spec.shape, order if form is Form.TO_INPUT else None
            before = [transposed(queue, shapes[0], None, spec.dtype),
                      transposed(queue, shapes[1], swapped, spec.dtype, lengths)]  # fmt: skip
            after = transposed(queue, shape, None, spec.dtype)

        def kernel(*data: Data) -> tuple[Data, ...]:
            made = memory.new(shape, spec.dtype)
            launch(*[copied(operand) for copied, operand in zip(before, arguments(data), strict=True)], made)
            return (after(made),)

        return kernel

    @property
    def queue(self) -> Queue:
        """Where launches go."""
        return self._queue

    @cached_property
    def handle(self) -> c_void_p:
        """The library's, made when the first convolution is."""
        made = c_void_p()
        do("cudnnCreate", byref(made))
        return made

    def follow(self) -> None:
        """Let convolutions go to where launches go now."""
        if self._stream != self._queue.pointer:
            do("cudnnSetStream", self.handle, c_void_p(self._queue.pointer))
            self._stream = self._queue.pointer

    def _plan(self, call: Call, rank: int | None, *, rounds: bool) -> EnginePlan:
        engines, objections = self._engines(call, rounds=rounds)
        if rank is not None:
            if rank >= len(engines):
                raise NoSuchVariant(f"cuDNN has {len(engines)} engines that may compute it")
            return EnginePlan(engines[rank], self.handle)
        reasons = "; ".join(objections) or "it knows of none"
        refused: Exception = CompileFailure(f"cuDNN has no engine that may compute it: {reasons}")
        for engine in engines:
            made = self._attempt(engine)
            if isinstance(made, EnginePlan):
                return made
            refused = made
            del made
        try:
            raise refused
        finally:
            del refused  # which knows this call, by its traceback: nothing here may know it

    def _attempt(self, engine: Engine) -> EnginePlan | Exception:
        """An engine may find out only now that it cannot. In a function of its own, so that what was made until then
        goes at once, and not when garbage is collected, in the midst of whatever happens then."""
        try:
            return EnginePlan(engine, self.handle)
        except (CUDNNError, CompileFailure) as error:
            return error

    def _engines(self, call: Call, *, rounds: bool) -> tuple[list[Engine], list[str]]:
        """Those for a call, and why it is not others. The variants of one convolution are made one after the other: the
        library is asked once."""
        known = self._known
        if known is None or known[:2] != (call, rounds):
            graph = graph_of(_operation(call), self.handle)
            found = usable(graph, call.spec.dtype, rounds=rounds, most=ENGINES)
            known = self._known = call, rounds, *found
        return known[2:]


class _Convolution:
    """One that can be launched, again and again, as a generated kernel can."""

    def __init__(self, owner: Convolutions, plan: EnginePlan) -> None:
        self._owner = owner
        self._plan = plan

    def __call__(self, *data: Data) -> None:
        """Put it into the stream: for the input, the weights and the result."""
        queue = self._owner.queue
        with translated(f"[{queue.name}] convolving"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([d.pointer for d in data])
        queue.note(self, data, 1)

    def at(self, pointers: list[int]) -> None:
        """Launch by addresses, on the current device. Raises the library's own errors."""
        owner, plan = self._owner, self._plan
        owner.follow()
        plan.run(_TENSORS, pointers, owner.queue.workspace if plan.workspace else 0)


def _operation(call: Call) -> Descriptor:
    """A convolution in the library's words. How many groups there are, it sees from the channels of the weights."""
    dtype, wanted = call.spec.dtype, library_convolution(call)
    x, w, y = (_tensor(number, shape, dtype) for number, shape in zip(_TENSORS, wanted.shapes, strict=True))
    pads = [low for low, _ in wanted.pads]
    windows = (
        Descriptor(_WINDOWS)
        .set(_WINDOWS_SUMS, _DATA_TYPES[float64 if dtype is float64 else float32])
        .set(_WINDOWS_MODE, _NOT_TURNED_AROUND)
        .set(_WINDOWS_LENGTHS, len(pads))
        .set(_WINDOWS_PADS_BEFORE, *pads)
        .set(_WINDOWS_PADS_AFTER, *pads)
        .set(_WINDOWS_STRIDES, *wanted.strides)
        .set(_WINDOWS_DILATIONS, *wanted.dilations)
        .finished()
    )
    factor: tuple[int, Any] = DOUBLE if dtype is float64 else SINGLE
    holds = (DESCRIPTORS, DESCRIPTORS, DESCRIPTORS, DESCRIPTORS, factor, factor)
    kind, attributes = _OPERATIONS[wanted.form]
    made = Descriptor(kind)
    for number, held, value in zip(attributes, holds, (x, w, y, windows, 1, 0), strict=True):
        made.set(Attribute(number, held), value)
    return made.finished()


def _tensor(number: int, shape: Shape, dtype: DType) -> Descriptor:
    return (
        Descriptor(_TENSOR)
        .set(_TENSOR_DTYPE, _DATA_TYPES[dtype])
        .set(_TENSOR_SHAPE, *shape)
        .set(_TENSOR_STRIDES, *strides_of(shape))
        .set(_TENSOR_NUMBER, number)
        .set(_TENSOR_ALIGNMENT, _ALIGNMENT)
        .finished()
    )
