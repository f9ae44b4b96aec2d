"""A CUDA device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from ..._run.device import Device, Kernel, Limits, Link
from ..._schedule.fuse import Region
from ..._schedule.kernels import kernels_of, stretches
from ..._tensor.dtype import ALL
from ..._tensor.op import OpKind
from ..._tensor.precision import Precision
from ...codegen.c.dialect import Target
from ..kernel.faults import watched
from ..kernel.fused import PATTERNS, Fused
from ..kernel.sequences import in_order
from .cache import Programs
from .launch import Queue
from .library_ops import LibraryOps
from .library_products import LibraryProducts
from .machine import Machine
from .memory import Memory
from .regions import compile_plain, compile_region, refusal
from .replay import Replayed
from .splits import SPLIT_TERMS

_KINDS: Final = frozenset({
    OpKind.MOVEMENT, OpKind.ACTIVATION, OpKind.REDUCTION, OpKind.COMPLEX, OpKind.LINEAR_ALGEBRA,
    OpKind.NORMALISATION, OpKind.CONVOLUTION, OpKind.SOURCE, OpKind.RANDOM, OpKind.ORDER, OpKind.CONTROL,
})  # fmt: skip
_TENSOR_CORES: Final = 80
"""The capability from which products of tf32 and bfloat16 have hardware."""
_FAST: Final = frozenset({Precision.TF32, Precision.F16, *SPLIT_TERMS})
_ARRAYS: Final = 4096 // 8 - 32
"""The pointers that fit into a kernel's parameters beside sizes; newer GPUs take more."""
_GROUP: Final = 256


class CUDADevice:
    """One NVIDIA GPU, with a stream of its own."""

    rank = 200
    is_gpu = True
    is_volatile = True
    coalesces = True

    def __init__(self, cupy: Any, number: int) -> None:
        cuda = cupy.cuda
        cuda.runtime.setDevice(number)
        self.name = self.space = f"cuda:{number}"
        properties = cuda.runtime.getDeviceProperties(number)
        capability = str(cuda.Device(number).compute_capability)
        units = int(properties["multiProcessorCount"])
        version = cuda.runtime.runtimeGetVersion()
        self.description = (
            f"{properties['name'].decode()}, {units} units, compute capability {capability[:-1]}.{capability[-1]}, "
            f"CUDA {version // 1000}.{version % 1000 // 10}, CuPy {cupy.__version__}"
        )
        self.identity = f"{self.description}\ndriver {cuda.runtime.driverGetVersion()}"
        fast = _FAST if int(capability) >= _TENSOR_CORES else frozenset()
        self.limits = Limits(frozenset(ALL), _KINDS, natives=PATTERNS, precisions=fast, unit=None)
        stream = cuda.Stream(non_blocking=True)
        self._memory = Memory(cuda.runtime, stream.ptr, number, self.name)
        resident = int(properties["maxThreadsPerMultiProcessor"]) // _GROUP
        target = Target(width=4, group=_GROUP, cooperating=_GROUP, units=resident * units, blocked=False)
        self.queue = Queue(cupy, stream, Programs(cupy, capability, number, self.name), self._memory, number, target)
        self._products = LibraryProducts(self.queue)
        self._library_ops = LibraryOps(self.queue)
        machine = Machine(self.queue, self._products, self._plain, self._plain_refusal, _ARRAYS)
        self._fused = Fused(machine, self.description)

    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""
        for part in region.parts:
            is_call = self._library_ops.takes(part)
            reason = self._library_ops.refusal(part) if is_call else self._plain_refusal(part)
            if reason is not None:
                return reason
        return None

    def compile(self, region: Region) -> Kernel:
        """The region as launches of generated kernels and products of the vendor's, recorded when it runs again; with
        several ways to compute it, when the best is known. Calls of libraries that cannot be recorded stand between
        recordings."""
        parts = stretches(region, self._library_ops.takes)
        kernels = [self._library_ops.compiled(p) if self._library_ops.takes(p) else self._replayed(p) for p in parts]
        kernel = kernels[0] if len(kernels) == 1 else in_order(region, parts, kernels)
        return watched(kernel, region, self._memory.faults)

    def kernels(self, region: Region) -> list[Region]:
        """The kernels of a region and the calls of libraries between them, in order."""
        return [k for p in stretches(region, self._library_ops.takes) for k in kernels_of(p, self._fused.fusion)]

    def _replayed(self, region: Region) -> Kernel:
        return Replayed(compile_region(region, self.queue, self._products, self._fused), self.queue, str(region))

    def _plain_refusal(self, region: Region) -> str | None:
        """Why it has no kernels that can be recorded for a region, or `None`."""
        reason = refusal(region, self._products, self._fused)
        arrays = max(len(part.inputs) + len(part.outputs) for part in region.parts)
        if reason is None and arrays > _ARRAYS:
            return f"{arrays} arrays are more than a kernel of this device takes"
        return reason

    def _plain(self, region: Region) -> Kernel:
        return compile_plain(region, self.queue, self._products, self._fused)

    def from_host(self, array: Any) -> Any:
        """An array of the host as data of this device."""
        return _each(self._memory.from_host, array)

    def to_host(self, data: Any) -> Any:
        """Data as an array of the host, when it is there."""
        return _each(self._memory.to_host, data)

    def link_from(self, source: Device) -> Link | None:
        """Data of another GPU of this process comes directly."""
        if not isinstance(source, CUDADevice):
            return None
        return partial(_each, partial(self._memory.from_peer, source._memory))

    def synchronize(self) -> None:
        """Wait until the stream is empty. Raises the user's mistake, if an index was out of range."""
        mistake = self._memory.look_for_faults()
        if mistake is not None:
            raise mistake

    def statistics(self) -> dict[str, int | None]:
        """The statistics of its memory pool."""
        return asdict(self._memory.statistics())

    def memory(self) -> tuple[int, int]:
        """The bytes that the limit, or the device, leaves free, and the total."""
        return self._memory.statistics().room(self._memory.total)

    def trim(self) -> int:
        """Give back what the pools keep, and what recordings work in."""
        with self.queue.lock:
            self.queue.scratch.release()
        return self._memory.trim()

    def __repr__(self) -> str:
        return self.name


def _each(function: Callable[[Any], Any], value: Any) -> Any:
    """A function of a value; of each, for the values of an op with several outputs."""
    return tuple(map(function, value)) if isinstance(value, tuple) else function(value)
