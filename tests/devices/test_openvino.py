"""OpenVINO's op table against the reference: every row, every dtype it is for, special values, in chains."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from openvino_regions import DEVICE, garbage, needed, reason, reference, run, whole
from samples import BUILT_BY_INDEXING, SAMPLES, calls
from values import LAYOUTS, operands, same, specials, wide
from yosegi._graph.graph import capture, graph_of
from yosegi._graph.simplify import simplify
from yosegi._run.device import Absent
from yosegi._schedule.fuse import fuse
from yosegi._tensor.dtype import ALL, float_info
from yosegi._tensor.op import REGISTRY
from yosegi.devices.openvino.elementwise import BINARY, UNARY
from yosegi.devices.openvino.op_row import DTYPES
from yosegi.devices.openvino.ops import LEFT_OUT, ROWS

pytestmark = needed
RNG = np.random.default_rng(5)
BY_NAME = sorted(DTYPES, key=lambda d: d.name)


@pytest.fixture(autouse=True, scope="module")
def _garbage():
    if not isinstance(DEVICE, Absent):
        garbage()


def close(got: Any, expected: Any, ulps: float = 4, *, zero_signs: bool = True) -> None:
    """Equal, but for what OpenVINO leaves out: results below the smallest normal number may be zero."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    if expected.dtype.kind not in "fV":
        np.testing.assert_array_equal(got, expected)
        return
    tiny = np.abs(wide(expected)) < float_info(ys.asarray(expected).dtype).smallest_normal
    flushed = tiny & (got == 0)
    same(np.where(flushed, expected, got).astype(got.dtype), expected, ulps=ulps, zero_signs=zero_signs)


# Row by row ---------------------------------------------------------------------------------------------------------

CALLS = [(name, n) for name, n in calls() if name in ROWS]


def single(array: Any) -> Any:
    return np.asarray(array).astype(np.float32) if np.asarray(array).dtype == np.float64 else np.asarray(array)


REFUSED = {("conv", 3): "it has no steps over elements that stand apart"}


@pytest.mark.parametrize("layout", ["contiguous", "reversed"])
@pytest.mark.parametrize(("name", "number"), CALLS, ids=[f"{a}-{b}" for a, b in CALLS])
def test_samples(name: str, number: int, layout: str) -> None:
    sample = SAMPLES[name][number]
    arrays = [np.flip(np.flip(single(a)).copy()) if layout == "reversed" else single(a) for a in sample.arrays]
    attrs = {k: ys.float32 if v is ys.float64 else v for k, v in sample.attrs.items()}
    made = REGISTRY[name](*[ys.asarray(a, copy=False) for a in arrays], **attrs)
    if made.dtype.is_complex:
        return
    if any(a.dtype.kind == "i" for a in arrays):
        assert reason(made) is not None
        return
    if (name, number) in REFUSED:
        assert reason(made) == REFUSED[name, number]
        return
    (got,), (expected,) = run(made), reference(made)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    scale = np.max(np.abs(expected), initial=0)
    np.testing.assert_allclose(got, expected, rtol=4e-6, atol=4e-7 * scale)


ROWS_AND_DTYPES = [
    (name, d) for table in (UNARY, BINARY) for name, row in table.items() for d in BY_NAME if d in row.dtypes
]


@pytest.mark.parametrize(("name", "dtype"), ROWS_AND_DTYPES, ids=[f"{n}-{d.name}" for n, d in ROWS_AND_DTYPES])
def test_special_values(name: str, dtype: Any) -> None:
    values = specials(dtype)
    if dtype.is_float:
        values = np.concatenate([values, (RNG.normal(size=60) * np.exp(RNG.uniform(-9, 9, 60))).astype(dtype.numpy)])
    arrays = [values] if name in UNARY else [np.ascontiguousarray(a) for a in np.meshgrid(values, values)]
    check_row(name, [ys.asarray(a) for a in arrays])


