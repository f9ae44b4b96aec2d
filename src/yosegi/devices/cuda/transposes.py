"""Data with its axes in another order."""

from __future__ import annotations

from collections.abc import Callable, Collection

from ..._tensor.dtype import DType
from ..._tensor.node import Shape
from ...codegen.c.copies import Copy, copy_kernel, strides_of
from .dialect import CUDA
from .launch import Launch, Queue
from .memory import Data


def transposed(
    queue: Queue, shape: Shape, order: tuple[int, ...] | None, dtype: DType, reverses: Collection[int] = ()
) -> Callable[[Data], Data]:
    """A function that brings data of a shape into another order of its axes; `None` leaves it as it is. `reverses` are
    axes of the shape whose elements come in reverse order."""
    if order is None:
        return lambda data: data
    made = tuple(shape[a] for a in order)
    strides = strides_of(shape)
    read = tuple(-strides[a] if a in reverses else strides[a] for a in order)
    copy = Copy(made, read, strides_of(made), sum((shape[a] - 1) * strides[a] for a in reverses))
    launch = Launch(queue, copy_kernel(copy, dtype, CUDA, queue.target), 2)

    def copied(data: Data) -> Data:
        result = queue.memory.new(made, dtype)
        launch([data], [result])
        return result

    return copied
