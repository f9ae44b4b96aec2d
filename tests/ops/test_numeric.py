"""Elementwise functions by NumPy's names, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from against_numpy import Case, check, rows
from gradients import check_gradient, random
from yosegi.ops import numeric

X = random((3, 4))
V = random((7,))
EDGES8 = np.array([-128, -127, -7, -1, 0, 1, 7, 12, 127], np.int8)
EDGES64 = EDGES8 * np.int64(2**56)
POSITIVE = np.abs(X) + 0.5
INTS = np.random.default_rng(0).integers(-9, 9, (3, 4))
COMPLEX = random((3, 4), np.complex128)
CUBE = random((2, 3, 4))

CASES = {
    "deg2rad": [Case(X), Case(INTS)],
    "rad2deg": [Case(X)],
    "angle": [Case(COMPLEX), Case(COMPLEX, deg=True), Case(X), Case(np.array([np.inf, -np.inf, -0.0, np.nan]))],
    "sinc": [Case(np.where(X > 1, 0, X))],
    "exp2": [Case(X), Case(INTS), Case(X.astype(np.float32), rtol=1e-6)],
    "logaddexp2": [Case(X, X[0])],
    "cbrt": [Case(np.concatenate([V, [0.0, -0.0, np.inf, -np.inf, 1e300, 1e-300]]))],
    "float_power": [Case(POSITIVE, X), Case(np.abs(INTS), 2), Case(POSITIVE.astype(np.float32), 0.5)],
    "fabs": [Case(X), Case(INTS)],
    "modf": [Case(np.concatenate([V * 5, [np.inf, -np.inf, 2.0, -0.0]]))],
    "ldexp": [
        Case(X, INTS),
        Case(np.array([1.5, 1e300, 5e-324, 2.0**1000]), np.array([-1070, 20, 2097, -2000])),
        Case(np.array([[-0.0], [np.inf], [np.nan], [1.0]]), np.array([-(2**31), -2000, 0, 2000, 2**31 - 1], np.int32)),
        Case(np.array([[-0.0], [1e-7]], np.float16), np.array([-128, 20, 38, 127], np.int8)),
    ],
    "frexp": [
        Case(np.concatenate([V * 100, [0.0, np.inf, 8.0, 2.0**-1030, 1e308, -0.5]])),
        Case(V.astype(np.float32), rtol=1e-6),
    ],
    "spacing": [Case(np.concatenate([V, [1.0, -1.0, 0.0]]))],
    "heaviside": [Case(np.array([-1.0, 0.0, 2.0, np.nan]), 0.5)],
    "fmax": [Case(np.array([1.0, np.nan, np.nan]), np.array([np.nan, 2.0, np.nan])), Case(INTS, 0)],
    "fmin": [Case(np.array([1.0, np.nan, np.nan]), np.array([np.nan, 2.0, np.nan])), Case(INTS, 0)],
    "isposinf": [Case(np.array([np.inf, -np.inf, np.nan, 1.0]))],
    "isneginf": [Case(np.array([np.inf, -np.inf, np.nan, 1.0]))],
    "isreal": [Case(np.array([1, 1j, np.nan])), Case(INTS)],
    "iscomplex": [Case(np.array([1, 1j, np.nan])), Case(X)],
    "nan_to_num": [
        Case(np.array([np.inf, -np.inf, np.nan, 1.0])),
        Case(INTS),
        Case(np.array([np.inf, -np.inf, np.nan]), nan=5.0, posinf=6.0, neginf=7.0),
        Case(np.array([complex(np.nan, np.inf), 1j])),
    ],
    "fmod": [
        Case(X * 9, X[0]),
        Case(INTS, 4),
        Case(INTS, -4),
        Case(np.abs(INTS).astype(np.uint8), np.uint8(3)),
        Case(EDGES8[:, None], np.delete(EDGES8, 4)),
        Case(EDGES64[:, None], np.delete(EDGES64, 4)),
    ],
    "divmod": [Case(INTS, 4), Case(X, X[0])],
    "gcd": [
        Case(INTS, 6),
        Case(INTS * 12, INTS[0] * 18),
        Case(np.array([2971215073]), np.array([1836311903])),
        Case(EDGES8[:, None], EDGES8),
        Case(EDGES64[:, None], EDGES64),
    ],
    "lcm": [Case(INTS, 6), Case(INTS, INTS[0]), Case(EDGES8[:, None], EDGES8)],
    "bitwise_count": [
        Case(INTS),
        Case(np.array([255, 0, 7], np.uint8)),
        Case(np.array([-(2**62), 2**62 - 1])),
        Case(EDGES8),
        Case(EDGES64),
    ],
    "round": [Case(X, 2), Case(X * 100, -1), Case(INTS * 7, -1), Case(X)],
}


def test_every_function_of_the_family_is_in_the_table():
    assert set(numeric.__all__) <= {name.rpartition(".")[2] for name in CASES} | NOT_IN_TABLE


@pytest.mark.parametrize(("name", "number"), rows(CASES), ids=str)
def test_against_numpy(name, number):
    check(name, CASES[name][number])


NOT_IN_TABLE: set[str] = set()

GRADIENTS = {
    "sinc": (ys.sinc, V),
    "exp2": (ys.exp2, V),
    "cbrt": (ys.cbrt, V),
    "logaddexp2": (ys.logaddexp2, X, X[0]),
    "fmax": (ys.fmax, X, X[0]),
    "angle": (ys.angle, COMPLEX),
    "nan_to_num": (ys.nan_to_num, X),
    "fmod": (lambda x: ys.fmod(x, 0.7), V),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradient_of(name):
    function, *arrays = GRADIENTS[name]
    check_gradient(function, *arrays, rtol=2e-5)


def test_cbrt_in_float32_is_as_exact_as_the_dtype():
    x = np.geomspace(1e-37, 1e37, 1000, dtype=np.float32)
    np.testing.assert_allclose(ys.cbrt(ys.asarray(x)).numpy(), np.cbrt(x), rtol=3e-7)
