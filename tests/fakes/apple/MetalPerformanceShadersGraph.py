"""pyobjc's `MetalPerformanceShadersGraph`, as far as the Metal device uses it: convolutions and their gradients.

Each is a sum over the places of a window, by NumPy, in float32. It refuses what the real one does, which ends the
process there: dtypes that it lacks, channels and groups that do not fit, shapes that the windows do not give, missing
feeds, data of another shape or dtype, an open encoder. A compiled graph takes its inputs in an order of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import Metal  # type: ignore[import-not-found]
import numpy as np
from MetalPerformanceShaders import MPSCommandBuffer  # type: ignore[import-not-found]
from objc import Object, autoreleased, error  # type: ignore[attr-defined]

_TYPES = {0x10000000 | 16: np.float16, 0x10000000 | 32: np.float32}
_NCHW, _OIHW, _EXPLICIT, _GPU_ALONE = 0, 2, 0, 0
Shape = tuple[int, ...]
Evaluate = Callable[[dict[Any, Any]], Any]

sums_in_half = False
"""Whether products of float16 are added up in float16, of which Apple says nothing."""
is_wrong = False
"""Whether results are wrong."""
continues = ""
"""Whether encoding commits the command buffer and goes on in another: "before" its commands, or "behind" them."""
encoded = 0
"""Graphs that were encoded."""


class Abort(BaseException):
    """The process would end here."""


def _demand(holds: bool, reason: str) -> None:
    if not holds:
        raise Abort(reason)


def _tried(what: str) -> None:
    reason = Metal.failing(what)
    if reason is not None:
        raise error(reason)


def _dtype(data_type: int) -> Any:
    _demand(data_type in _TYPES, "MPSGraph has no such type")
    return np.dtype(_TYPES[data_type])


class MPSGraphDevice(Object):
    """A GPU."""

    @classmethod
    def deviceWithMTLDevice_(cls, device: Any) -> Any:
        _demand(isinstance(device, Metal.MTLDevice), "another object")
        return autoreleased(cls())


class MPSGraphShapedType(Object):
    """A shape and a dtype."""

    def initWithShape_dataType_(self, shape: list[int], data_type: int) -> MPSGraphShapedType:
        Object.__init__(self)
        self.key = tuple(shape), _dtype(data_type)
        return self


class MPSGraphCompilationDescriptor(Object):
    """How a graph is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.level, self.waits = 1, False

    def setOptimizationLevel_(self, level: int) -> None:
        self.level = level

    def setWaitForCompilationCompletion_(self, waits: bool) -> None:
        self.waits = waits


class MPSGraphConvolution2DOpDescriptor(Object):
    """How windows move."""

    @classmethod
    def descriptorWithStrideInX_strideInY_dilationRateInX_dilationRateInY_groups_paddingLeft_paddingRight_paddingTop_paddingBottom_paddingStyle_dataLayout_weightsLayout_(  # noqa: E501
        cls, sx: int, sy: int, dx: int, dy: int, groups: int, left: int, right: int, top: int, bottom: int, style: int,
        data: int, weights: int,
    ) -> Any:  # fmt: skip
        _demand((style, data, weights) == (_EXPLICIT, _NCHW, _OIHW), "the device uses no other layouts")
        _demand(min(sx, sy, dx, dy, groups) > 0, "strides, dilations and groups are at least 1")
        _demand(min(left, right, top, bottom) >= 0, "all values of the padding should be non-negative")
        made = cls()
        made.strides, made.dilations, made.groups = (sy, sx), (dy, dx), groups
        made.pads = (top, bottom), (left, right)
        return autoreleased(made)

    def shape(self, x: Shape, w: Shape) -> Shape:
        """The shape of a convolution of x by w."""
        _demand(len(x) == len(w) == 4, "tensors must be rank 4")
        _demand(x[1] == w[1] * self.groups, "Source and weight input channels mismatch")
        _demand(w[0] % self.groups == 0, "output channels are no multiple of the groups")
        counts = [
            (n + low + high - d * (k - 1) - 1) // s + 1
            for n, k, s, d, (low, high) in zip(x[2:], w[2:], self.strides, self.dilations, self.pads, strict=True)
        ]
        return (x[0], w[0], *counts)

    def check(self, x: Shape, w: Shape, y: Shape) -> None:
        """Fail unless a convolution of x by w gives y."""
        _demand(self.shape(x, w) == y, "destination and windows mismatch")

    def padded(self, x: Shape) -> Shape:
        """The shape of x with its padding."""
        return (*x[:2], *[n + low + high for n, (low, high) in zip(x[2:], self.pads, strict=True)])

    def inner(self, x: Shape) -> tuple[slice, ...]:
        """Where in the padded array x is."""
        return (..., *[slice(low, low + n) for n, (low, _) in zip(x[2:], self.pads, strict=True)])  # type: ignore[return-value]

    def places(self, w: Shape, y: Shape) -> Iterator[tuple[tuple[int, int], tuple[slice, ...]]]:
        """Each place of a window, and the elements of the padded input under it in all windows."""
        for place in product(*map(range, w[2:])):
            yield place, (..., *[  # type: ignore[misc]
                slice(at * d, at * d + (count - 1) * s + 1, s)
                for at, d, s, count in zip(place, self.dilations, self.strides, y[2:], strict=True)
            ])  # fmt: skip


