"""Test calls of every row of the op table, on special values, with which a plugin is qualified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from ..._graph.graph import capture, graph_of
from ..._schedule.fuse import Region, RegionKind
from ..._tensor.dtype import DType, bool_, float32, float_info
from ..._tensor.node import Node
from ..._tensor.op import REGISTRY, from_array
from ..._tensor.tensor import Tensor
from .op_row import OpTable

NOT_TRIED: Final = frozenset({"gather"})
"""Rows that take constants where a specimen has values."""

_OF_ANY_VALUES: Final[dict[str, dict[str, Any]]] = {
    "variable": {}, "reshape": {"shape": (61, 64)}, "broadcast_to": {"shape": (2, 64, 61)},
    "permute_dims": {"axes": (1, 0)}, "slice_view": {"key": ((63, 21, -3), None, (5, 50, 1))}, "flip": {"axis": None},
    "rolled": {"shift": (5, -2), "axis": (0, 1)}, "diagonal": {"offset": -2}, "tril": {"k": 1}, "triu": {"k": -1},
    "convert": {"dtype": bool_}, "max": {"axis": 1}, "min": {"axis": 0}, "all": {"axis": 1}, "any": {"axis": 0},
    "argmax": {"axis": 1}, "argmin": {"axis": None},
}  # fmt: skip
"""Ops of one matrix of any values, with their attributes."""

_OF_NUMBERS: Final[dict[str, dict[str, Any]]] = {
    "sum": {"axis": 1}, "mean": {"axis": 0}, "prod": {"axis": 1},
    "cumulative_sum": {"axis": 1, "include_initial": True},
    "softmax": {"axis": 1}, "log_softmax": {"axis": 0}, "layer_norm": {"axis": 1}, "gelu": {},
    "leaky_relu": {"negative_slope": 0.1},
}  # fmt: skip
"""Ops of one matrix of tame numbers; those that are not plain sums also of any values."""
_SUMS: Final = ("sum", "mean", "prod", "cumulative_sum")

_CONVOLVED: Final[tuple[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]], ...]] = (
    ((2, 8, 9, 10), (6, 8, 3, 3), {"padding": 1}),
    ((1, 64, 14, 14), (64, 64, 3, 3), {"padding": 1}),
    ((2, 8, 9, 10), (6, 4, 3, 2), {"groups": 2, "stride": (2, 1), "dilation": (1, 2), "padding": ((1, 0), (2, 1))}),
    ((1, 16, 9, 9), (16, 1, 3, 3), {"groups": 16, "padding": 1}),
    ((2, 3, 17), (4, 3, 5), {"stride": 2, "padding": 2}),
    ((1, 2, 5, 6, 7), (3, 2, 3, 3, 3), {"padding": 1}),
    ((2, 6, 5, 7), (4, 3, 3, 3), {"groups": 2, "spread": 2, "padding": 1}),
)
"""Shapes and attributes of convolutions: plain, of many channels, in groups, of each channel, in 1 and 3 dimensions,
transposed."""


def specimens(table: OpTable, dtype: DType) -> list[Node]:
    """The calls for a dtype; of those, a device may refuse some."""
    taken = frozenset(name for name, row in table.rows.items() if dtype in row.dtypes)
    return [tensor._node for name, tensor in _named(table, dtype, taken) if name in taken]


def _named(table: OpTable, dtype: DType, taken: frozenset[str]) -> Iterator[tuple[str, Tensor]]:
    values = _values(dtype)
    matrix = np.resize(values, 64 * 61).reshape(64, 61)
    if dtype.is_float:  # rows and columns of nothing else
        matrix[7], matrix[:, 9], matrix[11] = -np.inf, -np.inf, np.inf
    x = from_array(matrix)
    a, b = (from_array(np.ascontiguousarray(grid)) for grid in np.meshgrid(values, values))
    for name in sorted(taken & table.unary):
        yield name, REGISTRY[name](x)
    for name in sorted(taken & table.binary):
        yield name, REGISTRY[name](a, b)
    for name in sorted(taken & _OF_ANY_VALUES.keys()):
        yield name, REGISTRY[name](x, **_OF_ANY_VALUES[name])
    if dtype is not bool_:
        yield "positive", REGISTRY["positive"](x)
    yield "barrier", REGISTRY["barrier"](x, from_array(np.asarray(values[0])))
    yield "concatenate", REGISTRY["concatenate"](x, x, axis=1)
    yield "slice_set", REGISTRY["slice_set"](x, from_array(np.resize(values, 61)), key=((60, 20, -3), (0, 61, 1)))
    yield "where", REGISTRY["where"](from_array(np.resize([True, False, False], a.shape)), a, b)
    if dtype is float32:
        yield from _of_floats(x)


def _of_floats(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Calls that only numbers make sense for, tame ones and, where one bad value does not spoil all, any."""
    m, n = _numbers((64, 61)), _numbers((61, 64))
    for name, attrs in _OF_NUMBERS.items():
        for given in (m,) if name in _SUMS else (m, x):
            yield name, REGISTRY[name](given, **attrs)
    yield "matmul", REGISTRY["matmul"](m, n)
    yield "einsum", REGISTRY["einsum"](m, n, subscripts="ij,jk->ki")
    for shape, kernel, attrs in _CONVOLVED:
        yield "conv", REGISTRY["conv"](_image(shape), _numbers(kernel), **attrs)
    windows = {"kernel_size": 3, "stride": 2, "padding": 1}
    for given in (_image((2, 8, 9, 10)), from_array(np.full((1, 8, 9, 10), -np.inf, np.float32))):
        yield "max_pool", REGISTRY["max_pool"](given, **windows, dilation=1)
    for counted in (True, False):
        yield "avg_pool", REGISTRY["avg_pool"](_image((2, 8, 9, 10)), **windows, count_include_pad=counted)
    yield "gelu", REGISTRY["gelu"](x, approximate="tanh")
    yield "layer_norm", REGISTRY["layer_norm"](m, _numbers((61,)), _numbers((61,)), axis=1)
    yield "group_norm", REGISTRY["group_norm"](_image((3, 8, 5, 5)), 2, _numbers((8,)), _numbers((8,)))
    name = "scaled_dot_product_attention"
    q, k, v = _image((2, 3, 20, 16)), _numbers((2, 3, 24, 16)), _numbers((2, 3, 24, 12))
    yield name, REGISTRY[name](q, k, v)
    yield name, REGISTRY[name](q, k, v, is_causal=True)
    yield name, REGISTRY[name](q, k, v, _numbers((20, 24)))
    yield name, REGISTRY[name](q, k, v, from_array(np.resize([True, False, True], (3, 20, 24))))