def check_row(name: str, tensors: list[ys.Tensor]) -> None:
    """The row gives the reference's result; a divisor below the smallest normal number counts as zero."""
    made = REGISTRY[name](*tensors)
    (got,), (expected,) = run(made), reference(made)
    if name == "divide":
        divisor = np.broadcast_to(tensors[1].numpy(), got.shape)
        is_tiny = (divisor != 0) & (np.abs(divisor) < np.finfo(np.float32).smallest_normal)
        got = np.where(is_tiny, expected, got)
    if name == "logaddexp":  # of two terms that may cancel
        scale = np.maximum(np.abs(np.fmax(*[t.numpy() for t in tensors])), 1)
        with np.errstate(all="ignore"):
            got = np.where(np.abs(got - expected) <= 4 * np.finfo(np.float32).eps * scale, expected, got)
    close(got, expected, zero_signs=name not in ("maximum", "minimum"))


SPREAD = np.concatenate([np.geomspace(1e-30, 1e30, 20_001), -np.geomspace(1e-30, 1e30, 20_001)])
EXACT = {
    "erf": (SPREAD, 4), "expm1": (np.concatenate([SPREAD, np.linspace(-104, 88.7, 20_001)]), 8),
    "log1p": (np.concatenate([SPREAD, np.linspace(-0.999, 3, 20_001)]), 4), "exp": (np.linspace(-87, 88.7, 40_001), 8),
    "sigmoid": (np.linspace(-86.9, 90, 40_001), 5),
}  # fmt: skip


@pytest.mark.parametrize("name", list(EXACT))
def test_functions_keep_their_digits_everywhere(name: str) -> None:
    x, ulps = EXACT[name]
    single = x.astype(np.float32)
    (got,) = run(REGISTRY[name](ys.asarray(single)))
    (exact,) = reference(REGISTRY[name](ys.asarray(single.astype(np.float64))))
    with np.errstate(over="ignore"):
        close(got, exact.astype(np.float32), ulps=ulps)


@given(st.data())
@settings(max_examples=120)
def test_any_row_on_any_shape_and_layout(data: Any) -> None:
    name = data.draw(st.sampled_from([*UNARY, *BINARY]))
    row = ROWS[name]
    pairs = data.draw(operands(1 if name in UNARY else 2, [d for d in BY_NAME if d in row.dtypes]))
    tensors = [tensor for tensor, _ in pairs]
    made = REGISTRY[name](*tensors)
    if not made.size:
        assert reason(made) == "it has no arrays without elements"
    else:
        check_row(name, tensors)


@pytest.mark.parametrize("dtype", BY_NAME, ids=lambda d: d.name)
def test_movement_of_every_dtype(dtype: Any) -> None:
    values = np.resize(specials(dtype), (7, 6, 5))
    x = ys.asarray(values)
    for made in (
        x[3:6:2, None, ::-1, 4], x[..., ::-2], x[2], ys.flip(x), ys.flip(x, axis=1), ys.roll(x, (9, -2), axis=(0, 2)),
        ys.permute_dims(x, (2, 0, 1)), ys.concat([x, x[:, :2], x], axis=1), ys.broadcast_to(x[:, :1], (3, 7, 6, 5)),
        ys.linalg.diagonal(x, offset=-2), ys.linalg.diagonal(x, offset=3), ys.reshape(x, (21, 10)),
        ys.stack([x, x], axis=1),
        REGISTRY["gather"](x, ys.arange(5, 0, -2), axes=(1,), at=1),
    ):  # fmt: skip
        same(run(made)[0], reference(made)[0])
    written, whole_row = ys.asarray(values), ys.asarray(values)
    written[1:5:2, ::-1, 3] = x[0, :, 0]
    whole_row[2] = x[3, 0, 0]
    same(run(written)[0], reference(written)[0])
    same(run(whole_row)[0], reference(whole_row)[0])
    if not (dtype.is_integer and dtype.bits > 8):
        for made in (ys.tril(x, k=1), ys.triu(x, k=-1), ys.where(x == x, x, ys.flip(x))):
            if reason(made) is None:
                same(run(made)[0], reference(made)[0])


