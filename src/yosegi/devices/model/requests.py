"""Requests: a compiled model, bound to the memory of arrays.

Binding an array costs microseconds. So an input is bound anew only when another array comes, and an output only when
the pool gives it other memory than the last time, as it does when somebody keeps the last result.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar
from weakref import ref

from ..._run.memory.pool import Pool
from .ports import Port
from .translate import Translation

P = TypeVar("P", bound=Port)


class Request(ABC, Generic[P]):
    """One request, for one thread at a time."""

    def __init__(self, translation: Translation[P], pool: Pool) -> None:
        self._pool = pool
        self._inputs = [(n, index, port) for n, (index, port) in enumerate(translation.inputs)]
        self._outputs = translation.outputs
        self._read: list[Callable[[], Any]] = [_nothing] * len(translation.inputs)
        """The arrays that inputs are bound to, if they are still there."""
        self._written = [0] * len(translation.outputs)
        """The addresses that outputs are bound to."""

    @property
    def launched(self) -> str:
        """How it runs, such as the devices of its ops; empty if that is not known."""
        return ""

    @abstractmethod
    def read_from(self, n: int, port: P, array: Any) -> None:
        """Bind an input to an array that is contiguous, and stays as long as it is bound."""

    @abstractmethod
    def write_to(self, n: int, port: P, array: Any) -> None:
        """Bind an output to an array."""

    @abstractmethod
    def infer(self) -> None:
        """Run the model on what is bound."""

    def __call__(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """Run on the arrays of a region's inputs. The results are new arrays, or inputs as they are."""
        read, written = self._read, self._written
        copies = []  # of arrays that are not contiguous, for as long as it runs
        for n, index, port in self._inputs:
            array = data[index]
            if read[n]() is not array:
                straight = port.taken(array)
                self.read_from(n, port, straight)
                read[n] = ref(straight)
                copies.append(straight)
        results: list[Any] = []
        for n, wanted in self._outputs:
            if wanted is None:
                results.append(data[n])
                continue
            block = self._pool.take(wanted.nbytes)
            result = wanted.array_on(block)
            if written[n] != block.memory.address:
                self.write_to(n, wanted, result)
                written[n] = block.memory.address
            results.append(result)
        self.infer()
        return tuple(
            [r if port is None else port.given(r) for (_, port), r in zip(self._outputs, results, strict=True)]
        )


def _nothing() -> None:
    return None
