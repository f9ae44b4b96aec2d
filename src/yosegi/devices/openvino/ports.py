"""Arrays as tensors of OpenVINO, on the same memory."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from ...dtype import bfloat16
from ...memory.pool import Block, Pool
from ...node import Shape, Spec
from .library import openvino, opset

TYPES: Final = {
    "bool": "boolean", "int8": "i8", "uint8": "u8", "int32": "i32", "int64": "i64", "float16": "f16",
    "bfloat16": "bf16", "float32": "f32",
}  # fmt: skip
"""Our dtypes by OpenVINO's names. int64 is for positions only."""


class Port:
    """An input or an output of a model: how an array becomes a tensor of OpenVINO."""

    def __init__(self, spec: Spec) -> None:
        ov = openvino()
        self._spec = spec
        self._shape = ov.Shape(spec.shape)
        self._type = getattr(ov.Type, TYPES[spec.dtype.name])
        self._tensor = ov.Tensor
        self._is_foreign = spec.dtype is bfloat16  # to OpenVINO's bindings, and to NumPy's interface
        self._code = "<u2" if self._is_foreign else spec.dtype.numpy.str

    def tensor_on(self, array: Any) -> Any:
        """A tensor on the memory of an array, which must be contiguous, and stay as long as the tensor is used."""
        return self._tensor(array.view(np.uint16) if self._is_foreign else array, self._shape, self._type)

    def new(self, pool: Pool) -> Any:
        """An array of the pool's memory, for values that will be written."""
        made = np.asarray(_Exposed(pool.take(self._spec.nbytes), self._spec.shape, self._code))
        return made.view(self._spec.dtype.numpy) if self._is_foreign else made

    def parameter(self) -> Any:
        """The node of a model that stands for this input."""
        return opset().parameter(list(self._spec.shape), self._type)


class Memory(NamedTuple):
    """Some bytes, and where they are."""

    raw: Any
    address: int


class _Exposed:
    """A block's memory for NumPy. An array made of this keeps the block from going back to its pool."""

    def __init__(self, block: Block, shape: Shape, code: str) -> None:
        self.block = block
        data = (block.memory.address, False)
        self.__array_interface__ = {"data": data, "shape": shape, "typestr": code, "version": 3}


def host_pool(limit: int | None) -> Pool:
    """A pool of the host's memory."""
    return Pool(_allocate, lambda memory: None, limit)


def _allocate(nbytes: int, alignment: int) -> Memory:
    whole = np.empty(nbytes + alignment, np.uint8)
    raw = whole[-whole.ctypes.data % alignment :][:nbytes]
    return Memory(raw, raw.ctypes.data)
