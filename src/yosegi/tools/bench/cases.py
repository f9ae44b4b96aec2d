"""The measured cases, each with random inputs, its arithmetic and its traffic.

A case is written once, against a table of functions that every contender fills in (`Functions`), so that all compute
the same thing. Its result is checked against the same program in float64 before anything is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import pi, sqrt
from typing import Any, Final, Protocol

import numpy as np

from ..._tensor.dtype import DType, bfloat16, float16, float32, float64

SMALL_SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
LARGE_SIZES: Final = (10_000_000, 100_000_000)
SQUARES: Final = (64, 128, 256, 512, 1024)
LARGE_SQUARES: Final = (2048, 4096)
TURNED_SQUARES: Final = (256, 1024)
STACKED_SQUARES: Final = (64, 256)
STACK: Final = 16
PATTERN_SQUARES: Final = (128, 256, 512, 1024)
ROWS: Final = ((128, 128), (4096, 1024))
CHAIN_OPS: Final = 10


class Functions(Protocol):
    """The functions that the cases need beyond Python's operators. Reductions keep their axis, with length 1."""

    def exp(self, x: Any, /) -> Any: ...
    def log(self, x: Any, /) -> Any: ...
    def tanh(self, x: Any, /) -> Any: ...
    def sqrt(self, x: Any, /) -> Any: ...
    def relu(self, x: Any, /) -> Any: ...
    def matmul(self, a: Any, b: Any, /) -> Any: ...
    def transpose(self, x: Any, /) -> Any: ...
    def sum(self, x: Any, axis: int | None, /) -> Any: ...
    def max(self, x: Any, axis: int, /) -> Any: ...
    def mean(self, x: Any, axis: int, /) -> Any: ...
    def convert(self, x: Any, dtype: str, /) -> Any: ...
    def conv(self, x: Any, w: Any, stride: int, padding: int, groups: int, /) -> Any: ...


Program = Callable[..., Any]
"""The case on a contender's functions and arrays: its inputs, then its weights."""


@dataclass(frozen=True, slots=True)
class Case:
    """A call to measure."""

    suite: str
    name: str
    size: int
    """Elements, or the side of a square matrix."""
    dtype: DType
    program: Program
    inputs: Callable[[np.random.Generator], tuple[Any, ...]]
    flops: float
    nbytes: int
    """The bytes that must be read and written at least."""
    tolerance: float
    """The largest error, over the largest value, that is not wrong."""
    multiplies: bool = False
    """True if a library of products with threads of its own takes part."""
    weights: Callable[[], tuple[Any, ...]] = tuple
    """Arrays that are the same in every call, as a model's are: a compiler may prepare them."""

    @property
    def id(self) -> str:
        """How it is called, and what `--filter` looks at."""
        return f"{self.suite}/{self.name}/{self.dtype.name}/{self.size}"


def cases(*, large: bool = False) -> Iterator[Case]:
    """Every case, smallest first within a suite."""
    sizes = SMALL_SIZES + (LARGE_SIZES if large else ())
    for n in SQUARES + (LARGE_SQUARES if large else ()):
        yield _product("matmul", n, float32)
    for n in TURNED_SQUARES:
        yield _product("matmul", n, float32, "x@w.T", lambda f, a, b: f.matmul(a, f.transpose(b)))
    for n in STACKED_SQUARES:
        yield _product("matmul", n, float32, f"stack of {STACK}", stack=STACK)
    for name, (program, arrays, flops) in ELEMENTWISE.items():
        for n in sizes:
            yield _elementwise("elementwise", name, program, arrays, flops, n, float32)
    for n in sizes:
        yield _sum("reduction", n, float32)
    for rows, columns in ROWS:
        yield _rows("softmax", softmax, rows, columns, "m", 5)
        yield _rows("layer norm", layer_norm, rows, columns, "mvv", 8)
    for name, layer in LAYERS.items():
        for batch in layer.batches:
            yield _convolution(name, layer, batch)
    for name, (pattern, kinds) in PATTERNS.items():
        for n in PATTERN_SQUARES:
            yield _pattern(name, pattern, kinds, n)
    for n in sizes:
        for direction in ("upload", "download"):
            yield _transfer(direction, n)
    yield from _precisions()
    yield _overhead()
    for n in SMALL_SIZES[2:]:
        yield _elementwise("memory", "chain", chain, 2, CHAIN_OPS, n, float32)


# Programs


def gelu(f: Functions, z: Any) -> Any:
    """The approximation of gelu by tanh."""
    return 0.5 * z * (1.0 + f.tanh(sqrt(2 / pi) * (z + 0.044715 * z * z * z)))


def chain(f: Functions, x: Any, y: Any) -> Any:
    """Ten elementwise ops."""
    a = (x + y) * x
    b = (a - y) * a
    c = (f.exp(b) + x) * y
    return f.tanh(c - x) + y


