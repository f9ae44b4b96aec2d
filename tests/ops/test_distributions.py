"""Random distributions: NumPy's arguments, moments, and Kolmogorov-Smirnov tests against NumPy, with fixed seeds."""

from __future__ import annotations

from math import lgamma

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient
from yosegi.errors import ArgumentError, ShapeError
from yosegi.ops.distributions import inverse_erf, log_factorial

N = 20000
DRAWS = {
    "normal": (2.0, 3.0),
    "uniform": (-1.0, 4.0),
    "exponential": (2.0,),
    "laplace": (1.0, 2.0),
    "gumbel": (1.0, 2.0),
    "gamma": (2.5, 2.0),
    "beta": (2.0, 3.0),
    "poisson": (4.0,),
    "binomial": (20, 0.3),
}
OTHERS = {
    "gamma of a small shape": ("gamma", (0.3, 1.0)),
    "gamma of shape 1": ("gamma", (1.0, 1.0)),
    "gamma of a large shape": ("gamma", (100.0, 1.0)),
    "beta of small numbers": ("beta", (0.5, 0.5)),
    "poisson of a small mean": ("poisson", (0.2,)),
    "poisson of a mean of ten": ("poisson", (10.0,)),
    "poisson of a large mean": ("poisson", (300.0,)),
    "binomial of many": ("binomial", (1000, 0.4)),
    "binomial of likely trials": ("binomial", (50, 0.9)),
    "binomial of rare successes": ("binomial", (1000, 0.002)),
    "binomial of nothing": ("binomial", (10, 0.0)),
    "binomial of everything": ("binomial", (10, 1.0)),
}
CASES = {name: (name, args) for name, args in DRAWS.items()} | OTHERS


def distance(first, second):
    """The largest distance between the two samples' distribution functions."""
    both = np.sort(np.concatenate([first, second]))
    ranks = [np.searchsorted(np.sort(s), both, side="right") / len(s) for s in (first, second)]
    return np.abs(ranks[0] - ranks[1]).max()


COUNTS = ("poisson", "binomial")


@pytest.mark.parametrize(
    ("case", "dtype"),
    [(c, d) for c, (name, _) in CASES.items() for d in (("int64",) if name in COUNTS else ("float64", "float32"))],
)
def test_a_distribution_is_numpys(case, dtype):
    name, args = CASES[case]
    kwargs = {"dtype": dtype}
    made = getattr(ys.random.default_rng(3), name)(*args, size=N, **kwargs)
    expected = getattr(np.random.default_rng(3), name)(*args, size=N)
    assert made.shape == (N,)
    assert made.dtype == dtype
    x = made.numpy().astype(np.float64)
    assert np.isfinite(x).all()
    # The chance of a distance above this, if the distributions are equal, is 1e-4.
    assert distance(x, expected) < 2.23 * np.sqrt(2 / N)
    spread = expected.std() / np.sqrt(N)
    assert abs(x.mean() - expected.mean()) <= 6 * spread
    np.testing.assert_allclose(x.std(), expected.std(), rtol=0.08, atol=1e-12)


def test_a_wrong_distribution_is_found():
    assert distance(np.random.default_rng(0).normal(size=N), np.random.default_rng(1).normal(0.1, size=N)) > 0.0223


def test_truncated_normal_numbers():
    x = ys.random.default_rng(4).truncated_normal(-0.5, 2.0, size=N).numpy()
    kept = np.random.default_rng(4).normal(size=4 * N)
    kept = kept[(kept > -0.5) & (kept < 2.0)]
    assert x.min() >= -0.5
    assert x.max() <= 2.0
    assert distance(x, kept) < 2.23 * np.sqrt(1 / N + 1 / len(kept))


