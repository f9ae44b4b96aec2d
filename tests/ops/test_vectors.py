"""Products by NumPy's names, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, ShapeError
from yosegi.ops import vectors

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))


def _solved(a, b):
    made = np.linalg.lstsq(a, b)
    return made[0], np.atleast_1d(made[1]), np.int64(made[2]), made[3]


CASES = {
    "dot": [
        Case(V, V),
        Case(X, X.T),
        Case(X, 2.0),
        Case(X, X[0]),
        Case(CUBE, random((4, 2))),
        Case(X, random((2, 4, 3))),
        Case(CUBE, X[0]),
    ],
    "inner": [Case(V, V), Case(X, X), Case(CUBE, X), Case(X, 3.0)],
    "outer": [Case(V, V), Case(X, V), Case(INTS, 2.0 * np.ones(2))],
    "vdot": [Case(COMPLEX, COMPLEX), Case(X, X), Case(V, V)],
    "kron": [Case(V, V), Case(X, X), Case(X, V), Case(V, CUBE), Case(INTS, INTS)],
    "cross": [Case(X[:, :3], X[:, 1:]), Case(X, X[::-1].copy(), axis=0), Case(X, X[::-1].copy(), 0, 0, 0)],
    "matvec": [Case(X, X[0]), Case(CUBE, X[0]), Case(CUBE, random((2, 4)))],
    "vecmat": [Case(X[:, 0].copy(), X), Case(COMPLEX[:, 0].copy(), COMPLEX), Case(random((2, 3)), CUBE)],
    "linalg.multi_dot": [Case([X, X.T, X, X[0]]), Case([X[:, 0].copy(), X, X.T]), Case([X, X.T])],
    "linalg.norm": [
        Case(X),
        Case(V, 3),
        Case(X, axis=1),
        Case(X, "nuc"),
        Case(CUBE, 2, (0, 2)),
        Case(X, 1, 0, keepdims=True),
        Case(CUBE, "fro", (2, 1), keepdims=True),
        Case(COMPLEX),
        Case(CUBE),
        Case(V, np.inf),
        Case(X, -2),
    ],
    "linalg.cond": [Case(X, rtol=1e-9)] + [Case(X[:, :3], p, rtol=1e-9) for p in (None, 1, -1, np.inf, "fro", 2, -2)],
    "linalg.lstsq": [
        Case(X.T.copy(), X[0], reference=_solved, rtol=1e-9),
        Case(X.T.copy(), X.T.copy(), reference=_solved, rtol=1e-9),
    ],
    "linalg.tensorinv": [Case(random((4, 2, 2)), 1, rtol=1e-9), Case(random((2, 3, 6)), 2, rtol=1e-9)],
    "linalg.tensorsolve": [
        Case(random((2, 3, 6)), random((2, 3)), rtol=1e-9),
        Case(random((6, 2, 3)), random((2, 3)), (0,), rtol=1e-9),
    ],
    "fft.fft2": [Case(CUBE), Case(CUBE, (2, 2), (0, 1))],
    "fft.ifft2": [Case(COMPLEX)],
    "fft.rfft2": [Case(CUBE)],
    "fft.irfft2": [Case(COMPLEX), Case(COMPLEX, (3, 5))],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(vectors.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()

GRADIENTS = {
    "kron": (ys.kron, X, V),
    "dot": (ys.dot, CUBE, random((4, 2))),
    "cond": (ys.linalg.cond, X[:, :3]),
    "lstsq": (lambda a, b: ys.linalg.lstsq(a, b).x, X.T.copy(), X[0]),
    "multi_dot": (lambda a, b: ys.linalg.multi_dot([a, b, a]), X, random((4, 3))),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


def test_multi_dot_takes_the_cheaper_order():
    long, flat = ys.ones((50, 2)), ys.ones((2, 50))
    made = ys.linalg.multi_dot([long, flat, long])
    assert made._node.inputs[1].spec.shape == (2, 2)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (0, 0)])
def test_lstsq_of_an_empty_matrix(shape):
    a, b = np.ones(shape), np.ones((shape[0], 2))
    made = ys.linalg.lstsq(ys.asarray(a), ys.asarray(b))
    expected = np.linalg.lstsq(a, b)
    np.testing.assert_array_equal(made.x.numpy(), expected[0])
    assert int(made.rank) == 0
    assert made.s.shape == (0,)


def test_lstsq_of_a_matrix_without_full_rank():
    a = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    found = ys.linalg.lstsq(ys.asarray(a), ys.asarray([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(found.x.numpy(), [0.5, 0.5])
    assert int(found.rank) == 1


def test_mistakes():
    with pytest.raises(ArgumentError, match=r"\[multi_dot\] expected at least two matrices"):
        ys.linalg.multi_dot([ys.asarray(X)])
    with pytest.raises(ShapeError, match=r"\[norm\] expected one or two axes"):
        ys.linalg.norm(ys.asarray(CUBE), 1)
