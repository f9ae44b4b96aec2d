"""Activation functions, and the error function that NumPy lacks."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import yosegi as ys
from torch_peer import check_against_torch
from values import check, dtypes_of, in_single, specials
from yosegi.ops.erf import error_function

X = np.random.default_rng(0).normal(size=(5, 7)) * 2

PEERS = {
    "relu": (ys.nn.relu, lambda f, x: f.relu(x)),
    "gelu": (ys.nn.gelu, lambda f, x: f.gelu(x)),
    "gelu-tanh": (lambda x: ys.nn.gelu(x, approximate="tanh"), lambda f, x: f.gelu(x, approximate="tanh")),
    "silu": (ys.nn.silu, lambda f, x: f.silu(x)),
    "sigmoid": (ys.nn.sigmoid, lambda f, x: x.sigmoid()),
    "erf": (ys.nn.erf, lambda f, x: x.erf()),
    "softplus": (ys.nn.softplus, lambda f, x: f.softplus(x)),
    "softplus-3": (lambda x: ys.nn.softplus(x, beta=3), lambda f, x: f.softplus(x, beta=3)),
    "leaky_relu": (lambda x: ys.nn.leaky_relu(x, 0.3), lambda f, x: f.leaky_relu(x, 0.3)),
    "elu": (lambda x: ys.nn.elu(x, 0.7), lambda f, x: f.elu(x, 0.7)),
}


@pytest.mark.parametrize("name", PEERS)
def test_against_torch(name):
    check_against_torch(*PEERS[name], X)


@pytest.mark.parametrize("name", PEERS)
def test_the_slope_at_zero_is_that_of_torch(name):
    check_against_torch(*PEERS[name], np.zeros(2))


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("x", [-1e3, 1e3])
def test_large_numbers_and_their_slopes_are_finite(name, x):
    ours = PEERS[name][0]
    value, slope = ys.value_and_grad(lambda t: ours(t))(ys.asarray(x))
    assert np.isfinite(float(value))
    assert np.isfinite(float(slope))
    check_against_torch(*PEERS[name], np.array([x]))


def test_relu_of_integers_and_of_nan():
    assert ys.nn.relu(ys.asarray([-2, 3], dtype=ys.int8)).tolist() == [0, 3]
    assert np.isnan(ys.nn.relu(ys.asarray(float("nan"))).numpy())


@pytest.mark.parametrize("dtype", dtypes_of("f"))
def test_sigmoid_of_edge_cases(dtype):
    x = specials(dtype)
    check(ys.nn.sigmoid(ys.asarray(x)), in_single(lambda x: 1 / (1 + np.exp(-x)), x), ulps=0)


def ulps(got, wanted):
    return np.abs(got.astype(np.float64) - wanted) / np.spacing(np.abs(wanted).astype(got.dtype)).astype(np.float64)


@pytest.mark.parametrize(("dtype", "most"), [(np.float64, 1.6), (np.float32, 2.5)])
def test_erf_to_the_last_place(dtype, most):
    x = np.concatenate([np.linspace(-7, 7, 20_001), np.geomspace(1e-30, 1, 2_000), -np.geomspace(0.9, 1.1, 2_000)])
    x = x.astype(dtype)
    wanted = np.array([math.erf(v) for v in x.tolist()])
    assert ulps(error_function(x), wanted).max() <= most + (0.5 if dtype is np.float64 else 0)  # math.erf's own share


@given(hnp.arrays(np.float64, hnp.array_shapes(max_dims=3, min_side=0), elements=st.floats(allow_subnormal=False)))
def test_erf_of_anything(x):
    got = ys.nn.erf(ys.asarray(x)).numpy()
    assert got.shape == x.shape
    np.testing.assert_allclose(got, np.vectorize(math.erf, otypes=[float])(x), rtol=1e-15, atol=0)


def test_erf_keeps_the_sign_of_zero():
    assert np.signbit(error_function(np.array([-0.0, 0.0]))).tolist() == [True, False]


def test_mistakes():
    with pytest.raises(
        ys.errors.ArgumentError, match=r"\[gelu\] expected approximate among 'none', 'tanh', got 'fast'"
    ):
        ys.nn.gelu(ys.ones((2,)), approximate="fast")
    with pytest.raises(ys.errors.DTypeError, match=r"\[elu\] expected alpha as a real number, got 'x'"):
        ys.nn.elu(ys.ones((2,)), "x")
    with pytest.raises(ys.errors.DTypeError, match=r"\[sigmoid\] expected a real floating dtype, got complex128"):
        ys.nn.sigmoid(ys.ones((2,), dtype=ys.complex128))
