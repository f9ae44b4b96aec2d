"""A compiled region that is recorded once it has settled, and replayed from then on.

A replay is the launches of the recorded run, without any Python in between. Inputs lie where the caller has them.
Outputs come in a few slabs. Values on the way lie in memory that all recordings share. The launches are captured into
a CUDA graph once the same addresses come again, and are one launch then, which takes the host less than to launch a
single kernel. In the graph, launches that do not wait for each other run side by side.

A loop whose results are the next run's inputs alternates between two sets of slabs, and needs two graphs. Inputs and
slabs whose addresses do not come again are copied: the graph reads and writes them in memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final

from ..._run.device import Kernel
from ..._run.memory.pool import Block, BlockKey, block_key
from ..._run.trace import trace
from ..._tensor.dtype import DType, float32
from ..._tensor.node import Shape
from ...errors import LaunchFailure, OutOfMemory
from .concurrency import turns
from .errors import translated
from .launch import Launchable, Queue, Tape
from .memory import ALIGNMENT, Data, HostNumber, offsets_of
from .recording_layout import Lifetime, blocks_of, size_class, slabs_of

_FIRST_RECORDED: Final = 2
_MOST_GRAPHS: Final = 8
_MOST_MISSES: Final = 8
"""Runs in a row whose addresses were new, after which those that change most are copied."""
_SMALL: Final = 64 << 10
"""Bytes up to which a copy takes as long as a launch: of addresses that change equally often, these are copied."""
_APART: Final = 2 * ALIGNMENT
"""The alignment of slabs. The pool keeps blocks of another alignment apart, so that a loop gets its own back."""
_SCALAR: Final = 16
_MANY_LAUNCHES: Final = 64
"""From so many launches on, numbers of up to 16 bytes are always copied: losses are kept, rates come from the host."""
_COPIED_PER_LAUNCH: Final = 256 << 10
"""Bytes that are copied in the time that the host takes for a launch, on devices with little bandwidth."""
_NOWHERE: Final = Data((), float32, None)
"""Stands for an input that has been copied."""


class Replayed:
    """The kernel of a region."""

    def __init__(self, kernel: Kernel, queue: Queue, ops: str) -> None:
        self._kernel = kernel
        self._queue = queue
        self._ops = ops
        self._runs = 0
        self._recording: _Recording | None = None
        self._is_hopeless = False
        """True if it cannot be recorded."""

    def __call__(self, *data: Data) -> tuple[Data, ...]:
        """Run it."""
        recording = self._recording
        if recording is not None and (not recording.same or recording.serves(data)):
            try:
                return recording(data)
            except OutOfMemory:  # one by one, its launches need less memory at a time
                self._recording, self._runs = None, 0
        self._runs += 1
        if self._runs < _FIRST_RECORDED or self._is_hopeless:
            return self._kernel(*data)
        return self._recorded(data)

    @property
    def launched(self) -> str:
        """How the last run was launched; empty before it is known."""
        recording = self._recording
        return "" if recording is None else recording.launched

    def _recorded(self, data: tuple[Data, ...]) -> tuple[Data, ...]:
        """Run it, and record that, if it is what it will be from now on. No lock is held: it may be that it measures
        first which variant is best, and others measure, too."""
        queue = self._queue
        with queue.recording() as tape:
            outputs = self._kernel(*data)
        if not tape.is_final:
            return outputs
        try:
            self._recording = _Recording(queue, self._ops, tape, data, outputs)
        except _NotRecorded as reason:
            self._is_hopeless = True
            if len(tape.launches) > 1:
                trace.failed(self._ops, queue.name, LaunchFailure(f"it is launched step by step: {reason}"))
        return outputs


class _NotRecorded(Exception):
    """Why a run cannot be replayed."""


class _Recording:
    """The launches of one run, each with the places of its arrays.

    A place is an input, a result, a block of values on the way, or something that always lies at the same address.
    Inputs and slabs, in this order, are the columns of the keys by which graphs are kept.
    """

    def __init__(self, queue: Queue, ops: str, tape: Tape, inputs: tuple[Data, ...], outputs: tuple[Data, ...]) -> None:
        self._queue, self._ops = queue, ops
        given = [d.pointer for d in inputs]
        self.same = [(n, given.index(a)) for n, a in enumerate(given) if a and given.index(a) != n]
        """Inputs that were the same memory. Nobody can tell which of them a launch read: they have to be so again."""
        input_at = {pointer: n for n, pointer in enumerate(given)}
        self._results: list[tuple[int, int, Shape, DType]] = []
        """Of each output its slab and its offset there; -1 for an output that has no place in a slab."""
        self._others: list[tuple[int, int | Data]] = []
        """The outputs that are inputs, by position, or always the same data."""
        shown: dict[int, int] = {}
        for position, d in enumerate(outputs):
            value = tape.value(d) if d.block is not None else -1
            if value >= 0:
                shown[value] = tape.taken.sizes[value]
            else:
                self._others.append((position, input_at.get(d.pointer, d) if d.block is not None else d))
        slabs = slabs_of(shown)
        at = {value: (n, offset) for n, slab in enumerate(slabs) for value, offset in slab.offsets.items()}
        for d in outputs:
            slab, offset = at.get(tape.value(d), (-1, 0)) if d.block is not None else (-1, 0)
            self._results.append((slab, offset, d.shape, d.dtype))
        self._slabs = [block_key(slab.nbytes, _APART) for slab in slabs]
        self._offsets = [(n, offset) for n, offset in at.values()]
        """The slab and the offset of each result's place."""
        self._sizes = [*[d.nbytes for d in inputs], *[slab.nbytes for slab in slabs]]
        self._inputs = len(inputs)

        homes, blocks = blocks_of(_spans(tape, shown))
        self._blocks, self._on_the_way = offsets_of(blocks)
        """Where the blocks of values on the way begin in scratch memory, and the bytes of all of them."""
        if self._on_the_way > queue.scratch.most:
            raise _NotRecorded(f"its values on the way have more than {queue.scratch.most} bytes")
        fixed = [d for d in tape.outside if d.pointer not in input_at]
        self._held = fixed
        self._fixed = [d.pointer for d in fixed]
        places: dict[int, int] = {}
        for number, d in enumerate(tape.outside, start=1):
            if d.pointer in input_at:
                places[-number] = input_at[d.pointer]
        places |= {value: len(inputs) + n for n, value in enumerate(at)}
        places |= {value: len(inputs) + len(at) + block for value, block in homes.items()}
        first_fixed = len(inputs) + len(at) + len(blocks)
        places |= {tape.value(d): first_fixed + n for n, d in enumerate(fixed)}
        self._launches: list[tuple[Launchable, tuple[int, ...]]] = []
        touched: list[tuple[list[int], list[int]]] = []
        for noted in tape.launches:
            reads, writes = ([places[v] for v in values] for values in (noted.reads, noted.writes))
            self._launches.append((noted.launch, (*reads, *writes)))
            touched.append((reads, writes))
        self._turns = turns(touched)

        self._graphs: dict[tuple[int, ...], Any] = {}
        """By the addresses of inputs and slabs; `None` for addresses that have been seen once."""
        self._scratch = 0
        """The address of the scratch memory that the graphs use."""
        self._misses = 0
        self._copied: dict[int, int] = {}
        """The columns that are copied, with their offsets in scratch memory."""
        self._needed = self._on_the_way
        """The bytes of scratch memory."""
        self._captures = bool(self._launches)
        if len(self._launches) >= _MANY_LAUNCHES:
            largest = [*self._sizes[: len(inputs)], *[max(shown[v] for v in slab.offsets) for slab in slabs]]
            self._copy({n for n, nbytes in enumerate(largest) if 0 < nbytes <= _SCALAR})

    @property
    def launched(self) -> str:
        """How it is launched."""
        count = len(self._launches)
        if any(graph is not None for graph in list(self._graphs.values())):
            return f"one launch of {count} kernels" if count > 1 else "one launch"
        return f"{count} launches" if count != 1 else "one launch"

    def serves(self, data: tuple[Data, ...]) -> bool:
        """True if it is the recording of a run on such inputs."""
        return all(data[m].pointer == data[n].pointer for m, n in self.same)

    def __call__(self, data: tuple[Data, ...]) -> tuple[Data, ...]:
        """Replay the recording for other inputs."""
        queue = self._queue
        try:
            if queue.has_siblings:
                queue.runtime.setDevice(queue.number)
            slabs = self._taken()
            # Scratch memory is shared: launches of two threads must not mix.
            with queue.lock:
                scratch = queue.scratch.block(self._needed) if self._needed else None
                self._launch(data, slabs, 0 if scratch is None else scratch.memory)
        except RuntimeError as error:
            with translated(f"[{queue.name}] launching a kernel"):
                raise error
        made = [Data(shape, dtype, slabs[n] if n >= 0 else None, at) for n, at, shape, dtype in self._results]
        for position, source in self._others:
            made[position] = source if isinstance(source, Data) else data[source].reshaped(made[position].shape)
        return tuple(made)

    def _taken(self) -> list[Block]:
        """Blocks for the slabs. Those of one size come in the order of their addresses: whatever the order was in
        which they were given back, a loop finds each slab where it was."""
        take = self._queue.memory.pool.take_of
        if len(self._slabs) < 2:
            return [take(key) for key in self._slabs]
        alike: dict[BlockKey, list[Block]] = {}
        for key in self._slabs:
            alike.setdefault(key, []).append(take(key))
        for blocks in alike.values():
            blocks.sort(key=attrgetter("memory"), reverse=True)
        return [alike[key].pop() for key in self._slabs]

    def _launch(self, data: tuple[Data, ...], slabs: list[Block], scratch: int) -> None:
        """Put all of it into the stream."""
        queue, inputs = self._queue, self._inputs
        if scratch != self._scratch:
            self._graphs.clear()
            self._scratch = scratch
        copies: list[tuple[int, int, int]] = []
        if self._copied:
            queue.runtime.setDevice(queue.number)
            given = list(data)
            for column in self._copied:
                if column < inputs and isinstance(number := given[column], HostNumber):
                    queue.memory.write(scratch + self._copied[column], number.number)
                    given[column] = _NOWHERE
            addresses = [*[d.pointer for d in given], *[block.memory for block in slabs]]
            for column, offset in self._copied.items():
                if addresses[column]:
                    copies.append((addresses[column], scratch + offset, column))
                addresses[column] = scratch + offset
            for source, into, nbytes in _merged([(a, b, self._sizes[n]) for a, b, n in copies if n < inputs]):
                queue.memory.copy(into, source, nbytes)
        else:
            addresses = [*[d.pointer for d in data], *[block.memory for block in slabs]]
        key = tuple(addresses)
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._graph(key)
        else:
            self._misses = 0
        if graph is not None:
            graph.launch(queue.stream)
        else:
            queue.runtime.setDevice(queue.number)
            for launch in self._bound(key):
                launch()
        for into, source, column in copies:
            if column >= inputs:
                queue.memory.copy(into, source, self._sizes[column])
        if self._misses >= _MOST_MISSES:
            self._copy_changing()

    def _bound(self, addresses: tuple[int, ...]) -> list[Callable[[], None]]:
        """The launches, for inputs and slabs at these addresses."""
        inputs, scratch = self._inputs, self._scratch
        of = [
            *addresses[:inputs],
            *[addresses[inputs + slab] + offset for slab, offset in self._offsets],
            *[scratch + offset for offset in self._blocks],
            *self._fixed,
        ]
        return [partial(launch.at, [of[n] for n in places]) for launch, places in self._launches]

    def _graph(self, addresses: tuple[int, ...]) -> Any | None:
        """The graph for addresses that there is none for yet: if they have been seen before, and it can be captured."""
        if not self._captures:
            return None
        self._misses += 1
        graph = None
        if addresses in self._graphs:
            graph = self._captured(addresses)
        else:
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

    def _copy_changing(self) -> None:
        """Copy the columns whose addresses have changed most often lately."""
        self._misses = 0
        changes = [len(set(column)) for column in zip(*self._graphs, strict=True)]
        changing = {n for n, count in enumerate(changes) if count == max(changes) > 1}
        self._copy({n for n in changing if self._sizes[n] <= _SMALL} or changing)

    def _copy(self, columns: set[int]) -> None:
        """Copy these columns from now on, if that takes less than launches do."""
        chosen = {*self._copied, *columns}
        nbytes, launches = sum(self._sizes[n] for n in chosen), len(self._launches)
        if len(chosen) >= launches or nbytes > launches * _COPIED_PER_LAUNCH:
            return
        order = sorted(chosen, key=lambda n: (n >= self._inputs, size_class(self._sizes[n]), n))
        offsets, needed = offsets_of([self._sizes[n] for n in order], self._on_the_way)
        if needed <= self._queue.scratch.most:
            self._copied, self._needed = dict(zip(order, offsets, strict=True)), needed
            self._graphs.clear()


def _spans(tape: Tape, shown: dict[int, int]) -> list[Lifetime]:
    """The values on the way: all that were taken and used, but those that are shown."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for n, noted in enumerate(tape.launches):
        for value in (*noted.reads, *noted.writes):
            first.setdefault(value, n)
            last[value] = n
    sizes = tape.taken.sizes
    return [
        Lifetime(value, sizes[value], n, last[value]) for value, n in first.items() if value >= 0 and value not in shown
    ]


def _merged(copies: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Copies as source, target and bytes; those are one whose arrays lie at the same distances in both places, as the
    results of an earlier run do. The gaps between arrays are less than what alignment wastes, and nobody's."""
    made: list[tuple[int, int, int]] = []
    for source, into, nbytes in copies:
        if made:
            first, start, length = made[-1]
            if source - first == into - start and 0 <= into - start - length < ALIGNMENT:
                made[-1] = first, start, into - start + nbytes
                continue
        made.append((source, into, nbytes))
    return made
