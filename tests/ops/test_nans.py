"""Reductions that skip NaN, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import random
from yosegi.errors import ArgumentError
from yosegi.ops import nans

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))
GAPS = np.where(X > 0.5, np.nan, X)

CASES = {
    name: [
        Case(GAPS),
        Case(GAPS, 1),
        Case(GAPS, 0, keepdims=True),
        Case(INTS, 1),
        Case(GAPS.astype(np.float32), rtol=2e-6),
    ]
    for name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanmedian")
} | {
    "nanargmax": [Case(GAPS), Case(GAPS, 1)],
    "nanargmin": [Case(GAPS), Case(GAPS, 0)],
    "nancumsum": [Case(GAPS), Case(GAPS, 1), Case(INTS)],
    "nancumprod": [Case(GAPS), Case(GAPS, 1)],
    "nanquantile": [Case(GAPS, 0.3), Case(GAPS, [0.1, 0.5], 1)],
    "nanpercentile": [Case(GAPS, 30), Case(GAPS, [0, 100], 0)],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(nans.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()


@pytest.mark.parametrize("name", ["nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanmedian"])
def test_the_gradient_of_a_gap_is_zero_and_that_of_numbers_is_right(name):
    present = ~np.isnan(GAPS)
    weights = ys.asarray(random((3,)))

    def loss(x):
        return ys.sum(getattr(ys, name)(ys.where(ys.asarray(present), x, ys.nan), axis=1) * weights)

    gradient = ys.grad(loss)(ys.asarray(X)).numpy()
    assert (gradient[~present] == 0).all()
    step = np.zeros_like(X)
    for place in np.argwhere(present):
        step[:] = 0
        step[tuple(place)] = 1e-6
        slope = float(loss(ys.asarray(X + step)) - loss(ys.asarray(X - step))) / 2e-6
        np.testing.assert_allclose(gradient[tuple(place)], slope, atol=1e-6)


def test_nothing_but_nan():
    x = ys.asarray([[np.nan, np.nan], [1.0, np.nan]])
    assert ys.nansum(x, 1).tolist() == [0.0, 1.0]
    assert np.isnan(ys.nanmax(x, 1).numpy()).tolist() == [True, False]
    assert np.isnan(ys.nanmean(x, 1).numpy()).tolist() == [True, False]
    with pytest.raises(ArgumentError, match=r"\[nanargmax\] expected a number in every slice"):
        ys.nanargmax(x, 1)
