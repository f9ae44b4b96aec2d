"""Reductions and running totals, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from values import LETTER, Array, check, dtypes_of, specials, wide
from yosegi._tensor.dtype import ALL, DType, as_dtype
from yosegi.errors import ArgumentError, AxisError, DTypeError, ShapeError
from yosegi.ops import reduce

# The table: each reduction with the kinds it takes, and what becomes of the dtype -------------------------------------

ACCUMULATED = {"b": np.int64, "i": np.int64, "u": np.uint64}
KINDS = {"sum": "biufc", "prod": "biufc", "max": "biuf", "min": "biuf", "all": "biufc", "any": "biufc",
         "mean": "biufc", "var": "biufc", "std": "biufc"}  # fmt: skip
RUNNING = {"cumulative_sum": np.cumulative_sum, "cumulative_prod": np.cumulative_prod}
INEXACT = {"mean", "var", "std"}


def reference(name: str, array: Array, dtype: DType | None = None, **attrs: Any) -> Array:
    """NumPy's result, accumulated in float32 at least and rounded once."""
    own = as_dtype(array.dtype)
    result = own.numpy
    if name in ("all", "any"):
        result = np.dtype(bool)
    elif name in INEXACT:
        array = array if own.is_inexact else array.astype(np.float64)
        result = array.dtype if name == "mean" else array.real.dtype
    elif name not in ("max", "min"):
        result = np.dtype(dtype.numpy if dtype else ACCUMULATED.get(LETTER[own], own.numpy))
        attrs["dtype"] = np.promote_types(wide(array).dtype, np.float32) if as_dtype(result).is_half else result
    with np.errstate(all="ignore"):
        return np.asarray(getattr(np, name)(wide(array), **attrs)).astype(result)


def test_the_table_holds_every_reduction() -> None:
    assert {n for n in reduce.__all__ if n != "diff"} == KINDS.keys() | RUNNING.keys()


def subsets(ndim: int) -> list[Any]:
    """Every way of naming axes: none, all, one, from the back, several in any order."""
    some = chain.from_iterable(combinations(range(ndim), n) for n in range(ndim + 1))
    return [None, *range(-ndim, ndim), *some, *([(-1, 0), [1, 0]] if ndim > 1 else [])]


ASYMMETRIC = np.random.default_rng(0).integers(1, 50, (2, 3, 5, 4)).astype(float)
"""No two axes alike, and no two slices: a reduction over the wrong axes, or over all, cannot give the right answer."""


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("keepdims", [False, True])
def test_axes(name: str, keepdims: bool) -> None:
    array = ASYMMETRIC % 2 if name in ("all", "any") else ASYMMETRIC
    x = ys.asarray(array)
    for axis in subsets(array.ndim):
        got = getattr(ys, name)(x, axis=axis, keepdims=keepdims)
        check(got, reference(name, array, axis=tuple(axis) if isinstance(axis, list) else axis, keepdims=keepdims))


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_methods(name: str) -> None:
    x = ys.asarray(ASYMMETRIC)
    check(getattr(x, name)(1, keepdims=True), reference(name, ASYMMETRIC, axis=1, keepdims=True))
    check(getattr(x, name)(), reference(name, ASYMMETRIC))


def test_a_reduction_over_one_axis_is_not_the_global_value() -> None:
    x = ys.asarray(np.arange(6.0).reshape(2, 3))
    for name, over_0, over_1 in [
        ("sum", [3, 5, 7], [3, 12]), ("prod", [0, 4, 10], [0, 60]),
        ("max", [3, 4, 5], [2, 5]), ("min", [0, 1, 2], [0, 3]),
        ("mean", [1.5, 2.5, 3.5], [1, 4]), ("var", [2.25] * 3, [2 / 3] * 2), ("std", [1.5] * 3, [(2 / 3) ** 0.5] * 2),
    ]:  # fmt: skip
        function = getattr(ys, name)
        for axis, expected in [(0, over_0), (-2, over_0), ((0,), over_0), (1, over_1), (-1, over_1), ((1,), over_1)]:
            check(function(x, axis=axis), np.array(expected, float))
        check(function(x.T, axis=0), np.array(over_1, float))
        check(function(x, axis=()), np.zeros((2, 3)) if name in ("var", "std") else x.numpy())
    assert ys.any(x == 0, axis=0).tolist() == [True, False, False]
    assert ys.all(x > 0, axis=1).tolist() == [False, True]


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, kinds in KINDS.items() for d in dtypes_of(kinds)], ids=str)
def test_every_dtype(name: str, dtype: DType) -> None:
    array = (ASYMMETRIC[..., :2] % 3).astype(dtype.numpy)
    for axis in (None, 1, (0, -1)):
        check(getattr(ys, name)(ys.asarray(array), axis=axis), reference(name, array, axis=axis))


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n in ("max", "min", "all", "any") for d in dtypes_of(KINDS[n])], ids=str
)
def test_special_values(name: str, dtype: DType) -> None:
    values = specials(dtype)
    table = np.stack([values, values[::-1], np.roll(values, 1)])
    for axis in (None, 0, 1):
        check(getattr(ys, name)(ys.asarray(table), axis=axis), reference(name, table, axis=axis), zero_signs=False)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25)