def softmax(f: Functions, x: Any) -> Any:
    """Along rows."""
    e = f.exp(x - f.max(x, -1))
    return e / f.sum(e, -1)


def layer_norm(f: Functions, x: Any, weight: Any, bias: Any) -> Any:
    """Along rows."""
    centred = x - f.mean(x, -1)
    return centred / f.sqrt(f.mean(centred * centred, -1) + 1e-5) * weight + bias


def _linear_residual_relu(f: Functions, x: Any, w: Any, b: Any, r: Any) -> Any:
    return f.relu(f.matmul(x, w) + b + r)


def _gelu_linear(f: Functions, x: Any, w: Any, b: Any) -> Any:
    return f.matmul(gelu(f, x), w) + b


def _linear_batchnorm_relu(f: Functions, x: Any, w: Any, b: Any, mean: Any, scale: Any, shift: Any) -> Any:
    return f.relu((f.matmul(x, w) + b - mean) * scale + shift)


def _dropout_linear(f: Functions, x: Any, w: Any, b: Any, keep: Any) -> Any:
    return f.matmul(x * keep * 1.25, w) + b


def _layernorm_linear(f: Functions, x: Any, w: Any, b: Any, weight: Any, bias: Any) -> Any:
    return f.matmul(layer_norm(f, x, weight, bias), w) + b


def _softmax_cross_entropy(f: Functions, x: Any, labels: Any) -> Any:
    shifted = x - f.max(x, -1)
    return f.log(f.sum(f.exp(shifted), -1)) - f.sum(shifted * labels, -1)


def _attention_scores(f: Functions, q: Any, k: Any) -> Any:
    return softmax(f, f.matmul(q, f.transpose(k)) * 0.125)


ELEMENTWISE: Final[dict[str, tuple[Program, int, int]]] = {
    "add": (lambda f, x, y: x + y, 2, 1),
    "multiply": (lambda f, x, y: x * y, 2, 1),
    "relu": (lambda f, x: f.relu(x), 1, 1),
    "gelu": (gelu, 1, 9),
    "gelu(x*w+b)": (lambda f, x, w, b: gelu(f, x * w + b), 3, 11),
}
"""Program, number of inputs, operations per element (a function counts as one)."""

PATTERNS: Final[dict[str, tuple[Program, str]]] = {
    "linear+residual+relu": (_linear_residual_relu, "mmvm"),
    "gelu+linear": (_gelu_linear, "mmv"),
    "linear+batchnorm+relu": (_linear_batchnorm_relu, "mmvvvv"),
    "dropout+linear": (_dropout_linear, "mmvk"),
    "layernorm+linear": (_layernorm_linear, "mmvvv"),
    "softmax+cross-entropy": (_softmax_cross_entropy, "ml"),
    "attention scores": (_attention_scores, "mm"),
}
"""Program, and what its inputs are: a matrix, a vector, a mask to keep values by, or labels, one hot per row."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convolution of square images by square kernels, padded so that a stride of 1 keeps the size."""

    channels: int
    outputs: int
    side: int
    kernel: int
    stride: int = 1
    groups: int = 1
    batches: tuple[int, ...] = (1,)


LAYERS: Final = {
    "conv2d 3x3": Layer(64, 64, 56, 3, batches=(1, 8)),
    "conv2d 3x3 depthwise": Layer(64, 64, 56, 3, groups=64),
    "conv2d 7x7 stride 2": Layer(3, 64, 224, 7, stride=2),
}
"""The body of a residual network, that of a mobile one, and the first layer of either."""


# Inputs


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Any:
    return rng.standard_normal(shape, np.float32).astype(dtype.numpy)


def _pattern_inputs(kinds: str, n: int, rng: np.random.Generator, rows: int | None = None) -> tuple[Any, ...]:
    made: dict[str, Callable[[], Any]] = {
        "m": lambda: _normal(rng, (rows or n, n), float32),
        "v": lambda: rng.uniform(0.5, 1.5, n).astype(np.float32),
        "k": lambda: (rng.random((n, n)) < 0.8).astype(np.float32),
        "l": lambda: np.eye(n, dtype=np.float32)[rng.integers(n, size=n)],
    }
    return tuple(made[kind]() for kind in kinds)


# Cases


def _eps(dtype: DType) -> float:
    return 2.0**-7 if dtype is bfloat16 else float(np.finfo(dtype.numpy).eps)


def _tolerance(dtype: DType, terms: float) -> float:
    """The tolerance of a result that is rounded once and summed over `terms` terms. Nothing is summed in 16 bits."""
    accumulated = _eps(float32) if dtype.is_half else _eps(dtype)
    return 2 * _eps(dtype) + accumulated * terms


