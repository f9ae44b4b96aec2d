"""The inputs and outputs of models, and the memory that their results are on."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from ..._run.memory.pool import Block, Pool
from ..._tensor.node import Spec


class Port:
    """An input or an output of a model."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.dtype = spec.dtype.numpy
        """The dtype of the arrays that the model reads or writes."""
        self.nbytes = spec.nbytes

    def taken(self, array: Any) -> Any:
        """An array as the model reads it: contiguous, and in place where it is."""
        return np.asarray(array, self.dtype, order="C")

    def given(self, array: Any) -> Any:
        """An array that the model wrote as the region's output."""
        return array

    def array_on(self, block: Block) -> Any:
        """An array on the memory of a block, which does not go back to its pool before the array is gone."""
        raw: Any = (ctypes.c_char * self.nbytes).from_address(block.memory.address)
        raw.block = block
        return np.ndarray(self.spec.shape, self.dtype, raw)


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
