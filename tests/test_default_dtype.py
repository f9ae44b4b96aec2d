"""`set_default_dtype`: which dtypes follow it, and that nothing of the old one stays."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from yosegi.errors import DTypeError


@pytest.fixture
def single():
    ys.set_default_dtype(ys.float32)
    yield
    ys.set_default_dtype(ys.float64)


INTS = ys.asarray([1, 2, 3])
MADE = {
    "zeros": lambda: ys.zeros((2,)),
    "linspace": lambda: ys.linspace(0, 1, 3),
    "arange": lambda: ys.arange(0.0, 1.0, 0.5),
    "eye": lambda: ys.eye(2),
    "a list": lambda: ys.asarray([1.5, 2.5]),
    "a number": lambda: ys.asarray(1.5),
    "full": lambda: ys.full((2,), 1.5),
    "normal": lambda: ys.random.default_rng(0).normal((2,)),
    "integers divided": lambda: INTS / 2,
    "integers by a float": lambda: INTS * 0.5,
    "exp": lambda: ys.exp(INTS),
    "mean": lambda: ys.mean(INTS),
    "bools": lambda: (INTS > 1) * 0.5,
    "integers and float32": lambda: INTS + ys.ones((3,), ys.float32),
    "median": lambda: ys.median(INTS),
    "jit": lambda: ys.jit(lambda x: x / 2)(INTS),
    "a float in a trace": lambda: ys.jit(lambda x, a: x * a)(INTS, 0.5),
    "fft": lambda: ys.real(ys.fft.fft(INTS)),
}


@pytest.mark.parametrize("name", MADE)
def test_numbers_without_a_dtype_are_float32(single, name):
    assert MADE[name]().dtype is ys.float32


@pytest.mark.parametrize("name", MADE)
def test_numbers_without_a_dtype_are_float64_before_and_after(name):
    assert MADE[name]().dtype is ys.float64
    ys.set_default_dtype("float32")
    MADE[name]()
    ys.set_default_dtype("float64")
    assert MADE[name]().dtype is ys.float64


def test_what_has_a_dtype_keeps_it(single):
    assert ys.asarray(np.zeros(2)).dtype is ys.float64
    assert ys.asarray([np.float64(1.5)]).dtype is ys.float64
    assert (ys.zeros((2,), ys.float64) * 2.0).dtype is ys.float64
    assert (ys.zeros((2,), ys.float64) + INTS[:2]).dtype is ys.float64
    assert ys.asarray([1j]).dtype is ys.complex64
    assert ys.get_default_dtype() is ys.float32
    assert ys.__array_namespace_info__().default_dtypes()["real floating"] is ys.float32


def test_a_jitted_function_is_traced_anew():
    f = ys.jit(lambda x: ys.zeros((2,)) + x)
    x = ys.ones((2,), ys.float32)
    assert f(x).dtype is ys.float64
    ys.set_default_dtype(ys.float32)
    assert f(x).dtype is ys.float32
    ys.set_default_dtype(ys.float64)
    assert f(x).dtype is ys.float64


def test_other_dtypes_are_refused():
    with pytest.raises(DTypeError, match=r"\[set_default_dtype\] expected float32 or float64, got float16"):
        ys.set_default_dtype(ys.float16)
