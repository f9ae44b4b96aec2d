"""A compiled region that is recorded when it runs for the second time, and replayed from then on.

Its launches are what they were, on the memory that they used then; only inputs and outputs may lie elsewhere. So a
replay is a list of launches, without anything in between. Where there are several, they are captured into a CUDA graph
once the same addresses come again, which the pool sees to, and are one launch then.
"""

from __future__ import annotations

from typing import Any, Final

from ...device import Kernel
from ...dtype import DType
from ...errors import LaunchFailure
from ...memory.pool import Block
from ...node import Shape
from ...trace import trace
from .errors import translated
from .launch import Launchable, Queue, Tape
from .memory import Data

_MOST_OWNED: Final = 16 << 20
"""Bytes that a recording may keep for values on the way: beyond, launches do not matter."""
_MOST_GRAPHS: Final = 8
_Slot = tuple[int, int]
"""Where a pointer comes from: (0, its value), (1, which input), (2, which output)."""


class Replayed:
    """The kernel of a region."""

    def __init__(self, kernel: Kernel, queue: Queue, ops: str) -> None:
        self._kernel = kernel
        self._queue = queue
        self._ops = ops
        self._runs = 0
        self._recording: _Recording | None = None

    def __call__(self, *data: Data) -> tuple[Data, ...]:
        """Run it."""
        recording = self._recording
        if recording is not None:
            return recording(data)
        self._runs += 1
        if self._runs != 2:
            return self._kernel(*data)
        with self._queue.lock:
            return self._recorded(data)

    def _recorded(self, data: tuple[Data, ...]) -> tuple[Data, ...]:
        queue = self._queue
        with queue.recording() as tape, queue.memory.noting() as taken:
            outputs = self._kernel(*data)
        if any(d.pointer and d.pointer not in taken for d in outputs):
            return outputs  # one of them is an input, or a constant: there is nothing to be gained
        try:
            self._recording = _Recording(queue, self._ops, tape, data, outputs)
        except _NotRecorded as reason:
            if len(tape) > 1:
                trace.failed(self._ops, queue.name, LaunchFailure(f"it is launched step by step: {reason}"))
        return outputs


class _NotRecorded(Exception):
    """Why a run cannot be replayed."""


class _Recording:
    """The launches of one run."""

    def __init__(
        self,
        queue: Queue,
        ops: str,
        tape: Tape,
        inputs: tuple[Data, ...],
        outputs: tuple[Data, ...],
    ) -> None:
        self._queue, self._ops = queue, ops
        slots: dict[int, _Slot] = {d.pointer: (1, n) for n, d in enumerate(inputs) if d.pointer}
        if len(slots) != sum(1 for d in inputs if d.pointer):
            raise _NotRecorded("two of its inputs are the same memory")
        slots |= {d.pointer: (2, n) for n, d in enumerate(outputs) if d.pointer}
        if len(slots) != sum(1 for d in (*inputs, *outputs) if d.pointer):
            raise _NotRecorded("two of its outputs are the same memory")
        self._outputs: list[tuple[Shape, DType]] = [(d.shape, d.dtype) for d in outputs]
        self._owned: dict[int, Block] = {}
        self._launches: list[tuple[Launchable, tuple[_Slot, ...]]] = []
        for launch, data in tape:
            self._owned |= {d.pointer: d.block for d in data if d.block is not None and d.pointer not in slots}
            self._launches.append((launch, tuple([slots.get(d.pointer, (0, d.pointer)) for d in data])))
        if sum(block.nbytes for block in self._owned.values()) > _MOST_OWNED:
            raise _NotRecorded(f"its values on the way have more than {_MOST_OWNED} bytes")
        self._graphs: dict[tuple[int, ...], Any] = {}
        """By the addresses of inputs and outputs; `None` for such as have been seen once."""
        self._captures = len(self._launches) > 1

    def __call__(self, data: tuple[Data, ...]) -> tuple[Data, ...]:
        """The same again, for other inputs."""
        queue = self._queue
        new = queue.memory.new
        queue.runtime.setDevice(queue.number)
        made = tuple([new(shape, dtype) for shape, dtype in self._outputs])
        given = [d.pointer for d in data]
        results = [d.pointer for d in made]
        try:
            with queue.lock:  # the memory on the way is the recording's own: launches of two threads must not mix
                if not self._captures or not self._launched_as_graph(given, results):
                    self._launch(given, results)
        except RuntimeError as error:
            with translated(f"[{queue.name}] launching a kernel"):
                raise error
        return made

    def _launch(self, given: list[int], results: list[int]) -> None:
        for launch, slots in self._launches:
            launch.at([value if kind == 0 else given[value] if kind == 1 else results[value] for kind, value in slots])

    def _launched_as_graph(self, given: list[int], results: list[int]) -> bool:
        queue, key = self._queue, (*given, *results)
        graph = self._graphs.get(key)
        if graph is None:
            if key not in self._graphs:
                if len(self._graphs) >= _MOST_GRAPHS:
                    self._graphs.pop(next(iter(self._graphs)))
                self._graphs[key] = None
                return False
            graph = self._captured(given, results)
            if graph is None:
                return False
            self._graphs[key] = graph
        graph.launch(queue.stream)
        return True

    def _captured(self, given: list[int], results: list[int]) -> Any | None:
        """The launches as one graph; `None`, and the reason in the trace, if that cannot be."""
        queue = self._queue
        aside = queue.cupy.cuda.Stream(non_blocking=True)
        own, queue.pointer = queue.pointer, aside.ptr
        try:
            aside.begin_capture()
            try:
                self._launch(given, results)
            finally:
                graph = aside.end_capture()
        except RuntimeError as error:
            self._captures = False
            trace.failed(self._ops, queue.name, LaunchFailure(f"it is not captured into a graph: {error}"))
            return None
        finally:
            queue.pointer = own
        return graph
