"""Data with its axes in another order."""

from __future__ import annotations

from collections.abc import Callable

from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ...codegen.c.copies import Copy, copy_kernel, strides_of
from .dialect import CUDA
from .launch import Launch, Queue
from .memory import Data


def transposed(queue: Queue, shape: Shape, order: tuple[int, ...] | None, dtype: DType) -> Callable[[Data], Data]:
    """A function that brings data of a shape into another order of its axes; `None` leaves it as it is."""
    if order is None:
        return lambda data: data
    made = tuple(shape[a] for a in order)
    strides = strides_of(shape)
    copy = Copy(made, tuple(strides[a] for a in order), strides_of(made))
    launch = Launch(queue, copy_kernel(copy, dtype, CUDA, queue.target), 1, 1)

    def copied(data: Data) -> Data:
        result = queue.memory.new(made, dtype)
        launch(data, result)
        return result

    return copied
