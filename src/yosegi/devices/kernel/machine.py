"""Implementations of `KernelMachine`: the common part, and the machine of devices whose kernels are generated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, final

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.dtype import DType
from ..._tensor.node import Call
from ..._tensor.precision import Precision
from ..._tensor.role import Contraction
from ..._tune.timing import seconds_of
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import LibraryProduct
from ...codegen.c.kernel_source import Kernel as Generated
from .launching import LIBRARY, Launcher, Queue, arguments_of, launched


class Library(Protocol):
    """A vendor's products and convolutions."""

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if it has a product with this prologue and epilogue in a precision."""

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """A product that it takes: the entries that it reads, and its launch."""

    def convolves(self, call: Call) -> bool:
        """True if it has a convolution."""

    def convolver(self, call: Call) -> Launcher:
        """The launch of a convolution that it has, on both operands and the result. Raises `CompileFailure`."""


class QueueMachine(ABC):
    """Launches on a queue, for `fused.Fused`."""

    compilers: int
    algorithms: int

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
        self.memory = queue.memory
        self._queue = queue

    def launcher(self, kernel: Generated, inputs: int, outputs: int) -> Launcher:
        """A generated kernel, to be launched on the data of inputs and outputs."""
        return self._queue.launch(kernel, inputs + outputs)

    def undecided(self) -> None:
        """Discard the recording of this thread's current run: later runs will differ."""
        self._queue.undecided()

    @abstractmethod
    def has_library(self, call: Call) -> bool:
        """True if `compile` has the vendor's own version of a product."""

    @abstractmethod
    def by_library(self, region: Region) -> Mapping[str, Callable[[], Kernel]]:
        """The vendor's own variants of a product: see `KernelMachine`."""

    @abstractmethod
    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if `multiplier` has a product with this prologue and epilogue in a precision."""

    @abstractmethod
    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """The vendor's own version of a product with prologue and epilogue: the entries that it reads, its launch."""

    @abstractmethod
    def seconds(self, kernel: Kernel, data: Sequence[Any], calls: int) -> float:
        """The seconds of a call, of this many that are launched in sequence."""


@final
class Machine(QueueMachine):
    """A device whose kernels are generated, perhaps beside a library."""

    compilers = 1  # drivers' compilers are not tried with several threads
    algorithms = 1

    def __init__(
        self,
        queue: Queue,
        compile_region: Callable[[Region], Kernel],
        refusal: Callable[[Region], str | None],
        arrays: int,
        library: Library | None = None,
        is_trusted: Callable[[str, DType], bool] = lambda kind, dtype: True,
    ) -> None:
        """`is_trusted` is false for the library's kernels of a kind and a dtype that it was found to get wrong."""
        super().__init__(queue, compile_region, refusal, arrays)
        self._library = library
        self._is_trusted = is_trusted

    def has_library(self, call: Call) -> bool:
        """True if `compile` has a product of the vendor's: never. Its products are variants of their own."""
        return False

    def by_library(self, region: Region) -> dict[str, Callable[[], Kernel]]:
        """A convolution by the library. It is not expected to be best: nothing runs it before it was found correct."""
        call, library = region.calls[-1], self._library
        if library is None or call.op.role is not Contraction.WINDOWS:
            return {}
        if not self._is_trusted("windows", call.spec.dtype) or not library.convolves(call):
            return {}
        return {f"{LIBRARY}, graph": partial(self._convolution, region, library)}

    def _convolution(self, region: Region, library: Library) -> Kernel:
        call = region.calls[-1]
        run = launched(library.convolver(call), (), [(call.spec.shape, call.spec.dtype)], self.memory)
        arguments = arguments_of(region, self.memory)
        return lambda *data: run(*arguments(data))

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if the library, if there is one, has a product."""
        if self._library is None or not self._is_trusted("products", product.result):
            return False
        return self._library.takes(product, precision)

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """A product that the library takes: the entries that it reads, and its launch."""
        assert self._library is not None
        return self._library.multiplier(wanted)

    def seconds(self, kernel: Kernel, data: Sequence[Any], calls: int) -> float:
        """The seconds of a call, of this many that are launched in sequence."""
        kernel(*data)
        return seconds_of(kernel, *data, calls=calls, wait=self.memory.wait)
