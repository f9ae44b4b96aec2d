"""A CUDA queue on the host's memory: launches are functions that run at once, and a graph runs them in any order that
its lanes allow. CuPy is NumPy, on the memory that the queue's pool hands out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from ctypes import c_byte, c_float, memmove
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from yosegi._graph.reference import outputs_of
from yosegi._run.device import Kernel
from yosegi._schedule.fuse import Region
from yosegi._tensor.dtype import float32
from yosegi._tensor.node import Spec
from yosegi.codegen.c.dialect import Target
from yosegi.devices.cuda.concurrency import Turn
from yosegi.devices.cuda.launch import Queue
from yosegi.devices.cuda.memory import Data, Memory
from yosegi.devices.cuda.replay import Replayed
from yosegi.devices.kernel.device import each
from yosegi.devices.kernel.faults import watched
from yosegi.tools.fakes import FakeDevice

SHAPE = (8,)
CUFFT = {
    "C2C": ("complex64", "complex64"), "R2C": ("float32", "complex64"), "C2R": ("complex64", "float32"),
    "Z2Z": ("complex128", "complex128"), "D2Z": ("float64", "complex128"), "Z2D": ("complex128", "float64"),
}  # fmt: skip
"""The transforms of cuFFT, with the dtypes of what goes in and what comes out."""


class Runtime:
    """Memory, as CUDA's runtime hands it out."""

    def __init__(self) -> None:
        self._blocks: dict[int, Any] = {}
        self.copies: list[int] = []
        self.waits = 0
        self.memGetInfo = lambda: (1 << 30, 1 << 30)
        self.getDeviceCount = lambda: 1
        self.setDevice = lambda number: None

    def mallocAsync(self, nbytes: int, stream: int) -> int:
        block = np.full(nbytes, 255, np.uint8)
        self._blocks[block.ctypes.data] = block
        return int(block.ctypes.data)

    def freeAsync(self, pointer: int, stream: int) -> None:
        del self._blocks[pointer]

    def hostAlloc(self, nbytes: int, flags: int) -> int:
        return self.mallocAsync(nbytes, 0)

    def freeHost(self, pointer: int) -> None:
        del self._blocks[pointer]

    def memcpyAsync(self, into: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        self.copies.append(nbytes)
        memmove(into, source, nbytes)

    def streamSynchronize(self, stream: int) -> None:
        self.waits += 1

    def streamCreateWithFlags(self, flags: int) -> int:
        return 2

    def eventCreateWithFlags(self, flags: int) -> int:
        return 0

    def eventRecord(self, event: int, stream: int) -> None:
        pass

    def eventDestroy(self, event: int) -> None:
        pass

    def eventSynchronize(self, event: int) -> None:
        pass

    def streamWaitEvent(self, stream: int, event: int) -> None:
        pass


class Stream(nullcontext[None]):
    """A stream that can be made the current one."""

    ptr = 1


@dataclass
class UnownedMemory:
    """Memory for CuPy that is not its own."""

    ptr: int
    size: int
    owner: Any
    device_id: int


@dataclass
class MemoryPointer:
    """A place in some memory."""

    mem: Any
    offset: int


class Plan:
    """A plan of cuFFT's many transforms, and what it does."""

    def __init__(
        self, sizes: Any, given: Any, stride: int, distance: int, made: Any, made_stride: int, made_distance: int,
        kind: str, batch: int, *rest: Any,
    ) -> None:  # fmt: skip
        self.handle = 0
        self.kind, self.stride = kind, stride
        self._sizes, self._given, self._made, self._batch = sizes, given, made, batch
        assert stride == made_stride
        along = (1, 1) if stride > 1 else (int(np.prod(given)), int(np.prod(made)))
        assert (distance, made_distance) == along

    @property
    def lengths(self) -> tuple[int, int]:
        """The elements of all that goes in, and of all that comes out."""
        return self._batch * int(np.prod(self._given)), self._batch * int(np.prod(self._made))

    def transformed(self, x: Any, is_inverse: bool) -> Any:
        """What comes out for the elements of x, with no factor, and flat."""
        is_last = self.stride == 1
        x = x.reshape(self._batch, *self._given) if is_last else x.reshape(*self._given, self.stride)
        axes = tuple(range(-len(self._sizes), 0)) if is_last else tuple(range(len(self._sizes)))
        if self.kind in ("C2C", "Z2Z"):
            made = np.fft.ifftn(x, axes=axes, norm="forward") if is_inverse else np.fft.fftn(x, axes=axes)
        elif self.kind in ("R2C", "D2Z"):
            made = np.fft.rfft(x, axis=axes[0])
        else:
            made = np.fft.irfft(x, self._sizes[0], axis=axes[0], norm="forward")
        return made.reshape(-1)


class HostCupy:
    """NumPy by CuPy's name."""

    def __init__(self, runtime: Runtime) -> None:
        self.plans: list[Plan] = []
        self.allocate: Callable[[int], Any] | None = None
        cufft = SimpleNamespace(PlanNd=self._plan, CUFFT_FORWARD=-1, CUFFT_INVERSE=1, check_result=lambda status: None)
        for kind, types in CUFFT.items():
            setattr(cufft, f"CUFFT_{kind}", kind)
            setattr(cufft, f"exec{kind}", partial(self._transform, types))
        self.cuda = SimpleNamespace(
            driver=None, runtime=runtime, cufft=cufft, UnownedMemory=UnownedMemory, MemoryPointer=MemoryPointer,
            using_allocator=self._using_allocator,
        )  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def ndarray(self, shape: tuple[int, ...], dtype: Any, pointer: MemoryPointer) -> Any:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        assert pointer.mem.size >= nbytes
        return np.frombuffer((c_byte * nbytes).from_address(pointer.mem.ptr), dtype).reshape(shape)

    def _plan(self, *made_for: Any) -> Plan:
        self.plans.append(Plan(*made_for))
        self.plans[-1].handle = len(self.plans) - 1
        return self.plans[-1]

    def _transform(self, types: tuple[str, str], handle: int, given: int, into: int, direction: int = 0) -> None:
        plan = self.plans[handle]
        count, made = plan.lengths
        source, target = (
            np.frombuffer((c_byte * (n * np.dtype(kind).itemsize)).from_address(at), kind)
            for n, kind, at in zip((count, made), types, (given, into), strict=True)
        )
        target[...] = plan.transformed(source, direction > 0)

    @contextmanager
    def _using_allocator(self, allocate: Callable[[int], Any]) -> Iterator[None]:
        self.allocate = allocate
        try:
            yield
        finally:
            self.allocate = None


class Graph:
    """Launches that run in any order in which none overtakes what it waits for."""

    def __init__(self, launches: Sequence[Callable[[], None]], turns: Sequence[Turn]) -> None:
        self._launches = launches
        self._turns = turns
        self.runs = 0

    def launch(self, stream: Any) -> None:
        self.runs += 1
        done: set[int] = set()
        while len(done) < len(self._launches):
            waiting = [n for n in range(len(self._launches)) if n not in done]
            heads = {self._turns[n].lane: n for n in reversed(waiting)}
            ready = [n for n in heads.values() if done.issuperset(self._turns[n].waits)]
            chosen = random.choice(ready)
            self._launches[chosen]()
            done.add(chosen)


class HostQueue(Queue):
    """A queue whose launches run at once."""

    def __init__(self) -> None:
        runtime = Runtime()
        cupy = HostCupy(runtime)
        target = Target(group=256, cooperating=256, units=8)
        programs: Any = None
        super().__init__(cupy, Stream(), programs, Memory(runtime, 1, 0, "cuda:0"), 0, target)
        self.graphs: list[Sequence[Turn]] = []
        self.made: list[Graph] = []
        self.refuses = False

    def captured(self, launches: Sequence[Callable[[], None]], turns: Sequence[Turn] = ()) -> Graph:
        if self.refuses:
            raise RuntimeError("no")
        self.graphs.append(turns)
        self.made.append(Graph(launches, turns))
        return self.made[-1]

    @property
    def replays(self) -> int:
        """How many runs were graphs."""
        return sum(graph.runs for graph in self.made)


class Function:
    """A launch: the last array is what the function makes of the others."""

    def __init__(self, queue: Queue, function: Callable[..., Any]) -> None:
        self._queue, self._function = queue, function

    def __call__(self, *data: Data) -> Data:
        made = self._queue.memory.new(SHAPE, float32)
        self.at([*[d.pointer for d in data], made.pointer])
        self._queue.note(self, (*data, made), 1)
        return made

    def at(self, pointers: list[int]) -> None:
        *given, into = map(seen, pointers)
        into[:] = self._function(*given)


def seen(pointer: int) -> Any:
    return np.ctypeslib.as_array((c_float * SHAPE[0]).from_address(pointer))


class QueueDevice(FakeDevice):
    """A device that takes part in plans, and whose kernels are recorded and replayed on a host queue.

    A region is one launch, which computes by reference bodies. With `idles`, launches leave out the work.
    """

    coalesces = True

    def __init__(self, *, idles: bool = False) -> None:
        super().__init__()
        self.queue = HostQueue()
        self.limits = replace(self.limits, unit=None)
        self._idles = idles

    def supports(self, region: Region) -> str | None:
        return None

    def compile(self, region: Region) -> Kernel:
        launch = Whole(self, region, self._idles)
        return watched(Replayed(launch, self.queue, str(region)), region, self.queue.memory.faults)

    def from_host(self, array: Any) -> Any:
        return each(self.queue.memory.from_host, array)

    def to_host(self, data: Any) -> Any:
        return each(self.queue.memory.to_host, data)

    def saving(self, data: Sequence[Any]) -> Callable[[], list[Any]]:
        return self.queue.memory.saving(data)

    def synchronize(self) -> None:
        self.queue.memory.wait()

    def statistics(self) -> dict[str, int | None]:
        return asdict(self.queue.memory.statistics())


class Whole:
    """A region as one launch."""

    def __init__(self, device: QueueDevice, region: Region, idles: bool) -> None:
        self._device, self._region, self._idles = device, region, idles
        calls = region.graph.calls
        self._inputs = [calls[i].spec for i in region.inputs]
        self._outputs = [calls[o].spec for o in region.outputs]

    def __call__(self, *data: Data) -> tuple[Data, ...]:
        queue = self._device.queue
        self._device.before_run(self._region)
        made = tuple([queue.memory.new(s.shape, s.dtype) for s in self._outputs])
        self.at([d.pointer for d in (*data, *made)])
        queue.note(self, (*data, *made), len(made))
        return made

    def at(self, pointers: list[int]) -> None:
        self._device.runs += 1
        if self._idles:
            return
        count = len(self._inputs)
        given = [_array(p, s).copy() for p, s in zip(pointers, self._inputs, strict=False)]
        made = outputs_of(self._region, given)
        for pointer, s, array in zip(pointers[count:], self._outputs, made, strict=True):
            _array(pointer, s)[...] = array


def _array(pointer: int, of: Spec) -> Any:
    """The elements at an address."""
    dtype = of.dtype.numpy
    return np.frombuffer((c_byte * of.nbytes).from_address(pointer), dtype).reshape(of.shape)
