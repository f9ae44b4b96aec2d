"""Tensors put together and taken apart, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, ShapeError
from yosegi.ops import joins

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))

CASES = {
    "atleast_1d": [Case(np.asarray(3.0)), Case(X), Case(np.asarray(1), X)],
    "atleast_2d": [Case(np.asarray(3.0)), Case(V), Case(CUBE)],
    "atleast_3d": [Case(np.asarray(3.0)), Case(V), Case(X), Case(CUBE)],
    "vstack": [Case([V, V]), Case([X, X[:1]])],
    "hstack": [Case([V, V[:2]]), Case([X, X[:, :1]]), Case([np.asarray(1.0), np.asarray(2.0)])],
    "dstack": [Case([V, V]), Case([X, X])],
    "column_stack": [Case([V, V]), Case([X, X[:, 0]])],
    "block": [Case([[X, X], [X, X]]), Case([V, V]), Case(X), Case([[np.asarray(1.0), np.asarray(2.0)]])],
    "append": [Case(X, V), Case(X, X, axis=1), Case(INTS, 2.5 * np.ones(1))],
    "array_split": [Case(V, 3), Case(X, [1, 3], axis=1), Case(X, 5, axis=0)],
    "split": [Case(X, 2, axis=1), Case(V, [2, 2, 9])],
    "hsplit": [Case(X, 2), Case(V, [3])],
    "vsplit": [Case(X, 3)],
    "dsplit": [Case(CUBE, 2)],
    "delete": [Case(V, 2), Case(X, [0, -1], axis=1), Case(X, slice(1, 3), axis=0), Case(X, [1, 1, 4])],
    "insert": [
        Case(V, 2, 9.0),
        Case(V, [4, 1], np.array([8.0, 9.0])),
        Case(X, 1, 9.0, axis=1),
        Case(X, 1, V[:3], axis=1),
        Case(X, [1, 3], np.ones((3, 2)), axis=1),
        Case(V, [2, 2], [7.0, 8.0]),
        Case(V, 2, [7.0, 8.0]),
        Case(X, -1, 0.0),
        Case(X, [0, 2], V[:4], axis=0),
        Case(V, [-1, 1], [7.0, 8.0]),
        Case(V, slice(1, 4), 5.0),
    ],
    "resize": [Case(V, (3, 4)), Case(X, 5), Case(X, (0, 2))],
    "indices": [Case((2, 3)), Case((2, 3), sparse=True), Case((2,), dtype=np.float32)],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(joins.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()

GRADIENTS = {
    "block": (lambda a, b: ys.block([[a, b], [b, a]]), X, X + 1),
    "insert": (lambda a, b: ys.insert(a, [3, 1], b), V, random((2,))),
    "delete": (lambda a: ys.delete(a, [0, 2]), V),
    "resize": (lambda a: ys.resize(a, (5, 4)), V),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


@given(st.integers(0, 12), st.integers(1, 9))
def test_array_split_by_any_count(length, count):
    x = np.arange(length)
    made, expected = ys.array_split(ys.asarray(x), count), np.array_split(x, count)
    assert [m.tolist() for m in made] == [e.tolist() for e in expected]


@given(st.lists(st.integers(-5, 5), max_size=6), st.data())
def test_insert_at_any_places(places, data):
    x = np.arange(5.0)
    values = np.array(data.draw(st.lists(st.floats(-9, 9), min_size=len(places), max_size=len(places))))
    made = ys.insert(ys.asarray(x), np.array(places, np.int64), ys.asarray(values))
    np.testing.assert_array_equal(made.numpy(), np.insert(x, np.array(places, np.int64), values))


def test_mistakes():
    with pytest.raises(ShapeError, match=r"\[split\] expected sections that divide the length 7, got 2"):
        ys.split(ys.asarray(V), 2)
    with pytest.raises(ArgumentError, match=r"\[block\]"):
        ys.block([[ys.ones((1, 1))], ys.ones((1, 1))])
