"""Convolutions by generated code: directly or by the transforms of Winograd, as measured to be faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._run.trace import log, trace
from ..._schedule.fuse import is_constant
from ..._tensor.dtype import as_dtype, float32, float64
from ..._tensor.node import Call as OpCall
from ..._tensor.role import Contraction
from ..._tune.autotune import Kernel, TrialSetup
from ..._tune.records import TuningRecords
from ...codegen.llvm.convolution import (
    CONVOLVE_SIZES,
    DIMENSIONS,
    PREPARE_SIZES,
    RUN,
    convolution_shape,
    convolution_source,
)
from ...codegen.llvm.register_tiles import TileShape
from ...errors import CompileFailure
from ...ops.windows import Windows
from .callables import ALIGNED, RELEASING_PRODUCTS, Call, Runtime
from .column_products import ColumnProduct, Copy, fits
from .compiler import Code
from .depthwise_calls import Depthwise, is_depthwise
from .point_convolutions import PointConvolution, is_pointwise
from .product_calls import GeneratedProducts, Objects
from .results import Results
from .spread_convolutions import SpreadConvolution, is_spread
from .weight_gradients import WeightGradient, is_gradient
from .winograd_calls import Winograd, can_be_squared
from .winograd_gradients import WinogradGradient, can_be_filtered
from .workspace import Spare


@dataclass(frozen=True, slots=True)
class ConvolutionPolicy:
    """When convolutions get code of their own."""

    layouts: int = 8
    """Layouts of its arrays that a convolution has code for."""
    numpy_products: int = 1 << 16
    """Products of elements up to which NumPy is fast enough, and compiling is not worth it."""
    channels_of_large_squares: int = 32
    """Channels from which squares of 4 × 4 windows have an error close to that of plain sums, which grows with them."""
    copied_windows: int = 64
    """Windows of an image up to which copies of them are tried for elements that stand apart: direct loops over them
    are short."""


_POLICY: Final = ConvolutionPolicy()


@dataclass(frozen=True, slots=True)
class Planes:
    """How a plane of the input is copied: for each dimension its phases, one for each remainder of a stride."""

    counts: tuple[int, ...]
    """Windows in each dimension."""
    lengths: tuple[int, ...]
    """Elements of a phase in each dimension: those that windows step on, and more for their other places."""
    phases: tuple[int, ...]
    runs: Any
    """For each phase of each dimension, which elements go where; see `RUN`."""
    places: Any
    """Where the places of a kernel are, from a window's first, in elements; without those of other channels."""

    @property
    def size(self) -> int:
        """Elements of a plane."""
        return prod(self.phases) * prod(self.lengths)

    @property
    def windows(self) -> int:
        """Windows from the first to the last, those between that do not count included."""
        deep, high, wide = self.counts
        return ((deep - 1) * self.lengths[1] + high - 1) * self.lengths[2] + wide


