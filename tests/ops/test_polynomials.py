"""Polynomials, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, ShapeError
from yosegi.ops import polynomials

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))

CASES = {
    "polyval": [Case(V, X), Case(INTS[0], 3), Case(INTS[0], INTS)],
    "polyadd": [Case(V, V[:3]), Case(INTS[0], V)],
    "polysub": [Case(V, V[:3]), Case(V[:2], V)],
    "polymul": [Case(V, V[:3]), Case(INTS[0], INTS[1])],
    "polydiv": [Case(V, V[:3]), Case(V[:3], V), Case(V, V[:1])],
    "polyder": [Case(V), Case(INTS[0], 2), Case(V, 0)],
    "polyint": [Case(V), Case(V, 2, [3.0, 4.0]), Case(V, 2, 5.0)],
    "vander": [Case(V), Case(INTS[0], 3), Case(V, 4, True), Case(V, 0)],
    "polyfit": [
        Case(V, V**2, 2, rtol=1e-8),
        Case(V, random((7, 2)), 3, rtol=1e-8),
        Case(V, V**3, 2, w=np.arange(1.0, 8), rtol=1e-8),
    ],
    "poly": [Case(V[:4]), Case(random((3, 3)), rtol=1e-9)],
    "roots": [
        Case(np.array([1.0, -6.0, 11.0, -6.0]), eager=True, rtol=1e-9, reference=lambda p: np.roots(p) + 0j),
        Case(np.array([0.0, 1.0, 0.0, 1.0, 0.0]), eager=True, rtol=1e-9),
    ],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(polynomials.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()

GRADIENTS = {
    "polyval": (ys.polyval, V, X),
    "polyfit": (lambda x, y: ys.polyfit(x, y, 2), V, V**2 + 1),
    "polydiv": (lambda p: ys.polydiv(p, ys.asarray([1.0, 2.0])), V),
    "vander": (lambda x: ys.vander(x, 4), V),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


def test_mistakes():
    with pytest.raises(ShapeError, match=r"\[polyval\] expected a vector of coefficients"):
        ys.polyval(ys.asarray(X), 1.0)
    with pytest.raises(ArgumentError, match=r"\[polyder\] expected m of at least 0"):
        ys.polyder(ys.asarray(V), -1)