CASTS = [(a, b) for a in BY_NAME for b in BY_NAME if a is not b]


@pytest.mark.parametrize(("source", "target"), CASTS, ids=[f"{a.name}-{b.name}" for a, b in CASTS])
def test_casts(source: Any, target: Any) -> None:
    values = specials(source)
    made = ys.astype(ys.asarray(values), target)
    if reason(made) is None:
        same(run(made)[0], reference(made)[0])
    else:
        assert reason(made) == f"it might not round {source.name} to {target.name}"


@pytest.mark.parametrize("axis", [0, 1, 2, (0, 2), (1, 2), None, ()])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "all", "any", "var", "std"])
def test_reductions(name: str, axis: Any) -> None:
    odd = specials(ys.float32)
    if name not in ("max", "min", "all", "any"):  # large numbers that cancel make a sum depend on its order
        odd = odd[~(np.isfinite(odd) & (np.abs(odd) > 1e30))]
    for values in (RNG.uniform(0.5, 1.5, (5, 4, 25)), np.resize(RNG.permutation(odd), (7, 4, 9))):
        made = getattr(ys, name)(ys.asarray(values.astype(np.float32)), axis=axis)
        with np.errstate(all="ignore"):
            close(run(made)[0], reference(made)[0], ulps=64 if name == "prod" else 8, zero_signs=False)


@pytest.mark.parametrize("axis", [0, 1, 2, None])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", [ys.float32, ys.float16, ys.bfloat16], ids=lambda d: d.name)
def test_positions_of_extremes(name: str, axis: int | None, dtype: Any) -> None:
    tied = RNG.integers(-3, 3, (5, 6, 33)).astype(np.float32)
    none = tied.copy()
    none[1, 2, 3:5] = none[4, :, 0] = np.nan
    for values in (tied, none, np.full((2, 3, 4), np.nan, np.float32), np.full((2, 3, 4), -np.inf, np.float32)):
        for keepdims in (False, True):
            made = getattr(ys, name)(ys.asarray(values.astype(dtype.numpy)), axis=axis, keepdims=keepdims)
            got, expected = run(made)[0], reference(made)[0]
            assert got.dtype == np.int64
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("shape", [(200, 16384), (512, 200), (512,), (3, 4096)])
def test_sums_keep_their_digits(shape: tuple[int, ...]) -> None:
    axis = 0 if shape == (512, 200) else -1
    values = RNG.random(shape, dtype=np.float32)
    exact = values.sum(axis=axis, dtype=np.float64)
    error = np.max(np.abs(run(ys.sum(ys.asarray(values), axis=axis))[0] / exact - 1))
    assert error < 1.5e-6
    longer = ys.asarray(np.zeros((2, 20000), np.float32))
    assert "lose digits over 20000 elements" in str(reason(ys.sum(longer, axis=1)))
    assert "lose digits over 600 elements" in str(reason(ys.sum(longer[0, :600])))


PRODUCTS = [((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 6)),
            ((4,), (5, 4, 3)), ((65, 130), (130, 33))]  # fmt: skip
EINSUMS = {"ij,jk->ki": [(3, 4), (4, 2)], "iij->j": [(3, 3, 4)], "ij->": [(3, 4)],
           "bij,bjk->bik": [(2, 3, 4), (2, 4, 5)], "i,j->ij": [(3,), (4,)],
           "ij,jk,kl->il": [(3, 4), (4, 5), (5, 2)], "ij,kj->ik": [(3, 1), (4, 5)],
           "bhqd,bhkd->bhqk": [(2, 3, 4, 5), (2, 3, 6, 5)], ",ij->ij": [(), (2, 3)], "ii->": [(4, 4)]}  # fmt: skip


