"""Programs that use every kind of generated CPU code, with results by NumPy in float64: for processors other than the
one that the tests run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import erf
from typing import Any

import numpy as np

import yosegi as ys
from scalar_calls import Read, calls, operands
from values import Array, dtypes_of
from yosegi._tensor.dtype import ALL, DType, as_dtype, real_of
from yosegi._tensor.op import REGISTRY
from yosegi.devices.cpu.variants import GENERATED, GENERATED_APART
from yosegi.ops.windows import Windows, convolved

FLOATS = dtypes_of("f")
WINOGRAD = "winograd"


@dataclass(frozen=True)
class Program:
    """A program, the arrays that it reads, and what NumPy makes of them."""

    name: str
    function: Callable[..., Any]
    """Of tensors: one tensor or several."""
    arrays: tuple[Array, ...]
    reference: Callable[..., Any]
    """Of the same arrays, floats as float64; the same number of results."""
    ulps: float = 8
    """How far results may be off, in roundings of the largest."""
    way: str = GENERATED
    """The variant of its products or convolutions."""
    layout: Callable[[Array], Array] = field(default=lambda a: a)
    """Of the first array."""

    @property
    def given(self) -> list[Array]:
        """The arrays as the program gets them."""
        return [self.layout(self.arrays[0]), *self.arrays[1:]]

    def check(self, results: Sequence[Array]) -> None:
        """Raise unless results are within some roundings of the largest in float64; those of integers are equal."""
        with np.errstate(all="ignore"):
            expected = _several(self.reference(*map(_in_float64, self.given)))
        assert len(results) == len(expected)
        for number, (got, wanted) in enumerate(zip(results, expected, strict=True)):
            dtype, where = as_dtype(got.dtype), f"{self.name}, result {number}"
            assert got.shape == np.shape(wanted), where
            if not dtype.is_inexact:
                np.testing.assert_array_equal(got, np.asarray(wanted).astype(got.dtype), where)
                continue
            allowed = self.ulps * float(ys.finfo(real_of(dtype)).eps)
            scale = float(np.max(np.abs(wanted), initial=1))
            np.testing.assert_allclose(
                _in_float64(got), wanted, rtol=allowed, atol=allowed * scale, err_msg=where, equal_nan=True
            )


def _several(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _in_float64(array: Array) -> Array:
    dtype = as_dtype(array.dtype)
    return array.astype(np.complex128 if dtype.is_complex else np.float64) if dtype.is_inexact else array


def values(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    """Numbers between -2 and 2, or small integers."""
    rng = np.random.default_rng(seed)
    if dtype is ys.bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_integer:
        return rng.integers(0 if dtype.kind.startswith("un") else -20, 20, shape).astype(dtype.numpy)
    numbers = rng.uniform(-2, 2, shape)
    return (numbers + 1j * rng.uniform(-2, 2, shape) if dtype.is_complex else numbers).astype(dtype.numpy)


# Every op with a scalar rule


@dataclass(frozen=True)
class Rules:
    """Every elementwise op of one or two operands, of one dtype, on values that break things."""

    read: list[Read]
    arrays: list[Array]

    def function(self, *tensors: ys.Tensor) -> tuple[ys.Tensor, ...]:
        """All of them."""
        return tuple(call.op(*[tensors[n] for n in places], **call.attrs) for call, places in self.read)


def rules(dtype: DType, arity: int) -> Rules:
    """The rules for a dtype."""
    return Rules(calls(dtype, arity), operands(dtype, arity, 1))


RULES = [(dtype, arity) for dtype in ALL for arity in (1, 2)]


# Loops


def _gated(x: Any, y: Any) -> Any:
    return ys.tanh(x) * y + ys.exp(-x * x) / (ys.abs(y) + 1)


def _loops() -> Iterator[Program]:
    for dtype in FLOATS:
        x, y = values((41, 333), dtype), values((333,), dtype, 1)
        yield Program(
            f"a loop of {dtype.name}", _gated, (x, y), lambda x, y: np.tanh(x) * y + np.exp(-x * x) / (abs(y) + 1)
        )
    for dtype in dtypes_of("iu"):
        x, y = values((33, 130), dtype), values((33, 130), dtype, 1)
        y[y == 0] = 3
        yield Program(f"integers of {dtype.name}", _integers, (x, y), _integers_by_numpy)
    x, y = values((70, 65), ys.bool), values((70, 65), ys.bool, 1)
    yield Program("truth values", lambda x, y: ((x & y) ^ ~x, x | y), (x, y), lambda x, y: ((x & y) ^ ~x, x | y))
    for dtype in dtypes_of("c"):
        x, y = values((9, 77), dtype), values((9, 77), dtype, 1)
        yield Program(f"a loop of {dtype.name}", lambda x, y: (x * y + ys.conj(x), ys.abs(x), ys.exp(x) / y), (x, y),
                      lambda x, y: (x * y + np.conj(x), np.abs(x), np.exp(x) / y), ulps=16)  # fmt: skip
    x = np.concatenate([values((4000,), ys.float64) * 10.0**n for n in (-6, -2, 0, 2, 4)]).astype(np.float32)
    yield Program("float16 and bfloat16", lambda x: tuple(ys.astype(ys.astype(x, d) * 2, ys.float32) for d in
                                                          (ys.float16, ys.bfloat16)), (x,), _halves)  # fmt: skip
    x = values((60, 70), ys.float32)
    for name, layout in {"transposed": np.transpose, "reversed": lambda a: a[::-1, ::-1], "sparse": lambda a: a[:, ::3],
                         "broadcast": lambda a: np.broadcast_to(a[:, :1], a.shape)}.items():  # fmt: skip
        y = values(layout(x).shape, ys.float32, 1)
        yield Program(f"a {name} array", lambda x, y: x * y + ys.abs(x), (x, y), lambda x, y: x * y + abs(x),
                      layout=layout)  # fmt: skip
    for dtype in (*FLOATS, ys.complex64):
        x, y = values((301, 3), dtype), values((3,), dtype, 1)
        yield Program(f"short rows of {dtype.name}", lambda x, y: x * y + x, (x, y), lambda x, y: x * y + x, ulps=16)
    big = values((700_001,), ys.float32)
    yield Program(
        "a long loop", lambda x: ys.sqrt(x * x + 1) - ys.abs(x), (big,), lambda x: np.sqrt(x * x + 1) - abs(x)
    )


def _halves(x: Array) -> tuple[Array, ...]:
    single = x.astype(np.float32)
    return tuple((single.astype(d.numpy).astype(np.float32) * 2).astype(d.numpy).astype(np.float64)
                 for d in (ys.float16, ys.bfloat16))  # fmt: skip


def _integers(x: Any, y: Any) -> Any:
    return x // y, x % y, (x * y - x) * x, x < y, ys.where(x == y, x, y), (x & y) | (x ^ y), ys.maximum(x, y)


def _integers_by_numpy(x: Array, y: Array) -> Any:
    return x // y, x % y, (x * y - x) * x, x < y, np.where(x == y, x, y), (x & y) | (x ^ y), np.maximum(x, y)


# Reductions, rows, running totals

AXES: dict[str, tuple[tuple[int, ...], int | tuple[int, ...] | None]] = {
    "the last axis": ((37, 70), 1), "the first axis": ((37, 70), 0), "a middle axis": ((5, 37, 19), 1),
    "outer axes": ((5, 7, 67), (0, 2)), "all axes": ((5, 7, 67), None), "a short last axis": ((300, 3), 1),
    "a long row": ((2, 150_001), 1), "a long column": ((40_000, 5), 0), "a vector": ((500_003,), None),
}  # fmt: skip


def _reductions() -> Iterator[Program]:
    for where, (shape, axis) in AXES.items():
        is_long = np.prod(shape) > 20_000
        for dtype in (ys.float32, ys.float64) if is_long else (*FLOATS, ys.int32, ys.int8, ys.uint64, ys.complex64):
            x = values(shape, dtype)
            yield Program(f"sums of {dtype.name} along {where}", _reduced(ys, axis, dtype), (x,),
                          _reduced(np, axis, dtype), ulps=32)  # fmt: skip
        x = values(shape, ys.bool)
        yield Program(f"truths along {where}", lambda x, a=axis: (ys.all(x, axis=a), ys.any(x, axis=a)), (x,),
                      lambda x, a=axis: (np.all(x, axis=a), np.any(x, axis=a)))  # fmt: skip


def _reduced(of: Any, axis: Any, dtype: DType) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        made = [of.sum(x, axis=axis)]
        if not dtype.is_complex:
            made += [of.max(x, axis=axis), of.min(x, axis=axis)]
            if not isinstance(axis, tuple):
                made.append(of.argmax(x, axis=axis))
        if dtype.is_float:
            made += [of.mean(x, axis=axis), of.var(x, axis=axis)]
        return tuple(made)

    return function


def _softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    made: Array = e / np.sum(e, axis=axis, keepdims=True)
    return made


def _normal(x: Array, scale: Any = 1.0, bias: Any = 0.0) -> Array:
    apart = x - np.mean(x, axis=-1, keepdims=True)
    made: Array = apart / np.sqrt(np.mean(apart**2, axis=-1, keepdims=True) + 1e-5) * scale + bias
    return made


def _rows() -> Iterator[Program]:
    for dtype in FLOATS:
        x, g, b = values((37, 130), dtype), values((130,), dtype, 1), values((130,), dtype, 2)
        yield Program(f"softmax of {dtype.name}", ys.nn.softmax, (x,), _softmax)
        yield Program(f"softmax of columns of {dtype.name}", lambda x: ys.nn.softmax(x, axis=0), (x,),
                      lambda x: _softmax(x, 0))  # fmt: skip
        yield Program(f"log_softmax of {dtype.name}", ys.nn.log_softmax, (x,), lambda x: np.log(_softmax(x)))
        yield Program(
            f"layer_norm of {dtype.name}", lambda x, g, b: ys.nn.layer_norm(x, g, b), (x, g, b), _normal, ulps=16
        )
    x = values((3, 1000, 40), ys.float32)
    yield Program("many rows", ys.nn.softmax, (x,), _softmax)
    yield Program("rms_norm", lambda x: ys.nn.rms_norm(x, eps=1e-5), (x,),
                  lambda x: x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-5), ulps=16)  # fmt: skip


def _totals() -> Iterator[Program]:
    for dtype in (ys.float32, ys.float64, ys.float16, ys.int16, ys.complex64):
        x = values((33, 70), dtype)
        for axis in (0, 1):
            yield Program(f"running sums of {dtype.name} along {axis}",
                          lambda x, a=axis: ys.cumulative_sum(x, axis=a), (x,),
                          lambda x, a=axis: np.cumsum(x, axis=a), ulps=80)  # fmt: skip
    x = 1 + values((17, 40), ys.float32) / 20
    yield Program("running products", lambda x: ys.cumulative_prod(x, axis=1), (x,), lambda x: np.cumprod(x, axis=1),
                  ulps=80)  # fmt: skip


# Products, convolutions, windows

SIZES = [(1, 37, 65), (37, 1, 65), (33, 130, 1), (13, 33, 17), (64, 64, 64), (129, 65, 300), (29, 100, 1030)]


def _erf(x: Array) -> Array:
    made: Array = np.vectorize(erf, otypes=[np.float64])(x)
    return made


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + _erf(x / np.sqrt(2)))


def _products() -> Iterator[Program]:
    for dtype in (ys.float32, ys.float64):
        for n, (m, columns, k) in enumerate(SIZES):
            a, b = values((m, k), dtype), values((k, columns), dtype, 1)
            yield Program(f"{m} x {k} @ {k} x {columns} of {dtype.name}", ys.matmul, (a, b), np.matmul, ulps=k)
            a, b = (np.ascontiguousarray(x.T) if n % 2 == side else x for side, x in enumerate((a, b)))
            view = (lambda a, b: (a.T, b)) if n % 2 == 0 else (lambda a, b: (a, b.T))
            yield Program(f"transposed {m} x {k} x {columns} of {dtype.name}", lambda a, b, v=view: ys.matmul(*v(a, b)),
                          (a, b), lambda a, b, v=view: np.matmul(*v(a, b)), ulps=k)  # fmt: skip
        a, b = values((3, 21, 50), dtype), values((1, 50, 34), dtype, 1)
        yield Program(f"a stack of {dtype.name}", ys.matmul, (a, b), np.matmul, ulps=50)
        a, b = values((40, 64), dtype), values((64,), dtype, 1)
        yield Program(f"a matrix and a vector of {dtype.name}", ys.matmul, (a, b), np.matmul, ulps=64)
        a, b = values((5, 13, 70), dtype), values((70, 31, 5), dtype, 1)
        yield Program(f"an einsum of {dtype.name}", lambda a, b: ys.einsum("bij,jkb->kbi", a, b), (a, b),
                      lambda a, b: np.einsum("bij,jkb->kbi", a, b), ulps=70)  # fmt: skip
    x, w, b, r = (values(s, ys.float32, n) for n, s in enumerate([(37, 90), (90, 51), (51,), (37, 51)]))
    yield Program("constant weights", lambda x: x @ ys.asarray(w) + ys.asarray(b), (x,),
                  lambda x: x @ w.astype(np.float64) + b, ulps=90)  # fmt: skip
    for way in (GENERATED, GENERATED_APART):
        yield Program(f"relu(x @ w + b + r), {way}", lambda x, w, b, r: ys.nn.relu(x @ w + b + r), (x, w, b, r),
                      lambda x, w, b, r: np.maximum(x @ w + b + r, 0), ulps=90, way=way)  # fmt: skip
        yield Program(f"gelu(x) @ w + b, {way}", lambda x, w, b: ys.nn.gelu(x) @ w + b, (x, w, b),
                      lambda x, w, b: _gelu(x) @ w + b, ulps=90, way=way)  # fmt: skip


_PLAIN: dict[str, Any] = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "spread": (1, 1)}
CONVOLVED: dict[str, Any] = {
    "columns": ((2, 12, 19, 23), ((3, 3), {"stride": (2, 2), "padding": ((1, 0), (1, 1))})),
    "products": ((9, 4, 17, 20), ((15, 17), {"padding": ((0, 1), (0, 0))})),
    "filtered": ((9, 4, 17, 20), ((15, 18), {})),
    "remainders": ((2, 12, 11, 9), ((4, 3), {"spread": (2, 2), "padding": ((2, 1), (1, 1))})),
}
"""The variants of convolutions that need certain windows: shapes, and windows that they are for."""


def _convolutions() -> Iterator[Program]:
    dense = Windows((3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), (1, 1))
    sparse = Windows((5, 3), (2, 1), ((2, 2), (0, 0)), (1, 2), (1, 1))
    for dtype in (ys.float32, ys.float64):
        x, w = values((2, 12, 19, 23), dtype), values((14, 12, 3, 3), dtype, 1)
        for way in (GENERATED, WINOGRAD):
            yield Program(f"conv2d of {dtype.name}, {way}", lambda x, w: ys.nn.conv2d(x, w, padding=1), (x, w),
                          lambda x, w: convolved(x, w, dense, 1), ulps=108, way=way)  # fmt: skip
        for way, (shape, (kernel, more)) in CONVOLVED.items():
            w = values((14, shape[1], *kernel), dtype, 1)
            of = Windows(kernel, **(_PLAIN | more))
            yield Program(f"a convolution of {dtype.name}, {way}",
                          lambda x, w, more=more: REGISTRY["conv"](x, w, **(_PLAIN | more)),
                          (values(shape, dtype), w), lambda x, w, of=of: convolved(x, w, of, 1),
                          ulps=2 * np.prod(w.shape[1:]), way=way)  # fmt: skip
        w = values((6, 4, 5, 3), dtype, 1)
        yield Program(f"grouped conv2d of {dtype.name}",
                      lambda x, w: ys.nn.conv2d(x, w, stride=(2, 1), padding=(2, 0), dilation=(1, 2), groups=3), (x, w),
                      lambda x, w: convolved(x, w, sparse, 3), ulps=108)  # fmt: skip
        yield Program(f"max_pool2d of {dtype.name}", lambda x: ys.nn.max_pool2d(ys.abs(x) + x, 3, stride=2), (x,),
                      lambda x: np.max(_windows(abs(x) + x, 3, 2), axis=(-2, -1)))  # fmt: skip
        x = values((2, 12, 60, 60), dtype)
        yield Program(f"avg_pool2d of {dtype.name}", lambda x: ys.nn.avg_pool2d(x * x, 2), (x,),
                      lambda x: np.mean(_windows(x * x, 2, 2), axis=(-2, -1)))  # fmt: skip


def _windows(x: Array, size: int, step: int) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3))[:, :, ::step, ::step]


def _attention(q: Array, k: Array, v: Array, *, causal: bool) -> Array:
    scores = q @ k.mT / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    made: Array = _softmax(scores) @ v
    return made


def _attentions() -> Iterator[Program]:
    for dtype in (ys.float32, ys.float64):
        q, k, v = (values((2, 3, n, 32), dtype, n) for n in (33, 41, 41))
        yield Program(f"attention of {dtype.name}", ys.nn.scaled_dot_product_attention, (q, k, v),
                      lambda q, k, v: _attention(q, k, v, causal=False), ulps=64)  # fmt: skip
        yield Program(f"causal attention of {dtype.name}",
                      lambda q, k, v: ys.nn.scaled_dot_product_attention(q, k, v, is_causal=True), (q, k, v),
                      lambda q, k, v: _attention(q, k, v, causal=True), ulps=64)  # fmt: skip


PROGRAMS: dict[str, Callable[[], Iterator[Program]]] = {
    "loops": _loops, "reductions": _reductions, "rows": _rows, "running totals": _totals, "products": _products,
    "convolutions": _convolutions, "attention": _attentions,
}  # fmt: skip
"""The kinds of programs."""
