"""Kernels that can be launched, again and again, from any thread; and data with its axes in another order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from ctypes import addressof, c_int32, c_int64, c_void_p
from dataclasses import dataclass, field
from threading import RLock, local
from typing import Any, Final, Protocol

from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ...codegen.c.copies import Copy, copy_kernel, strides_of
from ...codegen.c.dialect import Target
from ...codegen.c.kernel_source import Kernel as Generated
from .cache import Programs
from .concurrency import Turn
from .dialect import CUDA
from .errors import translated
from .memory import Data, Memory, Scratch, Taken

WORKSPACE: Final = 32 << 20
"""Bytes that a library's kernel may use on the way; given here, because none may be allocated while a stream is
captured."""


class Queue:
    """One device's stream: what is launched returns at once, and runs in the order of the launches."""

    language = "CUDA"
    dialect = CUDA

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
        self.has_siblings = self.runtime.getDeviceCount() > 1
        """True if another GPU may be current in a thread that has not said which one it wants."""
        self.name = memory.name
        self.target = target
        self.lock = RLock()
        """Held while launches are put into the stream that belong together."""
        self.scratch = Scratch(memory)
        self._thread = _ThreadTape()
        self._workspaces: dict[int, int] = {}
        self._asides: list[Any] = []

    def launch(self, kernel: Generated, buffers: int) -> Launch:
        """A generated kernel, to be put into the stream with its inputs and outputs, `buffers` in all."""
        return Launch(self, kernel, buffers)

    @property
    def workspace(self) -> int:
        """Where `WORKSPACE` bytes lie that a library's kernel may use: one at a time, in the order of its lane."""
        return self._workspace_of(self.lane)

    def _workspace_of(self, lane: int) -> int:
        if lane not in self._workspaces:
            self._workspaces[lane] = self.memory.reserved(WORKSPACE)
        return self._workspaces[lane]

    @contextmanager
    def recording(self, *, holds: bool = False) -> Iterator[Tape]:
        """Record the launches of this thread; a nested recording has its own tape. With `holds`, all data stays in
        place as long as the tape does."""
        with self.memory.noting() as taken:
            outer, self._thread.tape = self._thread.tape, Tape(taken, holds)
            try:
                yield self._thread.tape
            finally:
                self._thread.tape = outer

    def undecided(self) -> None:
        """Mark the recording of this thread as useless: the next run will launch other kernels."""
        if self._thread.tape is not None:
            self._thread.tape.is_final = False

    def captured(self, launches: Sequence[Callable[[], None]], turns: Sequence[Turn] = ()) -> Any:
        """The launches of functions as a graph, each in its turn, or one after the other. Raises CuPy's own errors."""
        turns = turns or [Turn(0, ())] * len(launches)
        lanes = 1 + max((turn.lane for turn in turns), default=0)
        awaited = {n for turn in turns for n in turn.waits}
        events: dict[int, Any] = {}
        with self.lock:
            self.runtime.setDevice(self.number)
            streams = self._capturing(lanes)
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

    def _capturing(self, lanes: int) -> list[Any]:
        """Streams to capture so many lanes in, always the same: libraries keep the one that they were given last.
        What these need on the way is there before a capture begins."""
        while len(self._asides) < lanes:
            self._asides.append(self.cupy.cuda.Stream(non_blocking=True))
        if self._workspaces:
            for lane in range(lanes):
                self._workspace_of(lane)
        return self._asides[:lanes]

    def note(self, launch: Launchable, data: tuple[Data, ...], written: int) -> None:
        """Tell a recording, if this thread makes one. The last `written` of the data are what the launch writes."""
        tape = self._thread.tape
        if tape is not None:
            tape.note(launch, data, written)


class Launchable(Protocol):
    """Something that a stream takes."""

    def at(self, pointers: list[int]) -> None:
        """Put it into the queue's stream, for data at these addresses; by someone who holds the queue's lock."""


@dataclass(frozen=True, slots=True)
class Noted:
    """A launch, the addresses that it was on, and the values there: those that it reads, those that it writes."""

    launch: Launchable
    pointers: list[int]
    reads: tuple[int, ...]
    writes: tuple[int, ...]


@dataclass(slots=True)
class Tape:
    """The launches of a thread.

    Values are numbers: those of `taken`, and below zero those that were there before, of which the first is -1. A tape
    holds only the latter, so that a run that is recorded takes no more memory than any other.
    """

    taken: Taken
    holds: bool = False
    launches: list[Noted] = field(default_factory=list)
    outside: list[Data] = field(default_factory=list)
    """The values that were there before."""
    is_final: bool = True
    """True if it would launch the same the next time."""
    _numbers: dict[int, int] = field(default_factory=dict)
    _held: list[Data] = field(default_factory=list)

    def note(self, launch: Launchable, data: tuple[Data, ...], written: int) -> None:
        """Add a launch, of which the last `written` of the data are the results."""
        values = tuple([self.value(d) for d in data])
        self.launches.append(Noted(launch, [d.pointer for d in data], values[:-written], values[-written:]))
        if self.holds:
            self._held.extend(data)

    def value(self, data: Data) -> int:
        """The number of the value that some data is."""
        taken = self.taken.number(data.pointer)
        if taken is not None:
            return taken
        if data.pointer not in self._numbers:
            self.outside.append(data)
            self._numbers[data.pointer] = -len(self.outside)
        return self._numbers[data.pointer]


class _ThreadTape(local):
    """The recording of a thread."""

    tape: Tape | None = None


class Launch:
    """One generated kernel. Its sizes are set once; its pointers come before them among its parameters."""

    def __init__(self, queue: Queue, generated: Generated, pointers: int) -> None:
        self._queue = queue
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

    def __call__(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put it into the stream."""
        queue, data = self._queue, (*inputs, *outputs)
        with translated(f"[{queue.name}] launching a kernel"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([d.pointer for d in data])
        queue.note(self, data, len(outputs))

    def at(self, pointers: list[int]) -> None:
        """Launch by addresses, on the current device. Raises CuPy's own errors."""
        queue = self._queue
        self._values[: len(pointers)] = pointers  # type: ignore[assignment]  # read before the call returns: hence the lock
        queue.driver.launchKernel(*self._range, queue.pointer, self._parameters, 0)


def transposed(
    queue: Queue, shape: Shape, order: tuple[int, ...] | None, dtype: DType, reverses: Collection[int] = ()
) -> Callable[[Data], Data]:
    """A function that brings data of a shape into another order of its axes; `None` leaves it as it is. `reverses` are
    axes of the shape whose elements come in reverse order."""
    if order is None:
        return lambda data: data
    made = tuple(shape[a] for a in order)
    strides = strides_of(shape)
    read = tuple(-strides[a] if a in reverses else strides[a] for a in order)
    copy = Copy(made, read, strides_of(made), sum((shape[a] - 1) * strides[a] for a in reverses))
    launch = Launch(queue, copy_kernel(copy, dtype, CUDA, queue.target), 2)

    def copied(data: Data) -> Data:
        result = queue.memory.new(made, dtype)
        launch([data], [result])
        return result

    return copied