@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3), st.booleans(), st.data())
def test_any_shape(name: str, shape: tuple[int, ...], keepdims: bool, data: Any) -> None:
    axis = data.draw(st.sampled_from(subsets(len(shape))).filter(lambda a: not isinstance(a, list)))
    dtype = data.draw(st.sampled_from(dtypes_of(KINDS[name])))
    array = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 3))).astype(dtype.numpy)
    x = ys.asarray(array)
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    count = np.prod([shape[a] for a in axes], dtype=int)
    if name in ("max", "min") and count == 0:
        with pytest.raises(ShapeError, match=rf"^\[{name}\] expected at least one element to reduce, got shape"):
            getattr(ys, name)(x, axis=axis, keepdims=keepdims)
    elif name in INEXACT and count == 0:  # where NumPy warns
        made = getattr(ys, name)(x, axis=axis, keepdims=keepdims)
        assert made.shape == np.sum(array, axis=axis, keepdims=keepdims).shape
        assert np.isnan(wide(made.numpy())).all()
    else:
        check(getattr(ys, name)(x, axis=axis, keepdims=keepdims), reference(name, array, axis=axis, keepdims=keepdims))


def test_nothing_is_the_neutral_element() -> None:
    nothing = ys.zeros((2, 0, 3))
    for name, expected in [("sum", 0.0), ("prod", 1.0), ("all", True), ("any", False)]:
        check(getattr(ys, name)(nothing, axis=1), np.full((2, 3), expected))
        check(getattr(ys, name)(nothing, axis=0), np.full((0, 3), expected))
        check(getattr(ys, name)(nothing), np.asarray(expected))
    assert ys.max(nothing, axis=0).shape == (0, 3)


# dtype= and accumulation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "prod", *RUNNING])
@pytest.mark.parametrize("result", ALL, ids=str)
def test_the_dtype_asked_for(name: str, result: DType) -> None:
    for dtype in ALL:
        array = np.array([[1, 2, 0], [3, 1, 2]]).astype(dtype.numpy)
        attrs: dict[str, Any] = {"axis": 0}
        if dtype.is_complex and not result.is_complex:
            with pytest.raises(DTypeError) as error:
                getattr(ys, name)(ys.asarray(array), dtype=result, **attrs)
            assert str(error.value) == (
                f"[{name}] expected a complex dtype for {dtype.name}, got {result.name}; take ys.real first"
            )
        else:
            got = getattr(ys, name)(ys.asarray(array), dtype=result, **attrs)
            check(got, reference(name, array, result, **attrs))


@pytest.mark.parametrize("half", [ys.float16, ys.bfloat16], ids=str)
def test_halves_are_accumulated_in_single(half: DType) -> None:
    million = ys.ones(1_000_000, dtype=half)
    assert float(ys.sum(million, dtype=ys.float32)) == 1e6
    assert float(ys.mean(million)) == 1
    assert float(ys.std(million)) == 0
    assert float(ys.sum(million)) == {ys.float16: np.inf, ys.bfloat16: 999424}[half]
    assert (ys.sum(million).dtype, ys.mean(million).dtype, ys.cumulative_sum(million).dtype) == (half, half, half)
    thousands = ys.ones((3, 4000), dtype=half)
    assert ys.sum(thousands, axis=1).tolist() == [4000.0] * 3
    assert ys.cumulative_sum(thousands, axis=1, dtype=ys.float32)[:, -1].tolist() == [4000.0] * 3
    assert float(ys.cumulative_sum(thousands[0])[-1]) == 4000
    assert float(ys.prod(ys.asarray([300.0, 300.0, 1 / 1024, 1 / 1024], dtype=half))) == pytest.approx(0.0858, rel=1e-2)


def test_integers_do_not_wrap_on_the_way() -> None:
    many = np.full(200, 100, np.int8)
    for dtype in (None, ys.int64, ys.float16, ys.bfloat16, ys.float32, ys.complex64):
        assert complex(ys.sum(ys.asarray(many), dtype=dtype)) == pytest.approx(20000, rel=2**-8)
    assert float(ys.sum(ys.ones(3, dtype=ys.bool), dtype=ys.float16)) == 3
    assert int(ys.sum(ys.asarray(many), dtype=ys.int8)) == np.int64(20000).astype(np.int8)
    assert ys.sum(ys.asarray([2**63, 2**62], dtype=ys.uint64)).tolist() == 2**63 + 2**62


