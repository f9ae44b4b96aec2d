"""CUDA's implementation of `KernelMachine`: products by cuBLAS, convolutions by cuDNN, times of captured launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import final

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.node import Call
from ..._tensor.precision import Precision
from ..._tensor.role import Contraction
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import LibraryProduct
from ..kernel.half_operands import HALVES
from ..kernel.launching import LIBRARY, Launcher
from ..kernel.machine import QueueMachine
from ..kernel.matrices import matrices_of
from .cache import COMPILERS
from .convolutions import ENGINES
from .errors import translated
from .fused_matmul import FusedMatmul
from .launch import Queue
from .library_products import LibraryProducts, compute_type
from .memory import Data


@final
class CUDAMachine(QueueMachine):
    """Launches on a stream, for `fused.Fused`."""

    compilers = COMPILERS
    algorithms = 3  # the one that cuBLAS expects to be the fastest often is not

    def __init__(
        self,
        queue: Queue,
        products: LibraryProducts,
        compile_region: Callable[[Region], Kernel],
        refusal: Callable[[Region], str | None],
        arrays: int,
    ) -> None:
        super().__init__(queue, compile_region, refusal, arrays)
        self._stream = queue
        self._products = products

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if cuBLAS has a product with this prologue and epilogue."""
        return matrices_of(product, HALVES.get(precision)) is not None

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """A product with prologue and epilogue by cuBLAS: the entries that it reads, and its launch."""
        matrices = matrices_of(wanted.product, HALVES.get(wanted.precision))
        assert matrices is not None
        multiplied = FusedMatmul(
            self._products.blas, matrices, wanted.rank, compute_type(matrices.dtype, wanted.precision)
        )
        return matrices.reads, lambda given, made: multiplied(*given, *made)

    def has_library(self, call: Call) -> bool:
        """True if cuBLAS, or cuDNN, has a product."""
        return self._products.refusal(call) is None

    def by_library(self, region: Region) -> Mapping[str, Callable[[], Kernel]]:
        """A product by cuBLAS, or by each of the first engines of cuDNN's."""
        call = region.calls[-1]
        if not self.has_library(call):
            return {}
        convolutions = self._products.convolutions
        others = range(1, ENGINES) if call.op.role is Contraction.WINDOWS else ()
        return {LIBRARY: partial(self.compile, region)} | {
            f"{LIBRARY}, engine {rank + 1}": partial(convolutions.compiled, region, rank) for rank in others
        }

    def seconds(self, kernel: Kernel, data: Sequence[Data], calls: int) -> float:
        """The seconds of a call on the device, of this many that are captured into one graph, as those of plans are."""
        queue = self._stream
        with queue.lock, translated(f"[{queue.name}] timing a kernel"):
            with queue.recording(holds=True) as tape:
                kernel(*data)

            launches = [partial(n.launch.at, n.pointers) for n in tape.launches]
            graph = queue.captured(launches * calls)
            first, last = queue.cupy.cuda.Event(), queue.cupy.cuda.Event()
            graph.launch(queue.stream)  # which brings it to the device
            first.record(queue.stream)
            graph.launch(queue.stream)
            last.record(queue.stream)
            last.synchronize()
            return float(queue.cupy.cuda.get_elapsed_time(first, last)) / 1e3 / calls
