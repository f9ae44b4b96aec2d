"""Products on the CPU, by every way there is, against NumPy in double precision: sizes, layouts, stacks, what is fused
with them, special values, lesser processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("llvmlite")

import yosegi as ys
from native_code import always, needs_llvm, region_of
from product_code import EACH_WAY, check, exact, numbers, run, variants
from values import Array
from yosegi._tensor.dtype import DType, float32, float64
from yosegi.devices.cpu.compiler import HostMachine
from yosegi.devices.cpu.tiered import compile_region, native_function
from yosegi.devices.cpu.variants import APART, GENERATED, LIBRARY

pytestmark = needs_llvm

LENGTHS = (1, 7, 16, 31, 64, 127, 129)
SIZES = [(1000, 3, 513), (3, 1000, 513), (1, 1, 1), (129, 127, 7), (64, 48, 1030), (10, 500, 2100)]


@EACH_WAY
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes(way: str, dtype: DType, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
    (got,) = run(way, ys.asarray(a) @ ys.asarray(b))
    check(got, exact(a, b), k)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 4))], ids=str)
def test_products_of_nothing(shapes: tuple[Any, Any]) -> None:
    a, b = numbers(shapes[0]), numbers(shapes[1], seed=1)
    for way in (GENERATED, LIBRARY):
        region, arrays = region_of(ys.nn.relu(ys.asarray(a) @ ys.asarray(b) + 1))
        with always(way):
            (got,) = native_function(region, variants())(*arrays)
        assert np.array_equal(got, np.maximum(a @ b + 1, 0))


# Any layout


VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[tuple[int, int]], tuple[int, int]]]] = {
    "plain": (lambda x: x, lambda s: s),
    "transposed": (lambda x: x.T, lambda s: (s[1], s[0])),
    "steps": (lambda x: x[::2, ::3], lambda s: (2 * s[0], 3 * s[1])),
    "reversed": (lambda x: x[::-1, ::-1], lambda s: s),
    "sliced": (lambda x: x[3:, 2:-1], lambda s: (s[0] + 3, s[1] + 3)),
    "repeated rows": (lambda x: _repeated(x, 0), lambda s: s),
    "repeated columns": (lambda x: _repeated(x, 1), lambda s: s),
    "turned and reversed": (lambda x: x.T[:, ::-1], lambda s: (s[1], s[0])),
}
"""Each with the shape that an array must have for a view of some shape."""


def _repeated(x: Any, axis: int) -> Any:
    one = x[:1] if axis == 0 else x[:, :1]
    return ys.broadcast_to(one, x.shape) if isinstance(x, ys.Tensor) else np.broadcast_to(one, x.shape)


@given(
    st.sampled_from(LENGTHS), st.sampled_from(LENGTHS), st.sampled_from(LENGTHS), st.sampled_from(sorted(VIEWS)),
    st.sampled_from(sorted(VIEWS)), st.sampled_from([GENERATED, LIBRARY]), st.sampled_from([float32, float64]),
    st.booleans(),
)  # fmt: skip
def test_operands_in_any_layout(
    m: int, n: int, k: int, left: str, right: str, way: str, dtype: DType, is_given: bool
) -> None:
    """Views that are part of the program, and arrays that come so."""
    a, b = numbers(VIEWS[left][1]((m, k)), dtype), numbers(VIEWS[right][1]((k, n)), dtype, 1)
    x, y = VIEWS[left][0](a), VIEWS[right][0](b)
    if is_given:
        program = ys.asarray(np.ascontiguousarray(x)) @ ys.asarray(np.ascontiguousarray(y))
        (got,) = run(way, program, arrays=[x, y])
    else:
        (got,) = run(way, VIEWS[left][0](ys.asarray(a)) @ VIEWS[right][0](ys.asarray(b)))
    check(got, exact(x, y), k)


def test_views_are_not_copied() -> None:
    x, w = numbers((130, 140)), numbers((150, 140), seed=1)
    region, arrays = region_of(ys.asarray(x)[::-1] @ ys.asarray(w).T)
    with always(GENERATED):
        kernel = native_function(region, variants())
    assert not any(name.startswith("xf") for name in kernel.__globals__), "NumPy makes a view, or a copy"
    (got,) = kernel(*arrays)
    check(got, exact(x[::-1], w.T), 140)


def test_ever_new_layouts_are_copied() -> None:
    a, b = numbers((20, 400)), numbers((20, 30), seed=1)
    region, _ = region_of(ys.asarray(a[:, :20].copy()) @ ys.asarray(b))
    for way in (GENERATED, LIBRARY):
        with always(way):
            kernel = native_function(region, variants())
        for step in range(1, 15):
            x = a[:, : 20 * step : step]
            (got,) = kernel(x, b)
            check(got, exact(x, b), 20)


def test_arrays_that_are_not_aligned() -> None:
    raw = np.zeros(4 * 40 * 50 + 1, np.uint8)
    a = raw[1:].view(np.float32).reshape(40, 50)
    a[:] = numbers((40, 50))
    b = numbers((50, 60), seed=1)
    for way in (GENERATED, LIBRARY):
        (got,) = run(way, ys.asarray(a.copy()) @ ys.asarray(b), arrays=[a, b])
        check(got, exact(a, b), 50)


# Stacks


@st.composite
def stacks(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    outer = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=0, max_size=3))
    shapes = []
    for _ in range(2):
        own = [1 if draw(st.booleans()) else n for n in outer]
        shapes.append(tuple(own[draw(st.integers(0, len(own))) :]))
    m, n, k = (draw(st.sampled_from([1, 7, 20, 65])) for _ in range(3))
    return (*shapes[0], m, k), (*shapes[1], k, n)


@given(stacks(), st.sampled_from([GENERATED, LIBRARY, APART]), st.booleans(), st.sampled_from([1, 2]))
def test_stacks(shapes: tuple[tuple[int, ...], tuple[int, ...]], way: str, is_fused: bool, threads: int) -> None:
    a, b = numbers(shapes[0]), numbers(shapes[1], seed=1)
    bias = numbers(shapes[1][-1:], seed=2)
    program = ys.asarray(a) @ ys.asarray(b)
    expected = exact(a, b)
    if is_fused:
        program, expected = ys.nn.relu(program + ys.asarray(bias)), np.maximum(expected + bias, 0)
    (got,) = run(way, program, by=variants(threads=threads))
    check(got, expected, a.shape[-1])


@pytest.mark.parametrize(
    "shapes",
    [
        ((4,), (4,)),
        ((40,), (40, 70)),
        ((70, 40), (40,)),
        ((5, 30, 40), (40,)),
        ((40,), (3, 40, 6)),
        ((700,), (700, 600)),
        ((600, 700), (700,)),
        ((1, 700), (700, 600)),
        ((600, 700), (700, 1)),
        ((1, 9), (9, 1)),
    ],
    ids=str,
)
def test_vectors(shapes: tuple[Any, Any]) -> None:
    a, b = numbers(shapes[0]), numbers(shapes[1], seed=1)
    for way in (GENERATED, LIBRARY):
        (got,) = run(way, ys.asarray(a) @ ys.asarray(b))
        check(got, exact(a, b), a.shape[-1])


EINSUMS = {
    "ij,jk->ik": ((20, 30), (30, 25)), "ij,jk->ki": ((20, 30), (30, 25)), "ij,kj->ik": ((20, 30), (25, 30)),
    "bij,bjk->bik": ((3, 20, 30), (3, 30, 25)), "bhqd,bhkd->bhqk": ((2, 3, 20, 16), (2, 3, 24, 16)),
    "bhqk,bkhd->bqhd": ((2, 3, 20, 24), (2, 24, 3, 16)), "abc,cd->abd": ((5, 6, 30), (30, 40)),
    "ijk,jil->kl": ((7, 20, 30), (20, 7, 30)), "i,ij->j": ((90,), (90, 70)), "i,i->": ((5000,), (5000,)),
    "ij,ij->i": ((70, 90), (70, 90)), "jbi,kbj->ikb": ((9, 3, 20), (30, 3, 9)),
}  # fmt: skip


@pytest.mark.parametrize("subscripts", EINSUMS)
def test_einsums_that_are_products(subscripts: str) -> None:
    a, b = (numbers(s, seed=n) for n, s in enumerate(EINSUMS[subscripts]))
    (got,) = run(GENERATED, ys.einsum(subscripts, ys.asarray(a), ys.asarray(b)))
    check(got, np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64)), 400)


@pytest.mark.parametrize("subscripts", ["ii,ij->j", "ij,jk->i", "ij,kj->", "ij,j->ij"])
def test_einsums_that_are_not(subscripts: str) -> None:
    a, b = numbers((5, 5)), numbers((5, 5), seed=1)
    b = b[0] if subscripts == "ij,j->ij" else b
    region, arrays = region_of(ys.einsum(subscripts, ys.asarray(a), ys.asarray(b)))
    with always(GENERATED):
        (got,) = native_function(region, variants())(*arrays)
    check(got, np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64)), 25)


def test_einsums_of_what_another_region_transposed() -> None:
    a, b = numbers((30, 20)), numbers((40, 30), seed=1)
    whole, _ = region_of(ys.einsum("ij,kj->ki", ys.permute_dims(ys.asarray(a), (1, 0)), ys.asarray(b)))
    transposed = next(n for n, c in enumerate(whole.graph.calls) if c.op.name == "permute_dims")
    inputs = (transposed, *(n for n in whole.inputs if n not in whole.graph.args[transposed]))
    region = replace(whole, nodes=tuple(n for n in whole.nodes if n != transposed), inputs=inputs)
    (got,) = compile_region(region, variants())(a.T, *[b for n in inputs[1:]])
    check(got, exact(b, a), 400)


def test_tensordot_and_linear_are_products() -> None:
    x, w, b = numbers((5, 6, 40)), numbers((30, 40), seed=1), numbers((30,), seed=2)
    (got,) = run(GENERATED, ys.tensordot(ys.asarray(x), ys.asarray(w), axes=((2,), (1,))))
    check(got, np.tensordot(x.astype(np.float64), w.astype(np.float64), ((2,), (1,))), 40)
    with always(GENERATED):
        got = ys.jit(ys.nn.linear)(ys.asarray(x), ys.asarray(w), ys.asarray(b)).numpy()
    check(got, exact(x, w.T) + b, 40)


# What is fused


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


FUSED: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "bias": (lambda p, x, w, b, s, r: p(x, w) + b, lambda p, x, w, b, s, r: p(x, w) + b),
    "residual": (lambda p, x, w, b, s, r: ys.nn.relu(p(x, w) + b + r),
                 lambda p, x, w, b, s, r: np.maximum(p(x, w) + b + r, 0)),
    "scale": (lambda p, x, w, b, s, r: (p(x, w) * s - b) * 0.5 + r * r,
              lambda p, x, w, b, s, r: (p(x, w) * s - b) * 0.5 + r * r),
    "twice": (lambda p, x, w, b, s, r: p(x, w) * p(x, w) + p(x, w), lambda p, x, w, b, s, r: p(x, w) ** 2 + p(x, w)),
    "gelu before": (lambda p, x, w, b, s, r: p(ys.nn.gelu(x, approximate="tanh"), w) + b,
                    lambda p, x, w, b, s, r: p(_gelu(x), w) + b),
    "sides before": (lambda p, x, w, b, s, r: p((x * s + x[:1]) * 0.25, w),
                     lambda p, x, w, b, s, r: p((x * s + x[:1]) * 0.25, w)),
    "both": (lambda p, x, w, b, s, r: ys.exp(p(ys.abs(x) * s, w) * 0.01 + b) + r,
             lambda p, x, w, b, s, r: np.exp(p(np.abs(x) * s, w) * 0.01 + b) + r),
    "chosen": (lambda p, x, w, b, s, r: ys.where(r > 0, p(x, w), b),
               lambda p, x, w, b, s, r: np.where(r > 0, p(x, w), b)),
    "transposed residual": (lambda p, x, w, b, s, r: p(x, w) + ys.permute_dims(ys.permute_dims(r, (1, 0)) * 2, (1, 0)),
                            lambda p, x, w, b, s, r: p(x, w) + 2 * r),
}  # fmt: skip


@given(
    st.sampled_from(sorted(FUSED)), st.sampled_from([GENERATED, LIBRARY, APART]), st.sampled_from(LENGTHS),
    st.sampled_from(LENGTHS), st.sampled_from([*LENGTHS, 1100]), st.sampled_from([float32, float64]), st.booleans(),
)  # fmt: skip
def test_what_is_fused(name: str, way: str, m: int, n: int, k: int, dtype: DType, is_turned: bool) -> None:
    x = numbers((k, m), dtype).T if is_turned else numbers((m, k), dtype)
    w, b, s, r = (numbers(shape, dtype, 1 + i) for i, shape in enumerate([(k, n), (n,), (m, 1), (m, n)]))
    program, reference = FUSED[name]

    def left() -> ys.Tensor:  # nobody may hold on to it: it would be a result
        return ys.permute_dims(ys.asarray(np.ascontiguousarray(x.T)), (1, 0)) if is_turned else ys.asarray(x)

    (got,) = run(way, program(ys.matmul, left(), *map(ys.asarray, (w, b, s, r))))
    check(got, reference(exact, *[a.astype(np.float64) for a in (x, w, b, s, r)]), 4 * k)


@EACH_WAY
def test_several_results(way: str) -> None:
    x, w, b = numbers((70, 80)), numbers((80, 50), seed=1), numbers((50,), seed=2)
    plain = ys.asarray(x) @ ys.asarray(w)
    moved = plain + ys.asarray(b)
    made = run(way, plain, moved, ys.nn.relu(moved), moved > 0, moved.astype(ys.float64))
    expected = exact(x, w) + b
    check(made[0], exact(x, w), 80)
    check(made[1], expected, 80)
    check(made[2], np.maximum(expected, 0), 80)
    assert np.array_equal(made[3], made[1] > 0)
    assert made[4].dtype == np.float64
    assert np.array_equal(made[4], made[1].astype(np.float64))


@EACH_WAY
@pytest.mark.parametrize("target", [ys.float16, ys.bfloat16, ys.float64, ys.int32], ids=str)
def test_results_of_another_dtype(way: str, target: Any) -> None:
    x, w = numbers((33, 2000)), numbers((2000, 70), seed=1)
    (got,) = run(way, (ys.asarray(x) @ ys.asarray(w) * 10).astype(target))
    expected = exact(x, w) * 10
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=2**-7, atol=1 if target is ys.int32 else 1e-2)


@EACH_WAY
def test_operands_of_another_dtype(way: str) -> None:
    x = np.random.default_rng(0).integers(-5, 6, (40, 60)).astype(np.int16)
    w = numbers((60, 50), seed=1)
    (got,) = run(way, ys.asarray(x).astype(ys.float32) @ ys.asarray(w))
    check(got, exact(x, w), 600)


def test_groups_are_fused_with_products() -> None:
    x, w, b = (ys.asarray(numbers(s)) for s in ((64, 64), (64, 64), (64,)))
    region, _ = region_of(ys.nn.relu(ys.nn.gelu(x) @ w + b))
    with always(GENERATED):
        kernel = native_function(region, variants())
    assert sum(name.startswith("xn") for name in kernel.__globals__) == 1, "all of it is one call"


def test_a_value_that_is_read_elsewhere_is_not_made_twice() -> None:
    x, w = numbers((60, 60)), numbers((60, 60), seed=1)
    first = ys.exp(ys.asarray(x))
    made = run(GENERATED, first @ ys.asarray(w) + first, first)
    check(made[0], exact(np.exp(x), w) + np.exp(x), 60)
    check(made[1], np.exp(x), 1)


@EACH_WAY
def test_a_loop_that_makes_both_operands_stays_apart(way: str) -> None:
    """As the prologue of the left operand it would leave the right one unmade."""
    a = numbers((40, 40))
    (got,) = run(way, (lambda r: r @ r)(ys.nn.relu(ys.asarray(a))))
    made = np.maximum(a, 0)
    check(got, exact(made, made), 40)


def test_a_chain_of_products() -> None:
    x, w = numbers((50, 60)), [numbers((60, 60), seed=n) for n in range(3)]
    value, expected = ys.asarray(x), x.astype(np.float64)
    for matrix in w:
        value, expected = (
            ys.nn.relu(value @ ys.asarray(matrix) * 0.1) + value,
            np.maximum(expected @ matrix * 0.1, 0) + expected,
        )
    (got,) = run(GENERATED, value)
    check(got, expected, 600)
    gated = (ys.asarray(x) @ ys.asarray(w[0])) * ys.nn.sigmoid(ys.asarray(x) @ ys.asarray(w[1]))
    (got,) = run(GENERATED, gated)
    check(got, exact(x, w[0]) / (1 + np.exp(-exact(x, w[1]))), 60)


@EACH_WAY
def test_special_values_go_where_they_belong(way: str) -> None:
    a, b = numbers((70, 90)), numbers((90, 75), seed=1)
    a[3, 4], a[20, 0], b[7, 74], b[8, 0] = np.nan, np.inf, -np.inf, np.nan
    got, shown = run(way, ys.asarray(a) @ ys.asarray(b), ys.nn.relu(ys.asarray(a) @ ys.asarray(b)))
    with np.errstate(invalid="ignore"):
        expected = exact(a, b)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    np.testing.assert_array_equal(np.isnan(shown), np.isnan(expected))
    np.testing.assert_array_equal(got[np.isinf(expected)], expected[np.isinf(expected)])
    check(got[np.isfinite(expected)], expected[np.isfinite(expected)], 90)


@pytest.mark.skipif(
    not HostMachine.host().triple.startswith("x86_64"), reason="names processors of another architecture"
)
@pytest.mark.parametrize("model", ["x86-64-v3", "x86-64"])
@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_lesser_processors(dtype: DType, model: str) -> None:
    for m, n, k in [(129, 127, 7), (70, 80, 1100), (5, 300, 33)]:
        x, w, b = numbers((m, k), dtype), numbers((k, n), dtype, 1), numbers((n,), dtype, 2)
        program = ys.nn.relu(ys.tanh(ys.asarray(x)) @ ys.asarray(w) + ys.asarray(b))
        for way in (GENERATED, LIBRARY):
            (got,) = run(way, program, by=variants(model))
            check(got, np.maximum(exact(np.tanh(x.astype(np.float64)), w) + b, 0), k)
