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

import numpy as np

from ..._run.memory.pool import Pool
from .library import openvino
from .translate import Translation


class Request:
    """One request, for one thread at a time."""

    def __init__(self, request: Any, translation: Translation, pool: Pool) -> None:
        self.request = request
        self._pool = pool
        self._inputs = [(n, index, port) for n, (index, port) in enumerate(translation.inputs)]
        self._outputs = translation.outputs
        # The method of the library itself: that of its Python class makes a dictionary of results that nobody reads.
        self._infer = partial(openvino()._pyopenvino.InferRequest.infer, request, {}, True, True)
        self._read: list[Callable[[], Any]] = [_nothing] * len(translation.inputs)
        """The arrays that inputs are bound to, if they are still there."""
        self._written = [0] * len(translation.outputs)
        """The addresses that outputs are bound to."""

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """Run on the arrays of a region's inputs. The results are new arrays, or inputs as they are."""
        read, written = self._read, self._written
        copies = []  # of arrays that are not contiguous, for as long as it runs
        for n, index, port in self._inputs:
            array = data[index]
            if read[n]() is not array:
                straight = np.asarray(array, order="C")
                self.request.set_input_tensor(n, port.tensor_on(straight))
                read[n] = ref(straight)
                copies.append(straight)
        results = []
        for n, wanted in self._outputs:
            if wanted is None:
                results.append(data[n])
                continue
            block = self._pool.take(wanted.nbytes)
            result = wanted.array_on(block)
            if written[n] != block.memory.address:
                self.request.set_output_tensor(n, wanted.tensor_on(result))
                written[n] = block.memory.address
            results.append(result)
        self._infer()
        return tuple(results)


def _nothing() -> None:
    return None
