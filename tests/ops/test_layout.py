"""Axes, diagonals, triangles and padding, against NumPy."""

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
from yosegi.ops import layout

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))

CASES = {
    "array": [Case([1, 2]), Case([[1.0]], ndmin=3), Case([1, 2], np.float32)],
    "copy": [Case(X)],
    "shape": [Case(X)],
    "ndim": [Case(X)],
    "size": [Case(X), Case(X, 1)],
    "ravel": [Case(X)],
    "transpose": [Case(CUBE), Case(CUBE, (1, 0, 2)), Case(CUBE, axes=[2, 0, 1]), Case(V)],
    "swapaxes": [Case(CUBE, 0, -1), Case(CUBE, 1, 1)],
    "rollaxis": [Case(CUBE, 2), Case(CUBE, 0, 3), Case(CUBE, 1, -1), Case(CUBE, -1, 1)],
    "fliplr": [Case(X)],
    "flipud": [Case(V)],
    "rot90": [Case(CUBE, k) for k in range(-1, 4)] + [Case(CUBE, 1, (2, 0))],
    "diagonal": [Case(X), Case(CUBE, -1), Case(CUBE, 1, 2, 0)],
    "trace": [Case(X), Case(CUBE, 0, 1, 2), Case(INTS.astype(np.int8))],
    "diag": [Case(X, 1), Case(V, -2), Case(X)],
    "diagflat": [Case(X, 1), Case(V)],
    "tri": [Case(3), Case(3, 5, 1), Case(2, 2, -1, np.int32)],
    "tril_indices": [Case(3), Case(3, 1, 5)],
    "triu_indices": [Case(3), Case(3, -1, 5)],
    "tril_indices_from": [Case(X, 1)],
    "triu_indices_from": [Case(X)],
    "diag_indices": [Case(3), Case(2, 3)],
    "diag_indices_from": [Case(np.zeros((2, 2, 2)))],
    "ix_": [Case(np.array([0, 2]), np.array([1, 2, 3]))],
    "pad": [
        Case(X, 2),
        Case(X, ((1, 0), (0, 2)), constant_values=7.0),
        Case(X, (1, 2), constant_values=(8.0, 9.0)),
        Case(INTS, ((2, 1), (0, 0)), "edge"),
        Case(V, (3, 5), "reflect"),
        Case(V, (9, 20), "symmetric"),
        Case(V, 11, "wrap"),
        Case(CUBE, ((0, 1), (2, 2), (3, 0)), "reflect"),
        Case(V, ((1, 2),), "wrap"),
    ],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(layout.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()

GRADIENTS = {
    "pad": (lambda x: ys.pad(x, 2), X),
    "pad by reflection": (lambda x: ys.pad(x, ((2, 1), (9, 9)), "reflect"), X),
    "diag": (ys.diag, V),
    "trace": (ys.trace, CUBE),
    "rot90": (ys.rot90, X),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


@settings(deadline=None)
@given(hnp.array_shapes(max_dims=3, max_side=4), st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]),
       st.data())  # fmt: skip
def test_pad_by_any_widths(shape, mode, data):
    x = np.arange(np.prod(shape)).reshape(shape)
    widths = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=x.ndim, max_size=x.ndim))
    np.testing.assert_array_equal(ys.pad(ys.asarray(x), widths, mode).numpy(), np.pad(x, widths, mode))


def test_mistakes():
    with pytest.raises(ArgumentError, match=r"\[pad\] expected mode among"):
        ys.pad(ys.asarray(V), 1, "nearest")
    with pytest.raises(ArgumentError, match=r"\[pad\] expected a pair for each of 2 dimensions"):
        ys.pad(ys.asarray(X), ((1, 1), (1, 1), (1, 1)))
    with pytest.raises(ShapeError, match=r"\[diag\] expected a vector or a matrix"):
        ys.diag(ys.asarray(CUBE))
