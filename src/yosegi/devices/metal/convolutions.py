"""Convolutions by MPSGraph, and the gradients of those with one group.

Each is a graph of its own, compiled for the GPU when it is made. Users of other runtimes report wrong results of large
windows (pytorch #188335) and of 2**16 channels or more (pytorch #129207, #96225), and in three dimensions
(pytorch #197114): generated kernels compute these.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Final, final

import numpy as np

from ..._tensor.dtype import DType, float16, float32
from ..._tensor.node import Call, Shape
from ...errors import CompileFailure, LaunchFailure
from ..kernel.convolutions import Form, LibraryConvolution, exchanged, form_refusal, library_convolution
from ..kernel.memory import Data
from .commands import Encoder, pool
from .launch import Queue

DATA_TYPES: Final[dict[DType, int]] = {float32: 0x10000000 | 32, float16: 0x10000000 | 16}
"""MPSDataType."""
MANY: Final = 4096
"""Ones whose sum is 2048 if it is added up in float16."""

_EXPLICIT: Final = 0  # MPSGraphPaddingStyleExplicit
_NCHW, _OIHW = 0, 2  # MPSGraphTensorNamedDataLayout
_ON_THE_GPU: Final = 0
"""MPSGraphOptimizationLevel0. From the next level on a graph may run on the Neural Engine, which rounds to float16."""
_DESCRIPTOR: Final = (
    "descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_"
    "paddingLeft_paddingRight_paddingTop_paddingBottom_paddingStyle_dataLayout_weightsLayout_"
)
_TO_INPUT: Final = (
    "convolution2DDataGradientWithIncomingGradientTensor_weightsTensor_outputShape_forwardConvolutionDescriptor_name_"
)
_TO_WEIGHTS: Final = (
    "convolution2DWeightsGradientWithIncomingGradientTensor_sourceTensor_outputShape_forwardConvolutionDescriptor_name_"
)
_RANK: Final = 4
_LARGEST_WINDOW: Final = 31
_LARGEST_LENGTH: Final = 2**16 - 1
_LARGEST_BYTES: Final = 2**31 - 1


@cache
def _package() -> Any | None:
    """The package `MetalPerformanceShadersGraph`; `None` if it is not installed."""
    try:
        import MetalPerformanceShadersGraph
    except ImportError:
        return None
    return MetalPerformanceShadersGraph


@final
class Convolutions:
    """The convolutions of one device."""

    def __init__(self, shaders: Any, device: Any, queue: Queue) -> None:
        """`shaders` is the package `MetalPerformanceShaders`."""
        self._shaders, self._device, self._queue = shaders, device, queue

    def refusal(self, call: Call) -> str | None:
        """Why there is none for a call, or `None`."""
        if _package() is None:
            return "pyobjc-framework-MetalPerformanceShadersGraph is not installed"
        dtype, specs = call.spec.dtype, (*call.inputs, call.spec)
        if dtype not in DATA_TYPES:
            return f"MPSGraph has no convolution of {dtype.name}"
        if call.spec.ndim > _RANK:
            return "convolutions along three lengths are not left to MPSGraph"
        reason = form_refusal(call, "MPSGraph", pads_sides_alike=False)
        if reason is not None:
            return reason
        wanted = library_convolution(call)
        if max(_window(wanted)) > _LARGEST_WINDOW:
            return f"windows of more than {_LARGEST_WINDOW} elements are not left to MPSGraph"
        if any(max(s.shape) > _LARGEST_LENGTH or s.size * dtype.itemsize > _LARGEST_BYTES for s in specs):
            return "larger tensors than MPSGraph is known to get right"
        return None if dtype is float32 or self._sums_in_single else "MPSGraph adds in float16"

    def launcher(self, call: Call) -> Convolution:
        """A convolution that is not refused. Raises `CompileFailure`."""
        return self._made(library_convolution(call), call.spec.dtype)

    def _made(self, wanted: LibraryConvolution, dtype: DType) -> Convolution:
        return Convolution(self._shaders, _package(), self._device, self._queue, wanted, dtype)

    @cached_property
    def _sums_in_single(self) -> bool:
        """Whether products of float16 are added up in float32: Apple does not say. A convolution of ones shows it."""
        memory, shape = self._queue.memory, (8, MANY, 1, 1)
        wanted = LibraryConvolution(Form.FORWARD, (shape, shape, (8, 8, 1, 1)), ((0, 0),) * 2, (1, 1), (1, 1), 1)
        ones, made = memory.from_host(np.ones(shape, np.float16)), memory.new(wanted.shapes[2], float16)
        try:
            self._made(wanted, float16)([ones, ones], [made])
        except (CompileFailure, LaunchFailure):
            return False
        return bool((memory.to_host(made) == MANY).all())


@final
class Convolution:
    """A convolution that can be put into the queue, again and again."""

    def __init__(
        self, shaders: Any, package: Any, device: Any, queue: Queue, wanted: LibraryConvolution, dtype: DType
    ) -> None:
        self._wrap, self._data = shaders.MPSCommandBuffer, package.MPSGraphTensorData
        self._queue, self._dtype = queue, DATA_TYPES[dtype]
        self._shapes = [list(shape) for shape in _given(wanted)]
        try:
            with pool():
                self._graph = package.MPSGraph.alloc().init()  # whose tensors the compiled graph is fed by
                self._executable, self._order = self._compiled(package, device, wanted)
        except Exception as error:  # Objective-C's exceptions are of several types here
            raise CompileFailure(f"[{queue.name}] MPSGraph compiles no convolution: {error}") from error

    def _compiled(self, package: Any, device: Any, wanted: LibraryConvolution) -> tuple[Any, list[int]]:
        """The graph as compiled for the GPU, and the order in which it takes the operands."""
        graph, kind = self._graph, self._dtype
        fed = [graph.placeholderWithShape_dataType_name_(shape, kind, None) for shape in self._shapes[:2]]
        result = _result(graph, wanted, fed, _descriptor(package, wanted))
        types = [package.MPSGraphShapedType.alloc().initWithShape_dataType_(s, kind) for s in self._shapes[:2]]
        options = package.MPSGraphCompilationDescriptor.alloc().init()
        options.setOptimizationLevel_(_ON_THE_GPU)
        options.setWaitForCompilationCompletion_(True)
        target = package.MPSGraphDevice.deviceWithMTLDevice_(device)
        made = graph.compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
            target, dict(zip(fed, types, strict=True)), [result], None, options
        )
        order = [fed.index(tensor) for tensor in made.feedTensors()]
        made.specializeWithDevice_inputTypes_compilationDescriptor_(target, [types[n] for n in order], options)
        return made, order

    def __call__(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put it into the queue."""
        self._queue.run(self, inputs, outputs)

    def put(self, buffers: Sequence[Any]) -> list[Any]:
        """Put it into the queue, on the buffers of operands and result. It encodes its commands itself, and may commit
        the command buffer and go on in another."""
        commands = self._queue.commands
        with commands.encoding(Encoder.NONE) as (command_buffer, _):
            wrapped = self._wrap.commandBufferWithCommandBuffer_(command_buffer)
            try:
                *operands, result = [
                    self._data.alloc().initWithMTLBuffer_shape_dataType_(buffer, shape, self._dtype)
                    for buffer, shape in zip(buffers, self._shapes, strict=True)
                ]
                self._executable.encodeToCommandBuffer_inputsArray_resultsArray_executionDescriptor_(
                    wrapped, [operands[n] for n in self._order], [result], None
                )
            except Exception as error:  # as above
                raise LaunchFailure(f"[{self._queue.name}] MPSGraph encodes no convolution: {error}") from error
            finally:
                last = wrapped.rootCommandBuffer()
                if last != command_buffer:
                    commands.go_on_in(last)
        return [command_buffer] if last == command_buffer else [command_buffer, last]


