"""The implementation of `fused.KernelMachine` for devices whose kernels are generated, beside a library or not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, final

import numpy as np

from ..._graph.reference import bind
from ..._run.device import Kernel
from ..._schedule.fuse import Region, is_constant
from ..._tensor.dtype import DType
from ..._tensor.node import Call
from ..._tensor.precision import Precision
from ..._tensor.role import Contraction
from ..._tune.timing import seconds_of
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import LibraryProduct
from ...codegen.c.kernel_source import Kernel as Generated
from .fused import LIBRARY, Launcher
from .regions import Queue


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
        is_trusted: Callable[[str, DType], bool] = lambda kind, dtype: True,
    ) -> None:
        """`is_trusted` is false for the library's kernels of a kind and a dtype that it was found to get wrong."""
        self.name = queue.name
        self.dialect = queue.dialect
        self.target = queue.target
        self.compile = compile_region
        self.refusal = refusal
        self.arrays = arrays
        self._queue = queue
        self._library = library
        self._is_trusted = is_trusted
        self.memory = queue.memory

    def launcher(self, kernel: Generated, inputs: int, outputs: int) -> Launcher:
        """A generated kernel, to be launched on the data of inputs and outputs."""
        return self._queue.launch(kernel, inputs + outputs)

    def has_library(self, call: Call) -> bool:
        """Whether `compile` has a product of the vendor's: never. Its products are variants of their own."""
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
        memory, graph, entry = self.memory, region.graph, region.nodes[-1]
        call, args = graph.calls[entry], graph.args[entry]
        launch, spec = library.convolver(call), call.spec
        constants = {a: memory.from_host(np.asarray(bind(graph.calls[a])())) for a in args if is_constant(graph, a)}

        def kernel(*data: Any) -> tuple[Any, ...]:
            given = constants | dict(zip(region.inputs, data, strict=True))
            made = memory.new(spec.shape, spec.dtype)
            launch([given[a] for a in args], [made])
            return (made,)

        return kernel

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if the library, if there is one, has a product."""
        if self._library is None or not self._is_trusted("products", product.result):
            return False
        return self._library.takes(product, precision)

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
