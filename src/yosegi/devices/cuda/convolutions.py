"""Convolutions through cuDNN, where it is installed, on tensors as they lie: each of its engines is a variant.

Its descriptions have at least two lengths: a convolution along one is one along two, the first of which is 1. What it
lacks, padding that differs from side to side, generated kernels have.

The gradients of a convolution are convolutions. The one by its weights has weights that are larger than its result; the
one by its input, if it has a stride, spreads the elements of its own input. The library has engines of its own for
both, which want batch and channels in the other order, and weights that are not reversed: the tensors are copied.
"""

from __future__ import annotations

from ctypes import byref, c_void_p
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.reference import bind
from ..._run.device import Kernel
from ..._schedule.fuse import Region, is_constant
from ..._tensor.dtype import DType, bfloat16, float16, float32, float64
from ..._tensor.node import Call, Shape
from ..._tensor.precision import Precision
from ...codegen.c.copies import strides_of
from ...errors import CompileFailure, LaunchFailure, NoSuchVariant
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


class _Form(Enum):
    """An operation of the library that is a convolution of ours: its type of descriptor, and its attributes: input,
    second operand, result, windows, factor, and the factor of the numbers that the result is added to."""

    FORWARD = (10, (704, 703, 705, 702, 700, 701))
    TO_WEIGHTS = (11, (716, 717, 715, 714, 712, 713))
    TO_INPUT = (12, (711, 709, 710, 708, 706, 707))

    @property
    def descriptor(self) -> int:
        """cudnnBackendDescriptorType_t."""
        return self.value[0]

    @property
    def attributes(self) -> tuple[int, ...]:
        """cudnnBackendAttributeName_t."""
        return self.value[1]


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
        form = _form(call)
        if form is not _Form.TO_INPUT and any(s > 1 for s in call.attrs["spread"]):
            return "cuDNN has no convolution of elements that stand apart"
        if form is not _Form.TO_INPUT and any(low < 0 for low, _ in call.attrs["padding"]):
            return "cuDNN has no convolution that cuts the sides off"
        if form is _Form.FORWARD and any(low != high for low, high in call.attrs["padding"]):
            return "cuDNN need not have an engine that pads one side more than the other"
        sizes = [s.size for s in (*call.inputs, call.spec)]
        if max(sizes) > _LARGEST:
            return "more elements than cuDNN counts"
        return None if all(sizes) else "there is nothing to compute"

    def compiled(self, region: Region, rank: int | None = None) -> Kernel:
        """The convolution of a region, at its precision: by the engine for which `rank` others are expected to be
        faster, or the first that can be made.

        Raises `CompileFailure` if there is none, and `NoSuchVariant` if there are fewer."""
        memory, graph, entry = self._queue.memory, region.graph, region.nodes[-1]
        call, args = graph.calls[entry], graph.args[entry]
        doing = f"[{self._queue.name}] preparing a convolution"
        try:
            with translated(doing), self._queue.lock:
                self._queue.runtime.setDevice(self._queue.number)
                plan = self._plan(call, rank, rounds=region.precision is Precision.TF32)
        except LaunchFailure as failure:
            raise CompileFailure(str(failure)) from failure
        launch = _Convolution(self, plan)
        constants = {a: memory.from_host(np.asarray(bind(graph.calls[a])())) for a in args if is_constant(graph, a)}
        spec, form, queue = call.spec, _form(call), self._queue
        lengths = range(2, spec.ndim)
        order = (1, 0, *lengths)
        shapes = [given.shape for given in call.inputs]
        if form is _Form.TO_WEIGHTS:
            shape = _swapped(spec.shape)
            before = [transposed(queue, given, order, spec.dtype) for given in shapes]
            after = transposed(queue, shape, order, spec.dtype)
        else:
            shape, swapped = spec.shape, order if form is _Form.TO_INPUT else None
            before = [transposed(queue, shapes[0], None, spec.dtype),
                      transposed(queue, shapes[1], swapped, spec.dtype, lengths)]  # fmt: skip
            after = transposed(queue, shape, None, spec.dtype)

        def kernel(*data: Data) -> tuple[Data, ...]:
            given = constants | dict(zip(region.inputs, data, strict=True))
            made = memory.new(shape, spec.dtype)
            launch(*[copied(given[a]) for copied, a in zip(before, args, strict=True)], made)
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


def _form(call: Call) -> _Form:
    """The operation of the library that a convolution is."""
    if call.attrs["groups"] == 1:
        if _is_weight_gradient(call):
            return _Form.TO_WEIGHTS
        if _is_input_gradient(call):
            return _Form.TO_INPUT
    return _Form.FORWARD


