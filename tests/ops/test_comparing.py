"""Comparisons of whole tensors and of kinds, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import random
from yosegi.errors import ArgumentError, ShapeError
from yosegi.ops import comparing

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))

CASES = {
    "isclose": [
        Case(X, X + 1e-9),
        Case(np.array([np.inf, np.inf, np.nan, 1.0]), np.array([np.inf, -np.inf, np.nan, 1.1])),
        Case(np.array([np.nan, 1.0]), np.array([np.nan, np.nan]), equal_nan=True),
        Case(INTS, INTS[0]),
        Case(X, X * 1.001, 1e-2, 0.0),
        Case(X, X * 1.001, 1e-4, 0.0),
    ],
    "allclose": [Case(X, X + 1e-9), Case(X, X + 1.0)],
    "array_equal": [
        Case(X, X),
        Case(X, X[0]),
        Case(np.array([np.nan]), np.array([np.nan])),
        Case(np.array([np.nan]), np.array([np.nan]), True),
        Case(INTS, INTS.astype(float)),
    ],
    "array_equiv": [Case(X, X[:1]), Case(np.ones((2, 3)), np.ones(3)), Case(X, V)],
    "iscomplexobj": [Case(X), Case(COMPLEX), Case(1j)],
    "isrealobj": [Case(X), Case(COMPLEX), Case(1.0)],
    "isscalar": [Case(X), Case(1.0), Case(np.float32(1))],
    "iterable": [Case(X), Case(np.asarray(1.0)), Case(3)],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(comparing.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE = {"common_type", "issubdtype", "promote_types"}


def test_dtypes():
    assert ys.promote_types("int16", np.float32) is ys.float32
    assert ys.common_type(ys.asarray([1]), ys.asarray([1j])) is ys.complex128
    assert ys.issubdtype(np.int8, "integral")
    assert not ys.issubdtype(ys.float32, ys.float64)


def test_mistakes():
    with pytest.raises((ArgumentError, ShapeError)):
        ys.isclose(ys.asarray(X), ys.asarray(V))
