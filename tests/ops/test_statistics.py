"""Order statistics, averages, correlations, counts and histograms, against NumPy."""

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
from yosegi.ops import counts, statistics

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))

CASES = {
    "quantile": [
        Case(X, 0.3),
        Case(X, np.array([0.0, 0.25, 1.0]), 1),
        Case(CUBE, 0.7, (0, 2), keepdims=True),
        Case(INTS, [0.1, 0.5]),
        Case(np.array([1.0, np.nan]), 0.5),
    ]
    + [Case(V, np.linspace(0, 1, 9), method=m) for m in ("lower", "higher", "midpoint", "nearest")],
    "percentile": [Case(X, 30), Case(X, [10, 50, 90], 0)],
    "median": [
        Case(X),
        Case(X, 1),
        Case(V),
        Case(INTS, (0, 1), keepdims=True),
        Case(np.array([np.inf, np.inf])),
        Case(np.array([[1.0, np.nan], [2.0, 3.0]]), 1),
    ],
    "ptp": [Case(X), Case(X, 1)],
    "average": [
        Case(X),
        Case(X, 1, np.arange(4.0)),
        Case(X, weights=POSITIVE),
        Case(INTS, 0, np.array([1, 2, 3])),
        Case(X, 1, np.arange(4.0), True),
        Case(CUBE, (0, 2), random((2, 4))),
        Case(X, 0, returned=True),
        Case(X, 1, np.arange(4.0), keepdims=True),
    ],
    "cov": [
        Case(X),
        Case(V),
        Case(X, X + 1),
        Case(X, rowvar=False),
        Case(X, bias=True),
        Case(X, ddof=2),
        Case(COMPLEX),
        Case(X, fweights=np.array([1, 2, 3, 1])),
        Case(X, aweights=np.array([0.1, 0.2, 0.3, 1.0])),
        Case(X, fweights=np.array([1, 2, 3, 1]), aweights=np.array([0.1, 0.2, 0.3, 1.0])),
    ],
    "corrcoef": [Case(X), Case(X, rowvar=False), Case(V, V**2), Case(COMPLEX)],
    "bincount": [
        Case(np.array([0, 3, 3, 1]), eager=True),
        Case(np.array([0, 3]), minlength=6, eager=True),
        Case(np.array([0, 3, 3]), np.array([0.5, 1.0, 2.0]), eager=True),
        Case(np.zeros(0, int), eager=True),
    ],
    "digitize": [
        Case(V, np.array([-1.0, 0.0, 0.5])),
        Case(INTS, np.array([-3, 0, 4]), True),
        Case(V, np.array([0.5, 0.0, -1.0])),
        Case(INTS, np.array([4, 0, -3]), True),
    ],
    "histogram_bin_edges": [Case(V, 4), Case(V, 4, (0, 1)), Case(V, np.array([0.0, 1.0])), Case(np.ones(3), 2)],
    "histogram": [
        Case(V),
        Case(X, 4),
        Case(X, 3, (-1, 1)),
        Case(X, 3, (-1, 1), True),
        Case(V, np.array([-1.0, 0.0, 2.0])),
        Case(V, 3, weights=np.arange(7.0)),
    ],
    "histogramdd": [Case(random((20, 3)), 3, reference=lambda *a: _plain(np.histogramdd(*a)))],
    "histogram2d": [Case(random((20,)), random((20,), seed=1), 4, reference=lambda *a: _whole(np.histogram2d(*a)))],
}


def test_every_function_of_the_family_is_in_the_table():
    assert {*statistics.__all__, *counts.__all__} <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE = {"along_last", "quantiles_of"}


def _plain(found):
    return found[0].astype(np.int64), list(found[1])


def _whole(found):
    return (found[0].astype(np.int64), *found[1:])


GRADIENTS = {
    "quantile": (lambda x: ys.quantile(x, [0.2, 0.7], axis=1), X),
    "median": (lambda x: ys.median(x, axis=0), X),
    "average": (lambda x, w: ys.average(x, weights=w), X, POSITIVE),
    "cov": (ys.cov, X),
    "corrcoef": (ys.corrcoef, X),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


@settings(deadline=None)
@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, max_side=5), elements=st.floats(-100, 100)),
       st.floats(0, 1), st.data())  # fmt: skip
def test_quantiles_along_any_axis(x, q, data):
    axis = data.draw(st.one_of(st.none(), st.integers(-x.ndim, x.ndim - 1)))
    made = ys.quantile(ys.asarray(x), q, axis).numpy()
    np.testing.assert_allclose(made, np.quantile(x, q, axis), rtol=1e-9, atol=1e-9)


@settings(deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 30), elements=st.integers(-8, 8).map(float)), st.integers(1, 9))
def test_histograms_count_every_element_on_an_edge(x, bins):
    made = ys.histogram(ys.asarray(x), bins, (-8, 8))[0].numpy()
    assert made.tolist() == np.histogram(x, bins, (-8, 8))[0].tolist()


def test_bincount_of_a_length_is_traced_and_leaves_out_the_rest():
    count = ys.jit(lambda x: ys.bincount(x, length=3))
    assert count(ys.asarray([0, 2, 2, 7, -1])).tolist() == [1, 0, 2]


def test_mistakes():
    with pytest.raises(ArgumentError, match=r"\[percentile\] expected q from 0 to 100, got 101"):
        ys.percentile(ys.asarray(V), 101)
    with pytest.raises(ShapeError, match=r"\[average\] expected weights of shape"):
        ys.average(ys.asarray(X), weights=ys.asarray(V))
