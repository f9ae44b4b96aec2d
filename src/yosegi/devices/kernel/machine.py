"""The implementation of `fused.KernelMachine` for devices whose library, if there is one, has products alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.node import Call
from ..._tensor.precision import Precision
from ..._tune.timing import seconds_of
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import LibraryProduct
from ...codegen.c.kernel_source import Kernel as Generated
from .fused import Launcher
from .regions import Queue


class Library(Protocol):
    """A vendor's products."""

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if it has a product with this prologue and epilogue in a precision."""

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """A product that it takes: the entries that it reads, and its launch."""


@final
class Machine:
    """Launches on a queue, for `fused.Fused`."""

    compilers = 1  # drivers' compilers are not tried with several threads
    algorithms = 1

    def __init__(
        self,
        queue: Queue,
        compile_region: Callable[[Region], Kernel],
        refusal: Callable[[Region], str | None],
        arrays: int,
        library: Library | None = None,
    ) -> None:
        self.name = queue.name
        self.dialect = queue.dialect
        self.target = queue.target
        self.compile = compile_region
        self.refusal = refusal
        self.arrays = arrays
        self._queue = queue
        self._library = library
        self.memory = queue.memory

    def launcher(self, kernel: Generated, inputs: int, outputs: int) -> Launcher:
        """A generated kernel, to be launched on the data of inputs and outputs."""
        return self._queue.launch(kernel, inputs + outputs)

    def has_library(self, call: Call) -> bool:
        """Whether `compile` has a product of the vendor's: never. Its products are variants of their own."""
        return False

    def by_library(self, region: Region) -> dict[str, Callable[[], Kernel]]:
        """None."""
        return {}

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if the library, if there is one, has a product."""
        return self._library is not None and self._library.takes(product, precision)

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """A product that the library takes: the entries that it reads, and its launch."""
        assert self._library is not None
        return self._library.multiplier(wanted)

    def undecided(self) -> None:
        """Let nobody keep a recording of this thread's run."""
        self._queue.undecided()

    def seconds(self, kernel: Kernel, data: Sequence[Any], calls: int) -> float:
        """The seconds of a call, of this many that are launched in sequence."""
        kernel(*data)
        return seconds_of(kernel, *data, calls=calls, wait=self.memory.wait)