class MPSGraphTensor(Object):
    """A value of a graph, which can be computed from the arrays of placeholders."""

    def __init__(
        self, graph: Any, shape: Sequence[int], dtype: Any, parents: Sequence[Any], evaluate: Evaluate
    ) -> None:
        super().__init__()
        self.key = tuple(shape), dtype
        self.parents, self.evaluate = parents, evaluate
        _demand(all(n > 0 for n in shape), "a tensor of nothing")

    def shape(self) -> list[int]:
        return list(self.key[0])

    def placeholders(self) -> set[Any]:
        """The placeholders that it is computed from."""
        return set().union(*[p.placeholders() for p in self.parents]) if self.parents else {self}


class MPSGraph(Object):
    """Operations."""

    def _made(self, shape: Sequence[int], parents: Sequence[Any], evaluate: Callable[..., Any]) -> Any:
        (dtype,) = {p.key[1] for p in parents}  # all of one dtype
        return autoreleased(
            MPSGraphTensor(self, shape, dtype, parents, lambda fed: evaluate(*[p.evaluate(fed) for p in parents]))
        )

    def placeholderWithShape_dataType_name_(self, shape: list[int], data_type: int, name: None) -> Any:
        made = MPSGraphTensor(self, shape, _dtype(data_type), [], lambda fed: fed[made])
        return autoreleased(made)

    def transposeTensor_dimension_withDimension_name_(self, x: Any, one: int, other: int, name: None) -> Any:
        shape = list(x.key[0])
        shape[one], shape[other] = shape[other], shape[one]
        return self._made(shape, [x], lambda a: np.swapaxes(a, one, other))

    def reverseTensor_axes_name_(self, x: Any, axes: list[int], name: None) -> Any:
        return self._made(x.key[0], [x], lambda a: np.flip(a, axes))

    def convolution2DWithSourceTensor_weightsTensor_descriptor_name_(
        self, x: Any, w: Any, windows: Any, n: None
    ) -> Any:
        shape = windows.shape(x.key[0], w.key[0])
        return self._made(shape, [x, w], lambda a, b: _forward(a, b, shape, windows))

    def convolution2DDataGradientWithIncomingGradientTensor_weightsTensor_outputShape_forwardConvolutionDescriptor_name_(  # noqa: E501
        self, g: Any, w: Any, shape: list[int], windows: Any, name: None
    ) -> Any:
        windows.check(tuple(shape), w.key[0], g.key[0])
        return self._made(shape, [g, w], lambda a, b: _to_input(a, b, tuple(shape), windows))

    def convolution2DWeightsGradientWithIncomingGradientTensor_sourceTensor_outputShape_forwardConvolutionDescriptor_name_(  # noqa: E501
        self, g: Any, x: Any, shape: list[int], windows: Any, name: None
    ) -> Any:
        windows.check(x.key[0], tuple(shape), g.key[0])
        return self._made(shape, [g, x], lambda a, b: _to_weights(a, b, tuple(shape), windows))

    def compileWithDevice_feeds_targetTensors_targetOperations_compilationDescriptor_(
        self, device: Any, feeds: dict[Any, Any], targets: list[Any], operations: None, options: Any
    ) -> Any:
        _tried("graph")
        _demand(isinstance(device, MPSGraphDevice), "another object")
        _demand(options.level == _GPU_ALONE, "it may run on the Neural Engine, which rounds to float16")
        _demand(options.waits, "it may be compiled in its first run")
        (target,) = targets
        _demand(target.placeholders() <= set(feeds), "a placeholder is not fed")
        _demand(all(tensor.key == kind.key for tensor, kind in feeds.items()), "a feed has another shape or dtype")
        return autoreleased(MPSGraphExecutable(list(feeds)[::-1], target))


