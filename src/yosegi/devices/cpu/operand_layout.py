"""The memory layout of a product's arrays, as its kernel takes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ..._tensor.node import Shape
from ...codegen.llvm.blocking import ProductSizes


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arrays of a product, or others that lie alike: stacks of matrices that broadcast to the stack of the outputs.

    The elements of the outputs' rows lie side by side, and so do those of the sides that have one for each column.
    """

    left: Any
    right: Any
    fed: Sequence[Any]
    """The sides of what comes before."""
    sides: Sequence[Any]
    """The sides of what comes after."""
    outs: Sequence[Any]
    starts: Sequence[int] | Sequence[Sequence[int]] = ()
    """Where the operands begin in the arrays that a kernel will be given, in bytes: left, fed, right, sides. With a row
    for each matrix of the stack, beyond where the strides of the stack say."""


@dataclass(frozen=True, slots=True)
class OperandLayout:
    """The layout as numbers."""

    sizes: ProductSizes
    fed: list[int]
    """Of the sides of what comes before, the bytes from one row to the next and along a row."""
    rows: list[int]
    """Of the sides of what comes after, and of the outputs, the bytes from one row to the next."""
    offsets: list[int]
    """For each matrix of the stack, the bytes at which it begins in each array, in the arrays' order."""


def laid(arrays: Arrays) -> OperandLayout:
    """Arrays in numbers, their stack as small as it can be."""
    left, right, *others = _stacked(arrays)
    (*batch, m, k), n = left.shape, right.shape[-1]
    fed, rest = others[: len(arrays.fed)], others[len(arrays.fed) :]
    sizes = ProductSizes(prod(batch), m, n, k, *left.strides[-2:], *right.strides[-2:])
    offsets = _offsets(batch, [x.strides[:-2] for x in (left, *fed, right, *rest)])
    if len(arrays.starts):
        offsets[:, : offsets.shape[1] - len(arrays.outs)] += np.array(arrays.starts, np.int64)
    return OperandLayout(
        sizes, [s for x in fed for s in x.strides[-2:]], [x.strides[-2] for x in rest], offsets.reshape(-1).tolist()
    )


def layout_like(shape: Shape, steps: Shape, dtype: Any) -> Any:
    """An array of this shape and of these strides, in elements, for the layout alone: it has no memory."""
    return np.lib.stride_tricks.as_strided(
        np.empty(1, dtype), shape, [n * dtype.itemsize for n in steps], writeable=False
    )


def _stacked(arrays: Arrays) -> list[Any]:
    """The arrays with one shape of their stacks: the left and right operands, the sides, the outputs.

    The rows of several matrices are those of one, where the right operand is the same for all and rows are evenly
    apart.
    """
    outer, rows = arrays.outs[0].shape[:-2], arrays.outs[0].shape[-2]
    made = []
    for number, x in enumerate([arrays.left, arrays.right, *arrays.fed, *arrays.sides, *arrays.outs]):
        shape = (*outer, x.shape[-2] if number == 1 else rows, x.shape[-1])
        made.append(x if x.shape == shape else np.broadcast_to(x, shape))
    while outer and _is_same(made[1]) and all(_follows(x) for x in (made[0], *made[2:])):
        outer, rows = outer[:-1], rows * outer[-1]
        made = [_joined(x, rows) if number != 1 else x[..., 0, :, :] for number, x in enumerate(made)]
    return made


def _is_same(x: Any) -> bool:
    """Whether the next matrix of a stack is this one again, or there is none."""
    return bool(x.strides[-3] == 0 or x.shape[-3] == 1)


def _follows(x: Any) -> bool:
    """Whether the rows of the next matrix of a stack come behind those of this one."""
    return bool(x.strides[-3] == x.strides[-2] * x.shape[-2] or x.shape[-3] == 1)


def _joined(x: Any, rows: int) -> Any:
    step = x.strides[-2] if x.shape[-2] > 1 else x.strides[-3]
    return np.lib.stride_tricks.as_strided(
        x, (*x.shape[:-3], rows, x.shape[-1]), (*x.strides[:-3], step, x.strides[-1]), writeable=False
    )


def _offsets(batch: Sequence[int], strides: Sequence[tuple[int, ...]]) -> Any:
    indices = np.indices(batch, np.int64).reshape(len(batch), prod(batch))
    apart = np.array(strides, np.int64).reshape(len(strides), len(batch))
    return (apart @ indices).T
