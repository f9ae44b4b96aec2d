"""Programs around products in reduced precision on the CPU: what is fused with them, and that the product is rounded as
was asked, no less and no more. The unit is emulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

import yosegi as ys
from half_code import (
    PRECISIONS,
    calls_of,
    check,
    compiled,
    emulating,
    error,
    halved,
    host_with,
    numbers,
    variants,
    with_constants,
)
from native_code import always, needs_llvm
from values import Array
from yosegi._run.trace import trace
from yosegi._tensor.precision import Precision
from yosegi.codegen.llvm.bfloat16_units import BFloat16Unit
from yosegi.devices.cpu import tiered
from yosegi.devices.cpu.bfloat16_support import expected as exact
from yosegi.devices.cpu.compiler import HostMachine
from yosegi.devices.cpu.half_calls import PARTS
from yosegi.devices.cpu.product_calls import GeneratedProducts
from yosegi.devices.cpu.tiered import native_function
from yosegi.devices.cpu.variants import GENERATED, IN_ONE, LOOPS_APART, ONE_APART

pytestmark = [
    needs_llvm,
    pytest.mark.skipif(HostMachine.host().vector_bytes < 64, reason="the emulation is written in 512-bit vectors"),
]
EACH = pytest.mark.parametrize("way", [IN_ONE, LOOPS_APART])


# Programs


@EACH
@PRECISIONS
@pytest.mark.parametrize("unit", list(BFloat16Unit), ids=lambda unit: unit.value)
def test_a_layer_with_a_residual(unit: BFloat16Unit, precision: Precision, way: str) -> None:
    parts = PARTS[precision]
    for m, n, k in ((64, 64, 64), (37, 45, 70), (9, 130, 333), (257, 33, 40)):
        x, w, b, r = numbers(m, k), numbers(k, n, seed=1), numbers(n, seed=2), numbers(m, n, seed=3)
        layer = ys.nn.relu(ys.asarray(x) @ ys.asarray(w) + ys.asarray(b) + ys.asarray(r))
        kernel, arrays = compiled(precision, layer, way=way, by=variants(unit))
        check(kernel(*arrays)[0], lambda p, b=b, r=r: np.maximum(p + b + r, 0), x, w, parts)
        assert calls_of(kernel) == (["n0"] if way == IN_ONE else ["n0", "n1"])


@EACH
@PRECISIONS
def test_what_comes_before(precision: Precision, way: str) -> None:
    parts = PARTS[precision]
    for m, n, k in ((64, 64, 64), (37, 45, 70), (9, 130, 333)):
        x, w, b = numbers(m, k), numbers(k, n, seed=1), numbers(n, seed=2)
        given = ys.asarray(x)
        kernel, arrays = compiled(precision, given / (1 + ys.exp(-given)) @ ys.asarray(w) + ys.asarray(b), way=way)
        made = (x / (1 + np.exp(-x.astype(np.float64)))).astype(np.float32)
        # Where a last bit of the function differs, a number may be rounded the other way.
        check(kernel(*arrays)[0], lambda p, b=b: p + b, made, w, parts, largest=1e-4 if parts == 1 else 0)
        assert calls_of(kernel) == (["n0"] if way == IN_ONE else ["n0", "n1", "n2"])


@EACH
@pytest.mark.parametrize("turned", [(False, True), (True, False), (True, True)], ids=str)
def test_transposed_and_sliced_operands(turned: tuple[bool, bool], way: str) -> None:
    x, w, scale, bias = numbers(150, 140), numbers(150, 140, seed=1), numbers(60, 1, seed=2), numbers(60, 70, seed=3)

    def program(x: Any, w: Any, scale: Any, bias: Any) -> Any:
        left = x[3:93, 1:121:2].T if turned[0] else x[2:62, 10:100]
        right = w[5:75, ::-1][:, 3:93].T if turned[1] else w[140:50:-1, 0:140:2]
        return (left @ right) * scale - bias, left, right

    made, *_ = program(*map(ys.asarray, (x, w, scale, bias)))
    _, left, right = program(x, w, scale, bias)
    kernel, arrays = compiled(Precision.BF16, made, way=way)
    check(kernel(*arrays)[0], lambda p: p * scale - bias, left, right, 1)
    if way == IN_ONE:
        assert calls_of(kernel) == ["n0"]


@EACH
@pytest.mark.parametrize(
    ("left", "right"), [((3,), (3,)), ((3,), ()), ((), (3,)), ((2, 1), (1, 3)), ((2, 3), (3,))], ids=str
)
def test_stacks(left: tuple[int, ...], right: tuple[int, ...], way: str) -> None:
    x, w = numbers(*left, 40, 50), numbers(*right, 50, 60, seed=1)
    b, s = numbers(60, seed=2), numbers(*(x @ w).shape[:-2], 40, 1, seed=3)
    layer = ys.nn.relu((ys.asarray(x) @ ys.asarray(w) + ys.asarray(b)) * ys.asarray(s))
    kernel, arrays = compiled(Precision.BF16, layer, way=way)
    check(kernel(*arrays)[0], lambda p: np.maximum((p + b) * s, 0), x, w, 1)
    if way == IN_ONE:
        assert calls_of(kernel) == ["n0"]


def test_arrays_in_any_order() -> None:
    """One kernel, for whatever layouts come."""
    x, w, r = numbers(64, 96), numbers(96, 80, seed=1), numbers(64, 80, seed=2)
    layer = ys.nn.relu(ys.asarray(x) @ ys.asarray(w) + ys.asarray(r))
    kernel, given_arrays = compiled(Precision.BF16, layer, way=IN_ONE)
    orders: list[Callable[[Array], Array]] = [
        np.asfortranarray,
        lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
        lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
        lambda a: np.frombuffer(b"x" + a.tobytes(), np.uint8)[1:].view(np.float32).reshape(a.shape),
    ]
    for order in orders:
        for arrays in ((order(x), w, r), (x, order(w), r), (x, w, order(r)), (order(x), order(w), order(r))):
            by_shape = {a.shape: a for a in arrays}
            got = kernel(*[by_shape[a.shape] for a in given_arrays])[0]
            check(got, lambda p: np.maximum(p + r, 0), x, w, 1)


@EACH
def test_results_and_operands_of_other_dtypes(way: str) -> None:
    x, w, r = numbers(64, 96), numbers(96, 80, seed=1), numbers(64, 80, seed=2)
    product = halved(x) @ halved(w)
    kernel, arrays = compiled(Precision.BF16, ys.asarray(x) @ ys.asarray(w) > ys.asarray(r), way=way)
    assert calls_of(kernel) == ["n0", "n1"]  # no result of the loop can hold sums
    (got,) = kernel(*arrays)
    assert got.dtype == bool
    clear = np.abs(product - r) > 1e-5
    np.testing.assert_array_equal(got[clear], (product > r)[clear])
    whole = np.random.default_rng(0).integers(-100, 100, (64, 96)).astype(np.int16)
    layer = ys.astype(ys.asarray(whole), ys.float32) @ ys.asarray(w)
    kernel, arrays = compiled(Precision.BF16, layer, way=way)
    np.testing.assert_allclose(kernel(*arrays)[0], whole.astype(np.float64) @ halved(w), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("way", [ONE_APART, LOOPS_APART])
def test_what_does_not_fit_goes_apart(way: str) -> None:
    """Several arrays before the product, or no result that holds sums: loops of their own, and no failure."""
    x, w, b, s = numbers(64, 96), numbers(96, 80, seed=1), numbers(80, seed=2), numbers(96, seed=3)
    left, right, bias, scale = map(ys.asarray, (x, w, b, s))
    calls = ["n0", "n1"] if way == ONE_APART else ["n0", "n1", "n2"]
    kernel, arrays = compiled(Precision.BF16, (left * scale) @ right + bias, way=way)
    check(kernel(*arrays)[0], lambda p: p + b, x * s, w, 1)
    assert calls_of(kernel) == calls
    kernel, arrays = compiled(Precision.BF16, (left * 2) @ right + bias > 0, way=way)
    wanted = halved(x * 2) @ halved(w) + b
    clear = np.abs(wanted) > 1e-5
    np.testing.assert_array_equal(kernel(*arrays)[0][clear], (wanted > 0)[clear])
    assert calls_of(kernel) == calls


def test_several_results_are_one_call() -> None:
    x, w, b = numbers(64, 96), numbers(96, 80, seed=1), numbers(80, seed=2)
    sums = (ys.asarray(x) * 2) @ ys.asarray(w) + ys.asarray(b)
    kernel, arrays = compiled(Precision.BF16, sums, ys.nn.relu(sums), way=IN_ONE)
    plain, positive = kernel(*arrays)
    check(plain, lambda p: p + b, x * 2, w, 1)
    np.testing.assert_array_equal(positive, np.maximum(plain, 0))
    assert calls_of(kernel) == ["n0"]


def test_where_nothing_fits_all_goes_apart() -> None:
    x, w, b, s = numbers(64, 96), numbers(96, 80, seed=1), numbers(80, seed=2), numbers(96, seed=3)
    program = (ys.asarray(x) * ys.asarray(s)) @ ys.asarray(w) + ys.asarray(b) > 0
    kernel, arrays = compiled(Precision.BF16, program)
    wanted = halved(x * s) @ halved(w) + b
    clear = np.abs(wanted) > 1e-5
    np.testing.assert_array_equal(kernel(*arrays)[0][clear], (wanted > 0)[clear])
    assert calls_of(kernel) == ["n0", "n1", "n2"]


def test_small_products_and_others_of_the_same_region() -> None:
    """Two that are reduced, one that is too small for it, and one of float64."""
    x, w, v, u = numbers(64, 96), numbers(96, 80, seed=1), numbers(80, 96, seed=2), numbers(4, 20, seed=3)
    wide = numbers(20, 64, seed=4).astype(np.float64)
    small = ys.asarray(u) @ ys.asarray(u).T + 1
    double = ys.asarray(wide) @ ys.asarray(wide).T
    big = ys.nn.relu(ys.asarray(x) @ ys.asarray(w)) @ ys.asarray(v) + 1
    kernel, arrays = compiled(Precision.BF16, big, small, double)
    first = np.maximum(halved(x) @ halved(w), 0).astype(np.float32)
    reduced, little, full = kernel(*arrays)
    check(reduced, lambda p: p + 1, first, v, 1, largest=1e-4)
    np.testing.assert_allclose(little, u.astype(np.float64) @ u.T + 1, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(full, wide @ wide.T, rtol=1e-13, atol=1e-13)


def test_a_precision_that_the_unit_does_not_have_is_computed_in_full() -> None:
    x, w = numbers(64, 96), numbers(96, 80, seed=1)
    with always(GENERATED):
        kernel, arrays = compiled(Precision.F16, ys.nn.relu(ys.asarray(x) @ ys.asarray(w)))
    np.testing.assert_allclose(kernel(*arrays)[0], np.maximum(x.astype(np.float64) @ w, 0), rtol=1e-5, atol=1e-5)
    assert calls_of(kernel) == ["n0"]


@settings(max_examples=20)
@given(st.integers(8, 150), st.integers(8, 150), st.integers(1, 150), st.sampled_from(list(PARTS)))
def test_whatever_is_chosen_is_right(m: int, n: int, k: int, precision: Precision) -> None:
    x, w, b = numbers(m, k), numbers(k, n, seed=1), numbers(n, seed=2)
    kernel, arrays = compiled(precision, ys.nn.relu(ys.asarray(x) @ ys.asarray(w) + ys.asarray(b)))
    is_reduced = m * n * k >= 1 << 15
    wanted = np.maximum(exact(x, w, PARTS[precision] if is_reduced else 3) + b, 0)
    np.testing.assert_allclose(kernel(*arrays)[0], wanted, rtol=1e-4, atol=1e-4)


# Constants


WEIGHTS: dict[str, tuple[Callable[[Any], Any], tuple[int, int]]] = {
    "plain": (lambda w: w, (96, 80)),
    "transposed": (lambda w: w.T, (80, 96)),
    "sliced": (lambda w: w[3:, 2:-1], (99, 83)),
}
"""Views, and the shapes of arrays of which they are 96 by 80."""


@PRECISIONS
@pytest.mark.parametrize("view", WEIGHTS)
def test_a_constant_is_packed_once(view: str, precision: Precision, monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[Any] = []
    pack = GeneratedProducts.packed
    monkeypatch.setattr(GeneratedProducts, "packed", lambda self, *what: packed.append(what) or pack(self, *what))
    seen, shape = WEIGHTS[view]
    base, bias = numbers(*shape), numbers(80, seed=2)
    weights = ys.asarray(base)
    region = with_constants(lambda x: ys.nn.relu(x @ seen(weights) + bias), numbers(40, 96), monkeypatch)
    region = replace(region, precision=precision)
    failures = len(trace.records)
    for way in (IN_ONE, LOOPS_APART):
        packed.clear()
        with always(f"in {precision.value}, {way}"):
            kernel = native_function(region, variants())
        for x in (numbers(40, 96), numbers(40, 96, seed=1), np.asfortranarray(numbers(40, 96, seed=2))):
            check(kernel(x)[0], lambda p: np.maximum(p + bias, 0), x, seen(base), PARTS[precision])
        assert len(packed) == 1
    native_function(region, variants())  # the contest takes both for right
    assert len(trace.records) == failures, trace.records[-1]


def test_one_row_and_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    w, b = numbers(200, 300), numbers(300, seed=1)
    weights, bias = ys.asarray(w), ys.asarray(b)
    x = numbers(1, 200, seed=2)
    region = with_constants(lambda x: ys.tanh(x) @ weights + bias, x, monkeypatch)
    kernel = native_function(replace(region, precision=Precision.BF16), variants())
    check(kernel(x)[0], lambda p: p + b, np.tanh(x), w, 1, largest=1e-4)


# Through the front door


def test_a_jitted_layer_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b, r = numbers(64, 96), numbers(96, 80, seed=1), numbers(80, seed=2), numbers(64, 80, seed=3)
    made: list[Any] = []
    monkeypatch.setattr(tiered, "native_function", lambda *what: made.append(native_function(*what)) or made[-1])
    with host_with(emulating()), ys.options(precision="f16", device="cpu"), always(f"in bf16, {IN_ONE}"):
        layer = ys.jit(lambda x, w, b, r: ys.nn.relu(x @ w + b + r))
        tensors = [ys.asarray(a) for a in (x, w, b, r)]
        got = layer(*tensors).numpy()
        again = layer(*tensors).numpy()
    check(got, lambda p: np.maximum(p + b + r, 0), x, w, 1)
    np.testing.assert_array_equal(got, again)
    (kernel,) = made
    assert calls_of(kernel) == ["n0"]
    assert type(kernel.__globals__["xn0"]).__name__ == "builtin_function_or_method"  # no Python in between


def test_the_same_bits_every_time_in_deterministic_runs() -> None:
    x, w, b = numbers(64, 96), numbers(96, 80, seed=1), numbers(80, seed=2)

    def bits() -> Array:
        with host_with(emulating()), ys.options(precision="f16", device="cpu"), ys.deterministic():
            layer = ys.jit(lambda x, w, b: ys.nn.gelu(x) @ w + b)
            return layer(ys.asarray(x), ys.asarray(w), ys.asarray(b)).numpy()

    first = bits()
    made = ys.nn.gelu(ys.asarray(x.astype(np.float64))).numpy().astype(np.float32)
    check(first, lambda p: p + b, made, w, 1, largest=1e-4)
    for _ in range(3):
        np.testing.assert_array_equal(bits(), first)


def test_gradients_of_a_reduced_program() -> None:
    x, w = numbers(64, 96), numbers(96, 80, seed=1)

    def loss(x: ys.Tensor, w: ys.Tensor) -> ys.Tensor:
        return ys.sum(ys.nn.relu(x @ w))

    with host_with(emulating()), ys.options(precision="f16", device="cpu"):
        got = ys.jit(ys.grad(loss, argnums=1))(ys.asarray(x), ys.asarray(w)).numpy()
    mask = (halved(x) @ halved(w) > 0).astype(np.float64)
    assert error(got, halved(x).T @ mask) < 1e-3
