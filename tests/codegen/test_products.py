"""Products and the patterns around them, as CUDA C and as MSL, built for the host: against float64, on odd shapes."""

from __future__ import annotations

from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cuda_code
import emulation
import yosegi as ys
from kernel_code import TARGET, computed, product_by
from values import Array
from yosegi._graph.expand import expand
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi.codegen.c.fused_kernels import PartialSums, in_parts_of_sum, rendered

pytestmark = pytest.mark.skipif(emulation.COMPILER is None, reason="there is no g++")
RNG = np.random.default_rng(5)
VARIANTS = ["naive", "16", "32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("products")


def normal(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype.numpy)


def wide(*arrays: Array) -> list[Array]:
    return [a.astype(np.float64) for a in arrays]


def close(got: Array, expected: Array, roundings: float = 8) -> None:
    """Within so many roundings of the largest value."""
    eps = float(ys.finfo(ys.asarray(got).dtype).eps)
    assert got.shape == expected.shape
    error = np.abs(got.astype(np.float64) - expected)
    assert np.all(error <= roundings * eps * np.abs(expected).max()), (
        f"off by {error.max()} of {np.abs(expected).max()}"
    )


SHAPES = [(1, 1, 1), (7, 7, 7), (127, 129, 1), (129, 127, 128), (1000, 3, 513)]


@pytest.mark.parametrize(("language", "dtype"), [("cuda", ys.float32), ("msl", ys.float16), ("msl", ys.bfloat16)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_products_of_any_shape(language: str, dtype: Any, variant: str, folder: Path) -> None:
    for m, k, n in SHAPES:
        a, b = normal(dtype, m, k), normal(dtype, k, n)
        got = computed(ys.asarray(a) @ ys.asarray(b), language, product_by(variant), folder)
        close(got, np.matmul(*wide(a, b)), 2 if dtype.is_half else 32)


@pytest.mark.parametrize(("language", "dtype", "variant"), [
    *[("cuda", d, f"unit {n}") for d in (ys.float16, ys.bfloat16) for n in (32, 64, 128)],
    *[("cuda", ys.float32, f"tf32x3 {n}") for n in ("32", "64")],
    *[("msl", d, f"unit {n}") for d in (ys.float32, ys.float16, ys.bfloat16) for n in (32, 64)],
])  # fmt: skip
def test_products_on_a_matrix_unit(language: str, dtype: Any, variant: str, folder: Path) -> None:
    for m, k, n in [*SHAPES[:4], (70, 200, 72)]:
        a, b = normal(dtype, m, k), normal(dtype, k, n)
        got = computed(ys.asarray(a) @ ys.asarray(b), language, product_by(variant), folder)
        close(got, np.matmul(*wide(a, b)), 2 if dtype.is_half else 32)


@pytest.mark.parametrize(("down", "across"), [(1.0, 1.0), (1e-37, 1e30), (1e37, 1e-30), (1e-25, 1e-15)])
def test_parts_of_floats_are_as_exact_as_floats(down: float, across: float, folder: Path) -> None:
    a, b = normal(ys.float32, 70, 512) * np.float32(down), normal(ys.float32, 512, 68) * np.float32(across)
    exact, plain = np.matmul(*wide(a, b)), a @ b
    got = computed(ys.asarray(a) @ ys.asarray(b), "cuda", product_by("tf32x3 64"), folder)
    scale = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    least = np.finfo(np.float32).smallest_subnormal * 600
    assert np.all(np.abs(got - exact) <= 1e-7 * scale + least)
    assert np.linalg.norm(got - exact) <= 1.2 * np.linalg.norm(plain - exact) + least * got.size


@pytest.mark.parametrize("turned", [False, True])
def test_parts_of_floats_keep_what_is_not_finite(turned: bool, folder: Path) -> None:
    a, b = normal(ys.float32, 70, 40), normal(ys.float32, 40, 68)
    a[3, 7], a[5, 9], a[8, 1], b[20, 30], b[21, 31] = np.inf, -np.inf, np.nan, np.inf, 0
    a[40], b[:, 40] = 0, 0
    a[40, 21] = np.finfo(np.float32).max  # whose leading bits are rounded to infinity
    b[21, 40] = 0.5
    x, y = (ys.matrix_transpose(ys.asarray(m.T.copy())) if turned else ys.asarray(m) for m in (a, b))
    got = computed(x @ y, "cuda", product_by("tf32x3 64"), folder)
    with np.errstate(invalid="ignore", over="ignore"):
        expected = np.matmul(*wide(a, b)).astype(np.float32)
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-5)


def summed_in_parts(tensor: ys.Tensor, variant: str, parts: int, folder: Path) -> Array:
    """The parts' results of a product of two arrays, added up in float64."""
    key, leaves, _ = capture([tensor._node])
    graph = simplify(expand(graph_of(key), ()))
    cut = in_parts_of_sum(graph, parts, of_halves=True)
    assert cut is not None
    first = cut[0]
    assert isinstance(first, PartialSums)
    made = rendered(graph, first, cuda_code.HOSTED, TARGET, variant)
    given = {e: node.buffer.data for e, node in zip(graph.inputs, leaves, strict=True) if node.buffer is not None}
    arrays = [
        emulation.padded(a) for a in (*[given[e] for e in made.inputs.entries if e in given], *made.inputs.constants)
    ]
    result = emulation.padded(np.full(first.spec.shape, np.nan, np.float32))
    cuda_code.run(made.kernel, arrays, [result], folder)
    return np.asarray(result.sum(0, dtype=np.float64))


@pytest.mark.parametrize(("dtype", "variant"), [
    (ys.float32, "tf32x3 32"), (ys.float32, "tf32x3 64"), (ys.float16, "unit 32"), (ys.bfloat16, "unit 64"),
])  # fmt: skip
def test_sums_in_parts(dtype: Any, variant: str, folder: Path) -> None:
    for depth, parts in ((500, 3), (131, 2), (40, 4)):  # the last parts have less to sum, or nothing
        a, b = normal(dtype, depth, 70), normal(dtype, depth, 72)
        x, y = (ys.asarray(v).astype(ys.float32) for v in (a, b))
        got = summed_in_parts(ys.einsum("km,kn->mn", x, y), variant, parts, folder)
        exact = a.astype(np.float64).T @ b.astype(np.float64)
        assert np.abs(got - exact).max() <= 4e-7 * np.abs(exact).max()


def test_sums_of_16_bit_windows_in_parts(folder: Path) -> None:
    """A convolution of float32 numbers that are converted from 16 bits, multiplied as 16-bit numbers."""
    image, kernel = normal(ys.float16, 2, 16, 12, 13), normal(ys.float16, 24, 16, 3, 3)
    x, w = (ys.asarray(v).astype(ys.float32) for v in (image, kernel))
    exact = ys.nn.conv2d(ys.asarray(image.astype(np.float64)), ys.asarray(kernel.astype(np.float64)), padding=1).numpy()
    for variant in ("unit 32", "unit 64"):
        got = summed_in_parts(ys.nn.conv2d(x, w, padding=1), variant, 2, folder)
        assert np.abs(got - exact).max() <= 4e-7 * np.abs(exact).max()


@pytest.mark.parametrize("variant", ["64", "128"])
def test_larger_tiles(variant: str, folder: Path) -> None:
    a, b = normal(ys.float32, 129, 20), normal(ys.float32, 20, 132)
    close(computed(ys.asarray(a) @ ys.asarray(b), "cuda", product_by(variant), folder), np.matmul(*wide(a, b)), 32)


@pytest.mark.parametrize(("language", "dtype", "variant"), [
    ("cuda", ys.float32, "naive"), ("cuda", ys.float32, "16"), ("msl", ys.float32, "naive"), ("msl", ys.float32, "16"),
    ("cuda", ys.float16, "unit 32"), ("cuda", ys.float16, "unit 64"), ("cuda", ys.float16, "unit 128"),
    *[("cuda", ys.float32, f"tf32x3 {n}") for n in ("32", "64")],
    ("msl", ys.float32, "unit 32"), ("msl", ys.float16, "unit 64"), ("msl", ys.bfloat16, "unit 32"),
])  # fmt: skip
def test_stacks_and_transposes_are_strides(language: str, dtype: Any, variant: str, folder: Path) -> None:
    for rows, depth in ((20, 30), (24, 32)):  # without packets, and with them
        a, b = normal(dtype, 3, 2, rows, depth), normal(dtype, 2, depth, 17)
        x, y = ys.asarray(a), ys.asarray(b)
        v = normal(dtype, depth)
        cases = [
            (x @ y, np.matmul(*wide(a, b))),
            (ys.matrix_transpose(x) @ x, np.matmul(np.swapaxes(a, -1, -2).astype(np.float64), a.astype(np.float64))),
            (x @ ys.matrix_transpose(x), np.matmul(a.astype(np.float64), np.swapaxes(a, -1, -2).astype(np.float64))),
            (ys.einsum("abij,bjk->kiab", x, y), np.einsum("abij,bjk->kiab", *wide(a, b))),
            (ys.asarray(v) @ y, np.matmul(*wide(v, b))),
        ]
        for tensor, expected in cases:
            close(computed(tensor, language, product_by(variant), folder), expected, 2 if dtype.is_half else 32)


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))))


