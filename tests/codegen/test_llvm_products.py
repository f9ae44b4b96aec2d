"""Generated matrix products, against NumPy in double precision: sizes, layouts, stacks, functions before and after."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from native_code import needs_llvm
from values import Array
from yosegi._tensor.dtype import DType, float32, float64
from yosegi.codegen.llvm.builder import LlvmBuilder
from yosegi.codegen.llvm.product import FusedStage, Product, Side
from yosegi.codegen.scalar.value import Value
from yosegi.devices.cpu.callables import Runtime
from yosegi.devices.cpu.compiler import Compiler, HostMachine
from yosegi.devices.cpu.operand_layout import Arrays
from yosegi.devices.cpu.product_calls import GeneratedProducts, Objects

pytestmark = needs_llvm

DTYPES = pytest.mark.parametrize("dtype", [float32, float64], ids=str)
SIZES = [
    (1, 1, 1), (1, 7, 127), (7, 1, 33), (2, 31, 17), (13, 32, 5), (14, 33, 16), (15, 64, 1), (29, 100, 300),
    (64, 64, 64), (127, 129, 128), (128, 128, 128), (1000, 3, 513), (3, 1000, 513), (129, 257, 1200), (40, 40, 0),
]  # fmt: skip


@cache
def products(threads: int, model: str = "") -> GeneratedProducts:
    host = HostMachine.host()
    machine = HostMachine(host.triple, model, "", host.version) if model else host
    return GeneratedProducts(Objects(Runtime(Compiler(machine), threads)))


def numbers(shape: Sequence[int], dtype: DType, seed: int = 0) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, tuple(shape)).astype(dtype.numpy)


def check(got: Array, expected: Array, k: int, dtype: DType) -> None:
    """Within the error of a sum of k products of numbers up to one.

    Partial sums grow like the root of their length, and so does the number of roundings that add up: their product is
    k, of which this is several standard deviations. One product left out is a thousand times more.
    """
    eps = float(np.finfo(dtype.numpy).eps)
    np.testing.assert_allclose(got, expected, rtol=4 * eps, atol=eps * (k + 16))


def check_one(got: list[Array], expected: Array, k: int, dtype: DType) -> None:
    (only,) = got
    check(only, expected, k, dtype)


def poisoned(shape: Sequence[int], dtype: DType) -> Array:
    return np.full(tuple(shape), np.nan, dtype.numpy)


def run(
    a: Array, b: Array, *sides: Array, product: Product, fed: Sequence[Array] = (), threads: int = 2, model: str = "",
    kept: bool = False,
) -> list[Array]:  # fmt: skip
    made = products(threads, model)
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2], *[s.shape[:-2] for s in (*fed, *sides)])
    outs = [poisoned((*batch, a.shape[-2], b.shape[-1]), dtype) for dtype in product.results]
    arrays = Arrays(a, b, fed, sides, outs)
    bound = made.bound(product, arrays, kept=kept, threads=threads, fallback=refuse)
    right = made.packed(product, b) if kept else b
    bound.call(a, *fed, right, *sides, *outs, np.empty(bound.workspace, np.uint8))
    return outs


def refuse(*arrays: Array) -> None:
    raise AssertionError("the arrays do not lie as the product was made for")


def exact(a: Array, b: Array) -> Array:
    return np.matmul(a.astype(np.float64), b.astype(np.float64))


@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_sizes_and_transposes(dtype: DType, threads: int, turned: tuple[bool, bool]) -> None:
    for m, n, k in SIZES:
        a = numbers((k, m), dtype).T if turned[0] else numbers((m, k), dtype)
        b = numbers((n, k), dtype, 1).T if turned[1] else numbers((k, n), dtype, 1)
        check_one(run(a, b, product=Product(dtype), threads=threads), exact(a, b), k, dtype)


LAYOUTS: list[Callable[[Array], Array]] = [
    lambda x: x[::2, ::3], lambda x: x[::-1, ::2], lambda x: x[:, ::-1], lambda x: x[::-1], lambda x: x[3:-2, 5:],
    lambda x: np.broadcast_to(x[:1], x.shape), lambda x: np.broadcast_to(x[:, 2:3], x.shape),
]  # fmt: skip


@DTYPES
@pytest.mark.parametrize("layout", range(len(LAYOUTS)))
def test_strided_operands(dtype: DType, layout: int) -> None:
    a = LAYOUTS[layout](numbers((120, 300), dtype))
    b = LAYOUTS[layout](numbers((300, 150), dtype, 1)) if layout != 0 else numbers((300, 150), dtype, 1)[::3, ::2]
    k = min(a.shape[1], b.shape[0])
    a, b = a[:, :k], b[:k]
    check_one(run(a, b, product=Product(dtype)), exact(a, b), k, dtype)
    rows = numbers((64, 4096 // dtype.itemsize), dtype)[:, :k]  # a page apart
    check_one(run(rows, b, product=Product(dtype)), exact(rows, b), k, dtype)


@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "shapes",
    [((3, 5, 7), (3, 7, 9)), ((2, 1, 40, 65), (5, 65, 33)), ((1, 4, 4), (50, 4, 4)), ((3, 128, 200), (1, 200, 130))],
    ids=str,
)
def test_stacks(dtype: DType, threads: int, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = numbers(shapes[0], dtype), numbers(shapes[1], dtype, 1)
    check_one(run(a, b, product=Product(dtype), threads=threads), exact(a, b), a.shape[-1], dtype)
    flipped = a[..., ::-1, :]
    check_one(run(flipped, b, product=Product(dtype), threads=threads), exact(flipped, b), a.shape[-1], dtype)


def _relu_of_sums(k: LlvmBuilder, value: Value, bias: Value, scale: Value, residual: Value) -> list[Value]:
    added = k.add(k.mul(k.add(value, bias), scale), residual)
    return [added, k.select(k.lt(added, k.literal(0, added.dtype)), k.literal(0, added.dtype), added)]


EPILOGUES = {
    d: Product(d, after=FusedStage(_relu_of_sums, d, (Side(d), Side(d, along=False), Side(d))), outs=(d, d))
    for d in (float32, float64)
}


@DTYPES
@pytest.mark.parametrize("threads", [1, 2])
def test_epilogues(dtype: DType, threads: int) -> None:
    for m, n, k in [(1, 1, 1), (7, 33, 0), (50, 100, 31), (128, 128, 128), (127, 129, 1500)]:
        a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
        bias, scale = numbers((1, n), dtype, 2), numbers((m, 1), dtype, 3)
        residual = numbers((m, n + 9), dtype, 4)[:, 9:]
        added, got = run(a, b, bias, scale, residual, product=EPILOGUES[dtype], threads=threads)
        expected = (exact(a, b) + bias) * scale + residual
        check(added, expected, k, dtype)
        check(got, np.maximum(expected, 0), k, dtype)


PROLOGUES = {
    d: Product(d, before=FusedStage(lambda k, x: [k.mul(x, k.add(x, k.literal(0.5, x.dtype)))], d))
    for d in (float32, float64)
}


@DTYPES
@pytest.mark.parametrize("turned", [False, True])
def test_prologues(dtype: DType, turned: bool) -> None:
    for m, n, k in [(1, 1, 1), (5, 70, 3), (64, 64, 64), (300, 40, 700)]:
        a, b = numbers((k, m), dtype).T if turned else numbers((m, k), dtype), numbers((k, n), dtype, 1)
        wide = a.astype(np.float64)
        check_one(run(a, b, product=PROLOGUES[dtype]), exact(wide * (wide + 0.5), b), k, dtype)
        a = a[::-1]
        check_one(run(a, b, product=PROLOGUES[dtype]), exact((wide * (wide + 0.5))[::-1], b), k, dtype)


def test_results_of_another_dtype() -> None:
    product = Product(float64, after=FusedStage(lambda k, x: [k.convert(x, float32)], float64), outs=(float32,))
    a, b = numbers((60, 900), float64), numbers((900, 70), float64, 1)
    np.testing.assert_array_equal(run(a, b, product=product)[0], exact(a, b).astype(np.float32))


@DTYPES
def test_a_right_operand_is_kept(dtype: DType) -> None:
    for m, n, k in [(1, 5, 3), (64, 32, 100), (130, 257, 900)]:
        a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
        for right in (b, np.asfortranarray(b), b[:, ::-1]):
            check_one(run(a, right, product=Product(dtype), kept=True), exact(a, right), k, dtype)


@DTYPES
def test_special_values_go_where_they_belong(dtype: DType) -> None:
    a, b = numbers((70, 90), dtype), numbers((90, 75), dtype, 1)
    a[3, 4], a[20, 0], b[7, 74], b[8, 0] = np.nan, np.inf, -np.inf, np.nan
    (got,) = run(a, b, product=Product(dtype))
    with np.errstate(invalid="ignore"):
        expected = np.matmul(a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(got[np.isinf(expected)], expected[np.isinf(expected)])
    ordinary = np.isfinite(expected)
    check(got[ordinary], expected[ordinary], 90, dtype)


@pytest.mark.skipif(
    not HostMachine.host().triple.startswith("x86_64"), reason="names a processor of another architecture"
)
@DTYPES
@pytest.mark.parametrize("model", ["x86-64-v3", "x86-64"])
def test_lesser_processors(dtype: DType, model: str) -> None:
    for m, n, k in SIZES:
        a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
        check_one(run(a, b, product=Product(dtype), model=model), exact(a, b), k, dtype)
        turned = np.asfortranarray(b)
        check_one(run(a, turned, product=Product(dtype), model=model), exact(a, b), k, dtype)
