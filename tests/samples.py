"""Inputs for every op: one table that the gradient tests and the device tests run over.

An op declared without a row here fails `test_every_op_has_a_sample`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import yosegi as ys
from yosegi._tensor.op import REGISTRY, OpKind
from yosegi.ops.windows import Windows

RNG = np.random.default_rng(7)


@dataclass(frozen=True)
class Sample:
    """Arrays and attributes to call an op with."""

    arrays: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    real_only: bool = False


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


def between(low: float, high: float, *shape: int) -> Any:
    return RNG.uniform(low, high, size=shape)


def as_complex(array: Any) -> Any:
    return array + 1j * 0.5 * RNG.normal(size=array.shape)


def definite(n: int) -> Any:
    a = normal(2, n, n)
    return a @ a.mT + n * np.eye(n)


def symmetric(n: int) -> Any:
    a = normal(2, n, n)
    return a + a.mT


def s(*arrays: Any, real_only: bool = False, **attrs: Any) -> Sample:
    return Sample(arrays, attrs, real_only)


X, ROW = normal(3, 4), normal(4)
POSITIVE, UNIT, ABOVE_ONE = between(0.5, 2, 3, 4), between(-0.8, 0.8, 3, 4), between(1.2, 3, 3, 4)
INTEGERS = RNG.integers(1, 20, (3, 4))
BOOLS = RNG.integers(0, 2, (3, 4)).astype(bool)
PERMUTED = RNG.permutation(24).reshape(2, 3, 4) / 7.0  # no ties

UNARY_OF = {
    "X": ["negative", "positive", "abs", "sign", "square", "exp", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh",
          "tanh", "asinh", "floor", "ceil", "trunc", "round", "isnan", "isinf", "isfinite", "signbit", "variable",
          "relu", "erf", "sigmoid", "silu"],
    "POSITIVE": ["reciprocal", "sqrt", "log", "log1p", "log2", "log10"],
    "UNIT": ["asin", "acos", "atanh"],
    "ABOVE_ONE": ["acosh"],
    "BOOLS": ["logical_not"],
    "INTEGERS": ["bitwise_invert"],
}  # fmt: skip
BINARY_OF = {
    "X": ["add", "subtract", "multiply", "maximum", "minimum", "hypot", "copysign", "nextafter", "logaddexp", "atan2",
          "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"],
    "POSITIVE": ["divide", "floor_divide", "remainder", "pow"],
    "BOOLS": ["logical_and", "logical_or", "logical_xor"],
    "INTEGERS": ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"],
}  # fmt: skip
REAL_ONLY = {
    "maximum", "minimum", "hypot", "copysign", "nextafter", "logaddexp", "atan2", "less", "less_equal", "greater",
    "greater_equal", "floor_divide", "remainder", "floor", "ceil", "trunc", "signbit", "relu", "erf", "sigmoid", "silu",
}  # fmt: skip
FIRST = {"X": X, "POSITIVE": POSITIVE, "UNIT": UNIT, "ABOVE_ONE": ABOVE_ONE, "BOOLS": BOOLS, "INTEGERS": INTEGERS}
SECOND = {"X": ROW, "POSITIVE": between(0.5, 2, 4), "BOOLS": BOOLS[:1], "INTEGERS": INTEGERS[0] % 5}

SAMPLES: dict[str, list[Sample]] = {
    name: [s(FIRST[group], real_only=name in REAL_ONLY)] for group, names in UNARY_OF.items() for name in names
}
SAMPLES |= {
    name: [s(FIRST[group], SECOND[group], real_only=name in REAL_ONLY)]
    for group, names in BINARY_OF.items()
    for name in names
}
SAMPLES |= {
    "convert": [s(X, dtype=ys.float64, real_only=True), s(as_complex(X), dtype=ys.complex128, real_only=True)],
    "real_part": [s(as_complex(X), real_only=True)],
    "imag_part": [s(as_complex(X), real_only=True)],
    "conjugate": [s(as_complex(X), real_only=True)],
    "where": [s(BOOLS, X, ROW)],
    "barrier": [s(X, np.asarray(0.5), real_only=True)],
    "reshape": [s(X, shape=(2, -1))],
    "permute_dims": [s(PERMUTED, axes=(2, 0, 1))],
    "broadcast_to": [s(ROW, shape=(2, 3, 4)), s(normal(3, 1), shape=(3, 4))],
    "flip": [s(X), s(X, axis=0)],
    "concatenate": [s(X, normal(2, 4), axis=0), s(X, normal(3, 1), X, axis=-1)],
    "rolled": [s(X, shift=(1, -2), axis=(0, 1))],
    "tril": [s(PERMUTED, k=-1)],
    "triu": [s(PERMUTED, k=1)],
    "count": [s(start=2, stop=20, step=3, dtype=ys.int64), s(start=0.5, stop=-2, step=-0.25, dtype=ys.float64)],
    "spaced": [s(start=-1.0, stop=2.0, num=7, dtype=ys.float64, endpoint=False)],
    "diagonal_ones": [s(n_rows=3, n_cols=4, k=1, dtype=ys.float64)],
    "sum": [s(PERMUTED), s(PERMUTED, axis=(0, -1), keepdims=True), s(PERMUTED, axis=1)],
    "prod": [s(PERMUTED), s(PERMUTED, axis=(0, -1)), s(np.where(X > 0.5, 0, X), axis=1, keepdims=True)],
    "max": [s(PERMUTED, axis=1, real_only=True), s(PERMUTED, real_only=True)],
    "min": [s(PERMUTED, axis=(0, 2), keepdims=True, real_only=True)],
    "all": [s(BOOLS, axis=0)],
    "any": [s(BOOLS, axis=1, keepdims=True)],
    "mean": [s(PERMUTED), s(PERMUTED, axis=(0, 1), keepdims=True)],
    "var": [s(PERMUTED, axis=1, correction=1.0)],
    "std": [s(PERMUTED, axis=(0, 2), keepdims=True)],
    "cumulative_sum": [s(PERMUTED, axis=1), s(ROW, include_initial=True)],
    "cumulative_prod": [s(PERMUTED, axis=2), s(np.where(X > 0.3, 0, X), axis=1, include_initial=True)],
    "matmul": [s(X, normal(4, 2)), s(normal(5, 1, 2, 3), normal(4, 3, 2)), s(ROW, normal(4, 2)), s(X, ROW),
               s(ROW, normal(4))],
    "einsum": [s(X, normal(4, 2), subscripts="ij,jk->ki"), s(normal(3, 3, 4), subscripts="iij->j")],
    "diagonal": [s(PERMUTED, offset=1)],
    "on_diagonal": [s(normal(2, 3), shape=(3, 3), offset=0)],
    "inv": [s(definite(3))],
    "solve": [s(definite(3), normal(3)), s(definite(3), normal(2, 3, 4))],
    "det": [s(normal(2, 3, 3))],
    "cofactors": [s(normal(2, 3, 3))],
    "slogdet": [s(definite(3))],
    "cholesky": [s(definite(3)), s(definite(3), upper=True)],
    "qr": [s(normal(4, 3), mode="reduced")],
    "svd": [s(normal(4, 3), full_matrices=False)],
    "svdvals": [s(normal(3, 4))],
    "pinv": [s(normal(4, 3), np.asarray(1e-12))],
    "eigh": [s(symmetric(3))],
    "eigvalsh": [s(symmetric(3))],
    "eig": [s(definite(3))],
    "eigvals": [s(definite(3))],
    "complex_transform": [s(as_complex(X), axes=(0, 1), inverse=True, norm="ortho", real_only=True)],
    "half_spectrum": [s(X, axis=1, norm="backward", real_only=True)],
    "from_half_spectrum": [s(as_complex(normal(3, 4)), n=6, axis=1, norm="forward", real_only=True)],
    "random_words": [s(np.array([1, 2, 3, 4], np.uint32), shape=(3, 7)), s(np.zeros(4, np.uint32), shape=())],
    "philox": [s(np.array([1, 2, 3, 4], np.uint32), shape=(3, 4), words=4)],
    "sort": [s(PERMUTED, axis=1, real_only=True), s(PERMUTED, axis=-1, descending=True, real_only=True)],
    "argsort": [s(PERMUTED, axis=1, descending=True)],
    "argtopk": [s(PERMUTED, k=3, axis=1, descending=True)],
    "argmax": [s(PERMUTED), s(PERMUTED, axis=1, keepdims=True)],
    "argmin": [s(PERMUTED, axis=-1)],
    "searchsorted": [s(np.arange(5.0), X, side="right")],
    "isin": [s(INTEGERS, INTEGERS[0], invert=True)],
}  # fmt: skip

W, B = normal(2, 4), normal(2)
BATCH, FEATURES = normal(2, 4, 3), between(0.5, 2, 4)
LABELS = RNG.integers(0, 4, (3,))
STATE = np.array([1, 2, 3, 4], np.uint32)
IMAGE = RNG.permutation(2 * 4 * 7 * 6).reshape(2, 4, 7, 6) / 50.0  # no ties
POOL = {"kernel_size": (3, 3), "stride": (2, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)}
NEARLY_LARGEST = REGISTRY["max_pool"].body(IMAGE, **POOL) - 0.01  # a small step changes no element's rank
SLIDE = Windows((3, 2), (2, 1), ((1, 0), (1, 1)), (1, 2), (1, 1))

SAMPLES |= {
    "gelu": [s(X, real_only=True), s(X, approximate="tanh", real_only=True)],
    "softplus": [s(X, real_only=True), s(X, beta=2.0, real_only=True)],
    "leaky_relu": [s(X, negative_slope=0.2, real_only=True)],
    "elu": [s(X, alpha=1.5, real_only=True)],
    "softmax": [s(X, real_only=True), s(PERMUTED, axis=1, real_only=True)],
    "log_softmax": [s(X, real_only=True), s(PERMUTED, axis=0, real_only=True)],
    "layer_norm": [s(X, ROW, normal(4), real_only=True), s(X, ROW, real_only=True), s(BATCH, real_only=True),
                   s(BATCH, normal(2, 4), axis=(0, 1), real_only=True)],
    "rms_norm": [s(X, ROW, real_only=True), s(BATCH, axis=(1, 2), real_only=True)],
    "group_norm": [s(BATCH, num_groups=2, real_only=True)],
    "batch_norm": [s(BATCH, normal(4), FEATURES, normal(4), normal(4), real_only=True),
                   s(X, normal(4), FEATURES, axis=-1, eps=0.1, real_only=True)],
    "linear": [s(X, W, B), s(BATCH.mT, W), s(ROW, W, B)],
    "dropout": [s(STATE, X, rate=0.3, real_only=True)],
    "dropout_linear": [s(STATE, X, W, B, rate=0.3, real_only=True)],
    "linear_residual_relu": [s(X, W, normal(3, 2), B, real_only=True)],
    "gelu_linear": [s(X, W, B, real_only=True), s(X, W, approximate="tanh", real_only=True)],
    "linear_batch_norm_relu": [s(X, W, normal(2), between(0.5, 2, 2), B, normal(2), normal(2), real_only=True)],
    "layer_norm_linear": [s(X, W, B, ROW, normal(4), real_only=True), s(BATCH.mT, W, real_only=True)],
    "attention_scores": [s(normal(2, 3, 4), normal(2, 5, 4), real_only=True),
                         s(X, normal(5, 4), normal(3, 5) > -0.5, real_only=True), s(X, X, normal(3, 3), real_only=True),
                         s(X, normal(4, 4), is_causal=True, scale=0.3, real_only=True)],
    "scaled_dot_product_attention": [s(normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 3), real_only=True),
                                     s(X, X, normal(3, 2), is_causal=True, real_only=True)],
    "attention_gradient": [
        s(normal(2, 3, 4), normal(2, 5, 4), normal(2, 5, 3), normal(2, 3, 3), normal(2, 3, 3), real_only=True),
        s(X, normal(5, 4), normal(5, 2), normal(3, 2), normal(3, 2), normal(3, 5) > -0.5, real_only=True),
        s(X, X, X, X, X, is_causal=True, scale=0.3, real_only=True)],
    "cross_entropy": [s(X, LABELS, axis=-1, reduction="mean", ignore_index=-100, label_smoothing=0.1, real_only=True),
                      s(BATCH, RNG.integers(0, 4, (2, 3)), axis=1, reduction="none", ignore_index=2,
                        label_smoothing=0.0, real_only=True)],
    "mse_loss": [s(X, ROW, real_only=True), s(X, ROW, reduction="sum", real_only=True)],
    "conv": [s(IMAGE, normal(6, 2, 3, 2), stride=(2, 1), padding=((1, 0), (2, 1)), dilation=(1, 2), groups=2),
             s(normal(2, 3, 8), normal(4, 3, 3), padding="same"), s(normal(1, 2, 4, 4, 3), normal(2, 2, 2, 2, 2)),
             s(normal(2, 3, 5), normal(4, 3, 3), stride=2, spread=3, padding=1),
             s(normal(2, 3, 5), normal(4, 3, 3), spread=2, padding=((1, -1),))],
    "conv_transpose": [s(normal(2, 4, 3, 4), normal(4, 3, 2, 3), stride=2, padding=(0, 1), output_padding=(1, 0),
                         dilation=1, groups=2)],
    "max_pool": [s(IMAGE, kernel_size=3, stride=(2, 1), padding=1, dilation=1, real_only=True),
                 s(IMAGE, kernel_size=2, stride=None, padding=0, dilation=2, real_only=True)],
    "max_pool_gradient": [s(IMAGE, NEARLY_LARGEST, normal(2, 4, 4, 6), **POOL, real_only=True)],
    "avg_pool": [s(IMAGE, kernel_size=(3, 2), stride=2, padding=1, count_include_pad=True),
                 s(IMAGE, kernel_size=3, stride=None, padding=1, count_include_pad=False)],
    "windowed": [s(IMAGE, windows=SLIDE, lowest=False)],
    "overlapped": [s(normal(2, 4, 3, 6, 3, 2), lengths=(7, 6), windows=SLIDE)],
}  # fmt: skip

BUILT_BY_INDEXING = {
    "slice_view": lambda x: x[1:, None, ::-2],
    "slice_set": lambda x: _written(x, (slice(1, None), 2)),
    "gather": lambda x: x[[0, 2, 0], [1, 3, 1]],
    "scatter": lambda x: _written(x, ([0, 2], [1, 3])),
    "scatter_add": lambda x: ys.grad(lambda v: ys.sum(ys.real(v[[0, 2, 0]] ** 3)))(x),
}
"""Ops whose attributes are internal: reached through the expressions that make them."""

NOT_CALLED = {
    "leaf", "constant", "embedded", "pick", "fitted", "replayed", "stopped", "recomputed", "custom", "scan", "cond",
    "while_loop",
}  # fmt: skip
"""Leaves, constants and outputs are made, not called; fitted and replayed are jit's, tested there; the others are those
of `stop_gradient`, `checkpoint`, `custom_vjp` and control flow, tested in `trace`."""


def _written(x: Any, key: Any) -> Any:
    copy = x + 0.0
    copy[key] = 2.5 * x[0, 0]
    return copy


def calls() -> list[tuple[str, int]]:
    """Every (op, number of its sample)."""
    return [(name, n) for name, samples in SAMPLES.items() for n in range(len(samples))]


def missing() -> set[str]:
    """Ops that no sample reaches. Those of several ranks are tested in `distributed`."""
    own = {name for name, op in REGISTRY.items() if op.kind is not OpKind.DISTRIBUTED}
    return own - SAMPLES.keys() - BUILT_BY_INDEXING.keys() - NOT_CALLED
