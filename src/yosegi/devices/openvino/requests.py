"""Requests: a compiled model, bound to the memory of arrays.

Binding a tensor costs microseconds, and more in the run after it. So an input is bound anew only when another array
comes, and an output only when the pool gives it other memory than the last time, as it does when somebody keeps the
last result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import ref

from ...memory.pool import Pool
from .library import openvino
from .ports import Port


class Request:
    """One request, for one thread at a time."""

    def __init__(self, request: Any, inputs: Sequence[Port], outputs: Sequence[Port], pool: Pool) -> None:
        self.request = request
        self._inputs = inputs
        self._outputs = outputs
        self._pool = pool
        # The method of the library itself: that of its Python class makes a dictionary of results that nobody reads.
        self._infer = partial(openvino()._pyopenvino.InferRequest.infer, request, {}, True, True)
        self._read: list[Callable[[], Any]] = [_nothing] * len(inputs)
        """The arrays that inputs are bound to, if they are still there."""
        self._written = [0] * len(outputs)
        """The addresses that outputs are bound to."""

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Run on contiguous arrays. The results are new ones."""
        read, written = self._read, self._written
        for n, port in enumerate(self._inputs):
            array = arrays[n]
            if read[n]() is not array:
                self.request.set_input_tensor(n, port.tensor_on(array))
                read[n] = ref(array)
        results = []
        for n, port in enumerate(self._outputs):
            block = self._pool.take(port.nbytes)
            result = port.array_on(block)
            if written[n] != block.memory.address:
                self.request.set_output_tensor(n, port.tensor_on(result))
                written[n] = block.memory.address
            results.append(result)
        self._infer()
        return results


def _nothing() -> None:
    return None