def _is_weight_gradient(call: Call) -> bool:
    """True if a convolution is the gradient of another by its weights: its own weights are larger than its result.

    The result has as many elements as the other one's weights, if both pad alike. A gradient whose padding differs from
    side to side leaves out elements that the other convolution did not read.
    """
    x, w = call.inputs
    attrs = call.attrs
    if prod(w.shape[2:]) <= prod(call.spec.shape[2:]) or any(s > 1 for s in attrs["spread"]):
        return False
    lengths = zip(
        x.shape[2:], w.shape[2:], call.spec.shape[2:], attrs["stride"], attrs["dilation"], attrs["padding"], strict=True
    )
    return all(
        _count(size, window, low, dilation, stride) == count
        for size, count, window, dilation, stride, (low, _) in lengths
    )


def _is_input_gradient(call: Call) -> bool:
    """True if a convolution is the gradient by its input of another with strides."""
    x, w = call.inputs
    attrs = call.attrs
    if all(s == 1 for s in attrs["spread"]) or any(s != 1 for s in attrs["stride"]):
        return False
    lengths = zip(x.shape[2:], w.shape[2:], call.spec.shape[2:], attrs["spread"], attrs["dilation"], strict=True)
    return all(
        pad >= 0 and _count(size, window, pad, dilation, stride) == count
        for pad, (count, window, size, stride, dilation) in zip(_pads(call), lengths, strict=True)
    )


def _pads(call: Call) -> list[int]:
    """The padding of the convolution that a convolution is the gradient of by its input."""
    sizes = zip(call.inputs[1].shape[2:], call.attrs["dilation"], call.attrs["padding"], strict=True)
    return [dilation * (window - 1) - low for window, dilation, (low, _) in sizes]


def _count(size: int, window: int, pad: int, dilation: int, stride: int) -> int:
    """The windows along a length that is padded alike on both sides."""
    return (size + 2 * pad - dilation * (window - 1) - 1) // stride + 1


def _operation(call: Call) -> Descriptor:
    """A convolution in the library's words. How many groups there are, it sees from the channels of the weights."""
    dtype, attrs, form = call.spec.dtype, call.attrs, _form(call)
    shapes = [spec.shape for spec in (*call.inputs, call.spec)]
    pads = [low for low, _ in attrs["padding"]]
    strides, dilations = attrs["stride"], attrs["dilation"]
    if form is _Form.TO_WEIGHTS:
        shapes = [_swapped(shape) for shape in shapes]
        strides, dilations = dilations, strides
    elif form is _Form.TO_INPUT:
        shapes[1] = _swapped(shapes[1])
        pads, strides = _pads(call), attrs["spread"]
    x, w, y = (_tensor(number, shape, dtype) for number, shape in zip(_TENSORS, shapes, strict=True))
    one = [1] * (len(_widened(call.spec.shape)) - call.spec.ndim)
    pads = [0] * len(one) + pads
    windows = (
        Descriptor(_WINDOWS)
        .set(_WINDOWS_SUMS, _DATA_TYPES[float64 if dtype is float64 else float32])
        .set(_WINDOWS_MODE, _NOT_TURNED_AROUND)
        .set(_WINDOWS_LENGTHS, len(pads))
        .set(_WINDOWS_PADS_BEFORE, *pads)
        .set(_WINDOWS_PADS_AFTER, *pads)
        .set(_WINDOWS_STRIDES, *one, *strides)
        .set(_WINDOWS_DILATIONS, *one, *dilations)
        .finished()
    )
    factor: tuple[int, Any] = DOUBLE if dtype is float64 else SINGLE
    holds = (DESCRIPTORS, DESCRIPTORS, DESCRIPTORS, DESCRIPTORS, factor, factor)
    made = Descriptor(form.descriptor)
    for number, held, value in zip(form.attributes, holds, (x, w, y, windows, 1, 0), strict=True):
        made.set(Attribute(number, held), value)
    return made.finished()


def _swapped(shape: Shape) -> Shape:
    """A shape with its first two dimensions exchanged."""
    return (shape[1], shape[0], *shape[2:])


def _tensor(number: int, shape: Shape, dtype: DType) -> Descriptor:
    wide = _widened(shape)
    return (
        Descriptor(_TENSOR)
        .set(_TENSOR_DTYPE, _DATA_TYPES[dtype])
        .set(_TENSOR_SHAPE, *wide)
        .set(_TENSOR_STRIDES, *strides_of(wide))
        .set(_TENSOR_NUMBER, number)
        .set(_TENSOR_ALIGNMENT, _ALIGNMENT)
        .finished()
    )


def _widened(shape: Shape) -> Shape:
    """A shape with at least two lengths."""
    return (*shape[:2], 1, *shape[2:]) if len(shape) == 3 else shape