@pytest.mark.parametrize("name", ["var", "std"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64])
def test_correction(name: str, dtype: Any) -> None:
    array = ASYMMETRIC.astype(dtype) * (1 + 1j if dtype is np.complex64 else 1)
    for correction in (0, 1, 1.5, 2):
        got = getattr(ys, name)(ys.asarray(array), axis=2, correction=correction)
        check(got, reference(name, array, axis=2, correction=correction), ulps=16)
    for correction in (5, 6):
        got = getattr(ys, name)(ys.asarray(array), axis=2, correction=correction)
        check(got, np.full((2, 3, 4), np.nan, np.empty(0, dtype).real.dtype))


# Running totals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNNING)
@pytest.mark.parametrize("dtype", ALL, ids=str)
@pytest.mark.parametrize("include_initial", [False, True])
def test_running_totals(name: str, dtype: DType, include_initial: bool) -> None:
    for shape in [(2, 3, 4), (2, 0, 3), (1, 1, 1)]:
        array = (np.arange(np.prod(shape)).reshape(shape) % 3).astype(dtype.numpy)
        for axis in (0, 1, -1):
            attrs: dict[str, Any] = {"axis": axis, "include_initial": include_initial}
            check(getattr(ys, name)(ys.asarray(array), **attrs), reference(name, array, **attrs))
    line = np.array([3, 1, 2]).astype(dtype.numpy)
    check(getattr(ys, name)(ys.asarray(line)), reference(name, line))


def test_diff() -> None:
    x = np.array([[1, 4, 9, 16], [3, 1, 0, 7]])
    for dtype in ("int64", "uint8", "float16", "float32", "complex64", "bool"):
        array = x.astype(dtype)
        for axis in (0, 1, -1):
            for n in (0, 1, 2, 5):
                check(ys.diff(ys.asarray(array), axis=axis, n=n), np.diff(array, axis=axis, n=n))
    ends = np.array([[7], [8]])
    got = ys.diff(ys.asarray(x), prepend=ys.asarray(ends), append=ys.asarray(ends))
    check(got, np.diff(x, prepend=ends, append=ends))
    check(ys.diff(x), np.diff(x))


# Mistakes -------------------------------------------------------------------------------------------------------------

T = ys.zeros((2, 3))


@pytest.mark.parametrize("name", [*KINDS, *RUNNING, "diff"])
def test_axes_that_are_not_there(name: str) -> None:
    function = getattr(ys, name)
    for axis in (2, -3):
        with pytest.raises(AxisError) as error:
            function(T, axis=axis)
        assert str(error.value) == f"[{name}] expected an axis from -2 to 1 for 2 dimensions, got {axis}"
    with pytest.raises(DTypeError) as wrong:
        function(T, axis=1.5)
    assert str(wrong.value) == f"[{name}] expected an axis as an integer, got 1.5"
    if name in KINDS:
        with pytest.raises(AxisError) as twice:
            function(T, axis=(0, -2))
        assert str(twice.value) == f"[{name}] expected each axis once, got (0, -2)"


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: ys.max(ys.asarray([1j])), DTypeError,
         "[max] expected a real dtype, got complex128; cast it with astype"),
        (lambda: ys.min(ys.zeros(0)), ShapeError, "[min] expected at least one element to reduce, got shape (0,)"),
        (lambda: ys.max(ys.zeros((2, 0)), axis=1), ShapeError,
         "[max] expected at least one element to reduce, got shape (2, 0)"),
        (lambda: ys.cumulative_sum(T), ShapeError,
         "[cumulative_sum] expected axis= for a tensor that is not 1-d, got shape (2, 3)"),
        (lambda: ys.cumulative_prod(ys.asarray(1.0)), ShapeError,
         "[cumulative_prod] expected axis= for a tensor that is not 1-d, got shape ()"),
        (lambda: ys.std(T, correction="a"), DTypeError, "[std] expected correction as a real number, got 'a'"),
        (lambda: ys.var(T, correction=1j), DTypeError, "[var] expected correction as a real number, got 1j"),
        (lambda: ys.var(T, correction=10**400), DTypeError,
         "[var] expected numbers that fit float64, got 10000000000000000000..."),
        (lambda: ys.diff(T, n=-1), ArgumentError, "[diff] expected n of at least 0, got -1"),
        (lambda: ys.diff(T, n=1.0), DTypeError, "[diff] expected n as an integer, got 1.0"),
        (lambda: ys.diff(ys.asarray(1.0)), AxisError, "[diff] expected an axis from 0 to -1 for 0 dimensions, got -1"),
        (lambda: ys.sum("a"), DTypeError, "[sum] expected a tensor or a number, got str; convert it with ys.asarray"),
        (lambda: ys.sum(T, axes=0), TypeError, "[sum] got an unexpected keyword argument 'axes'"),
    ],
)  # fmt: skip
def test_mistakes(call: Callable[[], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as error:
        call()
    assert str(error.value) == text


def test_a_dtype_that_is_none() -> None:
    with pytest.raises(DTypeError, match=r"^\[sum\] expected a dtype among bool, .*, got 'float8'$"):
        ys.sum(T, dtype="float8")
