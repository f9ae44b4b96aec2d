"""pyobjc's `MetalPerformanceShaders`, as far as the Metal device uses it: products of matrices, computed by NumPy.

It refuses what the real one does: rows and matrices that overlap, matrices that are no whole number of rows apart, a
buffer that is too short, operands of other shapes and types, an encoder that is open.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from Metal import MTLBuffer, MTLCommandBuffer, MTLDevice  # type: ignore[import-not-found]
from objc import Object, autoreleased  # type: ignore[attr-defined]

MPSDataTypeFloat16, MPSDataTypeFloat32 = 0x10000000 | 16, 0x10000000 | 32
_TYPES = {MPSDataTypeFloat16: np.float16, MPSDataTypeFloat32: np.float32}
sums_in_half = False
"""Whether products of float16 are added up in float16, of which Apple says nothing."""
encoded = 0
"""Products that were encoded."""


def MPSSupportsMTLDevice(device: MTLDevice) -> bool:
    """Whether a GPU can run the kernels."""
    return True


class MPSCommandBuffer(Object):
    """A command buffer, or the next one: who encodes may commit it and go on."""

    @classmethod
    def commandBufferWithCommandBuffer_(cls, commands: MTLCommandBuffer) -> Any:
        made = cls()
        made._root = commands
        return autoreleased(made)

    def rootCommandBuffer(self) -> MTLCommandBuffer:
        return self._root

    def commitAndContinue(self) -> None:
        self._root.commit()
        self._root = self._root.commandQueue().commandBuffer()


class MPSMatrixDescriptor(Object):
    """How matrices lie in memory."""

    def __init__(self, rows: int, columns: int, matrices: int, row: int, matrix: int, data_type: int) -> None:
        super().__init__()
        self.rows, self.columns, self.matrices, self.row, self.matrix = rows, columns, matrices, row, matrix
        self.dtype = np.dtype(_TYPES[data_type])

    @classmethod
    def matrixDescriptorWithRows_columns_matrices_rowBytes_matrixBytes_dataType_(
        cls, rows: int, columns: int, matrices: int, row: int, matrix: int, data_type: int
    ) -> Any:
        made = cls(rows, columns, matrices, row, matrix, data_type)
        assert min(rows, columns, matrices) > 0, "a matrix of nothing"
        assert row >= columns * made.dtype.itemsize, "rows overlap"
        assert row % made.dtype.itemsize == 0, "rowBytes is no multiple of an element"
        assert matrix >= rows * row, "matrices overlap"
        assert matrix % row == 0, "matrixBytes is no multiple of rowBytes"
        return autoreleased(made)


class MPSMatrix(Object):
    """Matrices in a buffer."""

    def initWithBuffer_descriptor_(self, buffer: MTLBuffer, descriptor: MPSMatrixDescriptor) -> MPSMatrix:
        Object.__init__(self)
        d = descriptor
        needed = (d.matrices - 1) * d.matrix + (d.rows - 1) * d.row + d.columns * d.dtype.itemsize
        assert needed <= buffer.length(), "the buffer is too short"
        self.buffer, self.descriptor = buffer, d
        return self

    def array(self) -> Any:
        """The elements, where they are."""
        d = self.descriptor
        raw = (ctypes.c_char * self.buffer.length()).from_address(self.buffer.address)
        flat = np.frombuffer(raw, d.dtype, self.buffer.length() // d.dtype.itemsize)
        strides = (d.matrix, d.row, d.dtype.itemsize)
        return np.lib.stride_tricks.as_strided(flat, (d.matrices, d.rows, d.columns), strides)


class MPSMatrixMultiplication(Object):
    """C = alpha op(A) op(B) + beta C."""

    def initWithDevice_transposeLeft_transposeRight_resultRows_resultColumns_interiorColumns_alpha_beta_(
        self, device: MTLDevice, left: bool, right: bool, rows: int, columns: int, deep: int, alpha: float, beta: float
    ) -> MPSMatrixMultiplication:
        Object.__init__(self)
        assert isinstance(device, MTLDevice)
        assert beta == 0, "the device adds nothing to results"
        self._transposes, self._shape, self._alpha = (left, right), (rows, columns, deep), alpha
        self._count = 1
        return self

    def setBatchSize_(self, count: int) -> None:
        self._count = count

    def encodeToCommandBuffer_leftMatrix_rightMatrix_resultMatrix_(
        self, commands: MTLCommandBuffer, left: MPSMatrix, right: MPSMatrix, result: MPSMatrix
    ) -> None:
        global encoded
        assert commands.encoder is None, "another encoder is open"
        assert commands.status() == 0, "it was committed"
        m, n, k = self._shape
        for matrix, is_transposed, shape in zip(
            (left, right, result), (*self._transposes, False), ((m, k), (k, n), (m, n)), strict=True
        ):
            d = matrix.descriptor
            assert (d.rows, d.columns) == (shape[::-1] if is_transposed else shape), "other matrices"
            assert d.matrices == self._count, "another number of matrices"
            assert d.dtype == result.descriptor.dtype, "dtypes differ"
        encoded += 1
        commands.work.append((lambda: self._multiply(left, right, result), (left, right, result)))

    def _multiply(self, left: MPSMatrix, right: MPSMatrix, result: MPSMatrix) -> None:
        a, b = (
            np.swapaxes(x.array(), 1, 2) if turned else x.array()
            for x, turned in zip((left, right), self._transposes, strict=True)
        )
        into = result.array()
        if sums_in_half and into.dtype == np.float16:
            total = np.zeros(into.shape, np.float16)
            for step in range(a.shape[2]):
                total += a[:, :, step, None] * b[:, step, None, :]
            into[...] = total
        else:
            into[...] = self._alpha * np.matmul(a.astype(np.float32), b.astype(np.float32))
