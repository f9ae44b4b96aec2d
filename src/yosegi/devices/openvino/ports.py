"""Arrays as tensors of OpenVINO, on the same memory."""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import numpy as np

from ..._run.memory.pool import Block, Pool
from ..._tensor.dtype import bfloat16
from ..._tensor.node import Spec
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
        self.nbytes = spec.nbytes
        self._spec = spec
        self._shape = ov.Shape(spec.shape)
        self._type = getattr(ov.Type, TYPES[spec.dtype.name])
        self._tensor = ov.Tensor
        self._is_foreign = spec.dtype is bfloat16  # to OpenVINO's bindings, and to NumPy's interface
        self._bytes = ctypes.c_char * spec.nbytes

    def tensor_on(self, array: Any) -> Any:
        """A tensor on the memory of an array, which must be contiguous, and stay as long as the tensor is used."""
        return self._tensor(array.view(np.uint16) if self._is_foreign else array, self._shape, self._type)

    def array_on(self, block: Block) -> Any:
        """An array on the memory of a block, which does not go back to its pool before the array is gone."""
        raw: Any = self._bytes.from_address(block.memory.address)
        raw.block = block
        return np.ndarray(self._spec.shape, self._spec.dtype.numpy, raw)

    def parameter(self) -> Any:
        """The node of a model that stands for this input."""
        return opset().parameter(list(self._spec.shape), self._type)


class MemoryRange(NamedTuple):
    """Some bytes, and where they are."""

    raw: Any
    address: int


def host_pool(limit: int | None) -> Pool:
    """A pool of the host's memory."""
    return Pool(_allocate, lambda memory: None, limit)


def _allocate(nbytes: int, alignment: int) -> MemoryRange:
    whole = np.empty(nbytes + alignment, np.uint8)
    raw = whole[-whole.ctypes.data % alignment :][:nbytes]
    return MemoryRange(raw, raw.ctypes.data)
