"""The implementation of `fused.KernelMachine` for devices without a vendor's library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.dtype import DType
from ..._tensor.node import Call, Shape
from ..._tune.timing import seconds_of
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import LibraryProduct
from ...codegen.c.kernel_source import Kernel as Generated
from ...errors import Unsupported
from .fused import Launcher
from .memory import Data
from .regions import Queue, launcher


@final
class Machine:
    """Launches on a queue, for `fused.Fused`."""

    compilers = 1  # drivers' compilers are not tried with several threads

    def __init__(
        self,
        queue: Queue,
        compile_region: Callable[[Region], Kernel],
        refusal: Callable[[Region], str | None],
        arrays: int,
    ) -> None:
        self.name = queue.name
        self.dialect = queue.dialect
        self.target = queue.target
        self.compile = compile_region
        self.refusal = refusal
        self.arrays = arrays
        self._queue = queue
        self._memory = queue.memory

    def launcher(self, kernel: Generated, inputs: int, outputs: int) -> Launcher:
        """A generated kernel, to be launched on the data of inputs and outputs."""
        return launcher(self._queue, kernel, inputs + outputs)

    def has_library(self, call: Call) -> bool:
        """Whether there is a product of the vendor's: never."""
        return False

    def by_library(self, region: Region) -> dict[str, Callable[[], Kernel]]:
        """None."""
        return {}

    def takes(self, product: FusedContraction) -> bool:
        """False: no library has products with a prologue or an epilogue."""
        return False

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """Never called: `takes` is always false."""
        raise Unsupported("no products of the vendor's")

    def new(self, shape: Shape, dtype: DType) -> Data:
        """Room for a result."""
        return self._memory.new(shape, dtype)

    def from_host(self, array: Any) -> Data:
        """An array of the host as data."""
        return self._memory.from_host(array)

    def to_host(self, data: Data) -> Any:
        """Data as an array of the host."""
        return self._memory.to_host(data)

    def undecided(self) -> None:
        """Nothing is recorded here."""

    def seconds(self, kernel: Kernel, data: Sequence[Data], calls: int) -> float:
        """The seconds of a call, of this many that are launched in sequence."""
        kernel(*data)
        return seconds_of(kernel, *data, calls=calls, wait=self._memory.wait)
