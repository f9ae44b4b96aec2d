"""A kernel that can be launched, again and again, from any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import addressof, c_int32, c_int64, c_void_p
from threading import RLock, get_ident
from typing import Any, Protocol

from ...codegen.dialect import Target
from ...codegen.kernels import Kernel as Generated
from .cache import Programs
from .errors import translated
from .memory import Data, Memory


class Queue:
    """One device's stream: what is launched returns at once, and runs in the order of the launches."""

    def __init__(self, cupy: Any, stream: Any, programs: Programs, memory: Memory, number: int, target: Target) -> None:
        self.cupy = cupy
        self.driver = cupy.cuda.driver
        self.runtime = cupy.cuda.runtime
        self.stream = stream
        self.pointer: int = stream.ptr
        """The stream that launches go to: another one while they are captured."""
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

    @contextmanager
    def recording(self) -> Iterator[Tape]:
        """A list of what this thread launches."""
        self._recorder, self.tape = get_ident(), []
        try:
            yield self.tape
        finally:
            self.tape = None

    def captured(self, launch: Callable[[], None]) -> Any:
        """What a function puts into the stream, as a graph instead; with CuPy's own errors."""
        aside = self.cupy.cuda.Stream(non_blocking=True)
        with self.lock:
            own, self.pointer = self.pointer, aside.ptr
            try:
                aside.begin_capture()
                try:
                    launch()
                finally:
                    graph = aside.end_capture()
            finally:
                self.pointer = own
        return graph

    def note(self, launch: Launchable, data: tuple[Data, ...]) -> None:
        """Tell a recording, if this thread makes one."""
        if self.tape is not None and self._recorder == get_ident():
            self.tape.append((launch, data))


class Launchable(Protocol):
    """Something that a stream takes."""

    def at(self, pointers: list[int]) -> None:
        """Put it into the queue's stream, for data at these addresses; by someone who holds the queue's lock."""


Tape = list[tuple[Launchable, tuple[Data, ...]]]


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

    def __call__(self, *data: Data) -> None:
        """Put it into the stream, for these inputs and outputs."""
        queue = self._queue
        with translated(f"[{queue.name}] launching a kernel"), queue.lock:
            queue.runtime.setDevice(queue.number)
            self.at([d.pointer for d in data])
        queue.note(self, data)

    def at(self, pointers: list[int]) -> None:
        """The same by addresses, with CuPy's own errors, on the device that is current."""
        queue = self._queue
        self._values[: len(pointers)] = pointers  # type: ignore[assignment]  # read before the call returns: hence the lock
        queue.driver.launchKernel(*self._range, queue.pointer, self._parameters, 0)