@pytest.mark.parametrize(("left", "right"), PRODUCTS)
def test_products(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = (ys.asarray(RNG.normal(size=s).astype(np.float32)) for s in (left, right))
    rounding = 2e-7 * np.sqrt(left[-1])  # of a sum of so many products, in any order
    np.testing.assert_allclose(run(a @ b)[0], reference(a @ b)[0], rtol=1e-5, atol=4 * rounding)


@pytest.mark.parametrize("subscripts", list(EINSUMS))
def test_einsums(subscripts: str) -> None:
    made = ys.einsum(subscripts, *[ys.asarray(RNG.normal(size=s).astype(np.float32)) for s in EINSUMS[subscripts]])
    np.testing.assert_allclose(run(made)[0], reference(made)[0], rtol=1e-5, atol=2e-6)


# Chains: in a model ops are fused, and fused kernels are other kernels ----------------------------------------------

EXACT_UNARY = ["negative", "abs", "sign", "floor", "ceil", "trunc", "round"]
COMPARISONS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


@st.composite
def exact_programs(draw: Any) -> ys.Tensor:
    """A chain of ops whose results are exact in every dtype: on special values, no bit may differ."""
    dtype = draw(st.sampled_from([d for d in BY_NAME if d.is_float]))
    values = specials(dtype)
    shape = draw(st.sampled_from([(3,), (4, 5), (2, 3, 17), ()]))
    layout = draw(st.sampled_from(list(LAYOUTS)))
    chosen = draw(st.lists(st.integers(0, values.size - 1), min_size=1, max_size=60))
    pool = [LAYOUTS[layout](np.resize(np.roll(values[chosen], n), shape))[0] for n in range(2)]
    conditions: list[ys.Tensor] = []
    for _ in range(draw(st.integers(2, 12))):
        x, y = (pool[draw(st.integers(0, len(pool) - 1))] for _ in range(2))
        kind = draw(st.integers(0, 6))
        if kind <= 1:
            pool.append(REGISTRY[draw(st.sampled_from(EXACT_UNARY))](x))
        elif kind == 2:
            pool.append(draw(st.sampled_from([ys.maximum, ys.minimum]))(x, y))
        elif kind == 3:
            conditions.append(REGISTRY[draw(st.sampled_from(COMPARISONS))](x, y))
        elif kind == 4 and conditions:
            pool.append(ys.where(conditions[-1], x, y))
        elif kind == 5 and len(conditions) > 1:
            conditions.append(draw(st.sampled_from([ys.logical_and, ys.logical_xor]))(conditions[-1], conditions[-2]))
        elif kind == 6 and x.ndim:
            pool.append(ys.flip(x, axis=0))
    return draw(st.sampled_from([pool[-1], *conditions[-1:]]))


@given(exact_programs())
@settings(max_examples=150)
def test_chains_of_exact_ops_lose_nothing(made: ys.Tensor) -> None:
    got, expected = run(made, simplified=False)[0], reference(made)[0]
    same(*map(_normal, (got, expected)), ulps=0, zero_signs=False)


def _normal(array: Any) -> Any:
    """Without subnormal bfloat16 numbers, which the instructions of processors that have some take for zero."""
    if array.dtype != ys.bfloat16.numpy:
        return array
    small = np.abs(array.astype(np.float32)) < ys.finfo(ys.bfloat16).smallest_normal
    return np.where(small, np.zeros((), array.dtype), array)


def softmax(x: Any) -> Any:
    e = ys.exp(x - ys.max(x, axis=-1, keepdims=True))
    return e / ys.sum(e, axis=-1, keepdims=True)


def layer_norm(x: Any) -> Any:
    return (x - ys.mean(x, axis=-1, keepdims=True)) / ys.sqrt(ys.var(x, axis=-1, keepdims=True) + 1e-5)


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + ys.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def attention(x: Any) -> Any:
    scores = softmax(ys.einsum("bqd,bkd->bqk", x, x) / 4)
    return scores @ x


@pytest.mark.parametrize("function", [softmax, layer_norm, gelu, attention], ids=lambda f: f.__name__)
def test_what_models_are_made_of(function: Any) -> None:
    x = ys.asarray(RNG.normal(size=(3, 20, 48)).astype(np.float32))
    got, expected = run(function(x))[0], reference(function(x))[0]
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


def test_nan_goes_through_a_model() -> None:
    a = RNG.normal(size=(4, 50)).astype(np.float32)
    a[1, 7], a[2, 3], a[3, :] = np.nan, np.inf, -np.inf
    for function in (softmax, layer_norm, lambda x: ys.maximum(x, 0) * 2, lambda x: ys.exp(x) + 1):
        got, expected = run(function(ys.asarray(a)))[0], reference(function(ys.asarray(a)))[0]
        np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))


