"""A CUDA device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, final

from ..._run.device import Device, Kernel, Limits, Link, Ranks
from ..._schedule.fuse import Region, connection_of
from ..._schedule.kernels import kernels_of, stretches
from ..._tensor.dtype import ALL
from ..._tensor.precision import Precision
from ...codegen.c.dialect import Target
from ..kernel.device import KINDS, QueueDevice, each
from ..kernel.faults import watched
from ..kernel.fused import PATTERNS, Fused
from ..kernel.half_operands import with_half_operands
from ..kernel.regions import in_order
from .cache import Programs
from .exchange import compile_exchange
from .launch import Queue
from .library_ops import LibraryOps
from .library_products import SPLIT_TERMS, LibraryProducts
from .machine import CUDAMachine
from .memory import Memory
from .peers import Connection, connected
from .regions import compile_plain, compile_region, refusal
from .replay import Replayed

_TENSOR_CORES: Final = 80
"""The capability from which products of tf32 and bfloat16 have hardware."""
_FAST: Final = frozenset({Precision.TF32, Precision.F16, *SPLIT_TERMS})
_ARRAYS: Final = 4096 // 8 - 32
"""The pointers that fit into a kernel's parameters beside sizes; newer GPUs take more."""
_GROUP: Final = 256


@final
class CUDADevice(QueueDevice):
    """One NVIDIA GPU, with a stream of its own."""

    rank = 200
    is_gpu = True
    is_volatile = True

    def __init__(self, cupy: Any, number: int) -> None:
        cuda = cupy.cuda
        cuda.runtime.setDevice(number)
        name = f"cuda:{number}"
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
        self.limits = Limits(frozenset(ALL), KINDS, natives=PATTERNS, precisions=fast, unit=None)
        stream = cuda.Stream(non_blocking=True)
        memory = Memory(cuda.runtime, stream.ptr, number, name)
        resident = int(properties["maxThreadsPerMultiProcessor"]) // _GROUP
        target = Target(group=_GROUP, cooperating=_GROUP, units=resident * units)
        self.queue = Queue(cupy, stream, Programs(cupy, capability, number, name), memory, number, target)
        super().__init__(self.queue, _ARRAYS)
        self._products = LibraryProducts(self.queue)
        self._library_ops = LibraryOps(self.queue)
        machine = CUDAMachine(self.queue, self._products, self._plain, self._plain_refusal, _ARRAYS)
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
        several variants, when the best is known. Calls that cannot be recorded, of libraries or between ranks, stand
        between recordings."""
        region = with_half_operands(region, self._takes_halves)
        parts = stretches(region, self._stands_alone)
        kernels = [self._alone(p) if self._stands_alone(p) else self._replayed(p) for p in parts]
        kernel = kernels[0] if len(kernels) == 1 else in_order(region, parts, kernels)
        return watched(kernel, region, self._memory.faults)

    def kernels(self, region: Region) -> list[Region]:
        """The kernels of a region and the calls of libraries between them, in order."""
        region = with_half_operands(region, self._takes_halves)
        return [k for p in stretches(region, self._stands_alone) for k in kernels_of(p, self._fused.fusion)]

    def connected(self, ranks: Ranks) -> Connection:
        """Connect the GPUs of all ranks."""
        return Connection(self, connected(self.queue, ranks))

    def _stands_alone(self, region: Region) -> bool:
        """True if a part of a unit cannot be recorded."""
        connection = connection_of(region.calls[-1]) if len(region.nodes) == 1 else None
        return self._library_ops.takes(region) if connection is None else bool(connection.peers.stands_alone)

    def _alone(self, region: Region) -> Kernel:
        is_call = self._library_ops.takes(region)
        return self._library_ops.compiled(region) if is_call else compile_exchange(region, self.queue)

    def _takes_halves(self, product: Region) -> bool:
        return self._fused.takes_halves(product)

    def _replayed(self, region: Region) -> Kernel:
        return Replayed(compile_region(region, self.queue, self._products, self._fused), self.queue, str(region))

    def _plain_refusal(self, region: Region) -> str | None:
        """Why it has no kernels that can be recorded for a region, or `None`."""
        return refusal(region, self._products, self._fused) or self._too_many_arrays(region)

    def _plain(self, region: Region) -> Kernel:
        return compile_plain(region, self.queue, self._products, self._fused)

    def link_from(self, source: Device) -> Link | None:
        """Data of another GPU of this process comes directly."""
        if not isinstance(source, CUDADevice):
            return None
        return partial(each, partial(self.queue.memory.from_peer, source.queue.memory))

    def saving(self, data: Sequence[Any]) -> Callable[[], list[Any]]:
        """Begin to copy data to the host, in a stream of its own."""
        return self.queue.memory.saving(data)

    def trim(self) -> int:
        """Give back what the pools keep, and what recordings work in."""
        with self.queue.lock:
            self.queue.scratch.release()
        return self._memory.trim()