def _product(
    suite: str, n: int, dtype: DType, name: str = "matmul", program: Program = lambda f, a, b: f.matmul(a, b),
    stack: int = 1,
) -> Case:  # fmt: skip
    shape = (stack, n, n) if stack > 1 else (n, n)
    return Case(
        suite, name, n, dtype, program, lambda rng: (_normal(rng, shape, dtype), _normal(rng, shape, dtype)),
        2.0 * stack * n**3, 3 * stack * n * n * dtype.itemsize, _tolerance(dtype, sqrt(n)), multiplies=True,
    )  # fmt: skip


def _elementwise(suite: str, name: str, program: Program, arrays: int, ops: int, n: int, dtype: DType) -> Case:
    return Case(
        suite, name, n, dtype, program, lambda rng: tuple(_normal(rng, (n,), dtype) for _ in range(arrays)),
        float(ops * n), (arrays + 1) * n * dtype.itemsize, 16 * _eps(dtype),
    )  # fmt: skip


def _sum(suite: str, n: int, dtype: DType) -> Case:
    # Of values that do not cancel: the sum is as large as its terms are. One after the other is not wrong, only poor.
    return Case(
        suite, "sum", n, dtype, lambda f, x: f.sum(x, None),
        lambda rng: (rng.random(n, np.float32).astype(dtype.numpy),),
        float(n), n * dtype.itemsize, _tolerance(dtype, max(16, sqrt(n) / 4)),
    )  # fmt: skip


def _convolution(name: str, layer: Layer, batch: int) -> Case:
    side, padding = layer.side, layer.kernel // 2
    kernel = (layer.outputs, layer.channels // layer.groups, layer.kernel, layer.kernel)
    read = batch * layer.channels * side * side
    made = batch * layer.outputs * (side // layer.stride) ** 2
    terms = kernel[1] * layer.kernel**2
    return Case(
        "convolution", name, read, float32, lambda f, x, w: f.conv(x, w, layer.stride, padding, layer.groups),
        lambda rng: (_normal(rng, (batch, layer.channels, side, side), float32),), 2.0 * made * terms,
        4 * (read + made + layer.outputs * terms), _tolerance(float32, sqrt(terms)), multiplies=True,
        weights=lambda: (_normal(np.random.default_rng(layer.kernel), kernel, float32),),
    )  # fmt: skip


def _rows(name: str, program: Program, rows: int, columns: int, kinds: str, ops: int) -> Case:
    elements = rows * columns
    return Case(
        "reduction", name, elements, float32, program, lambda rng: _pattern_inputs(kinds, columns, rng, rows),
        float(ops * elements), 2 * 4 * elements, 1e-6 * sqrt(columns),
    )  # fmt: skip


def _pattern(name: str, program: Program, kinds: str, n: int) -> Case:
    products = 0 if name.startswith("softmax") else 1
    matrices = sum(kind in "mkl" for kind in kinds)
    return Case(
        "patterns", name, n, float32, program, partial(_pattern_inputs, kinds, n),
        2.0 * products * n**3 + 8.0 * n * n, (matrices + 1) * n * n * 4, 1e-6 * sqrt(n), multiplies=products > 0,
    )  # fmt: skip


def _convert(n: int, source: DType, target: DType) -> Case:
    return Case(
        "conversion", f"to {target.name}", n, source, lambda f, x: f.convert(x, target.name),
        lambda rng: (_normal(rng, (n,), source),), 0.0, n * (source.itemsize + target.itemsize), 2 * _eps(target),
    )  # fmt: skip


def _transfer(direction: str, n: int) -> Case:
    # To everyone but a device with memory of its own this is a copy.
    return Case(
        "transfer", direction, n, float32, lambda f, x: f.convert(x, "float32"),
        lambda rng: (_normal(rng, (n,), float32),), 0.0, 2 * 4 * n, 0.0,
    )  # fmt: skip


def _precisions() -> Iterator[Case]:
    for n in (10_000, 1_000_000):
        for half in (float16, bfloat16):
            yield _convert(n, float32, half)
            yield _convert(n, half, float32)
    for dtype in (float64, float32, float16, bfloat16):
        yield _product("precision", 256, dtype)
        yield _elementwise("precision", "gelu", gelu, 1, 9, 100_000, dtype)
        yield _sum("precision", 100_000, dtype)


def _overhead() -> Case:
    n = 16  # so little that what is timed is the way through the library
    return Case(
        "overhead", f"{CHAIN_OPS} ops", n, float32, chain,
        lambda rng: tuple(rng.uniform(-1, 1, n).astype(np.float32) for _ in range(2)), float(CHAIN_OPS * n), 0, 1e-5,
    )  # fmt: skip