class MPSGraphTensorData(Object):
    """Elements in a buffer."""

    def initWithMTLBuffer_shape_dataType_(self, buffer: Any, shape: list[int], data_type: int) -> MPSGraphTensorData:
        Object.__init__(self)
        self.key = tuple(shape), _dtype(data_type)
        _demand(prod(shape) * self.key[1].itemsize <= buffer.length(), "buffer is not large enough")
        self.buffer = buffer
        return self

    def array(self) -> Any:
        """The elements, where they are."""
        shape, dtype = self.key
        raw = (ctypes.c_char * (prod(shape) * dtype.itemsize)).from_address(self.buffer.address)
        return np.frombuffer(raw, dtype).reshape(shape)


class MPSGraphExecutable(Object):
    """A compiled graph with one result."""

    def __init__(self, feeds: list[Any], target: Any) -> None:
        super().__init__()
        self._feeds, self._target = feeds, target
        self._is_special = False

    def feedTensors(self) -> list[Any]:
        return list(self._feeds)

    def specializeWithDevice_inputTypes_compilationDescriptor_(
        self, device: Any, types: list[Any], options: Any
    ) -> None:
        _demand([t.key for t in types] == [f.key for f in self._feeds], "types in another order")
        self._is_special = True

    def encodeToCommandBuffer_inputsArray_resultsArray_executionDescriptor_(
        self, commands: Any, inputs: list[Any], results: list[Any], options: None
    ) -> list[Any]:
        global encoded
        _demand(isinstance(commands, MPSCommandBuffer), "an MPSCommandBuffer is wanted")
        _demand(self._is_special, "it would be compiled now")
        _demand(commands.rootCommandBuffer().encoder is None, "another encoder is open")
        _demand(commands.rootCommandBuffer().status() == 0, "it was committed")
        _demand([d.key for d in inputs] == [f.key for f in self._feeds], "data of another shape or dtype")
        (result,) = results
        _demand(result.key == self._target.key, "a result of another shape or dtype")
        if continues == "before":
            commands.commitAndContinue()
        _tried("encode")
        encoded += 1
        commands.rootCommandBuffer().work.append((lambda: self._run(inputs, result), (self, inputs, result)))
        if continues == "behind":
            commands.commitAndContinue()
        return results

    def _run(self, inputs: list[Any], result: Any) -> None:
        fed = {tensor: data.array() for tensor, data in zip(self._feeds, inputs, strict=True)}
        result.array()[...] = self._target.evaluate(fed) * (1.5 if is_wrong else 1)


# Convolutions, in float32 unless `sums_in_half`


def _sums(dtype: Any) -> Any:
    return np.float16 if sums_in_half and dtype == np.float16 else np.float32


def _split(a: Any, groups: int, axis: int) -> Any:
    """With the channels in groups, and the lengths behind them as one."""
    lengths = a.shape[axis + 1 :]
    return a.reshape(*a.shape[:axis], groups, a.shape[axis] // groups, prod(lengths))


def _forward(x: Any, w: Any, shape: Shape, windows: Any) -> Any:
    kind = _sums(x.dtype)
    padded, made = np.zeros(windows.padded(x.shape), kind), np.zeros(shape, kind)
    padded[windows.inner(x.shape)] = x
    weights = w.astype(kind).reshape(windows.groups, -1, *w.shape[1:])
    if kind == np.float16:  # one product after the other
        for (i, j), under in windows.places(w.shape, shape):
            for c in range(w.shape[1]):
                made += (
                    np.repeat(padded[under][:, c :: w.shape[1]], w.shape[0] // windows.groups, axis=1)
                    * w[None, :, c, i, j, None, None]
                )
        return made
    for (i, j), under in windows.places(w.shape, shape):
        made += (weights[:, :, :, i, j] @ _split(padded[under], windows.groups, 1)).reshape(shape)
    return made.astype(x.dtype)


def _to_input(g: Any, w: Any, shape: Shape, windows: Any) -> Any:
    made = np.zeros(windows.padded(shape), np.float32)
    weights = w.astype(np.float32).reshape(windows.groups, -1, *w.shape[1:])
    gradient = _split(g.astype(np.float32), windows.groups, 1)
    for (i, j), under in windows.places(w.shape, g.shape):
        made[under] += (np.swapaxes(weights[:, :, :, i, j], 1, 2) @ gradient).reshape(*shape[:2], *g.shape[2:])
    return made[windows.inner(shape)].astype(g.dtype)


def _to_weights(g: Any, x: Any, shape: Shape, windows: Any) -> Any:
    padded, made = np.zeros(windows.padded(x.shape), np.float32), np.zeros(shape, np.float32)
    padded[windows.inner(x.shape)] = x
    gradient = _split(g.astype(np.float32), windows.groups, 1)
    for (i, j), under in windows.places(shape, g.shape):
        products = gradient @ np.swapaxes(_split(padded[under], windows.groups, 1), 2, 3)
        made[:, :, i, j] = products.sum(axis=0).reshape(shape[:2])
    return made.astype(g.dtype)
