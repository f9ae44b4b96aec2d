"""Elements chosen by conditions, indices and rank, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, ShapeError
from yosegi.ops import choosing, sets

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))
BYTES = np.random.default_rng(1).integers(0, 256, (2, 3), np.uint8)


def _put(x, indices, values, axis):
    made = x.copy()
    np.put_along_axis(made, indices, values, axis)
    return made


CASES = {
    "select": [Case([X > 1, X < 0], [X, X * 2], 7.0), Case([INTS > 0], [INTS])],
    "piecewise": [Case(X, [X < 0, X > 1], [1.0, 2.0]), Case(X, [X < 0], [lambda v: -v, lambda v: v * 2])],
    "choose": [
        Case(np.array([[0, 1], [2, 0]]), [np.array([1, 2]), np.array([[3], [4]]), np.array(5)]),
        Case(np.array([-1, 5]), [1, 2], mode="clip"),
        Case(np.array([-1, 5]), [1, 2], mode="wrap"),
    ],
    "compress": [Case(np.array([True, False, True]), X, axis=0, eager=True), Case([0, 1, 1], X, eager=True)],
    "extract": [Case(X > 0, X, eager=True)],
    "argwhere": [Case(X > 0, eager=True), Case(np.asarray(1.0), eager=True)],
    "flatnonzero": [Case(INTS, eager=True)],
    "trim_zeros": [
        Case(np.array([0, 0, 1, 0, 2, 0]), eager=True),
        Case(np.array([0, 1, 0]), "f", eager=True),
        Case(np.zeros(3), eager=True),
    ],
    "lexsort": [Case((INTS[0], INTS[1])), Case((INTS[0], INTS[1] > 0, INTS[2] > 0))],
    "sort_complex": [Case(COMPLEX), Case(np.array([1 + 2j, 1 - 1j, 0]))],
    "put_along_axis": [Case(X, np.array([[1], [0], [3]]), 9.0, 1, reference=_put)],
    "unravel_index": [Case(np.array([5, 11, 0]), (3, 4)), Case(np.asarray(7), (2, 2, 3))],
    "ravel_multi_index": [
        Case((np.array([0, 2]), np.array([3, 1])), (3, 4)),
        Case((np.array([-1, 9]), np.array([3, 1])), (3, 4), mode="wrap"),
        Case((np.array([-1, 9]), np.array([3, 1])), (3, 4), mode="clip"),
    ],
    "unique": [
        Case(INTS, eager=True),
        Case(INTS, True, True, True, eager=True),
        Case(np.array([np.nan, 1.0, np.nan]), True, True, True, eager=True),
    ],
    "union1d": [Case(INTS[0], INTS[1], eager=True), Case(INTS, V, eager=True)],
    "intersect1d": [Case(INTS[0], INTS[1], eager=True)],
    "setdiff1d": [Case(INTS[0], INTS[1], eager=True)],
    "setxor1d": [Case(INTS[0], INTS[1], eager=True)],
    "packbits": [Case(X > 0), Case(INTS % 2, 1), Case(X > 0, 0, "little"), Case(np.ones(16, np.uint8))],
    "unpackbits": [Case(BYTES), Case(BYTES, 1), Case(BYTES, 0, 5), Case(BYTES, 1, -3, "little")],
}


def test_every_function_of_the_family_is_in_the_table():
    assert {*choosing.__all__, *sets.__all__} <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE = {"TopK", "topk", "partition", "argpartition", "one_hot"}

GRADIENTS = {
    "select": (lambda x: ys.select([x > 1, x < 0], [x * x, x * 3], x), X),
    "topk": (lambda x: ys.topk(x, 2).values, X),
    "put_along_axis": (lambda x, v: ys.put_along_axis(x, ys.asarray([[1], [0], [3]]), v, 1), X, random((3, 1))),
    "choose": (lambda a, b: ys.choose(ys.asarray([0, 1, 1, 0]), [a, b]), X[0], X[1]),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


@settings(deadline=None)
@given(hnp.arrays(np.int64, hnp.array_shapes(max_dims=3, max_side=6), elements=st.integers(-5, 5)), st.data())
def test_topk_is_the_front_of_the_order(x, data):
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    k = data.draw(st.integers(0, x.shape[axis]))
    for largest in (True, False):
        values, places = ys.topk(ys.asarray(x), k, axis, largest=largest)
        order = np.sort(x, axis)
        order = np.flip(order, axis) if largest else order
        np.testing.assert_array_equal(values.numpy(), np.take(order, range(k), axis))
        np.testing.assert_array_equal(np.take_along_axis(x, places.numpy(), axis), values.numpy())


def test_partition_and_one_hot():
    parted, order = ys.partition(ys.asarray(V), 3).numpy(), ys.argpartition(ys.asarray(V), 3).numpy()
    assert (parted[:3] <= parted[3]).all()
    assert (parted[4:] >= parted[3]).all()
    np.testing.assert_array_equal(V[order], parted)
    made = ys.nn.one_hot(ys.asarray([[0, 2], [5, -1]]), 3, axis=1, dtype=ys.int8)
    assert made.tolist() == [[[1, 0], [0, 0], [0, 1]], [[0, 0], [0, 0], [0, 0]]]
    assert made.dtype is ys.int8


def test_mistakes():
    with pytest.raises(ArgumentError, match=r"\[topk\] expected k from 0 to 7, got 8"):
        ys.topk(ys.asarray(V), 8)
    with pytest.raises(ArgumentError, match=r"\[choose\] expected numbers from 0 to 1"):
        ys.choose(ys.asarray([2]), [1, 2])
    with pytest.raises(ShapeError, match=r"\[trim_zeros\]"):
        ys.trim_zeros(ys.asarray(X))
