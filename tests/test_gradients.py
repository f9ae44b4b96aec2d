"""Every gradient that an op declares, against differences of its values: first and second order, real and complex."""

from __future__ import annotations

import numpy as np
import pytest

import yosegi as ys
from gradients import check_gradient, random
from samples import BUILT_BY_INDEXING, SAMPLES, as_complex, missing
from yosegi.op import REGISTRY


def test_every_op_has_a_sample():
    assert missing() == set()


def check_twice(function, *arrays):
    """The gradient of the function, and that of a weighted sum of its gradient."""
    check_gradient(function, *arrays, rtol=2e-5)
    weights = [
        ys.asarray(random(np.shape(o), np.complex128, seed=5))
        for o in map(np.asarray, function(*map(ys.asarray, arrays)))
    ]

    def slopes(*xs):
        def loss(*xs):
            parts = zip(function(*xs), weights, strict=True)
            return sum((ys.sum(ys.real(w * o)) for o, w in parts), ys.zeros(()))

        return ys.grad(loss, argnums=tuple(range(len(xs))))(*xs)

    check_gradient(slopes, *arrays, rtol=2e-4)


def outputs_of(op, attrs):
    many = op.name in ("qr", "svd", "eigh", "eig", "slogdet")
    return lambda *xs: op.outputs(*xs, **attrs) if many else (op(*xs, **attrs),)


def gauge_free(name, outputs):
    """Vectors of a decomposition are unique only up to a phase: what is differentiated must not depend on it."""
    if name in ("eigh", "eig"):
        values, vectors = outputs
        return values, (vectors * ys.conj(vectors))
    if name == "svd":
        u, sv, vh = outputs
        return (u * sv) @ vh, sv, u @ ys.conj(u).mT, ys.conj(vh).mT @ vh
    return outputs


DIFFERENTIABLE = [(name, n) for name, samples in SAMPLES.items() if REGISTRY[name].vjp for n in range(len(samples))]


@pytest.mark.parametrize(("name", "number"), DIFFERENTIABLE, ids=[f"{a}-{b}" for a, b in DIFFERENTIABLE])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_gradient_of(name, number, kind):
    sample = SAMPLES[name][number]
    if kind == "complex" and (sample.real_only or all(a.dtype.kind != "f" for a in sample.arrays)):
        pytest.skip("its sample is for real inputs, or complex as it is")
    arrays = [as_complex(a) if kind == "complex" and a.dtype.kind == "f" and a.ndim else a for a in sample.arrays]
    if kind == "complex" and name in ("cholesky", "eigh", "eigvalsh"):
        arrays = [a @ np.conj(a).mT for a in arrays]
    smooth = [i for i, a in enumerate(arrays) if a.dtype.kind in "fc" and a.ndim]
    op = REGISTRY[name]

    def function(*xs):
        inputs = [ys.asarray(a) for a in arrays]
        for i, x in zip(smooth, xs, strict=True):
            if name in ("cholesky", "eigh", "eigvalsh"):  # defined on Hermitian matrices: keep to them
                x = (x + ys.conj(x).mT) / 2
            inputs[i] = x
        return gauge_free(name, outputs_of(op, sample.attrs)(*inputs))

    check_twice(function, *[arrays[i] for i in smooth])


@pytest.mark.parametrize("name", BUILT_BY_INDEXING)
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_gradient_of_indexing(name, kind):
    x = random((3, 4), np.complex128 if kind == "complex" else np.float64)
    check_twice(lambda x: (BUILT_BY_INDEXING[name](x),), x)


@pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if n in SAMPLES and op.vjp is None])
def test_an_op_without_a_rule_gives_no_gradient(name):
    sample = SAMPLES[name][0]
    if not sample.arrays or sample.arrays[0].dtype.kind != "f":
        pytest.skip("takes no real input")
    rest = [ys.asarray(a) for a in sample.arrays[1:]]

    def loss(x):
        return ys.sum(REGISTRY[name](x, *rest, **sample.attrs).astype(ys.float64)) + ys.sum(x)

    np.testing.assert_array_equal(ys.grad(loss)(ys.asarray(sample.arrays[0])).numpy(), 1.0)