def standardised(x: Array) -> Array:
    return np.asarray((x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


@pytest.mark.parametrize(("language", "dtype", "variant"), [
    ("cuda", ys.float32, "16"), ("cuda", ys.float16, "naive"), ("msl", ys.float16, "16"),
    ("cuda", ys.float16, "unit 32"), ("cuda", ys.bfloat16, "unit 64"), ("cuda", ys.float32, "tf32x3 64"),
    ("msl", ys.float32, "unit 64"), ("msl", ys.bfloat16, "unit 32"),
])  # fmt: skip
def test_patterns_are_one_kernel(language: str, dtype: Any, variant: str, folder: Path) -> None:
    for m, k, n in ((129, 37, 70), (40, 64, 24)):
        x, w, r, b, c, d = (normal(dtype, *s) for s in ((m, k), (n, k), (m, n), (n,), (n,), (k,)))
        var = np.abs(c) + np.asarray(0.5, c.dtype)
        t = {name: ys.asarray(a) for name, a in zip("xwrbcdv", (x, w, r, b, c, d, var), strict=True)}
        X, W, R, B, C, D, V = wide(x, w, r, b, c, d, var)
        cases = {
            "linear": (ys.nn.linear(t["x"], t["w"], t["b"]), X @ W.T + B),
            "residual": (ys.nn.linear_residual_relu(t["x"], t["w"], t["r"], t["b"]), np.maximum(X @ W.T + B + R, 0)),
            "gelu": (ys.nn.gelu_linear(t["x"], t["w"], t["b"]), gelu(X) @ W.T + B),
            "batch norm": (
                ys.nn.linear_batch_norm_relu(t["x"], t["w"], t["b"], t["v"], t["c"], t["b"], t["c"]),
                np.maximum((X @ W.T + C - B) / np.sqrt(V + 1e-5) * B + C, 0),
            ),
            "layer norm": (
                ys.nn.layer_norm_linear(t["x"], t["w"], t["b"], t["d"], t["d"]), (standardised(X) * D + D) @ W.T + B,
            ),
        }  # fmt: skip
        for name, (tensor, expected) in cases.items():
            try:
                close(computed(tensor, language, product_by(variant), folder), expected, 8 if dtype.is_half else 64)
            except AssertionError as error:
                raise AssertionError(f"{name} of {m, k, n}: {error}") from error


@pytest.mark.parametrize(("language", "dtype", "variant"), [
    ("cuda", ys.float32, "naive"), ("cuda", ys.float32, "16"), ("msl", ys.float32, "naive"), ("msl", ys.float32, "16"),
    ("cuda", ys.float16, "unit 32"), ("msl", ys.float32, "unit 32"),
])  # fmt: skip
def test_dropout_drops_what_the_host_drops(language: str, dtype: Any, variant: str, folder: Path) -> None:
    x = ys.asarray(np.ones((37, 21), dtype.numpy))
    kept = ys.nn.dropout(x, 0.3, rng=7).numpy()
    assert 0 < np.count_nonzero(kept) < kept.size
    same = computed(
        ys.nn.dropout_linear(x, ys.eye(21, dtype=dtype), rate=0.3, rng=7), language, product_by(variant), folder
    )
    np.testing.assert_array_equal(same, kept)
