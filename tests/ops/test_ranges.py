"""Ranges, tensors made by functions, running totals by NumPy's names, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import check_gradient, random
from yosegi.errors import ArgumentError
from yosegi.ops import ranges

X = random((3, 4))
V = random((7,))
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))

CASES = {
    "identity": [Case(3), Case(2, np.int8)],
    "logspace": [Case(0, 3), Case(-1.0, 1.0, 5, False), Case(0, 4, 5, True, 2.0), Case(0, 2, 3, dtype=np.int32)],
    "geomspace": [Case(1, 1000), Case(-8.0, -1.0, 4), Case(1, 256, 8, False), Case(3, 7, 1)],
    "fromfunction": [Case(lambda i, j: i + j, (2, 3)), Case(lambda i: i * 2, (4,), dtype=int)],
    "fromiter": [Case([1, 2, 3], np.float32), Case(range(9), int, 4), Case([], float)],
    "frombuffer": [Case(bytes(range(16)), np.int32), Case(bytes(range(16)), np.uint8, 3, 2)],
    "mask_indices": [Case(3, ys.tril, reference=lambda n, f: np.mask_indices(n, np.tril), eager=True)],
    "cumsum": [Case(X), Case(X, 1), Case(INTS.astype(np.int8), 0), Case(X, 0, dtype=np.float32, rtol=1e-6)],
    "cumprod": [Case(X), Case(X, 1), Case(INTS, 0)],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(ranges.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()

GRADIENTS = {
    "cumsum": (ys.cumsum, X),
    "cumprod": (lambda x: ys.cumprod(x, 1), X),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


def test_mistakes():
    with pytest.raises(ArgumentError, match=r"\[geomspace\] expected start and stop of one sign"):
        ys.geomspace(-1, 1)
    with pytest.raises(ArgumentError, match=r"\[fromiter\] expected 4 numbers, got 1"):
        ys.fromiter([1], int, 4)
