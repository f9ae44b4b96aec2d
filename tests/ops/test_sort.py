"""Order, search and sets, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from yosegi.errors import AxisError, DTypeError, IndexingError, ShapeError, TraceError, UserError

rng = np.random.default_rng(0)
REAL = ["bool", "int8", "uint64", "int64", "float16", "bfloat16", "float32", "float64"]

_arrays = hnp.arrays(
    st.sampled_from([np.dtype(d) for d in (bool, np.int8, np.uint64, np.float32)]),
    hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6),
    elements=st.integers(0, 1),
) | hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=1, max_dims=2, max_side=40),
    elements=st.sampled_from([0.0, -0.0, 1.0, -1.5, np.nan, np.inf, -np.inf]),
)


# Sorting


@settings(max_examples=150, deadline=None)
@given(_arrays, st.integers(0, 2), st.booleans())
def test_sorting_is_stable_both_ways(array: np.ndarray, axis: int, descending: bool) -> None:
    axis %= array.ndim
    x = ys.asarray(array)
    order = ys.argsort(x, axis=axis, descending=descending).numpy()
    if not array.shape[axis]:
        assert order.shape == array.shape
        return
    for line, found in zip(np.moveaxis(array, axis, -1).reshape(-1, array.shape[axis]),
                           np.moveaxis(order, axis, -1).reshape(-1, array.shape[axis]), strict=True):  # fmt: skip
        keys = [(bool(v != v), 0.0 if v != v else float(v)) for v in line]  # NaN above every number
        assert found.tolist() == sorted(range(len(keys)), key=keys.__getitem__, reverse=descending)
    np.testing.assert_array_equal(
        ys.sort(x, axis=axis, descending=descending).numpy(), np.take_along_axis(array, order, axis)
    )


def _with_ties(dtype: str, kind: str) -> np.ndarray:
    x = rng.permutation(3 * 40).reshape(3, 40).astype("float32")
    if kind == "equal":
        x = x // 8
    x = x - 50 if ys.isdtype(getattr(ys, dtype), ("signed integer", "real floating")) else x
    x = x.astype(np.asarray(ys.zeros(1, dtype=dtype)).dtype)
    if kind == "special":
        x[0, ::7], x[1, 5:30:5], x[1, 4:30:5], x[2, 3], x[2, 9] = np.nan, 0.0, -0.0, np.inf, -np.inf
    return x


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("kind", ["different", "equal", "special"])
@pytest.mark.parametrize("dtype", REAL)
def test_long_rows_are_sorted_as_by_a_stable_sort(dtype: str, kind: str, descending: bool) -> None:
    if kind == "special" and not ys.isdtype(getattr(ys, dtype), "real floating"):
        pytest.skip("floats alone have special values")
    array = _with_ties(dtype, kind)
    for axis in (0, 1):
        x = ys.asarray(np.moveaxis(array, 1, axis))
        keys = np.where(np.isnan(array), np.inf, array).astype("float64") + np.isnan(array) * 1e300
        expected = np.argsort(-keys if descending else keys, axis=1, kind="stable")
        values = np.take_along_axis(array, expected, 1).astype("float64")
        order = np.moveaxis(ys.argsort(x, axis=axis, descending=descending).numpy(), axis, 1)
        np.testing.assert_array_equal(order, expected)
        made = np.moveaxis(ys.sort(x, axis=axis, descending=descending).numpy(), axis, 1).astype("float64")
        np.testing.assert_array_equal(made, values)
        np.testing.assert_array_equal(np.signbit(made), np.signbit(values))
        for k in (0, 1, 4, 40):
            top, places = ys.topk(x, k, axis=axis, largest=descending)
            np.testing.assert_array_equal(np.moveaxis(places.numpy(), axis, 1), expected[:, :k])
            np.testing.assert_array_equal(np.moveaxis(top.numpy(), axis, 1).astype("float64"), values[:, :k])


@pytest.mark.parametrize("dtype", REAL)
def test_every_real_dtype_has_an_order(dtype: str) -> None:
    x = ys.asarray([1, 0, 1, 0, 1]).astype(dtype)
    assert ys.sort(x).dtype == x.dtype
    assert ys.sort(x).astype("int64").tolist() == [0, 0, 1, 1, 1]
    assert ys.argsort(x, descending=True, stable=False).tolist() == [0, 2, 4, 1, 3]
    assert (int(ys.argmax(x)), int(ys.argmin(x))) == (0, 1)
    assert ys.searchsorted(ys.sort(x), x).tolist() == [2, 0, 2, 0, 2]


@pytest.mark.parametrize("descending", [False, True])
def test_gradient_of_sort(descending: bool) -> None:
    x, g = rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    for axis in (0, 1):
        _, back = ys.vjp(lambda x, a=axis: ys.sort(x, axis=a, descending=descending), ys.asarray(x))
        order = np.argsort(-x if descending else x, axis=axis)
        expected = np.zeros_like(x)
        np.put_along_axis(expected, order, g, axis)
        np.testing.assert_array_equal(back(ys.asarray(g))[0].numpy(), expected)
    weights = ys.asarray(np.arange(15.0).reshape(3, 5))
    second = ys.grad(lambda x: ys.sum(ys.grad(lambda x: ys.sum(weights * ys.sort(x) ** 3))(x)))
    ranks = np.argsort(np.argsort(x, axis=1), axis=1) + 5 * np.arange(3)[:, None]
    np.testing.assert_allclose(second(ys.asarray(x)).numpy(), 6 * x * ranks)


# Extremes


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_positions_of_extremes(name: str) -> None:
    x = rng.integers(0, 4, size=(3, 4, 2)).astype(float)
    x[1, 2, 0] = np.nan
    ours, numpys = getattr(ys, name), getattr(np, name)
    for axis in (None, 0, 1, -1):
        for keepdims in (False, True):
            got = ours(ys.asarray(x), axis=axis, keepdims=keepdims)
            expected = numpys(x, axis=axis, keepdims=keepdims)
            assert (got.shape, got.dtype) == (np.shape(expected), ys.int64)
            np.testing.assert_array_equal(got.numpy(), expected)
    assert ours(ys.asarray(3.0)).tolist() == 0
    with pytest.raises(ShapeError, match=rf"\[{name}\] expected at least one element to search, got shape \(0, 2\)"):
        ours(ys.zeros((0, 2)), axis=0)
    assert ours(ys.zeros((0, 2)), axis=1).shape == (0,)
    with pytest.raises(AxisError, match=rf"\[{name}\] expected an axis from -1 to 0"):
        ours(ys.zeros((2,)), axis=1)


# Searching


@pytest.mark.parametrize("side", ["left", "right"])
def test_searchsorted(side: str) -> None:
    x = np.array([1.0, 2.0, 2.0, 5.0, np.nan])
    values = np.array([[0.0, 2.0, 9.0], [np.nan, 5.0, np.inf]])
    got = ys.searchsorted(ys.asarray(x), ys.asarray(values), side=side)
    np.testing.assert_array_equal(got.numpy(), np.searchsorted(x, values, side=side))
    order = np.array([4, 2, 0, 1, 3])
    mixed = np.empty(5)
    mixed[order] = x
    got = ys.searchsorted(ys.asarray(mixed), ys.asarray(values), side=side, sorter=ys.asarray(order))
    np.testing.assert_array_equal(got.numpy(), np.searchsorted(x, values, side=side))
    assert ys.searchsorted(ys.asarray([1, 2, 3]), 2, side=side).tolist() == {"left": 1, "right": 2}[side]
    assert ys.searchsorted(ys.asarray([1, 2, 3]), 2.5, side=side).tolist() == 2


def test_searchsorted_errors() -> None:
    with pytest.raises(ShapeError, match=r"\[searchsorted\] expected a 1-d tensor to search in, got shape \(2, 2\)"):
        ys.searchsorted(ys.zeros((2, 2)), 1.0)
    with pytest.raises(ValueError, match=r"\[searchsorted\] expected side among 'left', 'right', got 'top'"):
        ys.searchsorted(ys.zeros((2,)), 1.0, side="top")
    with pytest.raises(ShapeError, match=r"\[searchsorted\] expected a sorter of shape \(2,\), got \(3,\)"):
        ys.searchsorted(ys.zeros((2,)), 1.0, sorter=ys.asarray([0, 1, 1]))
    with pytest.raises(IndexingError, match="got 2"):
        ys.searchsorted(ys.zeros((2,)), 1.0, sorter=ys.asarray([0, 2]))


@settings(max_examples=60, deadline=None)
@given(_arrays)
def test_what_is_not_zero(array: np.ndarray) -> None:
    x = ys.asarray(array)
    for got, expected in zip(ys.nonzero(x), np.nonzero(array), strict=True):
        assert got.dtype is ys.int64
        np.testing.assert_array_equal(got.numpy(), expected)
    assert ys.count_nonzero(x).tolist() == np.count_nonzero(array)
    got = ys.count_nonzero(x, axis=0, keepdims=True)
    assert got.dtype is ys.int64
    np.testing.assert_array_equal(got.numpy(), np.count_nonzero(array, axis=0, keepdims=True))


def test_zeros_of_every_kind() -> None:
    for dtype in ("float16", "bfloat16", "complex64"):
        x = ys.asarray([0, 2, -0.0, 3]).astype(dtype)
        assert ys.nonzero(x)[0].tolist() == [1, 3]
        assert int(ys.count_nonzero(x)) == 2
    assert int(ys.count_nonzero(ys.asarray(1j))) == 1


# Sets


@settings(max_examples=80, deadline=None)
@given(_arrays)
def test_unique(array: np.ndarray) -> None:
    x = ys.asarray(array)
    found = ys.unique_all(x)
    values, first, inverse, counts = np.unique(
        array, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    assert found._fields == ("values", "indices", "inverse_indices", "counts")
    assert found.inverse_indices.shape == array.shape
    for got, expected in zip(found, (values, first, inverse.reshape(array.shape), counts), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected)
    assert found.values.dtype is x.dtype
    np.testing.assert_array_equal(ys.unique_values(x).numpy(), values)
    np.testing.assert_array_equal(ys.unique_counts(x).counts.numpy(), counts)
    restored = ys.unique_inverse(x)
    np.testing.assert_array_equal(restored.values[restored.inverse_indices].numpy(), array)


def test_unique_of_halves_and_of_nothing() -> None:
    x = ys.asarray([2.0, float("nan"), 2.0, float("nan"), 1.0]).astype("bfloat16")
    found = ys.unique_all(x)
    assert found.values.dtype is ys.bfloat16
    assert found.counts.tolist() == [1, 2, 1, 1]
    assert ys.unique_values(ys.zeros((0, 3))).shape == (0,)
    assert ys.unique_all(ys.asarray(5)).inverse_indices.tolist() == 0


def test_gradients_flow_through_unique_values() -> None:
    gradient = ys.grad(lambda x: ys.sum(ys.unique_values(x) ** 2))(ys.asarray([3.0, 1.0, 3.0]))
    assert gradient.tolist() == [6.0, 2.0, 0.0]


@pytest.mark.parametrize("invert", [False, True])
def test_isin(invert: bool) -> None:
    x, y = rng.integers(0, 9, size=(3, 4)), rng.integers(0, 9, size=(2, 2))
    got = ys.isin(ys.asarray(x), ys.asarray(y), invert=invert)
    np.testing.assert_array_equal(got.numpy(), np.isin(x, y, invert=invert))
    assert ys.isin(ys.asarray([1, 2]), 2, invert=invert).tolist() == [invert, not invert]
    assert ys.isin(2, ys.asarray([1, 2]), invert=invert).tolist() is not invert
    assert ys.isin(ys.asarray([float("nan")]), ys.asarray([float("nan")]), invert=invert).tolist() == [invert]
    assert ys.isin(ys.zeros((2, 0)), ys.zeros((0,)), invert=invert).shape == (2, 0)


# Errors


def test_what_has_no_order() -> None:
    z = ys.asarray([1j])
    for function in (ys.sort, ys.argsort, ys.argmax, ys.argmin):
        with pytest.raises(DTypeError, match=r"\[\w+\] expected a real dtype, got complex128; cast it with astype"):
            function(z)
    with pytest.raises(AxisError, match=r"\[sort\] expected an axis"):
        ys.sort(ys.asarray(1.0))
    with pytest.raises(ShapeError, match=r"\[nonzero\] expected a tensor of at least one dimension"):
        ys.nonzero(ys.asarray(1.0))


def test_shapes_that_depend_on_values_cannot_be_traced() -> None:
    functions: list[Any] = [ys.nonzero, ys.unique_values]
    for function in functions:
        with pytest.raises(TraceError):
            ys.jit(function)(ys.asarray([1.0]))


def test_order_can_be_traced() -> None:
    f = ys.jit(lambda x: (ys.sort(x, descending=True), x[ys.argsort(x)], ys.searchsorted(ys.sort(x), 2)))
    for values in ([3, 1, 2], [0, 9, 5]):
        down, up, place = f(ys.asarray(values))
        assert (down.tolist(), up.tolist()) == (sorted(values, reverse=True), sorted(values))
        assert int(place) == sum(v < 2 for v in values)


ON_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "count_nonzero": lambda x: ys.count_nonzero(x),
    "nonzero": lambda x: ys.nonzero(x)[0],
    "searchsorted": lambda x: ys.searchsorted(x, x, sorter=np.array([0, 1, 2])),
    "unique_all": lambda x: ys.unique_all(x).indices,
    "unique_counts": lambda x: ys.unique_counts(x).counts,
    "unique_inverse": lambda x: ys.unique_inverse(x).inverse_indices,
    "unique_values": lambda x: ys.unique_values(x),
}


@pytest.mark.parametrize("name", ON_ARRAYS)
def test_numpy_arrays_are_taken_for_tensors(name: str) -> None:
    f, x = ON_ARRAYS[name], np.array([0.0, 2.0, 2.0])
    assert f(x).tolist() == f(ys.asarray(x)).tolist()
    with pytest.raises(DTypeError, match=rf"^\[{name}\] expected a tensor or a number, got str"):
        f("a")


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("count_nonzero", "expected an axis from -1 to 0", lambda x: ys.count_nonzero(x, axis=5)),
        ("searchsorted", "expected indices from -2 to 1 .* got 2", lambda x: ys.searchsorted(x, x, sorter=x + 1)),
        ("searchsorted", "expected a tensor or a number, got str", lambda x: ys.searchsorted(x, x, sorter="a")),
        ("argmax", "expected an axis as an integer, got 'a'", lambda x: ys.argmax(x, axis="a")),
        ("argsort", "expected an axis as an integer, got 1.5", lambda x: ys.argsort(x, axis=1.5)),
    ],
)
def test_mistakes_are_told_by_the_public_name(name: str, text: str, call: Callable[[Any], Any]) -> None:
    with pytest.raises(UserError, match=rf"^\[{name}\] {text}"):
        call(ys.arange(2))
