"""Devices that fail on purpose: each is a `FakeDevice` that lacks one ability."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Event
from typing import Any

import numpy as np

from yosegi._place.cost_model import TransferCost, compiler_prior
from yosegi._run.device import Kernel, Link
from yosegi._schedule.fuse import Region
from yosegi._tensor.dtype import ALL
from yosegi.errors import CompileFailure, DeviceFailure, DeviceLost, LaunchFailure, OutOfMemory
from yosegi.extend import FakeArray, FakeDevice
from yosegi.extend import installed as installed

HOST_RANK = 1000


class Linked(FakeDevice):
    """Takes the data of others of its kind directly, or fails to."""

    def __init__(self, *, fails: type[DeviceFailure] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.fails = fails
        self.taken = 0

    def link_from(self, source: Any) -> Link | None:
        return partial(self._take, source) if isinstance(source, Linked) else None

    def _take(self, source: Linked, data: FakeArray) -> FakeArray:
        assert data.owner is source
        if self.fails is not None:
            raise self.fails("the link is down")
        self.taken += 1
        return self.allocated(data.array.copy())


class WithoutFloat64(FakeDevice):
    """Has no 64-bit floats, like many GPUs and neural engines."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(dtypes=frozenset(d for d in ALL if d.name not in ("float64", "complex128")), **kwargs)


class OutOfMemoryAt(FakeDevice):
    """Has room for so many bytes."""

    def __init__(self, nbytes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.nbytes = nbytes
        self.trimmed = 0

    def allocated(self, array: Any) -> FakeArray:
        if self.live + array.nbytes > self.nbytes:
            raise OutOfMemory(f"{array.nbytes} bytes asked, {self.nbytes - self.live} free")
        return super().allocated(array)

    def trim(self) -> int:
        self.trimmed += 1
        return 1


class CompilerFails(FakeDevice):
    """Its compiler refuses regions that have one of these ops."""

    def __init__(self, *ops: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.ops = ops
        self.attempts = 0

    def compile(self, region: Region) -> Kernel:
        if any(call.op.name in self.ops for call in region.calls):
            self.attempts += 1
            raise CompileFailure(f"internal error near line 1 of {region}")
        return super().compile(region)


class DiesAfter(FakeDevice):
    """Works for so many steps, then is gone with all that is in its memory."""

    def __init__(self, steps: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.steps = steps

    @property
    def is_dead(self) -> bool:
        return self.runs >= self.steps

    def before_run(self, region: Region) -> None:
        if self.is_dead:
            raise DeviceLost("it fell off the bus")

    def to_host(self, data: FakeArray) -> Any:
        if self.is_dead:
            raise DeviceLost("it fell off the bus")
        return super().to_host(data)

    def from_host(self, array: Any) -> FakeArray:
        if self.is_dead:
            raise DeviceLost("it fell off the bus")
        return super().from_host(array)


class Slow(FakeDevice):
    """Takes its time."""

    def before_run(self, region: Region) -> None:
        time.sleep(0.002)


class SlowCompiler(FakeDevice):
    """Compiles until it is let go: another device should serve meanwhile."""

    def __init__(self, *, fails: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limits = replace(self.limits, compiles_slowly=True)
        self.fails = fails
        self.begun = Event()
        self.go_on = Event()

    def compile(self, region: Region) -> Kernel:
        self.begun.set()
        assert self.go_on.wait(30)
        if self.fails:
            raise CompileFailure("it took long, and came to nothing")
        return super().compile(region)


class ModelCompiler(FakeDevice):
    """Compiles subgraphs, but lacks some ops. A call to it costs so many seconds; then it is so many times as fast with
    products by constants."""

    coalesces = True

    def __init__(self, *lacks: str, launch: float = 0.0, weighted: float = 1.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limits = replace(self.limits, prior=compiler_prior(launch, weighted))
        self.lacks = lacks

    def supports(self, region: Region) -> str | None:
        lacking = next((c.op.name for c in region.calls if c.op.name in self.lacks), None)
        return super().supports(region) if lacking is None else f"it has no {lacking}"


class FailsAtRandom(Linked):
    """Any step, and any copy from another of its kind, may fail in any way, with a probability."""

    def __init__(self, rng: np.random.Generator, probability: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rng = rng
        self.probability = probability

    def _maybe(self, *kinds: Callable[[str], DeviceFailure]) -> None:
        if self.rng.random() < self.probability:
            raise kinds[self.rng.integers(len(kinds))]("injected")

    def compile(self, region: Region) -> Kernel:
        self._maybe(CompileFailure, OutOfMemory)
        return super().compile(region)

    def before_run(self, region: Region) -> None:
        self._maybe(LaunchFailure, OutOfMemory, DeviceLost)

    def from_host(self, array: Any) -> FakeArray:
        self._maybe(OutOfMemory)
        return super().from_host(array)

    def to_host(self, data: FakeArray) -> Any:
        self._maybe(DeviceLost)
        return super().to_host(data)

    def _take(self, source: Linked, data: FakeArray) -> FakeArray:
        self._maybe(LaunchFailure, OutOfMemory, DeviceLost)
        return super()._take(source, data)


class Garbage(FakeDevice):
    """Hands out memory full of garbage: what its kernels do not write shows."""

    def allocated(self, array: Any) -> FakeArray:
        memory = np.frombuffer(bytearray(b"\xff" * array.nbytes), array.dtype).reshape(array.shape)
        memory[...] = array
        return super().allocated(memory)


class Clock:
    """A clock that stands still until somebody works: time in tests, the same in every run."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-7  # looking at it takes time
        return self.now


class Paced(FakeDevice):
    """Takes so many seconds a call, by a clock, and for moving bytes. It may lack ops."""

    def __init__(
        self, clock: Clock, seconds: float, *lacks: str, moving: TransferCost = TransferCost(), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.clock = clock
        self.seconds = seconds
        self.lacks = lacks
        self.moving = moving
        self.factor = 1.0  # what its results are wrong by

    def supports(self, region: Region) -> str | None:
        lacking = next((c.op.name for c in region.calls if c.op.name in self.lacks), None)
        return super().supports(region) if lacking is None else f"it has no {lacking}"

    def before_run(self, region: Region) -> None:
        self.clock.now += self.seconds

    def from_host(self, array: Any) -> FakeArray:
        self.clock.now += self.moving.seconds(array.nbytes)
        return super().from_host(array)

    def to_host(self, data: FakeArray) -> Any:
        self.clock.now += self.moving.seconds(data.array.nbytes)
        return super().to_host(data) * np.asarray(self.factor, data.dtype)
