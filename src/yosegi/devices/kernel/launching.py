"""Interfaces of a device with an in-order queue, and regions as launches on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from ..._graph.graph import Graph
from ..._graph.reference import bind
from ..._run.device import Kernel
from ..._schedule.fuse import Region, is_constant
from ..._tensor.dtype import DType
from ..._tensor.node import Call, Shape
from ..._tensor.precision import Precision
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.dialect import Dialect, Target
from ...codegen.c.fused_kernels import LibraryProduct
from ...codegen.c.kernel_source import Kernel as Generated
from ...codegen.c.stages import FAULTS, KernelProgram
from .memory import QueueMemory

LIBRARY: Final = "library"
"""The prefix of the names of a vendor's variants."""

Launcher = Callable[[Sequence[Any], Sequence[Any]], None]
"""Puts a kernel into the queue, with the data of its inputs and of its outputs."""


class Queue(Protocol):
    """The in-order queue of one device. A launch returns at once; kernels run in the order of their launches."""

    name: str
    language: str
    """The name of its language, for refusals."""
    dialect: Dialect
    target: Target

    @property
    def memory(self) -> QueueMemory:
        """The memory of its device."""

    def undecided(self) -> None:
        """Discard the recording of this thread's current run: later runs will differ."""

    def launch(self, kernel: Generated, buffers: int) -> Launcher:
        """A generated kernel, to be put into the queue with its inputs and outputs, `buffers` in all."""


class KernelMachine(Protocol):
    """The interface of a device for products and composites."""

    name: str
    dialect: Dialect
    target: Target
    arrays: int
    """The most arrays that a kernel takes."""
    compilers: int
    """The number of kernels that are compiled at the same time."""
    algorithms: int
    """The number of a library's algorithms that are measured for a product."""
    memory: QueueMemory

    def has_library(self, call: Call) -> bool:
        """True if `compile` has the vendor's own version of a product."""

    def by_library(self, region: Region) -> Mapping[str, Callable[[], Kernel]]:
        """The vendor's own variants of a product, by name. All names begin with `LIBRARY`, which is the name of the
        variant that is expected to be fastest. A variant that turns out not to exist raises `NoSuchVariant`."""

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if `multiplier` has a product with this prologue and epilogue in a precision."""

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """The vendor's own version of a product with prologue and epilogue: the entries that it reads, and its launch.
        Of several algorithms, the one of the wanted rank, or the last."""

    def launcher(self, kernel: Generated, inputs: int, outputs: int) -> Launcher:
        """A generated kernel, to be launched on the data of inputs and outputs."""

    def refusal(self, region: Region) -> str | None:
        """The reason why `compile` does not support a region, or `None`."""

    def compile(self, region: Region) -> Kernel:
        """A kernel of a region that is not fused any further."""

    def undecided(self) -> None:
        """Discard the recording of this thread's current run: later runs will differ."""

    def seconds(self, kernel: Kernel, data: Sequence[Any], calls: int) -> float:
        """The seconds of a call, of this many that are launched in sequence, as in a program that repeats."""


def constants_of(graph: Graph, entries: Iterable[int], memory: QueueMemory) -> dict[int, Any]:
    """The constants among entries of a graph, as data of a device."""
    return {e: memory.from_host(np.asarray(bind(graph.calls[e])())) for e in entries if is_constant(graph, e)}


def arguments_of(region: Region, memory: QueueMemory, entry: int | None = None) -> Callable[[Sequence[Any]], list[Any]]:
    """A function that gives the arguments of an op of a region, by default of the last, from the region's inputs.

    Arguments that are constants are copied to the device here, once.
    """
    args = region.graph.args[region.nodes[-1] if entry is None else entry]
    constants = constants_of(region.graph, args, memory)

    def arguments(data: Sequence[Any]) -> list[Any]:
        given = constants | dict(zip(region.inputs, data, strict=True))
        return [given[a] for a in args]

    return arguments


def launched(
    launch: Launcher, constants: Sequence[Any], rooms: Sequence[tuple[Shape, DType]], memory: QueueMemory
) -> Kernel:
    """A launch as a function of its inputs, before its constants, that makes its outputs."""

    def kernel(*data: Any) -> tuple[Any, ...]:
        made = tuple([memory.new(*room) for room in rooms])
        launch([*data, *constants], made)
        return made

    return kernel


def programmed(
    call: Call, program: KernelProgram, launcher: Callable[[Generated, int, int], Launcher], memory: QueueMemory
) -> Callable[[Sequence[Any]], list[Any]]:
    """A program as a function from the arguments of its call to the outputs. `launcher` takes a kernel and the numbers
    of its inputs and outputs."""
    steps = [(launcher(s.kernel, len(s.reads), len(s.writes)), s.reads, s.writes) for s in program.stages]
    rooms = (*[(s.shape, s.dtype) for s in call.outputs], *program.scratch)
    first, last = len(call.inputs), len(call.inputs) + len(call.outputs)

    def run(arguments: Sequence[Any]) -> list[Any]:
        arrays = [*arguments, *[memory.new(*room) for room in rooms]]
        for launch, reads, writes in steps:
            written = [memory.fault_table() if slot == FAULTS else arrays[slot] for slot in writes]
            launch([arrays[slot] for slot in reads], written)
        return arrays[first:last]

    return run
