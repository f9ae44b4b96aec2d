"""Products and convolutions by Metal Performance Shaders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Final, final

import numpy as np

from ..._tensor.dtype import float16, float32
from ..._tensor.node import Call
from ..._tensor.precision import Precision
from ...codegen.c.contractions import FusedContraction
from ...codegen.c.fused_kernels import LibraryProduct
from ..kernel.launching import Launcher
from ..kernel.matrices import Matrices, Matrix, matrices_of
from ..kernel.memory import Data
from .commands import Encoder, pool
from .convolutions import DATA_TYPES, MANY, Convolutions
from .launch import Queue

_INIT: Final = "initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta_"


@cache
def _package() -> Any | None:
    """The package `MetalPerformanceShaders`; `None` if it is not installed."""
    try:
        import MetalPerformanceShaders
    except ImportError:
        return None
    return MetalPerformanceShaders


def shaders_of(device: Any, queue: Queue) -> Library | None:
    """The library of a GPU, or `None`."""
    package = _package()
    return Library(package, device, queue) if package is not None and package.MPSSupportsMTLDevice(device) else None


@final
class Library:
    """The products and convolutions of one device."""

    def __init__(self, package: Any, device: Any, queue: Queue) -> None:
        self._package, self._device, self._queue = package, device, queue
        self._convolutions = Convolutions(package, device, queue)

    def takes(self, product: FusedContraction, precision: Precision) -> bool:
        """True if it has a product with this prologue and epilogue in a precision."""
        wanted = matrices_of(product) if precision is Precision.FULL else None
        if wanted is None or wanted.bias is not None or wanted.residual is not None:
            return False
        if wanted.dtype not in DATA_TYPES or not all(map(_is_regular, _sides(wanted))):
            return False
        return wanted.dtype is float32 or self._sums_in_single

    def multiplier(self, wanted: LibraryProduct) -> tuple[tuple[int, ...], Launcher]:
        """A product that it takes: the entries that it reads, and its launch."""
        matrices = matrices_of(wanted.product)
        assert matrices is not None
        return matrices.reads, Multiplication(self._package, self._device, self._queue, matrices)

    def convolves(self, call: Call) -> bool:
        """True if it has a convolution."""
        return self._convolutions.refusal(call) is None

    def convolver(self, call: Call) -> Launcher:
        """The launch of a convolution that it has."""
        return self._convolutions.launcher(call)

    @cached_property
    def _sums_in_single(self) -> bool:
        """Whether products of float16 are added up in float32: Apple does not say. A product of ones shows it."""
        memory = self._queue.memory
        ones = memory.from_host(np.ones((8, MANY), np.float16))
        row, column = Matrix(0, False, MANY, 0), Matrix(0, True, MANY, 0)
        wanted = Matrices(row, column, 8, 8, MANY, 1, float16, float16, 1.0, None, None)
        made = memory.new((8, 8), float16)
        Multiplication(self._package, self._device, self._queue, wanted)([ones, ones], [made])
        return bool((memory.to_host(made) == MANY).all())


@final
class Multiplication:
    """A product that can be put into the queue, again and again."""

    def __init__(self, package: Any, device: Any, queue: Queue, wanted: Matrices) -> None:
        self._package, self._queue = package, queue
        kind, size = DATA_TYPES[wanted.dtype], wanted.dtype.itemsize
        with pool():
            self._kernel = getattr(package.MPSMatrixMultiplication.alloc(), _INIT)(
                device, wanted.left.is_turned, wanted.right.is_turned, wanted.m, wanted.n, wanted.k, wanted.scale, 0.0
            )
            self._kernel.setBatchSize_(wanted.count)
            describe = package.MPSMatrixDescriptor
            self._descriptors = [
                describe.matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType_(
                    rows, columns, wanted.count, pitch * size, stride * size, kind
                )
                for rows, columns, pitch, stride in _sides(wanted)
            ]

    def __call__(self, inputs: Sequence[Data], outputs: Sequence[Data]) -> None:
        """Put it into the queue."""
        self._queue.run(self, inputs, outputs)

    def put(self, buffers: Sequence[Any]) -> list[Any]:
        """Put it into the queue, on the buffers of operands and result. It encodes its commands itself."""
        matrix = self._package.MPSMatrix
        with self._queue.commands.encoding(Encoder.NONE) as (command_buffer, _):
            matrices = [
                matrix.alloc().initWithBuffer_descriptor_(buffer, descriptor)
                for buffer, descriptor in zip(buffers, self._descriptors, strict=True)
            ]
            self._kernel.encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(command_buffer, *matrices)
        return [command_buffer]


def _sides(wanted: Matrices) -> list[tuple[int, int, int, int]]:
    """Of the operands and the result, as they lie in memory: rows, columns, and elements from one row and from one
    matrix to the next."""
    made = []
    for side, rows, columns in ((wanted.left, wanted.m, wanted.k), (wanted.right, wanted.k, wanted.n)):
        rows, columns = (columns, rows) if side.is_turned else (rows, columns)
        made.append((rows, columns, side.pitch, side.stride if wanted.count > 1 else rows * side.pitch))
    return [*made, (wanted.m, wanted.n, wanted.n, wanted.m * wanted.n)]


def _is_regular(side: tuple[int, int, int, int]) -> bool:
    """True if matrices do not overlap and are whole rows apart."""
    rows, _, pitch, stride = side
    return stride >= rows * pitch and stride % pitch == 0
