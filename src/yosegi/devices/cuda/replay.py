"""A compiled region that is recorded once it has settled, and replayed from then on.

Its launches are what they were, on the memory that they used then; only inputs and outputs may lie elsewhere. So a
replay is a list of launches, without anything in between. They are captured into a CUDA graph once the same addresses
come again, which the pool sees to, and are one launch then, which takes the host less than to launch a single kernel;
in the graph, launches that do not wait for each other run side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from ..._run.device import Kernel
from ..._run.memory.pool import Block
from ..._run.trace import trace
from ...errors import LaunchFailure
from .errors import translated
from .lanes import turns
from .launch import Launchable, Noted, Queue
from .memory import Data

_FIRST_RECORDED: Final = 2
_MOST_OWNED: Final = 512
"""The share of the device's memory that a recording may keep for values on the way: one of so many."""
_MOST_GRAPHS: Final = 8


class Replayed:
    """The kernel of a region."""

    def __init__(self, kernel: Kernel, queue: Queue, ops: str) -> None:
        self._kernel = kernel
        self._queue = queue
        self._ops = ops
        self._runs = 0
        self._recording: _Recording | None = None
        self._is_hopeless = False
        """Whether it cannot be recorded."""

    def __call__(self, *data: Data) -> tuple[Data, ...]:
        """Run it."""
        recording = self._recording
        if recording is not None and (not recording.same or recording.serves(data)):
            return recording(data)
        self._runs += 1
        if self._runs < _FIRST_RECORDED or self._is_hopeless:
            return self._kernel(*data)
        return self._recorded(data)

    def _recorded(self, data: tuple[Data, ...]) -> tuple[Data, ...]:
        """Run it, and record that, if it is what it will be from now on. No lock is held: it may be that it measures
        first which way is best, and others measure, too."""
        queue = self._queue
        with queue.recording() as tape, queue.memory.noting() as taken:
            outputs = self._kernel(*data)
        if not tape.is_final:
            return outputs
        if any(d.pointer and d.pointer not in taken for d in outputs):
            self._is_hopeless = True  # one of them is an input, or a constant: there is nothing to be gained
            return outputs
        try:
            self._recording = _Recording(queue, self._ops, tape.launches, data, outputs)
        except _NotRecorded as reason:
            self._is_hopeless = True
            if len(tape.launches) > 1:
                trace.failed(self._ops, queue.name, LaunchFailure(f"it is launched step by step: {reason}"))
        return outputs


class _NotRecorded(Exception):
    """Why a run cannot be replayed."""


class _Recording:
    """The launches of one run. Addresses that differ from run to run, inputs and then outputs, stand in one list, and
    after them those that do not; each launch knows which of the list are its own."""

    def __init__(
        self,
        queue: Queue,
        ops: str,
        tape: Sequence[Noted],
        inputs: tuple[Data, ...],
        outputs: tuple[Data, ...],
    ) -> None:
        self._queue, self._ops = queue, ops
        given = [d.pointer for d in inputs]
        results = [d.pointer for d in outputs]
        held = [a for a in results if a]
        if len(set(held)) != len(held) or set(held) & set(given):
            raise _NotRecorded("two of its outputs are the same memory, or one is an input's")
        self.same = [(n, given.index(a)) for n, a in enumerate(given) if a and given.index(a) != n]
        """Inputs that were the same memory. Nobody can tell which of them a launch read: they have to be so again."""
        places = {pointer: n for n, pointer in enumerate((*given, *results)) if pointer}
        self._new = [(queue.memory.key(d.shape, d.dtype), d.shape, d.dtype) for d in outputs]
        self._fixed: list[int] = []
        self._owned: dict[int, Block] = {}
        self._launches: list[tuple[Launchable, tuple[int, ...]]] = []
        touched: list[tuple[list[int], list[int]]] = []
        for noted in tape:
            for d in (*noted.reads, *noted.writes):
                if d.pointer not in places:
                    places[d.pointer] = len(given) + len(results) + len(self._fixed)
                    self._fixed.append(d.pointer)
                    if d.block is not None:
                        self._owned[d.pointer] = d.block
            reads, writes = ([places[d.pointer] for d in own] for own in (noted.reads, noted.writes))
            self._launches.append((noted.launch, (*reads, *writes)))
            touched.append((reads, writes))
        self._turns = turns(touched)
        if sum(block.nbytes for block in self._owned.values()) > queue.memory.total // _MOST_OWNED:
            raise _NotRecorded(f"its values on the way have more than {queue.memory.total // _MOST_OWNED} bytes")
        self._graphs: dict[tuple[int, ...], Any] = {}
        """By the addresses of inputs and outputs; `None` for such as have been seen once."""
        self._captures = bool(self._launches)

    def serves(self, data: tuple[Data, ...]) -> bool:
        """Whether it is the recording of a run on such inputs."""
        return all(data[m].pointer == data[n].pointer for m, n in self.same)

    def __call__(self, data: tuple[Data, ...]) -> tuple[Data, ...]:
        """The same again, for other inputs."""
        queue = self._queue
        take = queue.memory.pool.take_of
        try:
            if queue.has_siblings:
                queue.runtime.setDevice(queue.number)
            made = tuple(
                [Data(shape, dtype, take(key) if key is not None else None) for key, shape, dtype in self._new]
            )
            addresses = tuple([d.pointer for d in (*data, *made)])
            with queue.lock:  # the memory on the way is the recording's own: launches of two threads must not mix
                graph = self._graphs.get(addresses) or self._graph(addresses)
                if graph is not None:
                    graph.launch(queue.stream)
                else:
                    queue.runtime.setDevice(queue.number)
                    for launch in self._bound(addresses):
                        launch()
        except RuntimeError as error:
            with translated(f"[{queue.name}] launching a kernel"):
                raise error
        return made

    def _bound(self, addresses: tuple[int, ...]) -> list[Callable[[], None]]:
        """The launches, for inputs and outputs at these addresses."""
        of = [*addresses, *self._fixed]
        return [partial(launch.at, [of[n] for n in places]) for launch, places in self._launches]

    def _graph(self, addresses: tuple[int, ...]) -> Any | None:
        """The graph for addresses that there is none for yet: if they have been seen before, and it can be captured."""
        if not self._captures:
            return None
        if addresses in self._graphs:
            graph = self._captured(addresses)
        else:
            graph = None
            if len(self._graphs) >= _MOST_GRAPHS:  # addresses that did not come again go first
                once = (seen for seen, captured in self._graphs.items() if captured is None)
                self._graphs.pop(next(once, next(iter(self._graphs))))
        self._graphs[addresses] = graph
        return graph

    def _captured(self, addresses: tuple[int, ...]) -> Any | None:
        """The launches as one graph; `None`, and the reason in the trace, if that cannot be."""
        try:
            return self._queue.captured(self._bound(addresses), self._turns)
        except RuntimeError as error:
            self._captures = False
            trace.failed(self._ops, self._queue.name, LaunchFailure(f"it is not captured into a graph: {error}"))
            return None
