"""Kernels as Metal launches them, and the tape of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import local
from typing import Any, Protocol, final
from weakref import WeakSet

import numpy as np

from ..._run.memory.pool import BlockKey
from ...codegen.c.dialect import Dialect, Target
from ...codegen.c.kernel_source import Kernel as Generated
from ...errors import CompileFailure
from ..kernel.memory import Data
from .commands import Commands, Encoder, metal
from .memory import Memory
from .programs import Programs


class Launchable(Protocol):
    """A command that can be put into the queue, again and again, from any thread."""

    def put(self, buffers: Sequence[Any]) -> list[Any]:
        """Put it into the queue, on the buffers of inputs and outputs. Returns the command buffers."""


@final
class Tape:
    """The launches of a run, with their buffers by identity."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.steps: list[tuple[Launchable, list[int], list[int]]] = []
        """Each launch, with the buffers that it reads and writes."""
        self.made: dict[int, BlockKey] = {}
        """The keys of the blocks that a launch writes before any reads them."""
        self.read: dict[int, Data] = {}
        """All other data. What is computed on the way is not kept: its memory serves again."""
        self.is_final = True
        """False if the next run will launch other commands."""

    def note(self, launch: Launchable, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Add a launch."""
        for data in inputs:
            if id(data.buffer) not in self.made:
                self.read[id(data.buffer)] = data
        for data in outputs:
            if id(data.buffer) not in self.read:
                if data.block is None or self._memory.is_permanent(data):
                    self.read[id(data.buffer)] = data
                else:
                    self.made[id(data.buffer)] = data.block.key
        self.steps.append((launch, [id(d.buffer) for d in inputs], [id(d.buffer) for d in outputs]))


class _Recorder(local):
    """The tape of a thread."""

    tape: Tape | None = None


@final
@dataclass(slots=True)
class Queue:
    """One device's in-order queue."""

    name: str
    device: Any
    dialect: Dialect
    target: Target
    memory: Memory
    commands: Commands
    programs: Programs
    binds_pipelines: bool
    """Whether an encoder has to be given the pipelines of an indirect command buffer, too."""
    replays: WeakSet[Any] = field(default_factory=WeakSet)
    """The regions whose recordings keep memory."""
    _recorder: _Recorder = field(default_factory=_Recorder)
    language = "Metal"

    def launch(self, kernel: Generated, buffers: int) -> Launch:
        """A generated kernel, to be put into the queue with its inputs and outputs, `buffers` in all."""
        return Launch(self, kernel, buffers)

    def run(self, launch: Launchable, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put a command into the queue, and onto the tape of this thread."""
        tape = self._recorder.tape
        if tape is not None and not all(d.is_finished for d in inputs):
            tape.is_final = False  # the host has a part in this run
        inputs = self.memory.finished(inputs)
        for command_buffer in launch.put([d.buffer for d in (*inputs, *outputs)]):
            self.memory.keep(command_buffer, [data for data in inputs if data.block is None])
        if tape is not None:
            tape.note(launch, inputs, outputs)

    @contextmanager
    def recording(self) -> Iterator[Tape]:
        """Record the launches of this thread."""
        outer, self._recorder.tape = self._recorder.tape, Tape(self.memory)
        try:
            yield self._recorder.tape
        finally:
            self._recorder.tape = outer

    def undecided(self) -> None:
        """Mark the recording of this thread as useless: the next run will launch other kernels."""
        if self._recorder.tape is not None:
            self._recorder.tape.is_final = False


@final
class Launch:
    """A kernel that can be put into the queue, again and again, from any thread. Its sizes are behind its buffers."""

    def __init__(self, queue: Queue, generated: Generated, buffers: int) -> None:
        self._queue = queue
        self.pipeline = queue.programs.get(generated.source)
        most = int(self.pipeline.maxTotalThreadsPerThreadgroup())
        if generated.group > most:
            raise CompileFailure(f"[{queue.name}] this kernel runs in groups of {most}, not of {generated.group}")
        size = metal()[0].MTLSizeMake
        self._grid = size(-(-generated.items // generated.group), 1, 1), size(generated.group, 1, 1)
        self._sizes = np.array(generated.sizes, np.int64 if generated.long_sizes else np.int32).tobytes()
        self._buffers = buffers

    @cached_property
    def sizes(self) -> Any | None:
        """The sizes in a buffer, as indirect commands need them; `None` if there are none."""
        return self._queue.memory.small(self._sizes) if self._sizes else None

    def __call__(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put it into the queue."""
        self._queue.run(self, inputs, outputs)

    def put(self, buffers: Sequence[Any]) -> list[Any]:
        """Put it into the queue, on the buffers of inputs and outputs. Returns the command buffers."""
        with self._queue.commands.encoding(Encoder.KERNELS) as (command_buffer, encoder):
            encoder.setComputePipelineState_(self.pipeline)
            for n, buffer in enumerate(buffers):
                encoder.setBuffer_offset_atIndex_(buffer, 0, n)
            if self._sizes:
                encoder.setBytes_length_atIndex_(self._sizes, len(self._sizes), self._buffers)
            encoder.dispatchThreadgroups_threadsPerThreadgroup_(*self._grid)
        return [command_buffer]

    def encode_indirect(self, command: Any, buffers: Sequence[Any], *, waits: bool) -> None:
        """Encode it into a command of an indirect command buffer; it `waits` for those before it."""
        command.setComputePipelineState_(self.pipeline)
        for n, buffer in enumerate(buffers):
            command.setKernelBuffer_offset_atIndex_(buffer, 0, n)
        if self.sizes is not None:
            command.setKernelBuffer_offset_atIndex_(self.sizes, 0, self._buffers)
        command.concurrentDispatchThreadgroups_threadsPerThreadgroup_(*self._grid)
        if waits:
            command.setBarrier()