def planes_of(windows: Windows, given: tuple[int, ...]) -> Planes:
    """How an input of these lengths is copied. Dimensions that are not there are 1 long."""
    missing = DIMENSIONS - len(given)
    given = (1,) * missing + given
    kernel, stride, dilation, spread = (
        (1,) * missing + of for of in (windows.kernel, windows.stride, windows.dilation, windows.spread)
    )
    padding = ((0, 0),) * missing + windows.padding
    counts = (1,) * missing + windows.counts(given[missing:])
    lengths = tuple((k - 1) * d // s + o for k, d, s, o in zip(kernel, dilation, stride, counts, strict=True))
    runs = [
        _run(n, low, apart, s, phase, length)
        for n, (low, _), apart, s, length in zip(given, padding, spread, stride, lengths, strict=True)
        for phase in range(s)
    ]
    places = []
    for place in product(*map(range, kernel)):
        phase = at = 0
        for k, d, s, length in zip(place, dilation, stride, lengths, strict=True):
            phase, at = phase * s + k * d % s, at * length + k * d // s
        places.append(phase * prod(lengths) + at)
    return Planes(counts, lengths, stride, np.array(runs, np.int64), np.array(places, np.int64))


def _run(count: int, low: int, apart: int, stride: int, phase: int, length: int) -> list[int]:
    """The elements of a dimension that are in a phase, and where they go in it."""
    padded = np.arange(count) * apart + low
    there = np.flatnonzero((padded >= 0) & (padded % stride == phase) & (padded // stride < length))
    if not there.size:
        return [0] * RUN
    to = padded[there] // stride
    steps = (1, 1) if there.size == 1 else (there[1] - there[0], to[1] - to[0])
    return [there.size, int(there[0]), int(steps[0]), int(to[0]), int(steps[1])]


class Convolutions:
    """Compiles and runs convolutions for one machine."""

    def __init__(self, runtime: Runtime, results: Results) -> None:
        self.runtime = runtime
        self.results = results
        self.records = TuningRecords(
            f"{runtime.compiler.machine.identity}\n{runtime.threads} threads\n{np.__version__}"
        )
        self.spare = Spare()
        self._target = runtime.compiler.machine.target

    def bound(self, x: Any, w: Any, windows: Windows, groups: int) -> ConvolutionCall:
        """A convolution of arrays of such shapes, strides and dtype. Raises `CompileFailure`.

        The elements of each output's kernel must lie one behind the other.
        """
        dtype = as_dtype(x.dtype)
        planes = planes_of(windows, x.shape[2:])
        shape = convolution_shape(self._target, dtype, w.shape[0] // groups, planes.windows)
        source = convolution_source(dtype, shape, self._target)
        code = self.runtime.compiler.load(source, ("prepare", "convolve"))
        return ConvolutionCall(self, code, shape, planes, x, w, groups)

    def squared(self, x: Any, w: Any, windows: Windows, *, kept: bool, side: int = 2) -> Winograd:
        """A convolution by Winograd's algorithm, in squares of so many windows, for windows that admit it. Raises
        `CompileFailure`."""
        direct = self._direct(x, w, windows)
        return Winograd(self.runtime, self.results, self.spare, x, w, windows, direct, kept=kept, side=side)

    def multiplied(self, x: Any, w: Any, windows: Windows) -> WeightGradient:
        """A convolution with large weights, by matrix products. Raises `CompileFailure`."""
        copies = self.bound(x, _dense(w), windows, 1).copies
        return WeightGradient(
            self._products, copies, self.results, self.spare, x, w, windows, self._direct(x, w, windows)
        )

    def filtered(self, x: Any, w: Any, windows: Windows) -> WinogradGradient:
        """The gradient of a convolution by 3 × 3 weights, by few products. Raises `CompileFailure`."""
        direct = self._direct(x, w, windows)
        return WinogradGradient(self.runtime, self.results, self.spare, x, w, windows, direct)

    def _direct(self, x: Any, w: Any, windows: Windows) -> Callable[[Any, Any], Any]:
        """A convolution by sums over its windows, with weights in any order."""
        bound = self.bound(x, _dense(w), windows, 1)
        return lambda x, w: bound(x, _dense(w))

    def columns(self, x: Any, w: Any, windows: Windows) -> ColumnProduct:
        """A convolution as one product of copied windows. Raises `CompileFailure`."""
        copies = self.bound(x, w, windows, 1).copies
        return ColumnProduct(self._products, copies, self.results, self.spare, x, w, windows)

    def channels(self, x: Any, w: Any, windows: Windows) -> Depthwise:
        """A depthwise convolution, vectors along rows. Raises `CompileFailure`."""
        return Depthwise(self.runtime, self.results, x, w, windows)

    def points(self, x: Any, w: Any) -> PointConvolution:
        """A convolution by kernels of one place, as products of what is there. Raises `CompileFailure`."""
        return PointConvolution(self._products, self.results, self.spare, x, w)

    def remainders(self, x: Any, w: Any, windows: Windows, groups: int, *, copied: bool = False) -> SpreadConvolution:
        """A convolution of elements that stand apart, remainder by remainder, where `copied` by products of copied
        windows. Raises `CompileFailure`."""

        def bound(x: Any, w: Any, own: Windows) -> Callable[[Any, Any], Any]:
            is_product = copied and fits(x, w, own, groups)
            return self.columns(x, w, own) if is_product else self.bound(x, w, own, groups)

        return SpreadConvolution(bound, self.results, x, w, windows)

    @cached_property
    def _products(self) -> GeneratedProducts:
        return GeneratedProducts(Objects(self.runtime))

    def body(self, graph: Graph, entry: int) -> TunedConvolution | None:
        """The function that replaces the reference body of a convolution, or `None`."""
        call = graph.calls[entry]
        if call.op.role is not Contraction.WINDOWS or call.spec.dtype not in (float32, float64):
            return None
        work = call.spec.size * prod(call.inputs[1].shape[1:])
        if work < _POLICY.numpy_products:
            return None
        return TunedConvolution(self, call, kept=is_constant(graph, graph.args[entry][1]))


class TunedConvolution:
    """A convolution by its fastest variant, which the first run determines."""

    def __init__(self, owner: Convolutions, call: OpCall, *, kept: bool) -> None:
        """`kept` says whether its weights are always the same."""
        self._owner = owner
        self._call = call
        self._kept = kept
        self._windows = Windows(call.inputs[1].shape[2:], **{n: v for n, v in call.attrs.items() if n != "groups"})
        self._bound: dict[Any, Callable[[Any, Any], Any]] = {}

    def __call__(self, x: Any, w: Any) -> Any:
        x, w = (a if a.flags.aligned else np.require(a, requirements="CA") for a in (x, w))
        key = (x.strides, w.strides)
        function = self._bound.get(key)
        if function is None:
            if len(self._bound) >= _POLICY.layouts:
                return self._reference(x, w)
            function = self._bound[key] = self._chosen(x, w)
        return function(x, w)

    def _chosen(self, x: Any, w: Any) -> Callable[[Any, Any], Any]:
        owner, windows, groups = self._owner, self._windows, self._call.attrs["groups"]
        trial = TrialSetup(lambda: (x, w), lambda x, w: (self._reference(x, w),))
        candidates: dict[str, Callable[[], Kernel]] = {
            "generated": lambda: _in_a_tuple(owner.bound(x, _dense(w), windows, groups)),
        }  # not NumPy: the threads of its products spin for a tenth of a second, and slow down all that follows
        if is_gradient(x, w, windows, groups):
            candidates["products"] = lambda: _in_a_tuple(owner.multiplied(x, w, windows), is_dense=False)
        if can_be_filtered(x, w, windows, groups):
            candidates["filtered"] = lambda: _in_a_tuple(owner.filtered(x, w, windows), is_dense=False)
        if is_depthwise(x, w, windows, groups):
            candidates["depthwise"] = lambda: _in_a_tuple(owner.channels(x, _dense(w), windows))
        if is_pointwise(x, windows, groups):
            candidates["points"] = lambda: _in_a_tuple(owner.points(x, w), is_dense=False)
        if fits(x, w, windows, groups) and not ("points" in candidates and len(x) == 1):
            candidates["columns"] = lambda: _in_a_tuple(owner.columns(x, _dense(w), windows))
        if is_spread(windows):
            candidates["remainders"] = lambda: _in_a_tuple(owner.remainders(x, w, windows, groups), is_dense=False)
            places = -(-prod(windows.counts(x.shape[2:])) // prod(windows.spread))
            if places <= _POLICY.copied_windows and groups == 1:
                candidates["copied remainders"] = lambda: _in_a_tuple(
                    owner.remainders(x, w, windows, groups, copied=True), is_dense=False
                )
        if can_be_squared(x, windows, groups):
            candidates["winograd"] = lambda: _in_a_tuple(owner.squared(x, w, windows, kept=self._kept), is_dense=False)
            if self._kept and x.shape[1] >= _POLICY.channels_of_large_squares:
                candidates["winograd, 4 × 4"] = lambda: _in_a_tuple(
                    owner.squared(x, w, windows, kept=True, side=4), is_dense=False
                )
        kept = "kept" if self._kept else "given"
        kind = f"{self._call!r} {self._call.inputs!r} {kept}, of {', '.join(candidates)}"
        chosen = owner.records.best(kind, candidates, trial)
        for name, refusal in chosen.verdict.refused.items():
            trace.failed(str(self._call), "cpu", CompileFailure(f"{name}: {refusal.reason}"))
        log.info("%s: %s, of %s", self._call, chosen.verdict.winner or "NumPy", chosen.verdict.seconds or "one")
        kernel = chosen.kernel
        return self._reference if kernel is None else chosen.watched(lambda x, w: kernel(x, w)[0])

    @cached_property
    def _reference(self) -> Callable[[Any, Any], Any]:
        return bind(self._call)


def _in_a_tuple(function: Callable[[Any, Any], Any], *, is_dense: bool = True) -> Kernel:
    """A function as a kernel; with `is_dense`, the elements of each output's weights must lie one behind the other."""
    return lambda x, w: (function(x, _dense(w) if is_dense else w),)


def _dense(w: Any) -> Any:
    return w if w[0].flags.c_contiguous else np.ascontiguousarray(w)


class ConvolutionCall:
    """A convolution of arrays of certain shapes and strides: `bound(x, w)` gives the result."""

    def __init__(
        self, owner: Convolutions, code: Code, shape: TileShape, planes: Planes, x: Any, w: Any, groups: int
    ) -> None:
        self._owner = owner
        batch, channels = x.shape[:2]
        within, outputs, item = w.shape[1], w.shape[0] // groups, x.itemsize
        blocks = -(-planes.windows // shape.columns)
        elements, steps = batch * channels * planes.size, prod(w.shape[1:])
        self._shape = (batch, w.shape[0], *planes.counts[DIMENSIONS - (x.ndim - 2) :])
        self._dtype = x.dtype
        self._bytes = (elements + shape.columns) * item  # the last tile may read more than there is
        self._runs = planes.runs
        channel = np.arange(within)[:, None] * planes.size
        self._places = ((channel + planes.places[None, :]).ravel() * item).astype(np.int64)
        self._code = code
        self._prepare = self._copy(x, planes)
        deep, high, wide = planes.counts
        sizes = {
            "groups": groups, "blocks": blocks, "windows": planes.windows, "outputs": outputs, "steps": steps,
            "group_bytes": within * planes.size * item, "w_group": outputs * w.strides[0], "w_output": w.strides[0],
            "row": planes.lengths[2], "plane_row": planes.lengths[1], "wide": wide, "high": high,
            "out_group": outputs * deep * high * wide * item, "out_output": deep * high * wide * item,
            "out_plane": high * wide * item, "out_row": wide * item,
        }  # fmt: skip
        self._convolve = self._call(
            code, "convolve", 4, CONVOLVE_SIZES, sizes, units=batch * groups * blocks,
            work=batch * groups * outputs * planes.windows * steps,
        )  # fmt: skip

    def copies(self, array: Any, lengths: tuple[int, ...], runs: list[list[int]], apart: int | None = None) -> Copy:
        """The copy of arrays like this one into planes of these lengths, by a run for each dimension; see
        `column_products.MakesCopies`."""
        missing = DIMENSIONS - len(lengths)
        one, found = (1,) * DIMENSIONS, np.array([[1, 0, 1, 0, 1]] * missing + runs, np.int64)
        copy = self._copy(array, Planes(one, (1,) * missing + lengths, one, found, found[:0]), apart)
        return lambda given, to: copy(given, to, found)

    def _copy(self, x: Any, planes: Planes, apart: int | None = None) -> Call:
        units, sizes = x.shape[0] * x.shape[1], _prepare_sizes(x, planes)
        if apart is not None:
            sizes["to_batch"] = apart * x.itemsize
        return self._call(self._code, "prepare", 3, PREPARE_SIZES, sizes, units=units, work=units * planes.size)

    def _call(
        self, code: Code, function: str, arrays: int, names: tuple[str, ...], sizes: dict[str, int], *, units: int,
        work: int,
    ) -> Call:  # fmt: skip
        runtime = self._owner.runtime
        chunk = max(1, units // (8 * runtime.threads)) if work >= RELEASING_PRODUCTS and runtime.threads > 1 else units
        return runtime.call(
            Code({"kernel": code[function]}, code), arrays, [sizes[name] for name in names], count=units, chunk=chunk,
            lets_go=work >= RELEASING_PRODUCTS, needs=ALIGNED,
        )  # fmt: skip

    def __call__(self, x: Any, w: Any) -> Any:
        """Of arrays of the shapes and strides that this was made for."""
        copy = self._owner.spare.take(self._bytes)
        out = self._owner.results.any(self._shape, self._dtype)
        self._prepare(x, copy, self._runs)
        self._convolve(copy, w, self._places, out)
        self._owner.spare.give_back(copy)
        return out


def _prepare_sizes(x: Any, planes: Planes) -> dict[str, int]:
    item = x.itemsize
    strides = (0,) * (DIMENSIONS - (x.ndim - 2)) + x.strides[2:]
    phase = prod(planes.lengths) * item
    return {
        "channels": x.shape[1], "plane_bytes": planes.size * item, "to_batch": x.shape[1] * planes.size * item,
        "x_batch": x.strides[0], "x_channel": x.strides[1],
        "x_0": strides[0], "x_1": strides[1], "x_2": strides[2],
        "to_phase_0": planes.phases[1] * planes.phases[2] * phase, "to_phase_1": planes.phases[2] * phase,
        "to_phase_2": phase, "to_0": planes.lengths[1] * planes.lengths[2] * item, "to_1": planes.lengths[2] * item,
        "phases_0": planes.phases[0], "phases_1": planes.phases[1], "phases_2": planes.phases[2],
    }  # fmt: skip
