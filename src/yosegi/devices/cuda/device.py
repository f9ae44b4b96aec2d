"""A CUDA device."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any, Final

from ..._run.device import Device, Kernel, Limits, Link
from ..._schedule.fuse import Region
from ..._tensor.dtype import ALL
from ..._tensor.op import OpKind
from ..._tensor.precision import Precision
from ...codegen.c.dialect import Target
from ..kernel.fused import PATTERNS, Fused
from ..kernel.sequences import parts_of
from .cache import Programs
from .kernels import compile_plain, compile_region, refusal
from .launch import Queue
from .machine import Machine
from .memory import Data, Memory
from .products import Products
from .replay import Replayed
from .splits import SPLIT_TERMS

_KINDS: Final = frozenset({
    OpKind.MOVEMENT, OpKind.ACTIVATION, OpKind.REDUCTION, OpKind.COMPLEX, OpKind.LINEAR_ALGEBRA,
    OpKind.NORMALISATION, OpKind.CONVOLUTION,
})  # fmt: skip
_TENSOR_CORES: Final = 80
"""The capability from which products of tf32 and bfloat16 have hardware."""
_FAST: Final = frozenset({Precision.TF32, Precision.F16, *SPLIT_TERMS})
_ARRAYS: Final = 4096 // 8 - 32
"""What fits into the bytes of a kernel's parameters, of which newer GPUs take more, beside sizes."""
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
        self.limits = Limits(frozenset(ALL), _KINDS, natives=PATTERNS, precisions=fast)
        stream = cuda.Stream(non_blocking=True)
        self._memory = Memory(cuda.runtime, stream.ptr, number, self.name)
        resident = int(properties["maxThreadsPerMultiProcessor"]) // _GROUP
        target = Target(width=4, group=_GROUP, cooperating=_GROUP, units=resident * units, blocked=False)
        self.queue = Queue(cupy, stream, Programs(cupy, capability, number, self.name), self._memory, number, target)
        self._products = Products(self.queue)
        self._fused = Fused(Machine(self.queue, self._products, self._plain, self.supports, _ARRAYS), self.description)

    def supports(self, region: Region) -> str | None:
        """Why it cannot run the region, or `None` if it can."""
        reason = refusal(region, self._products, self._fused)
        arrays = max(len(part.inputs) + len(part.outputs) for part in parts_of(region))
        if reason is None and arrays > _ARRAYS:
            return f"{arrays} arrays are more than a kernel of this device takes"
        return reason

    def compile(self, region: Region) -> Kernel:
        """The region as launches of generated kernels and products of the vendor's, recorded when it runs again; with
        several ways to compute it, when the best is known."""
        return Replayed(compile_region(region, self.queue, self._products, self._fused), self.queue, str(region))

    def _plain(self, region: Region) -> Kernel:
        return compile_plain(region, self.queue, self._products, self._fused)

    def from_host(self, array: Any) -> Data:
        """An array of the host as data of this device."""
        return self._memory.from_host(array)

    def to_host(self, data: Data) -> Any:
        """Data as an array of the host, when it is there."""
        return self._memory.to_host(data)

    def link_from(self, source: Device) -> Link | None:
        """Data of another GPU of this process comes directly."""
        return partial(self._memory.from_peer, source._memory) if isinstance(source, CUDADevice) else None

    def synchronize(self) -> None:
        """Wait until the stream is empty."""
        self._memory.wait()

    def statistics(self) -> dict[str, int | None]:
        """What its pool holds."""
        return asdict(self._memory.statistics())

    def memory(self) -> tuple[int, int]:
        """What the limit, or the device, leaves beside what is in use; and all of it."""
        return self._memory.statistics().room(self._memory.total)

    def trim(self) -> int:
        """Give back what the pools keep."""
        return self._memory.trim()

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<device {self.name}: {self.description}>"
