"""Random words by generated code."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from ..._graph.graph import Graph
from ..._run.trace import trace
from ..._tensor.node import Call as OpCall
from ...codegen.llvm.random_bits import lanes_of, random_source
from ...errors import NotReady
from ...ops.philox import philox, random_words
from .callables import Runtime
from .results import Results

_NUMPY_ELEMENTS: Final = 1 << 8
"""Elements up to which NumPy is fast enough."""
_THREADED_ELEMENTS: Final = 1 << 14
"""Elements from which a second thread pays."""
_CHUNKS_PER_THREAD: Final = 8


def is_random(call: OpCall) -> bool:
    """True for a call that has a kernel here."""
    return (call.op is philox or call.op is random_words) and call.spec.size > _NUMPY_ELEMENTS


class RandomBits:
    """Compiles random words for one machine."""

    def __init__(self, runtime: Runtime, results: Results) -> None:
        self.runtime = runtime
        self.results = results

    def body(self, graph: Graph, entry: int) -> Callable[..., Any] | None:
        """The function that replaces the reference body of a call, or `None`. Raises `NotReady`."""
        call = graph.calls[entry]
        if not is_random(call):
            return None
        try:
            return self._body(call)
        except NotReady:
            raise
        except Exception as failure:  # NumPy can do the same work
            trace.failed(str(call), "cpu", failure)
            return None

    def _body(self, call: OpCall) -> Callable[..., Any]:
        spec, results, runtime = call.spec, self.results, self.runtime
        target, size = runtime.compiler.machine.target, prod(call.attrs["shape"])
        planes = call.attrs["words"] if call.op is philox else 0
        blocks = size if planes else -(-size // 4)
        units = -(-blocks // lanes_of(target))
        threads = runtime.threads if spec.size >= _THREADED_ELEMENTS else 1
        launch = runtime.call(
            runtime.compiler.load(random_source(planes, target), ("kernel",)), 2, [blocks, size], count=units,
            chunk=-(-units // (threads * _CHUNKS_PER_THREAD)) if threads > 1 else units, lets_go=True,
        )  # fmt: skip

        def run(state: Any) -> Any:
            out = results.any(spec.shape, spec.dtype.numpy)
            launch(np.require(state, requirements="CA"), out)
            return out

        return run
