"""A kernel that can be launched, again and again, from any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from threading import RLock, get_ident
from typing import Any, Final, Protocol

from ...codegen.dialect import Target
from ...codegen.kernels import Kernel as Generated
from .cache import Programs
from .errors import translated
from .lanes import Turn
from .memory import Data, Memory

WORKSPACE: Final = 32 << 20
"""Bytes that a library's kernel may use on the way; given here, because none may be allocated while a stream is
captured."""


class Queue:
    """One device's stream: what is launched returns at once, and runs in the order of the launches."""

    def __init__(self, cupy: Any, stream: Any, programs: Programs, memory: Memory, number: int, target: Target) -> None:
        self.cupy = cupy
        self.driver = cupy.cuda.driver
        self.runtime = cupy.cuda.runtime
        self.stream = stream
        self.pointer: int = stream.ptr
        """The stream that launches go to: another one while they are captured."""
        self.lane = 0
        """Of those that run side by side, the one that launches go to."""
        self.programs = programs
        self.memory = memory
        self.number = number
        self.name = memory.name
        self.target = target
        self.lock = RLock()
        """Held while launches are put into the stream that belong together."""
        self.tape: Tape | None = None
        """While a kernel is recorded: its launches, with the data they are on."""
        self._recorder = 0
        self._workspaces: dict[int, int] = {}

    @property
    def workspace(self) -> int:
        """Where `WORKSPACE` bytes lie that a library's kernel may use: one at a time, in the order of its lane."""
        if self.lane not in self._workspaces:
            self._workspaces[self.lane] = self.memory.reserved(WORKSPACE)
        return self._workspaces[self.lane]

    @contextmanager
    def recording(self) -> Iterator[Tape]:
        """A list of what this thread launches; one that is made meanwhile has its own."""
        outer = self._recorder, self.tape
        self._recorder, self.tape = get_ident(), []
        try:
            yield self.tape
        finally:
            self._recorder, self.tape = outer

    def captured(self, launches: Sequence[Callable[[], None]], turns: Sequence[Turn] = ()) -> Any:
        """What functions put into the stream, as a graph instead: each in its turn, or one after the other. With
        CuPy's own errors."""
        turns = turns or [Turn(0, ())] * len(launches)
        cuda = self.cupy.cuda
        streams = [cuda.Stream(non_blocking=True) for _ in range(1 + max((turn.lane for turn in turns), default=0))]
        awaited = {n for turn in turns for n in turn.waits}
        events: dict[int, Any] = {}
        with self.lock:
            own = self.pointer
            try:
                streams[0].begin_capture()
                try:
                    for aside in streams[1:]:
                        aside.wait_event(streams[0].record())
                    for number, (launch, turn) in enumerate(zip(launches, turns, strict=True)):
                        for earlier in turn.waits:
                            streams[turn.lane].wait_event(events[earlier])
                        self.lane, self.pointer = turn.lane, streams[turn.lane].ptr
                        launch()
                        if number in awaited:
                            events[number] = streams[turn.lane].record()
                    for aside in streams[1:]:
                        streams[0].wait_event(aside.record())
                finally:
                    graph = streams[0].end_capture()
            finally:
                self.lane, self.pointer = 0, own
        return graph

    def note(self, launch: Launchable, data: tuple[Data, ...], written: int) -> None:
        """Tell a recording, if this thread makes one. The last `written` of the data are what the launch writes."""
        if self.tape is not None and self._recorder == get_ident():
            self.tape.append(Noted(launch, data[:-written], data[-written:]))


class Launchable(Protocol):
    """Something that a stream takes."""

    def at(self, pointers: list[int]) -> None:
        """Put it into the queue's stream, for data at these addresses; by someone who holds the queue's lock."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch, with the data that it was on."""

    launch: Launchable
    reads: tuple[Data, ...]
    writes: tuple[Data, ...]


Tape = list[Noted]


class Launch:
    """One generated kernel. Its sizes are set once; its pointers come before them among its parameters."""

    def __init__(self, queue: Queue, generated: Generated, inputs: int, outputs: int) -> None:
        self._queue = queue
        self._outputs = outputs
        pointers = inputs + outputs
        function = queue.programs.get(generated.source)
        self._function = function  # keeps the program loaded
        slots = pointers + len(generated.sizes)
        self._values = (c_int64 * slots)()
        number = c_int64 if generated.long_sizes else c_int32
        for n, size in enumerate(generated.sizes):
            number.from_buffer(self._values, 8 * (pointers + n)).value = size
        start = addressof(self._values)
        self._addresses = (c_void_p * slots)(*[start + 8 * n for n in range(slots)])
        groups = -(-generated.items // generated.group)
        self._range = (function.ptr, groups, 1, 1, generated.group, 1, 1, 0)
        self._parameters = addressof(self._addresses)

    def __call__(self, *data: Data) -> None:
        """Put it into the stream, for these inputs and outputs."""
        queue = self._queue
        with translated(f"[{queue.name}] launching a kernel"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([d.pointer for d in data])
        queue.note(self, data, self._outputs)

    def at(self, pointers: list[int]) -> None:
        """The same by addresses, with CuPy's own errors, on the device that is current."""
        queue = self._queue
        self._values[: len(pointers)] = pointers  # type: ignore[assignment]  # read before the call returns: hence the lock
        queue.driver.launchKernel(*self._range, queue.pointer, self._parameters, 0)
