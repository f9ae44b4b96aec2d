"""Convolution, interpolation, differences, integrals and windows, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import check_gradient, random
from yosegi.errors import ArgumentError, ShapeError
from yosegi.ops import signal

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))
PLACES = np.array([-1.0, -0.3, 0.2, 0.5, 1.5])

CASES = {
    "convolve": [Case(V, V[:3], m) for m in ("full", "same", "valid")]
    + [
        Case(V[:3], V),
        Case(V[:2], V, "same"),
        Case(INTS[0], INTS[1]),
        Case(COMPLEX[0], V),
        Case(V, V[:4], "same"),
        Case(np.array([True, False]), np.array([True, True]), reference=lambda x, y: np.convolve(x.astype(int), y)),
    ],
    "correlate": [Case(V, V[:3], m) for m in ("full", "same", "valid")]
    + [Case(V[:3], V, m) for m in ("full", "same", "valid")]
    + [Case(V[:4], V, "same"), Case(COMPLEX[0], COMPLEX[1], "full"), Case(COMPLEX[0], COMPLEX[1, :2])],
    "interp": [
        Case(V, PLACES, V[:5]),
        Case(V, PLACES, V[:5], -9.0, 9.0),
        Case(V, PLACES, COMPLEX.ravel()[:5]),
        Case(V * 9, PLACES[::-1].copy(), V[:5], period=3.0),
        Case(np.array([np.nan, 1.0]), PLACES, V[:5]),
        Case(PLACES, PLACES, V[:5]),
        Case(V, np.array([0.5]), np.array([2.0])),
    ],
    "unwrap": [Case(V * 9), Case(X * 9, axis=0), Case(V * 9, period=3.0), Case(V * 9, 5.0), Case(np.array([0, np.pi]))],
    "ediff1d": [Case(X), Case(INTS, 99, -99), Case(V, np.array([1.0, 2.0]))],
    "gradient": [
        Case(V),
        Case(X),
        Case(X, axis=1),
        Case(V, 2.0),
        Case(V, np.sort(V)),
        Case(V, edge_order=2),
        Case(V, np.sort(V), edge_order=2),
        Case(X, 2.0, np.arange(4.0) ** 2),
        Case(CUBE, axis=(0, 2)),
    ],
    "trapezoid": [Case(V), Case(X, axis=0), Case(V, np.sort(V)), Case(X, dx=0.5), Case(INTS), Case(X, X)],
    "hanning": [Case(8), Case(1), Case(0)],
    "hamming": [Case(8), Case(5)],
    "blackman": [Case(8), Case(5)],
    "bartlett": [Case(8), Case(5)],
    "kaiser": [Case(8, 3.0), Case(9, 14.0)],
    "i0": [Case(X), Case(X * 30)],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(signal.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()

GRADIENTS = {
    "convolve": (lambda x, y: ys.convolve(x, y, "same"), V, V[:3]),
    "correlate": (lambda x, y: ys.correlate(x, y, "full"), V[:3], V),
    "interp": (lambda x, y: ys.interp(x, ys.asarray(PLACES), y), V, V[:5] * 2),
    "gradient": (ys.gradient, V),
    "trapezoid": (ys.trapezoid, X),
    "i0": (ys.i0, X),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["full", "same", "valid"]))
def test_convolutions_of_any_lengths(n, m, mode):
    x, y = random((n,)), random((m,), seed=1)
    np.testing.assert_allclose(ys.convolve(ys.asarray(x), ys.asarray(y), mode).numpy(), np.convolve(x, y, mode))
    made = ys.correlate(ys.asarray(x), ys.asarray(y), mode).numpy()
    np.testing.assert_allclose(made, np.correlate(x, y, mode), atol=1e-12)


def test_mistakes():
    with pytest.raises(ShapeError, match=r"\[convolve\] expected vectors"):
        ys.convolve(ys.asarray(X), ys.asarray(V))
    with pytest.raises(ArgumentError, match=r"\[gradient\] expected one spacing"):
        ys.gradient(ys.asarray(CUBE), 1.0, 2.0)
