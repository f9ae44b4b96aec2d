"""Calls of the ops that have kernels of their own, by what is particular about each: a table for tests on devices and
without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import yosegi as ys
from opencl_regions import numbers
from yosegi._tensor.dtype import float32, float64, int64
from yosegi._tensor.op import REGISTRY
from yosegi.ops.index import gather, scatter, scatter_add

RNG = np.random.default_rng(5)


def indices(low: int, high: int, *shape: int, dtype: Any = np.int64) -> ys.Tensor:
    return ys.asarray(RNG.integers(low, high, shape).astype(dtype))


def array(*shape: int, dtype: Any = float32) -> ys.Tensor:
    return ys.asarray(numbers(dtype, *shape))


def call(name: str, *arrays: Any, **attrs: Any) -> ys.Tensor:
    return REGISTRY[name](*[ys.asarray(a) for a in arrays], **attrs)


STATE = np.array([1, 2**32 - 5, 3, 4], np.uint32)
INDEXING: dict[str, Callable[[], ys.Tensor]] = {
    "rows in packets": lambda: gather(array(7, 8), indices(-7, 7, 11), axes=(0,), at=0),
    "rows in halves of packets": lambda: gather(array(7, 6), indices(-7, 7, 11), axes=(0,), at=0),
    "odd rows": lambda: gather(array(7, 5), indices(0, 7, 3, 4, dtype=np.uint8), axes=(0,), at=0),
    "columns": lambda: gather(array(3, 9), indices(-9, 9, 2, 5, dtype=np.int8), axes=(1,), at=1),
    "in between": lambda: gather(array(3, 5, 4), indices(-5, 5, 6, dtype=np.int32), axes=(1,), at=1),
    "at the front": lambda: gather(array(3, 5, 4), indices(-5, 5, 6), axes=(1,), at=0),
    "two axes": lambda: gather(array(6, 4, 8), indices(-6, 6, 3, 1), indices(0, 4, 5), axes=(0, 1), at=0),
    "axes apart": lambda: gather(array(6, 4, 8), indices(-6, 6, 9), indices(0, 8, 9), axes=(0, 2), at=1),
    "all axes": lambda: gather(array(6, 4), indices(0, 6, 9), indices(0, 4, dtype=np.uint64), axes=(0, 1), at=0),
    "one index": lambda: gather(array(6, 4), indices(0, 6), axes=(0,), at=0),
    "replaced rows": lambda: scatter(array(7, 8), array(20, 8), indices(-7, 7, 20), axes=(0,), at=0),
    "replaced odd rows": lambda: scatter(array(7, 5), array(4, 5), indices(-7, 7, 4), axes=(0,), at=0),
    "replaced by one": lambda: scatter(array(7, 8), array(8), indices(-7, 7, 20), axes=(0,), at=0),
    "replaced by a number": lambda: scatter(array(7, 8), array(), indices(-7, 7, 5), axes=(1,), at=1),
    "replaced places": lambda: scatter(array(3, 4), array(5, 6), indices(-3, 3, 5, 1), indices(0, 4, 6), axes=(0, 1),
                                       at=0),
    "replaced in between": lambda: scatter(array(3, 5, 4), array(3, 6, 2, 4), indices(-5, 5, 6, 2), axes=(1,), at=1),
    "nothing replaced": lambda: scatter(array(3, 4), array(0, 4), indices(0, 1, 0), axes=(0,), at=0),
    "added rows": lambda: scatter_add(array(7, 8), array(40, 8), indices(-7, 7, 40), axes=(0,), at=0),
    "added odd rows": lambda: scatter_add(array(9, 3), array(5, 3), indices(-9, 9, 5), axes=(0,), at=0),
    "added to one row": lambda: scatter_add(array(9, 4), array(50, 4), indices(3, 4, 50), axes=(0,), at=0),
    "added columns": lambda: scatter_add(array(3, 9), array(3, 20), indices(-9, 9, 20), axes=(1,), at=1),
    "added places": lambda: scatter_add(array(3, 4), array(1, 6), indices(-3, 3, 5, 1), indices(0, 4, 6), axes=(0, 1),
                                        at=0),
    "added, at the front": lambda: scatter_add(array(3, 5, 4), array(6, 1, 4), indices(-5, 5, 6), axes=(1,), at=0),
    "added nothing": lambda: scatter_add(array(3, 4), array(0, 4), indices(0, 1, 0), axes=(0,), at=0),
}  # fmt: skip


BAD: dict[str, Callable[[], tuple[ys.Tensor, str]]] = {
    "above": lambda: (gather(array(7, 8), ys.asarray([0, 7, 1]), axes=(0,), at=0, of="take"),
                      r"\[take\] expected indices from -7 to 6 for a dimension of length 7, got 7"),
    "below": lambda: (gather(array(7, 8), ys.asarray([0, -8, 1]), axes=(0,), at=0),
                      r"\[getitem\] expected indices from -7 to 6 for a dimension of length 7, got -8"),
    "unsigned": lambda: (gather(array(7, 8), ys.asarray(np.array([2**64 - 1], np.uint64)), axes=(0,), at=0),
                         r"length 7, got 18446744073709551615"),
    "second": lambda: (gather(array(7, 8), ys.asarray([3]), ys.asarray([99]), axes=(0, 1), at=0), "length 8, got 99"),
    "replaced": lambda: (scatter(array(7, 8), array(), ys.asarray([3, 99]), axes=(0,), at=0),
                         r"\[setitem\] .* length 7, got 99"),
    "added": lambda: (scatter_add(array(7, 8), array(), ys.asarray([3, -99, 3]), axes=(0,), at=0), "7, got -99"),
}  # fmt: skip


def with_nan(*shape: int) -> ys.Tensor:
    values = numbers(float64, *shape)
    values[RNG.random(shape) < 0.05] = np.nan
    return ys.asarray(values)


SEARCHES: dict[str, Callable[[], ys.Tensor]] = {
    "rows": lambda: call("argmax", numbers(float32, 5, 37), axis=1),
    "long rows": lambda: call("argmax", RNG.integers(0, 3, (3, 1000)), axis=1),
    "with NaN": lambda: call("argmin", with_nan(3, 1000), axis=1, keepdims=True),
    "few NaN": lambda: call("argmax", with_nan(1000)),
    "all": lambda: call("argmin", RNG.integers(0, 9, (50, 60)).astype(np.int8)),
    "columns": lambda: call("argmax", RNG.integers(0, 3, (700, 3)).astype(np.uint64), axis=0),
    "in between": lambda: call("argmin", RNG.integers(0, 3, (2, 90, 5)).astype(np.float16), axis=1),
    "truths": lambda: call("argmax", RNG.random((4, 100)) < 0.02, axis=1),
    "one": lambda: call("argmax", np.float32(3)),
    "infinite": lambda: call("argmax", np.full((2, 700), -np.inf, np.float32), axis=1),
    "sorted": lambda: call("searchsorted", np.sort(RNG.integers(0, 9, 30)), RNG.integers(-1, 11, (4, 5)), side="left"),
    "behind equals": lambda: call("searchsorted", np.sort(RNG.integers(0, 9, 30)), RNG.integers(-1, 11, 9),
                                  side="right"),
    "sorted, with NaN": lambda: call("searchsorted", np.array([1.0, 2.0, np.nan, np.nan]),
                                     np.array([np.nan, 3.0, 0.0, 2.0]), side="left"),
    "NaN behind": lambda: call("searchsorted", np.array([1.0, 2.0, np.nan]), np.array([np.nan, 2.0]), side="right"),
    "listed": lambda: call("isin", RNG.integers(0, 50, (7, 9)), RNG.integers(0, 50, 20), invert=False),
    "not listed": lambda: call("isin", np.array([1.5, np.nan, 2]), np.array([np.nan, 2.0]), invert=True),
}  # fmt: skip


SCANS: list[tuple[str, tuple[int, ...], int, bool]] = [
    ("cumulative_sum", (1000,), 0, False), ("cumulative_sum", (3, 70), 1, True), ("cumulative_sum", (5, 3), 1, True),
    ("cumulative_sum", (40, 5), 0, False), ("cumulative_sum", (2, 300, 3), 1, True), ("cumulative_sum", (1,), 0, True),
    ("cumulative_prod", (3, 130), 1, True), ("cumulative_prod", (130, 2), 0, False),
    ("cumulative_sum", (9001,), 0, True),
]  # fmt: skip


ELEMENTS: dict[str, Callable[[], ys.Tensor]] = {
    "tril": lambda: call("tril", numbers(float32, 3, 5, 7), k=1),
    "triu": lambda: call("triu", numbers(ys.complex128, 7, 5), k=-2),
    "far": lambda: call("tril", numbers(float32, 3, 5), k=2**62),
    "far below": lambda: call("triu", numbers(float32, 3, 5), k=-(2**62)),
    "diagonal": lambda: call("on_diagonal", numbers(float32, 2, 3), shape=(5, 4), offset=1),
    "lower diagonal": lambda: call("on_diagonal", numbers(ys.float16, 3), shape=(5, 4), offset=-2),
    "eye": lambda: call("diagonal_ones", n_rows=4, n_cols=6, k=2, dtype=ys.bfloat16),
    "complex eye": lambda: call("diagonal_ones", n_rows=4, n_cols=4, k=0, dtype=ys.complex64),
    "truth eye": lambda: call("diagonal_ones", n_rows=4, n_cols=3, k=-1, dtype=ys.bool),
    "count": lambda: call("count", start=5, stop=-40, step=-3, dtype=int64),
    "count bytes": lambda: call("count", start=250, stop=256, step=1, dtype=ys.uint8),
    "count far": lambda: call("count", start=2**64 - 9, stop=2**64 - 1, step=4, dtype=ys.uint64),
    "words": lambda: call("random_words", STATE, shape=(3, 7)),
    "one word": lambda: call("random_words", STATE, shape=()),
    "planes": lambda: call("philox", STATE, shape=(3, 5), words=4),
    "one plane": lambda: call("philox", STATE, shape=(11,), words=1),
}