def _given(wanted: LibraryConvolution) -> Sequence[Shape]:
    """The shapes of operands and result as they lie in memory."""
    x, w, y = wanted.shapes
    if wanted.form is Form.FORWARD:
        return x, w, y
    return (x, exchanged(w), y) if wanted.form is Form.TO_INPUT else (exchanged(x), exchanged(w), exchanged(y))


def _window(wanted: LibraryConvolution) -> Shape:
    """The lengths of a window."""
    return wanted.shapes[2 if wanted.form is Form.TO_WEIGHTS else 1][2:]


def _descriptor(package: Any, wanted: LibraryConvolution) -> Any:
    """The windows. X is the last length, Y the one before it."""
    (top, bottom), (left, right) = wanted.pads
    (down, along), (high, wide) = wanted.strides, wanted.dilations
    return getattr(package.MPSGraphConvolution2DOpDescriptor, _DESCRIPTOR)(
        along, down, wide, high, wanted.groups, left, right, top, bottom, _EXPLICIT, _NCHW, _OIHW
    )


def _result(graph: Any, wanted: LibraryConvolution, fed: Sequence[Any], windows: Any) -> Any:
    """The result of a convolution in a graph. The graph brings the operands of gradients into the order that it wants
    for them."""
    x, w = fed
    if wanted.form is Form.FORWARD:
        return graph.convolution2DWithSourceTensor_weightsTensor_descriptor_name_(x, w, windows, None)
    shape, w = list(wanted.shapes[2]), _exchanged(graph, w)
    if wanted.form is Form.TO_INPUT:
        return getattr(graph, _TO_INPUT)(x, graph.reverseTensor_axes_name_(w, [2, 3], None), shape, windows, None)
    return _exchanged(graph, getattr(graph, _TO_WEIGHTS)(w, _exchanged(graph, x), shape, windows, None))


def _exchanged(graph: Any, tensor: Any) -> Any:
    """A tensor with its first two dimensions exchanged."""
    return graph.transposeTensor_dimension_withDimension_name_(tensor, 0, 1, None)