def test_multivariate_normal_numbers():
    cov = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])
    x = ys.random.default_rng(5).multivariate_normal(ys.asarray([1.0, 2.0, 3.0]), ys.asarray(cov), size=N).numpy()
    assert x.shape == (N, 3)
    np.testing.assert_allclose(x.mean(0), [1, 2, 3], atol=0.05)
    np.testing.assert_allclose(np.cov(x.T), cov, atol=0.06)
    with pytest.raises(ShapeError, match=r"\[multivariate_normal\] expected a vector and a matrix"):
        ys.random.default_rng(5).multivariate_normal(ys.zeros((2,)), ys.eye(3))


def test_categorical():
    p = np.array([0.1, 0.2, 0.7])
    made = ys.random.default_rng(6).categorical(ys.asarray(np.log(p)), size=N).numpy()
    np.testing.assert_allclose(np.bincount(made) / N, p, atol=0.02)
    rows = ys.asarray(np.log(np.array([[1.0, 0.0], [0.0, 1.0]]) + 1e-300))
    assert ys.random.default_rng(6).categorical(rows).tolist() == [0, 1]
    assert ys.random.default_rng(6).categorical(rows, axis=0).tolist() == [0, 1]


def test_numpys_arguments():
    rng = ys.random.default_rng(0)
    assert rng.normal(0, 1, (2, 3)).shape == rng.normal(size=(2, 3)).shape == rng.normal((2, 3)).shape == (2, 3)
    assert rng.uniform(-1, 1, 4).shape == rng.uniform(low=-1, high=1, size=4).shape == (4,)
    assert rng.integers(0, 10, size=5).shape == rng.integers(10, size=5).shape == (5,)
    assert rng.integers(1, 3, size=100, endpoint=True).max().item() == 3
    assert rng.choice(5, 3, False).shape == rng.standard_normal(3).shape == rng.random(3).shape == (3,)
    assert rng.normal(ys.zeros((2, 1)), ys.ones((3,))).shape == (2, 3)
    assert abs(float(rng.normal(5, 0.001))) > 4
    assert len({float(v) for v in rng.normal(ys.zeros((4,)))}) == 4
    assert rng.shuffle(ys.arange(9)).shape == (9,)
    assert [type(g) for g in rng.spawn(2)] == [type(rng)] * 2
    with pytest.raises(ArgumentError, match=r"\[normal\] expected size= or shape=, which are the same"):
        rng.normal(size=2, shape=3)
    with pytest.raises(ArgumentError, match=r"\[normal\] expected one shape"):
        rng.normal((2,), size=3)


def test_draws_are_traced_and_reproducible():
    g, h = ys.random.default_rng(9), ys.random.default_rng(9)
    fast = ys.jit(lambda x: x + g.gamma(2.0, size=3) + g.poisson(50.0, size=3))
    for _ in range(3):
        expected = h.gamma(2.0, size=3) + h.poisson(50.0, size=3)
        np.testing.assert_allclose(fast(ys.zeros((3,))).numpy(), expected.numpy(), rtol=1e-12)


def test_gradients_reach_location_and_scale():
    def draw(loc, scale):
        rng = ys.random.default_rng(3)
        parts = [rng.normal(loc, scale, 4), rng.laplace(loc, scale, 4), rng.gumbel(loc, scale, 4)]
        return ys.concat([*parts, rng.gamma(2.0, scale, 4), rng.uniform(loc, scale, 4)])

    check_gradient(draw, np.asarray(0.5), np.asarray(2.0))


def test_the_functions_behind_them():
    k = np.array([0.0, 1.0, 2.0, 5.0, 30.0, 1e4])
    np.testing.assert_allclose(log_factorial(ys.asarray(k)).numpy(), [lgamma(v + 1) for v in k], rtol=1e-12, atol=1e-12)
    y = np.concatenate([np.linspace(-0.9999999, 0.9999999, 101), [1 - 1e-14]])
    np.testing.assert_allclose(ys.nn.erf(inverse_erf(ys.asarray(y))).numpy(), y, rtol=1e-14, atol=1e-15)