# What it does not get -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [d for d in ALL if d not in DTYPES], ids=lambda d: d.name)
def test_dtypes_that_it_would_lower(dtype: Any) -> None:
    told = str(reason(ys.asarray(np.ones(3, dtype.numpy)) + ys.asarray(np.ones(3, dtype.numpy))))
    expected = {"real floating": "it would compute float64 in float32", "complex floating": "no complex numbers"}
    assert expected.get(dtype.kind, f"it would keep {dtype.name} in another integer type") in told


def test_it_would_have_lowered_float64() -> None:
    """The reason why: with float64 in and out, OpenVINO computes in float32 and says nothing."""
    from yosegi.devices.openvino.library import core, openvino, opset, settings

    ov, o = openvino(), opset()
    x = o.parameter([2], ov.Type.f64)
    model = core().compile_model(ov.Model([o.result(o.add(x, x))], [x], "m"), "CPU", settings("CPU"))
    third = np.full(2, 1 / 3)
    assert abs(model([third])[0][0] - 2 / 3) > 1e-9


def test_sixteen_bits_are_rounded_after_every_op_or_not_computed() -> None:
    x = ys.asarray(np.array([60000], np.float16))
    assert reason(x + x) == "it would not round the float16 result of add"
    assert reason(ys.astype(ys.astype(x, ys.float32) * 2, ys.float16)) == "it might not round float32 to float16"
    assert reason(ys.astype(x, ys.float32) * 2) is None


def test_every_op_left_out_has_a_reason() -> None:
    for name, told in LEFT_OUT.items():
        if name in SAMPLES:
            sample = SAMPLES[name][0]
            made = REGISTRY[name](*[ys.asarray(single(a)) for a in sample.arrays], **sample.attrs)
        else:
            made = BUILT_BY_INDEXING[name](ys.asarray(np.ones((3, 4), np.float32)) * 2)
        assert told in {DEVICE.supports(region) for region in fuse(simplify(graph_of(capture([made._node])[0])))}
    x = ys.asarray(np.ones(3, np.float32))
    assert reason(ys.linalg.inv(ys.ones((3, 3), dtype=ys.float32) * x)) == "no OpenVINO op for inv"
    assert re.match("it cannot hold int64", str(reason(ys.arange(10_000))))
    assert reason(x[:0] * 2) == "it has no arrays without elements"
    assert reason(ys.reshape(x, (1,) * 9 + (3,)) * 2) == "it has at most 8 dimensions"


def test_an_index_that_may_be_out_of_range_is_the_hosts() -> None:
    x = ys.asarray(np.ones((3, 4), np.float32)) * 2
    assert reason(ys.take(x, ys.asarray([0, 1]), axis=1)) == "it would not tell of an index out of range"
    with ys.options(device=DEVICE.name), pytest.raises(ys.errors.IndexingError):
        ys.eval(ys.take(x, ys.asarray([0, 1]) + 3, axis=1))


def test_the_halves_of_a_region_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEVICE, "_wrong", {"exp float32": "inf instead of nan"})
    told = DEVICE.supports(whole(ys.exp(ys.asarray(np.ones(3, np.float32))))[0])
    assert told == "its exp of float32 was wrong when it was tried here: inf instead of nan"
