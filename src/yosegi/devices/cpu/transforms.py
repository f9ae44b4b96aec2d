"""Fourier transforms of several threads: NumPy's, each of a part of the examples."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._run.forks import in_forked_child
from ..._tensor.node import Call as OpCall
from ..._tensor.role import Transform
from .callables import Runtime
from .results import Results

_THREADED_ELEMENTS: Final = 1 << 15
"""Elements from which a second thread pays."""


def _examples_of(call: OpCall) -> int | None:
    """The axis whose elements are transformed independently: the longest; `None` if all axes are transformed."""
    attrs, shape = call.attrs, call.inputs[0].shape
    axes = attrs["axes"] if "axes" in attrs else (attrs["axis"],)
    return max((a for a in range(len(shape)) if a not in axes), key=lambda a: shape[a], default=None)


class Transforms:
    """Runs transforms on one machine."""

    def __init__(self, runtime: Runtime, results: Results) -> None:
        self.runtime = runtime
        self.results = results
        in_forked_child(self._after_fork)

    @cached_property
    def _helpers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.runtime.threads - 1, "yosegi transforms")

    def _after_fork(self) -> None:
        """In a forked child: the threads are not there."""
        self.__dict__.pop("_helpers", None)

    def body(self, graph: Graph, entry: int) -> Callable[..., Any] | None:
        """The function that replaces the reference body of a transform, or `None`."""
        call = graph.calls[entry]
        if not isinstance(call.op.role, Transform) or call.inputs[0].size < _THREADED_ELEMENTS:
            return None
        axis, threads = _examples_of(call), self.runtime.threads
        if axis is None or threads < 2 or call.inputs[0].shape[axis] < threads:
            return None
        reference, results, spec = bind(call), self.results, call.spec
        cuts = [spec.shape[axis] * n // threads for n in range(threads + 1)]
        parts = [(slice(None),) * axis + (slice(*pair),) for pair in pairwise(cuts)]

        def run(x: Any) -> Any:
            out = results.any(spec.shape, spec.dtype.numpy)

            def transform(part: tuple[slice, ...]) -> None:
                out[part] = reference(x[part])

            others = [self._helpers.submit(copy_context().run, transform, part) for part in parts[1:]]
            transform(parts[0])
            for other in others:
                other.result()
            return out

        return run