def _values(dtype: DType) -> Any:
    """Values that break things, and a few that should not."""
    if dtype.is_float:
        most = float_info(dtype).max
        numbers = [0.0, 1e-3, 0.5, 1.0, 1.5, 2.5, 7.3, 30.25, 88.5, 0.9 * most, np.inf]
        return np.array([np.nan, *[sign * n for n in numbers for sign in (1, -1)]]).astype(dtype.numpy)
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        return np.array([info.min, 0, 1, 7, 100, info.max], dtype.numpy)
    return np.array([False, True])


def _numbers(shape: Sequence[int]) -> Tensor:
    return from_array(np.random.default_rng(len(shape)).uniform(-2, 3, shape).astype(np.float32))


def _image(shape: Sequence[int]) -> Tensor:
    """Numbers with a NaN and an infinity in the first of the batch: most of a result does not see them."""
    made = np.random.default_rng(7).uniform(-2, 3, shape).astype(np.float32)
    flat = made.reshape(-1)
    flat[[made.size // 9, made.size // 5]] = np.nan, np.inf
    return from_array(made)


def region_of(nodes: Iterable[Node]) -> tuple[Region, list[Any]]:
    """Calls on values as one region, and its inputs' data."""
    wanted = list(nodes)
    key, leaves, _ = capture(wanted)
    graph = graph_of(key)
    inside = tuple(n for n in range(len(graph.calls)) if n not in graph.inputs)
    region = Region(graph, RegionKind.SEQUENCE, inside, graph.inputs, graph.outputs[: len(wanted)])
    return region, [leaf.buffer.data for leaf in leaves]  # type: ignore[union-attr]
