"""Pools by generated code: the largest element of each window, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._run.trace import trace
from ..._tensor.node import Call as OpCall
from ...codegen.llvm.convolution import DIMENSIONS
from ...codegen.llvm.pools import (
    GRADIENT_SIZES,
    LARGEST_SIZES,
    PoolSizes,
    RowWindows,
    accumulated,
    gradient_source,
    lanes_of,
    largest_source,
)
from ...codegen.llvm.register_tiles import LINE
from ...errors import NotReady
from ...ops.pool import max_pool, max_pool_gradient, windows_of
from .callables import ALIGNED, Call, Runtime
from .compiler import Code
from .results import Results
from .workspace import Spare


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """When pools get code of their own."""

    numpy_elements: int = 1 << 12
    """Elements of the windows up to which NumPy is fast enough."""
    kernel: int = 16
    """Places of a window along a row that are written out in the text."""
    stride: int = 4
    """The largest step between windows along a row."""
    threaded_elements: int = 1 << 15
    """Elements of the windows from which a second thread pays."""
    releasing_elements: int = 1 << 15
    """Elements of the windows from which other Python threads may run meanwhile."""
    chunks_per_thread: int = 8


_POLICY: Final = PoolPolicy()


def is_pool(call: OpCall) -> bool:
    """True for the ops that have a kernel here."""
    return call.op is max_pool or call.op is max_pool_gradient


class Pools:
    """Compiles and runs pools for one machine."""

    def __init__(self, runtime: Runtime, results: Results) -> None:
        self.runtime = runtime
        self.results = results
        self.spare = Spare()

    def body(self, graph: Graph, entry: int) -> Callable[..., Any] | None:
        """The function that replaces the reference body of a pool, or `None`. Raises `NotReady`."""
        call = graph.calls[entry]
        if not is_pool(call):
            return None
        windows = windows_of(call)
        elements = prod(windows.counts(call.inputs[0].shape[2:])) * prod(call.spec.shape[:2]) * prod(windows.kernel)
        is_wide = windows.kernel[-1] > _POLICY.kernel or windows.stride[-1] > _POLICY.stride
        if is_wide or elements < _POLICY.numpy_elements:
            return None
        try:
            return PoolCall(self, call, elements)
        except NotReady:
            raise
        except Exception as failure:  # NumPy can do the same work
            trace.failed(str(call), "cpu", failure)
            return None


class PoolCall:
    """A pool, or the gradient of one, of arrays of certain shapes."""

    def __init__(self, owner: Pools, call: OpCall, elements: int) -> None:
        """Raises `CompileFailure`."""
        self._owner, self._elements = owner, elements
        self._spec = call.spec
        given, windows = call.inputs[0], windows_of(call)
        self._counts = self._padded(windows.counts(given.shape[2:]), 1)
        self._lengths = self._padded(given.shape[2:], 1)
        kernel, stride, dilation = (
            self._padded(each, 1) for each in (windows.kernel, windows.stride, windows.dilation)
        )
        padding = self._padded(tuple(low for low, _ in windows.padding), 0)
        row = RowWindows(kernel[-1], stride[-1], dilation[-1])
        target = owner.runtime.compiler.machine.target
        sizes = PoolSizes.of(row, lanes_of(target, given.dtype), padding[-1] + self._lengths[-1], self._counts[-1])
        room, rows, out_rows = sizes.row, prod(self._lengths[:-1]), prod(self._counts[:-1])
        self._is_gradient = call.op is max_pool_gradient
        if self._is_gradient:
            room = sizes.of_gradient(row, rows, out_rows)
        planes = prod(given.shape[:2])
        self._units = planes if self._is_gradient else planes * out_rows
        self._slots = owner.runtime.threads
        self._room = room * accumulated(given.dtype).itemsize
        names = ("channels", "deep", "high", "wide", "out_deep", "out_high", "out_wide")
        self._sizes = dict(zip(names, (given.shape[1], *self._lengths, *self._counts), strict=True))
        for name, values in (("kernel", kernel), ("stride", stride), ("padding", padding), ("dilation", dilation)):
            self._sizes |= {f"{name}_{n}": value for n, value in enumerate(values)}
        self._sizes |= {"slots": self._slots, "room": self._room, "row": sizes.row, "out_row": sizes.out_row}
        source = gradient_source if self._is_gradient else largest_source
        name = "gradient" if self._is_gradient else "largest"
        code = owner.runtime.compiler.load(source(given.dtype, row, target), (name,))
        self._code = Code({"kernel": code[name]}, code)
        self._calls: dict[tuple[int, ...], Call] = {}

    def _padded(self, values: tuple[int, ...], one: int) -> tuple[int, ...]:
        """A number for each of three dimensions."""
        return (one,) * (DIMENSIONS - len(values)) + values

    def __call__(self, x: Any, *others: Any) -> Any:
        """Of arrays of the shapes that this was made for."""
        if x.strides[-1] != x.itemsize or not x.flags.aligned:
            x = np.require(x, requirements="CA")
        call = self._calls.get(x.strides)
        if call is None:
            call = self._calls.setdefault(x.strides, self._bound(x))
        work = self._owner.spare.take(LINE * self._slots + self._slots * self._room)
        work[: LINE * self._slots] = 0
        out = self._owner.results.any(self._spec.shape, self._spec.dtype.numpy)
        call(x, *[np.require(other, requirements="CA") for other in others], out, work)
        self._owner.spare.give_back(work)
        return out

    def _bound(self, x: Any) -> Call:
        strides = self._padded(x.strides[2:-1], 0)[-2:]
        own = {"x_batch": x.strides[0], "x_channel": x.strides[1], "x_0": strides[0], "x_1": strides[1]}
        sizes = self._sizes | own
        threads = self._owner.runtime.threads if self._elements >= _POLICY.threaded_elements else 1
        chunk = max(1, self._units // (_POLICY.chunks_per_thread * threads)) if threads > 1 else self._units
        return self._owner.runtime.call(
            self._code, 5 if self._is_gradient else 3,
            [sizes[name] for name in (GRADIENT_SIZES if self._is_gradient else LARGEST_SIZES)],
            count=self._units, chunk=chunk, lets_go=self._elements >= _POLICY.releasing_elements, needs=ALIGNED,
        )  # fmt: skip
