"""CUDA's implementation of `fused.KernelMachine`, for products and composites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..._run.device import Kernel
from ..._schedule.fuse import Region
from ..._tensor.dtype import DType
from ..._tensor.node import Call, Shape
from ..._tensor.role import Operands, is_contraction
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import LibraryProduct
from ...codegen.c.kernel_source import Kernel as Generated
from ..kernel.fused import LIBRARY, Launcher
from .blas_epilogues import matrices_of
from .cache import COMPILERS
from .convolutions import ENGINES
from .dialect import CUDA
from .errors import translated
from .fused_matmul import FusedMatmul
from .launch import Launch, Queue
from .library_products import LibraryProducts, compute_type
from .memory import Data


class Machine:
    """Launches on a stream, for `fused.Fused`."""

    dialect = CUDA
    compilers = COMPILERS

    def __init__(
        self,
        queue: Queue,
        products: LibraryProducts,
        compile_region: Callable[[Region], Kernel],
        refusal: Callable[[Region], str | None],
        arrays: int,
    ) -> None:
        self.name = queue.name
        self.target = queue.target
        self.compile = compile_region
        self.refusal = refusal
        self.arrays = arrays
        self._queue = queue
        self._products = products
        self._memory = queue.memory

    def takes(self, product: FusedContraction) -> bool:
        """Whether cuBLAS has a product with what is around it."""
        return matrices_of(product) is not None

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """A product with what is around it, by cuBLAS: the entries that it reads, and its launch."""
        matrices = matrices_of(wanted.product)
        assert matrices is not None
        multiplied = FusedMatmul(
            self._products.blas, matrices, wanted.rank, compute_type(matrices.dtype, wanted.precision)
        )
        return matrices.reads, lambda given, made: multiplied(*given, *made)

    def launcher(self, kernel: Generated, inputs: int, outputs: int) -> Launcher:
        """A generated kernel, to be launched on the data of inputs and outputs."""
        launch = Launch(self._queue, kernel, inputs, outputs)
        return lambda given, made: launch(*given, *made)

    def has_library(self, call: Call) -> bool:
        """Whether cuBLAS, or cuDNN, has a product."""
        return self._products.refusal(call) is None

    def by_library(self, region: Region) -> Mapping[str, Callable[[], Kernel]]:
        """A product by cuBLAS, or by each of the first engines of cuDNN's."""
        call = region.calls[-1]
        if not self.has_library(call):
            return {}
        convolutions = self._products.convolutions
        others = range(1, ENGINES) if is_contraction(call.op.role, Operands.WINDOWS) else ()
        return {LIBRARY: partial(self.compile, region)} | {
            f"{LIBRARY}, engine {rank + 1}": partial(convolutions.compiled, region, rank) for rank in others
        }

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
        """Let nobody keep a recording of this thread's run."""
        self._queue.undecided()

    def seconds(self, kernel: Kernel, data: Sequence[Data], calls: int) -> float:
        """The seconds of a call on the device, of this many that are captured into one graph, as those of plans are."""
        queue = self._queue
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
