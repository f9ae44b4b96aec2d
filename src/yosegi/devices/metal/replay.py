"""A compiled region whose commands are encoded once and executed again.

The second run is recorded: its launches, each with the places of its arrays. A place is an input, a result, a block for
values on the way, which the recording keeps, or data that never changes. When the same buffers come a second time, the
launches are encoded into an indirect command buffer for them. From then on a run is one command.

Products and convolutions of the library encode themselves, in every run: they cut a recording into stretches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, final

from ..._run.device import Kernel
from ..._run.memory.pool import Block
from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ...errors import OutOfMemory
from ..kernel.memory import Data
from .commands import Encoder, metal, pool
from .launch import Launch, Launchable, Queue, Tape

_FIRST_RECORDED: Final = 2
_MOST_SETS: Final = 8
"""Sets of buffers that a recording remembers. A loop whose results are its next inputs has two."""
_USED: Final = 3  # MTLResourceUsageRead | MTLResourceUsageWrite
_DISPATCH: Final = 1 << 5  # MTLIndirectCommandTypeConcurrentDispatch
_BINDINGS: Final = 31


@final
class Replayed:
    """The kernel of a region."""

    def __init__(self, kernel: Kernel, queue: Queue) -> None:
        self._kernel, self._queue = kernel, queue
        self._runs = 0
        self._recording: _Recording | None = None
        self._is_hopeless = False
        """Whether it cannot be recorded."""
        queue.replays.add(self)

    def __call__(self, *data: Any) -> tuple[Any, ...]:
        """Run it."""
        recording = self._recording
        if recording is not None and recording.serves(data):
            try:
                return recording(data)
            except OutOfMemory:  # one by one, its launches need less memory at a time
                self.forget()
        self._runs += 1
        if self._runs < _FIRST_RECORDED or self._is_hopeless:
            return self._kernel(*data)
        with self._queue.recording() as tape:
            outputs = self._kernel(*data)
        if tape.is_final:
            if _is_recordable(tape, (*data, *outputs)):
                self._recording = _Recording(self._queue, tape, data, outputs)
            else:
                self._is_hopeless = True
        return outputs

    def forget(self) -> None:
        """Give back the memory of the recording."""
        self._recording, self._runs = None, 0

    @property
    def launched(self) -> str:
        """How the last run was launched; empty before it is known."""
        return "" if self._recording is None else self._recording.launched


def _is_recordable(tape: Tape, data: Sequence[Any]) -> bool:
    """True for a run of several launches whose data is all on the device."""
    return len(tape.steps) > 1 and all(isinstance(d, Data) and d.is_finished for d in data)


@final
class _Recording:
    """The launches of one run. Places are numbered: inputs, results, blocks on the way, fixed data."""

    def __init__(self, queue: Queue, tape: Tape, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        self._queue = queue
        places: dict[int, int] = {}
        self._same: list[tuple[int, int]] = []
        """Inputs that were the same memory. Nobody knows which of them a launch read: they have to be so again."""
        for n, d in enumerate(inputs):
            if places.setdefault(id(d.buffer), n) != n:
                self._same.append((n, places[id(d.buffer)]))
        shown = [b for b in dict.fromkeys(id(d.buffer) for d in outputs) if b in tape.made]
        self._results = [tape.made[b] for b in shown]
        hidden = [b for b in tape.made if b not in shown]
        self._held: list[Block] = [queue.memory.pool.take_of(tape.made[b]) for b in hidden]
        fixed = [b for b in tape.read if b not in places]
        self._fixed = [tape.read[b] for b in fixed]
        for n, b in enumerate([*shown, *hidden, *fixed], start=len(inputs)):
            places[b] = n
        self._outputs: list[tuple[int, Shape, DType] | Data] = [
            (places[id(d.buffer)], d.shape, d.dtype) if id(d.buffer) in places and d.buffer is not None else d
            for d in outputs
        ]
        """The place of each output, or data that is always the same."""
        steps = [
            (launch, [places[b] for b in reads], [places[b] for b in writes]) for launch, reads, writes in tape.steps
        ]
        self._stretches = [
            _Stretch(queue, list(group)) if is_generated else list(group)
            for is_generated, group in groupby(steps, key=lambda step: isinstance(step[0], Launch))
        ]
        used = {place for _, reads, writes in steps for place in (*reads, *writes)}
        self._keyed = [n for n in range(len(inputs)) if n in used]
        """The inputs that a launch reads."""
        self._sets: dict[tuple[int, ...], list[Any] | None] = {}
        """Indirect command buffers of all stretches by the buffers of inputs and results, by identity, which these
        command buffers keep; `None` for buffers that have been seen once."""
        count = len(steps)
        self.launched = f"one launch of {count} kernels" if len(self._stretches) == 1 else f"{count} kernels"

    def serves(self, data: Sequence[Any]) -> bool:
        """Whether it is the recording of a run on such inputs."""
        return all(data[m].buffer is data[n].buffer for m, n in self._same)

    def __call__(self, data: Sequence[Data]) -> tuple[Data, ...]:
        """Replay it."""
        memory, commands = self._queue.memory, self._queue.commands
        given = memory.finished(data)
        blocks = [memory.pool.take_of(key) for key in self._results]
        buffers = [block.memory.buffer for block in blocks]
        key = (*[id(given[n].buffer) for n in self._keyed], *map(id, buffers))
        of = [
            *[d.buffer for d in given], *buffers, *[block.memory.buffer for block in self._held],
            *[d.buffer for d in self._fixed],
        ]  # fmt: skip
        made = tuple(
            [self._shown(output, given, blocks) for output in self._outputs]
        )  # a failure from here on is theirs
        put: list[Any] = []
        try:
            with commands.lock:  # values on the way are shared: launches of two threads must not mix
                encoded = self._encoded(key, of)
                for number, stretch in enumerate(self._stretches):
                    if isinstance(stretch, _Stretch):
                        put += stretch.run(of, None if encoded is None else encoded[number])
                        continue
                    for launch, reads, writes in stretch:
                        put += launch.put([of[n] for n in (*reads, *writes)])
        finally:  # a launch of a library may fail, behind others that are under way
            foreign = [d for d in given if d.block is None]
            for command_buffer in put:  # each may fail by itself
                memory.keep(command_buffer, foreign)
        return made

    def _shown(self, output: tuple[int, Shape, DType] | Data, given: Sequence[Data], blocks: Sequence[Block]) -> Data:
        """The data of an output."""
        if isinstance(output, Data):
            return output
        (place, shape, dtype), memory = output, self._queue.memory
        if place < len(given):
            return memory.reshaped(given[place], shape)
        return memory.of_block(blocks[place - len(given)], shape, dtype)

    def _encoded(self, key: tuple[int, ...], buffers: Sequence[Any]) -> list[Any] | None:
        """The indirect command buffers for buffers that come again; `None` for new ones."""
        known = self._sets.get(key)
        if known is None:
            is_new = key not in self._sets
            if is_new and len(self._sets) >= _MOST_SETS:
                self._sets.pop(next(iter(self._sets)))
            elif not is_new:
                known = [s.encoded(buffers) if isinstance(s, _Stretch) else None for s in self._stretches]
            self._sets[key] = known
        return known


_Step = tuple[Launchable, Sequence[int], Sequence[int]]
"""A launch, and the places that it reads and writes."""


@final
class _Stretch:
    """Launches of generated kernels, one after the other."""

    def __init__(self, queue: Queue, steps: list[_Step]) -> None:
        self._queue = queue
        self._steps: list[tuple[Launch, list[int]]] = []
        self._waits = waits(steps)
        for launch, reads, writes in steps:
            assert isinstance(launch, Launch)
            self._steps.append((launch, [*reads, *writes]))
        self._places = sorted({place for _, places in self._steps for place in places})
        self._pipelines = list({id(launch.pipeline): launch.pipeline for launch, _ in self._steps}.values())

    def encoded(self, buffers: Sequence[Any]) -> tuple[Any, list[Any]] | None:
        """The launches on buffers as an indirect command buffer, and all buffers that they use; `None` if Metal makes
        none."""
        with pool():
            descriptor = metal()[0].MTLIndirectCommandBufferDescriptor.alloc().init()
            descriptor.setCommandTypes_(_DISPATCH)
            descriptor.setInheritBuffers_(False)
            descriptor.setInheritPipelineState_(False)
            descriptor.setMaxKernelBufferBindCount_(_BINDINGS)
            made = self._queue.device.newIndirectCommandBufferWithDescriptor_maxCommandCount_options_(
                descriptor, len(self._steps), 0
            )
            if made is None:
                return None
            for number, ((launch, places), is_waiting) in enumerate(zip(self._steps, self._waits, strict=True)):
                launch.encode_indirect(
                    made.indirectComputeCommandAtIndex_(number), [buffers[n] for n in places], waits=is_waiting
                )
        sizes = [launch.sizes for launch, _ in self._steps if launch.sizes is not None]
        return made, [*[buffers[n] for n in self._places], *sizes]

    def run(self, buffers: Sequence[Any], encoded: tuple[Any, list[Any]] | None) -> list[Any]:
        """Execute it, or encode launch by launch. Returns the command buffers."""
        if encoded is None:
            return [put for launch, places in self._steps for put in launch.put([buffers[n] for n in places])]
        made, used = encoded
        with self._queue.commands.encoding(Encoder.INDIRECT) as (command_buffer, encoder):
            encoder.useResources_count_usage_(used, len(used), _USED)
            for pipeline in self._pipelines if self._queue.binds_pipelines else ():
                encoder.setComputePipelineState_(pipeline)
                encoder.dispatchThreadgroups_threadsPerThreadgroup_(_NOTHING, _NOTHING)
            encoder.executeCommandsInBuffer_withRange_(made, (0, len(self._steps)))
        return [command_buffer]


_NOTHING: Final = (0, 0, 0)


def waits(steps: Sequence[_Step]) -> list[bool]:
    """Whether each launch waits for those before it: others may run side by side.

    >>> waits([(None, (0,), (1,)), (None, (0,), (2,)), (None, (1, 2), (3,)), (None, (0,), (4,))])
    [False, False, True, False]
    """
    made: list[bool] = []
    read: set[int] = set()
    written: set[int] = set()
    for _, reads, writes in steps:
        made.append(bool(written.intersection(reads) or written.intersection(writes) or read.intersection(writes)))
        if made[-1]:
            read, written = set(), set()
        read.update(reads)
        written.update(writes)
    return made
